# SPDX-License-Identifier: Apache-2.0
"""Endpoints of text encoders: of OpenAI, vLLM, Cohere, ollama and Text Embeddings Inference; and their queue."""
