# SPDX-License-Identifier: Apache-2.0
"""Object detection: labels, scores and boxes of the objects in an image."""
