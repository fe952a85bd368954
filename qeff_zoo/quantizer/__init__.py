# SPDX-License-Identifier: Apache-2.0
"""Quantizing a checkpoint so that its answers on a text change least: `qeff-zoo quantize`."""
