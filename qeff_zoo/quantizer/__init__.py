# SPDX-License-Identifier: Apache-2.0
"""Quantization with calibration data: `qeff-zoo quantize`."""
