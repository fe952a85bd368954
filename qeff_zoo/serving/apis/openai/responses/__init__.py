# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Responses and Conversations APIs: items in memory that later requests continue."""
