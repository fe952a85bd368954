# SPDX-License-Identifier: Apache-2.0
"""Multimodal text generation tasks: prompts with images, videos or audio among their text."""
