# SPDX-License-Identifier: Apache-2.0
"""The portable graph as a file: names, symbols, what is in it and what is not."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import parity
import pytest
import torch
from parity import CONTINUOUS, PLAIN, Subject, Variant
from transformers import AutoModelForCausalLM

from qeff_zoo import contract
from qeff_zoo.errors import CheckpointError, ExportError
from qeff_zoo.export import exporter, folding, loader
from qeff_zoo.graph import external_data
from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.graph.states import State, states_of
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(3)

EMBEDDING: Variant = (("pooling", "mean"), ("normalize", True))
#: One of each: subject, variant.
GRAPHS: Mapping[str, tuple[str, Variant]] = {
    "decoder": ("llama-base", PLAIN),
    "continuous batching": ("llama-base", CONTINUOUS),
    "tied": ("gemma2-base", PLAIN),
    "input-major": ("gpt2-base", PLAIN),
    "experts": ("mixtral-base", PLAIN),
    "encoder": ("bert-base", EMBEDDING),
}
EVERY = [
    pytest.param(name, id=name, marks=pytest.mark.together(GRAPHS[name][0])) for name in GRAPHS
]


def graph_of(name: str) -> tuple[Subject, ir.Model]:
    subject = parity.subject(GRAPHS[name][0])
    return subject, subject.graph(GRAPHS[name][1])


def described(values: Any) -> dict[str, tuple[str, list[Any]]]:
    return {
        value.name: (value.dtype.name, [d if isinstance(d, int) else str(d) for d in value.shape])
        for value in values
    }


# --- the contract --------------------------------------------------------------------------------


@pytest.mark.together("llama-base")
@pytest.mark.parametrize("name", ["decoder", "continuous batching"])
def test_inputs_and_outputs_of_a_decoder(name: str) -> None:
    subject, graph = graph_of(name)
    slots = "full_batch_size" if name == "continuous batching" else "batch_size"
    state = ("FLOAT", [slots, 2, "ctx_len", 48])
    states = [f"past_{part}.{layer}" for layer in range(4) for part in ("key", "value")]
    index = {"batch_index": ("INT64", ["batch_size", 1])} if slots == "full_batch_size" else {}
    tokens = ("INT64", ["batch_size", "seq_len"])
    assert described(graph.graph.inputs) == {
        "input_ids": tokens,
        "position_ids": tokens,
        **index,
        **dict.fromkeys(states, state),
    }
    vocab = subject.config["vocab_size"]
    assert described(graph.graph.outputs) == {
        "logits": ("FLOAT", ["batch_size", 1, vocab]),
        **{f"{name}_RetainedState": state for name in states},
    }
    in_order = [value.name for value in graph.graph.inputs if value.name in states]
    assert in_order == states
    assert [value.name for value in graph.graph.outputs][1:] == [
        f"{name}_RetainedState" for name in states
    ]


@pytest.mark.together("bert-base")
def test_inputs_and_outputs_of_an_encoder() -> None:
    subject, graph = graph_of("encoder")
    tokens = ("INT64", ["batch_size", "seq_len"])
    assert described(graph.graph.inputs) == {"input_ids": tokens, "attention_mask": tokens}
    width = subject.config["hidden_size"]
    assert described(graph.graph.outputs) == {"output": ("FLOAT", ["batch_size", width])}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.sampled(3)
def test_initializers_are_the_models_state_dict(name: str) -> None:
    subject, graph = graph_of(name)
    stored = subject.hf.state_dict()
    weights = {
        name: value
        for name, value in graph.graph.initializers.items()
        if external_data.is_placeholder(value)
    }
    for name_, value in weights.items():
        assert tuple(value.shape) == tuple(stored[name_].shape)
        assert value.dtype == ir.DataType.FLOAT
    # What is missing is tied to what is there, or not used (the pooler of a sentence encoder).
    present = {stored[name_].data_ptr() for name_ in weights}
    missing = {name_ for name_, value in stored.items() if value.data_ptr() not in present}
    assert all(name_.startswith("pooler.") for name_ in missing)


@pytest.mark.parametrize("name", EVERY)
def test_values_of_the_graphs_own_are_small(name: str) -> None:
    """All that is not a placeholder travels in the graph file."""
    _, graph = graph_of(name)
    for value in graph.graph.initializers.values():
        if not external_data.is_placeholder(value):
            assert value.const_value is not None
            assert value.const_value.nbytes <= 4096


@pytest.mark.parametrize("name", EVERY)
def test_graph_passes_the_checker_and_loads_in_silence(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    subject, graph = graph_of(name)
    path = subject.save_with_weights(graph, tmp_path / "graph.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    onnx.checker.check_model(onnx.load(path), full_check=True, check_custom_domain=False)
    capfd.readouterr()
    onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", EVERY)
def test_graph_has_three_domains_and_no_needless_fields(name: str) -> None:
    _, graph = graph_of(name)
    assert graph.opset_imports == {"": 18, SEMANTIC: 1, folding.DOMAIN: 1}
    assert {function.domain for function in graph.functions.values()} <= set(graph.opset_imports)
    called = {node.op_identifier() for node in nodes_of(graph) if node.domain}
    assert called == set(graph.functions)
    assert (graph.producer_name, graph.graph.name) == ("qeff-zoo", "main")
    text = ir.to_proto(graph).SerializeToString()
    for trace in (b"site-packages", b".py", b"torch", b"namespace"):
        assert trace not in text


def nodes_of(graph: ir.Model) -> list[ir.Node]:
    inner = [node for function in graph.functions.values() for node in function.all_nodes()]
    return [*graph.graph.all_nodes(), *inner]


@pytest.mark.together("llama-base")
def test_states_are_marked_in_the_file() -> None:
    """Also those of layers that were not traced."""
    states = states_of(graph_of("decoder")[1].graph.inputs)
    axes = ("batch_size", 2, "ctx_len", 48)
    assert states == [
        State(name=f"past_{part}.{layer}", kind="growing", layer=layer, axes=axes)
        for layer in range(4)
        for part in ("key", "value")
    ]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("jamba-base", {"growing", "recurrent"}),
        ("gemma3_text-base", {"growing", "window"}),
        ("deepseek_v32-base", {"growing", "index"}),
    ],
)
def test_a_state_is_of_a_kind(name: str, kinds: set[str]) -> None:
    states = parity.subject(name).states
    assert {state.kind for state in states} == kinds
    for state in states:
        assert state.grows == (state.kind in ("growing", "index"))
        assert (state.kind == "recurrent") == (not state.name.startswith("past_"))


@pytest.mark.together("gemma2-base")
def test_a_tied_weight_is_one_initializer() -> None:
    subject, graph = graph_of("tied")
    assert subject.config["tie_word_embeddings"]
    tied = ("model.embed_tokens.weight", "lm_head.weight")
    embeddings = [name for name in tied if name in graph.graph.initializers]
    assert embeddings
    assert {str(subject.bindings[name]) for name in embeddings} == {"model.embed_tokens.weight"}


# --- tracing -------------------------------------------------------------------------------------


def test_export_is_repeatable_silent_and_leaves_the_config(
    capfd: pytest.CaptureFixture[str],
) -> None:
    llama = parity.all_cases()["llama-base"]
    config = {**llama.config, "num_hidden_layers": 2}
    before = json.dumps(config)
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    capfd.readouterr()
    graphs = [exporter.export_graph(config, llama.recipe) for _ in range(2)]
    assert capfd.readouterr() == ("", "")
    assert json.dumps(config) == before
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, grad)
    first, second = (ir.to_proto(graph).SerializeToString() for graph in graphs)
    assert first == second


def test_one_layer_and_one_token_of_width() -> None:
    """The smallest model there is: one layer of one head."""
    llama = parity.all_cases()["llama-base"]
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    subject = Subject({**llama.config, **sizes}, llama.recipe)
    ids = parity.tokens()
    away = parity.distance(
        parity.decode,
        lambda **sizes: subject.steps("portable", **sizes),
        ids,
        parity.reference(subject.hf, ids),
    )
    assert away <= parity.TOLERANCE["portable"] * parity.noise(subject, ids)


def test_a_config_that_transformers_refuses() -> None:
    llama = find_recipe("llama")
    config = {"model_type": "llama", **llama.tiny[0].config, "num_attention_heads": "four"}
    with pytest.raises(CheckpointError, match="does not accept this config of model_type 'llama'"):
        exporter.export_graph(config, llama)


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Any], Any]], ir.Model]:
    """Export the smallest Llama with one more module in what is traced, before the model itself."""
    task = contract.find("text-generation")
    llama = parity.all_cases()["llama-base"]

    def export(name: str, found: Callable[[Any], Any]) -> ir.Model:
        def tracing(model: Any, **variant: Any) -> contract.Tracing:
            made = task.tracing(model, **variant)
            made.module._modules = {name: found(model), **made.module._modules}
            return made

        monkeypatch.setattr(exporter.contract, "find", lambda _: replace(task, tracing=tracing))
        return exporter.export_graph(llama.config, llama.recipe)

    return export


def test_a_module_that_is_held_twice(wrapped: Callable[..., ir.Model]) -> None:
    """Its weights would have names that no checkpoint has, and values that nobody set."""
    plain = wrapped("nothing", lambda _: torch.nn.Identity())
    twice = wrapped("again", lambda model: model.model.norm)
    assert {*twice.graph.initializers} == {*plain.graph.initializers}
    weights = [twice.graph.initializers[name] for name in ("model.norm.weight", "lm_head.weight")]
    assert all(map(is_placeholder, weights))


def test_a_parameter_that_no_checkpoint_has_is_refused(wrapped: Callable[..., ir.Model]) -> None:
    with pytest.raises(ExportError, match=r"'extra\.weight' of what is traced is none of Llama"):
        wrapped("extra", lambda _: torch.nn.Linear(2, 2))


def test_a_buffer_without_a_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be traced as zeros, and no checkpoint holds it."""
    llama = parity.all_cases()["llama-base"]
    made = AutoModelForCausalLM.from_config

    def with_empty_buffer(*arguments: Any, **options: Any) -> Any:
        model = made(*arguments, **options)
        model.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", with_empty_buffer)
    with pytest.raises(ExportError, match=r"Buffers \['table'\] of LlamaForCausalLM have no value"):
        loader.load_meta(llama.config, llama.recipe)


def test_other_fields_of_a_checkpoint_are_left_out() -> None:
    llama = parity.all_cases()["llama-base"]
    config = {
        **llama.config,
        "auto_map": {"AutoModelForCausalLM": "evil.Evil"},
        "quantization_config": {"quant_method": "awq", "bits": 4},
    }
    model = loader.build_meta(config, llama.recipe.task)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert all(type(m).__module__.startswith(("torch", "transformers")) for m in model.modules())


def test_parameters_have_no_memory_and_buffers_are_real() -> None:
    for name in ("llama-base", "gpt2-base", "falcon-alibi", "mixtral-base", "bert-base"):
        case = parity.all_cases()[name]
        model = loader.load_meta(case.config, case.recipe)
        assert not model.training
        assert all(p.dtype == torch.float32 and not any(p.stride()) for p in model.parameters())
        assert all(not buffer.is_meta for buffer in model.buffers())


def test_buffers_that_transformers_initializes_have_their_values() -> None:
    recipe = find_recipe("gemma4")
    config = tiny_models.config_of(recipe, recipe.tiny[0])
    expected = parity.hugging_face(config, recipe.task).model.vision_tower
    tower = loader.build_meta(config, recipe.task).model.vision_tower
    assert torch.equal(tower.std_scale, torch.ones_like(tower.std_scale))
    assert expected.std_scale.shape == tower.std_scale.shape
    for name, buffer in tower.named_buffers():
        if not name.startswith("std_"):  # which `hugging_face` moves from where they start
            assert torch.equal(buffer, expected.get_buffer(name)), name


def test_hollow_keeps_shapes_and_ties_and_takes_no_memory() -> None:
    case = parity.all_cases()["gemma2-base"]
    model = loader.build_meta(case.config, case.recipe.task)
    assert all(parameter.is_meta for parameter in model.parameters())
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    loader.hollow(model)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == shapes
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for parameter in model.parameters():
        assert not parameter.is_meta
        assert parameter.untyped_storage().nbytes() == 4


# --- size ----------------------------------------------------------------------------------------

_LARGE = """
import json, sys
from qeff_zoo.export import exporter
from qeff_zoo.registry import find_recipe
from qeff_zoo.graph import external_data
from qeff_zoo.graph.external_data import is_placeholder

config = {
    "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "vocab_size": 128256,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192},
}
graph = exporter.export_graph(config, find_recipe("llama"))
calls = [node.op_type for node in graph.graph if node.domain == "qeff_zoo.layers"]
weights = [v for v in graph.graph.initializers.values() if external_data.is_placeholder(v)]
elements = 0
for value in weights:
    count = 1
    for length in value.shape:
        count *= length
    elements += count
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"calls": len(calls), "functions": len(set(calls)), "weights": len(weights),
                  "elements": elements, "peak": int(peak.split()[1]) * 1024,
                  "inputs": [v.name for v in graph.graph.inputs]}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.full
def test_a_model_of_405_billion_parameters_is_traced_in_little_memory() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True, timeout=300
    )
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["calls"], found["functions"]) == (126, 1)
    assert found["weights"] == 126 * 9 + 3
    assert found["elements"] == 405_853_388_800
    assert found["peak"] < 1.5e9
    states = [f"past_{part}.{layer}" for layer in range(126) for part in ("key", "value")]
    assert [name for name in found["inputs"] if name.startswith("past_")] == states


def test_states_of_a_session_need_not_be_those_of_the_trace() -> None:
    """Sizes the tracer saw (2 rows, 6 tokens, 10 cache rows) are nothing special."""
    subject = parity.subject("llama-base")
    ids = parity.tokens()
    expected = parity.reference(subject.hf, ids)
    tolerance = parity.TOLERANCE["portable"] * parity.noise(subject, ids)
    for rows, seq, ctx in [(1, 1, 1), (2, 6, 10), (3, 7, 7), (1, 18, 64)]:
        steps = parity.session_steps(subject.portable(), rows, ctx)
        got = steps.step(ids[:rows, :seq], np.tile(np.arange(seq), (rows, 1)))
        assert np.abs(got - expected[:rows, seq - 1]).max() <= tolerance
