# SPDX-License-Identifier: Apache-2.0
"""torch -> ONNX IR: trace transformers' code without weights and return the portable graph with folded layers."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any
from unittest import mock

import onnx_ir as ir
import torch
from onnx_ir.passes import common as onnx_passes
from onnxscript.optimizer import _constant_folding
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.onnx._internal.exporter import _fx_passes
from torch.utils._pytree import tree_map_only

from qeff_zoo import contract
from qeff_zoo.checkpoint.adapters import Slots
from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export.transforms import lora, window_cache
from qeff_zoo.export.uncomputed import uncomputed
from qeff_zoo.graph.external_data import is_placeholder, placeholder
from qeff_zoo.graph.passes import bfloat16, bodies, linear, rotary
from qeff_zoo.graph.semantic.domains import OPSET
from qeff_zoo.graph.states import mark, mark_layer
from qeff_zoo.recipe import Recipe
from qeff_zoo.weights.kv_heads import widened

from . import folding, functional, layers, loader, promotion, translations


def export_graph(
    config: Mapping[str, Any], recipe: Recipe, role: str | None = None, **variant: Any
) -> ir.Model:
    """Trace a model, or one that is part of it, from its config alone.

    Args:
        config: Raw config.json.
        recipe: Recipe of its `model_type`.
        role: Role of the part; None for the main one.
        **variant: Arguments of the task's `tracing`, e.g. `continuous_batching`; `rope_factors` and `untied`, see
            `load_meta`; `kv_heads`, see `qeff_zoo.weights.kv_heads`; `whole_windows`, see `window_cache.keep_whole`;
            `max_loras` and other arguments of `adapters.Slots`.

    Returns:
        The portable graph: ONNX and functions of the domains `qeff_zoo` and `qeff_zoo.layers`; initializers
        without data, named as in `model.state_dict()`.

    Raises:
        ExportError: The graph contradicts the recipe.
    """
    task = contract.find(recipe.task)
    part = task.parts.get(role, task) if role else task
    graph = _attempt(config, recipe, part, everything=False, **variant)
    if graph is None:  # two layers of a kind do not prove the rest: trace them all
        graph = _attempt(config, recipe, part, everything=True, **variant)
    assert graph is not None
    return graph


def _attempt(
    config: Mapping[str, Any],
    recipe: Recipe,
    part: contract.Part,
    *,
    everything: bool,
    rope_factors: str | None = None,
    untied: Collection[str] = (),
    kv_heads: int | None = None,
    whole_windows: bool = False,
    **variant: Any,
) -> ir.Model | None:
    slots = Slots.of_variant(variant)
    with _quiet():
        model = loader.load_meta(
            widened(config, kv_heads), recipe, rope_factors=rope_factors, untied=untied
        )
        if whole_windows:
            window_cache.keep_whole(model)
        repeated, uses = None, list[int]()
        if part.probe or part.half:
            half = part.half(model) if part.half else None
            alone = part.probe and partial(part.probe, model)
            run = alone or partial(run_once, part.tracing(model, **variant))
            repeated, uses = layers.reduce(model, run, half=half, everything=everything)
        tracing = part.tracing(model, **variant)
        if slots is not None:
            tracing = lora.apply(tracing, model, repeated, slots)
        graph = _trace(tracing, _stored_names(model, tracing.module))
    if uses:  # a layer computed with its index
        return None
    if repeated is not None and not folding.fold(graph, repeated):
        return None
    if tracing.then:
        tracing.then(graph)
    return _finish(graph)


def run_once(tracing: Tracing) -> Any:
    """Run a module like the later trace, without any computation.

    Args:
        tracing: Module and example inputs.
    """
    # Values are symbols.
    with uncomputed(shape_env=ShapeEnv(), static_shapes=True) as mode:
        given = tree_map_only(torch.Tensor, mode.from_tensor, tracing.inputs)
        return tracing.module(**given)


def _stored_names(model: Any, traced: Any) -> dict[str, str]:
    """Return the names of stored tensors in the model's state_dict, by those in the traced module.

    A wrapper may hold a module of the model under its own name.

    Raises:
        ExportError: The module has a parameter that the model lacks, so that its value is unknown.
    """
    kept = model.state_dict(keep_vars=True)
    first = {id(value): name for name, value in reversed(kept.items())}
    names = {}
    for name, value in traced.state_dict(keep_vars=True).items():
        same = name.removeprefix("model.")
        if same in kept or id(value) in first:
            names[name] = same if same in kept else first[id(value)]
        elif isinstance(value, torch.nn.Parameter):
            raise ExportError(
                f"The parameter {name!r} of what is traced is none of {type(model).__name__}: no checkpoint says its "
                "value. Expected parameters of the model's own modules; keep others as buffers that are not stored."
            )
    return names


def _trace(tracing: Tracing, stored: Mapping[str, str]) -> ir.Model:
    """Run torch.export and the ONNX exporter; name inputs, outputs, initializers and symbols.

    Args:
        tracing: Traced module, and the names.
        stored: Result of `_stored_names`; all other initializers keep their values in the graph.
    """

    def export() -> torch.export.ExportedProgram:
        program = torch.export.export(
            tracing.module,
            (),
            tracing.inputs,
            dynamic_shapes=tracing.dynamic_shapes,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=tracing.checked_later,
        )
        # Kept example inputs become a guard function that the decomposition step cannot handle.
        program._example_inputs = None
        return program

    with torch.no_grad(), _without_records():
        model = _translate(export, tracing)
    _mark_states(model.graph, tracing)
    _name_initializers(model.graph, stored)
    rotary.recognize(model)
    _name_symbols(model.graph, tracing)
    _drop_unread(model.graph, tracing)
    bfloat16.widen(model)
    linear.recognize(model)
    _constant_folding.FoldConstantsPass(
        shape_inference=False,
        input_size_limit=1024,
        output_size_limit=1024,
        should_fold=_reads_no_weight,
    )(model)
    onnx_passes.RemoveUnusedNodesPass()(model)
    return model


def _translate(export: Callable[[], torch.export.ExportedProgram], tracing: Tracing) -> ir.Model:
    """Run the ONNX exporter, without its decompositions if the graph needs none: they take half of the time."""

    def translate(program: torch.export.ExportedProgram) -> ir.Model:
        with promotion.as_traced():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                optimize=False,
                verbose=False,
                custom_translation_table=translations.table(),
                input_names=tracing.input_names,
                output_names=tracing.output_names,
            )
        assert exported is not None
        return exported.model

    program = export()
    if functional.simplify(program):
        undecomposed = mock.patch.object(
            _fx_passes, "decompose_with_registry", lambda program, _: program
        )
        try:
            with undecomposed:
                return translate(program)
        except torch.onnx.OnnxExporterError:  # an op that it supports only decomposed
            program = export()  # the failed attempt changed the first
    return translate(program)


def _mark_states(graph: ir.Graph, tracing: Tracing) -> None:
    """Mark the inputs of states, in place of the trace's metadata."""
    for value in [*graph.inputs, *graph.outputs, *graph.initializers.values()]:
        value.metadata_props.clear()
    inputs = {value.name: value for value in graph.inputs}
    for state in tracing.states:
        mark(inputs[state.name], state.kind, state.layer)
    for name, layer in tracing.layers.items():
        mark_layer(inputs[name], layer)


def _drop_unread(graph: ir.Graph, tracing: Tracing) -> None:
    """Drop unread inputs of layers, such as those of a module whose weight is used without a call of the module."""
    unread = [value for value in graph.inputs if value.name in tracing.layers and not value.uses()]
    for value in unread:
        graph.inputs.remove(value)


def _reads_no_weight(node: ir.Node) -> bool | None:
    return False if any(is_placeholder(value) for value in node.inputs) else None


def _name_initializers(graph: ir.Graph, stored: Mapping[str, str]) -> None:
    """Name initializers as in the checkpoint's model, without the wrapper's prefix, and drop values of stored tensors.

    Empty matrices, such as those of no shared experts, keep their value, since no file has one. So do integers that a
    model computes itself, such as an index of relative positions: a checkpoint only repeats them.
    """
    initializers = dict(graph.initializers)
    graph.initializers.clear()
    for traced, value in initializers.items():
        value.name = name = stored.get(traced, traced.removeprefix("model."))
        known = value.const_value
        if traced in stored and known is not None:
            is_created = 0 in known.shape or not known.dtype.is_floating_point()
            value.const_value = (
                ir.tensor(known.numpy(), name=name)
                if is_created
                else placeholder(name, known.dtype, known.shape)
            )
        graph.initializers[name] = value


def _name_symbols(graph: ir.Graph, tracing: Tracing) -> None:
    """Give the traced symbols the task's names, and drop shapes of inner values, which still use the old ones."""
    dims = torch.utils._pytree.tree_leaves(
        tracing.dynamic_shapes,
        is_leaf=lambda item: isinstance(item, dict) and all(isinstance(k, int) for k in item),
    )
    names = {
        str(_shape(value)[axis]): dim.__name__
        for value, axes in zip(graph.inputs, dims, strict=True)
        for axis, dim in axes.items()
    }
    outer = [*graph.inputs, *graph.outputs]
    for node in graph:
        for value in node.outputs:
            if value not in outer:
                value.shape = None
    for value in outer:
        value.shape = ir.Shape([names.get(str(dim), dim) for dim in _shape(value)])


def _shape(value: ir.Value) -> ir.Shape:
    assert value.shape is not None, f"The exporter gave {value.name!r} no shape."
    return value.shape


def _finish(model: ir.Model) -> ir.Model:
    """Attach the bodies of the semantic ops, and drop metadata of the trace."""
    bodies.attach(model)
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    for node in [*model.graph.all_nodes(), *inner]:
        node.metadata_props.clear()
    model.producer_name, model.producer_version = "qeff-zoo", None
    model.graph.name = "main"
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    return model


@contextlib.contextmanager
def _without_records() -> Iterator[None]:
    """Trace without PyTorch's stack traces, code of intermediate modules and cache of shapes: a third of the time.

    Nor does it work out the memory format of each tensor, which no graph has: up to a twentieth.
    """
    from torch._dynamo import config

    formatless = partial(_extract_tensor_metadata, include_contiguity=False)
    with (
        config.patch(fake_tensor_cache_enabled=False),
        mock.patch.object(proxy_tensor, "_extract_tensor_metadata", formatless),
        mock.patch.object(torch.fx.config, "do_not_emit_stack_traces", True),
        _use_lazy_graph_module(True),
    ):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress and advice of exporters and models, but not their errors."""
    names = ("torch.onnx", "torch.export", "onnxscript", "transformers")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
