# SPDX-License-Identifier: Apache-2.0
"""Prompts for a text between two others: the tokens of transformers' tokenizers, and requests of a server."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from checkout import TINY_LLAMA
from fixtures_serving import TIMEOUT, post
from transformers import AutoTokenizer

from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.text import fill_in_middle
from qeff_zoo.runtime.text.fill_in_middle import (
    FAMILIES,
    MiddleTokens,
    files_context,
    middle_prompt,
)
from qeff_zoo.runtime.text.tokenizer import Tokenizer

PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_a_prompt_has_the_tokens_of_transformers(family: MiddleTokens, tmp_path: Path) -> None:
    reference = AutoTokenizer.from_pretrained(TINY_LLAMA)
    texts = [text for text in vars(family).values() if text]
    reference.add_special_tokens({"additional_special_tokens": texts})
    reference.save_pretrained(tmp_path)
    tokenizer = Tokenizer.find(tmp_path)
    assert tokenizer is not None
    before, after = f"{family.prefix}{PREFIX}", f"{family.suffix}{SUFFIX}"
    whole = f"{before}{after}{family.middle}" if family.middle else f"{after}{before}"
    assert middle_prompt(tokenizer, PREFIX, SUFFIX) == reference(whole)["input_ids"]
    marks = set(reference.convert_tokens_to_ids(texts))
    injected = middle_prompt(tokenizer, PREFIX + family.suffix, SUFFIX)
    assert injected is not None
    assert sum(token in marks for token in injected) == len(texts)


def test_a_tokenizer_without_such_tokens_has_no_prompt(alone: TextGenerationSession) -> None:
    assert alone.tokenizer is not None
    assert middle_prompt(alone.tokenizer, PREFIX, SUFFIX) is None


def test_a_server_generates_the_text_between(
    url: str, alone: TextGenerationSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alone.tokenizer is not None
    body = {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 6, "temperature": 0}
    status, found = post(url, "completions", json.dumps(body).encode())
    assert (status, found["error"]["param"]) == (400, "suffix")
    first, second, *_ = alone.tokenizer.special.values()
    monkeypatch.setattr(fill_in_middle, "FAMILIES", (MiddleTokens(first, second, ""),))
    prompt = middle_prompt(alone.tokenizer, PREFIX, SUFFIX)
    (expected,) = alone.generate([prompt], generation_len=6)
    status, found = post(url, "completions", json.dumps(body).encode())
    assert (status, found["choices"][0]["text"]) == (200, expected.text)
    options = {"temperature": 0, "num_predict": 6}
    ollama = {"prompt": PREFIX, "suffix": SUFFIX, "stream": False, "options": options}
    _, found = post(url.removesuffix("/v1"), "api/generate", json.dumps(ollama).encode())
    assert found["response"] == expected.text
    tokens = {**body, "prompt": [5, 6]}
    assert post(url, "completions", json.dumps(tokens).encode())[0] == 400


FILE = ("llama.h", "int n_threads();\n")


@pytest.mark.parametrize("has_tokens", [True, False])
def test_files_precede_the_prompt_as_in_llama_server(has_tokens: bool, tmp_path: Path) -> None:
    """The layout of its README for repositories; without those tokens a file is a snippet."""
    reference = AutoTokenizer.from_pretrained(TINY_LLAMA)
    texts = ["<|repo_name|>", "<|file_sep|>"] if has_tokens else []
    reference.add_special_tokens({"additional_special_tokens": texts})
    reference.save_pretrained(tmp_path)
    tokenizer = Tokenizer.find(tmp_path)
    assert tokenizer is not None
    name, text = FILE
    parts = (
        [
            "<|repo_name|>",
            "myproject\n",
            "<|file_sep|>",
            f"{name}\n",
            text,
            "<|file_sep|>",
            "filename\n",
        ]
        if has_tokens
        else ["\n\n--- snippet ---\n\n", text]
    )
    expected = [
        token for part in parts for token in reference(part, add_special_tokens=False)["input_ids"]
    ]
    assert files_context(tokenizer, [FILE]) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_fills_in_as_llama_server(
    url: str, alone: TextGenerationSession, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    assert alone.tokenizer is not None
    begun, root = "a +", url.removesuffix("/v1")
    body = {
        "input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": begun, "n_predict": 6, "temperature": 0,
        "input_extra": [{"filename": FILE[0], "text": FILE[1]}], "stream": stream, "id_slot": 0,
        "samplers": ["top_k", "infill"], "t_max_predict_ms": 500, "cache_prompt": True, "n_indent": 0,
    }  # fmt: skip
    status, found = post(root, "infill", json.dumps(body).encode())
    assert (status, found["error"]["param"]) == (400, "input_prefix")
    first, second, *_ = alone.tokenizer.special.values()
    monkeypatch.setattr(fill_in_middle, "FAMILIES", (MiddleTokens(first, second, ""),))
    context = files_context(alone.tokenizer, [FILE])
    prompt = middle_prompt(alone.tokenizer, PREFIX, SUFFIX, begun, context)
    assert prompt is not None
    (expected,) = alone.generate([prompt], generation_len=6)
    events = _events(root, body)
    assert "".join(event["content"] for event in events) == expected.text
    last = events[-1]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert (last["tokens_evaluated"], last["tokens_predicted"]) == (len(prompt), 6)
    assert last["stop_type"] == "limit"
    assert last["generation_settings"]["n_ctx"] == alone.decoder.sizes.ctx_len
    assert last["timings"]["predicted_n"] == 6
    (warm,) = _events(root, {**body, "n_predict": 0})
    assert (warm["content"], warm["tokens_predicted"]) == ("", 0)
    many = [{"filename": "a", "text": "a b " * 200}, *body["input_extra"]]  # type: ignore[misc]
    (*_, long) = _events(root, {**body, "input_extra": many})
    assert long["tokens_evaluated"] == alone.decoder.sizes.ctx_len - 6
    for wrong in ({}, {"filename": "ok"}, {"filename": 123, "text": "abc"}, {"text": 456}):
        changed = {**body, "input_extra": [wrong]}
        status, found = post(root, "infill", json.dumps(changed).encode())
        assert (status, found["error"]["param"]) == (400, "input_extra")


def _events(root: str, body: dict[str, Any]) -> list[Any]:
    """Return the events of a stream, or the only object of an answer."""
    named = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{root}/infill", json.dumps(body).encode(), named)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        text = answer.read().decode()
    return [json.loads(part.removeprefix("data: ")) for part in text.strip().split("\n\n")]
