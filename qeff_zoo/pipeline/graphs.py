# SPDX-License-Identifier: Apache-2.0
"""Portable graphs with their bindings: traced once per architecture, then loaded from the store.

A cached graph needs neither torch nor transformers: the checkpoint tensors of each initializer are stored beside it.
"""

import json
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.draft_heads import PREFIX
from qeff_zoo.checkpoint.expressions import sources_of, substitute
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.pipeline_files import only
from qeff_zoo.checkpoint.sentence_transformers import modules
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.contract import for_task, part_of
from qeff_zoo.errors import CheckpointError, Translating
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.package import identity
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.recipe import Component
from qeff_zoo.runtime.garbage import uncollected
from qeff_zoo.store import Store
from qeff_zoo.weights.bound_graph import BoundGraph

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.merging import Change
    from qeff_zoo.weights import bindings

GRAPH = "graph.onnx"
_BINDINGS = "bindings.json"


def changes_of(plan: Plan, checkpoint: Checkpoint) -> "dict[str, Change]":
    """Return the changes by merged adapters, by names of the state_dict; the weights may be remote.

    Raises:
        AdapterError: An adapter does not fit the model.
    """
    if not checkpoint.merged:
        return {}
    from qeff_zoo.checkpoint.merging import changes
    from qeff_zoo.export import loader

    model = loader.build_meta(checkpoint.config, plan.programs[0].task)
    found = changes(checkpoint.merged, model)
    for one in checkpoint.merged:
        if one.adapter.repository != checkpoint.model_id:
            one.adapter.warn_of_another(checkpoint.model_id)
    return found


def obtain(
    plan: Plan,
    program: ProgramPlan,
    checkpoint: Checkpoint,
    store: Store,
    changes: "Mapping[str, Change] | None" = None,
    untied: Collection[str] = (),
) -> BoundGraph:
    """Load a program's graph from the store, or trace it and add it to the store.

    Args:
        plan: Plan of the package.
        program: A program of the plan.
        checkpoint: Fetched checkpoint, for names and shapes of its tensors.
        store: Store of graphs.
        changes: Changes of its weights by adapters; None for none.
        untied: Names of the model's state_dict that its config ties, but that have values of their own.

    Raises:
        ExportError: The model cannot be traced.
        CheckpointError: The checkpoint lacks tensors of the model, or has them in other shapes.
    """
    import onnx_ir as ir

    from qeff_zoo.weights.bindings import broken_ties

    if program.fused:
        parts = (*program.fused, replace(program, fused=()))
        return _joined(*(obtain(plan, one, checkpoint, store, changes) for one in parts))
    changes = changes or {}
    apart = sorted({*untied, *(name for name, change in changes.items() if change.untied)})
    if apart:
        program = replace(program, variant={**program.variant, "untied": apart})
    structure = identity.digest(
        {name: list(info.shape) for name, info in checkpoint.logical.items()},
        "qz-structure-halved-2" if _halved(checkpoint) else "qz-structure-2",
    )
    key = plan.graph_key(program, structure)
    folder = store.graph(key)
    cached = folder is not None
    if folder is None:
        with store.stage("graph") as staged:
            with uncollected():
                _trace_and_bind(staged, plan, program, checkpoint)
            folder = store.promote_graph(staged, key)
    kept = json.loads((folder / _BINDINGS).read_text(encoding="utf-8"))
    left_out, unused = (frozenset(kept.pop(name)) for name in ("left_out", "unused"))
    bound = _bound(kept, checkpoint, changes)
    if broken := broken_ties(bound, checkpoint):
        warnings.warn(
            f"{checkpoint.name!r} stores {', '.join(map(repr, broken))} with own values, although its config ties "
            "them to others. These values are used, as transformers uses them.",
            stacklevel=2,
        )
        return obtain(plan, program, checkpoint, store, changes, [*apart, *broken])
    return BoundGraph(
        model=ir.load(folder / GRAPH),
        bindings=bound.expressions,
        digest=f"sha256:{store.file_digest(folder / GRAPH)}",
        cached=cached,
        encoded=checkpoint.encoded,
        left_out=left_out,
        unused=unused,
    )


def _halved(checkpoint: Checkpoint) -> bool:
    return formats.halves_experts(checkpoint.quantization or {})


def _joined(vision: BoundGraph, language: BoundGraph) -> BoundGraph:
    from qeff_zoo.graph.passes import joining

    joining.join(vision.model, language.model)
    digest = identity.digest([vision.digest, language.digest], "qz-joined-1")
    return replace(
        language,
        bindings={**language.bindings, **vision.bindings},
        digest=f"sha256:{digest}",
        cached=vision.cached and language.cached,
        left_out=vision.left_out & language.left_out,
        unused=vision.unused & language.unused,
    )


def trace(
    folder: Path, plan: Plan, program: ProgramPlan, checkpoint: Checkpoint, name: str = GRAPH
) -> Any:
    """Trace a program's graph into a file of a folder; the config suffices.

    Returns:
        The `onnx_ir.Model`.
    """
    import onnx_ir as ir

    from qeff_zoo.export import exporter

    recipe = for_task(plan.recipe, program.task)
    role = program.role if plan.has_parts else None
    config = _config_of(program, checkpoint)
    model = exporter.export_graph(config, recipe, role, **program.variant)
    ir.save(model, folder / name)
    return model


def _config_of(program: ProgramPlan, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the configuration of the model that a program computes: of a pipeline, that of its component alone."""
    part = part_of(Component(role=program.role, task=program.task))
    return only(checkpoint.config, part.component)


def _trace_and_bind(folder: Path, plan: Plan, program: ProgramPlan, checkpoint: Checkpoint) -> None:
    from qeff_zoo.export import loader
    from qeff_zoo.graph.external_data import is_placeholder
    from qeff_zoo.weights import bindings, kv_heads
    from qeff_zoo.weights.pipeline_bindings import bind_components

    config, heads = _config_of(program, checkpoint), program.variant.get("kv_heads")
    untied = program.variant.get("untied", ())
    meta = loader.build_meta(config, program.task, untied)
    wide = heads and loader.build_meta(kv_heads.widened(config, heads), program.task)

    def bind(needed: Iterable[str]) -> bindings.Binding:
        if checkpoint.is_pipeline:
            return bind_components(meta, checkpoint.logical, needed)
        linear = checkpoint.encoded.keys()
        with Translating(partial(_with_code, checkpoint)):
            bound = bindings.bind(
                meta, checkpoint.logical, needed, linear, untied, halved=_halved(checkpoint)
            )
        return kv_heads.repeat(bound, meta, wide) if wide else bound

    bind(())  # shapes that disagree show before the trace
    model = trace(folder, plan, program, checkpoint)
    needed = [name for name, value in model.graph.initializers.items() if is_placeholder(value)]
    bound = bind(needed)
    behind = _bindings_of_modules(checkpoint, program)
    heads = _bindings_of_drafts(checkpoint, program, needed)
    behind |= {name: heads[name] for name in needed if name in heads}
    if lost := [one for one in needed if one not in bound.expressions and one not in behind]:
        raise CheckpointError(
            f"What drafts for {checkpoint.name!r} has no tensors for {', '.join(map(repr, lost[:4]))}. Expected those "
            "of its config's model_type. Get its files again, from one revision."
        )
    shapes = {name: tuple(model.graph.initializers[name].shape) for name in behind}
    if problems := bindings.problems_of(
        behind, shapes, {**checkpoint.logical, **checkpoint.tensors}
    ):
        raise CheckpointError(
            f"{checkpoint.name!r} has dense layers or heads that differ from their configs: {' '.join(problems)} "
            "Expected the shapes that the configs name. Get the files again, from one revision."
        )
    content = {
        "expressions": {**bound.expressions, **behind},
        "shapes": {**bound.shapes, **shapes},
        "doubled": bound.doubled,
        **_left_out(bound, behind, checkpoint),
    }
    (folder / _BINDINGS).write_text(json.dumps(content), encoding="utf-8")


def _bindings_of_modules(checkpoint: Checkpoint, program: ProgramPlan) -> dict[str, Expression]:
    """Bind the weights of modules after an encoder."""
    if "modules" not in program.variant:
        return {}
    settings = {name: program.variant.get(name) for name in ("pooling", "normalize")}
    return {**modules.bindings_of(modules.read_steps(checkpoint.companions, **settings))}


def _with_code(checkpoint: Checkpoint, error: BaseException) -> CheckpointError | None:
    """Return the error of weights that do not fit, for a checkpoint with its own code; None for others."""
    if not (isinstance(error, CheckpointError) and checkpoint.needs_remote_code):
        return None
    return CheckpointError(
        f"{error}\n{checkpoint.name!r} has Python code of its own (`auto_map` in config.json), which is never run: its "
        f"weights are not those of transformers' {checkpoint.model_type!r}."
    )


def _left_out(
    bound: "bindings.Binding", behind: Mapping[str, Expression], checkpoint: Checkpoint
) -> dict[str, list[str]]:
    """Return the names of tensors that no initializer reads, and of those that the model has no place for."""
    made = (*bound.expressions.values(), *bound.doubled.values(), *behind.values())
    read = {name for expression in made for name in sources_of(expression)}
    names = checkpoint.logical.keys() - read
    return {
        "left_out": sorted(names - {*bound.ignored}),
        "unused": sorted(names & {*bound.unused}),
    }


def _bindings_of_drafts(
    checkpoint: Checkpoint, program: ProgramPlan, needed: Iterable[str]
) -> dict[str, Expression]:
    """Bind the weights of a draft program; a layer of the model's own as transformers binds a one-layer model."""
    heads = checkpoint.speculator
    if heads is None:
        return {}
    bound: dict[str, Expression] = dict(heads.bindings)
    inner = f"{PREFIX}inner."
    wanted = [name.removeprefix(inner) for name in needed if name.startswith(inner)]
    if not heads.layer or not wanted:
        return bound
    from qeff_zoo import registry
    from qeff_zoo.export import loader
    from qeff_zoo.weights import bindings

    logical = checkpoint.logical
    tensors = {
        name: replace(logical[tensor], name=name)
        for name, tensor in heads.layer.items()
        if tensor in logical  # scales of others are not
    }
    config = heads.settings["config"]
    model = loader.build_meta(config, registry.recipe_for(config).task)
    found = bindings.bind(model, tensors, wanted)
    named: dict[str, Expression] = {**heads.layer}
    expressions = found.expressions.items()
    return bound | {inner + name: substitute(value, named) for name, value in expressions}


def _bound(
    kept: dict[str, Any], checkpoint: Checkpoint, changes: "Mapping[str, Change]"
) -> "bindings.Binding":
    """Read the bindings of a graph, with the adapters' changes of the checkpoint's tensors."""
    from qeff_zoo.weights.bindings import Binding

    expressions, own = kept["expressions"], dict[str, Expression]()
    values = dict(checkpoint.values)
    if changes:
        from qeff_zoo.checkpoint.merging import values_of

        apart = {name: one for name, one in changes.items() if one.untied}
        shared = {name: one for name, one in changes.items() if not one.untied}
        values |= values_of(shared, expressions, checkpoint)
        for name in apart.keys() & expressions.keys():
            changed = values_of({name: apart[name]}, expressions, checkpoint)
            own[name] = substitute(expressions[name], {**checkpoint.values, **changed})
    for group in ("expressions", "doubled") if values else ():
        kept[group] = {name: substitute(value, values) for name, value in kept[group].items()}
    kept["expressions"] |= own
    return Binding(**kept, unused=())
