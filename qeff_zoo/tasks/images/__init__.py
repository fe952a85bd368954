# SPDX-License-Identifier: Apache-2.0
"""Image encoder tasks, one call per whole image: embeddings, and scores of labels or of texts."""
