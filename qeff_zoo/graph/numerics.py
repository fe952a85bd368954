# SPDX-License-Identifier: Apache-2.0
"""How numbers are stored and computed with: the format of a matrix, and all that a program rounds.

A target states the numerics of what it lowered; the manifest records them, and validation rounds its reference in the
same way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one matrix is stored: floats, or small numbers in blocks that share a scale.

    Args:
        bits: Bits of a value: 32 for float32, 16 for float16, 8 or 4 for integers, 6 for E2M3.
        block: Values that share a scale; 0 for floats, and where all of a row share one.
        zero_points: Whether each block has a zero point of its own; else it is the middle of the integers' range.
        scale: Type of the scales, and of the offsets.
        axis: Along which blocks lie, counted from the last.
        offsets: Whether each block has an offset, a float that is subtracted.
        act_order: Whether columns are stored in another order, that of their activations (`desc_act`).
        element: Type of 8-bit floats that share a scale; empty for integers.
        fitted: Whether the scale and zero point of a block are those of the least squared error, else of its extremes.
        super_block: Blocks that share a float of type `scale`, by which the int8 scale and offset of each is multiplied
            (GGUF's k-quants); 0 if scales and offsets are floats.
        origin: Steps below the zero point at which offsets begin: a value is (integer - zero point + origin) * scale -
            offset.
    """

    bits: int = 32
    block: int = 0
    zero_points: bool = False
    scale: str = "float32"
    axis: int = -1
    offsets: bool = False
    act_order: bool = False
    element: str = ""
    fitted: bool = False
    super_block: int = 0
    origin: int = 0

    @property
    def is_float(self) -> bool:
        """Whether values are stored one by one, as floats."""
        return self.bits >= 16

    @property
    def per_channel(self) -> bool:
        """Whether all integers of a row share a scale."""
        return not self.is_float and not self.block

    @property
    def is_plain(self) -> bool:
        """Whether values are integers, less their zero points, times float32 scales, in the order of the columns."""
        return self.scale == "float32" and not (self.offsets or self.act_order)

    @property
    def is_mx(self) -> bool:
        """Whether it is a microscaling format: scales are powers of two."""
        return self.scale == _E8M0

    @property
    def in_words(self) -> str:
        """For people: "int4 in blocks of 64, zero points"."""
        if self.is_float:
            return f"float{self.bits}"
        kind = {6: "mxfp6", 8: "mxint8"}[self.bits] if self.is_mx else f"int{self.bits}"
        kind = f"fp{self.bits}" if self.element else kind
        more = {
            "zero points": self.zero_points,
            "offsets": self.offsets,
            "act-order": self.act_order,
            "least squares": self.fitted,
        }
        return ", ".join(
            [
                f"{kind}, per-channel" if self.per_channel else f"{kind} in blocks of {self.block}",
                *(name for name in more if more[name]),
            ]
        )


FLOAT32 = Format()
FLOAT16 = Format(bits=16)
_E8M0 = "float8_e8m0fnu"
#: Microscaling formats: see `qeff_zoo.graph.microscaling`.
MXFP6 = Format(bits=6, block=32, scale=_E8M0)
MXINT8 = Format(bits=8, block=32, scale=_E8M0)
#: Columns of a matrix that may share a scale, and how many do unless asked otherwise, of int4 and of all others.
BLOCK_SIZES, INT4_BLOCK_SIZE, BLOCK_SIZE = (32, 64, 128), 32, 64
#: Names of the formats that weights are rounded to, and of leaving them as a quantized checkpoint stores them.
WEIGHTS, STORED = ("fp32", "int8", "int4", "w8a8"), "stored"
#: Names of the formats of a mixture with so many bits a weight, the usual one first.
MIXED = ("int4", "int8")
#: Bits a weight of a mixture by default: it decodes hardly slower than int4 in blocks of 32 alone, which has 5.125.
MIXED_BITS = 5.5
#: What becomes of matrices that a checkpoint stores in fewer bits, of a kind that no kernel takes: see `STORED`.
NEAREST = Format(bits=8, block=32)


def format_of(weights: str, block_size: int | None = None) -> Format:
    """Return what matrices of floats become.

    Args:
        weights: One of `WEIGHTS`, or `STORED`.
        block_size: One of `BLOCK_SIZES`, None for the default; of floats and of rows any.
    """
    if block_size is None:
        block_size = INT4_BLOCK_SIZE if weights == "int4" else BLOCK_SIZE
    formats = {
        "fp32": FLOAT32,
        "int8": Format(bits=8, block=block_size),
        "int4": Format(bits=4, block=block_size, zero_points=True, fitted=True),
        "w8a8": Format(bits=8, block=0),
        STORED: FLOAT32,
    }
    return formats[weights]


@dataclass(frozen=True, kw_only=True)
class RoundedMatrix:
    """A matrix, or a stack of them, that a program reads in another format than float32.

    Args:
        name: Name of the Hugging Face parameter; `name.3` is the fourth matrix of a stack, or the one from the fourth
            row on if a parameter has the rows of several.
        rows: Outputs, or entries of an embedding.
        columns: Inputs.
        input_major: Whether the Hugging Face model holds it as (columns, rows).
        format: Storage format.
        multiplied: Whether the program multiplies by it.
        gathered: Whether the program looks rows up in it.
        kept: Whether the checkpoint stores it so already: nothing is rounded again.
    """

    name: str
    rows: int
    columns: int
    input_major: bool
    format: Format
    multiplied: bool = False
    gathered: bool = False
    kept: bool = False


#: Facts of a matrix, or of its format, that a manifest leaves out where they do not hold.
_OF_CHECKPOINTS = (
    *("kept", "offsets", "act_order", "element", "fitted"),
    *("super_block", "origin"),
)


def _entry(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _entry(value) if isinstance(value, dict) else value
        for name, value in facts.items()
        if value or name not in _OF_CHECKPOINTS
    }


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """All that a program rounds; nothing for one that computes in float32.

    Args:
        matrices: Rounded matrices, each once.
        int8_activations: Whether products by matrices of integers round their left side to int8, in the blocks of the
            matrix, or each row whole as its rows are, and in the order of its columns.
        activations: Type of all that it computes, floats that it reads included.
    """

    matrices: tuple[RoundedMatrix, ...] = ()
    int8_activations: bool = False
    activations: str = "float32"

    @property
    def rounds(self) -> bool:
        """Whether values differ from those of the checkpoint, by what they are stored in or multiplied by."""
        return self.int8_activations or self.rounds_weights

    @property
    def rounds_weights(self) -> bool:
        """Whether weights have other values than those of the checkpoint."""
        return any(not matrix.kept for matrix in self.matrices)

    @classmethod
    def together(cls, every: "Iterable[Numerics]") -> "Numerics":
        """Return what the programs of a package round, of which each has other matrices, or the same ones alike."""
        programs = list(every)
        matrices = dict.fromkeys(matrix for one in programs for matrix in one.matrices)
        return cls(
            matrices=tuple(matrices),
            int8_activations=any(one.int8_activations for one in programs),
            activations=programs[0].activations,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        return {**asdict(self), "matrices": [_entry(asdict(matrix)) for matrix in self.matrices]}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Numerics":
        """Read the entry of a manifest; older ones have the block of activations, which is that of all matrices."""
        matrices = (
            RoundedMatrix(**{**matrix, "format": Format(**matrix["format"])})
            for matrix in entry["matrices"]
        )
        return cls(
            matrices=tuple(matrices),
            int8_activations=entry.get(
                "int8_activations", entry.get("activation_block") is not None
            ),
            activations=entry.get("activations", "float32"),
        )


@dataclass(frozen=True, kw_only=True)
class DeviceNumerics:
    """What a device computes with, and holds its weights and states in.

    Args:
        activations: Type of all that operators return; values beyond float16 become its largest. In float32 nothing but
            matrices is rounded, to float16 or to `weights`.
        weights: Format of constant matrices that are multiplied by; None for that of activations, as all other weights.
        states: Format of retained keys and values; None for that of activations, as recurrent states.
        functions: Whose softmax and sigmoid a graph computes, see `qeff_zoo.targets.emulation.htp`; None for right
            ones. Of Hugging Face's own code it says nothing.
        keep: Patterns of weights' names (`*` and `?` as in file names): operators that read such a weight, and the
            weight itself, stay in float32.
    """

    activations: Literal["float16", "float32"] = "float16"
    weights: Literal["mxfp6"] | None = None
    states: Literal["mxint8"] | None = None
    functions: Literal["htp"] | None = None
    keep: tuple[str, ...] = ()

    @classmethod
    def of_program(cls, entry: Mapping[str, Any]) -> "DeviceNumerics":
        """Read from a program's entry in a manifest what its device rounds."""
        matrices = Numerics.from_dict(entry["numerics"]).matrices
        return cls(
            weights="mxfp6" if any(matrix.format == MXFP6 for matrix in matrices) else None,
            states="mxint8" if any(one["dtype"] == "mxint8" for one in entry["states"]) else None,
        )

    def keeps(self, weight: str) -> bool:
        """Whether a weight stays in float32."""
        return any(fnmatchcase(weight, pattern) for pattern in self.keep)
