# SPDX-License-Identifier: Apache-2.0
"""Keypoint detection: points of the bodies of people in an image, each with a label and a score."""
