# SPDX-License-Identifier: Apache-2.0
"""Image encoders: a base class each, and a file per family of models in `families/`."""
