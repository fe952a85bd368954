# SPDX-License-Identifier: Apache-2.0
"""Importance of columns: mean squares of what transformers' model multiplies matrices by; int4 is rounded by it."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_builds import Models
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.export import importance
from qeff_zoo.weights.importance import IMPORTANCE, load, of_slots


def is_stack(module: Any) -> bool:
    """Whether a module has the matrices of all experts in one parameter."""
    return isinstance(getattr(module, "gate_up_proj", None), torch.nn.Parameter)


def squares_of(folder: Path) -> dict[str, Any]:
    """Give the mean squares of the inputs of each matrix of transformers' model, run whole; of experts one a row."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = importance.inputs_of(open_checkpoint(str(folder)), model.config, None)
    found: dict[str, list[Any]] = defaultdict(list)

    def note(name: str, module: Any, arguments: tuple[Any, ...]) -> None:
        if not is_stack(module):
            found[f"{name}.weight"].append(arguments[0].flatten(0, -2))
            return
        for expert in range(len(module.gate_up_proj)):
            chosen = (arguments[1] == expert).any(-1)
            rows = arguments[0][chosen] if chosen.any() else torch.ones_like(arguments[0][:1])
            found[f"{name}.gate_up_proj.{expert}"].append(rows)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D) or is_stack(module):
            module.register_forward_pre_hook(lambda *given, name=name: note(name, *given))
    with torch.no_grad():
        model(**inputs)
    squares = {name: torch.cat(rows).square().mean(0).numpy() for name, rows in found.items()}
    if (
        model.config.tie_word_embeddings
    ):  # its rows are looked up, too: half of it counts all columns alike
        squares["lm_head.weight"] += squares["lm_head.weight"].mean()
    return squares


def with_random_buffers(folder: Path) -> Path:
    """Change the stored buffers of a checkpoint, which are zeros in a new model: they choose experts."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    chance = torch.Generator().manual_seed(0)
    for name, one in tensors.items():
        if name.endswith(("e_score_correction_bias", "layer_scalar")):
            tensors[name] = torch.randn(one.shape, generator=chance, dtype=one.dtype)
    save_file(tensors, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mixtral", "glm4_moe", "gemma4_text"])
def test_importance_is_the_mean_square_of_inputs(models: Models, model_type: str) -> None:
    folder = with_random_buffers(models.checkpoint(f"importance-{model_type}", model_type))
    checkpoint = open_checkpoint(str(folder))
    checkpoint.fetch()
    found = importance.measure(checkpoint, TEXT_GENERATION, None).importance
    compared = 0
    for name, squares in squares_of(folder).items():
        measured, _ = of_slots(found, [name])
        if name not in measured:
            assert ".gate." in name, name  # a router, which stays in floats
            continue
        compared += 1
        np.testing.assert_allclose(measured[name], squares / squares.mean(), rtol=2e-3, atol=2e-3)
    assert compared > 8


def test_a_package_keeps_what_it_was_rounded_by(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = models.build(models.llama, home, weights="int4")
    rounded = [one for one in package.programs[0].numerics.matrices if one.format.fitted]
    kept = load(package.path / IMPORTANCE)
    assert kept.keys() == {one.name for one in rounded if one.multiplied}
    assert all(np.ptp(one) > 0 for one in kept.values())

    def fail(*_: Any, **__: Any) -> None:
        raise UnsupportedModelError("It is no chain.")

    monkeypatch.setattr(importance, "measure", fail)
    with pytest.warns(UserWarning, match=r"all columns of a matrix count alike.* no chain"):
        plain = qeff_zoo.build(models.llama, weights="int4", ctx_len=32, validate=False)
    assert not (plain.path / IMPORTANCE).exists()
