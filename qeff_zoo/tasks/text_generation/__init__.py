# SPDX-License-Identifier: Apache-2.0
"""Text generation with a decoder, its draft heads and draft models."""
