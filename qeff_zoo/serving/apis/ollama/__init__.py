# SPDX-License-Identifier: Apache-2.0
"""ollama's API, as chats and completions of OpenAI's form."""
