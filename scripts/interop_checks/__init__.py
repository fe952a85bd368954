# SPDX-License-Identifier: Apache-2.0
"""Checks of the server with others' clients and tests: a cache folder in, a row for each check out."""
