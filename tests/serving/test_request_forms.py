# SPDX-License-Identifier: Apache-2.0
"""Forms of requests that the documentation lists: a server accepts each, and rejects another model's name."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from chat_templates import TEMPLATES
from checkout import ROOT
from fixtures_serving import MODEL, post, running

from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.requests.schemas import ChatRequest

sys.path.insert(0, str(ROOT / "scripts"))
from documentation.request_forms import BODIES, FORMS


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    source = TEMPLATES["hermes"].replace("<tools>{{ tools | tojson }}</tools>", "")
    with pytest.MonkeyPatch.context() as patch:
        template = ChatTemplate(source, {"bos_token": "<|begin|>"})
        patch.setattr(engine.session, "chat_template", template)
        with running(engine) as url:
            yield url.removesuffix("/v1")


@pytest.mark.parametrize("path", FORMS)
def test_each_form_is_accepted(url: str, path: str) -> None:
    refused = {}
    for name, fields in FORMS[path].items():
        body = json.dumps({"model": MODEL, **BODIES[path], **fields}).replace("MODEL", MODEL)
        status, answer = post(url, path.removeprefix("/"), body.encode())
        if status != 200:
            refused[name] = answer
    assert not refused
    body = json.dumps({**BODIES[path], **next(iter(FORMS[path].values())), "model": "frob"})
    if path != "/apply-template":
        assert post(url, path.removeprefix("/"), body.encode())[0] == 404


@pytest.mark.parametrize(
    ("fields", "effort", "variables"),
    [
        ({"enable_thinking": False}, "none", {}),
        ({"thinking": {"type": "disabled"}}, "none", {}),
        ({"thinking": {"type": "enabled"}}, None, {"enable_thinking": True, "thinking": True}),
        ({"reasoning": {"effort": "low"}}, "low", {}),
        ({"think": "high"}, "high", {}),
        ({"think": False, "reasoning_effort": "low"}, "low", {}),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"thinking": False}},
            *(None, {"enable_thinking": True, "thinking": False}),
        ),
    ],
    ids=str,
)
def test_reasoning_is_set_by_names_of_other_services(
    fields: dict[str, Any], effort: str | None, variables: dict[str, Any]
) -> None:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})
    assert (body.reasoning_effort, body.chat_template_kwargs) == (effort, variables)


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": 5}, {"thinking": {"type": "enabled", "budget_tokens": 5}}, {"reasoning": {"max_tokens": 5}},
        {"logit_bias": [["a", 1]]}, {"logit_bias": [[5]]}, {"tool_choice": {"type": "tool", "name": "f", "x": 1}},
        {"reasoning_format": "none"}, {"response_fields": ["a"]}, {"lora": [{"id": 0}]},
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_would_change_the_output_are_rejected(url: str, fields: dict[str, Any]) -> None:
    body = {"model": MODEL, **BODIES["/v1/chat/completions"], **fields}
    status, answer = post(url, "v1/chat/completions", json.dumps(body).encode())
    assert status == 400
    assert next(iter(fields)) in answer["error"]["message"]


def test_biases_in_pairs_are_those_by_token() -> None:
    messages = [{"role": "user", "content": "a"}]
    pairs = {"messages": messages, "logit_bias": [[5, 1.5], [6, False]]}
    assert ChatRequest.model_validate(pairs).logit_bias == {"5": 1.5, "6": -100}
