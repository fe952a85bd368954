# SPDX-License-Identifier: Apache-2.0
"""Plot of measured speeds: figures in, an image file out."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from qeff_zoo.bench import Figures

#: By label, points (across, upwards).
Curves: TypeAlias = Mapping[str, list[tuple[float, float]]]


def draw(figures: Sequence[Figures], path: Path, title: str) -> None:
    """Draw decode speed against context, and throughput against batch size.

    Args:
        figures: Measured figures.
        path: Path of the image.
        title: Above it.
    """
    from matplotlib.figure import Figure

    by_batch, by_prompt = curves(figures)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    speed, throughput = figure.subplots(1, 2)
    _draw(speed, by_batch, "Decode speed", "context, tokens", "tokens/s of each request")
    _draw(throughput, by_prompt, "Throughput", "batch size", "generated tokens/s in all")
    throughput.set_xticks(sorted({row.batch_size for row in figures}))
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def curves(figures: Sequence[Figures]) -> tuple[Curves, Curves]:
    """Return what a plot shows: decode speed of a request by context, and throughput by batch size.

    A request's context grows while it decodes; it counts as what it is half way.
    """
    by_batch: dict[str, list[tuple[float, float]]] = defaultdict(list)
    by_prompt: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for figure in sorted(figures, key=lambda one: (one.batch_size, one.prompt_len)):
        if figure.decode_tokens_per_s is not None:
            context = figure.prompt_len + figure.generation_len / 2
            speed = figure.decode_tokens_per_s / figure.batch_size
            by_batch[f"batch {figure.batch_size}"].append((context, speed))
        by_prompt[f"prompt of {figure.prompt_len:,}"].append(
            (figure.batch_size, figure.e2e_tokens_per_s)
        )
    return by_batch, by_prompt


def _draw(axes: Any, lines: Curves, title: str, across: str, upwards: str) -> None:
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set(title=title, xlabel=across, ylabel=upwards)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if lines:
        axes.legend()
