# SPDX-License-Identifier: Apache-2.0
"""Bindings agree with what transformers loads, name by name and bit by bit."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from accelerate import init_empty_weights
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from qeff_zoo.checkpoint import expressions as ex
from qeff_zoo.checkpoint.safetensors_index import TensorInfo, TensorReader, index_tensors
from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.weights.bindings import Binding, bind, broken_ties, problems_of
from qeff_zoo.weights.writing import evaluate

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 96}
_DECODER = {
    **_SMALL,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_DECODER, "tie_word_embeddings": False},
    "llama-tied": {**_DECODER, "tie_word_embeddings": True},
    "mixtral": {**_DECODER, "num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen2": _DECODER,
    "qwen2_moe": {**_DECODER, "num_experts": 3, "moe_intermediate_size": 24},
    "gemma2": {**_DECODER, "head_dim": 16},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64},
    "bert": {**_SMALL, "num_attention_heads": 4, "intermediate_size": 48},
    "falcon": {
        **_SMALL,
        "num_attention_heads": 4,
        "alibi": False,
        "new_decoder_architecture": True,
    },
    "phi3": {**_DECODER, "pad_token_id": 0},
}


class Folder(TensorReader):
    """The weights in a folder."""

    def __init__(self, path: Path) -> None:
        self.tensors = index_tensors(sorted(path.glob("*.safetensors")))
        super().__init__(self.tensors)


def _config(name: str) -> Any:
    return transformers.CONFIG_MAPPING[name.partition("-")[0]].from_dict(dict(CONFIGS[name]))


def _meta(config: Any, auto: Any) -> Any:
    with init_empty_weights(include_buffers=False):
        return auto.from_config(config, dtype=torch.float32)


def _head(name: str) -> Any:
    return AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Save a random model: whole, in shards, or the base model without its head."""
    made: dict[tuple[str, str], Path] = {}

    def save(name: str, kind: str) -> Path:
        if (name, kind) not in made:
            torch.manual_seed(0)
            path = tmp_path_factory.mktemp(f"{name}-{kind}")
            model = _head(name).from_config(_config(name), dtype=torch.float32)
            with torch.no_grad():
                for parameter in model.parameters():  # norms and biases of ones and zeros hide much
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            model = model.base_model if kind == "base" else model
            model.save_pretrained(path, max_shard_size="20KB" if kind == "sharded" else "1GB")
            made[name, kind] = path
        return made[name, kind]

    return save


def _assert_same(binding: Binding, source: Folder, expected: Mapping[str, torch.Tensor]) -> None:
    assert binding.expressions.keys() == expected.keys()
    kept = json.loads(json.dumps(dict(binding.expressions)))
    for name, expression in kept.items():
        value = evaluate(expression, source)
        assert binding.shapes[name] == value.shape == tuple(expected[name].shape), name
        assert np.array_equal(value, expected[name].float().numpy()), name


@pytest.mark.parametrize("kind", ["whole", "sharded"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_model_is_bound_as_transformers_loads_it(
    name: str, kind: str, saved: Callable[[str, str], Path]
) -> None:
    path = saved(name, kind)
    source = Folder(path)
    binding = bind(_meta(_config(name), _head(name)), source.tensors)
    _assert_same(binding, source, _head(name).from_pretrained(path).state_dict())
    assert not binding.unused
    assert not binding.doubled


@pytest.mark.parametrize("name", CONFIGS)
def test_a_base_model_is_bound_to_a_checkpoint_with_a_head(
    name: str, saved: Callable[[str, str], Path]
) -> None:
    source = Folder(saved(name, "whole"))
    model = _meta(_config(name), AutoModel)
    needed = [place for place in model.state_dict() if "pooler" not in place]
    binding = bind(model, source.tensors, needed)
    expected = AutoModel.from_pretrained(saved(name, "whole")).state_dict()
    _assert_same(binding, source, {place: expected[place] for place in needed})
    assert all("head" in name or name.startswith("cls.") for name in binding.unused)


@pytest.mark.parametrize("name", ["llama-tied", "gemma2", "gpt2"])
def test_a_model_with_a_tied_head_is_bound_to_a_base_checkpoint(
    name: str, saved: Callable[[str, str], Path]
) -> None:
    path = saved(name, "base")
    source = Folder(path)
    binding = bind(_meta(_config(name), AutoModelForCausalLM), source.tensors)
    _assert_same(binding, source, AutoModelForCausalLM.from_pretrained(path).state_dict())
    assert binding.expressions["lm_head.weight"] == min(
        binding.expressions.values(), key=_is_not_embedding
    )


def _is_not_embedding(expression: ex.Expression) -> bool:
    return expression not in ("embed_tokens.weight", "wte.weight")


def test_an_expert_reads_its_own_tensors_alone(saved: Callable[[str, str], Path]) -> None:
    source = Folder(saved("mixtral", "whole"))
    binding = bind(_meta(_config("mixtral"), AutoModelForCausalLM), source.tensors)
    fused = binding.expressions["model.layers.1.mlp.experts.gate_up_proj"]
    experts = "model.layers.1.block_sparse_moe.experts"
    assert ex.index(2, fused) == [
        "concat", 0, f"{experts}.2.w1.weight", f"{experts}.2.w3.weight"
    ]  # fmt: skip
    assert np.array_equal(evaluate(ex.index(2, fused), source), evaluate(fused, source)[2])


def _resaved(
    path: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> Folder:
    target.mkdir()
    tensors = change(load_file(next(path.glob("*.safetensors"))))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_bytes((path / "config.json").read_bytes())
    return Folder(target)


def test_names_of_old_releases(saved: Callable[[str, str], Path], tmp_path: Path) -> None:
    def old(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): tensor
            for name, tensor in tensors.items()
        }
        return {**renamed, "bert.embeddings.position_ids": torch.arange(512)[None]}

    source = _resaved(saved("bert", "whole"), tmp_path / "old", old)
    assert any(name.endswith("gamma") for name in source.tensors)
    binding = bind(_meta(_config("bert"), AutoModelForMaskedLM), source.tensors)
    expected = AutoModelForMaskedLM.from_pretrained(saved("bert", "whole")).state_dict()
    _assert_same(binding, source, expected)
    assert not binding.unused


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_tied_tensor_that_is_stored_twice(
    change: float, saved: Callable[[str, str], Path], tmp_path: Path
) -> None:
    def twice(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        head = tensors["model.embed_tokens.weight"].clone()
        head[-1, -1] += change
        return {**tensors, "lm_head.weight": head}

    source = _resaved(saved("llama-tied", "whole"), tmp_path / "twice", twice)
    binding = bind(_meta(_config("llama-tied"), AutoModelForCausalLM), source.tensors)
    assert binding.expressions["lm_head.weight"] == "model.embed_tokens.weight"
    assert binding.doubled == {"lm_head.weight": "lm_head.weight"}
    assert broken_ties(binding, source) == (["lm_head.weight"] if change else [])


def test_every_problem_is_reported_at_once(
    saved: Callable[[str, str], Path], tmp_path: Path
) -> None:
    def damaged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        experts = "model.layers.0.block_sparse_moe.experts"
        del tensors["model.norm.weight"], tensors[f"{experts}.1.w2.weight"]
        del tensors["model.layers.1.block_sparse_moe.experts.0.w3.weight"]
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].contiguous()
        return {**tensors, "extra": torch.zeros(1)}

    source = _resaved(saved("mixtral", "whole"), tmp_path / "damaged", damaged)
    with pytest.raises(CheckpointError) as caught:
        bind(_meta(_config("mixtral"), AutoModelForCausalLM), source.tensors)
    message = str(caught.value)
    assert "No tensor for 'model.norm.weight' [32]." in message
    assert "'lm_head.weight' is [95, 32] in the checkpoint" in message
    assert "[96, 32] in the model" in message
    assert "model.layers.0.mlp.experts.down_proj" in message
    assert "model.layers.1.mlp.experts.gate_up_proj" in message
    assert str(tmp_path / "damaged") in message


def test_unused_checkpoint_tensors_are_listed(
    saved: Callable[[str, str], Path], tmp_path: Path
) -> None:
    def extra(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rope = "model.layers.0.self_attn.rotary_emb.inv_freq"  # old checkpoints have it: no matter
        return {**tensors, "model.layers.9.mlp.up_proj.weight": torch.zeros(1), rope: torch.ones(1)}

    source = _resaved(saved("llama", "whole"), tmp_path / "extra", extra)
    binding = bind(_meta(_config("llama"), AutoModelForCausalLM), source.tensors)
    assert binding.unused == ("model.layers.9.mlp.up_proj.weight",)


def test_old_bindings_are_checked_against_new_weights(saved: Callable[[str, str], Path]) -> None:
    source = Folder(saved("qwen2", "whole"))
    binding = bind(_meta(_config("qwen2"), AutoModelForCausalLM), source.tensors)
    assert problems_of(binding.expressions, binding.shapes, source.tensors) == []
    tensors = dict(source.tensors)
    del tensors["model.norm.weight"]
    assert problems_of(binding.expressions, binding.shapes, tensors) == [
        "No tensor 'model.norm.weight' for 'model.norm.weight'."
    ]


def test_a_conversion_that_computes_is_refused_by_name(
    saved: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(self: Any, input_dict: Any, target_patterns: Any, **_: Any) -> Any:
        return {target_patterns[0]: torch.stack(input_dict.popitem()[1]) * 2}

    source = Folder(saved("mixtral", "whole"))
    model = _meta(_config("mixtral"), AutoModelForCausalLM)
    monkeypatch.setattr(transformers.core_model_loading.MergeModulelist, "convert", convert)
    with pytest.raises(UnsupportedModelError, match="aten::mul"):
        bind(model, source.tensors)


def test_bindings_need_no_torch() -> None:
    code = (
        "import sys, qeff_zoo.weights.bindings, qeff_zoo.weights.writing;"
        "sys.exit(bool({'torch', 'transformers', 'onnx'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Arrays:
    """Tensors of consecutive numbers in memory; counts what is read."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.arrays = {
            name: 1000 * i + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            for i, (name, shape) in enumerate(shapes.items())
        }
        self.tensors = {
            name: TensorInfo(name, "F32", shape, Path("none"), 0, 4 * int(np.prod(shape)))
            for name, shape in shapes.items()
        }

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> Any:
        return self.arrays[name][start:stop]

    def release(self, name: str) -> None:
        """Do nothing."""


@st.composite
def trees(draw: st.DrawFn) -> tuple[ex.Expression, dict[str, tuple[int, ...]], Any]:
    """An expression built by the constructors, and the same computed by numpy step by step."""
    shapes = {name: draw(st.tuples(*[st.integers(1, 4)] * 3)) for name in ("a", "b")}
    arrays = Arrays(shapes).arrays
    name = draw(st.sampled_from(sorted(shapes)))
    e, value = name, arrays[name]
    for _ in range(draw(st.integers(0, 5))):
        e, value = draw(st.sampled_from(_STEPS))(draw, e, value)
    return e, shapes, value


def _index(draw: st.DrawFn, e: ex.Expression, value: Any) -> tuple[ex.Expression, Any]:
    if value.ndim < 2:
        return e, value
    i = draw(st.integers(0, value.shape[0] - 1))
    return ex.index(i, e), value[i]


def _cut(draw: st.DrawFn, e: ex.Expression, value: Any) -> tuple[ex.Expression, Any]:
    dim = draw(st.integers(0, value.ndim - 1))
    start = draw(st.integers(0, value.shape[dim] - 1))
    stop = draw(st.integers(start + 1, value.shape[dim]))
    return ex.cut(dim, start, stop, e), value.take(range(start, stop), dim)


def _transpose(draw: st.DrawFn, e: ex.Expression, value: Any) -> tuple[ex.Expression, Any]:
    dims = draw(st.integers(0, value.ndim - 1)), draw(st.integers(0, value.ndim - 1))
    return ex.transpose(*dims, e), value.swapaxes(*dims)


def _stack(draw: st.DrawFn, e: ex.Expression, value: Any) -> tuple[ex.Expression, Any]:
    if value.size > 200:
        return e, value
    dim, count = draw(st.integers(0, value.ndim)), draw(st.integers(1, 3))
    return ex.stack(dim, *[e] * count), np.stack([value] * count, dim)


def _concat(draw: st.DrawFn, e: ex.Expression, value: Any) -> tuple[ex.Expression, Any]:
    if value.size > 200:
        return e, value
    dim = draw(st.integers(0, value.ndim - 1))
    half, part = _cut(draw, e, value) if draw(st.booleans()) else (e, value)
    if (
        half == e
        or value.shape[:dim] + value.shape[dim + 1 :] != part.shape[:dim] + part.shape[dim + 1 :]
    ):
        half, part = e, value
    return ex.concat(dim, e, half), np.concatenate([value, part], dim)


def _reshape(draw: st.DrawFn, e: ex.Expression, value: Any) -> tuple[ex.Expression, Any]:
    shape = draw(st.sampled_from([(value.size,), (1, value.size), value.shape[::-1]]))
    return ex.reshape(shape, e), value.reshape(shape)


_STEPS = [_index, _cut, _transpose, _stack, _concat, _reshape]


@settings(max_examples=example_count(300))
@given(trees(), st.integers(1, 20), st.data())
def test_expressions_mean_what_numpy_computes(
    tree: tuple[ex.Expression, dict[str, tuple[int, ...]], Any], limit: int, data: st.DataObject
) -> None:
    e, shapes, expected = tree
    source = Arrays(shapes)
    e = json.loads(json.dumps(e))
    assert ex.shape_of(e, source.tensors) == expected.shape
    assert np.array_equal(ex.rows(e, source.read, source.tensors), expected)
    start = data.draw(st.integers(0, expected.shape[0] - 1))
    stop = data.draw(st.integers(start + 1, expected.shape[0]))
    part = ex.rows(e, source.read, source.tensors, start, stop)
    assert np.array_equal(part, expected[start:stop])
    pieces = [
        ex.rows(piece, source.read, source.tensors, first, last).reshape(-1)
        for piece, first, last in ex.blocks(e, source.tensors, limit)
    ]
    assert np.array_equal(np.concatenate(pieces), expected.reshape(-1))
    if expected.ndim > 1:
        assert all(piece.size % expected.shape[-1] == 0 for piece in pieces)


@pytest.mark.parametrize(
    "wrong",
    [
        ["index", 4, "a"],
        ["slice", 1, 2, 5, "a"],
        ["concat", 0, "a", "b"],
        ["stack", 0, "a", "b"],
        ["reshape", [5], "a"],
        ["sort", "a"],
        "c",
    ],
    ids=str,
)
def test_what_does_not_fit_is_an_error(wrong: ex.Expression) -> None:
    tensors = Arrays({"a": (4, 3), "b": (4, 2)}).tensors
    with pytest.raises(CheckpointError):
        ex.shape_of(wrong, tensors)


def test_sources_come_once_in_order() -> None:
    e = ex.concat(0, "b", ex.transpose(0, 1, "a"), ex.stack(0, ex.cut(0, 1, 2, "b"), "c"))
    assert ex.sources_of(e) == ["b", "a", "c"]
