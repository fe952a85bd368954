# SPDX-License-Identifier: Apache-2.0
"""Smoothing: powers of two that move from a norm into matrices leave transformers' model as it is; w8a8 loses less."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_builds import Models
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.export import smoothing
from qeff_zoo.weights.smoothing import SMOOTHING, Smoothed, Smoothing


def with_outliers(folder: Path) -> Path:
    """Enlarge one column of the activations after each norm of a layer.

    Args:
        folder: Folder of a checkpoint.
    """
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, one in tensors.items():
        if "layernorm" in name and name.endswith("weight"):
            one[3] += 30
    save_file(tensors, file, {"format": "pt"})
    return folder


def logits(folder: Path, values: dict[str, Any] | None = None) -> Any:
    """Return the logits of transformers' model, of a folder's weights or of others."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if values:
        assert not model.load_state_dict(values, strict=False).unexpected_keys
    inputs = smoothing.inputs_of(open_checkpoint(str(folder)), model.config, None)
    with torch.no_grad():
        return model(**inputs).logits.numpy()


def measured(folder: Path, *, free: bool = True) -> smoothing.Smoothable:
    """Measure a checkpoint."""
    checkpoint = open_checkpoint(str(folder))
    checkpoint.fetch()
    return smoothing.measure(checkpoint, TEXT_GENERATION, None, lambda name: free)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "phi", "mixtral", "cohere"])
def test_smoothing_leaves_the_model_as_it_is(
    models: Models, model_type: str, tmp_path: Path
) -> None:
    """Norms that add 1, LayerNorm with a bias, norms that a router or attention and an MLP share."""
    source = models.checkpoint(f"smoothing-{model_type}", model_type)
    folder = with_outliers(models.copy(source, tmp_path / "c"))
    found = measured(folder)
    assert found.smoothing, "no norm was smoothed"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = model.state_dict()
    smooth = {
        name: torch.from_numpy(found.smoothing.apply(name, state[name].numpy()))
        for name in found.smoothing.exponents
    }
    assert any(one.any() for one in found.smoothing.exponents.values())
    before, after = logits(folder), logits(folder, smooth)
    assert np.abs(before - after).max() <= 2e-6 * np.abs(before).max()
    assert bool(found.smoothing.shifted) == (model_type == "gemma3_text")
    assert not any("router" in name or ".gate." in name for name in smooth)


def test_outliers_move_into_the_matrices(models: Models, tmp_path: Path) -> None:
    folder = with_outliers(models.copy(models.llama, tmp_path / "c"))
    exponents = measured(folder).smoothing.exponents
    for name, one in exponents.items():
        if name.endswith("q_proj.weight"):
            assert one[3] >= 3
            assert one[3] > 1 + np.sort(one)[-2]
        if name.endswith("input_layernorm.weight"):
            assert np.array_equal(
                one, -exponents[name.replace("input_layernorm", "self_attn.q_proj")]
            )


def test_tensors_that_may_not_change_stay(models: Models) -> None:
    assert not measured(models.llama, free=False).smoothing


def test_parts_of_smoothed_tensors() -> None:
    """Rows of a matrix have the exponents of all columns, values of a norm their own."""

    class Source:
        tensors: dict[str, Any] = open_checkpoint(
            str(Path(__file__).parents[2] / "examples" / "tiny-llama")
        ).tensors

        def read(self, name: str, start: int | None = None, stop: int | None = None) -> Any:
            shape = self.tensors[name].shape
            return np.ones(shape, np.uint16)[start:stop] * np.uint16(0x3F80)  # 1 in BF16

    source = Source()
    norm = next(name for name, one in source.tensors.items() if name.endswith("norm.weight"))
    size = source.tensors[norm].shape[0]
    exponents = np.arange(size, dtype=np.int8) % 5
    smoothed = Smoothed(source, Smoothing(exponents={norm: exponents}, shifted={norm}))  # type: ignore[arg-type]
    expected = 2 * 2.0**exponents - 1
    assert smoothed.tensors[norm].dtype == "F32"
    assert np.array_equal(smoothed.read(norm), expected)
    assert np.array_equal(smoothed.read(norm, 3, 7), expected[3:7])


def test_w8a8_loses_less_by_smoothing(
    models: Models, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation compares logits and stored tensors with transformers' model of the checkpoint."""

    def refuse(*_: Any) -> Any:
        raise UnsupportedModelError("It has no layers. Do something else.")

    folder = with_outliers(models.copy(models.llama, tmp_path / "c"))
    smooth = qeff_zoo.build(folder, weights="w8a8", ctx_len=64)
    assert smooth.validated == "checkpoint"
    exponents = Smoothing.load(smooth.path / SMOOTHING).exponents
    assert max(one.max() for one in exponents.values()) >= 3
    monkeypatch.setattr(smoothing, "measure", refuse)
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "other"))
    with pytest.warns(UserWarning, match=r"w8a8 of .* is less exact than it could be.*no layers"):
        plain = qeff_zoo.build(folder, weights="w8a8", ctx_len=64)
    costs = [package.manifest["costs"]["activations"]["mean"] for package in (smooth, plain)]
    assert costs[0] < 0.5 * costs[1]
