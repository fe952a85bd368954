# SPDX-License-Identifier: Apache-2.0
"""Prompts for a text between two others: the tokens of transformers' tokenizers, and requests of a server."""

import json
from pathlib import Path

import pytest
from fixtures_serving import EXAMPLE, post
from transformers import AutoTokenizer

from qeff_zoo.runtime import TextGenerationSession, fill_in_middle
from qeff_zoo.runtime.fill_in_middle import FAMILIES, MiddleTokens, middle_prompt
from qeff_zoo.runtime.tokenizer import Tokenizer

PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_a_prompt_has_the_tokens_of_transformers(family: MiddleTokens, tmp_path: Path) -> None:
    reference = AutoTokenizer.from_pretrained(EXAMPLE)
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
