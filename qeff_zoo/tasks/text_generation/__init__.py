# SPDX-License-Identifier: Apache-2.0
"""Text generation: a decoder, its draft heads and draft models."""
