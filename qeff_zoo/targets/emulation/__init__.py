# SPDX-License-Identifier: Apache-2.0
"""Emulation of a device's numerics on the CPU: a float32 graph that rounds as the device does."""
