# SPDX-License-Identifier: Apache-2.0
"""Accepted forms of requests: those that clients send beyond OpenAI's documentation, and those of other servers."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from documentation.tables import table

_SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
_FUNCTION: dict[str, Any] = {"name": "f", "description": "Returns.", "parameters": _SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}
_FLAT = {"type": "function", **_FUNCTION}
_CLAUDE = {"name": "f", "input_schema": _SCHEMA}
_CACHE = {"cache_control": {"type": "ephemeral"}}
_USER = {"role": "user", "content": "a"}
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
_ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
_PARTS = [{"type": "text", "text": "a", **_CACHE}]

#: Outcomes of `scripts/interop`.
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "interop.json"

#: Shortest body of each path.
BODIES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "/v1/chat/completions": {"messages": [_USER], "max_tokens": 1},
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/responses": {"input": "a", "max_output_tokens": 1},
        "/v1/messages": {"messages": [_USER], "max_tokens": 1},
        "/api/chat": {"messages": [_USER], "stream": False, "options": {"num_predict": 1}},
        "/api/generate": {"prompt": "a", "stream": False, "options": {"num_predict": 1}},
        "/api/show": {},
        "/tokenize": {},
        "/detokenize": {},
        "/infill": {"n_predict": 0},
        "/apply-template": {"messages": [_USER]},
    }
)


def _answered(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [_USER, {"role": "assistant", "content": content, **more}, _USER]


def _blocks(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*blocks, {"type": "text", "text": "a"}]}]}


def _items(*items: dict[str, Any]) -> dict[str, Any]:
    return {"input": [*items, {"role": "user", "content": "a"}]}


#: Fields beside those of the shortest body, by path and by what they show.
FORMS: Mapping[str, Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "/v1/chat/completions": {
            "`stop` with 64 strings": {"stop": ["never"] * 64},
            "`max_tokens` of 16.0": {"max_tokens": 16.0},
            "`max_tokens` of -1": {"max_tokens": -1, "stop": ["a", "e", " "]},
            "`model` absent": {"model": None},
            "`prediction`": {"prediction": {"type": "content", "content": "a"}},
            "`verbosity`": {"verbosity": "low"},
            "`reasoning_effort`": {"reasoning_effort": "low"},
            "`store`, `metadata`, `user`": {"store": True, "metadata": {"a": "b"}, "user": "u"},
            "`safety_identifier`, `prompt_cache_key`": {"safety_identifier": "u", "prompt_cache_key": "k"},
            "`service_tier`": {"service_tier": "auto"},
            "`modalities` of text": {"modalities": ["text"]},
            "`chat_id`, `session_id`": {"chat_id": "c", "session_id": "s"},
            "`cache_control` of a part": {"messages": [{"role": "user", "content": _PARTS}]},
            "`cache_control` of a function": {"tools": [{**_TOOL, **_CACHE}]},
            "`strict` of a function": {"tools": [{"type": "function", "function": {**_FUNCTION, "strict": True}}]},
            "`strict: null`": {"tools": [{"type": "function", "function": {**_FUNCTION, "strict": None}}]},
            "a tool of the service": {"tools": [_TOOL, {"type": "web_search"}]},
            "`custom` tools": {"tools": [{"type": "custom", "custom": {"name": "g", "description": "d"}}]},
            "`tool_choice` with `allowed_tools`": {
                "tools": [_TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": _ALLOWED},
            },
            "`tool_choice: none` without tools": {"tool_choice": "none"},
            "`parallel_tool_calls` without tools": {"parallel_tool_calls": True},
            "empty `tools`": {"tools": []},
            "`refusal`, `annotations`, `audio` in the history": {
                "messages": _answered("b", refusal=None, annotations=[], audio=None),
            },
            "a part `refusal`": {"messages": _answered([{"type": "refusal", "refusal": "No."}])},
            "`reasoning_content`, `reasoning` in the history": {
                "messages": _answered("b", reasoning_content="c", reasoning="c"),
            },
            "calls with `content` null, absent or empty": {
                "messages": [_USER, {"role": "assistant", "tool_calls": [_CALL]},
                             {"role": "tool", "tool_call_id": "c1", "content": "b"}],
            },
            "results in parts": {
                "messages": [_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                             {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "b"}]}],
            },
            "`name` of a message": {"messages": [{**_USER, "name": "n"}]},
            "role `developer`": {"messages": [{"role": "developer", "content": "b"}, _USER]},
            "`response_format` of `text`": {"response_format": {"type": "text"}},
            "`chat_template_kwargs`": {"chat_template_kwargs": {"enable_thinking": False}},
            "`cache_prompt`, `id_slot`, `timings_per_token`": {
                "cache_prompt": True, "id_slot": -1, "timings_per_token": False,
            },
            "`n_predict`, `repeat_penalty`, `typical_p`": {"n_predict": 1, "repeat_penalty": 1.0, "typical_p": 1.0},
            "`reasoning_format`, `parse_tool_calls`, `thinking_forced_open`": {
                "reasoning_format": "auto", "parse_tool_calls": True, "thinking_forced_open": False,
            },
            "`n_keep`, `n_discard`, `lora`, `image_data`, `t_max_predict_ms`, `speculative.n_max`": {
                "n_keep": 0, "n_discard": 0, "lora": [], "image_data": [],
                "t_max_predict_ms": 0, "speculative.n_max": 4,
            },
            "`response_fields`, `return_tokens`, `post_sampling_probs`": {
                "response_fields": [], "return_tokens": False, "post_sampling_probs": False,
            },
            "`stop` empty": {"stop": ""},
            "`logit_bias` in pairs": {"logit_bias": [[5, 1.0], [6, False]]},
            "`tool_choice` as in `/v1/responses`": {"tools": [_TOOL], "tool_choice": {"type": "function", "name": "f"}},
            "`tool_choice` as in `/v1/messages`": {"tools": [_TOOL], "tool_choice": {"type": "auto"}},
            "`tool_choice: any`": {"tools": [_TOOL], "tool_choice": "any"},
            "`enable_thinking`": {"enable_thinking": False},
            "`thinking` with a type": {"thinking": {"type": "disabled"}},
            "`reasoning` with an effort": {"reasoning": {"effort": "low"}},
            "`think`, `keep_alive`": {"think": False, "keep_alive": 300},
            "`provider`, `models`, `route`, `plugins`, `transforms`": {
                "provider": {"sort": "price"}, "models": ["m"], "route": "fallback", "plugins": [], "transforms": [],
            },
            "`random_seed`, `safe_prompt`": {"random_seed": 1, "safe_prompt": False},
        },
        "/v1/completions": {
            "`n_predict`": {"n_predict": 1},
            "`prompt` as token ids": {"prompt": [1, 2]},
            "`best_of` of 1": {"best_of": 1},
            "`stop: null`": {"stop": None},
        },
        "/v1/responses": {
            "`truncation: auto`": {"truncation": "auto"},
            "`max_tool_calls`": {"max_tool_calls": 4},
            "`text.verbosity`": {"text": {"format": {"type": "text"}, "verbosity": "low"}},
            "`reasoning` with `summary`": {"reasoning": {"effort": "low", "summary": "auto"}},
            "`include`": {"include": ["reasoning.encrypted_content"]},
            "`client_metadata`, `prompt_cache_key`": {"client_metadata": {"a": "b"}, "prompt_cache_key": "k"},
            "tools of the service": {"tools": [_FLAT, {"type": "web_search"}, {"type": "local_shell"}]},
            "`namespace` tools": {"tools": [{"type": "namespace", "name": "m", "description": "", "tools": [_FLAT]}]},
            "`custom` tools": {"tools": [{"type": "custom", "name": "g", "description": "d"}]},
            "calls and results in the history": _items(
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "b"},
            ),
            "reasoning in the history": _items({"type": "reasoning", "id": "r", "summary": []}),
            "`context_management` empty": {"context_management": []},
            "searches in the history": _items({"type": "web_search_call", "id": "w", "status": "completed"}),
        },
        "/v1/messages": {
            "`system` in blocks with `cache_control`": {"system": [{"type": "text", "text": "s", **_CACHE}]},
            "`metadata`, `service_tier`": {"metadata": {"user_id": "u"}, "service_tier": "auto"},
            "`thinking`": {"thinking": {"type": "disabled"}},
            "`context_management`": {"context_management": {"edits": []}},
            "`betas`, `speed`, `inference_geo`": {"betas": ["b"], "speed": "fast", "inference_geo": "us"},
            "tools of the service": {
                "tools": [_CLAUDE, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
            },
            "`document` of text": _blocks({"type": "document", "source": {"type": "text", "data": "b"}}),
            "`search_result`": _blocks(
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "b"}]}
            ),
            "`tool_reference`": _blocks({"type": "tool_reference", "tool_name": "f"}),
        },
        "/api/chat": {
            "`model` with `:latest`": {"model": "MODEL:latest"},
            "`temperature`, `max_output_tokens` beside `options`": {"temperature": 0.5, "max_output_tokens": 1},
            "`tools` and `tool_choice`": {"tools": [_TOOL], "tool_choice": "auto"},
            "`tool_call_id`, `tool_name`": {
                "messages": [_USER, {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "c", "function": {"name": "f", "arguments": {"a": "x"}}}]},
                    {"role": "tool", "content": "b", "tool_call_id": "c", "tool_name": "f"}],
            },
            "`think`, `keep_alive`, `truncate`, `shift`": {
                "think": False, "keep_alive": "5m", "truncate": True, "shift": True,
            },
            "`logprobs`, `top_logprobs`": {"logprobs": True, "top_logprobs": 1},
            "`format` empty, `json` or a schema": {"format": ""},
            "`num_ctx`, `num_thread`, `mirostat: 0` in `options`": {
                "options": {"num_ctx": 64, "num_thread": 2, "mirostat": 0, "num_predict": 1},
            },
        },
        "/api/generate": {
            "`raw`": {"raw": True},
            "`system`, empty `template`, `context`, `images`": {
                "system": "s", "template": "", "context": [], "images": [],
            },
            "an empty `prompt` to load": {"prompt": ""},
        },
        "/api/show": {"`name` in place of `model`": {"model": None, "name": "MODEL"}, "`verbose`": {"verbose": True}},
        "/tokenize": {
            "`prompt` or `messages`, as in vLLM": {"prompt": "a"},
            "`content`, `add_special`, `with_pieces`, as in llama-server": {
                "content": "a", "add_special": True, "with_pieces": False,
            },
        },
        "/detokenize": {"`tokens`": {"tokens": [5]}},
        "/apply-template": {"`messages`": {}},
    }
)  # fmt: skip


def request_forms() -> str:
    """Return the table of the forms, which a test sends, and which of them llama-server accepts by the record."""
    record = json.loads(RECORD.read_bytes())["forms"]
    refused = {(row["path"], row["form"]) for row in record if row["reason"]}
    recorded = {(row["path"], row["form"]) for row in record}
    rows = []
    for path, forms in FORMS.items():
        missing = [form for form in forms if (path, form) in refused]
        assert recorded >= {(path, form) for form in forms}, f"Run scripts/interop forms: {path}"
        rows.append([f"`{path}`", "; ".join(forms), _as_accepted(forms, missing)])
    total = sum(map(len, FORMS.values()))
    sentence = f"Of {total} forms {record[0]['server']} answers {total - len(refused)}."
    return f"{table(['path', 'accepted', 'at llama-server'], rows)}\n\n{sentence}"


def _as_accepted(forms: Collection[str], refused: Collection[str]) -> str:
    """Return which of the forms another server accepts, in words."""
    if len(refused) == len(forms):
        return "no such path"
    return f"all but {'; '.join(refused)}" if refused else "all"
