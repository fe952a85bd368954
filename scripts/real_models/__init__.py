# SPDX-License-Identifier: Apache-2.0
"""Real models of the package registry: fetched, built, validated, measured and recorded; behind `scripts/real`."""
