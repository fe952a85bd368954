# SPDX-License-Identifier: Apache-2.0
"""Embedding models from decoders, such as EmbeddingGemma: bidirectional attention, and dense layers after pooling."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runnable_package import checkpoint, edit_json, package
from safetensors.torch import save_file
from transformers import AutoModel

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError, PlanError, UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.sessions import EmbeddingSession, open_session

pytestmark = pytest.mark.turns(3)

KINDS = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
FOLDERS = ["", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
#: folder -> in, out, bias, activation
DENSE = {
    "2_Dense": (64, 96, False, "linear.Identity"),
    "3_Dense": (96, 40, True, "activation.Tanh"),
}
TEXTS = [[5, 9, 17, 33, 60, 61, 7, 80, 91, 4, 12, 13], [8, 19, 30], [77]]


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small EmbeddingGemma."""
    folder = checkpoint(
        tmp_path_factory.mktemp("embedder") / "model",
        "gemma3_text",
        task="feature-extraction",
        use_bidirectional_attention=True,
    )
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in zip(FOLDERS, KINDS, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    torch.manual_seed(3)
    for name, (width, out, bias, activation) in DENSE.items():
        (folder / name).mkdir()
        settings = {"in_features": width, "out_features": out, "bias": bias}
        settings["activation_function"] = f"torch.nn.modules.{activation}"
        (folder / name / "config.json").write_text(json.dumps(settings))
        layer = torch.nn.Linear(width, out, bias)
        save_file(
            {f"linear.{key}": value for key, value in layer.state_dict().items()},
            folder / name / "model.safetensors",
        )
    return folder


def by_hand(folder: Path, tokens: list[int]) -> Any:
    """Compute one embedding as sentence-transformers would, from Hugging Face's states."""
    from safetensors.torch import load_file

    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        states = model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    value = states.double().mean(0)
    first, second = (load_file(folder / name / "model.safetensors") for name in DENSE)
    value = first["linear.weight"].double() @ value
    value = torch.tanh(second["linear.weight"].double() @ value + second["linear.bias"].double())
    return (value / value.norm()).numpy()


@pytest.mark.filterwarnings("ignore:.*Rounding weights costs")  # of random ones
@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.sampled(2)
def test_embeddings_are_those_of_all_modules(
    embedder: Path, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    built = qeff_zoo.build(embedder, seq_lens=(16,), batch_size=2, weights=weights)
    assert (built.task, built.validated) == ("feature-extraction", "checkpoint")
    layers = built.manifest["spec"]["task"]["modules"]
    activations = [layer["activation"] for layer in layers if layer["kind"] == "Dense"]
    assert activations == ["Identity", "Tanh"]
    session = open_session(built, threads=1)
    assert isinstance(session, EmbeddingSession)
    got = session.embed(TEXTS)
    assert got.shape == (len(TEXTS), 40)
    expected = np.stack([by_hand(embedder, tokens) for tokens in TEXTS])
    distances = np.linalg.norm(got[:, None] - expected, axis=-1)
    errors, others = np.diag(distances), distances[~np.eye(len(TEXTS), dtype=bool)]
    # Unit vectors: float32 is exact to some 1e-7, and rounded weights stay nearer to their text than to any other.
    assert errors.max() < (1e-5 if weights == "fp32" else others.min() / 2)


def plan_of(folder: Path, **requested: Any) -> Any:
    return check(open_checkpoint(str(folder)), Request(**requested))


def test_bidirectional_attention_is_refused_for_text_generation(embedder: Path) -> None:
    with pytest.raises(
        PlanError, match=r"`use_bidirectional_attention` is True .* choose feature-extraction"
    ):
        plan_of(embedder, task="text-generation")


def test_dense_weights_are_part_of_the_identity_and_must_be_there(
    embedder: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "model"
    shutil.copytree(embedder, copied)
    before = open_checkpoint(str(copied)).weights_digest()
    weights = copied / "3_Dense" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert open_checkpoint(str(copied)).weights_digest() != before
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"3_Dense/model.safetensors.* every dense layer"):
        open_checkpoint(str(copied))


@pytest.mark.parametrize(
    "change",
    [
        {"activation_function": "evil.module.Tanh"},
        {"activation_function": "torch.nn.modules.activation.PReLU"},
        {"in_features": None},
        {"module_input_name": "all_layer_embeddings"},
    ],
)
def test_a_dense_layer_of_another_kind_is_refused(
    embedder: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    copied = tmp_path / "model"
    shutil.copytree(embedder, copied)
    edit_json(copied / "2_Dense" / "config.json", **change)
    with pytest.raises(UnsupportedModelError, match=re.escape("2_Dense/config.json")):
        plan_of(copied)


def test_weights_that_differ_from_their_config_are_refused(
    embedder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    copied = tmp_path / "model"
    shutil.copytree(embedder, copied)
    edit_json(copied / "3_Dense" / "config.json", out_features=48)
    with pytest.raises(
        CheckpointError,
        match=r"sentence_modules.3.linear.weight' is \[40, 96\] .* \[48, 96\] in the",
    ):
        package(copied, seq_lens=(16,))
