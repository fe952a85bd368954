# SPDX-License-Identifier: Apache-2.0
"""Image to image: an image computed from an image, such as a larger one (super resolution)."""
