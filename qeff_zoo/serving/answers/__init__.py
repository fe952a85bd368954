# SPDX-License-Identifier: Apache-2.0
"""Answers of every API: choices of a request, their events, objects and streams."""
