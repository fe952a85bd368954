# SPDX-License-Identifier: Apache-2.0
"""Loaded before any test module: the plugin sets the environment that huggingface_hub reads when it is imported."""

pytest_plugins = ["fixtures_hub", "fixtures_builds"]
