# SPDX-License-Identifier: Apache-2.0
"""What was measured, as an image: speed by `bench`, distances from float32 by `predict`, losses by `finetune`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qeff_zoo.bench import Figures
from qeff_zoo.errors import GenerationError

if TYPE_CHECKING:
    from qeff_zoo.prediction.measures import Figures as Distances

#: By label, points (across, upwards).
Curves: TypeAlias = Mapping[str, list[tuple[float, float]]]
_LEAST = 1e-12  # what a logarithmic axis shows


def check(path: Path) -> None:
    """Find out before anything is measured whether a plot can be drawn.

    Raises:
        ModuleNotFoundError: The extra `plot` is not installed.
        GenerationError: There is no such folder, or no such format.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known or not path.absolute().parent.is_dir():
        raise GenerationError(
            f"Cannot draw {str(path)!r}; expected a file in a folder that exists, named "
            f"{', '.join('.' + suffix for suffix in sorted(known))}. Change --plot."
        )


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
    throughput.set_xticks(sorted({one.batch_size for one in figures}))
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def draw_distances(rows: Sequence["Distances"], path: Path, title: str) -> None:
    """Draw how far each numerics is from float32.

    Args:
        rows: Predicted figures.
        path: Path of the image.
        title: Above it.
    """
    from matplotlib.figure import Figure

    names = [one.numerics for one in rows]
    figure = Figure(figsize=(9, 1 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, [max(one.mean_distance, _LEAST) for one in rows])
    kind = "cosine distance" if rows[0].top1 is None else "KL divergence, nats"
    axes.set(title=title, xlabel=f"mean {kind}", xscale="log")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)


def draw_losses(entries: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the loss of a training run, and that on the rows it is validated on.

    Args:
        entries: Entries of its log.
        path: Path of the image.
        title: Above it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, label, mark in (("loss", "training", ""), ("eval_loss", "validation", "o")):
        points = [(one["step"], one[name]) for one in entries if name in one]
        if points:
            axes.plot(*zip(*points, strict=True), marker=mark, label=label)
    axes.set(title=title, xlabel="step", ylabel="loss, nats per token")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def curves(figures: Sequence[Figures]) -> tuple[Curves, Curves]:
    """Return what a plot shows: decode speed of a request by context, and throughput by batch size.

    A request's context grows while it decodes; it counts as what it is half way.
    """
    by_batch: dict[str, list[tuple[float, float]]] = defaultdict(list)
    by_prompt: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in sorted(figures, key=lambda one: (one.batch_size, one.prompt_len)):
        if one.decode_tokens_per_s is not None:
            context = one.prompt_len + one.generation_len / 2
            speed = one.decode_tokens_per_s / one.batch_size
            by_batch[f"batch {one.batch_size}"].append((context, speed))
        by_prompt[f"prompt of {one.prompt_len:,}"].append((one.batch_size, one.e2e_tokens_per_s))
    return by_batch, by_prompt


def _draw(axes: Any, lines: Curves, title: str, across: str, upwards: str) -> None:
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set(title=title, xlabel=across, ylabel=upwards)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if lines:
        axes.legend()
