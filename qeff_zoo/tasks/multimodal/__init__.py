# SPDX-License-Identifier: Apache-2.0
"""Multimodal tasks, text generation and embeddings: prompts with images, videos or audio among their text."""
