# SPDX-License-Identifier: Apache-2.0
"""Decision about weights: the storage format of each matrix."""

from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.graph.numerics import MIXED, MIXED_BITS, STORED, WEIGHTS, format_of
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.plan.request import Request
from qeff_zoo.targets.base import Target

#: Bits of a stored value, with scales, up to which its error is like that of int4, and from which it is negligible.
_FEW, _ALMOST_EXACT = 5.0, 7.5


def decide_weights(checkpoint: Checkpoint, request: Request, target: Target) -> Decisions:
    """Decide the storage formats of matrices, and the block size of integers.

    The fact `formats` has the fields `weights`, `stored` and `named` of programs; it is empty if there are problems.
    The fact `float8` is whether 8-bit floats of the checkpoint stay.
    """
    decisions = Decisions()
    keeps = target.keeps_float8 and formats.is_float8(checkpoint.quantization)
    stores = bool(checkpoint.quantization) and STORED in target.weights and not keeps
    mixed = request.bits is not None and _choose_bits(target, request, decisions)
    decisions.first(
        "weights",
        (request.weights, "user"),
        (MIXED[0] if mixed else None, "user"),
        (STORED if stores else None, "checkpoint"),
        (target.weights[0], "default"),
    )
    if decisions.value["weights"] == MIXED[0] and not mixed and {*MIXED} <= {*target.weights}:
        decisions.set("bits", MIXED_BITS, "default")
        mixed = True
    if request.weights == STORED and not checkpoint.quantization:
        decisions.refuse(
            f"--weights is {STORED!r}, but {checkpoint.name!r} is not quantized. Leave it out, or choose int8 or int4."
        )
    weights, known = decisions.value["weights"], decisions.check("weights")
    if known and weights not in target.weights:
        decisions.refuse(
            f"--weights is {weights!r}, but target {target.name!r} takes {', '.join(target.weights)}. Choose one."
        )
    named = _choose_formats(target, request, decisions)
    stays = weights == STORED and target.keeps_float8
    decisions.provide(float8=stays and formats.has_float8(checkpoint.quantization))
    if not known:
        return decisions.provide(weights=weights, formats={})
    chosen = [weights, *named.values()]
    block_size = None
    if sizes := [format_of(name).block for name in chosen if format_of(name).block]:
        if not mixed or request.block_size is not None:  # else each matrix has blocks of its own
            decisions.first("block_size", (request.block_size, "user"), (min(sizes), "default"))
        if "block_size" in decisions.value and decisions.check("block_size"):
            block_size = decisions.value["block_size"]
    elif request.block_size is not None:
        decisions.refuse(
            f"--block-size applies to int8 and int4 only, and --weights is {weights}. Leave it out, or choose one of "
            "them."
        )
    formats_of_programs = {
        "weights": format_of(weights, block_size),
        "stored": weights == STORED,
        "named": tuple((pattern, format_of(name, block_size)) for pattern, name in named.items()),
    }
    return decisions.provide(weights=weights, formats=formats_of_programs)


def _choose_bits(target: Target, request: Request, decisions: Decisions) -> bool:
    """Choose the bits a weight of a mixture of formats; return whether the target has these."""
    decisions.set("bits", request.bits, "user")
    decisions.check("bits")
    lacking = [name for name in MIXED if name not in target.weights]
    if lacking:
        decisions.refuse(
            f"--bits is {request.bits}, a mixture of {' and '.join(MIXED)}, but target {target.name!r} takes "
            f"{', '.join(target.weights)}. Leave it out, or choose another target."
        )
    elif request.weights not in (None, MIXED[0]):
        decisions.refuse(
            f"--bits is {request.bits}, a mixture of {' and '.join(MIXED)}, and --weights is {request.weights!r}. "
            "Leave one of them out."
        )
    return not lacking


def _choose_formats(target: Target, request: Request, decisions: Decisions) -> dict[str, str]:
    """Choose the storage formats of single matrices, by patterns of their names."""
    if not request.format:
        return {}
    decisions.set("format", request.format, "user")
    taken = [name for name in WEIGHTS if name in target.weights]
    named: dict[str, str] = {}
    for entry in request.format:
        pattern, _, name = entry.rpartition("=")
        if pattern and name in taken:
            named.setdefault(pattern, name)
        else:
            decisions.refuse(
                f"--format is {entry!r}, expected PATTERN={'|'.join(taken)}, such as '*.down_proj={taken[-1]}'. "
                "Correct it."
            )
    return named


def rounding_warnings(checkpoint: Checkpoint, request: Request) -> tuple[str, ...]:
    """Return a warning if weights of few bits are rounded again, to int4; empty for others.

    The error of 8 bits is small beside that of int4.
    """
    if (request.weights != "int4" and request.bits is None) or not checkpoint.quantization:
        return ()
    flag = "--weights int4" if request.bits is None else "--bits"
    bits = checkpoint.stored_bits
    if bits is not None and bits >= _ALMOST_EXACT:
        return ()
    again = f"{checkpoint.name!r} has rounded its weights already ({checkpoint.method}), and {flag} rounds them again"
    if bits is not None and bits > _FEW:
        return (f"{again}, by more than its {bits:.1f} bits do. --weights {STORED} keeps them.",)
    return (
        f"{again}: both errors add up. Use --weights {STORED}, which keeps them as they are, or the checkpoint that "
        "was rounded.",
    )


def float_warnings(checkpoint: Checkpoint, request: Request, target: Target) -> tuple[str, ...]:
    """Return a warning if FP8 or FP4 weights are requantized or dequantized by default; empty for other checkpoints."""
    floats = formats.floats_of(checkpoint.quantization)
    if floats is None or request.weights not in (None, STORED) or request.bits is not None:
        return ()
    text = f"{checkpoint.name!r} stores matrices in {floats.value}"
    if "int8" in target.weights:
        return (
            f"{text}, of which no kernel computes products: they are rounded to int8 in blocks of 32, by about 0.6 %. "
            "--weights fp32 is exact.",
        )
    if target.keeps_float8 and formats.is_float8(checkpoint.quantization) and not request.weights:
        return (
            f"{text}, which are dequantized. --weights stored keeps them in the graph, for a compiler that accepts "
            "them.",
        )
    return ()
