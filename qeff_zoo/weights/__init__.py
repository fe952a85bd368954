# SPDX-License-Identifier: Apache-2.0
"""Weights: what each initializer is made of, how it is stored, and its way from the checkpoint into one file."""
