# SPDX-License-Identifier: Apache-2.0
"""Zero-shot object detection: scores and boxes of the objects in an image that texts name."""
