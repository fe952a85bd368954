# SPDX-License-Identifier: Apache-2.0
"""Settings that Qualcomm measured: each row for its own model, the nearest for others, and what the user sets first."""

import json
from pathlib import Path
from typing import Any

import pytest

from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import PlanError
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.targets.qaic.objectives import Row, nearest, rows

#: Of google-bert/bert-base-uncased and microsoft/resnet-34.
BERT = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12}
RESNET = {"model_type": "resnet", "depths": [3, 4, 6, 3], "layer_type": "basic"}


def planned(folder: Path, config: dict[str, Any], head: str, **options: Any) -> Plan:
    """Plan a build of a model that has a config alone."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [head]}))
    options = {"target": "qaic", **options}
    return check(open_checkpoint(str(folder), need_weights=False), Request(**options))


def own_config(row: Row) -> dict[str, Any]:
    """Return the sizes of a row's model as its config has them."""
    if row.task == "image-classification":  # as timm saves one
        return {"model_type": "timm_wrapper", "architecture": row.model}
    return {"model_type": row.family, "hidden_size": row.width, "num_hidden_layers": row.depth}


def test_each_model_of_the_tables_has_its_own_row() -> None:
    assert len(rows()) == 526
    for row in rows():
        assert nearest(row.task, own_config(row), row.model, row.length, row.objective) == row


@pytest.mark.parametrize(
    ("task", "config", "length", "model"),
    [
        # The same body has other heads.
        ("multiple-choice", BERT, 128, "finiteautomata/beto-sentiment-analysis"),
        (
            "text-classification",
            {**BERT, "hidden_size": 128, "num_hidden_layers": 2},
            128,
            "google/bert_uncased_L-2_H-128_A-2",
        ),
        (
            "encoder-ranking",
            {"model_type": "xlm-roberta", "hidden_size": 1024},
            512,
            "BAAI/bge-reranker-large",
        ),
        ("image-classification", RESNET, 224, "resnet34"),
        (
            "image-classification",
            {"model_type": "timm_wrapper", "architecture": "vgg16_bn"},
            224,
            "vgg16_bn",
        ),
        (
            "image-feature-extraction",
            {"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24, "patch_size": 14},
            224,
            "vit_b_16",
        ),
    ],
)
def test_other_models_follow_the_nearest_row(
    task: str, config: dict[str, Any], length: int, model: str
) -> None:
    found = nearest(task, config, "my-model", length, "best-throughput")
    assert found is not None
    assert found.model == model


def test_an_objective_sets_the_options_of_the_compiler(tmp_path: Path) -> None:
    plan = planned(
        tmp_path / "bert-base-uncased", BERT, "BertForQuestionAnswering", profile="best-throughput"
    )
    fields = {name: (value["value"], value["by"]) for name, value in plan.explained().items()}
    by = "best-throughput: bert-base-uncased"
    assert fields["target.num_cores"] == (2, by)
    assert fields["target.multicast_weights"] == (True, by)
    assert fields["shape.batch_size"] == (10, by)
    assert fields["shape.seq_lens"][1] == "recipe:latency"
    (note,) = (warning for warning in plan.warnings if "Qualcomm" in warning)
    assert "2,368 inputs a second, 29.96 ms with 7 programs of 2 cores" in note


def test_the_user_chooses_before_an_objective(tmp_path: Path) -> None:
    plan = planned(
        *(tmp_path / "bert-base-uncased", BERT, "BertForQuestionAnswering"),
        profile="best-latency",
        num_cores=4,
        batch_size=2,
    )
    fields = {name: (value["value"], value["by"]) for name, value in plan.explained().items()}
    assert fields["target.num_cores"] == (4, "user")
    assert fields["shape.batch_size"] == (2, "user")
    assert fields["target.mos"] == (14, "best-latency: bert-base-uncased")


def test_settings_that_a_target_lacks_are_named(tmp_path: Path) -> None:
    plan = planned(
        *(tmp_path / "bert-base-uncased", BERT, "BertForQuestionAnswering"),
        target="qnn-aic",
        profile="best-throughput",
    )
    assert "target.ols" not in plan.explained()
    assert any("Not set: multicast_weights, ols." in warning for warning in plan.warnings)


def test_an_objective_without_measured_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="balanced is for target qaic or qnn-aic, and --target is"):
        planned(tmp_path / "bert", BERT, "BertModel", target="ort", profile="balanced")
    llama = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
    with pytest.raises(PlanError, match=r"there are none of text-generation\. Leave it out"):
        planned(tmp_path / "llama", llama, "LlamaForCausalLM", profile="balanced")
