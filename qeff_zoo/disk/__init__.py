# SPDX-License-Identifier: Apache-2.0
"""Disk primitives: digests, atomic folders, and locks of living processes."""
