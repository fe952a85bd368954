# SPDX-License-Identifier: Apache-2.0
"""Spacing of the times of a run among the training times: diffusers' `timestep_spacing`, the latest time first."""

from typing import Any, Literal

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.scheduler import Numbers

Spacing = Literal["linspace", "leading", "trailing"]
Integers = np.ndarray[Any, np.dtype[Any]]


def spaced(spacing: Spacing, count: int, steps: int, offset: int) -> Numbers:
    """Return the times of the steps, of which evenly spaced ones have fractions.

    Args:
        spacing: "linspace" includes the first and the last training time, "leading" the first and "trailing" the last.
        count: Number of training times.
        steps: Number of steps.
        offset: Number added to times of the spacing "leading".
    """
    match spacing:
        case "linspace":
            return np.linspace(0, count - 1, steps)[::-1]
        case "leading":
            return (np.arange(steps) * (count // steps))[::-1] + float(offset)
        case "trailing":
            return np.arange(count, 0, -count / steps).round() - 1


def rounded(spacing: Spacing, count: int, steps: int, offset: int) -> Integers:
    """Return the times of the steps as whole numbers; see `spaced`."""
    return spaced(spacing, count, steps, offset).round().astype(np.int64)


def solver_times(
    spacing: Spacing, count: int, steps: int, offset: int, last: int | None = None
) -> Integers:
    """Return the times of the steps of a multistep solver, which ends one step below its last time.

    Args:
        spacing: See `spaced`.
        count: See `spaced`.
        steps: See `spaced`.
        offset: See `spaced`.
        last: Number of training times that are used; the number of all by default.
    """
    last = count if last is None else last
    times: Numbers
    match spacing:
        case "linspace":
            times = np.linspace(0, last - 1, steps + 1).round()[::-1][:-1]
        case "leading":
            times = (np.arange(steps + 1) * (last // (steps + 1)))[::-1][:-1] + float(offset)
        case "trailing":
            times = np.arange(last, 0, -count / steps).round() - 1
    return times.astype(np.int64)
