# SPDX-License-Identifier: Apache-2.0
"""Plan of a farm: the packages of a zoo, what exists of each, and what the rest needs.

In: a zoo file's cells, the store, the remotes. Out: a `FarmPlan`, from reading alone; conflicts of all cells at once.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from qeff_zoo import targets
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.sources import open_sources
from qeff_zoo.errors import FarmError, PackageError, PlanError, UnsupportedModelError, ZooError
from qeff_zoo.farm.estimates import BUILD, PUBLISH, TRACE, VALIDATE, Estimate, History, estimate
from qeff_zoo.farm.zoo_file import Wanted, Zoo
from qeff_zoo.hub.entries import Entry, axes_of, key16_of
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.naming import notice_text
from qeff_zoo.hub.remotes import destination
from qeff_zoo.package import Package
from qeff_zoo.package.identity import canonical
from qeff_zoo.pipeline import saves_a_build
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.resolve import check
from qeff_zoo.store import Store
from qeff_zoo.validation.judgement.freshness import (
    DISAGREES,
    EVIDENCE,
    described,
    differences,
    same_variant,
    versions_of,
    versions_of_evidence,
)

#: States of a cell: in the remote; in the store; without validation there; with stale evidence; bad, or without a plan;
#: absent.
PUBLISHED, BUILT, UNPROVED, STALE, RED, MISSING = (
    *("published", "built", "unproved", "stale", "red", "missing"),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One package of a zoo.

    Args:
        wanted: Model and options of the build.
        remote: URL of its remote; None without one.
        state: State, such as `PUBLISHED`.
        why: Reason of the state, for people; empty if the state explains itself.
        build_key: Build key; empty without a plan.
        model_type: Model type of the checkpoint.
        target: Target of the package.
        revision: Commit of a Hub model.
        license: Licence that the checkpoint states; None without one.
        runs_here: Whether this machine can run the package.
        graphs: Keys of its graphs, equal for fine-tunes of one architecture.
        needs: Estimated needs; None without a plan.
        older_key: Build key of an earlier package of the same variant in the store; empty without one.
        older_path: Path of an earlier package of the same variant in the remote, if the store has none; else empty.
    """

    wanted: Wanted
    remote: str | None
    state: str
    why: str = ""
    build_key: str = ""
    model_type: str = ""
    target: str = ""
    revision: str | None = None
    license: str | None = None
    runs_here: bool = True
    graphs: tuple[str, ...] = ()
    needs: Estimate | None = None
    older_key: str = ""
    older_path: str = ""

    @property
    def package_key(self) -> str:
        """Build key of the package that the cell has, or will have."""
        return self.older_key if self.state == BUILT and self.older_key else self.build_key

    @property
    def older_key16(self) -> str:
        """First 16 hex digits of the build key of the earlier package; empty without one."""
        return self.older_path[-16:] or key16_of(self.older_key)

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps that the cell still requires, in their order."""
        publish = (PUBLISH,) if self.remote else ()
        prove = (VALIDATE,) if self.runs_here else ()
        if self.state in (MISSING, STALE):
            return (TRACE, BUILD, *prove, *publish)
        return {UNPROVED: (VALIDATE, *publish), BUILT: publish}.get(self.state, ())

    def as_dict(self) -> dict[str, Any]:
        """Return the cell for a program."""
        steps = self.steps
        needs = (
            {
                "memory": max((self.needs.memory[step] for step in steps), default=0),
                "disk": self.needs.disk if steps else 0,
                "seconds": round(sum(self.needs.seconds[step] for step in steps), 1),
                "measured": self.needs.measured,
            }
            if self.needs
            else None
        )
        return {
            "model": self.wanted.source.name,
            "variant": self.wanted.variant,
            "options": self.wanted.options,
            "model_type": self.model_type,
            "target": self.target,
            "build_key": self.build_key,
            "remote": self.remote,
            "state": self.state,
            "why": self.why,
            "steps": [*steps],
            "estimate": needs,
        }


@dataclass(frozen=True, kw_only=True)
class FarmPlan:
    """All cells of a zoo.

    Args:
        zoo: The zoo.
        cells: One for each package, in the order of the file.
        conflicts: Descriptions of cells that cannot be, a text each.
    """

    zoo: Zoo
    cells: tuple[Cell, ...]
    conflicts: tuple[str, ...] = ()

    def require_no_conflicts(self) -> None:
        """Refuse a zoo with cells that cannot be.

        Raises:
            FarmError: There are some; all are listed.
        """
        if self.conflicts:
            raise FarmError(self.zoo.path, self.conflicts)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for a program."""
        return {
            "zoo": str(self.zoo.path),
            "limits": asdict(self.zoo.limits),
            "conflicts": [*self.conflicts],
            "cells": [cell.as_dict() for cell in self.cells],
        }


def plan_farm(zoo: Zoo, store: Store | None = None) -> FarmPlan:
    """Plan every cell of a zoo; small files are downloaded, and nothing else is changed.

    Args:
        zoo: The zoo.
        store: Store of the packages; None for the one in `QEFF_HOME`.

    Raises:
        RemoteError: A remote cannot be read, or its index is of a newer version.
        PublishError: Nothing can be published to a remote.
        FarmError: A package in the store is of a newer version.
    """
    return _Planner(zoo, store or Store()).plan()


@dataclass
class _Planner:
    """Planner of one zoo.

    Args:
        zoo: The zoo.
        store: Store of the packages.
    """

    zoo: Zoo
    store: Store
    _checkpoints: dict[Any, Checkpoint | ZooError] = field(default_factory=dict)
    _digests: dict[Any, str] = field(default_factory=dict)
    _indexes: dict[str, Index] = field(default_factory=dict)

    def plan(self) -> FarmPlan:
        stored = self.store.packages()
        self._packages = [one for one in stored if self.store.is_built_here(one.build_key)]
        self._history = History(store=self.store).add(self._packages)
        cells, conflicts = list[Cell](), list[str]()
        keys: dict[str, Wanted] = {}
        for wanted in self.zoo.wanted:
            try:
                cell = self._cell(wanted)
            except (PlanError, UnsupportedModelError) as error:
                conflicts.append(f"{wanted}: {error}")
                continue
            if cell.build_key in keys and cell.build_key:
                conflicts.append(
                    f"{wanted}: the package is the same as that of {keys[cell.build_key]}. Expected each package "
                    "once. Exclude one of them."
                )
                continue
            keys[cell.build_key] = wanted
            cells.append(cell)
        return FarmPlan(zoo=self.zoo, cells=tuple(cells), conflicts=tuple(conflicts))

    def _cell(self, wanted: Wanted) -> Cell:
        remote = self._remote(wanted)
        cell = Cell(wanted=wanted, remote=remote, state=RED)
        try:
            checkpoint = self._checkpoint(wanted)
            plan = check(checkpoint, wanted.request).of_weights(self._digest(wanted, checkpoint))
        except (PlanError, UnsupportedModelError):
            raise
        except ZooError as error:
            return replace(cell, why=str(error))
        needs = estimate(checkpoint, plan, self._history)
        given = {"memory": wanted.source.memory, "disk": wanted.source.disk}
        if given["memory"]:
            needs = replace(needs, memory=dict.fromkeys(needs.memory, given["memory"]))
        if given["disk"]:
            needs = replace(needs, disk=given["disk"])
        target = targets.find(plan.target)
        planned = replace(
            cell,
            build_key=plan.build_key,
            model_type=plan.recipe.model_type,
            target=plan.target,
            revision=checkpoint.revision,
            license=checkpoint.license,
            runs_here=all(target.runs_here(program) for program in plan.programs),
            graphs=tuple(plan.graph_key(program, "") for program in plan.programs),
            needs=needs,
        )
        return self._with_state(planned, plan, checkpoint)

    def _checkpoint(self, wanted: Wanted) -> Checkpoint:
        """Open a checkpoint once for all of its variants."""
        request = wanted.request
        key = self._key(wanted)
        if key not in self._checkpoints:
            try:
                self._checkpoints[key] = open_sources(
                    wanted.source.model, request.adapter, request.draft_heads, **wanted.source.place
                )
            except ZooError as error:
                self._checkpoints[key] = error
        checkpoint = self._checkpoints[key]
        if isinstance(checkpoint, ZooError):
            raise checkpoint
        return checkpoint

    @staticmethod
    def _key(wanted: Wanted) -> Any:
        source, request = wanted.source, wanted.request
        location = tuple(sorted(source.place.items()))
        return (source.model, location, request.adapter, request.draft_heads)

    def _digest(self, wanted: Wanted, checkpoint: Checkpoint) -> str:
        key = self._key(wanted)
        if key not in self._digests:
            self._digests[key] = checkpoint.weights_digest(self.store.file_digest)
        return self._digests[key]

    # --- what exists -------------------------------------------------------------------------

    def _remote(self, wanted: Wanted) -> str | None:
        if self.zoo.remote is None:
            return None
        org, _, name = wanted.source.name.rpartition("/")
        url = self.zoo.remote.replace("{org}", org or "local").replace("{name}", name)
        return destination(url).url

    def _index(self, url: str) -> Index:
        if url not in self._indexes:
            snapshot = destination(url).snapshot()
            self._indexes[url] = snapshot.index if snapshot else Index()
        return self._indexes[url]

    def _with_state(self, cell: Cell, plan: Plan, checkpoint: Checkpoint) -> Cell:
        """Add what exists of a planned cell."""
        index = self._index(cell.remote) if cell.remote else Index()
        notices = index.leaf_of(checkpoint.name).notices
        entries = index.of_model(checkpoint.name)
        for entry in entries:
            if entry.key16 == key16_of(cell.build_key):
                notice = notices.get(entry.path)
                why = f"The remote's notice: {notice_text(notice)}." if notice else ""
                good = notice is None or notice.state == "superseded"
                return replace(cell, state=PUBLISHED if good else RED, why=why)
        package = self._stored(cell.build_key)
        outcome = self.store.outcome(cell.build_key)
        if package and (disagrees := outcome.get(DISAGREES)):
            return replace(cell, state=RED, why=f"Validated again, it disagrees: {disagrees}")
        if outcome.get("failed"):
            cell = replace(cell, why=f"Last time: {outcome['failed']}")
        for state, validate in ((BUILT, True), (UNPROVED, False)):
            if package and saves_a_build(package, self.store, validate=validate):
                return replace(cell, state=state)
        return self._older(cell, plan, checkpoint, {*notices}, entries)

    def _stored(self, key: str) -> Package | None:
        """Return the store's package of a key; a damaged one counts as none.

        Raises:
            FarmError: It is of a newer version.
        """
        try:
            return Package.open(self.store.folder(key))
        except PackageError as error:
            if "manifest schema" in str(error):
                raise FarmError(self.zoo.path, [str(error)]) from error
            return None

    def _older(
        self,
        cell: Cell,
        plan: Plan,
        checkpoint: Checkpoint,
        noticed: set[str],
        entries: Iterable[Entry],
    ) -> Cell:
        """Add an earlier package of the same variant, made with other software."""
        spec = json.loads(canonical(plan.spec))
        now, paths = versions_of(spec), {entry.key16: entry.path for entry in entries}
        bad = {path[-16:] for path in noticed}
        for package in self._packages:
            key16 = key16_of(package.build_key)
            outcome = self.store.outcome(package.build_key)
            if package.validated == "none" or key16 in bad or outcome.get(DISAGREES):
                continue
            if same_variant(package.manifest["spec"], spec):
                before = versions_of_evidence(package, self.store)
                fresh = PUBLISHED if key16 in paths else BUILT
                return _compared(cell, before, now, package.build_key, fresh)
        manifest: dict[str, Any] = {
            "target": {"name": plan.target},
            "task": plan.recipe.task,
            "spec": spec,
        }
        if checkpoint.gguf:
            manifest["weights"] = {"gguf_file": checkpoint.gguf}
        axes = axes_of(manifest)
        for entry in entries:
            if entry.axes == axes and entry.revision == cell.revision and entry.key16 not in bad:
                if entry.tested.get(EVIDENCE) == described(now):
                    return replace(cell, state=PUBLISHED, older_path=entry.path)
                tested = {name: it for name, it in entry.tested.items() if name in now}
                changes = differences(tested, {name: now[name] for name in tested})
                why = "; ".join(changes) or f"made with other software than {described(now)}"
                return replace(cell, state=STALE, older_path=entry.path, why=why)
        return replace(cell, state=MISSING)


def _compared(
    cell: Cell, before: Mapping[str, str], now: Mapping[str, str], older_key: str, fresh: str
) -> Cell:
    if changes := differences(before, now):
        return replace(cell, state=STALE, older_key=older_key, why="; ".join(changes))
    return replace(cell, state=fresh, older_key=older_key)
