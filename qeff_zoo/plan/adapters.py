# SPDX-License-Identifier: Apache-2.0
"""Decisions about LoRA adapters: adapters merged into the weights, and slots for adapters loaded at runtime."""

from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo import targets
from qeff_zoo.checkpoint.adapters import LORA_RANK, REVISION
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.graph.numerics import STORED
from qeff_zoo.plan.decisions import Decisions
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.recipe import Component
from qeff_zoo.targets.base import Target


def decide_merged_adapters(checkpoint: Checkpoint, request: Request, weights: str) -> Decisions:
    """Record which adapters are merged into the weights; refuse weights that stay in their stored format."""
    decisions = Decisions()
    if not request.adapter:
        return decisions
    decisions.set("adapter", request.adapter, "user")
    if weights == STORED:
        decisions.refuse(
            f"--adapter changes weights, and those of {checkpoint.name!r} would stay as the checkpoint stores them "
            f"({checkpoint.method}). Expected weights that are rounded after the adapter is merged. Choose --weights "
            "int4, int8 or fp32, or build with --max-loras and load the adapter while the package runs."
        )
    return decisions


def decide_adapter_slots(
    request: Request,
    target: Target,
    components: Sequence[Component],
    task_options: Mapping[str, Any],
) -> Decisions:
    """Decide the adapter slots of a package.

    The fact `adapter_slots` has the options that change the graph, by name; it is empty for a package without slots.
    """
    decisions = Decisions()
    others = [name for name in ("max_lora_rank", "lora_targets") if getattr(request, name)]
    if request.max_loras is None:
        decisions.problems += [
            f"{OPTIONS[name].flag} is for packages that take adapters, and --max-loras is not given. Give it, or leave "
            "this out."
            for name in others
        ]
        return decisions.provide(adapter_slots={})
    if target.lora_unsupported:
        decisions.refuse(
            f"--max-loras is {request.max_loras}, but target {target.name!r} takes no adapters while it runs: "
            f"{target.lora_unsupported}. Choose --target {targets.NAMES[0]}, or merge the adapter: --adapter."
        )
    if len(components) > 1:
        decisions.refuse(
            f"--max-loras is {request.max_loras}, but the package has {len(components)} programs, and it is not known "
            "yet what adapters would change in each. Leave it out, or build the checkpoint for another task."
        )
    if request.kv_heads is not None:
        decisions.refuse(
            "--max-loras and --kv-heads exclude each other: adapters are made for the heads that the model has. Leave "
            "one of them out."
        )
    if request.max_lora_rank is None:
        decisions.set("max_lora_rank", LORA_RANK, "default")
    names = ("max_loras", "max_lora_rank", "lora_targets")
    known = {**task_options, **decisions.value}
    chosen = {name: known[name] for name in names if name in known}
    return decisions.provide(adapter_slots={**chosen, "lora_rev": REVISION})
