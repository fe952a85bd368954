# SPDX-License-Identifier: Apache-2.0
"""Draft heads of a model: logits, drafts, commands, and refusals."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import speculators
import torch
from fixtures_builds import Models
from fixtures_runtime import LENGTH, PROMPTS
from runnable_package import edit_json
from safetensors.torch import load_file, save_file
from speculators import SIZES, opened
from transformers import AutoModelForCausalLM

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.checkpoint.sources import with_speculator
from qeff_zoo.errors import GenerationError, PlanError, SpeculatorError, ZooError
from qeff_zoo.package import Package
from qeff_zoo.qefficient.generation.cloud_infer import QAICInferenceSession
from qeff_zoo.runtime import Sampling
from qeff_zoo.runtime.engine.speculation.heads import Heads
from qeff_zoo.runtime.engine.speculation.opening import speculation_of
from qeff_zoo.sessions.opening import open_heads
from qeff_zoo.validation.ladder import validate
from qeff_zoo.validation.reference.heads import attach

pytestmark = pytest.mark.turns(2)

COUNT = 3


@pytest.fixture(scope="module")
def hugging_face(models: Models) -> Any:
    return AutoModelForCausalLM.from_pretrained(models.llama).eval()


@pytest.mark.parametrize("kind", speculators.KINDS)
@pytest.mark.sampled(2)
def test_logits_are_those_of_the_published_formulas(
    kind: str, made: Any, hugging_face: Any
) -> None:
    program = open_heads(made(kind).package, 1)
    assert program is not None
    heads = Heads(program)
    assert heads.count == COUNT
    reference, count = attach(hugging_face, made(kind).located)
    assert reference is not None
    assert count == COUNT
    hidden = torch.randn(5, hugging_face.config.hidden_size)
    tokens = torch.randint(hugging_face.config.vocab_size, (5, COUNT))
    with torch.no_grad():
        expected = reference(hidden, tokens).numpy()
        # A head that reads tokens gets the most likely token of the previous head.
        chain = tokens[:, :1].repeat(1, COUNT)
        for place in range(1, COUNT):
            chain[:, place] = reference(hidden, chain)[:, place - 1].argmax(-1)
        drafted = reference(hidden, chain).numpy()
    for settings, right in ((tokens, expected), (tokens[:, :1], drafted)):
        got = heads.logits(hidden.numpy(), settings.tolist())
        assert np.abs(got - right).max() <= 1e-5 * right.std()
    assert np.abs(expected[:, 0] - expected[:, 1]).max() > 0.1 * expected.std()


@pytest.mark.parametrize("kind", speculators.KINDS)
def test_answers_are_those_of_hugging_face(
    kind: str, made: Any, expected: list[list[int]], hugging_face: Any
) -> None:
    package = made(kind).package
    session = opened(package)
    found = session.generate(PROMPTS, generation_len=LENGTH, ignore_eos=True)
    assert [output.token_ids for output in found] == expected
    assert session.metrics is not None
    assert session.metrics.drafted_tokens > 0

    # The first draft is computed from the last hidden state of the prompt.
    assert session.speculation is not None
    make, drafts = session.speculation.drafter, list[list[int]]()

    def watched(request: Any) -> Any:
        drafter: Any = make(request)
        draft = drafter.draft
        drafter.draft = lambda *given: drafts.append(draft(*given)) or drafts[-1]
        return drafter

    object.__setattr__(session.speculation, "drafter", watched)
    (answer,) = session.generate(PROMPTS[:1], generation_len=LENGTH, ignore_eos=True)
    assert session.tokenizer is not None
    reference, _ = attach(hugging_face, made(kind).located)
    tokens = session.tokenizer.encode(PROMPTS[0])
    with torch.no_grad():
        states = hugging_face.model(torch.tensor([tokens])).last_hidden_state[:, -1]
        chain = torch.full((1, COUNT), answer.token_ids[0])
        for place in range(1, COUNT):
            chain[:, place] = reference(states, chain)[:, place - 1].argmax(-1)
        right = reference(states, chain)[0].argmax(-1).tolist()
    assert drafts[0] == right

    requested: Any = {
        "generation_len": 20,
        "sampling": Sampling(temperature=0.5, seed=3, logprobs=2),
    }
    plain = opened(package, None).generate(PROMPTS[:2], **requested)
    again = session.generate(PROMPTS[:2], **requested)
    assert [one.token_ids for one in again] == [one.token_ids for one in plain]


def test_right_drafts_are_accepted(made: Any, models: Models, tmp_path: Path) -> None:
    """Heads that always draft the same token, for an answer that consists of it."""
    package = made("medusa").package
    requested: Any = {"generation_len": 24, "sampling": Sampling(presence_penalty=-99.0)}
    (plain,) = opened(package, None).generate([PROMPTS[0]], **requested)
    (token,) = {*plain.token_ids}
    speculators.medusa(tmp_path, 64, 257)
    tensors = load_file(tmp_path / "medusa_lm_head.safetensors")
    for name, tensor in tensors.items():
        tensor.fill_(10 if name.endswith("bias") else 0)
        if name.endswith("1.weight"):
            tensor[token] = 1
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(made("medusa").home))
        package = qeff_zoo.build(models.llama, draft_heads=tmp_path, validate=False, **SIZES)
    session = opened(package)
    (answer,) = session.generate([PROMPTS[0]], **requested)
    assert answer.token_ids == plain.token_ids
    assert session.metrics is not None
    # The prompt gives the first of 24 tokens; five calls give 3 drafted tokens and their own, the last one the rest.
    assert session.metrics.accepted_tokens == session.metrics.drafted_tokens == 5 * COUNT + 2


def test_validation_compares_heads_too(made: Any, models: Models, tmp_path: Path) -> None:
    package = made("chained", weights="int8", validate=True, ctx_len=24).package
    assert package.validated == "checkpoint"
    checks = package.manifest["validation"]
    assert all(check["passed"] for check in checks)
    # Each position is there once for the model, and once for each head.
    exact = ("text", "settings", "weights")
    numbers = [check for check in checks if "note" not in check and check["stage"] not in exact]
    assert all(check["positions"] % (1 + COUNT) == 0 for check in numbers)
    torch.manual_seed(4)
    others = speculators.KINDS["chained"](tmp_path / "others", 64, 257)
    checkpoint = with_speculator(open_checkpoint(str(models.llama)), str(others))
    record = validate(package, checkpoint, threads=1)
    assert not record.passed


@pytest.mark.usefixtures("free_drafts")
def test_the_commands_draft(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    package = made("medusa").package
    path = str(package.path)
    argv = ["run", path, "--prompt", "the quick", "--generation-len", "9", "--threads", "1"]
    answers = []
    for more in ([], ["--draft", "heads"]):
        assert cli.main([*argv, *more]) == 0
        answer, printed_text = capsys.readouterr()
        answers.append(answer)
        assert ("drafted tokens accepted" in printed_text) == bool(more)
    assert answers[0] == answers[1]
    bench = ["bench", path, "--draft", "heads", "--repeat", "1", "--batch-size", "1", "-q"]
    assert cli.main([*bench, "--prompt-len", "8", "--generation-len", "8"]) == 0
    assert "accepted" in capsys.readouterr().out
    assert cli.main(["inspect", path]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"heads +3 that draft \(projections\): sha256:[0-9a-f]{64}", shown)
    assert re.search(r"sources.speculator +sha256:", shown)
    assert "Shapes of heads" in shown


def test_qefficients_turbo_runs(
    made: Any, models: Models, hugging_face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turbo = made("turbo")
    monkeypatch.setenv("QEFF_HOME", str(turbo.home))
    settings = {
        "speculative_model_type": "turbo",
        "pretrained_model_name_or_path": turbo.speculator,
    }
    model = qeff_zoo.QEFFAutoModelForCausalLM.from_pretrained(
        models.llama, continuous_batching=True, qaic_config=settings
    )
    path = model.compile(**SIZES, target="ort", validate=False)
    assert Path(path) == turbo.package.path
    assert model.model.config.speculative_config == {"num_speculative_tokens": 3}
    assert not hasattr(model.config, "speculative_config")
    call = {name: np.arange(4)[None] for name in ("input_ids", "position_ids")}
    logits = QAICInferenceSession(path).run(call)["logits"]
    reference, _ = attach(hugging_face, turbo.located)
    assert reference is not None
    with torch.no_grad():
        ids = torch.from_numpy(call["input_ids"])
        states = hugging_face.model(ids).last_hidden_state[:, -1]
        expected = [hugging_face(ids).logits[0, -1:], reference(states, ids[:, :COUNT])[0]]
    np.testing.assert_allclose(logits[0, 0], torch.cat(expected), atol=1e-3)


def test_a_package_without_heads_is_refused(built: dict[str, Package]) -> None:
    with pytest.raises(GenerationError, match=r"has no heads that draft.* --draft-heads"):
        qeff_zoo.load(built["drafts"], draft="heads")


def test_missing_fields_of_an_older_package_are_named(
    made: Any, built: dict[str, Package], tmp_path: Path
) -> None:
    """A package without hidden states for the heads, and one from before drafts could be verified."""
    session, heads = opened(built["drafts"], None), open_heads(made("medusa").package, 1)
    assert heads is not None
    with pytest.raises(GenerationError, match=r"has no 'hidden_states'.*again with --draft-heads"):
        speculation_of(session, heads)
    copy = shutil.copytree(made("medusa").package.path, tmp_path / "package")
    manifest = json.loads((copy / "manifest.json").read_text())
    decoder = manifest["programs"][0]
    for specialization in decoder["specializations"]:
        specialization["symbols"].pop("num_logits_to_keep", None)
    decoder["inputs"] = [one for one in decoder["inputs"] if one["name"] != "num_logits_to_keep"]
    edit_json(copy / "manifest.json", **manifest)
    for speculate in ("heads", "lookup"):
        with pytest.raises(GenerationError, match=r"logits of one token a call.* --num-specul"):
            qeff_zoo.load(copy, draft=speculate)


def _without(folder: Path) -> None:
    tensors = load_file(folder / "medusa_lm_head.safetensors")
    del tensors["1.0.linear.bias"]
    save_file(tensors, folder / "medusa_lm_head.safetensors")


def _pickled(folder: Path) -> None:
    (folder / "medusa_lm_head.safetensors").rename(folder / "medusa_lm_head.pt")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_without, SpeculatorError, "'1.0.linear.bias' is missing, expected [64]"),
        (_pickled, SpeculatorError, "only medusa_lm_head.pt: pickles, which can run code"),
        (
            lambda folder: edit_json(folder / "config.json", medusa_num_heads=0),
            SpeculatorError,
            "have medusa_num_heads 0 in their configuration; expected a number from 1",
        ),
        (
            lambda folder: edit_json(folder / "config.json", medusa_num_heads=4),
            SpeculatorError,
            "'3.0.linear.weight' is missing",
        ),
        (lambda folder: (folder / "config.json").write_text("{}"), SpeculatorError, "turbo: spec"),
        (
            lambda folder: speculators.medusa(folder, 32, 257),
            PlanError,
            "has heads for hidden states of 32 numbers, and 'llama' has 64",
        ),
        (
            lambda folder: speculators.medusa(folder, 64, 258),
            PlanError,
            "has heads for a vocabulary of 258 tokens, and 'llama' has 257",
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    change: Callable[[Path], Any],
    error: type[ZooError],
    message: str,
    models: Models,
    tmp_path: Path,
) -> None:
    folder = speculators.medusa(tmp_path / "heads", 64, 257)
    change(folder)
    with pytest.raises(error, match=re.escape(message)):
        qeff_zoo.build(models.llama, draft_heads=folder)


def test_a_plan_for_cards_refuses_heads_that_read_drafted_tokens(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for heads in (speculators.chained, speculators.eagle3):
        folder = heads(tmp_path / heads.__name__, 64, 257)
        argv = ["plan", str(models.llama), "--draft-heads", str(folder), "--target", "qaic"]
        assert cli.main(argv) == 1
        printed_text = capsys.readouterr().err
        assert re.search(
            "does not run '(heads|draft)' of them. Choose --target ort; or give", printed_text
        )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--draft-heads", "absent"], "No folder 'absent'. Expected that of draft heads"),
        (["--max-loras", "1"], "the package has 2 programs"),
        (["--num-speculative-tokens", "63"], "expected 1 to 46"),
    ],
)
def test_a_plan_refuses_options_that_conflict_with_heads(
    argv: list[str],
    message: str,
    models: Models,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    heads = speculators.turbo(tmp_path / "heads", 64, 257)
    plan = ["plan", str(models.llama), "--ctx-len", "48"]
    assert cli.main([*plan, "--draft-heads", str(heads), *argv]) == 1
    assert message in capsys.readouterr().err


def test_a_plan_with_heads_is_for_decoders_alone(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = ["--draft-heads", str(speculators.turbo(tmp_path / "heads", 64, 257))]
    assert cli.main(["plan", str(models.bert), *heads]) == 1
    assert "--draft-heads does not apply to feature-extraction" in capsys.readouterr().err
    assert cli.main(["plan", str(models.llama), "--ctx-len", "48", *heads, "--json"]) == 0
    assert "derived: 3 heads" in capsys.readouterr().out
