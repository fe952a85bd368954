# SPDX-License-Identifier: Apache-2.0
"""Every tensor of a package's weight file beside the parameter of transformers' model that its name stands for.

Only the reference process imports this. Names of the file are those of parameters, with what was done to them; the
model has its parameters from the checkpoint by transformers' own code, or by the reference's decoders. How the builder
bound and wrote the file plays no part.

    model.norm.weight                       a parameter
    model.layers.0.experts.down_proj.3      matrix 3 of a stack, or the rows from row 3 on
    …weight.bits8, …weight.transposed       the same in another storage, or transposed
    …weight:transposed, …:transposed[0, 2, 1], …:3x4, …:2, …:0-4, …:1:0-4      moved; index and slices
    a+b                                     joined
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from qeff_zoo.graph.numerics import FLOAT16, FLOAT32, Format, Numerics, RoundedMatrix
from qeff_zoo.validation.reference.loading import decoded_weights
from qeff_zoo.validation.reference.numerics import Preparation, smoothed
from qeff_zoo.validation.reference.unloaded import Unloaded
from qeff_zoo.validation.reference.weight_file import WeightFile, distance, pieces
from qeff_zoo.weights.smoothing import Smoothing

_EXACT, _COMPUTED = (
    0,
    64,
)  # roundings of float32: of copies, and of what is decoded or merged in another order
_KEPT = 4
_BESIDE = re.compile(r"\.((super_)?(scales|offsets)|zero_points|order)$")
_STORED = re.compile(r"(\.bits\d+|\.transposed)$")
_CUT, _ORDER = re.compile(r"(\d+)-(\d+)"), re.compile(r"transposed\[([\d, ]+)\]")
_SHAPE = re.compile(r"\d+(x\d+)*|scalar")
#: Numbers of rows that a part of a parameter may have.
Lengths: TypeAlias = Callable[[str], Collection[int]]
_LISTED = 8  # tensors that an answer names
_MOST = 1e9  # in place of infinity, which JSON lacks


@dataclass
class WeightComparison:
    """What was compared.

    Args:
        tensors: Number of tensors.
        values: Number of values.
        error: The largest distance of any value, see `Distance`.
        worst: Tensor of that value.
        zeroed: The least error of any tensor whose largest value were 0.
        left: Tensors that no parameter stands for, with the reason.
    """

    tensors: int = 0
    values: int = 0
    error: float = 0.0
    worst: str = ""
    zeroed: float = _MOST
    left: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, values: int, error: float, zeroed: float) -> None:
        """Add a tensor."""
        self.tensors, self.values = self.tensors + 1, self.values + values
        if error > self.error:
            self.error, self.worst = min(error, _MOST), name
        if zeroed:
            self.zeroed = min(self.zeroed, zeroed)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer."""
        return {
            **{
                name: getattr(self, name)
                for name in ("tensors", "values", "error", "worst", "zeroed")
            },
            "left": dict([*self.left.items()][:_LISTED]),
            "left_count": len(self.left),
        }


def answer(
    request: Mapping[str, Any], model: Any, unloaded: Unloaded | None
) -> dict[str, Any] | None:
    """Compare a package's weight file; None for a package without one.

    Args:
        request: `weight_file`, its path, and `reads`: by the name of each tensor that a graph reads, the one that lies
            there; with `numerics`, and the checkpoint.
        model: transformers' own, with the checkpoint's weights in float32.
        unloaded: The model whose parts are read in turn; None if `model` has all its weights.
    """
    if not request.get("weight_file"):
        return None
    matrices = Numerics.from_dict(request["numerics"]).matrices
    slack = _COMPUTED if _is_computed(request) else _EXACT
    compared = _Compared(Path(request["weight_file"]), request["reads"], model, matrices, slack)
    smoothing = Preparation.of(request).smoothing
    if unloaded is None:
        compared.add(_tensors(model, smoothing))
    else:
        for path in unloaded.parts:
            with unloaded.reading(path):
                compared.add(_tensors(model, smoothing))
    return compared.result().as_dict()


def _is_computed(request: Mapping[str, Any]) -> bool:
    """Whether weights are computed from those of the checkpoint."""
    decoded = request.get("gguf") or decoded_weights(Path(request["checkpoint"]))
    return bool(decoded or request.get("adapters"))


def _tensors(model: Any, smoothing: Smoothing) -> dict[str, Tensor]:
    """Return a model's parameters and buffers by all their names, after smoothing; those in memory alone."""
    named = [
        *model.named_buffers(remove_duplicate=False),
        *model.named_parameters(remove_duplicate=False),
    ]
    tensors = {name: tensor.detach() for name, tensor in named if not tensor.is_meta}
    return tensors | smoothed(tensors, smoothing)


class _Compared:
    """A comparison, to which the model's parameters come in parts."""

    def __init__(
        self,
        path: Path,
        reads: Mapping[str, str],
        model: Any,
        matrices: Sequence[RoundedMatrix],
        slack: int,
    ) -> None:
        self._file, self._slack = WeightFile(path), slack
        self._matrices = {matrix.name: matrix for matrix in matrices}
        heads = model.config.get_text_config().to_dict().get("num_key_value_heads")
        self._heads = heads if isinstance(heads, int) else None
        names = self._file.names
        read = {name: name for name in names} | dict(reads)
        self._waiting = {name: at for name, at in read.items() if not _is_beside(name, names)}
        self._found = WeightComparison()
        for name, at in read.items():
            if at not in names or (at != name and _is_beside(name, names)):
                self._waiting.pop(name, None)
                self._found.note(name, 0, math.inf, 0)  # a graph reads it where it does not lie

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Compare what these parameters suffice for."""
        for name, parameter in [*self._waiting.items()]:
            if values := [*_meant(name, tensors, self._lengths(parameter))]:
                del self._waiting[name]
                self._compare(name, parameter, values)

    def result(self) -> WeightComparison:
        """Return what was compared."""
        for name in self._waiting:
            self._found.left[name] = "the model has no parameter of this name"
        return self._found

    def _lengths(self, parameter: str) -> Lengths:
        """Return what finds the rows of a part: those of its matrix, else of the tensor that is stored."""

        def lengths(part: str) -> Collection[int]:
            if matrix := self._matrices.get(part):
                return [matrix.columns if matrix.input_major else matrix.rows]
            return {*self._file.shape(parameter)}

        return lengths

    def _compare(self, name: str, parameter: str, meant: Sequence[Tensor]) -> None:
        """Compare a tensor with what its name may stand for; what fits best is meant."""
        matrix, format = self._matrix(name, parameter)
        shape = self._shape(parameter, format, matrix)
        every = [one for made in meant for one in self._arranged(made, shape, matrix)]
        if not every:
            shapes = ", ".join(str([*one.shape]) for one in meant[:3])
            self._found.left[name] = f"{[*shape]} in the file, {shapes} in the model"
            return
        rounded = matrix is not None and not matrix.kept
        slack = _KEPT + self._slack if matrix is not None and matrix.kept else self._slack
        results = []
        for expected in every:
            error = zeroed = 0.0
            if format.act_order:
                expected = expected[..., self._file.order(parameter)]
            for index in pieces(shape):
                columns = shape[-1] if shape else 1
                piece = self._file.read(parameter, format, index, columns, rounded=rounded)
                part = distance(expected[index or ...], piece, format, rounded=rounded, slack=slack)
                error, zeroed = max(error, part.error), max(zeroed, part.zeroed)
                if error > 1:
                    break
            results.append((error, zeroed))
            if error <= 1:
                break
        self._found.note(name, math.prod(shape), *min(results))

    def _matrix(self, name: str, parameter: str) -> tuple[RoundedMatrix | None, Format]:
        """Return what the manifest lists of a tensor of integers, of joined ones the first; and its format."""
        parts = (name, parameter, name.split("+")[0], parameter.split("+")[0])
        matrix = next((self._matrices[part] for part in parts if part in self._matrices), None)
        if f"{parameter}.scales" not in self._file.names:
            return None, FLOAT16 if self._file.is_float16(parameter) else FLOAT32
        return matrix, matrix.format if matrix else FLOAT32

    def _shape(
        self, parameter: str, format: Format, matrix: RoundedMatrix | None
    ) -> tuple[int, ...]:
        """Return the shape of a tensor's values."""
        stored = self._file.shape(parameter)
        if matrix is None or format.is_float or format.per_channel or format.element:
            return stored
        return (*stored[:-2], matrix.columns)

    def _arranged(
        self, parameter: Tensor, shape: tuple[int, ...], matrix: RoundedMatrix | None
    ) -> Iterator[Tensor]:
        """Yield what a parameter may be in the shape of the file: as it is, transposed, in turns, heads repeated."""
        turned = parameter.transpose(-1, -2) if parameter.dim() > 1 else parameter
        own = [turned] if matrix and matrix.input_major else [parameter, turned][: parameter.dim()]
        for one in own or [parameter]:
            if tuple(one.shape) == shape:
                yield one
                if matrix is None and one.dim() == 1:
                    yield one + 1  # norms whose weight is stored less 1
                if one.dim() > 2 and one.shape[1] % 2 == 0:  # gates and ups of experts in turns
                    yield one.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        if shape not in [tuple(one.shape) for one in own] and _long(parameter.shape) == _long(
            shape
        ):
            yield parameter.reshape(shape)
        if self._heads and parameter.dim() and shape and parameter.shape[1:] == shape[1:]:
            times, rest = divmod(shape[0], parameter.shape[0])
            if times > 1 and not rest and parameter.shape[0] % self._heads == 0:
                heads = parameter.unflatten(0, (self._heads, -1))
                yield heads.repeat_interleave(times, 0).flatten(0, 1)


def _long(shape: Sequence[int]) -> list[int]:
    """Return the lengths of the axes with more than one value."""
    return [size for size in shape if size > 1]


def _is_beside(name: str, names: Collection[str]) -> bool:
    """Whether a tensor is a part of another, or fills a gap."""
    return name.startswith("__pad.") or (
        _BESIDE.sub("", name) != name and _BESIDE.sub("", name) in names
    )


def _meant(name: str, tensors: Mapping[str, Tensor], lengths: Lengths) -> Iterator[Tensor]:
    """Yield what a name of the file may stand for; nothing if a parameter is missing."""
    first, plus, rest = name.partition("+")
    if not plus:
        base, *moves = _STORED.sub("", name).split(":")
        for value in _named(_STORED.sub("", base), tensors, lengths):
            yield from _moved(value, moves)
        return
    for one in _meant(first, tensors, lengths):
        for other in _meant(rest, tensors, lengths):
            yield from _joined(one, other)


def _joined(one: Tensor, other: Tensor) -> Iterator[Tensor]:
    """Yield two tensors joined along the axes in which they may differ."""
    for axis in range(one.dim() if one.dim() == other.dim() else 0):
        sizes = enumerate(zip(one.shape, other.shape, strict=True))
        if all(size == another for at, (size, another) in sizes if at != axis):
            yield torch.cat([one, other], axis)


def _named(base: str, tensors: Mapping[str, Tensor], lengths: Lengths) -> Iterator[Tensor]:
    """Yield a parameter, or what its number picks of it: a matrix of a stack, or rows."""
    if base in tensors:
        yield tensors[base]
        return
    stem, _, number = base.rpartition(".")
    whole, first = tensors.get(stem), int(number) if number.isdecimal() else -1
    if whole is None or not 0 <= first < len(whole):
        return
    if whole.dim() > 2:
        yield whole[first]
    elif whole.dim() == 2:
        yield from (whole[first : first + length] for length in lengths(base))


def _moved(value: Tensor, moves: Sequence[str]) -> Iterator[Tensor]:
    """Yield what moves may make of a value: a number is an index, an axis, or a shape of one axis."""
    if not moves:
        yield value
        return
    move, *rest = moves
    if move == "transposed":
        yield from _moved(value.permute(*range(value.dim())[::-1]), rest)
    elif order := _ORDER.fullmatch(move):
        yield from _moved(value.permute(*map(int, order[1].split(","))), rest)
    elif cut := _CUT.fullmatch(move):
        yield from _moved(value[int(cut[1]) : int(cut[2])], rest)
    elif _SHAPE.fullmatch(move):
        sizes = [] if move == "scalar" else [*map(int, move.split("x"))]
        if math.prod(sizes) == value.numel():
            yield from _moved(value.reshape(sizes), rest)
        if len(sizes) == 1 and value.dim() and sizes[0] < len(value):
            yield from _moved(value[sizes[0]], rest)
        if len(sizes) == 1 and sizes[0] < value.dim() and rest and (cut := _CUT.fullmatch(rest[0])):
            start, stop = int(cut[1]), int(cut[2])
            yield from _moved(value.narrow(sizes[0], start, stop - start), rest[1:])
