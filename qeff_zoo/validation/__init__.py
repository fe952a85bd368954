# SPDX-License-Identifier: Apache-2.0
"""Validation: comparison of a package with Hugging Face, by a ladder that fails closed."""
