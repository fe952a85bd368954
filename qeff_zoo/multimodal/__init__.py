# SPDX-License-Identifier: Apache-2.0
"""Multimodal inputs: how images reach a model, a base class each, and a file per family in `families/`."""
