# SPDX-License-Identifier: Apache-2.0
"""Facts that are easily dropped: taken from Hugging Face's side here, each must show in the comparison.

A comparison that passes proves something only if it fails without the fact.
"""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx.printer
import onnx_ir as ir
import parity
import pytest
import torch
from derived_facts import are_compared, field_that_shows
from facts import FACTS, MUTATIONS
from fixtures_encoders import FACTS as ENCODERS
from fixtures_encoders import HEADS
from fixtures_speech import FACTS as SPEECH
from parity import Array, Steps, Subject
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qeff_zoo.export import exporter
from qeff_zoo.registry import find_recipe


@cache
def decoded(subject: Subject) -> Array:
    """Return logits from position 2 on, token by token, of the graph where it is traced: (rows, positions, vocab)."""
    ids, expected, _ = parity.expected_of(subject)
    how = "portable" if parity.is_traced(subject.recipe) else "torch"

    def start(**sizes: int) -> Steps:
        return subject.steps(how, **sizes)

    return np.stack([got for got, _ in parity.decode(start, ids, expected)], 1)


def assert_shows(subject: Subject, changed: Any) -> None:
    """Assert that what we compute is far from Hugging Face's changed model, and near the unchanged one."""
    ids, expected, noise = parity.expected_of(subject)
    got, tolerance = decoded(subject), parity.TOLERANCE["portable"] * noise
    assert np.abs(got - expected[:, 2:]).max() <= tolerance
    assert np.abs(got - parity.reference(changed, ids)[:, 2:]).max() > parity.DROPPED * tolerance


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(fact, marks=pytest.mark.together(FACTS[fact][0]))
        for fact in FACTS
        if parity.is_traced(parity.all_cases()[FACTS[fact][0]].recipe)  # a release asks for all
    ],
)
@pytest.mark.sampled(10)
def test_dropped_fact_shows(fact: str) -> None:
    name, change = FACTS[fact]
    subject = parity.subject(name)
    changed = parity.hugging_face({**subject.config, **change}, "text-generation")
    changed.load_state_dict(subject.hf.state_dict())
    assert_shows(subject, changed)


@pytest.mark.parametrize(
    "fact",
    [pytest.param(fact, marks=pytest.mark.together(MUTATIONS[fact][0])) for fact in MUTATIONS],
)
@pytest.mark.sampled(3)
def test_fact_dropped_from_the_model_shows(fact: str) -> None:
    name, change = MUTATIONS[fact]
    subject = parity.subject(name)
    changed = copy.deepcopy(subject.hf)
    change(changed)
    assert_shows(subject, changed)


def test_every_recipe_has_a_dropped_fact_or_is_declared_plain() -> None:
    cases = {**parity.all_cases(), **parity.more_cases()}
    dropped = (FACTS, MUTATIONS, ENCODERS, HEADS)
    covered = {cases[name].recipe.model_type for of in dropped for name, _ in of.values()}
    covered |= {name.rpartition("-")[0] for name, _ in SPEECH.values()}
    covered.add("llama_swiftkv")  # compared with the code of its authors in test_swiftkv.py
    tried = {recipe.model_type: recipe for recipe in are_compared()}
    plain = {name for name, recipe in tried.items() if recipe.special.startswith("Plain ")}
    assert sorted(covered & plain) == []
    rest = tried.keys() - covered - plain
    assert not [name for name in sorted(rest) if not field_that_shows(tried[name])], (
        "No field of these tiny configs shows in Hugging Face's result. Give one a value that is not the default, "
        "add a change of the model to MUTATIONS in tests/helpers/facts.py, or let `special` begin with 'Plain'."
    )


@pytest.mark.parametrize(
    ("model_type", "field"),
    [("starcoder2", "norm_epsilon"), ("cohere", "logit_scale"), ("llama", None), ("bert", None)],
)
def test_field_that_shows_is_found_without_a_table(model_type: str, field: str | None) -> None:
    """Llama's and BERT's are those of their plain relatives, and prove nothing."""
    assert field_that_shows(find_recipe(model_type)) == field


@pytest.mark.together("qwen3-base")
@pytest.mark.parametrize("norm", ["q_norm", "k_norm"])
def test_dropped_norm_of_heads_shows(norm: str) -> None:
    subject = parity.subject("qwen3-base")
    changed = copy.deepcopy(subject.hf)
    for layer in changed.model.layers:
        setattr(layer.self_attn, norm, torch.nn.Identity())
    assert_shows(subject, changed)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.together(name))
        for name in ("gpt_oss-base", "granite_swa-base", "flint-base")
    ],
)
def test_dropped_sinks_show(name: str) -> None:
    subject = parity.subject(name)
    changed = copy.deepcopy(subject.hf)
    for layer in changed.model.layers:
        layer.self_attn.sinks -= 100
    assert_shows(subject, changed)


@pytest.mark.together("qwen2-base")
def test_dropped_biases_show() -> None:
    subject = parity.subject("qwen2-base")
    changed = copy.deepcopy(subject.hf)
    for layer in changed.model.layers:
        layer.self_attn.v_proj.bias.zero_()
    assert_shows(subject, changed)


@pytest.mark.together("gemma2-base")
def test_dropped_offset_of_norms_shows() -> None:
    subject = parity.subject("gemma2-base")
    changed = copy.deepcopy(subject.hf)
    for layer in changed.model.layers:
        layer.post_attention_layernorm.weight -= 1
    assert_shows(subject, changed)


# --- RoPE scalings of Llama ----------------------------------------------------------------------

_HALF = 12  # of head_dim 24
_UNSCALED = {"rope_type": "default", "rope_theta": 1000.0}
_LONGROPE = {
    "rope_theta": 1000.0,
    "factor": 4.0,
    "short_factor": [1 + i / 10 for i in range(_HALF)],
    "long_factor": [2 + i / 10 for i in range(_HALF)],
}
ROPE: Mapping[str, Mapping[str, Any]] = {
    "default": {"rope_theta": 1000.0},
    "linear": {"rope_theta": 1000.0, "factor": 4.0},
    "dynamic": {"rope_theta": 1000.0, "factor": 4.0},
    "yarn": {"rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32},
    "longrope, context within the original": {**_LONGROPE, "original_max_position_embeddings": 64},
    "longrope, context beyond the original": {**_LONGROPE, "original_max_position_embeddings": 8},
}


@pytest.mark.parametrize("name", ROPE)
@pytest.mark.sampled(5)
def test_rope_scaling_is_exact(name: str) -> None:
    llama = parity.all_cases()["llama-base"]
    parameters = {"rope_type": name.partition(",")[0], **ROPE[name]}
    subject = Subject({**llama.config, "rope_parameters": parameters}, llama.recipe)
    plain = parity.hugging_face({**llama.config, "rope_parameters": _UNSCALED}, "text-generation")
    plain.load_state_dict(subject.hf.state_dict())
    if name in ("default", "dynamic"):  # which scales beyond the model's own positions only
        for scenario in ("chunked", "decode"):
            parity.assert_close(subject, "portable", scenario, parity.PLAIN)
    else:
        assert_shows(subject, plain)
        parity.assert_close(subject, "portable", "chunked", parity.PLAIN)


@pytest.mark.together("llama-base")
@pytest.mark.full
def test_config_of_older_checkpoints_gives_the_same_graph() -> None:
    """Llama 3 checkpoints say `rope_theta` and `rope_scaling` side by side."""
    subject = parity.subject("llama-base")
    scaling = dict(subject.config["rope_parameters"])
    older = {key: value for key, value in subject.config.items() if key != "rope_parameters"}
    older |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    graphs = [exporter.export_graph(config, subject.recipe) for config in (older, subject.config)]
    texts = [onnx.printer.to_text(ir.to_proto(graph)) for graph in graphs]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.together(name))
        for name in ("qwen3_moe-base", "deepseek_v3-base")
    ],
)
def test_dense_layers_and_experts_stay_in_their_order(name: str) -> None:
    subject = parity.subject(name)
    changed = copy.deepcopy(subject.hf)
    stack = changed.model.layers
    kinds = [any(hasattr(m, "_is_expert_parallel") for m in layer.modules()) for layer in stack]
    dense, sparse = kinds.index(False), kinds.index(True)
    for layer in (stack[dense], stack[sparse]):
        layer.self_attn.layer_idx = sparse + dense - layer.self_attn.layer_idx
    stack[dense], stack[sparse] = stack[sparse], stack[dense]
    assert_shows(subject, changed)


def test_every_kind_of_rope_is_compared() -> None:
    compared = {parameters_of(name)["rope_type"] for name in parity.names_of()}
    assert {*ROPE_INIT_FUNCTIONS} <= compared | {name.partition(",")[0] for name in ROPE}


def parameters_of(name: str) -> Mapping[str, Any]:
    parameters = parity.all_cases()[name].config.get("rope_parameters") or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return {"rope_type": "default", **(nested[-1] if nested else parameters)}


# --- forms of one architecture -------------------------------------------------------------------


def formed(**changes: Any) -> Subject:
    llama = parity.all_cases()["llama-base"]
    return Subject({**llama.config, **changes}, llama.recipe)


@pytest.mark.parametrize("groups", [1, 2, 4], ids=["multi-query", "grouped-query", "multi-head"])
@pytest.mark.sampled(2)
def test_heads_read_the_keys_of_their_group(groups: int) -> None:
    subject = parity.subject("llama-base") if groups == 2 else formed(num_key_value_heads=groups)
    changed = copy.deepcopy(subject.hf)
    for layer in changed.model.layers:
        projection = layer.self_attn.q_proj
        by_head = projection.weight.view(4, -1, projection.in_features)
        projection.weight = torch.nn.Parameter(by_head.flip(0).reshape_as(projection.weight))
    assert_shows(subject, changed)
    parity.assert_close(subject, "fp32", "padded_batch", parity.PLAIN)


def test_biases_and_a_tied_head() -> None:
    subject = formed(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    for part in ("self_attn.o_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj"):
        changed = copy.deepcopy(subject.hf)
        for layer in changed.model.layers:
            bias = layer.get_submodule(part).bias
            # A bias of all keys shifts a row's scores alike, and shows only where RoPE turns it.
            bias.copy_(bias.flip(0) if part.endswith("k_proj") else 0 * bias)
        assert_shows(subject, changed)
    changed = copy.deepcopy(subject.hf)
    changed.lm_head.weight = torch.nn.Parameter(changed.lm_head.weight.roll(1, 0))
    assert_shows(subject, changed)


@pytest.mark.together("llama-base")
def test_an_untied_head() -> None:
    subject = parity.subject("llama-base")
    changed = copy.deepcopy(subject.hf)
    changed.lm_head.weight = changed.model.embed_tokens.weight
    assert_shows(subject, changed)


@pytest.mark.parametrize("window", [5, parity.PROMPT, parity.PROMPT + 9])
@pytest.mark.parametrize("name", ["mistral-base", "gemma3_text-base"])
@pytest.mark.sampled(6)
def test_windows_of_any_length(name: str, window: int) -> None:
    """Shorter than the prompt, as long, and longer; in a cache of the context, and of the window alone."""
    case = parity.all_cases()[name]
    subject = Subject({**case.config, "sliding_window": window}, case.recipe)
    for scenario in ("chunked", "padded_batch", "decode"):
        parity.assert_close(subject, "fp32", scenario, parity.PLAIN)
    if window < parity.PROMPT:
        changed = parity.hugging_face({**subject.config, "sliding_window": 99}, "text-generation")
        changed.load_state_dict(subject.hf.state_dict())
        assert_shows(subject, changed)
