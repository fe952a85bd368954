# SPDX-License-Identifier: Apache-2.0
"""Tasks that read a whole text in one call: embeddings, and scores of texts or of their tokens."""
