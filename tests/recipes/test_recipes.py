# SPDX-License-Identifier: Apache-2.0
"""Every recipe, every tiny config: well-formed, transforms apply, and all ways to compute it agree.

A new recipe is tested the moment its file exists; nothing is listed here.
"""

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import diffusers
import numpy as np
import onnx_ir as ir
import parity
import pytest
import selection
import torch
import transformers
from fixtures_recipes import LATENT, grouped
from huggingface_hub.errors import StrictDataclassError
from parity import CROSSED, STATES, Case, Steps, Subject
from transformers import CONFIG_MAPPING

from qeff_zoo import registry
from qeff_zoo.checkpoint import expressions
from qeff_zoo.contract import NAMES, find
from qeff_zoo.errors import ExportError
from qeff_zoo.export import architectures, layers, loader
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.export.transforms import apply
from qeff_zoo.export.transforms.modules import language_model
from qeff_zoo.export.transforms.recurrence import kernels_of
from qeff_zoo.graph.numerics import WEIGHTS
from qeff_zoo.graph.passes import experts as experts_pass
from qeff_zoo.graph.states import StateKind, states_of
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.recipe import VIDEO_SHAPES, AudioShape, Recipe, Shape, Transform
from qeff_zoo.registry import find_recipe, list_model_types
from qeff_zoo.targets.base import Lowered
from qeff_zoo.validation.judgement.parity import relative_errors
from qeff_zoo.validation.reference.damage import SWAPPED, damaged
from qeff_zoo.validation.reference.media import of_tokens

RECIPES = [pytest.param(name, id=name) for name in list_model_types()]
RECIPE_FOLDER = Path(inspect.getfile(registry)).parent.parent / "recipes"


CASES = grouped(parity.names_of())
DECODERS = grouped(parity.names_of("text-generation"))


def traced() -> list[str]:
    """Name the decoders whose graphs are compared: see `parity.is_traced`; the others are compared in PyTorch alone."""
    return parity.names_of("text-generation") if parity.EVERY else CROSSED


@cache
def meta_of(name: str) -> Any:
    case = parity.all_cases()[name]
    return loader.build_meta(case.config, case.recipe.task)


def config_of(name: str) -> Any:
    """Return a tiny's configuration; where layers have sizes of their own, those of the others are read."""
    config = meta_of(name).config.get_text_config()
    config.allow_global_per_layer_attribute_access = True
    return config


# --- well-formed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_well_formed(name: str) -> None:
    recipe = find_recipe(name)
    assert registry.file_name(recipe.model_type) == name
    assert recipe.task in NAMES
    assert recipe.architectures
    if recipe.pipeline:
        classes = [recipe.model_type, *recipe.pipeline.components.values()]
        assert all(
            hasattr(diffusers, class_) or hasattr(transformers, class_) for class_ in classes
        )
    else:
        architectures.register(recipe.model_type)
        assert recipe.model_type in CONFIG_MAPPING
        # Others may be names of remote code.
        ours = sys.modules[CONFIG_MAPPING[recipe.model_type].__module__]
        first = recipe.architectures[0]
        assert hasattr(transformers, first) or hasattr(ours, first)
    assert recipe.special.endswith(".")
    for target, flags in recipe.compile_flags.items():
        assert all(target in OPTIONS[flag].targets for flag in flags)
    assert len({tiny.name for tiny in recipe.tiny}) == len(recipe.tiny) >= 1
    assert recipe.rev >= 1


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_file_is_short_and_names_its_checkpoints(name: str) -> None:
    source = source_of(name)
    lines = source.splitlines()
    assert len(lines) - len(lines_for_tiny_configs(source)) <= 40
    assert lines[0] == "# SPDX-License-Identifier: Apache-2.0"
    assert lines[1].startswith('"""')
    recipe = find_recipe(name)
    architectures.register(recipe.model_type)
    kind = getattr(diffusers, name) if recipe.pipeline else CONFIG_MAPPING[recipe.model_type]
    module = kind.__module__
    assert module.rpartition(".")[0] in "\n".join(lines[:8])


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_imports_no_tiny_config_of_another(name: str) -> None:
    """Shared parts of tiny configurations are those of `recipes/_tiny_parts.py`; a recipe's own are `RECIPE.tiny`."""
    for node in ast.walk(ast.parse(source_of(name))):
        if not isinstance(node, ast.ImportFrom) or node.level == 0 or node.module == "_tiny_parts":
            continue
        other = source_of(str(node.module))
        declared = [
            part
            for part in ast.parse(other).body
            if part.lineno not in lines_for_tiny_configs(other)
        ]
        names = set().union(*map(names_defined, declared))
        assert {alias.name for alias in node.names} <= names, ast.unparse(node)


def source_of(name: str) -> str:
    """Return the text of a recipe."""
    return (RECIPE_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def lines_for_tiny_configs(source: str) -> set[int]:
    """Return the lines of a recipe for its tests alone: the argument `tiny`, and definitions that only it uses."""
    tree = ast.parse(source)
    (recipe,) = (node for node in tree.body if "RECIPE" in names_defined(node))
    tiny = [
        node for node in ast.walk(recipe) if isinstance(node, ast.keyword) and node.arg == "tiny"
    ]
    rest = [node for node in tree.body if names_defined(node) and node is not recipe]
    declared = names_in(recipe, apart_from=tiny)
    while more := [node for node in rest if names_defined(node) & declared]:
        rest = [node for node in rest if node not in more]
        declared = declared.union(*map(names_in, more))
    spans = [range(node.lineno, node.end_lineno + 1) for node in (*tiny, *rest)]
    return set().union(*spans)


def names_defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement defines or changes; imports define none here."""
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.AugAssign):
        return names_in(node.target)
    return set().union(*map(names_in, getattr(node, "targets", ())))


def names_in(node: ast.AST, apart_from: Sequence[ast.AST] = ()) -> set[str]:
    """Return the names in a part of a module, apart from those in parts of it."""
    skipped = {inner for part in apart_from for inner in ast.walk(part)}
    return {
        inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and inner not in skipped
    }


def test_lines_for_tiny_configs_do_not_count() -> None:
    source = """\
_SHARED = 1
_ONLY_TINY = 2
_DERIVED = {
    "value": _ONLY_TINY,
}
RECIPE = Recipe(
    rev=_SHARED,
    tiny=(
        Tiny(config=_DERIVED | {"other": _SHARED}),
    ),
)
"""
    assert lines_for_tiny_configs(source) == {2, 3, 4, 5, 8, 9, 10}


@pytest.mark.parametrize("name", RECIPES)
def test_shapes_fit_the_task(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.shapes == VIDEO_SHAPES or {"latency", "throughput"} <= set(recipe.shapes)
    for shape in recipe.shapes.values():
        check_shape(recipe, shape)
        named = find(recipe.task).specializations(shape)
        assert len({entry["name"] for entry in named}) == len(named) >= 1


def check_shape(recipe: Recipe, shape: Shape) -> None:
    assert shape.batch_size >= 1
    if recipe.task in ("feature-extraction", "text-to-speech"):
        assert shape.seq_lens == tuple(sorted(set(shape.seq_lens)))
        assert shape.seq_lens[0] >= 1
        assert (shape.prefill_seq_len, shape.ctx_len, shape.full_batch_size) == (0, 0, None)
    elif recipe.task == "automatic-speech-recognition":
        assert shape.seq_lens == tuple(sorted(set(shape.seq_lens)))
        assert (shape.prefill_seq_len, shape.ctx_len, shape.full_batch_size) == (0, 0, None)
    elif find(recipe.task).role in ("vision", "vae_decoder"):
        assert shape == Shape(batch_size=shape.batch_size)
    else:
        assert 1 <= shape.prefill_seq_len <= shape.ctx_len
        apart = (
            recipe.task == "text2text-generation"
            or isinstance(shape, AudioShape)
            or recipe.image_prompt
        )
        assert (shape.seq_lens != ()) == bool(apart)  # of what is read before an answer is written
        assert shape.full_batch_size is None or shape.full_batch_size > 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_tiny_has_every_kind_of_layer_twice(name: str) -> None:
    case = parity.all_cases()[name]
    model = loader.load_meta(case.config, case.recipe)
    config = model.config.get_text_config()
    if not hasattr(config, "num_hidden_layers"):  # a table of vectors alone
        owners = [module for module in model.modules() if [*module.parameters(recurse=False)]]
        assert [type(owner) for owner in owners] == [torch.nn.Embedding]
        return
    found = layers.find(language_model(model), config.num_hidden_layers)
    if found is None:  # layers that share their weights
        assert model.config.num_hidden_layers >= 4
        deeper = loader.build_meta({**case.config, "num_hidden_layers": 8}, case.recipe.task)
        assert deeper.num_parameters() == model.num_parameters()
        return
    settings = layers.signatures(config, found[1])
    assert len(settings) >= 4
    kinds = Counter(settings)
    all_differ = len(kinds) == len(settings)
    # A first or last layer may do more, or less, than all others.
    inner = [Counter(settings[1:]), Counter(settings[:-1])]
    assert all_differ or any(min(found.values()) >= 2 for found in (kinds, *inner))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_tiny_is_awkward(name: str) -> None:
    """A fact that is dropped must show: nothing is 1, equal or longer than the prompt by chance."""
    case = parity.all_cases()[name]
    config = config_of(name)
    known = config.to_dict()
    assert known.get("initializer_range", known.get("init_std", 0.1)) >= 0.1
    assert known.get("initializer_factor", 1) >= 1  # T5
    assert known["vocab_size"] > 250
    if known.get("num_key_value_heads") == getattr(config, "num_attention_heads", None) is not None:
        assert "kv_lora_rank" in known or not runs_with(case, num_key_value_heads=1)
    if known.get("head_dim"):
        heads = getattr(config, "num_attention_heads", None) or config.num_heads
        square = known["head_dim"] * heads == config.hidden_size
        assert not square or not runs_with(case, head_dim=known["head_dim"] + 8)
    for key in ("sliding_window", "attention_chunk_size"):
        if known.get(key):
            assert 1 < known[key] < parity.PROMPT / 2
    for key, value in case.tiny.config.items():
        if key.endswith(("softcapping", "multiplier", "scaling", "_scale")):
            assert value != 1.0


def runs_with(case: Case, **changes: Any) -> bool:
    """Return whether Hugging Face's model runs with a changed config, or text config, which keeps the change."""
    config = {**case.config, **changes}
    if text := case.config.get("text_config"):
        config = {**case.config, "text_config": {**text, **changes}}
    try:
        model = parity.hugging_face(config, case.recipe.task)
        parity.reference(model, parity.tokens(length=2))
    except (RuntimeError, StrictDataclassError):
        return False
    kept = model.config.get_text_config()
    return all(getattr(kept, name) == value for name, value in changes.items())


@pytest.mark.parametrize("name", RECIPES)
def test_some_tiny_has_a_window_if_the_model_can(name: str) -> None:
    recipe = find_recipe(name)
    if recipe.pipeline:  # with a configuration for each component
        return
    configs = [
        parity.parse({"model_type": recipe.model_type, **tiny.config}) for tiny in recipe.tiny
    ]
    if all(hasattr(config, "sliding_window") for config in configs):
        assert any(config.sliding_window for config in configs)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.sampled(8, kept=selection.first_tinies())
def test_tiny_has_fewer_kv_heads_than_heads_where_it_can(name: str) -> None:
    subject, recipe = parity.subject(name), parity.all_cases()[name].recipe
    config = config_of(name)
    layers_with_states = {state.layer for state in subject.states}
    assert 0 < len(layers_with_states) <= config.num_hidden_layers
    keys = [state.axes for state in subject.states if state.kind in ("growing", "window")]
    others = [other.name for other in parity.all_cases().values() if other.recipe == recipe]
    if keys and any("num_key_value_heads" in meta_of(other).config.to_dict() for other in others):
        assert int(keys[0][1]) < config.num_attention_heads


@pytest.mark.parametrize("name", grouped(["gptj-base"]))
def test_a_model_keeps_its_table_when_its_states_are_found(name: str) -> None:
    """Its attention moves the table to the device of the tokens, which is none while nothing is computed."""
    subject = parity.subject(name)
    model = loader.load_meta(subject.config, subject.recipe)
    tables = {path: table.clone() for path, table in model.named_buffers()}
    assert any(path.endswith("embed_positions") for path in tables)
    assert decoder_tracing.probe(model) == subject.states
    assert {path: torch.equal(table, tables[path]) for path, table in model.named_buffers()} == (
        dict.fromkeys(tables, True)
    )


# --- transforms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_transforms_touch_what_they_promise(name: str) -> None:
    case = parity.all_cases()[name]
    model = language_model(loader.build_meta(case.config, case.recipe.task))
    recipe = registry.recipe_for(case.config) if case.recipe.media else case.recipe
    for transform in recipe.transforms:
        apply(transform, model)  # raises for another count
    promised = [t for t in recipe.transforms if t.name == "rms_norm"]
    ends = tuple(t.parameters.get("suffix", "RMSNorm") for t in promised)
    ends = ends or ("RMSNorm", "T5LayerNorm")
    norms = [m for m in model.modules() if type(m).__name__.endswith(ends)]
    assert bool(promised) == bool(norms)
    assert all("forward" in vars(norm) for norm in norms)


class _Read:
    """A config that notes which of its fields are read."""

    def __init__(self, config: Any) -> None:
        self.config, self.fields = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.fields.add(name)
        return getattr(self.config, name)


@pytest.mark.parametrize("name", RECIPES)
def test_counts_read_fields_of_the_config_class(name: str) -> None:
    """transformers keeps every field of a config.json; a model ignores those that its class lacks."""
    recipe = find_recipe(name)
    for tiny in recipe.tiny if recipe.transforms else ():
        parsed = parity.parse({"model_type": recipe.model_type, **tiny.config})
        config = _Read(parsed.get_text_config())
        for transform in recipe.transforms:
            transform.count(config)
        kind = type(config.config)
        known = {*dir(kind), *kind.attribute_map}
        assert config.fields <= known, config.fields - known


@pytest.mark.parametrize("name", RECIPES)
def test_every_transform_has_a_tiny_that_needs_it(name: str) -> None:
    recipe = find_recipe(name)
    configs = [
        parity.parse({"model_type": recipe.model_type, **tiny.config})
        for tiny in (recipe.tiny if recipe.transforms else ())
    ]
    for transform in recipe.transforms:
        assert any(transform.count(config.get_text_config()) > 0 for config in configs)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_transform_of_another_count_is_an_error(off: int) -> None:
    case = parity.all_cases()["llama-base"]
    (promised,) = case.recipe.transforms
    wrong = Transform(name="rms_norm", count=lambda config: promised.count(config) + off)
    with pytest.raises(ExportError, match=rf"'rms_norm' changed 9 modules .* expected {9 + off}"):
        apply(wrong, loader.build_meta(case.config, case.recipe.task))


def test_an_unknown_transform_is_an_error() -> None:
    wrong = Transform(name="dbrx_expert", count=lambda config: 0)
    with pytest.raises(ExportError, match=r"'dbrx_expert' is unknown.* dbrx_experts.* Correct"):
        apply(wrong, SimpleNamespace(config=transformers.LlamaConfig()))


# --- text generation -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=grouped(traced()))
def decoder(request: pytest.FixtureRequest) -> Subject:
    return parity.subject(request.param)


def test_a_recipe_declares_whether_its_cache_grows(decoder: Subject) -> None:
    grows = any(state.grows for state in decoder.states)
    assert decoder.recipe.retains_context == grows


@pytest.mark.parametrize("scenario", parity.PLAIN_SCENARIOS)
@pytest.mark.parametrize("how", ["portable", "fp32"])
@pytest.mark.sampled(16)
def test_decoder_agrees_with_hugging_face(decoder: Subject, how: str, scenario: str) -> None:
    parity.assert_close(decoder, how, scenario, parity.PLAIN)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_damaged_heads_show(name: str) -> None:
    """Else nothing that `validate` compares proves anything."""
    model = parity.subject(name).hf
    reads, ids = of_tokens(model), torch.from_numpy(parity.tokens())
    with torch.no_grad():
        right = reads(input_ids=ids)[0]
        with damaged([model], SWAPPED) as words:
            wrong = reads(input_ids=ids)[0]
    assert words.startswith("heads 0 and")
    assert relative_errors(right[0].numpy(), wrong[0].numpy()).max() > 1e-3


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.sampled(8, kept=selection.first_tinies())
def test_what_is_traced_agrees_with_hugging_face(name: str) -> None:
    """In PyTorch: where this fails, a transform or a seam is wrong, not the trace."""
    parity.assert_close(parity.subject(name), "torch", "padded_batch", parity.PLAIN)


@pytest.mark.sampled(2)
def test_continuous_batching_agrees_with_hugging_face(decoder: Subject) -> None:
    parity.assert_close(decoder, "portable", "slots", parity.CONTINUOUS)


# --- kernels of production -----------------------------------------------------------------------

#: What the kernels are not made for. A size is never a reason, since sizes here suit them.
LEGITIMATE = {
    "portable:mask",  # ALiBi, chunks, indexers, masks that are learned
    "portable:cache",  # latents, states that are lent, repeated or shared
    "portable:sizes",  # keys wider than values
    "own_tokens:kind",  # gates that are no SiLU, inputs that are weighed before
}
NATIVE, ROTARY = "native", "native:rotary"


def test_kernels_of_production_are_taken(decoder: Subject) -> None:
    lowered = decoder.lower("int4")
    attention, experts = (lowered.ways.get(part, {}) for part in ("attention", "experts"))
    assert {way for way in (*attention, *experts) if not way.startswith(NATIVE)} <= LEGITIMATE
    model = decoder.graph()
    nodes = [node for part in (model.graph, *model.functions.values()) for node in part]
    assert (NATIVE in experts) == any(experts_pass.is_experts(node) for node in nodes)
    keys = any(state.kind in ("growing", "window") for state in decoder.states)
    assert attention or not (keys and has_a_seam(decoder))
    if NATIVE in attention and ROTARY not in attention:
        assert not rotates_heads(decoder)


def has_a_seam(decoder: Subject) -> bool:
    """Return whether transformers lets a model's attention be replaced; older code computes its own."""
    code = inspect.getsource(inspect.getmodule(type(decoder.hf)))  # type: ignore[arg-type]
    return "ALL_ATTENTION_FUNCTIONS" in code


def rotates_heads(decoder: Subject) -> bool:
    """Return whether the kernel would rotate heads: some layer that it computes has a rotary embedding, and no more."""
    config = decoder.hf.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    scaled = rope.get("rope_type") == "longrope"  # and by how much is not a matter of one position
    clipped = getattr(config, "clip_qkv", None)
    chunked = getattr(config, "attention_chunk_size", None)  # the other layers have no positions
    has = any("Rotary" in type(module).__name__ for module in decoder.hf.modules())
    return has and not (scaled or clipped or chunked or changed_behind(decoder))


def changed_behind(decoder: Subject) -> bool:
    """Return whether what attends is normalized or scaled last, behind the rotary embedding."""

    def made_by(value: ir.Value | None) -> str:
        node = value.producer() if value else None
        while node and node.op_type in ("Transpose", "Reshape", "Identity", "CastLike"):
            node = node.inputs[0].producer() if node.inputs[0] else None
        return node.op_type if node else ""

    model = decoder.graph()
    nodes = [node for part in (model.graph, *model.functions.values()) for node in part]
    queries = [node.inputs[0] for node in nodes if node.op_type.endswith("Attention")]
    return any(made_by(query) in ("RMSNorm", "Mul") for query in queries)


# --- features crossed ----------------------------------------------------------------------------
# What every recipe need not show: on these, one or more of every kind of state and of every transform.


def promised(case: Case) -> set[str]:
    """Return the transforms that change something of a tiny model."""
    config = parity.parse(case.config).get_text_config()
    return {transform.name for transform in case.recipe.transforms if transform.count(config)}


def test_some_crossed_recipe_has_each_transform() -> None:
    cases = parity.all_cases()
    elsewhere = (*parity.CROSSED_MEDIA, "llama_swiftkv-base")  # test_media_recipes, test_swiftkv
    traced = (*CROSSED, *parity.CROSSED_ENCODERS, *elsewhere)
    crossed = set().union(*(promised(cases[name]) for name in traced))
    every = {name: promised(case) for name, case in cases.items()}
    assert {name: left for name, found in every.items() if (left := found - crossed)} == {}


def test_some_crossed_recipe_has_each_recurrence() -> None:
    found = {
        name: {kernel for module in meta_of(name).modules() for kernel in kernels_of(module)}
        for name, case in parity.all_cases().items()
        if "recurrence" in promised(case)
    }
    crossed = set().union(*(kernels for name, kernels in found.items() if name in CROSSED))
    assert crossed
    assert {name: left for name, kernels in found.items() if (left := kernels - crossed)} == {}


#: Kinds of states of models that read text; `test_speech_seq2seq`, `test_qaic_runtime`, `test_qaic_whole` and
#: `test_qaic_sampler` have the others.
OTHERS = ("cross", "adapter", "features", "penalty")
OF_TEXT = [kind for kind in get_args(StateKind) if kind not in OTHERS]


@pytest.mark.parametrize("kind", OF_TEXT)
def test_some_crossed_recipe_has_each_kind_of_state(kind: StateKind) -> None:
    graph = parity.subject(STATES[kind]).graph().graph
    assert kind in {state.kind for state in states_of(graph.inputs)}


@pytest.mark.parametrize("scenario", parity.SCENARIOS)
@pytest.mark.parametrize("name", grouped(CROSSED))
@pytest.mark.sampled(5)
def test_pytorch_agrees_with_hugging_face_in_every_scenario(name: str, scenario: str) -> None:
    variant = parity.CONTINUOUS if scenario == "slots" else parity.PLAIN
    parity.assert_close(parity.subject(name), "torch", scenario, variant)


#: Heads that are not turned in the kernel; heads and experts that are not computed there at all.
AWKWARD = grouped(["llama-base", "cohere2-base", "qwen3_moe-base"])


@pytest.mark.parametrize("scenario", parity.PLAIN_SCENARIOS)
@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.sampled(3)
def test_sizes_that_kernels_refuse(name: str, scenario: str) -> None:
    parity.assert_close(parity.awkward(name), "fp32", scenario, parity.PLAIN)


@pytest.mark.parametrize("name", AWKWARD)
def test_quantized_sizes_that_kernels_refuse(name: str) -> None:
    subject = parity.awkward(name)
    ways = {way for part in subject.lower("int4").ways.values() for way in part}
    assert ways & {NATIVE, "portable:head_size", "own_tokens:sizes"}
    assert_is_of_rounded_weights(subject, "int4")


@pytest.mark.parametrize("scenario", ["chunked", "padded_batch", "decode", "slots"])
@pytest.mark.parametrize("name", LATENT)
@pytest.mark.sampled(2)
def test_latent_attention_retains_the_requested_states(name: str, scenario: str) -> None:
    """Latents by default; every head's keys and values where that is chosen."""
    subject = parity.subject(name)
    slots = parity.CONTINUOUS if scenario == "slots" else parity.PLAIN
    how = "portable" if scenario == "slots" else "fp32"
    parity.assert_close(subject, how, scenario, (*slots, *parity.EXPANDED))
    pairs = ("past_key.", "past_value.")
    heads = {
        expanded: {
            value.shape[1]
            for value in subject.graph(variant).graph.inputs
            if value.name.startswith(pairs)
        }
        for expanded, variant in ((False, slots), (True, (*slots, *parity.EXPANDED)))
    }
    assert heads == {False: {1}, True: {subject.hf.config.num_attention_heads}}


@pytest.mark.sampled(2)
def test_quantized_decoder_is_the_one_of_rounded_weights(decoder: Subject) -> None:
    assert_is_of_rounded_weights(decoder, "int4")


#: A plain matrix, a transposed one, one of a stack, rows of one: what is int8 elsewhere is what is int4, see below.
#: The kernel of whole stacks has no products of int8 with activations in float32.
@pytest.mark.parametrize(
    "name", grouped(["llama-base", "gpt2-base", "longcat_flash-base", "dbrx-base"])
)
def test_eight_bits_are_those_of_rounded_weights(name: str) -> None:
    assert_is_of_rounded_weights(parity.subject(name), "int8")


def assert_is_of_rounded_weights(decoder: Subject, storage: str) -> None:
    """With activations in float32, MatMulNBits is a product with the rounded weights, and no more."""
    ids, unrounded, _ = parity.expected_of(decoder)
    rounded = decoder.rounded(storage)
    expected = parity.reference(rounded, ids)
    noise = np.abs(expected - parity.reference(parity.in_float64(rounded), ids)).max()

    def start(**sizes: int) -> Steps:
        return decoder.steps(storage, **sizes)

    tolerance = parity.TOLERANCE[storage] * noise
    assert np.abs(expected - unrounded).max() > parity.DROPPED * tolerance
    for name in ("padded_batch", "decode"):
        assert parity.distance(parity.SCENARIOS[name], start, ids, expected) <= tolerance


@pytest.mark.parametrize("storage", ["int8", "int4", "w8a8"])
@pytest.mark.sampled(6)
def test_quantized_decoder_as_it_ships(decoder: Subject, storage: str) -> None:
    """As built, activations are rounded to int8: as near as can be to the same done to Hugging Face."""
    session = decoder.lowered(storage)
    found = parity.stray(lambda: parity.decoder_steps(session, parity.ROWS), decoder, storage)
    assert found <= parity.TOLERANCE["as shipped"]


@pytest.mark.sampled(3)
def test_int8_and_int4_differ_in_bits_alone(decoder: Subject) -> None:
    """The same values are stored rounded, and the same nodes read them."""
    lowered = {storage: decoder.lower(storage) for storage in ("int8", "int4")}
    stored, read = (
        {storage: describe(value) for storage, value in lowered.items()}
        for describe in (values_stored, nodes_called)
    )
    assert stored["int8"] == stored["int4"]
    assert read["int8"] == read["int4"]


def values_stored(lowered: Lowered) -> list[tuple[str, str, bool]]:
    return [(slot.name, str(slot.expression), not slot.format.is_float) for slot in lowered.slots]


def nodes_called(lowered: Lowered) -> list[tuple[str, list[str]]]:
    return [
        (node.op_type, [name for name in map(name_of, node.inputs) if name])
        for node in lowered.model.graph
    ]


def name_of(value: Any) -> str:
    """What an input is called; nothing for none and for zero points, which int4 alone has."""
    name = value.name if value else ""
    return "" if ".zero_points" in name else name


def is_vector(name: str, weights: Mapping[str, Any]) -> bool:
    return name.endswith("bias") or weights[name].dim() == 1


def test_every_matrix_is_quantized(decoder: Subject) -> None:
    """What multiplies or is looked up is int4; convolutions and what only joins a formula stay as they are."""
    slots = decoder.lower("int4").slots
    stored = {source: slot for slot in slots for source in expressions.sources_of(slot.expression)}
    used = parity.modules_called(decoder.hf)
    for name, module in used.items():
        if type(module).__name__ in parity.MATRICES:
            (source,) = expressions.sources_of(decoder.bindings[f"{name}.weight"])
            assert stored[source].format == parity.FORMATS["int4"]
    weights = decoder.hf.state_dict()
    for slot in slots:
        owner = used.get(slot.name.rpartition(".")[0])
        matrix = isinstance(owner, torch.nn.Linear | torch.nn.Embedding) or hasattr(
            owner, "_is_expert_parallel"
        )
        assert not slot.format.is_float or not matrix or is_vector(slot.name, weights)


# --- all ----------------------------------------------------------------------------------------


def test_all_recipes_have_cases() -> None:
    assert {case.recipe.model_type for case in parity.all_cases().values()} == {
        recipe.model_type for recipe in parity.of_text()
    }
    assert set(WEIGHTS) == {"fp32", "int8", "int4", "w8a8"}
