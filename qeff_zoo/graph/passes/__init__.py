# SPDX-License-Identifier: Apache-2.0
"""ONNX -> ONNX: one pass per file, each changing a model in place and returning the number of its changes."""
