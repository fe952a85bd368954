# SPDX-License-Identifier: Apache-2.0
"""Judgement: distances of answers and their tolerances, and records of the evidence."""
