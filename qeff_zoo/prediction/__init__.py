# SPDX-License-Identifier: Apache-2.0
"""Predicted numerics of a device, computed on the CPU: see docs/prediction.md."""
