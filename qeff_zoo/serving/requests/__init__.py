# SPDX-License-Identifier: Apache-2.0
"""Requests of every API in one form, OpenAI's: bodies, prices, and conversion to the runtime's requests."""
