# SPDX-License-Identifier: Apache-2.0
"""Experts and keys that are chosen: a tie refuses no right package, and a wrong router still fails."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runnable_package import edit_json, package
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from qeff_zoo.package import Package
from qeff_zoo.package.manifest import problems
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.token_axis import as_it_was, by_token
from qeff_zoo.sessions import open_session
from qeff_zoo.validation import ladder, tiny_models
from qeff_zoo.validation.judgement.parity import relative_errors
from qeff_zoo.validation.judgement.records import Record
from qeff_zoo.validation.reference.answers import Answers, Reference
from qeff_zoo.validation.reference.routing import Choices, follow
from qeff_zoo.validation.trial import package_runner, sample_texts
from qeff_zoo.validation.trial.routing import members, read_choices

pytestmark = pytest.mark.turns(2)

SHAPE = {"prefill_seq_len": 8, "ctx_len": 24}
_LAYER, _POSITION, _APART = 1, 2, 3e-6
_ROUTER = f"model.layers.{_LAYER}.block_sparse_moe.gate.weight"


# --- arrays ---------------------------------------------------------------------------------------
def test_choices_are_kept_where_a_program_leaves_out_columns_of_padding() -> None:
    rows = package_runner.RunRecorder()
    rows.begin(0, 0)
    positions = np.array([[0, 1, 2, -1, -1]])
    left, whole = np.arange(6).reshape(3, 2), np.arange(10).reshape(5, 2)
    rows.note(
        {"input_ids": np.zeros_like(positions), "position_ids": positions},
        [0],
        {"topk.0": left, "topk.1": whole},
    )
    chosen = rows.runs[0].all()
    assert {name: found[:, 0].tolist() for name, found in chosen.items()} == {
        "topk.0": left.tolist(),
        "topk.1": whole[:3].tolist(),
    }


@pytest.mark.parametrize("shape", [(6, 5), (6, 4, 5), (2, 3, 5), (2, 4, 3, 5), (2, 3, 4, 5)])
def test_choices_are_brought_to_one_shape_and_back(shape: tuple[int, ...]) -> None:
    """Two rows of three tokens, in the layouts of routers, groups, indexers and masks."""
    values = np.arange(np.prod(shape)).reshape(shape)
    found = by_token(values, 2, 3)
    assert found is not None
    assert (found.shape[:2], found.shape[-1]) == ((2, 3), 5)
    np.testing.assert_array_equal(as_it_was(found, shape, 2, 3), values)
    flat = values.reshape(2, 3, -1, 5) if shape != (2, 4, 3, 5) else values.transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(found, flat)


def test_array_without_a_token_axis_is_no_expert_choice() -> None:
    assert by_token(np.zeros((7, 5)), 2, 3) is None


SCORES = np.array([[0.5, 0.3, 0.3 - 1e-6, 0.1, -np.inf]])


@pytest.mark.parametrize(
    ("reported", "within", "expected", "counts"),
    [
        ([0, 2], 1e-5, [0, 2], (1, 0)),
        ([2, 0], 1e-5, [0, 2], (1, 0)),
        ([0, 2], 1e-7, [0, 1], (0, 0)),  # too far apart
        ([0, 3], 1e-5, [0, 1], (0, 0)),
        ([3, 2], 1e-5, [0, 1], (0, 0)),  # both must be near
        ([0, -1], 1e-5, [0, 1], (0, 0)),  # another number
        ([0, 4], 1e-5, [0, 1], (0, 0)),  # hidden
        ([0, 1], 1e-5, [0, 1], (0, 0)),
    ],
)
def test_a_choice_is_followed_where_noise_explains_it(
    reported: list[int], within: float, expected: list[int], counts: tuple[int, int]
) -> None:
    found = follow(SCORES, np.array([[0, 1]]), np.array([reported]), within)
    assert found.indices.tolist() == [expected]
    assert (found.near, found.equal) == counts


def test_equal_scores_are_counted_apart() -> None:
    scores = np.array([[1.0, 1.0, 0.0]])
    found = follow(scores, np.array([[0]]), np.array([[1]]), 0.0)
    assert (found.indices.tolist(), found.near, found.equal) == ([[1]], 0, 1)


def test_where_too_much_differs_nothing_is_a_tie() -> None:
    """One of eight chosen is more than a hundredth; what has equal scores does not count."""
    choices = Choices([0], {"0.topk.0": np.zeros((4, 1, 2), int)}, factor=8, least=1e-5)
    choices.followed[0] = [0, 8]
    assert choices.excused
    choices.followed[0] = [1, 0]
    assert (choices.summary()["share"], choices.summary()["allowed_share"]) == (1 / 8, 0.01)
    assert not choices.excused


def test_choice_by_an_infinite_score_is_no_noise() -> None:
    """An indexer gives the newest block of keys an infinite score."""
    choices = Choices([0], {"0.topk.0": np.zeros((1, 1, 2), int)}, factor=8, least=1e-5)
    near, noise = (
        torch.tensor([[[torch.inf, 1.0, 0.999, -torch.inf]]]),
        torch.tensor([0.0, 1e-3, 0, 0]),
    )
    with choices.note([0], [1]):
        near.topk(2)
    with choices.repeat([0], [1]):
        (near + noise).topk(2)
    assert choices.within("topk.0") == pytest.approx(2 * 8 * 1e-3, rel=1e-3)


def test_a_run_is_followed_as_far_as_it_goes() -> None:
    """A sequence with an image is run to its end, since transformers takes no part of one."""
    choices = Choices([0], {"0.topk.0": np.array([[[0]], [[0]]])}, factor=8, least=1.0)
    scores = torch.tensor([[[1.0, 1.001]] * 3])
    with choices.note([0], [3]):
        scores.topk(1)
    with choices.following(0)([0], [3]):
        found = scores.topk(1).indices
    assert found.tolist() == [[[0], [0], [1]]]
    assert choices.followed[0] == [2, 0]


def test_members_count_once_and_only_where_they_are_options() -> None:
    found = members(np.array([[0, 0, 7, -1], [2, 1, 1, 1]]), 3)
    assert found.tolist() == [[True, False, False], [False, True, True]]


# --- a mixture of experts -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make checkpoints of one model: two with a tie at one token, one the other way around, and two wrong ones."""
    folder = tmp_path_factory.mktemp("tied")
    recipe = find_recipe("mixtral")
    first = tiny_models.make(recipe, recipe.tiny[0], folder / "first")
    config = json.loads((first / "config.json").read_text())
    (tokens,) = sample_texts.draw([SHAPE["ctx_len"]], None, config["vocab_size"])
    state, scores = _at_router(first, tokens)
    order = torch.argsort(scores, descending=True)
    last, next_ = order[config["num_experts_per_tok"] - 1], order[config["num_experts_per_tok"]]

    def moved(by: float) -> Callable[[Any], Any]:
        def move(router: Any) -> Any:
            router = router.astype(np.float64)
            gap = float(scores[last] - scores[next_]) + by
            router[next_] += (gap * state / (state @ state)).numpy()
            return router.astype(np.float32)

        return move

    right = _copy(first, folder / "right", moved(-_APART))
    swapped = lambda router: router[[1, 0, *range(2, len(router))]]  # noqa: E731
    found = {
        "right": right,
        "tie": _copy(first, folder / "tie", moved(_APART)),
        "swapped": _copy(right, folder / "swapped", swapped),
        "another number": _copy(right, folder / "another", lambda router: router),
    }
    edit_json(found["another number"] / "config.json", num_experts_per_tok=1)
    return found


def _at_router(checkpoint: Path, tokens: list[int]) -> tuple[Any, Any]:
    """Return the state before the router at one token, and the scores after it, in float64."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager")
    recorded = []
    gate = model.model.layers[_LAYER].mlp.gate
    gate.register_forward_pre_hook(lambda _, args: recorded.append(args[0].double()))
    with torch.no_grad():
        model.eval()(torch.tensor([tokens]))
    state = recorded[0].reshape(len(tokens), -1)[_POSITION]
    return state, gate.weight.detach().double() @ state


def _copy(source: Path, target: Path, change: Callable[[Any], Any]) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(target / "model.safetensors")
    weights[_ROUTER] = np.ascontiguousarray(change(weights[_ROUTER]))
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.fixture(scope="module")
def held(
    tied: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], tuple[Record, Answers, Package]]]:
    """Give a function that holds the package of one checkpoint against the right one."""
    requested: list[Answers] = []
    send_request = Reference.run

    def note(*request: Any) -> Answers:
        requested.append(send_request(*request))
        return requested[-1]

    def hold(name: str) -> tuple[Record, Answers, Package]:
        made = package(tied[name], **SHAPE, batch_size=1)
        record = ladder.validate(made, tied["right"], level="tiny", threads=1)
        return record, requested[-1], made

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("choices")))
        patch.setattr(Reference, "run", note)
        yield hold


def test_a_tie_refuses_no_right_package(
    held: Callable[[str], tuple[Record, Answers, Package]],
) -> None:
    record, answers, made = held("tie")
    # The router was moved a little, which the comparison of stored weights alone notices.
    assert {check["stage"] for check in record.checks if not check["passed"]} == {"weights"}
    checks = [check for check in record.checks if check["stage"] != "weights"]
    followed = {
        check["stage"]: check["followed"]["near"] for check in checks if "followed" in check
    }
    assert all(followed[stage] > 0 for stage in ("prefill", "chunked_prefill", "ctx_len"))
    assert followed["padded_batch"] == 0  # it reads another text
    choices = record.reported["choices"]
    assert 0 < choices["share"] <= choices["allowed_share"]
    # Left to itself the reference answers otherwise, by far more than is allowed.
    alone = answers.arrays["reference.0"]
    settings = next(
        array for name, array in answers.arrays.items() if name.startswith("reference.0.")
    )
    errors = relative_errors(alone[: len(settings)], settings)
    assert errors.max() > 100 * record.checks[0]["threshold"]
    assert problems({**made.manifest, "validation": checks, "validated": "tiny"}) == []


@pytest.mark.parametrize("name", ["swapped", "another number"])
@pytest.mark.sampled(2)
def test_a_wrong_router_fails(
    held: Callable[[str], tuple[Record, Answers, Package]], name: str
) -> None:
    record, *_ = held(name)
    failed = {check["stage"] for check in record.checks if not check["passed"]}
    assert failed >= {"prefill", "chunked_prefill", "decode", "ctx_len"}


def test_a_graph_that_is_watched_answers_to_the_last_bit(
    tied: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path))
        made = package(tied["right"], **SHAPE, batch_size=1)
    chosen: dict[str, Any] = {}

    def observe(inputs: Any, rows: Any, outputs: Any) -> None:
        chosen.update(read_choices(outputs, *inputs["input_ids"].shape))

    sessions: list[Any] = [open_session(made), open_session(made, observe=observe)]
    # Many answers: each has memory of its own, and nobody else's.
    tokens = [[number, 7, 5] for number in range(3, 200)]
    plain, watched = (
        [session.decoder.prefill({0: Piece(given, 0)})[0] for given in tokens]
        for session in sessions
    )
    np.testing.assert_array_equal(plain, watched)
    assert [*chosen] == [f"topk.{layer}" for layer in range(4)]
    assert {found.shape for found in chosen.values()} == {(1, 3, 1, 2)}
