# SPDX-License-Identifier: Apache-2.0
"""Checks of `scripts/interop`: flows of clients that are installed here, the reasons of tests, and their table."""

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_templates import TEMPLATES, THINKING
from checkout import ROOT
from fixtures_serving import MODEL, connect, running
from scripted_program import TEMPLATE, opening

from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine, Grammar, TextGenerationSession
from qeff_zoo.runtime.engine.answers import Answer
from qeff_zoo.runtime.text.chat_output import ChatFormat, Output
from qeff_zoo.runtime.text.chat_output.parsing import parsed
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.requests import prompts
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.serving.requests.tools import chat_options
from qeff_zoo.sessions import open_session

SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))
from interop_checks import evaluation, scripted, servers, suites, templates  # noqa: E402
from interop_checks.reasons import (  # noqa: E402
    FAILS,
    FOREIGN,
    MISSING,
    PASS,
    RULES,
    result_of,
)
from interop_checks.table import RECORD, merged, shown, summary, table  # noqa: E402


@pytest.fixture(scope="module")
def urls(trained: Package, engine: Engine) -> Iterator[SimpleNamespace]:
    """Give the URLs of servers of the trained and of the scripted model."""
    session: Any = open_session(trained, opening=opening(trained))
    session.chat_template = ChatTemplate(TEMPLATE, {"bos_token": "<|begin|>"})
    with (
        Engine(session) as other,
        running(engine, aliases=("trained",)) as real,
        running(other, aliases=("scripted",)) as scripted,
    ):
        yield SimpleNamespace(trained=real, scripted=scripted)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("flows_openai", "stream_equals_whole"),
        ("flows_openai", "json_schema_stream"),
        ("flows_openai", "tool_loop"),
        ("flows_openai", "parsed_tool"),
        ("flows_openai", "responses_with_tools_in_a_stream"),
        ("flows_anthropic", "messages_with_tools"),
        ("flows_anthropic", "messages_with_tools_in_a_stream"),
        ("flows_ollama", "ollama_tools"),
    ],
)
def test_a_flow_of_a_client_works(
    urls: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS / "interop_checks"))
    getattr(importlib.import_module(module), name)(urls)


def test_no_module_of_the_checks_hides_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the flows is the first where Python looks for a client."""
    monkeypatch.syspath_prepend(str(SCRIPTS / "interop_checks"))
    flows = importlib.import_module("flows")
    for module in flows.MODULES:
        importlib.import_module(module)
    clients = {client.partition(".")[0] for client, _, _ in flows.FLOWS}
    assert "agents" in clients
    assert clients & {path.stem for path in (SCRIPTS / "interop_checks").glob("*.py")} == set()


def outcome(test: str, outcome: str, message: str = "") -> dict[str, str]:
    return {"test": test, "outcome": outcome, "message": message, "printed": ""}


def test_a_test_has_a_result_and_a_reason() -> None:
    assert result_of("vLLM", outcome("a.py::test_a", "passed")) == (PASS, "")
    assert result_of("vLLM", outcome("a.py::test_a", "own objects"))[0] == FOREIGN
    unknown = outcome("a.py::test_a", "failed", "assert  1 ==\n2")
    assert result_of("vLLM", unknown) == (FAILS, "assert 1 == 2")
    lacks = outcome("unit/test_a.py::test_embedding_mixed_input", "failed", "400")
    assert result_of("llama.cpp", lacks)[0] == FAILS
    lacks["printed"] = '"param": "input"'
    assert result_of("llama.cpp", lacks)[0] == MISSING
    assert result_of("vLLM", lacks)[0] == FAILS
    assert {rule.result for rule in RULES} == {MISSING, FOREIGN}


def test_some_files_of_tests_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their outcomes replace those of the last whole run; without one they are recorded nowhere."""
    suite, ran = suites.SUITES["llama.cpp"], iter([["a", "b"], ["a"], ["b"]])

    def run(command: list[str], **options: Any) -> None:
        if "pytest" in command:
            path = Path(options["env"]["INTEROP_OUTCOMES"])
            rows = [outcome(test, "passed") for test in next(ran)]
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    monkeypatch.setattr(suites, "unpacked", lambda *_: tmp_path)
    monkeypatch.setattr(suites, "_tools", lambda _: tmp_path)
    monkeypatch.setattr("interop_checks.suites.subprocess.run", run)
    assert [row["test"] for row in suite.run(tmp_path, ["a.py"])] == ["a", "b"]
    assert not suite.whole(tmp_path).exists()
    assert [row["test"] for row in suite.run(tmp_path, [])] == ["a"]
    assert [row["test"] for row in suite.run(tmp_path, ["b.py"])] == ["a", "b"]
    assert len(suite.whole(tmp_path).read_text().splitlines()) == 2


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the outputs of models during a test."""
    for owner, name in ((Answer, "extend"), (ChatFormat, "budget"), (prompts, "output_plan")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # restored after the test
    servers.end_outputs()


@pytest.mark.usefixtures("stand_in")
def test_a_stand_in_model_ends_its_outputs(alone: TextGenerationSession) -> None:
    (found,) = alone.generate(["class socket."], generation_len=90)
    assert found.finish_reason == "eos"
    assert len(found.token_ids) <= servers.ANSWER + 1
    (free,) = alone.generate(["class socket."], generation_len=90, ignore_eos=True)
    assert len(free.token_ids) == 90
    (closed,) = alone.generate(["class socket."], generation_len=140, grammar=Grammar.json())
    assert closed.finish_reason in ("eos", "stop")
    json.loads(closed.text)


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}
REQUESTED = [{"role": "user", "content": "What is the weather in Istanbul?"}]


@pytest.mark.usefixtures("stand_in")
def test_a_scripted_model_calls_by_itself(urls: SimpleNamespace) -> None:
    with connect(urls.scripted) as client:
        requested: Any = {"model": MODEL, "messages": REQUESTED, "tools": [WEATHER]}
        answer = client.chat.completions.create(**requested)
        streamed = [*client.chat.completions.create(**requested, stream=True)]
        requested["messages"] = [{"role": "user", "content": "What is 13 * 24?"}]
        settings = client.chat.completions.create(**requested)
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"location": "Istanbul"}
    assert answer.choices[0].finish_reason == "tool_calls"
    pieces = [call for chunk in streamed for call in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(piece.function.arguments or "" for piece in pieces) == call.function.arguments
    assert settings.choices[0].message.content == "13 * 24 = 312. QED."


@pytest.mark.parametrize("name", [*TEMPLATES, "think"])
def test_a_scripted_output_has_the_format_of_its_template(
    alone: TextGenerationSession, name: str
) -> None:
    source = {**TEMPLATES, "think": THINKING}[name].replace("{{ tools | tojson }}", "")
    template = ChatTemplate(source, {"bos_token": "<|begin|>", "eos_token": "<|eos|>"})
    tokenizer: Any = alone.tokenizer
    session: Any = SimpleNamespace(tokenizer=tokenizer, chat_template=template)
    body = ChatRequest.model_validate({"model": MODEL, "messages": REQUESTED, "tools": [WEATHER]})
    options = chat_options(body)
    known = ChatFormat.of(template.source(options))
    prompt = template.render(REQUESTED, options)
    tokens = tokenizer.encode(prompt, special_tokens=False)
    output: Any = scripted.scripted(session, body, known, tokens, options)
    generated: list[int] = []
    while (following := output.next(generated, [-1])) != [-1]:
        generated += following
    parser = known.parser(prompt, schemas={"get_current_weather": WEATHER["function"]})
    events = parsed(parser, tokenizer.spelled(generated), ended=True)
    (call,) = Output.of(events).calls
    assert (call.name, json.loads(call.arguments)) == (
        "get_current_weather",
        {"location": "Istanbul"},
    )


def test_the_record_has_no_failure_and_makes_the_table(tmp_path: Path) -> None:
    record = json.loads(RECORD.read_bytes())
    assert {"clients", "llama.cpp", "vLLM", "templates", "lm-eval"} <= record.keys()
    assert {
        row["result"] for name, rows in record.items() if name != "schemas" for row in rows
    } <= {PASS, MISSING, FOREIGN}
    rows = [
        {"result": PASS, "test": "a", "reason": ""},
        {"result": FAILS, "test": "b", "reason": "assert"},
        {"result": MISSING, "test": "c", "reason": "batches"},
        {"result": MISSING, "test": "d", "reason": "batches"},
    ]
    assert shown("vLLM", rows).startswith("vLLM: 1 pass, 2 missing, 1 fails\n")
    chat = {"flow": "chat", "result": PASS, "reason": "", "seconds": 1, "date": "2026-01-02"}
    clients = [{"client": "openai 1", **chat}]
    made = {"clients": summary("clients", clients), "vLLM": summary("vLLM", rows)}
    path = tmp_path / "interop.json"
    path.write_text(json.dumps(made))
    text = table(path)
    assert text.startswith("1 of 1 flows of clients pass (2026-01-02): openai 1 (1 of 1).")
    assert [line for line in text.splitlines() if "batches" in line and "| missing " in line]


def test_flows_that_run_again_replace_those_of_the_record() -> None:
    """A flow is that of a client's name; another version of the client, which runs beside it, has its own row."""

    def row(client: str, flow: str, date: str) -> dict[str, str]:
        return {"client": client, "flow": flow, "date": date}

    known = [row(one, "chat", "1") for one in ("openai 2.1", "openai 3.0", "openai (node) 6.1")]
    known += [row("openai 2.1", "stream", "1"), row("ai", "chat", "1")]
    found = [row(one, "chat", "2") for one in ("openai 2.2", "openai 3.0", "ai 6.0.1")]
    assert merged(known, found) == [
        found[2],
        row("openai (node) 6.1", "chat", "1"),
        row("openai 2.1", "stream", "1"),
        *found[:2],
    ]


def _failing(texts: Mapping[str, str]) -> dict[str, str]:
    """Return why prompts differ from those of transformers, by template and conversation."""
    return {
        f"{name}: {title}": reason
        for name, text in texts.items()
        for title, (result, reason) in templates.compared(text).items()
        if result not in (PASS, FOREIGN)
    }


def test_prompts_are_those_of_transformers() -> None:
    """Templates of every format of calls, and some of families that trl's wheel has."""
    assert len(templates.CONVERSATIONS) == 28
    published = dict(templates.published([templates.installed()]))
    families = ("cohere", "gemma3", "gptoss_training", "llama3_1", "qwen3", "smolvlm")
    published = {name: published[f"chat_templates/{name}.jinja"] for name in families}
    assert _failing({**TEMPLATES, "thinking": THINKING, **published}) == {}


def test_another_prompt_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatTemplate, "render", lambda *_: "Is it warm in Rome?")
    results = templates.compared(TEMPLATES["hermes"])
    assert {result for result, _ in results.values()} == {FAILS}


def test_figures_of_the_harness_are_compared(tmp_path: Path) -> None:
    evaluation.write_task(tmp_path, 3)
    rows = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert [len(row["choices"]["text"]) for row in rows] == [4, 4, 4]
    reference = {"scores": {"acc": 0.5}, "log_likelihoods": [[-1.0, -2.0], [-3.0, -4.0]]}
    ours = {"scores": {"acc": 0.25}, "log_likelihoods": [[-1.0, -2.00001], [-3.0, -4.1]]}
    assert [row["result"] for row in evaluation.compared(ours, reference)] == [FAILS, PASS, FAILS]
    assert [row["result"] for row in evaluation.compared(reference, reference)] == [PASS] * 3
