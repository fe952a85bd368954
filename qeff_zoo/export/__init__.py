# SPDX-License-Identifier: Apache-2.0
"""Export of a Hugging Face model to portable ONNX graphs, without weights."""
