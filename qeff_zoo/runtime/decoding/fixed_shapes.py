# SPDX-License-Identifier: Apache-2.0
"""Padding of calls with any width and any batch slots to the fixed shapes of a compiled program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoding.call_inputs import AXES, PADDING
from qeff_zoo.runtime.decoding.token_axis import by_token
from qeff_zoo.runtime.program import Array, Specializations, Tensor

#: Input whose length is the number of tokens per row with returned logits.
KEPT = "num_logits_to_keep"
_ROWS = "batch_size"


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedCall:
    """Call in the shapes of one specialization.

    Args:
        index: Index of the specialization.
        symbols: Sizes of the specialization by symbol.
        inputs: Inputs of all rows and columns; with continuous batching also `batch_index` (batch_size, 1).
        places: Positions of the requested rows in inputs and outputs.
        width: Number of requested columns.
        kept: Number of tokens per row with requested logits (decoder).
    """

    index: int
    symbols: Mapping[str, int]
    inputs: Mapping[str, Array]
    places: Sequence[int]
    width: int
    kept: int = 1

    def answer(self, output: Array, axes: Sequence[int | str]) -> Array:
        """Cut an output of the program to the requested rows and columns.

        Args:
            output: Output of the program, rows first.
            axes: A size or a symbol for each axis.
        """
        sizes = {"seq_len": self.width, KEPT: self.kept}
        part = tuple(slice(sizes.get(axis) if isinstance(axis, str) else None) for axis in axes)
        return output[self.places][part]

    def chosen(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Cut routing choices to the requested rows and columns: (rows * columns, slots, k).

        Args:
            outputs: Choices of all rows and columns; outputs without a token axis are left out.
        """
        choices = {}
        for name, array in outputs.items():
            every = by_token(array, self.symbols["batch_size"], self.symbols["seq_len"])
            if every is not None:
                kept = every[self.places, : self.width]
                choices[name] = kept.reshape(-1, *kept.shape[2:])
        return choices


class FixedShapes:
    """Fixed shapes that a program was compiled for.

    A padding column has position -1 and token id 0, which every embedding has; a padding row, too. A row of padding
    alone leaves its state unchanged, and all rows of a call have different batch slots, so that none overwrites
    another. Padding rows of an encoder repeat its first row: it returns no valid result without any token.

    Args:
        specializations: Specializations of the manifest.
        inputs: Inputs of the program; an input not listed has a column for each token.
    """

    def __init__(
        self,
        specializations: Specializations,
        inputs: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self._inputs = inputs
        self._every = [
            {symbol: int(size) for symbol, size in entry["symbols"].items()}
            for entry in specializations
        ]
        #: Number of batch slots in the states.
        self.rows = max(one.get("full_batch_size", one["batch_size"]) for one in self._every)

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Split batch slots into groups that one call takes, see `qeff_zoo.runtime.program.Program`."""
        enough = [one for one in self._every if _keeps(one, kept)] or self._every
        width = (max if prefill and kept == 1 else min)(one["seq_len"] for one in enough)
        batch = max(one["batch_size"] for one in enough if one["seq_len"] == width)
        rows = sorted(starts)
        return [rows[first : first + batch] for first in range(0, len(rows), batch)]

    def fit(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> FixedCall:
        """Return a call in the narrowest specialization that it fits, with padding.

        Args:
            inputs: `input_ids` or `attention_mask` (n, w) and others of that shape, or with more axes;
                `comp_ctx_lengths` (L,) if the call sets its compute context: a specialization for exactly L is
                required; `num_logits_to_keep` (n,) if the call sets the number of tokens with returned logits: 1, or
                at least the number of any row's tokens.
            rows: Batch slots of the n rows; empty without states.

        Raises:
            GenerationError: If no specialization is wide enough, or supports these rows, compute context and logits.
        """
        count, width = inputs["input_ids" if "input_ids" in inputs else "attention_mask"].shape
        index = self._choose(count, width, inputs)
        symbols = self._every[index]
        shape = symbols["batch_size"], symbols["seq_len"]
        # In a batch of all slots each row has a fixed place; a smaller batch has `batch_index`.
        indices = [*rows] if shape[0] == self.rows and rows else [*range(count)]
        full: dict[str, Array] = {}
        for name, array in inputs.items():
            full[name] = array
            by_row = np.moveaxis(array, 0, -1) if name == AXES else array
            if array.ndim == 2 or by_row.shape[:2] == (count, width):
                columns = shape[0], self._columns(name, symbols), *by_row.shape[2:]
                filled = np.full(columns, PADDING if name == "position_ids" else 0, array.dtype)
                if not rows:
                    filled[:, : by_row.shape[1]] = by_row[0]
                filled[indices, : by_row.shape[1]] = by_row
                if name == AXES:
                    filled = np.ascontiguousarray(np.moveaxis(filled, -1, 0))
                full[name] = filled
        if KEPT in full:
            full[KEPT] = np.zeros(symbols[KEPT], np.int64)
        if "full_batch_size" in symbols:
            full["batch_index"] = self._slots(shape[0], indices, rows)
        return FixedCall(
            index=index,
            symbols=symbols,
            inputs=full,
            places=indices,
            width=width,
            kept=len(inputs.get(KEPT, [0])),
        )

    def _columns(self, name: str, symbols: Mapping[str, int]) -> int:
        """Return the number of columns of an input."""
        axis = 2 if name == AXES else 1
        width = self._inputs[name].shape[axis] if name in self._inputs else "seq_len"
        return int(symbols.get(width, width))

    def _choose(self, count: int, width: int, inputs: Mapping[str, Array]) -> int:
        context, kept = inputs.get("comp_ctx_lengths"), len(inputs.get(KEPT, [0]))
        fitting = [
            index
            for index, one in enumerate(self._every)
            if count <= one["batch_size"]
            and width <= one["seq_len"]
            and _keeps(one, kept)
            and (context is None or len(context) == one.get("comp_ctx_lengths"))
        ]
        if not fitting:
            reads = "" if context is None else f" that reads {len(context):,} rows of the cache"
            reads += f" with logits after {kept:,} of them" if kept > 1 else ""
            raise GenerationError(
                f"The program takes no call of {count} x {width:,} tokens{reads}; expected at most "
                f"{' or '.join(dict.fromkeys(map(_shown, self._every)))}, as it was compiled. Make smaller calls, or "
                "build the package with other sizes."
            )

        def cost(index: int) -> tuple[int, int, int]:
            one = self._every[index]
            return one["seq_len"], one["batch_size"], -one.get("comp_ctx_lengths", 0)

        return min(fitting, key=cost)

    def _slots(self, batch: int, indices: Sequence[int], rows: Sequence[int]) -> Array:
        """Return the batch slot of every row of a call (batch, 1); padding rows get unused slots."""
        others = iter(sorted({*range(self.rows)} - {*rows}))
        given = dict(zip(indices, rows, strict=True))
        slots = [given[place] if place in given else next(others) for place in range(batch)]
        return np.array(slots, np.int64)[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeCall:
    """Call with the exact shapes of one specialization.

    Args:
        index: Index of the specialization.
        inputs: Inputs of the caller, plus padding rows, which repeat the first row.
        count: Number of rows of the caller; None without an axis of rows.
    """

    index: int
    inputs: Mapping[str, Array]
    count: int | None = None

    def answer(self, output: Array, axes: Sequence[int | str]) -> Array:
        """Return a whole output of the program, or the requested rows."""
        return output[: self.count] if axes and axes[0] == _ROWS else output

    def chosen(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return no routing choices: this program has no tokens."""
        return {}


class WholeShapes:
    """Shapes of a program that was compiled for fixed images or audio, which are padded by rows only.

    Args:
        specializations: Specializations of the manifest.
        inputs: Inputs of the program.
    """

    def __init__(self, specializations: Specializations, inputs: Mapping[str, Tensor]) -> None:
        self._every = [
            {
                name: [int(entry["symbols"].get(str(axis), axis)) for axis in array.shape]
                for name, array in inputs.items()
            }
            for entry in specializations
        ]
        #: Inputs with an axis of rows.
        self._in_rows = {name for name, array in inputs.items() if array.shape[0] == _ROWS}

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Put every row into a separate call."""
        return [[row] for row in sorted(starts)]

    def fit(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> WholeCall:
        """Return a call in the specialization with its shapes.

        Raises:
            GenerationError: If no specialization has these shapes.
        """
        shapes = {name: [*array.shape] for name, array in inputs.items()}
        count = next((len(inputs[name]) for name in self._in_rows), None)
        for index, every in sorted(enumerate(self._every), key=self._rows_of):
            filled = {
                name: self._filled(name, array, every[name]) for name, array in inputs.items()
            }
            if {name: [*array.shape] for name, array in filled.items()} == every:
                return WholeCall(index=index, inputs=filled, count=count)
        known = " or ".join(str(one) for one in self._every)
        raise GenerationError(
            f"The program takes no call of {shapes}; expected {known}, as it was compiled. Prepare images and audio "
            "as the package's processor does."
        )

    def _rows_of(self, one: tuple[int, Mapping[str, Sequence[int]]]) -> int:
        return max((one[1][name][0] for name in self._in_rows), default=0)

    def _filled(self, name: str, array: Array, shape: Sequence[int]) -> Array:
        """Pad an input by repeating its first row."""
        spare = shape[0] - len(array) if name in self._in_rows else 0
        return np.concatenate([array, *[array[:1]] * spare]) if spare > 0 else array


#: Inputs of programs of image patches: the patches, their positions, and the window order of features.
_PATCHES, _PLACES, _ORDER = "pixel_values", "position_ids", "window_index"
#: Inputs of which such a program has at least one.
_LIE = {_PLACES, "cu_seqlens"}
#: Inputs of programs of audio blocks: the mask of audio, and the frames of each window.
_REAL, _FRAMES = "attention_mask", _ORDER
#: Prefix of inputs with the ends of segments.
_ENDS = "cu_"


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchCall(WholeCall):
    """Call whose patches were padded to one specialization.

    Args:
        patches: Number of patches, or of window frames of audio, before padding.
        padded: Number of patches in the specialization.
        rows: Axis of the output features.
    """

    patches: int
    padded: int
    rows: str = "image_rows"

    def answer(self, output: Array, axes: Sequence[int | str]) -> Array:
        """Cut an output of the program to the features of the patches before padding."""
        kept = (
            slice(size * self.patches // self.padded) if axis == self.rows else slice(None)
            for axis, size in zip(axes, output.shape, strict=True)
        )
        return output[tuple(kept)]


class PatchShapes(WholeShapes):
    """Shapes of a program of image patches, which takes any number up to the largest.

    Padding has position -1, and is a separate segment, or masked: no patch of the image attends to it. In the window
    order it comes last, and so do its features.

    Args:
        specializations: Specializations of the manifest.
        inputs: Inputs of the program.
    """

    def fit(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> PatchCall:
        """Return a call in the smallest specialization that an image fits, with padding.

        Raises:
            GenerationError: If no specialization is large enough.
        """
        given = len(inputs[_PATCHES])
        fitting = [index for index, one in enumerate(self._every) if one[_PATCHES][0] >= given]
        if not fitting:
            most = max(one[_PATCHES][0] for one in self._every)
            raise GenerationError(
                f"An image has {given:,} patches; expected at most {most:,}, as the program was compiled. "
                "Give one of fewer pixels, or build the package with a larger --image-size."
            )
        index = min(fitting, key=lambda one: self._every[one][_PATCHES][0])
        return _filled_call(index, self._every[index], inputs, _PATCHES)


class BlockShapes(WholeShapes):
    """Shapes of a program of audio blocks, which takes any number up to the largest.

    Padding is masked, and is in no window except additional ones at the end.

    Args:
        specializations: Specializations of the manifest.
        inputs: Inputs of the program.
    """

    def fit(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> PatchCall:
        """Return a call in the smallest specialization that an audio input fits, with padding.

        Raises:
            GenerationError: If no specialization is large enough.
        """
        counts = {name: len(array) for name, array in inputs.items()}
        fitting = [
            index
            for index, one in enumerate(self._every)
            if all(one[name][0] >= count for name, count in counts.items())
        ]
        if not fitting:
            most = max(one[_REAL][0] for one in self._every)
            raise GenerationError(
                f"A recording has {counts[_REAL]:,} blocks; expected at most {most:,}, as compiled. Cut it."
            )
        index = min(fitting, key=lambda one: self._every[one][_REAL][0])
        return _filled_call(index, self._every[index], inputs, _FRAMES, rows="audio_rows")


def _filled_call(
    index: int,
    shapes: Mapping[str, Sequence[int]],
    inputs: Mapping[str, Array],
    counted: str,
    rows: str = "image_rows",
) -> PatchCall:
    """Return the padded call of a specialization; the counted input sets how many features are kept."""
    return PatchCall(
        index=index,
        inputs={name: _filled_up(name, array, shapes[name]) for name, array in inputs.items()},
        patches=inputs[counted].size,
        padded=prod(shapes[counted]),
        rows=rows,
    )


def _filled_up(name: str, array: Array, shape: Sequence[int]) -> Array:
    """Pad an input of patches, of segments, or of features."""
    filled = np.zeros(shape, array.dtype)
    if name == _PLACES or (name == _ORDER and array.ndim > 1):
        filled[...] = PADDING
    elif name == _ORDER:
        filled[...] = np.arange(len(filled))
    elif name.startswith(_ENDS):
        filled[...] = array[-1]
    filled[tuple(map(slice, array.shape))] = array
    return filled


def shapes_of(
    specializations: Specializations, inputs: Mapping[str, Tensor]
) -> FixedShapes | WholeShapes:
    """Return the shapes of a program, which fit calls to it.

    Args:
        specializations: Specializations of the manifest.
        inputs: Inputs of the program.
    """
    if all("seq_len" in entry["symbols"] for entry in specializations):
        return FixedShapes(specializations, inputs)
    if {_REAL, _FRAMES} <= inputs.keys():
        return BlockShapes(specializations, inputs)
    return (PatchShapes if _LIE & inputs.keys() else WholeShapes)(specializations, inputs)


def _keeps(symbols: Mapping[str, int], kept: int) -> bool:
    """Whether calls of a specialization return the requested logits: those of one token, or of at least as many."""
    returned = symbols.get(KEPT, 1)
    return returned == 1 if kept == 1 else returned >= kept


def _shown(symbols: Mapping[str, int]) -> str:
    reads = symbols.get("comp_ctx_lengths")
    return f"{symbols['batch_size']} x {symbols['seq_len']:,}" + (
        f" reading {reads:,}" if reads else ""
    )
