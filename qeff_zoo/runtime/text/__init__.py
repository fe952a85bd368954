# SPDX-License-Identifier: Apache-2.0
"""Text of prompts and answers: tokenizer, chat templates, grammars, and formats of chat output."""
