# SPDX-License-Identifier: Apache-2.0
"""sentence-transformers' files beside a checkpoint: modules after the encoder, prompts, lengths and similarity."""
