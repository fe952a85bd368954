# SPDX-License-Identifier: Apache-2.0
"""Tasks that read a whole image in one call: embeddings, and scores of labels or of texts."""
