# SPDX-License-Identifier: Apache-2.0
"""Requests that once made everybody wait for seconds to minutes: another client is answered while each is read."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fixtures_serving import MODEL, QUESTION, post

SECONDS = 0.5  # that another client may wait; 0.08 were measured beside other work
CHAT = {"messages": QUESTION, "max_tokens": 1}


def optional(count: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"k{one}": {"type": "integer"} for one in range(count)},
    }


def chain(rules: int) -> str:
    return (
        "root ::= r0\n"
        + "".join(f"r{one} ::= r{one + 1}\n" for one in range(rules))
        + f'r{rules} ::= "a"'
    )


def form(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    }


#: Fields beside those of a chat, or another path and its body.
ATTACKS: Mapping[str, Callable[[], Any]] = {
    "lines of a grammar": lambda: {"grammar": "\n" * 20_000},
    "3,000 optional integers": lambda: form(optional(3000)),
    "9,000 optional integers": lambda: form(optional(9000)),
    "a chain of 3,400 rules": lambda: {"grammar": chain(3400)},
    "roles of 7 MB": lambda: {"messages": [{"role": "r" * 7_000_000, "content": "a"}]},
    "8,192 roles": lambda: {"messages": [
        {"role": f"r{one}", "content": [{"type": "text", "text": "a"}]} for one in range(8192)]},
    "7.9 MB of quotes": lambda: {"messages": [{"role": "user", "content": '"' * 3_900_000}]},
    "400,000 entries of metadata": lambda: {"metadata": {f"k{one}": "a" for one in range(400_000)}},
    "100,000 parts": lambda: {"messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]},
    "400,000 biases": lambda: {"logit_bias": {str(one): 1 for one in range(400_000)}},
    "log-probabilities": lambda: {"max_tokens": 100, "logprobs": True, "top_logprobs": 20, "n": 8},
    "1,024 bad words": lambda: {"bad_words": [f"{one:04}" * 256 for one in range(1024)]},
    "4,096 choices": lambda: {"structured_outputs": {"choice": [f"{one:04}" * 60 for one in range(4096)]}},
    "pieces of 1 MB": lambda: ("tokenize", {"prompt": "a" * 1_000_000}),
    "pieces of accents": lambda: ("tokenize", {"prompt": "\u0301" * 500_000}),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.sampled(6)
def test_another_client_is_answered_meanwhile(name: str, url: str) -> None:
    made = ATTACKS[name]()
    path, fields = made if isinstance(made, tuple) else ("v1/chat/completions", {**CHAT, **made})
    body = json.dumps({"model": MODEL, **fields}).encode()
    honest = json.dumps({"model": MODEL, **CHAT}).encode()
    assert post(url, "chat/completions", honest)[0] == 200
    root, found, waited = url.removesuffix("/v1"), list[Any](), [0.0]
    attack = threading.Thread(target=lambda: found.append(post(root, path, body)))
    attack.start()
    while attack.is_alive():
        before = time.monotonic()
        assert post(url, "chat/completions", honest)[0] == 200
        waited.append(time.monotonic() - before)
    attack.join()
    assert found[0][0] in (200, 400, 413)
    assert max(waited) < SECONDS
