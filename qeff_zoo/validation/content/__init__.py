# SPDX-License-Identifier: Apache-2.0
"""Comparison of content that must agree exactly: texts, settings, stored weights, arrays of media."""
