# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: from a model id or a path to configuration, companion files, tensors and identity."""
