# SPDX-License-Identifier: Apache-2.0
"""Targets: how a portable graph is lowered to what a compiler likes best, and compiled. One file per target."""
