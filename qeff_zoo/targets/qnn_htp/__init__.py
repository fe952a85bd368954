# SPDX-License-Identifier: Apache-2.0
"""Target `qnn-htp`: Qualcomm's Hexagon Tensor Processor, compiled for and simulated by onnxruntime-qnn."""
