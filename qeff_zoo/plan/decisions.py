# SPDX-License-Identifier: Apache-2.0
"""What was chosen for a build so far, who chose it, and all that is wrong with it."""

from typing import Any

from qeff_zoo import targets
from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.adapters import LORA_RANK, REVISION
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.graph.numerics import BLOCK_SIZE, STORED, WEIGHTS, format_of
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.targets.base import Target


class Chosen:
    """Values by the names of their choices, with who chose them, and everything that is wrong with them."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.problems: list[str] = []

    def set(self, name: str, value: Any, by: str) -> None:
        """Choose a field's value."""
        self.value[name], self.why[name] = value, by

    def by_user(self, name: str) -> bool:
        """Tell whether a field was asked for."""
        return self.why.get(name) == "user"

    def first(self, name: str, *candidates: tuple[Any, str]) -> None:
        """Set a field to the first candidate that is not None."""
        self.set(name, *next(candidate for candidate in candidates if candidate[0] is not None))

    def check(self, name: str) -> bool:
        """Tell whether a chosen value is one of those that are allowed; note if it is not."""
        value, one = self.value[name], OPTIONS[name]
        expected = ""
        if one.allowed and value not in one.allowed:
            expected = f"one of {', '.join(map(str, one.allowed))}"
        elif one.least is not None and value < one.least:
            expected = f"at least {one.least}"
        elif one.most is not None and value > one.most:
            expected = f"at most {one.most}"
        if expected:
            self.problems.append(f"{one.flag} is {value!r}, expected {expected}.")
        return not expected


def choose_weights(
    target: Target, checkpoint: Checkpoint, request: Request, choices: Chosen
) -> dict[str, Any]:
    """Choose how matrices are stored, and the blocks of integers.

    Returns:
        `weights`, `stored` and `named` of programs; of no use where there are problems.
    """
    quantized = bool(checkpoint.quantization) and STORED in target.weights
    choices.first(
        "weights",
        (request.weights, "user"),
        (STORED if quantized else None, "checkpoint"),
        (target.weights[0], "default"),
    )
    if request.weights == STORED and not checkpoint.quantization:
        choices.problems.append(
            f"--weights is {STORED!r}, but {checkpoint.name!r} is not quantized. Leave it out, or choose int8 or int4."
        )
    weights, known = choices.value["weights"], choices.check("weights")
    if known and weights not in target.weights:
        choices.problems.append(
            f"--weights is {weights!r}, but target {target.name!r} takes {', '.join(target.weights)}. Choose one."
        )
    named = _choose_formats(target, request, choices)
    if not known:
        return {}
    every = [weights, *named.values()]
    block_size = BLOCK_SIZE
    if any(format_of(name).block for name in every):
        choices.first(
            "block_size", (request.block_size, "user"), (OPTIONS["block_size"].default, "default")
        )
        if choices.check("block_size"):
            block_size = choices.value["block_size"]
    elif request.block_size is not None:
        choices.problems.append(
            f"--block-size applies to int8 and int4 only, and --weights is {weights}. Leave it out, or choose one of "
            "them."
        )
    return {
        "weights": format_of(weights, block_size),
        "stored": weights == STORED,
        "named": tuple((pattern, format_of(name, block_size)) for pattern, name in named.items()),
    }


def _choose_formats(target: Target, request: Request, choices: Chosen) -> dict[str, str]:
    """Choose what single matrices become, by patterns of their names."""
    if not request.format:
        return {}
    choices.set("format", request.format, "user")
    taken = [name for name in WEIGHTS if name in target.weights]
    named: dict[str, str] = {}
    for one in request.format:
        pattern, _, name = one.rpartition("=")
        if pattern and name in taken:
            named.setdefault(pattern, name)
        else:
            choices.problems.append(
                f"--format is {one!r}, expected PATTERN={'|'.join(taken)}, such as '*.down_proj={taken[-1]}'. Correct "
                "it."
            )
    return named


def choose_merged(checkpoint: Checkpoint, request: Request, choices: Chosen) -> None:
    """Note which adapters are merged into the weights; refuse weights that are to stay as they are stored."""
    if not request.adapter:
        return
    choices.set("adapter", request.adapter, "user")
    if choices.value["weights"] == STORED:
        choices.problems.append(
            f"--adapter changes weights, and those of {checkpoint.name!r} would stay as the checkpoint stores them "
            f"({checkpoint.method}). Expected weights that are rounded after the adapter is merged. Choose --weights "
            "int4, int8 or fp32, or build with --max-loras and load the adapter while the package runs."
        )


def choose_adapters(
    target: Target, programs: int, request: Request, choices: Chosen
) -> dict[str, Any]:
    """Choose what a package has for adapters that are loaded while it runs.

    Args:
        target: That it is built for.
        programs: How many the package has.
        request: What the user asked for.
        choices: All that was chosen.

    Returns:
        By the names of choices; nothing where it takes none.
    """
    beside = [name for name in ("max_lora_rank", "lora_targets") if getattr(request, name)]
    if request.max_loras is None:
        choices.problems += [
            f"{OPTIONS[name].flag} is for packages that take adapters, and --max-loras is not given. Give it, or leave "
            "this out."
            for name in beside
        ]
        return {}
    if target.lora_unsupported:
        choices.problems.append(
            f"--max-loras is {request.max_loras}, but target {target.name!r} takes no adapters while it runs: "
            f"{target.lora_unsupported}. Choose --target {targets.NAMES[0]}, or merge the adapter: --adapter."
        )
    if programs > 1:
        choices.problems.append(
            f"--max-loras is {request.max_loras}, but the package has {programs} programs, and it is not known yet "
            "what adapters would change in each. Leave it out, or build the checkpoint for another task."
        )
    if request.kv_heads is not None:
        choices.problems.append(
            "--max-loras and --kv-heads exclude each other: adapters are made for the heads that the model has. Leave "
            "one of them out."
        )
    if request.max_lora_rank is None:
        choices.set("max_lora_rank", LORA_RANK, "default")
    names = ("max_loras", "max_lora_rank", "lora_targets")
    chosen = {name: choices.value[name] for name in names if name in choices.value}
    return {**chosen, "lora_rev": REVISION}


def rounded_floats(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Say of matrices in small floats what becomes of them."""
    floats = formats.floats_of(checkpoint.quantization)
    if not floats:
        return ()
    text = f"{checkpoint.name!r} stores matrices in {floats}, of which no kernel computes products"
    return (
        f"{text}: they are rounded to int8 in blocks of 32, by about 0.6 %. --weights fp32 is exact.",
    )
