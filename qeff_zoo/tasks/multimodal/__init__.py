# SPDX-License-Identifier: Apache-2.0
"""Tasks whose prompts have images, videos or audio among their text."""
