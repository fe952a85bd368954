# SPDX-License-Identifier: Apache-2.0
"""Families of pipelines: inputs of the model that removes noise, and its tracing, a module each; recipes name them."""
