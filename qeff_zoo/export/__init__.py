# SPDX-License-Identifier: Apache-2.0
"""Export: a Hugging Face config becomes a portable ONNX graph, without weights."""
