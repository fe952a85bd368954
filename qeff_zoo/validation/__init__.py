# SPDX-License-Identifier: Apache-2.0
"""Validation: a package is compared with Hugging Face, by a ladder that fails closed."""
