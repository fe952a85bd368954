# SPDX-License-Identifier: Apache-2.0
"""Sharing packages: publish, find, pull, and what may be trusted."""
