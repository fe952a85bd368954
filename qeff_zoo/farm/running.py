# SPDX-License-Identifier: Apache-2.0
"""Run of a farm: a plan in, packages in stores and remotes out, and a report on every cell.

Outcomes of steps are noted in the store, for later plans. No other file records how far a run is: it begins with what
the store and the remotes have.
"""

import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from qeff_zoo.disk.room import nearest_existing
from qeff_zoo.errors import PublishError
from qeff_zoo.farm.cluster import started
from qeff_zoo.farm.estimates import BUILD, PUBLISH, TRACE, VALIDATE
from qeff_zoo.farm.planning import RED, FarmPlan
from qeff_zoo.farm.schedule import REVALIDATE, Progress, Result, Schedule, Step, drive
from qeff_zoo.farm.tasks import Options
from qeff_zoo.hub.publish.plan import check_destination
from qeff_zoo.hub.remotes import destination
from qeff_zoo.hub.remotes.folder import FolderRemote
from qeff_zoo.site.reports import SCHEMA_ID
from qeff_zoo.store import Store
from qeff_zoo.validation.judgement.freshness import VERSIONS


class Board(Protocol):
    """Shows the progress of many builds, by the numbers of their cells."""

    def begin(self, number: int, name: str, step: str, total: int) -> None:
        """Show that a build begins a step; `total` is the number of its steps."""

    def advance(self, number: int) -> None:
        """Count a step of a build."""

    def end(self, number: int, failure: str) -> None:
        """Remove a build, which need not have begun, and count it; `failure` is empty after success."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a run.

    Args:
        plan: The plan.
        cells: Progress of every cell, in the order of the plan.
        finished: End of the run, in UTC.
    """

    plan: FarmPlan
    cells: tuple[Progress, ...]
    finished: str

    @property
    def red(self) -> tuple[Progress, ...]:
        """Red cells."""
        return tuple(cell for cell in self.cells if cell.state == RED)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for a program."""
        return {
            "schema": SCHEMA_ID,
            "zoo": str(self.plan.zoo.path),
            "finished": self.finished,
            "states": dict(Counter(cell.state for cell in self.cells)),
            "cells": [_described(cell) for cell in self.cells],
        }


def _described(one: Progress) -> dict[str, Any]:
    planned = one.cell.as_dict()
    for name in ("steps", "estimate"):
        del planned[name]
    results = one.results
    warnings = [text for result in results.values() for text in result.warnings]
    return {
        **planned,
        "state": one.state,
        "why": one.reason,
        "seconds": {name: result.seconds for name, result in results.items()},
        "memory": {name: result.memory for name, result in results.items()},
        "node": one.node,
        "published": results[PUBLISH].url if PUBLISH in results else "",
        "warnings": [*dict.fromkeys(warnings)],
    }


def run(
    plan: FarmPlan,
    *,
    address: str | None = None,
    stale: bool = False,
    sign_with: Path | None = None,
    store: Store | None = None,
    board: Board | None = None,
) -> Report:
    """Build, validate and publish what a plan lacks.

    Args:
        plan: The plan.
        address: Address of a Ray cluster; None for this machine.
        stale: Whether packages with stale evidence are validated again, not built.
        sign_with: PEM file of the key that signs indexes.
        store: Store for outcomes; None for the one in `QEFF_HOME`.
        board: Shows progress.

    Raises:
        FarmError: The plan has conflicts, or the machines are unsuitable. Nothing was built.
        PublishError: A remote refuses publications. Nothing was built.
    """
    plan.require_no_conflicts()
    _require_rights(plan)
    schedule = Schedule(plan.cells, revalidate=stale)
    if not schedule.done:
        watcher = _Watcher(schedule, store or Store(), board)
        with started(address, plan.zoo.limits) as cluster:
            cluster.configure(Options(private=plan.zoo.private, sign_with=sign_with))
            schedule.home = cluster.home
            drive(schedule, cluster, watcher.done, watcher.begun)
    finished = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Report(plan=plan, cells=tuple(schedule.progress), finished=finished)


def _require_rights(plan: FarmPlan) -> None:
    """Refuse remotes that take no publication."""
    licences: dict[str, dict[str, str | None]] = {}
    for cell in plan.cells:
        if PUBLISH in cell.steps:
            licences.setdefault(str(cell.remote), {})[cell.wanted.source.name] = cell.license
    for url, of_models in sorted(licences.items()):
        private = plan.zoo.private and not url.startswith("file:")
        check_destination(url, private=private, licences=of_models)
        if isinstance(destination(url), FolderRemote):
            folder = Path(unquote(urlsplit(url).path))
            there = nearest_existing(folder)
            if not os.access(there, os.W_OK):
                raise PublishError(
                    f"Cannot publish to {url!r}: {str(there)!r} may not be written. Expected a folder that this user "
                    "may write. Check its permissions."
                )


@dataclass
class _Watcher:
    """Notes outcomes, and shows progress.

    Args:
        schedule: The schedule.
        store: Store for outcomes.
        board: Shows progress.
    """

    schedule: Schedule
    store: Store
    board: Board | None

    def __post_init__(self) -> None:
        self._left = {number for number, one in enumerate(self.schedule.progress) if one.rest}

    def begun(self, step: Step) -> None:
        if self.board:
            total = len(step.cell.steps) or 1
            self.board.begin(step.number, str(step.cell.wanted), step.name, total)

    def done(self, step: Step, result: Result) -> None:
        self._note(step, result)
        if self.board:
            self.board.advance(step.number)
            # The last failure of a kind ends cells that have not begun, too.
            for number in sorted(self._left) if result.failure else (step.number,):
                one = self.schedule.progress[number]
                if not one.rest:
                    self._left.discard(number)
                    self.board.end(number, one.reason)

    def _note(self, step: Step, result: Result) -> None:
        key = step.cell.package_key
        if step.name == REVALIDATE or result.absent:
            return  # the step noted the outcome of the earlier package
        before = self.store.outcome(key)
        outcome: dict[str, Any] = {"failed": result.reason if result.failure else ""}
        if step.name in (TRACE, BUILD, VALIDATE) and not result.failure and step.cell.needs:
            for name, value in (("seconds", result.seconds), ("memory", result.memory)):
                outcome[name] = {**before.get(name, {}), step.name: value}
            outcome["weights"] = step.cell.needs.weights
        if result.versions:
            outcome[VERSIONS] = result.versions
        self.store.note_outcome(key, outcome)
