# SPDX-License-Identifier: Apache-2.0
"""Depth estimation: the depth of every pixel of an image."""
