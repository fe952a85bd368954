# SPDX-License-Identifier: Apache-2.0
"""Chat templates that render tool calls and reasoning in the format of each family, and nothing else."""

from collections.abc import Mapping
from types import MappingProxyType

#: A template: a header, then each message; `CALLS` is where an assistant's calls are rendered.
_FRAME = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.tool_calls %}CALLS{% endif %}<|end_of_turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}ONE{% endfor %}"
_COMMA = "{% if not loop.last %}, {% endif %}"
_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_PYTHON = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}="
    "{% if v is true %}True{% elif v is false %}False{% else %}{{ v | tojson }}{% endif %}"
    + _COMMA
    + "{% endfor %})"
)
_TEXT = "{{ v if v is string else v | tojson }}"


def _tagged(before: str, after: str) -> str:
    return "{% for k, v in f.arguments.items() %}" + before + _TEXT + after + "{% endfor %}"


def _gemma(quote: str) -> str:
    return (
        "{% macro value(v) %}{% if v is string %}QUOTE{{ v }}QUOTE{% elif v is mapping %}{{ '{' }}"
        "{% for k, w in v.items() %}{{ k }}:{{ value(w) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}"
        "{% elif v is iterable %}[{% for w in v %}{{ value(w) }}{% if not loop.last %},{% endif %}{% endfor %}]"
        "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
    ).replace("QUOTE", quote)


_DSML = (
    '{% for k, v in f.arguments.items() %}<｜DSML｜parameter name="{{ k }}" string="{{ (v is string) | tojson }}">'
    + _TEXT
    + "</｜DSML｜parameter>\n{% endfor %}"
)
_INVOKE = '<｜DSML｜invoke name="{{ f.name }}">\n' + _DSML + "</｜DSML｜invoke>\n"
#: Rendering of one call, or of all calls if it has no `{% for c`.
_CALLS: Mapping[str, tuple[str, str, str]] = {  # before all, each, after all
    "hermes": ("", "\n<tool_call>\n" + _OBJECT + "\n</tool_call>", ""),
    "seed_oss": (
        "",
        "\n<seed:tool_call>\n<function={{ f.name }}>\n"
        + _tagged("<parameter={{ k }}>", "</parameter>\n")
        + "</function>\n</seed:tool_call>",
        "",
    ),
    "qwen3_coder": (
        "",
        "\n<tool_call>\n<function={{ f.name }}>\n"
        + _tagged("<parameter={{ k }}>\n", "\n</parameter>\n")
        + "</function>\n</tool_call>",
        "",
    ),
    "glm45": (
        "",
        "\n<tool_call>{{ f.name }}\n"
        + _tagged("<arg_key>{{ k }}</arg_key>\n<arg_value>", "</arg_value>\n")
        + "</tool_call>",
        "",
    ),
    "minimax_m2": (
        "\n<minimax:tool_call>\n",
        '<invoke name="{{ f.name }}">\n'
        + _tagged('<parameter name="{{ k }}">', "</parameter>\n")
        + "</invoke>\n",
        "</minimax:tool_call>",
    ),
    "minimax": ("<tool_calls>\n", _OBJECT + "\n", "</tool_calls>"),
    "jamba": ("<tool_calls>[", _OBJECT + _COMMA, "]</tool_calls>"),
    "mistral": ("", "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", ""),
    "mistral_list": ("[TOOL_CALLS] [", _OBJECT + _COMMA, "]"),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n```"
        "<｜tool▁call▁end｜>\n",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": ("\n<｜DSML｜function_calls>\n", _INVOKE, "</｜DSML｜function_calls>"),
    "deepseek_v4": ("\n<｜DSML｜tool_calls>\n", _INVOKE, "</｜DSML｜tool_calls>"),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
        "{{ f.arguments | tojson }}<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": (
        "<|open|>tools<|sep|>",
        '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>'
        + _tagged(
            "<|open|>argument key=\"{{ k }}\" type=\"{{ 'string' if v is string else 'object' }}\"<|sep|>",
            "<|close|>argument<|sep|>",
        )
        + "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "granite": ("<|tool_call|>[", _OBJECT + _COMMA, "]"),
    "nemotron": ("\n<TOOLCALL>[", _OBJECT + _COMMA, "]</TOOLCALL>"),
    "command_r7b": (
        "<|START_ACTION|>[\n",
        '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
        '"parameters": {{ f.arguments | tojson }}}{% if not loop.last %},\n{% endif %}',
        "\n]<|END_ACTION|>",
    ),
    "apertus": (
        "<|tools_prefix|>[",
        '{"{{ f.name }}": {{ f.arguments | tojson }}}' + _COMMA,
        "]<|tools_suffix|>",
    ),
    "gigachat3": ("", "<|function_call|>" + _OBJECT, ""),
    "hy_v3": (
        "<tool_calls:opensource>\n",
        "<tool_call:opensource>{{ f.name }}<tool_sep:opensource>\n"
        + _tagged(
            "<arg_key:opensource>{{ k }}</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>\n",
        )
        + "</tool_call:opensource>\n",
        "</tool_calls:opensource>",
    ),
    "solar": (
        "<|tool_calls|>",
        "<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>{{ f.arguments | tojson }}"
        "<|tool_call:end|>",
        "<|calls|>",
    ),
    "functiongemma": (
        _gemma("<escape>"),
        "<start_function_call>call:{{ f.name }}{{ value(f.arguments) }}<end_function_call>",
        "",
    ),
    "gemma4": (
        _gemma('<|"|>'),
        "<|tool_call>call:{{ f.name }}{{ value(f.arguments) }}<tool_call|>",
        "",
    ),
    "lfm2": ("<|tool_call_start|>[", _PYTHON + _COMMA, "]<|tool_call_end|>"),
    "olmo3": ("<function_calls>\n", _PYTHON + "\n", "</function_calls>"),
    "internlm": (
        "",
        '<|action_start|><|plugin|>{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|action_end|>',
        "",
    ),
    "functionary": ("", "<function={{ f.name }}>{{ f.arguments | tojson }}</function>", ""),
    "functionary_v3": ("", ">>>{{ f.name }}\n{{ f.arguments | tojson }}", ""),
    "llama3_json": (
        "",
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% if not loop.last %}; {% endif %}',
        "",
    ),
    "pythonic": ("[", _PYTHON + _COMMA, "]"),
}
_HARMONY = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}"
    "<|end|><|start|>assistant{% endif %}{% for c in m.tool_calls or [] %} to=functions.{{ c.function.name }}"
    "<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>"
    "{% if not loop.last %}<|start|>assistant{% endif %}{% endfor %}"
    "{% if m.role != 'assistant' %}<|message|>{{ m.content }}<|end|>"
    "{% elif m.content %}<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
#: A template of a model whose answers have marks, too, with which the prompt ends.
MARKED = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role != 'assistant' %}{{ m.content }}{% elif m.content %}>>>all\n"
    "{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}>>>{{ c.function.name }}\n"
    "{{ c.function.arguments | tojson }}{% endfor %}<|end_of_turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n>>>{% endif %}"
)
#: Templates by the name of their format.
TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "openai": _HARMONY,
        **{
            name: _FRAME.replace("CALLS", f"{before}{_EACH.replace('ONE', each)}{after}")
            for name, (before, each, after) in _CALLS.items()
        },
    }
)
#: A template of a model that thinks, whose prompt begins the thinking unless it is turned off.
THINKING = (
    _FRAME.replace("CALLS", _EACH.replace("ONE", _CALLS["hermes"][1]))
    .replace(
        "\n{{ m.content }}",
        "\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}",
    )
    .replace(
        "<|assistant|>\n{% endif %}",
        "<|assistant|>\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
        "{% endif %}",
    )
)
