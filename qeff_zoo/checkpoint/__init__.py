# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: a model id or a path in; configuration, companion files, tensors and identity out."""
