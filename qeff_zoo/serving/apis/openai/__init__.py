# SPDX-License-Identifier: Apache-2.0
"""OpenAI's API: chat completions, completions and responses."""
