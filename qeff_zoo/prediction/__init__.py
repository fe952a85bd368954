# SPDX-License-Identifier: Apache-2.0
"""What a device's numerics would make of a model, computed on the CPU: see docs/prediction.md."""
