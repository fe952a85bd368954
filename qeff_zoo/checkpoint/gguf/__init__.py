# SPDX-License-Identifier: Apache-2.0
"""GGUF files: their index, and conversion of metadata, names and vocabulary to transformers'."""
