# SPDX-License-Identifier: Apache-2.0
"""Output of chat models: text, reasoning and tool calls, by the format of each model family."""

from qeff_zoo.runtime.text.chat_output.chat_format import ChatFormat, check_parsers, prompt_end
from qeff_zoo.runtime.text.chat_output.events import (
    Arguments,
    Call,
    Event,
    Output,
    Reasoning,
    Text,
    ToolCall,
)
from qeff_zoo.runtime.text.chat_output.formats import CALL_FORMATS, REASONING_FORMATS
from qeff_zoo.runtime.text.chat_output.parsing import OutputParser, parsed

__all__ = [
    "CALL_FORMATS",
    "REASONING_FORMATS",
    "Arguments",
    "Call",
    "ChatFormat",
    "Event",
    "Output",
    "OutputParser",
    "Reasoning",
    "Text",
    "ToolCall",
    "check_parsers",
    "parsed",
    "prompt_end",
]
