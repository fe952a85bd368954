# SPDX-License-Identifier: Apache-2.0
"""Image, video and audio preprocessing, without torch."""
