# SPDX-License-Identifier: Apache-2.0
"""Draws of `scripts/mutate` that failed once, as few as tell the faults apart; and the search itself."""

import json
import re
from typing import Any

import mutating
import parity
import pytest
from checkout import TESTS
from mutating import Draw

from qeff_zoo.recipe import sparse_layers

KEPT: list[dict[str, Any]] = json.loads((TESTS / "mutations.json").read_text())


def name_of(kept: dict[str, Any]) -> str:
    return "-".join([kept["recipe"], *kept["changes"]])


@pytest.mark.parametrize("kept", KEPT, ids=name_of)
@pytest.mark.sampled(4)
def test_former_failures_agree_or_are_refused_with_a_reason(kept: dict[str, Any]) -> None:
    settings = {name: kept[name] for name in kept if name not in ("traced", "refused")}
    verdict = mutating.judge(Draw(**settings), traced=kept.get("traced", True))
    if refused := kept.get("refused"):
        assert verdict.outcome == "refused"
        assert re.match(refused, verdict.why)
    else:
        assert verdict.outcome == "agrees", verdict.why


def test_a_draw_is_the_same_for_the_same_seed_and_comes_of_every_recipe() -> None:
    names = [recipe.model_type for recipe in parity.of_text()]
    drawn = [mutating.draw(7, number, names) for number in range(20)]
    assert drawn == [mutating.draw(7, number, names) for number in range(20)]
    assert len({one.recipe for one in drawn}) == 20
    assert all(one.changes for one in drawn)
    others = [mutating.draw(8, number, names) for number in range(20)]
    assert drawn != others


def test_a_wrong_count_and_a_wrong_answer_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing proves nothing."""
    drawn = Draw(recipe="llama", changes={"rms_norm_eps": 0.5})
    assert mutating.judge(drawn).outcome == "agrees"
    compare = mutating._generated
    with monkeypatch.context() as patch:
        patch.setattr(
            mutating,
            "_generated",
            lambda *requested: compare(*requested[:3], [answer + 1e-3 for answer in requested[3]]),
        )
        verdict = mutating.judge(drawn)
    assert verdict.outcome == "DISAGREES"
    with monkeypatch.context() as patch:
        patch.setattr("qeff_zoo.recipe._is_sparse", lambda config, layer: False)
        verdict = mutating.judge(Draw(recipe="qwen3_moe", changes={}), traced=False)
    assert verdict.outcome == "CRASHED"
    assert "changed 2 modules" in verdict.why


def test_equal_scores_and_answers_to_nothing_are_no_faults() -> None:
    few = Draw(recipe="solar_open", changes={"topk_group": 1})  # two experts are left, three chosen
    assert mutating.judge(few).outcome == "ambiguous"
    assert mutating.judge(Draw(recipe="glm", changes={"hidden_size": 0})).outcome == "not a model"


def test_config_that_transformers_refuses_is_no_mutation() -> None:
    drawn = Draw(recipe="llama", changes={"hidden_size": 65})
    assert mutating.judge(drawn).outcome == "not a model"


class _Known:
    """A class of configs that knows one of the fields."""

    num_hidden_layers = 4
    decoder_sparse_step = 2
    num_experts = 3


def test_only_fields_of_the_class_are_counted() -> None:
    config = _Known()
    assert sparse_layers(config) == 2
    config.mlp_only_layers = [1]  # type: ignore[attr-defined]
    assert (
        sparse_layers(config) == 2
    )  # of some other model: transformers keeps what it does not read
