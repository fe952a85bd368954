# SPDX-License-Identifier: Apache-2.0
"""Which layers to spare where a model does badly with mxfp6 weights.

Each layer is tried with its weights alone in mxfp6, all others in float32: what that costs ranks the layers. Then the
fewest of the costliest are spared with which the model does well. Sparing more never costs more, within what is
measured, so their number is found by halving.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from qeff_zoo.graph.numerics import DeviceNumerics
from qeff_zoo.prediction.measures import Figures
from qeff_zoo.prediction.subject import Subject
from qeff_zoo.terminal.progress import Stopwatch

_LAYER = re.compile(r"(.*?\.\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a search found.

    Args:
        name: Name of the checkpoint, for people.
        costs: Mean distance from float32 by pattern, with these weights alone in mxfp6; the largest first.
        keep: Patterns of weights to spare beyond those that were, for `--keep-precision`.
        figures: Figures with these layers spared, and the device's numerics elsewhere.
        without: Figures before that.
    """

    name: str
    costs: dict[str, float]
    keep: tuple[str, ...]
    figures: Figures
    without: Figures

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for a program."""
        found = asdict(self)
        found["figures"]["verdict"] = self.figures.verdict
        found["without"]["verdict"] = self.without.verdict
        return found


def patterns(weights: Sequence[str]) -> list[str]:
    """Return a pattern for the weights of each layer, and the names of those that are of none.

    Args:
        weights: Names of the Hugging Face model's weights.
    """
    layers = (_LAYER.match(name) for name in weights)
    found = (
        f"{layer[1]}.*" if layer else name for layer, name in zip(layers, weights, strict=True)
    )
    return list(dict.fromkeys(found))


def search(subject: Subject, keep: tuple[str, ...], watch: Stopwatch) -> Search:
    """Find the layers to spare.

    Args:
        subject: Opened.
        keep: Layers that are always spared.
        watch: Reports stages.
    """
    numerics = DeviceNumerics(weights="mxfp6", keep=keep)
    every = patterns([matrix.name for matrix in subject.matrices(numerics)])
    name, full = list(subject.numerics.items())[-1]

    def with_spared(*more: str) -> Figures:
        return subject.on_device(name, replace(full, keep=(*keep, *more)), lambda _: None)

    costs = {}
    with watch.stage("layers", total=len(every), unit="layer") as advance:
        for one in every:
            others = tuple(other for other in every if other != one)
            alone = replace(numerics, keep=(*keep, *others))
            costs[one] = subject.on_device(one, alone, lambda _: None).mean_distance
            advance(1)
    ranked = sorted(costs, key=lambda one: -costs[one])
    with watch.stage("spared", unit="set"):
        without = figures = with_spared()
        fewest = most = 0
        if without.verdict != "good":
            most, figures = len(ranked), with_spared(*ranked)
        # Where it does not do well with all of them spared, there is nothing to find.
        while figures.verdict == "good" and most - fewest > 1:
            middle = (fewest + most) // 2
            found = with_spared(*ranked[:middle])
            if found.verdict == "good":
                most, figures = middle, found
            else:
                fewest = middle
    return Search(
        name=subject.name,
        costs={one: costs[one] for one in ranked},
        keep=tuple(ranked[:most]),
        figures=figures,
        without=without,
    )
