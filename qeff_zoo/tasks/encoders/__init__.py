# SPDX-License-Identifier: Apache-2.0
"""Text encoder tasks, one call per whole text: embeddings, and scores of texts or of their tokens."""
