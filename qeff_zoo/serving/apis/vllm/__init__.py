# SPDX-License-Identifier: Apache-2.0
"""Endpoints that vLLM adds to OpenAI's: tokens and LoRA adapters."""
