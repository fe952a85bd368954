# SPDX-License-Identifier: Apache-2.0
"""SwiftKV: what Snowflake's model computes, and prompt tokens that end before the later layers."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
from checkout import TESTS
from safetensors.torch import load_file, save_file

from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError
from qeff_zoo.export import loader
from qeff_zoo.export.architectures import llama_swiftkv
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation.reference.loading import load_model
from qeff_zoo.weights.bindings import bind

FIXTURE = TESTS / "fixtures" / "swiftkv"
BASE, GROUPS = "llama_swiftkv-base", "llama_swiftkv-groups"


def made() -> Any:
    """The module that made the golden logits."""
    spec = importlib.util.spec_from_file_location("swiftkv_make", FIXTURE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def logits_of(model: Any, tokens: list[list[int]]) -> tuple[Any, Any]:
    """Logits of a text in one call, and those of what follows its ninth token, in a second call."""
    ids = torch.tensor(tokens)
    with torch.no_grad():
        first = model(input_ids=ids[:, :9], use_cache=True)
        then = model(input_ids=ids[:, 9:], past_key_values=first.past_key_values)
        return model(input_ids=ids).logits.numpy(), then.logits.numpy()


@pytest.mark.parametrize("group", [1, 2])
def test_our_class_computes_what_snowflakes_does(group: int) -> None:
    """In float64, up to what float32 costs: the golden logits are another machine's, in float32."""
    make, golden = made(), np.load(FIXTURE / "golden.npz")[f"group{group}"]
    model = make.fill(llama_swiftkv.LlamaSwiftKVForCausalLM(make.config_of(group)))
    single = logits_of(model, make.TOKENS)
    whole, rest = logits_of(model.double(), make.TOKENS)
    noise = max(np.abs(single[0] - whole).max(), np.abs(single[1] - rest).max())
    assert 0 < noise < 1e-4 * np.abs(golden).max()
    np.testing.assert_allclose(whole, golden, rtol=0, atol=4 * noise)
    np.testing.assert_allclose(rest, golden[:, 9:], rtol=0, atol=4 * noise)


@pytest.mark.parametrize("how", ["torch", "portable", "fp32"])
@pytest.mark.parametrize("name", [BASE, GROUPS])
@pytest.mark.sampled(3)
def test_every_call_agrees_with_hugging_face(name: str, how: str) -> None:
    for scenario in parity.PLAIN_SCENARIOS:
        parity.assert_close(parity.subject(name), how, scenario, parity.PLAIN)


def test_slots_agree_with_hugging_face() -> None:
    parity.assert_close(parity.subject(BASE), "portable", "slots", parity.CONTINUOUS)


def test_later_layers_compute_only_tokens_whose_logits_are_needed() -> None:
    model = parity.subject(BASE).transformed
    recorded: list[int] = []
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda _, args: recorded.append(args[0].shape[1]))
    states = parity.subject(BASE).states
    sizes = {"batch_size": 2, "ctx_len": 20}
    past = [torch.zeros([sizes.get(size, size) for size in state.axes]) for state in states]
    decoder_tracing.Step(model, states)(
        torch.zeros(2, 9).long(), torch.arange(9).expand(2, 9), past
    )
    assert recorded == [9, 9, 9, 1, 1, 1, 1]
    for layer in model.model.layers:
        layer.mlp._forward_pre_hooks.clear()


def test_one_kernel_attends_in_every_layer() -> None:
    ways = parity.subject(BASE).lower("fp32").ways["attention"]
    assert ways == {"native:rotary": 3, "native:read": 4}


def test_a_group_keeps_its_keys_and_values_once() -> None:
    layers = {state.layer for state in parity.subject(GROUPS).states}
    assert layers == {0, 1, 2, 3, 5}


def test_layers_are_folded() -> None:
    """Two kinds, of which the deep graph has four layers traced; the boundary between them has two readers."""
    graph = parity.subject(BASE).graph()
    calls = [node.op_type for node in graph.graph if node.domain == "qeff_zoo.layers"]
    assert calls == ["Layer0"] * 3 + ["Layer1"] * 4
    (boundary,) = (
        value
        for node in graph.graph
        for value in node.outputs
        if node.name == "model.layers.2" and not value.is_graph_output()
    )
    assert {user.op_type for user in boundary.consumers()} == {"RMSNorm", "GatherElements"}


def test_projections_that_training_left_are_not_read(tmp_path: Path) -> None:
    checkpoint = parity.subject(BASE).checkpoint
    folder = Path(checkpoint.located["checkpoint"])
    tensors = load_file(folder / "model.safetensors")
    left = {
        name.removesuffix("_swiftkv.weight") + ".weight": torch.zeros_like(weight)
        for name, weight in tensors.items()
        if name.endswith("_swiftkv.weight") and "self_attn" in name
    }
    assert len(left) == 12
    save_file({**tensors, **left}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    opened = open_checkpoint(str(tmp_path))
    bound = bind(loader.build_meta(opened.config, "text-generation"), opened.tensors)
    assert bound.unused == ()
    assert not left.keys() & set(map(str, bound.expressions.values()))
    model = load_model({"checkpoint": str(tmp_path)}, "text-generation", None)
    ids = torch.from_numpy(parity.tokens())
    with torch.no_grad():
        assert torch.equal(model(ids).logits, parity.subject(BASE).hf(ids).logits)


@pytest.mark.parametrize(
    "changes",
    [
        {"swiftkv": False},
        {"num_key_value_layers": 0},
        {"num_key_value_layers": 9},
        {"key_value_group_size": 3},
    ],
)
def test_other_model_than_swiftkv_is_refused(changes: dict[str, Any]) -> None:
    config = {**parity.all_cases()[BASE].config, **changes}
    with pytest.raises(CheckpointError, match=r"does not accept this config .*'llama_swiftkv'"):
        loader.load_meta(config, find_recipe("llama_swiftkv"))
