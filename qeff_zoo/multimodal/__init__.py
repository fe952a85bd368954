# SPDX-License-Identifier: Apache-2.0
"""Image encoders: base classes here, and a module per model family in `families/`."""
