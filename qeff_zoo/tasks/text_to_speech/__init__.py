# SPDX-License-Identifier: Apache-2.0
"""Text to speech: a text in, the samples of a voice out."""
