# SPDX-License-Identifier: Apache-2.0
"""A model's state_dict names -> expressions over checkpoint tensors, by transformers' own rules.

How a checkpoint becomes a state_dict (names of older releases, experts stored one by one, a prefix
that only models with a head have) is written down in transformers. Its renamings are used as they
are; its conversions are run on tensors without data while what they do is recorded.

The result is JSON, so that a graph kept from an earlier build is bound to new weights without
torch: `problems_of` lists misfits of old bindings.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from qeff_zoo.checkpoint.expressions import (
    Tensors,
    TensorSource,
    concat,
    cut,
    index,
    reshape,
    rows,
    shape_of,
    sources_of,
    stack,
    transpose,
)
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import CheckpointError, UnsupportedModelError

from . import taken_apart

_SHOWN = 20  # problems in a message


@dataclass(frozen=True, slots=True)
class Binding:
    """What a model's state_dict is made of.

    Args:
        expressions: Expression over checkpoint tensors for every parameter and persistent buffer; a buffer that the
            checkpoint lacks keeps its computed value and is left out.
        shapes: Shape of every expression.
        unused: Checkpoint tensors that the model has no place for, without `ignored`.
        doubled: Tied names that the checkpoint stores again, and what it stores there; in
            `expressions` they are what they are tied to. See `broken_ties`.
        ignored: Checkpoint tensors that transformers ignores by a rule of the model's class.
    """

    expressions: Mapping[str, Expression]
    shapes: Mapping[str, tuple[int, ...]]
    unused: tuple[str, ...]
    doubled: Mapping[str, Expression]
    ignored: tuple[str, ...] = ()


def bind(
    model: Any,
    tensors: Tensors,
    needed: Iterable[str] | None = None,
    linear: Collection[str] = (),
    untied: Collection[str] = (),
    *,
    halved: bool = False,
) -> Binding:
    """Find what every parameter and persistent buffer is made of.

    Args:
        model: A `PreTrainedModel`, on the meta device if need be.
        tensors: The checkpoint's.
        needed: State_dict names that must be found; None for all.
        linear: Tensors that are matrices of linear layers whatever the model has there: quantizers replace `Conv1D`.
        untied: See `qeff_zoo.export.loader.build_meta`.
        halved: See `qeff_zoo.checkpoint.formats.halves_experts`.

    Raises:
        CheckpointError: Tensors are missing or of another shape; lists all of them.
        UnsupportedModelError: A conversion does more than move values.
    """
    places = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    expressions, unused, ignored, problems = _converted(model, tensors, places, halved=halved)
    _turn(model, expressions, linear)
    doubled = _tie(model.all_tied_weights_keys, expressions, untied)
    optional = {name for name, _ in model.named_buffers()}
    wanted = places.keys() if needed is None else set(needed)
    problems += [
        f"No tensor for {name!r} {list(places[name])}."
        for name in places
        if name in wanted and name not in expressions and name not in optional
    ]
    problems += problems_of(expressions, places, tensors)
    shapes = {name: places[name] for name in expressions if name in wanted}
    if problems:
        raise CheckpointError(report(problems, tensors))
    return Binding({name: expressions[name] for name in shapes}, shapes, unused, doubled, ignored)


def problems_of(
    expressions: Mapping[str, Expression], shapes: Mapping[str, tuple[int, ...]], tensors: Tensors
) -> list[str]:
    """List the bindings that do not fit a checkpoint, one sentence each.

    Args:
        expressions: Expressions by state_dict name.
        shapes: Required shapes.
        tensors: The checkpoint's.
    """
    problems = []
    for name, expression in expressions.items():
        missing = [source for source in sources_of(expression) if source not in tensors]
        if missing:
            problems.append(f"No tensor {', '.join(map(repr, missing[:4]))} for {name!r}.")
            continue
        try:
            shape = shape_of(expression, tensors)
        except CheckpointError as error:
            problems.append(f"For {name!r}: {error}")
            continue
        if shape != tuple(shapes[name]):
            sources = ", ".join(map(repr, sources_of(expression)[:2]))
            problems.append(
                f"{name!r} is {list(shape)} in the checkpoint (from {sources}), "
                f"{list(shapes[name])} in the model."
            )
    return problems


def broken_ties(binding: Binding, source: TensorSource) -> list[str]:
    """Name the tied parameters that the checkpoint stores again with other values.

    transformers does not tie these either.

    Args:
        binding: Binding of a model whose config ties them.
        source: The checkpoint.
    """
    broken = []
    for name, stored in binding.doubled.items():
        length, tied = binding.shapes[name][0], binding.expressions[name]
        for start in range(0, length, 1024):
            stop = min(start + 1024, length)
            pair = [rows(e, source.read, source.tensors, start, stop) for e in (stored, tied)]
            if pair[0].dtype != pair[1].dtype or pair[0].tobytes() != pair[1].tobytes():
                broken.append(name)
                break
        for used in {*sources_of(stored), *sources_of(tied)}:
            source.release(used)
    return broken


def _converted(
    model: Any, tensors: Tensors, places: Mapping[str, tuple[int, ...]], *, halved: bool
) -> tuple[dict[str, Expression], tuple[str, ...], tuple[str, ...], list[str]]:
    """Rename and convert as transformers does; gives expressions, unused and ignored tensors, and problems."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key

    mapping = get_model_conversion_mapping(model)
    names = _Names(
        [entry for entry in mapping if isinstance(entry, WeightRenaming)],
        [entry for entry in mapping if isinstance(entry, WeightConverter)],
        model.base_model_prefix,
        dict(places),
    )
    expressions: dict[str, Expression] = {}
    groups: dict[str, tuple[Any, list[tuple[str, str]]]] = {}
    unused: dict[str, str] = {}
    ignored: list[str] = []
    for name in sorted(tensors, key=dot_natural_key):
        place, pattern = names.find(name)
        if place not in places or (pattern is None and place in expressions):
            if _is_ignored(model, place):
                ignored.append(name)
            else:
                unused[place] = name
        elif pattern is None:
            expressions[place] = name
        else:
            groups.setdefault(place, (names.converter(pattern), []))[1].append((pattern, name))
    problems = []
    for place, (converter, members) in groups.items():
        try:
            expressions |= _convert(model, converter, place, members, tensors)
        except (RuntimeError, ValueError, IndexError, AttributeError) as error:
            problems.append(f"Cannot convert {members[0][1]!r} to {place!r}: {error}")
    unbound = {place: shape for place, shape in places.items() if place not in expressions}
    joined = taken_apart.joined(model, unbound, unused, tensors, halved=halved)
    used = {source for made in joined.values() for source in sources_of(made)}
    return (
        expressions | joined,
        tuple(name for name in unused.values() if name not in used),
        tuple(ignored),
        problems,
    )


def _turn(model: Any, expressions: dict[str, Expression], linear: Collection[str]) -> None:
    """Transpose matrices of linear layers where the model has `Conv1D`, (in, out)."""
    from transformers.pytorch_utils import Conv1D

    for path, module in model.named_modules() if linear else ():
        made = expressions.get(f"{path}.weight")
        if isinstance(module, Conv1D) and isinstance(made, str) and made in linear:
            expressions[f"{path}.weight"] = transpose(0, 1, made)


@dataclass(frozen=True, slots=True)
class _Names:
    """transformers' rules for names."""

    renamings: list[Any]
    converters: list[Any]
    prefix: str
    places: dict[str, tuple[int, ...]]

    def find(self, name: str) -> tuple[str, str | None]:
        """The place of a checkpoint tensor, and the pattern of the converter that leads there."""
        from transformers.core_model_loading import rename_source_key

        found = rename_source_key(name, self.renamings, self.converters, self.prefix, self.places)
        if found[0] not in self.places and name in self.places:  # renamed too far
            found = rename_source_key(name, [], [], self.prefix, self.places)
        return found

    def converter(self, pattern: str) -> Any:
        """The converter that has the pattern; the last one wins, as in transformers."""
        return next(c for c in reversed(self.converters) if pattern in c.source_patterns)


def _is_ignored(model: Any, place: str) -> bool:
    patterns = set(model._keys_to_ignore_on_load_unexpected or ())
    # Buffers that used to be saved; transformers' `_adjust_missing_and_unexpected_keys`.
    patterns |= {r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"}
    return any(re.search(pattern, place) for pattern in patterns)


def _tie(
    ties: Mapping[str, str], expressions: dict[str, Expression], untied: Collection[str]
) -> dict[str, Expression]:
    """Bind every tied name to the first of its group that the checkpoint has.

    A name that was untied keeps the checkpoint's own value, if there is one.
    """
    groups: dict[str, list[str]] = {}
    for target, origin in ties.items():
        groups.setdefault(origin, [origin]).append(target)
    doubled: dict[str, Expression] = {}
    for members in groups.values():
        stored = sorted((name for name in members if name in expressions), key=untied.__contains__)
        own = {*untied}.intersection(stored)
        for name in [one for one in members if one not in own] if stored else ():
            if name in stored[1:] and expressions[name] != expressions[stored[0]]:
                doubled[name] = expressions[name]
            expressions[name] = expressions[stored[0]]
    return doubled


def report(problems: list[str], tensors: Tensors) -> str:
    """Return the message of a checkpoint whose tensors do not fit its model.

    Args:
        problems: Problems, one sentence each.
        tensors: The checkpoint's.
    """
    shown = problems[:_SHOWN]
    if len(problems) > _SHOWN:
        shown.append(f"And {len(problems) - _SHOWN} more.")
    folders = sorted({str(info.path.parent) for info in tensors.values()})
    listed = "\n".join(f"  {problem}" for problem in shown)
    return (
        f"The weights in {', '.join(map(repr, folders))} are not those of their config:\n{listed}\n"
        "Expected one tensor of the right shape for every parameter. "
        "Check that config.json belongs to these weights and that no shard is missing."
    )


def _convert(
    model: Any, converter: Any, place: str, members: list[tuple[str, str]], tensors: Tensors
) -> dict[str, Expression]:
    """Run one conversion on tensors without data and read off what became of them."""
    import torch

    own = deepcopy(converter)  # it collects what it is given
    for pattern, name in members:
        tensor = torch.empty(tensors[name].shape, device="meta")
        tensor.__dict__["expression"] = name
        own.add_tensor(place, name, pattern, tensor)
    with _recorder():
        results = own.convert(place, model=model, config=model.config)
    made: dict[str, Expression] = {}
    for target, result in results.items():
        tensor = result[0] if isinstance(result, list) else result
        made[target] = tensor.__dict__["expression"]
    return made


def _recorder() -> Any:
    """A mode of torch in which tensors carry the expression they are the value of."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, _: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            result = function(*arguments, **(options or {}))
            values = result if isinstance(result, list | tuple) else [result]
            made = _apply(function._schema.name, arguments, options or {}, values)
            for value, expression in zip(values, made, strict=True):
                value.__dict__["expression"] = expression
            return result

    return Recorder()  # type: ignore[no-untyped-call]


def _apply(operation: str, arguments: Any, options: Any, results: Any) -> list[Expression]:
    """Express the results of one torch operation."""
    first = arguments[0]
    operands = [t.__dict__["expression"] for t in (first if isinstance(first, list) else [first])]
    rank = results[0].ndim
    dim = options.get("dim", arguments[1] if len(arguments) > 1 else 0)
    match operation.removeprefix("aten::"):
        case "cat":
            return [concat(dim % rank, *operands)]
        case "stack":
            return [stack(dim % rank, *operands)]
        case "split" | "split_with_sizes" | "chunk":
            dim = options.get("dim", arguments[2] if len(arguments) > 2 else 0) % rank
            return _pieces(operands[0], dim, [result.shape[dim] for result in results])
        case "slice" if len(arguments) < 5 or arguments[4] == 1:
            start = min(arguments[2] or 0, first.shape[dim]) % (first.shape[dim] + 1)
            return [cut(dim % rank, start, start + results[0].shape[dim], operands[0])]
        case "select" if dim == 0:
            return [index(arguments[2] % first.shape[0], operands[0])]
        case "transpose":
            return [transpose(arguments[1] % rank, arguments[2] % rank, operands[0])]
        case "view" | "_unsafe_view" | "reshape" | "squeeze" | "unsqueeze":
            return [reshape(tuple(results[0].shape), operands[0])]
        case "clone" | "detach" | "alias" | "_to_copy":
            return [operands[0]]
    raise UnsupportedModelError(
        f"Cannot bind {sources_of(operands[0])[:2]}: its conversion in transformers calls "
        f"{operation!r}. Expected one that only joins, cuts, transposes or reshapes. "
        "Add the operation to qeff_zoo/bindings.py, or use a checkpoint in the current format."
    )


def _pieces(e: Expression, dim: int, lengths: list[int]) -> list[Expression]:
    ends = accumulate(lengths)
    return [cut(dim, end - length, end, e) for length, end in zip(lengths, ends, strict=True)]
