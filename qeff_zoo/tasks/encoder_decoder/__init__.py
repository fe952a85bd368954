# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoder tasks: generation from a text or an image that an encoder reads."""
