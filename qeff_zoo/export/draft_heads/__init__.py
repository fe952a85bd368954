# SPDX-License-Identifier: Apache-2.0
"""Torch modules of draft heads, draft layers and assistants, for the exporter."""
