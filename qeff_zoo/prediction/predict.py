# SPDX-License-Identifier: Apache-2.0
"""Behind `qeff-zoo predict`: what the numerics of devices do to a model, and which layers to spare."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

from qeff_zoo.checkpoint.files import Place
from qeff_zoo.plan.request import Request
from qeff_zoo.prediction.measures import Figures
from qeff_zoo.prediction.subject import FLOAT32, opened
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch

from . import search as searching

#: What target `ort` stores weights in, to compare with.
INTEGERS = ("int8", "int4", "w8a8")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What numerics do to a model.

    Args:
        name: Name of the checkpoint, for people.
        task: Hub pipeline tag.
        tokens: Number of tokens.
        keep: Patterns of weights that stayed in float32.
        rows: Rows by numerics.
        spared: Result of the search for layers to spare; None without one.
    """

    name: str
    task: str
    tokens: int
    keep: tuple[str, ...]
    rows: Sequence[Figures]
    spared: searching.Search | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for a program."""
        rows = [{**asdict(row), "verdict": row.verdict} for row in self.rows]
        return {
            "name": self.name,
            "task": self.task,
            "tokens": self.tokens,
            "keep": list(self.keep),
            "rows": rows,
            **({"search": self.spared.as_dict()} if self.spared else {}),
        }


def predict(
    model: str,
    *,
    text: str | None = None,
    tokens: int = 512,
    keep: tuple[str, ...] = (),
    search: bool = False,
    request: Request = Request(),
    reporter: Reporter | None = None,
    **place: Unpack[Place],
) -> Prediction:
    """Predict the effect of devices' numerics on a model.

    Args:
        model: Hub id, folder or GGUF file.
        text: To predict, or of an encoder to read line by line; None for texts of our own.
        tokens: Maximum number of tokens of the text.
        keep: Patterns of weights that stay in float32 on a device, see `DeviceNumerics`.
        search: Also find out which layers to spare from mxfp6.
        request: Choices that change the graph, the context or the width of calls.
        reporter: Shows progress.
        **place: See `open_checkpoint`.

    Raises:
        PlanError: The checkpoint is for a task of which nothing is predicted, or a pattern names no weight.
        GenerationError: The text is too short.

    Example:
        >>> for row in predict("examples/tiny-llama").rows:  # doctest: +SKIP
        ...     print(row.numerics, row.mean_distance, row.verdict)
    """
    watch = Stopwatch(reporter or Silent())
    rows = []
    with opened(
        model, text=text, tokens=tokens, keep=keep, request=request, watch=watch, **place
    ) as (subject, store):
        with watch.stage(FLOAT32, unit="call") as step:
            rows.append(subject.in_float32(step))
        for name, numerics in subject.numerics.items():
            with watch.stage(name, unit="call") as step:
                rows.append(subject.on_device(name, replace(numerics, keep=keep), step))
        for name in INTEGERS:
            with watch.stage(name, unit="call") as step:
                rows.append(subject.in_integers(name, store, step))
        spared = searching.search(subject, keep, watch) if search else None
        return Prediction(
            name=subject.name,
            task=subject.plan.programs[0].task,
            tokens=sum(map(len, subject.texts.sequences)),
            keep=keep,
            rows=rows,
            spared=spared,
        )
