# SPDX-License-Identifier: Apache-2.0
"""Weights: bindings of initializers to checkpoint tensors, their storage formats, and the weight file."""
