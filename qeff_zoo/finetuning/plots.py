# SPDX-License-Identifier: Apache-2.0
"""Plot of a training run's losses: entries of its log in, an image file out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw(entries: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the training and validation losses of a run.

    Args:
        entries: Entries of its log.
        path: Path of the image.
        title: Above it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, label, mark in (("loss", "training", ""), ("eval_loss", "validation", "o")):
        points = [(entry["step"], entry[name]) for entry in entries if name in entry]
        if points:
            axes.plot(*zip(*points, strict=True), marker=mark, label=label)
    axes.set(title=title, xlabel="step", ylabel="loss, nats per token")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
