# SPDX-License-Identifier: Apache-2.0
"""Encoding of images, videos and audio by a package's programs, without torch."""
