# SPDX-License-Identifier: Apache-2.0
"""Portable graphs with their bindings: traced once per architecture, then taken from the store.

A cached graph needs neither torch nor transformers: which checkpoint tensors make up each initializer is kept beside it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo import identity
from qeff_zoo.checkpoint import Checkpoint
from qeff_zoo.expressions import Expression
from qeff_zoo.plan import Plan
from qeff_zoo.store import Store

GRAPH = "graph.onnx"
_BINDINGS = "bindings.json"


@dataclass(frozen=True, kw_only=True)
class BoundGraph:
    """A portable graph and where its weights come from.

    Args:
        model: An `onnx_ir.Model`; initializers of a checkpoint have no data.
        bindings: For each of those, its value over checkpoint tensors.
        digest: "sha256:…" of the graph file.
        cached: Whether it came from the store.
    """

    model: Any
    bindings: Mapping[str, Expression]
    digest: str
    cached: bool


def obtain(plan: Plan, checkpoint: Checkpoint, store: Store) -> BoundGraph:
    """Take the plan's graph from the store, or trace it and put it there.

    Args:
        plan: Resolved.
        checkpoint: Fetched: its tensors' names and shapes are read.
        store: Where graphs are kept.

    Raises:
        ExportError: The model could not be traced.
        CheckpointError: The checkpoint lacks tensors of the model, or has them in other shapes.
    """
    structure = identity.digest({name: list(info.shape) for name, info in checkpoint.tensors.items()}, "qz-structure-1")
    key = plan.graph_key(structure)
    folder = store.graph(key)
    cached = folder is not None
    if folder is None:
        with store.stage("graph") as staged:
            _trace_into(staged, plan, checkpoint)
            folder = store.promote_graph(staged, key)
    return _read(folder, store, cached=cached)


def _trace_into(folder: Path, plan: Plan, checkpoint: Checkpoint) -> None:
    import onnx_ir as ir

    from qeff_zoo import bindings, exporter, loader

    bound = bindings.bind(loader.build_meta(checkpoint.config, plan.recipe.task), checkpoint.tensors)
    model = exporter.export_graph(checkpoint.config, plan.recipe, **plan.variant)
    used = {
        name: bound.expressions[name]
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    (folder / _BINDINGS).write_text(json.dumps(used), encoding="utf-8")
    ir.save(model, folder / GRAPH)


def _read(folder: Path, store: Store, *, cached: bool) -> BoundGraph:
    import onnx_ir as ir

    return BoundGraph(
        model=ir.load(folder / GRAPH),
        bindings=json.loads((folder / _BINDINGS).read_text(encoding="utf-8")),
        digest=f"sha256:{store.file_digest(folder / GRAPH)}",
        cached=cached,
    )
