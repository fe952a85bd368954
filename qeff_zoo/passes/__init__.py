# SPDX-License-Identifier: Apache-2.0
"""ONNX -> ONNX: one pass a file, each a function that changes a model in place and returns how many places it changed."""
