# SPDX-License-Identifier: Apache-2.0
"""Tasks whose decoder generates from what an encoder read: a text or an image."""
