# SPDX-License-Identifier: Apache-2.0
"""Tracing of image and audio encoders, and of language models that read their features."""
