# SPDX-License-Identifier: Apache-2.0
"""Packages that run prompts alone, and packages that decode alone: built, validated, refused, and together as one."""

from pathlib import Path

import pytest
from fixtures_builds import Models
from fixtures_handoff import serving
from fixtures_runtime import LENGTH, PROMPTS

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.runtime import Engine, TextGenerationSession
from qeff_zoo.runtime.engine.disaggregated import Prefills
from qeff_zoo.store import Store

SIZES = {"prefill_seq_len": 8, "ctx_len": 48}


@pytest.fixture(scope="module")
def halves(models: Models, tmp_path_factory: pytest.TempPathFactory) -> list[Package]:
    """Build a package for prompts, which is validated, and one that decodes three rows."""
    home = tmp_path_factory.mktemp("halves")
    models.trace(models.llama, home)
    store, source = Store(home), str(models.llama)
    prompts = Request(prefill_only=True, **SIZES)
    answers = Request(decode_only=True, ctx_len=48, batch_size=3)
    return [
        pipeline.build(source, prompts, store=store, level="tiny").package,
        pipeline.build(source, answers, store=store, validate=False).package,
    ]


def opened(package: Package) -> TextGenerationSession:
    session = qeff_zoo.load(package, threads=1)
    assert isinstance(session, TextGenerationSession)
    return session


def test_each_has_its_own_calls(halves: list[Package]) -> None:
    kinds = [
        [specialization["name"] for specialization in half.programs[0].specializations]
        for half in halves
    ]
    assert kinds == [["Prefill"], ["Decode"]]
    stages = {check["stage"]: check["passed"] for check in halves[0].manifest["validation"]}
    names = ("prefill", "chunked_prefill", "padded_batch", "ctx_len", "text", "settings", "weights")
    assert stages == dict.fromkeys(names, True)
    assert len({half.build_key for half in halves}) == 2
    assert halves[0].programs[0].numerics == halves[1].programs[0].numerics


def test_together_they_answer_as_one(
    halves: list[Package], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, answers = map(opened, halves)
    with monkeypatch.context() as patch, serving(prompts) as address:
        patch.setattr(answers.decoder, "prefill", None)  # it must run none
        with Engine(answers, prefills=Prefills(answers, [address])) as engine:
            requests = [
                answers.request(prompt, generation_len=LENGTH, ignore_eos=True)
                for prompt in PROMPTS
            ]
            found = [one.result(120).token_ids for one in engine.submit_together(requests)]
    assert found == expected
    # Without a server the one that decodes reads prompts token by token.
    alone = answers.generate(PROMPTS[:2], generation_len=LENGTH, ignore_eos=True)
    assert [one.token_ids for one in alone] == expected[:2]


def test_prompts_alone_give_one_token(halves: list[Package], expected: list[list[int]]) -> None:
    session = opened(halves[0])
    first = session.generate(PROMPTS, generation_len=1, ignore_eos=True)
    assert [one.token_ids for one in first] == [answer[:1] for answer in expected]
    with pytest.raises(GenerationError, match=r"\(--prefill-only\) and cannot generate 2 tokens"):
        session.generate(PROMPTS, generation_len=2)


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["run", "--prompt", "a"], "runs prompts alone"),
        (["serve", "--port", "0"], "expected --role prefill, or a package that decodes"),
    ],
    ids=["run", "serve"],
)
def test_commands_refuse_what_it_has_not(
    argv: list[str], problem: str, halves: list[Package], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argv[0], str(halves[0].path), *argv[1:]]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"prefill_only": True, "decode_only": True}, "exclude each other"),
        ({"prefill_only": True, "num_speculative_tokens": (3,)}, "--num-speculative-tokens is"),
        ({"decode_only": True, "prefill_seq_len": 8}, "--prefill-seq-len is about calls that"),
    ],
)
def test_conflicts_are_refused_before_anything_is_built(
    choices: dict[str, object], problem: str, models: Models, home: Path
) -> None:
    with pytest.raises(PlanError, match=problem):
        pipeline.make_plan(str(models.llama), Request(**choices))  # type: ignore[arg-type]
