# SPDX-License-Identifier: Apache-2.0
"""Question answering and multiple choice: answers are those of transformers' models, by the rules of its pipeline.

transformers 5 has no such pipeline: `expected` follows its rules in their plainest form, a matrix of all spans.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_models
import torch
from fixtures_serving import post, running
from huggingface_hub import InferenceClient
from runnable_package import package
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
)

from qeff_zoo import cli
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.sessions import MultipleChoiceSession, QuestionAnsweringSession, open_session
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

QUESTION = "the cat?"
SHORT = "hello  World, the dog: a Cat!"
#: Three windows or more, some of which begin within a word.
LONG = "the dog hello world; Query cat3 dogs. a hello, THE cat 42 worlds " * 3
PROMPT, CHOICES = "hello world", ["the cat", "a dog. a dog.", "query 42?"]
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
#: Options that answers depend on.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 4, "impossible": True},
    {"top_k": 3, "max_answer_len": 2},
    {"top_k": 5, "align_to_words": False, "doc_stride": 3},
    {"top_k": 2, "max_seq_len": 24, "doc_stride": 0},
]


def checkpoint(kind: Any, folder: Path) -> Path:
    """Write a model with a head and large weights, so that tokens differ."""
    source = sentence_models.encoder()
    config = AutoConfig.from_pretrained(source)
    torch.manual_seed(3)
    model = kind.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.25 + (parameter.dim() == 1) * parameter)
    model.save_pretrained(folder)
    sentence_models.tokenizer(model_input_names=INPUTS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    return {
        "questions": checkpoint(AutoModelForQuestionAnswering, root / "questions"),
        "choices": checkpoint(AutoModelForMultipleChoice, root / "choices"),
    }


@pytest.fixture(scope="module")
def built(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Package]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("home")))
        return {
            name: package(folder, seq_lens=(16, 40), batch_size=3)
            for name, folder in folders.items()
        }


@pytest.fixture(scope="module")
def session(built: dict[str, Package]) -> QuestionAnsweringSession:
    found = open_session(built["questions"], threads=1)
    assert isinstance(found, QuestionAnsweringSession)
    return found


def expected(
    folder: Path,
    context: str,
    *,
    top_k: int = 1,
    doc_stride: int | None = None,
    max_answer_len: int = 15,
    max_seq_len: int = 40,
    impossible: bool = False,
    align_to_words: bool = True,
) -> list[tuple[str, int, int, float]]:
    """Return text, start, end and score of the best answers to `QUESTION`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    stride = min(max_seq_len // 2, 128) if doc_stride is None else doc_stride
    windows = tokenizer(
        QUESTION,
        context,
        truncation="only_second",
        max_length=max_seq_len,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    answers: dict[str, list[Any]] = {}
    missing = 1.0
    for number, ids in enumerate(windows["input_ids"]):
        read = windows[number]
        inputs = {name: torch.tensor([windows[name][number]]) for name in INPUTS}
        with torch.no_grad():
            output = model(**inputs)
        inside = np.array([part == 1 for part in read.sequence_ids])
        first = np.arange(len(ids)) == 0
        shares = []
        for logits in (output.start_logits[0], output.end_logits[0]):
            powers = np.where(inside | first, np.exp(logits.double().numpy()), 0)
            shares.append(powers / powers.sum())
        missing = min(missing, shares[0][0] * shares[1][0])
        products = np.triu(np.outer(*shares)) * np.outer(inside, inside)
        products = np.tril(products, max_answer_len - 1)
        best = np.argsort(-products.ravel())[: 2 * top_k + 10 if align_to_words else top_k]
        for place in best:
            start, end = divmod(int(place), len(ids))
            if not products[start, end]:
                continue
            at, until = read.offsets[start][0], read.offsets[end][1]
            if align_to_words:
                at = read.word_to_chars(read.token_to_word(start), 1)[0]
                until = read.word_to_chars(read.token_to_word(end), 1)[1]
            text = context[at:until]
            entry = answers.setdefault(text.lower(), [text, at, until, 0.0])
            entry[3] += products[start, end]
    every = [tuple(answer) for answer in answers.values()] + [("", 0, 0, missing)] * impossible
    return sorted(every, key=lambda one: -one[3])[:top_k]


@pytest.mark.parametrize("context", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_answers_follow_the_rules_of_the_pipeline(
    session: QuestionAnsweringSession,
    folders: dict[str, Path],
    context: str,
    options: dict[str, Any],
) -> None:
    (found,) = session.find_answers(QUESTION, context, **options)
    wanted = expected(folders["questions"], context, **options)
    assert [(one.text, one.start, one.end) for one in found] == [one[:3] for one in wanted]
    assert [one.score for one in found] == pytest.approx([one[3] for one in wanted], abs=2e-5)
    assert all(one.text == context[one.start : one.end] for one in found)


def test_several_questions_share_calls(session: QuestionAnsweringSession) -> None:
    several = session.find_answers([QUESTION, "a dog"], LONG, 2)
    alone = session.find_answers(QUESTION, LONG, 2)[0]
    assert [one.start for one in several[0]] == [one.start for one in alone]
    assert several == session.find_answers([QUESTION, "a dog"], [LONG, LONG], 2)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["", SHORT], {}, "The question is ''; expected a text"),
        ([QUESTION, " \n"], {}, r"The context is ' \\n'; expected a text"),
        (["cat " * 40, SHORT], {}, "question has 43 tokens .* a window 40; expected fewer"),
        ([[QUESTION] * 2, [SHORT] * 3], {}, "2 questions and 3 contexts"),
        ([QUESTION, SHORT], {"top_k": 0}, "`top_k` is 0; expected 1 to 1,024"),
        ([QUESTION, SHORT], {"max_answer_len": 0}, "`max_answer_len` is 0; expected at least 1"),
        ([QUESTION, SHORT], {"max_answer_len": float("nan")}, "`max_answer_len` is nan"),
        ([QUESTION, SHORT], {"max_seq_len": 41}, "`max_seq_len` is 41; expected 1 to 40"),
        ([QUESTION, SHORT], {"doc_stride": 34}, "`doc_stride` is 34; expected 0 to 33"),
        ([QUESTION, SHORT], {"doc_stride": -1}, "`doc_stride` is -1; expected at least 0"),
    ],
)
def test_a_question_is_refused_before_a_call(
    session: QuestionAnsweringSession,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[Any],
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr(session, "run", None)
    with pytest.raises(GenerationError, match=message):
        session.find_answers(*arguments, **options)


@pytest.mark.parametrize(
    ("name", "field", "message"),
    [
        ("questions", {"num_labels": 3}, r"has 3 labels in config\.json; expected 2"),
        ("choices", {"summary_type": "last"}, r"'last' in config\.json, by which scores depend on"),
    ],
)
def test_another_head_is_refused(
    folders: dict[str, Path], tmp_path: Path, name: str, field: dict[str, Any], message: str
) -> None:
    config = json.loads((folders[name] / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(folders[name] / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, **field}))
    with pytest.raises(PlanError, match=message):
        check(open_checkpoint(str(tmp_path)), Request())


def test_choices_are_those_of_transformers(
    built: dict[str, Package], folders: dict[str, Path]
) -> None:
    session = open_session(built["choices"], threads=1)
    assert isinstance(session, MultipleChoiceSession)
    tokenizer = AutoTokenizer.from_pretrained(folders["choices"])
    model = AutoModelForMultipleChoice.from_pretrained(folders["choices"]).eval()
    read = tokenizer([PROMPT] * 3, CHOICES, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**{name: value[None] for name, value in read.items()}).logits
    assert session.choose(PROMPT, CHOICES) == pytest.approx(
        logits.softmax(-1)[0].tolist(), abs=2e-5
    )
    for choices in (["a"], "ab", ["a", " "]):
        with pytest.raises(GenerationError, match=r"expected at least two|A choice is ' '"):
            session.choose(PROMPT, choices)


def test_run_prints_answers_and_choices(
    built: dict[str, Package], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "context.txt").write_text(LONG)
    command = ["run", str(built["questions"].path), "--question", QUESTION]
    read = ["--context-file", str(tmp_path / "context.txt"), "--top-k", "2", "--doc-stride", "4"]
    assert cli.main([*command, *read, "--max-answer-len", "3", "--impossible"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["question", "answer", "at", "score"]
    assert len(lines) == 2 + 2
    assert cli.main([*command, "--context", SHORT, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["question"] == QUESTION
    assert output["answers"][0].keys() == {"text", "start", "end", "score"}
    assert cli.main(command) == 1
    assert "have no context" in capsys.readouterr().err
    command = ["run", str(built["choices"].path), "--prompt", PROMPT, "--choice", "a dog"]
    assert cli.main([*command, "--choice", "the cat", "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert sum(choice["score"] for choice in output["choices"]) == pytest.approx(1)
    assert cli.main(command) == 1
    assert "expected at least two" in capsys.readouterr().err


@pytest.fixture(scope="module")
def urls(built: dict[str, Package]) -> Iterator[dict[str, str]]:
    found = {}
    with (
        closing(EncoderQueue(open_session(built["questions"], threads=1), max_waiting=8)) as first,  # type: ignore[arg-type]
        closing(EncoderQueue(open_session(built["choices"], threads=1), max_waiting=8)) as second,  # type: ignore[arg-type]
        running(first) as questions,
        running(second) as choices,
    ):
        found = {"questions": questions, "choices": choices}
        yield {name: value.removesuffix("/v1") for name, value in found.items()}


def test_a_server_answers_as_the_hub(
    urls: dict[str, str], session: QuestionAnsweringSession
) -> None:
    client = InferenceClient(f"{urls['questions']}/predict", timeout=60)
    (best,) = session.find_answers(QUESTION, LONG)[0]
    found = client.question_answering(QUESTION, LONG)
    assert (found.answer, found.start, found.end) == (best.text, best.start, best.end)
    several = client.question_answering(QUESTION, LONG, top_k=3, handle_impossible_answer=True)
    wanted = session.find_answers(QUESTION, LONG, 3, impossible=True)[0]
    assert [item.answer for item in several] == [one.text for one in wanted]
    chooser = InferenceClient(f"{urls['choices']}/predict", timeout=60)
    choices = chooser.zero_shot_classification(PROMPT, CHOICES)
    assert {choice.label for choice in choices} == {*CHOICES}
    assert sum(choice.score for choice in choices) == pytest.approx(1)


@pytest.mark.parametrize(
    ("inputs", "parameters", "param"),
    [
        ({"question": " ", "context": "a"}, {}, "inputs"),
        ({"question": "a", "context": "cat " * 9000}, {"doc_stride": 35}, "inputs"),
        ({"question": "a", "context": "a"}, {"top_k": 2000}, "parameters"),
        ({"question": "a"}, {}, "inputs"),
    ],
    ids=["blank", "windows", "top_k", "no context"],
)
def test_a_server_refuses_questions(
    urls: dict[str, str], inputs: Any, parameters: Any, param: str
) -> None:
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    status, answer = post(urls["questions"], "predict", body)
    assert (status, answer["error"]["param"]) == (400, param), answer
