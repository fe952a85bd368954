# SPDX-License-Identifier: Apache-2.0
"""Plot of predicted distances: figures in, an image file out."""

from collections.abc import Sequence
from pathlib import Path

from qeff_zoo.prediction.measures import Figures

_LEAST = 1e-12  # a logarithmic axis has no 0


def draw(rows: Sequence[Figures], path: Path, title: str) -> None:
    """Draw the distance of each numerics from float32.

    Args:
        rows: Predicted figures of a single task, not empty.
        path: Path of the image; its suffix selects the format.
        title: Title of the plot.
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
