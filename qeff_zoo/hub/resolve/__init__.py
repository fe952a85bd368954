# SPDX-License-Identifier: Apache-2.0
"""Resolution of a model: use an existing package, build one, or neither, with the reasons.

In: a model id and the requested options. Out: a `Resolution`. It considers the packages of the store, and those of the
first remote that has any of this model: the remotes of the settings in their order, then the Hub repository with the
same id. Later remotes are not read, so that they cannot replace a package that the first one lacks.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from qeff_zoo import registry
from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.weight_files import names_gguf
from qeff_zoo.disk.regular import is_here
from qeff_zoo.errors import (
    AdapterError,
    CheckpointError,
    PlanError,
    ResolutionError,
    SpeculatorError,
    TrustError,
    UnsupportedModelError,
)
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.naming import ambiguity, full_name, is_named, short_name
from qeff_zoo.hub.remotes.protocol import Snapshot
from qeff_zoo.hub.resolve.choose import Candidate, Wanted, decide
from qeff_zoo.hub.resolve.of_adapter import AdapterRequest, of_adapter
from qeff_zoo.package.manifest import adapter_axis, digest_axis
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.store import Store
from qeff_zoo.versions import installed

from . import lookup

USE, USE_WITH_WARNING, BUILD, FAIL = "USE", "USE_WITH_WARNING", "BUILD", "FAIL"
#: What the command line exits with.
EXIT_CODES: Mapping[str, int] = {USE: 0, USE_WITH_WARNING: 11, BUILD: 10, FAIL: 20}


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """What to do, and all that was considered.

    Args:
        verdict: USE, USE_WITH_WARNING, BUILD or FAIL.
        model: Model id of the packages that were considered.
        candidates: Matching packages, the best first; then the others, the nearest first.
        snapshot: Snapshot of the remote that has packages of the model; None if only the store was searched.
        notes: Places that had nothing or did not respond.
        problems: Why no package can be built either; of FAIL alone.
    """

    verdict: str
    model: str
    candidates: tuple[Candidate, ...] = ()
    snapshot: Snapshot | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate | None:
        """The package to use."""
        return self.candidates[0] if self.verdict in (USE, USE_WITH_WARNING) else None

    @property
    def entry(self) -> Entry | None:
        """Index entry of the chosen package."""
        return self.chosen.entry if self.chosen else None

    @property
    def here(self) -> Path | None:
        """The folder of the package to use, if the store has it."""
        return self.chosen.here if self.chosen else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know about the package to use."""
        return self.chosen.warnings if self.chosen else ()

    @property
    def nearest(self) -> Candidate | None:
        """Of the packages that will not do, the one that lacks least."""
        return next((candidate for candidate in self.candidates if candidate.refused), None)

    @property
    def difference(self) -> str:
        """What the nearest package lacks, in words."""
        return self.nearest.difference if self.nearest else ""

    @property
    def exit_code(self) -> int:
        """Of the command line."""
        return EXIT_CODES[self.verdict]

    def explanation(self) -> str:
        """Explain in one line why no package matches."""
        if self.nearest is None:
            return f"There is no package of {self.model!r}."
        number = len(self.candidates)
        packages = "One package" if number == 1 else f"{number:,} packages"
        examined = f"{packages} of {self.model!r} {'was' if number == 1 else 'were'} looked at"
        nearest = short_name(self.nearest.entry.path)
        return f"{examined}; the nearest, {nearest}, will not do: {self.difference}."


def resolve(
    reference: str,
    requirements: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    remote: str | None = None,
    store: Store | None = None,
    adapters: bool = False,
    **place: Unpack[Place],
) -> Resolution:
    """Decide what to do for a model.

    Args:
        reference: Model id (`org/name`), Hub repository of packages (`org/repo[@revision]`), URL of a remote, folder of
            a checkpoint, or GGUF file.
        requirements: Fields of `qeff_zoo.plan.request.Request`, and any other axis by its name; those of None are free.
        key: Name of the one package that will do: its key, 8 hex digits or more, its variant, or its path.
        remote: URL or `org/repo` of the only remote that is read; the reference is then a model id.
        store: Local store; None for the one that `QEFF_HOME` names.
        adapters: Take the folder or the repository of an adapter for a package of its base that it can be loaded into.
        **place: Which checkpoint of that name is meant, see `qeff_zoo.checkpoint.opening.open_checkpoint`.

    Raises:
        ResolutionError: The reference names several models, the key several packages, or the revision is not known.
        RemoteError: A remote of the settings did not answer, and the store has nothing that will do; or the remote
            that was named did not.
        TrustError: A remote has an older index than it had.

    Example:
        >>> resolve("org/model", {"ctx_len": 4096}).verdict  # doctest: +SKIP
        'USE'
    """
    requested = {name: value for name, value in (requirements or {}).items() if value is not None}
    if adapters and remote is None and (one := _adapter_of(reference, store or Store())):
        given = resolve(one.model, {**one.requirements, **requested}, key=key, store=store, **place)
        note = f"{reference} is an adapter of {one.model}: load it into this package."
        return replace(given, notes=(note, *given.notes))
    looked_up = lookup.look_up(reference, store or Store(), remote=remote, key=key, place=place)
    revision = place.get("revision")
    _require_one(key, looked_up.candidates)
    commit = lookup.commit_of(looked_up.model, revision) if revision else None
    model_type = looked_up.candidates[0].entry.model_type if looked_up.candidates else None
    wanted = _wanted(requested, model_type, commit, key)
    if file := place.get("gguf_file"):
        there = (str(candidate.entry.axes.get("gguf_file")) for candidate in looked_up.candidates)
        file = next((one for one in there if names_gguf(file, one)), file)
        wanted = replace(wanted, axes={**wanted.axes, "gguf_file": file})
    candidates = tuple(decide(looked_up.candidates, wanted, looked_up.notices, installed))
    verdict, problems = _verdict(looked_up, candidates, requested, wanted, place)
    return Resolution(
        verdict=verdict,
        model=looked_up.model,
        candidates=candidates,
        snapshot=looked_up.snapshot,
        notes=looked_up.notes,
        problems=tuple(problems),
    )


def _adapter_of(reference: str, store: Store) -> AdapterRequest | None:
    """Read the requirements of an adapter; search the Hub for one only if it has no packages of that name."""
    if not is_here(reference) and lookup.look_up(reference, store).candidates:
        return None
    return of_adapter(reference)


def _require_one(key: str | None, candidates: tuple[Candidate, ...]) -> None:
    """Refuse a name that several packages have."""
    if key is None:
        return
    entries = (candidate.entry for candidate in candidates)
    named = {
        entry.path: full_name(entry.model, entry.path)
        for entry in entries
        if is_named(key, entry.path)
    }
    if len(named) > 1:
        raise ResolutionError(ambiguity(key, named.values()))


def _verdict(
    looked_up: lookup.Found,
    candidates: tuple[Candidate, ...],
    requested: Mapping[str, Any],
    wanted: Wanted,
    place: Place,
) -> tuple[str, list[str]]:
    if candidates and not candidates[0].refused:
        return (USE_WITH_WARNING if candidates[0].warnings else USE), []
    if looked_up.unanswered:
        raise looked_up.unanswered
    if looked_up.absent:
        return FAIL, [looked_up.absent]
    if wanted.key is not None:
        return FAIL, [_unkeyed(wanted.key, candidates)]
    problems = _obstacles(looked_up.checkpoint, requested, {**place, "revision": wanted.revision})
    return (FAIL if problems else BUILD), problems


def _wanted(
    requested: Mapping[str, Any], model_type: str | None, revision: str | None, key: str | None
) -> Wanted:
    """Part what must be so from what we would choose."""
    must = dict(requested)
    profile = must.pop("profile", None)
    preferred = _defaults(model_type, must.get("task"), profile)
    if "batch_size" in must and "full_batch_size" not in must:
        must["continuous_batching"] = False  # as a plan takes it
    if profile and preferred.get("full_batch_size") and "batch_size" not in must:
        must.setdefault("full_batch_size", preferred["full_batch_size"])  # what the profile is for
    if adapters := must.get("adapter"):
        from qeff_zoo.checkpoint.adapters.merged import open_merged

        must["adapter"] = adapter_axis(one.source for one in open_merged(adapters))
    elif key is None:
        must["adapter"] = None  # what was merged into another changes its answers
    if heads := must.get("draft_heads"):
        from qeff_zoo.checkpoint.draft_heads import source_of

        must["draft_heads"] = digest_axis(source_of(heads))
    return Wanted(axes=must, preferred=preferred, revision=revision, key=key)


def _unkeyed(key: str, candidates: tuple[Candidate, ...]) -> str:
    """Explain why the only matching package is rejected; another cannot be built in its place."""
    named = next(
        (candidate for candidate in candidates if is_named(key, candidate.entry.path)), None
    )
    if named is None:
        return f"No package has the key {key!r}."
    return f"The package {short_name(named.entry.path)} will not do: {named.difference}."


def require(resolution: Resolution) -> Candidate:
    """Return the package to use.

    Raises:
        TrustError: There is one, and the trust policy refuses it.
        ResolutionError: There is none; with the nearest, and what to do.
    """
    if resolution.chosen:
        return resolution.chosen
    if resolution.nearest and resolution.nearest.is_only_distrusted:
        raise TrustError(resolution.nearest.difference)
    advice = (
        f"Run `qeff-zoo build {resolution.model}` to make one, or ask for less."
        if resolution.verdict == BUILD
        else " ".join(resolution.problems)
    )
    notes = "".join(f" {note}" for note in resolution.notes)
    raise ResolutionError(f"{resolution.explanation()}{notes} {advice}".strip())


# --- what a build would choose, and whether it is possible -------------------------------------


def _defaults(model_type: str | None, task: str | None, profile: str | None) -> dict[str, Any]:
    """Return the default options of a build, the most important first.

    Args:
        model_type: Model type of the checkpoint; None if it is unknown.
        task: Requested task; None for the recipe's.
        profile: One of the recipe's shapes; None for the first.

    Raises:
        PlanError: The recipe has no such profile.
    """
    from qeff_zoo.contract import NAMES, for_task

    chosen: dict[str, Any] = {name: OPTIONS[name].default for name in ("target", "weights")}
    if model_type is None:
        return chosen
    try:
        recipe = registry.find_recipe(model_type)
    except UnsupportedModelError:
        return chosen  # a package of a recipe that this version does not have
    if task not in (None, *NAMES):
        return chosen  # nor this task
    recipe = for_task(recipe, task or recipe.task)
    profile = profile or next(iter(recipe.shapes))
    if profile not in recipe.shapes:
        known = ", ".join(recipe.shapes)
        raise PlanError(
            [f"--profile is {profile!r}, but recipe {model_type!r} has {known}. Choose one."]
        )
    return {"task": recipe.task, **chosen, **asdict(recipe.shapes[profile])}


def _obstacles(checkpoint: str | None, requirements: Mapping[str, Any], place: Place) -> list[str]:
    """Explain why no package can be built of a model; empty if one can.

    Args:
        checkpoint: Model id or folder; None if it is not known.
        requirements: Requirements of the package.
        place: Which checkpoint of that name is meant.
    """
    if checkpoint is None:
        return ["What to build is not known. Give a model id in place of a URL."]
    from qeff_zoo.checkpoint.sources import open_sources
    from qeff_zoo.plan.resolve import check

    if unknown := sorted(requirements.keys() - OPTIONS.keys()):
        return [f"A build here knows no {', '.join(unknown)}. Leave it out."]
    try:
        request = Request(**requirements)
        opened = open_sources(
            checkpoint, request.adapter, request.draft_heads, need_weights=False, **place
        )
        check(opened, request)
    except PlanError as error:
        return error.problems
    except (AdapterError, CheckpointError, SpeculatorError, UnsupportedModelError) as error:
        return [str(error)]
    return []
