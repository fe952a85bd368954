# SPDX-License-Identifier: Apache-2.0
"""Caches of prefixes, states and encoded images, and rotation of their keys."""
