# SPDX-License-Identifier: Apache-2.0
"""Image segmentation: labels and masks of the segments of an image, semantic, of instances or panoptic."""
