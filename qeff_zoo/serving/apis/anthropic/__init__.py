# SPDX-License-Identifier: Apache-2.0
"""Anthropic's Messages API, as chats of OpenAI's form."""
