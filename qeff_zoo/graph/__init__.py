# SPDX-License-Identifier: Apache-2.0
"""The portable graph: semantic ops, numerics, states, external data, and passes over ONNX."""
