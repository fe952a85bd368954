# SPDX-License-Identifier: Apache-2.0
"""Adapters merged into weights: the new value of each weight, as an expression that is computed when it is written.

Input: adapters by folder or Hub id, and the model that they change. Output: by names of its state_dict, expressions
    over the original weight (named "") and the adapters' tensors. Several adapters are summed, each with its weight.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.adapters.merged import Merged
from qeff_zoo.checkpoint.adapters.peft_files import Adapter, plain
from qeff_zoo.checkpoint.expressions import (
    cut,
    index,
    matmul,
    plus,
    reshape,
    scaled_to,
    shape_of,
    sources_of,
    stack,
    substitute,
    transpose,
)
from qeff_zoo.checkpoint.files import some
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import AdapterError

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Name of the original weight in the expression of its new value.
ITSELF = ""


@dataclass(frozen=True)
class Change:
    """New value of one weight.

    Args:
        value: Expression over the original weight, `ITSELF`, and tensors of adapters.
        shape: Shape of both.
        untied: Whether the model ties it to another weight with a different new value.
    """

    value: Expression
    shape: tuple[int, ...]
    untied: bool = False


def changes(merged: Sequence[Merged], model: Any) -> dict[str, Change]:
    """Return the changes of a model by adapters.

    Args:
        merged: The adapters.
        model: transformers' model for the task, possibly on the meta device.

    Returns:
        Changes by names of its state_dict.

    Raises:
        AdapterError: An adapter does not fit the model; the message has all faults.
    """
    collected = _Changes(model)
    for one in merged:
        problems = list(collected.add(one))
        if problems:
            raise AdapterError(
                f"Cannot merge the adapter {one.adapter.name!r} into {type(model).__name__}: {some(problems, 4)}. "
                "Expected one that was trained on this model, for linear layers and embeddings. Use such an adapter, "
                "or merge it with peft's merge_and_unload and build that checkpoint."
            )
    collected.untie()
    return collected.made


@dataclass
class _Changes:
    """Changes of a model so far."""

    model: Any
    made: dict[str, Change] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.modules = dict(self.model.named_modules())
        self.shapes = {
            name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()
        }

    def untie(self) -> None:
        """Untie weights that do not change alike; peft computes the model before it merges anything."""
        for name, origin in self.model.all_tied_weights_keys.items():
            value = self._now(name)
            if value != self._now(origin):
                self.made[name] = Change(value, self.shapes[name], untied=True)

    def _here(self, path: str, known: Mapping[str, Any]) -> str:
        """Return a path in this model, which may have a head in front of the trained part; "" for none."""
        prefix = f"{self.model.base_model_prefix}."
        paths = (path, prefix + path, path.removeprefix(prefix))
        return next((file for file in paths if file in known), "") or self._renamed(path, known)

    def _renamed(self, path: str, known: Mapping[str, Any]) -> str:
        """Return the current name of a path that transformers has renamed; "" for none."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, rename_source_key

        mapping = get_model_conversion_mapping(self.model)
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        prefix, ending = self.model.base_model_prefix, "" if known is self.shapes else ".weight"
        current, _ = rename_source_key(path + ending, renamings, [], prefix, self.shapes)
        current = current.removesuffix(ending)
        return current if current in known else ""

    def add(self, one: Merged) -> Iterator[str]:
        """Add the changes of an adapter; yield its faults."""
        adapter = one.adapter
        for name, tensor in adapter.replaced.items():  # to what is replaced, it may add as well
            yield from self._replace(one, name, tensor)
        for module in adapter.modules:
            yield from self._add_linear(one, module)
        for module in adapter.stacks:
            yield from self._add_stack(one, module)
        for module, names in adapter.embeddings.items():
            yield from self._add_embedding(one, module, names)
        for module in adapter.strange:
            yield f"it has {module!r}"

    def _add_linear(self, one: Merged, module: str) -> Iterator[str]:
        import numpy as np
        import torch
        from transformers.pytorch_utils import Conv1D

        adapter, path = one.adapter, self._here(module, self.modules)
        layer = self.modules.get(path) if path else None
        if not isinstance(layer, torch.nn.Linear | Conv1D):
            kind = f"a {type(layer).__name__}" if layer is not None else "no layer of it"
            yield f"it changes {module!r}, which is {kind}"
            return
        rows, columns = self.shapes[f"{path}.weight"]
        by_input = isinstance(layer, Conv1D)  # (in, out)
        here = (rows, columns) if by_input else (columns, rows)
        if adapter.shape(module) != here:
            has = adapter.shape(module)
            yield f"its {module!r} is from {has[0]} to {has[1]}, here from {here[0]} to {here[1]}"
            return
        if not all(np.isfinite(matrix).all() for matrix in adapter.pair(module)):
            yield f"its {module!r} is infinite or not a number"
        down, up = map(one.named, adapter.matrices(module))
        value = (
            transpose(0, 1, self._now(f"{path}.weight"))
            if by_input
            else self._now(f"{path}.weight")
        )
        value = plus(value, one.weight * adapter.scaling(module), matmul(up, down))
        if magnitude := adapter.beside(module, "lora_magnitude_vector"):
            value = scaled_to(0, value, one.named(magnitude))
        elif adapter.config.get("use_dora"):
            yield f"its {module!r} has no magnitudes"
        self._become(f"{path}.weight", transpose(0, 1, value) if by_input else value)
        if bias := adapter.beside(module, "lora_B.bias"):
            if f"{path}.bias" not in self.shapes:
                yield f"its {module!r} has a bias, and that layer has none"
                return
            added = one.weight * adapter.scaling(module)
            self._become(f"{path}.bias", plus(self._now(f"{path}.bias"), added, one.named(bias)))

    def _add_stack(self, one: Merged, module: str) -> Iterator[str]:
        """Change matrices in a stacked parameter, such as experts; peft wraps the first such of a module innermost."""
        import numpy as np

        adapter, owner = one.adapter, plain(module)
        path = self._here(owner, self.modules)
        layer = self.modules.get(path) if path else None
        own = [name for name, _ in layer.named_parameters(recurse=False)] if layer else []
        names = [name for name in own if adapter.targets(f"{owner}.{name}")]
        inside = sorted((other for other in adapter.stacks if plain(other) == owner), key=len)
        if len(names) != len(inside):
            yield f"it changes {len(inside)} parameters of {owner!r}, which has {names} of those"
            return
        name = names[len(names) - 1 - inside.index(module)]
        parameter, key = f"{path}.{name}", f"{owner}.{name}"
        by_input = bool(getattr(layer, "is_transposed", False))
        shapes = [adapter.tensors[tensor].shape for tensor in adapter.matrices(module)]
        count, *sides = self.shapes[parameter] if len(self.shapes[parameter]) == 3 else (0, 0, 0)
        columns, rows = sides[:: 1 if by_input else -1]
        rank = adapter.rank(key)
        if shapes != [(rank * count, columns), (rows, rank * count)]:
            yield f"its {key!r} has {[*map(list, shapes)]}, here {list(self.shapes[parameter])}"
            return
        if not all(np.isfinite(adapter.read(name)).all() for name in adapter.matrices(module)):
            yield f"its {key!r} is infinite or not a number"
        down, up = map(one.named, adapter.matrices(module))
        by_expert = transpose(0, 2, reshape((rows, rank, count), up))
        added = [
            matmul(transpose(0, 1, index(expert, by_expert)), cut(0, at, at + rank, down))
            for expert, at in enumerate(range(0, rank * count, rank))
        ]
        whole = stack(0, *(transpose(0, 1, each) if by_input else each for each in added))
        self._become(
            parameter, plus(self._now(parameter), one.weight * adapter.scaling(key), whole)
        )

    def _add_embedding(self, one: Merged, module: str, names: tuple[str, str]) -> Iterator[str]:
        weight = self._here(f"{module}.weight", self.shapes)
        down, up = names
        wanted = self.shapes.get(weight, ())
        (rank, rows), (columns, same) = (one.adapter.tensors[name].shape for name in names)
        if wanted != (rows, columns) or rank != same:
            yield f"its {module!r} has {rows} rows of {columns}, here {list(wanted)}"
            return
        product = matmul(transpose(0, 1, one.named(down)), transpose(0, 1, one.named(up)))
        factor = one.weight * one.adapter.scaling(module)
        self._become(weight, plus(self._now(weight), factor, product))

    def _replace(self, one: Merged, name: str, tensor: str) -> Iterator[str]:
        weight, shape = self._here(name, self.shapes), one.adapter.tensors[tensor].shape
        if not weight:
            yield f"it replaces {name!r}, which is no weight of it"
        elif shape != self.shapes[weight]:
            yield f"its {name!r} is {list(shape)}, here {list(self.shapes[weight])}"
        else:
            self._become(weight, one.named(self._same(one.adapter, weight, tensor)))

    def _same(self, adapter: Adapter, weight: str, tensor: str) -> str:
        """Return the first replacement of a tied weight that equals this one, so that both stay tied."""
        import numpy as np

        ties = self.model.all_tied_weights_keys
        weights = {own: self._here(name, self.shapes) for name, own in adapter.replaced.items()}
        tied = [own for own, at in weights.items() if ties.get(at, at) == ties.get(weight, weight)]
        if len(tied) == 1:
            return tensor
        value = adapter.read(tensor)
        same = (one for one in tied if one == tensor or np.array_equal(adapter.read(one), value))
        return next(same)

    def _now(self, weight: str) -> Expression:
        """Return the new value of a weight so far."""
        return self.made[weight].value if weight in self.made else ITSELF

    def _become(self, weight: str, value: Expression) -> None:
        self.made[weight] = Change(value, self.shapes[weight])


def values_of(
    by_name: Mapping[str, Change], expressions: Mapping[str, Expression], checkpoint: "Checkpoint"
) -> dict[str, Expression]:
    """Return the new values of a checkpoint's tensors.

    Args:
        by_name: Changes by names of the model's state_dict.
        expressions: Expressions of one program's weights over the checkpoint's tensors, by the same names.
        checkpoint: Checkpoint with its adapters.

    Raises:
        AdapterError: A changed weight is not one tensor of the checkpoint.
    """
    values: dict[str, Expression] = {}
    for name in by_name.keys() & expressions.keys():
        expression, value = expressions[name], by_name[name].value
        if isinstance(expression, str) or len(sources_of(expression)) == 1:
            tensor = sources_of(expression)[0]
            if checkpoint.logical[tensor].shape != by_name[name].shape:
                raise _in_another_form(name, expression, checkpoint)
            values[tensor] = substitute(value, {ITSELF: checkpoint.values.get(tensor, tensor)})
            assert shape_of(values[tensor], checkpoint.tensors) == by_name[name].shape
            continue
        while value != ITSELF:  # what is added, to each of the tensors that it is made of
            match value:
                case ["sum", factor, before, added]:
                    for tensor, part in _parts_of(expression, added, checkpoint):
                        now = values.get(tensor, checkpoint.values.get(tensor, tensor))
                        values[tensor] = plus(now, factor, part)
                    value = before
                case _:
                    raise _in_another_form(name, expression, checkpoint)
    return values


def _parts_of(
    weight: Expression, added: Expression, checkpoint: "Checkpoint"
) -> Iterator[tuple[str, Expression]]:
    """Yield the summands of each tensor that a weight is joined from."""
    match weight:
        case str():
            yield weight, added
        case ["stack", 0, *parts]:
            for number, part in enumerate(parts):
                yield from _parts_of(part, index(number, added), checkpoint)
        case ["concat", dim, *parts]:
            start = 0
            for part in parts:
                stop = start + shape_of(part, checkpoint.logical)[dim]
                yield from _parts_of(part, cut(dim, start, stop, added), checkpoint)
                start = stop
        case ["transpose", one, other, inner]:
            yield from _parts_of(inner, transpose(one, other, added), checkpoint)
        case _:
            raise _in_another_form("", weight, checkpoint)


def _in_another_form(name: str, weight: Expression, checkpoint: "Checkpoint") -> AdapterError:
    return AdapterError(
        f"Cannot merge into {name or 'a weight'!r}: {checkpoint.name!r} has it in {some(sources_of(weight))}, in "
        "another form than the model. Expected one tensor of the model's shape, or tensors that it is joined of. Merge "
        "the adapter with peft's merge_and_unload, and build that checkpoint."
    )
