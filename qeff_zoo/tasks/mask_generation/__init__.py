# SPDX-License-Identifier: Apache-2.0
"""Mask generation: masks of what points and boxes in an image show."""
