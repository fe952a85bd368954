# SPDX-License-Identifier: Apache-2.0
"""Training a checkpoint on a user's data, by transformers, trl and peft: a configuration in, a run folder out."""
