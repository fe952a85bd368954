# SPDX-License-Identifier: Apache-2.0
"""Names of a pipeline's parameters -> expressions over tensors of its checkpoint, component by component.

Components of transformers are bound like any of its models; those of diffusers by its own renaming of older names.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from qeff_zoo.checkpoint.expressions import Tensors, substitute
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import CheckpointError

from .bindings import Binding, bind, problems_of, report


def bind_components(
    pipeline: Any, tensors: Tensors, needed: Iterable[str] | None = None
) -> Binding:
    """Bind every parameter of a pipeline's components to an expression over tensors.

    Args:
        pipeline: Module with `components` by folder.
        tensors: Tensors of the checkpoint; names begin with the folder.
        needed: Names that must have a tensor; None for all.

    Raises:
        CheckpointError: Tensors are missing or of another shape; lists all of them.
    """
    wanted = None if needed is None else [*needed]
    expressions: dict[str, Expression] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    unused: list[str] = []
    ignored: list[str] = []
    for folder, module in pipeline.components.items():
        inside = {
            name.removeprefix(f"{folder}/"): info
            for name, info in tensors.items()
            if name.startswith(f"{folder}/")
        }
        own = None
        if wanted is not None:
            dotted = f"{folder}."
            own = [one.removeprefix(dotted) for one in wanted if one.startswith(dotted)]
        bound = (_bind_diffusers if hasattr(module, "from_config") else bind)(module, inside, own)
        placed: dict[str, Expression] = {name: f"{folder}/{name}" for name in inside}
        for name, expression in bound.expressions.items():
            expressions[f"{folder}.{name}"] = substitute(expression, placed)
            shapes[f"{folder}.{name}"] = bound.shapes[name]
        unused += [f"{folder}/{name}" for name in bound.unused]
        ignored += [f"{folder}/{name}" for name in bound.ignored]
    return Binding(expressions, shapes, tuple(unused), {}, tuple(ignored))


def _bind_diffusers(module: Any, tensors: Tensors, needed: Iterable[str] | None = None) -> Binding:
    """Bind a component of diffusers: a tensor for each name, after the renaming of older ones."""
    places = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found: dict[str, Any] = {name: name for name in tensors}
    module._fix_state_dict_keys_on_load(found)
    expressions: Mapping[str, Expression] = {
        name: source for name, source in found.items() if name in places
    }
    wanted = places.keys() if needed is None else {*needed}
    optional = {name for name, _ in module.named_buffers()}
    problems = [
        f"No tensor for {name!r} {[*places[name]]}."
        for name in places
        if name in wanted and name not in expressions and name not in optional
    ]
    problems += problems_of(expressions, places, tensors)
    if problems:
        raise CheckpointError(report(problems, tensors))
    shapes = {name: places[name] for name in expressions if name in wanted}
    unused = tuple(source for name, source in found.items() if name not in places)
    return Binding({name: expressions[name] for name in shapes}, shapes, unused, {})
