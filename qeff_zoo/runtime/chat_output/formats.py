# SPDX-License-Identifier: Apache-2.0
"""Formats of tool calls and of reasoning, by model family: one row each.

A row is the text that a family's chat template renders, with holes in braces. The parser reads outputs by it, and the
grammar that guarantees calls is made of it. Whitespace in a row may have any length in an output.

    {call}      a JSON object with the name and the arguments
    {name}      the name of the function
    {args}      the arguments: a JSON object, keyword arguments of Python, or each argument by the row's `argument`
    {key}       the name of an argument
    {type}      its JSON type
    {string}    whether it is a string: true or false
    {value}     its value: text of a string, JSON of anything else
    {id}        an identifier of the call
    {index}     the number of the call
"""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from types import MappingProxyType
from typing import Literal, TypeAlias

#: Values in arguments: JSON, Python's literals, or Gemma's JSON with unquoted keys and a quote of its own.
Values: TypeAlias = Literal["json", "python", "gemma"]


@dataclass(frozen=True, kw_only=True)
class CallFormat:
    """Format of tool calls.

    Args:
        call: Text of a call.
        also: Further texts of a call that models generate.
        begin: Text before the first call.
        join: Text between calls.
        end: Text after the last call, which may be absent.
        argument: Text of an argument, for arguments that are not one object.
        keys: Names of the fields of `{call}`: name and arguments, and any other field before them.
        values: Language of the values.
        quote: Text around strings in Gemma's values.
        id: Identifier of a call for clients, with `{name}` and `{index}`; a random one if empty.
        bare: Whether calls have no mark and begin the output.
        signs: Texts of templates that render definitions of functions, but no calls.
        drops: Texts that are no part of the answer.
    """

    call: str
    also: tuple[str, ...] = ()
    begin: str = ""
    join: str = ""
    end: str = ""
    argument: str = ""
    keys: tuple[str, ...] = ("name", "arguments")
    values: Values = "json"
    quote: str = ""
    id: str = ""
    bare: bool = False
    signs: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()

    @property
    def openings(self) -> list[str]:
        """Texts up to the first line break or hole, which mark the beginning of calls."""
        rows = [self.begin] if self.begin else [self.call, *self.also]
        return list(dict.fromkeys(holes(row)[0][0].split("\n")[0] or "{" for row in rows))

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the row."""
        return (
            *(self.begin, self.call, *self.also, self.join, self.end, self.argument, self.quote),
            *self.drops,
        )


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """Format of reasoning.

    Args:
        begin: Text before the reasoning.
        end: Text after it.
        names: Names of the parsers of vLLM that read this format.
        drops: Texts that are no part of the answer.
    """

    begin: str
    end: str
    names: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the row."""
        return (self.begin, self.end, *self.drops)


def holes(row: str) -> list[tuple[str, str]]:
    """Return the parts of a row: each text with the hole after it; the hole of the last is empty."""
    found, before = [], ""
    for text, hole, *_ in Formatter().parse(row):
        before += text
        if hole is not None:
            found.append((before, hole))
            before = ""
    return [*found, (before, "")]


_DSML = '<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n'
_DSML_CALL = '<｜DSML｜invoke name="{name}">\n{args}</｜DSML｜invoke>\n'
#: The format of gpt-oss, whose messages have channels and recipients; `harmony` parses it.
HARMONY = CallFormat(
    call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{args}",
    also=(" to=functions.{name}<|channel|>commentary json<|message|>{args}",),
    drops=("<|start|>assistant", "<|end|>", "<|call|>", "<|return|>"),
)
#: Formats of tool calls, by the name of vLLM's parser where it has one; the first that reads a rendering is used.
CALL_FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        "openai": HARMONY,
        "hermes": CallFormat(call="<tool_call>\n{call}\n</tool_call>", join="\n"),
        "seed_oss": CallFormat(
            call="<seed:tool_call>\n<function={name}>\n{args}</function>\n</seed:tool_call>",
            argument="<parameter={key}>{value}</parameter>\n",
            join="\n",
        ),
        "qwen3_coder": CallFormat(
            call="<tool_call>\n<function={name}>\n{args}</function>\n</tool_call>",
            also=("<function={name}>\n{args}</function>\n</tool_call>",),
            argument="<parameter={key}>\n{value}\n</parameter>\n",
            join="\n",
        ),
        "glm45": CallFormat(
            call="<tool_call>{name}\n{args}</tool_call>",
            argument="<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
            join="\n",
        ),
        "minimax_m2": CallFormat(
            begin="<minimax:tool_call>\n",
            call='<invoke name="{name}">\n{args}</invoke>\n',
            argument='<parameter name="{key}">{value}</parameter>\n',
            end="</minimax:tool_call>",
        ),
        "minimax": CallFormat(begin="<tool_calls>\n", call="{call}\n", end="</tool_calls>"),
        "jamba": CallFormat(begin="<tool_calls>[", call="{call}", join=", ", end="]</tool_calls>"),
        "mistral": CallFormat(
            call="[TOOL_CALLS]{name}[ARGS]{args}",
            also=("[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{args}", "[TOOL_CALLS]{name}{args}"),
        ),
        "mistral_list": CallFormat(begin="[TOOL_CALLS]\n[", call="{call}", join=", ", end="]"),
        "deepseek_v3": CallFormat(
            begin="<｜tool▁calls▁begin｜>",
            call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{args}\n```<｜tool▁call▁end｜>",
            join="\n",
            end="<｜tool▁calls▁end｜>",
        ),
        "deepseek_v31": CallFormat(
            begin="<｜tool▁calls▁begin｜>",
            call="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{args}<｜tool▁call▁end｜>",
            end="<｜tool▁calls▁end｜>",
        ),
        "deepseek_v32": CallFormat(
            begin="<｜DSML｜function_calls>\n",
            call=_DSML_CALL,
            argument=_DSML,
            end="</｜DSML｜function_calls>",
        ),
        "deepseek_v4": CallFormat(
            begin="<｜DSML｜tool_calls>\n",
            call=_DSML_CALL,
            argument=_DSML,
            end="</｜DSML｜tool_calls>",
        ),
        "kimi_k2": CallFormat(
            begin="<|tool_calls_section_begin|>",
            call="<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{args}<|tool_call_end|>",
            end="<|tool_calls_section_end|>",
            id="functions.{name}:{index}",
        ),
        "kimi_k3": CallFormat(
            begin="<|open|>tools<|sep|>",
            call='<|open|>call tool="{name}" index="{index}"<|sep|>{args}<|close|>call<|sep|>',
            argument='<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
            end="<|close|>tools<|sep|>",
        ),
        "granite": CallFormat(begin="<|tool_call|>\n[", call="{call}", join=", ", end="]"),
        "phi4_mini_json": CallFormat(
            begin="<|tool_call|>\n[", call="{call}", join=", ", end="]<|/tool_call|>"
        ),
        "nemotron": CallFormat(begin="<TOOLCALL>[", call="{call}", join=", ", end="]</TOOLCALL>"),
        "command_r7b": CallFormat(
            begin="<|START_ACTION|>[\n    ",
            call="{call}",
            join=",\n    ",
            end="\n]<|END_ACTION|>",
            keys=("tool_call_id", "tool_name", "parameters"),
        ),
        "apertus": CallFormat(
            begin="<|tools_prefix|>[",
            call='{{"{name}": {args}}}',
            join=", ",
            end="]<|tools_suffix|>",
        ),
        "gigachat3": CallFormat(call="<|function_call|>{call}"),
        "hy_v3": CallFormat(
            begin="<tool_calls:opensource>\n",
            call="<tool_call:opensource>{name}<tool_sep:opensource>\n{args}</tool_call:opensource>\n",
            argument="<arg_key:opensource>{key}</arg_key:opensource>\n"
            "<arg_value:opensource>{value}</arg_value:opensource>\n",
            end="</tool_calls:opensource>",
        ),
        "solar": CallFormat(
            begin="<|tool_calls|>",
            call="<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{args}<|tool_call:end|>",
            end="<|calls|>",
        ),
        "functiongemma": CallFormat(
            call="<start_function_call>call:{name}{args}<end_function_call>",
            values="gemma",
            quote="<escape>",
        ),
        "gemma4": CallFormat(
            call="<|tool_call>call:{name}{args}<tool_call|>", values="gemma", quote='<|"|>'
        ),
        "lfm2": CallFormat(
            begin="<|tool_call_start|>[",
            call="{name}({args})",
            join=", ",
            end="]<|tool_call_end|>",
            values="python",
            signs=("<|tool_list_start|>",),
        ),
        "olmo3": CallFormat(
            begin="<function_calls>\n",
            call="{name}({args})",
            join="\n",
            end="\n</function_calls>",
            values="python",
        ),
        "internlm": CallFormat(
            call="<|action_start|><|plugin|>{call}<|action_end|>", keys=("name", "parameters")
        ),
        "functionary": CallFormat(call="<function={name}>{args}</function>"),
        "llama3_json": CallFormat(
            call="{call}",
            join="; ",
            keys=("name", "parameters"),
            bare=True,
            drops=("<|python_tag|>",),
        ),
        "pythonic": CallFormat(
            begin="[",
            call="{name}({args})",
            join=", ",
            end="]",
            values="python",
            bare=True,
            drops=("<|python_start|>", "<|python_end|>"),
        ),
    }
)
_OF_THINK = ("deepseek_r1", "qwen3", "glm45", "minimax_m2", "granite", "ernie45", "olmo3", "step3")
#: Formats of reasoning by name.
REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        "think": ReasoningFormat(
            begin="<think>",
            end="</think>",
            names=_OF_THINK,
            drops=("<response>", "</response>"),
        ),
        "seed_oss": ReasoningFormat(begin="<seed:think>", end="</seed:think>"),
        "mistral": ReasoningFormat(begin="[THINK]", end="[/THINK]"),
        "gemma4": ReasoningFormat(begin="<|channel>thought\n", end="<channel|>"),
        "command_r7b": ReasoningFormat(
            begin="<|START_THINKING|>",
            end="<|END_THINKING|>",
            drops=(*("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),),
        ),
        "kimi_k3": ReasoningFormat(
            begin="<|open|>think<|sep|>",
            end="<|close|>think<|sep|>",
            drops=(
                *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
            ),
        ),
        "minimax_m3": ReasoningFormat(begin="<mm:think>", end="</mm:think>"),
        "hy_v3": ReasoningFormat(begin="<think:opensource>", end="</think:opensource>"),
        "granite32": ReasoningFormat(
            begin="Here is my thought process:", end="Here is my response:"
        ),
        "apriel": ReasoningFormat(
            begin="Here are my reasoning steps:",
            end="[BEGIN FINAL RESPONSE]",
            drops=("[END FINAL RESPONSE]",),
        ),
        "apertus": ReasoningFormat(begin="<|inner_prefix|>", end="<|inner_suffix|>"),
        "solar": ReasoningFormat(
            begin="<|think|>", end="<|end|>", drops=("<|begin|>assistant", "<|content|>")
        ),
    }
)
