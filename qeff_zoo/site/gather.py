# SPDX-License-Identifier: Apache-2.0
"""Gathering: recipes, a folder of records and the indexes of remotes -> the content of a site."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qeff_zoo import registry, targets
from qeff_zoo.contract import tasks_of
from qeff_zoo.errors import PackageError, RemoteError
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index_tree import Leaf
from qeff_zoo.hub.naming import notice_text
from qeff_zoo.hub.remotes import remote_at
from qeff_zoo.hub.remotes.protocol import Snapshot
from qeff_zoo.package.manifest import MANIFEST_LIMIT, MANIFEST_NAME, SCHEMA_ID
from qeff_zoo.package.memory import needed_memory
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.recipe import Recipe
from qeff_zoo.site import addresses, evidence, words
from qeff_zoo.site.content import (
    ABSENT,
    DECLARED,
    LEVELS,
    PROVED,
    RED,
    Architecture,
    Cell,
    Comparison,
    Model,
    Speed,
    Variant,
    Zoo,
    highest,
    number,
)
from qeff_zoo.site.reports import Failure, read_report
from qeff_zoo.terminal.printing import human_size
from qeff_zoo.validation.judgement.known_models import FOLDER, list_models

_CONNECTIONS = 8
#: Notices that advise against a package.
_AGAINST = ("known_bad", "yanked")


@dataclass
class _Found:
    """Everything about one model, before it is a `Model`."""

    task: str = ""
    model_type: str = ""
    declared: bool = False
    hub: bool = True
    licenses: set[str] = field(default_factory=set)
    revisions: set[str] = field(default_factory=set)
    variants: list[Variant] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)


def gather(
    remotes: Sequence[str],
    records: Sequence[Path] = (),
    *,
    reports: Sequence[Path] = (),
    title: str = "Model zoo",
    offline: bool = False,
    progress: Callable[[int], object] = lambda amount: None,
) -> Zoo:
    """Return the content of a site.

    Args:
        remotes: Remotes as users write them: `org/repo` of the Hub, or URLs.
        records: Folders such as `validated_models/`, besides our own.
        reports: Reports of `qeff-zoo farm run --json`, whose red cells are shown.
        title: Title of the pages.
        offline: Use cached indexes only.
        progress: Function of the number of packages that were read since its last call.

    Raises:
        RemoteError: A remote has no index, or cannot be reached.
        TrustError: The trust policy refuses an index.
        PackageError: A record or a report cannot be read.
    """
    failures = [failure for file in reports for failure in read_report(file)]
    entries: dict[str, _Found] = defaultdict(_Found)
    _add_known_models(entries, records)
    snapshots = [_snapshot(where, offline=offline) for where in remotes]
    for snapshot in snapshots:
        url = _unpinned(snapshot.url)
        for leaf in snapshot.index.leaves():
            for entry, manifest, problem in _manifests(snapshot, leaf, offline=offline):
                _add_package(entries[entry.model], entry, url, leaf, manifest, problem)
                progress(1)
    _add_failures(entries, failures)
    recipes = {recipe.model_type: recipe for recipe in registry.list_recipes()}
    on_targets = evidence.read_targets(FOLDER)
    tiny = {
        name: evidence.of_tiny_models(recipe, FOLDER, on_targets)
        for name, recipe in recipes.items()
    }
    pages = addresses.assign(entries)
    models = tuple(
        _model(name, pages[name], entries[name], recipes, tiny)
        for name in sorted(entries, key=lambda name: (name.lower(), name))
    )
    counts: dict[str, int] = defaultdict(int)
    for model in models:
        counts[model.architecture] += 1
    return Zoo(
        title=title,
        models=models,
        architectures=tuple(
            _architecture(recipe, tiny[name], counts[name]) for name, recipe in recipes.items()
        ),
        targets=targets.NAMES,
        remotes=tuple(_unpinned(snapshot.url) for snapshot in snapshots),
    )


# --- records -----------------------------------------------------------------------------------


def _add_known_models(models: dict[str, _Found], folders: Iterable[Path]) -> None:
    """Add declared checkpoints, and those with records."""
    for known in list_models():
        one = models[known.model_id]
        one.task, one.model_type = known.task, known.model_type or ""
        one.declared = known.recipe is not None
    for folder in (FOLDER, *folders):
        if not folder.is_dir():
            raise PackageError(
                f"{str(folder)!r} is no folder. Expected the folder of records that `qeff-zoo validate --record` "
                "writes. Correct --records."
            )
        for file in sorted(folder.glob("[!_]*/*.json")):
            _add_file(models, file)


def _add_file(models: dict[str, _Found], file: Path) -> None:
    record = evidence.read_records(file)
    try:
        _add_records(models[record["name"]], record)
    except evidence.WRONG_FORM as error:
        raise evidence.no_record(file, f"{type(error).__name__}: {error}") from error


def _add_records(one: _Found, record: Mapping[str, Any]) -> None:
    one.hub = record["hub"]
    one.task = one.task or record["task"]
    one.model_type = one.model_type or record["model_type"]
    one.comparisons += [evidence.of_record(entry) for entry in record["records"]]
    one.speeds += [speed for entry in record["records"] for speed in evidence.speeds_of(entry)]
    one.revisions |= {entry["revision"] for entry in record["records"] if entry["revision"]}


# --- remotes -----------------------------------------------------------------------------------


def _snapshot(where: str, *, offline: bool) -> Snapshot:
    remote = remote_at(where)
    snapshot = remote.snapshot(offline=offline)
    if snapshot is None:
        raise RemoteError(
            f"{where!r} has no index of packages. Expected a remote that something was published to. Correct the URL, "
            "or publish a package there."
        )
    return snapshot


def _unpinned(url: str) -> str:
    """Return a remote's URL without the commit of a snapshot."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.partition('@')[0] if scheme == 'hf' else rest}"


def _manifests(
    snapshot: Snapshot, leaf: Leaf, *, offline: bool
) -> Iterator[tuple[Entry, Mapping[str, Any] | None, str]]:
    """Yield each package with its manifest, or with the reason why it cannot be read."""

    def read(entry: Entry) -> tuple[Entry, Mapping[str, Any] | None, str]:
        try:
            content = snapshot.read(f"{entry.path}/{MANIFEST_NAME}", limit=MANIFEST_LIMIT)
            if hashlib.sha256(content).hexdigest() != entry.manifest:
                return entry, None, "its manifest differs from the index"
            manifest = json.loads(content)
            if manifest["schema"] != SCHEMA_ID:
                return (
                    entry,
                    None,
                    f"its manifest has form {str(manifest['schema'])[:40]!r}; expected {SCHEMA_ID!r}",
                )
        except (RemoteError, OSError) as error:
            return entry, None, f"its manifest cannot be read: {str(error)[:200]}"
        except (ValueError, KeyError, TypeError, RecursionError):
            return entry, None, "its manifest is not one"
        return entry, manifest, ""

    if snapshot.url.startswith("file:"):
        yield from map(read, leaf.entries)
        return
    if offline:
        yield from ((entry, None, "no manifest is read offline") for entry in leaf.entries)
        return
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        yield from pool.map(read, leaf.entries)


def _add_package(
    one: _Found,
    entry: Entry,
    url: str,
    leaf: Leaf,
    manifest: Mapping[str, Any] | None,
    problem: str,
) -> None:
    comparison, memory, build = None, None, ""
    if manifest is not None:
        try:
            comparison = evidence.of_manifest(manifest, entry)
            memory = needed_memory(manifest)
            build = _effort(manifest)
        except ValueError as error:
            problem = f"its manifest is not one: {error}"
    variant = _variant(entry, leaf.notices.get(entry.path), url, memory, build)
    one.task = one.task or str(entry.axes.get("task", ""))
    one.model_type = one.model_type or entry.model_type
    if entry.license:
        one.licenses.add(entry.license)
    if entry.revision:
        one.revisions.add(entry.revision)
    one.hub = one.hub and addresses.is_hub_id(entry.model)
    one.variants.append(variant)
    one.comparisons.append(_judged(comparison, entry, variant, problem))


def _judged(
    comparison: Comparison | None, entry: Entry, variant: Variant, problem: str
) -> Comparison:
    """Return the comparison of a package; without figures, what its index entry has of it."""
    if comparison is None:
        proved = entry.validated != LEVELS[0]
        unread = (f"The figures are missing: {problem}.",) if problem else ()
        comparison = Comparison(
            what=entry.path,
            target=variant.target,
            weights=variant.weights,
            level=entry.validated,
            passed=proved,
            when=entry.finished,
            sentences=(*((entry.proof,) if entry.proof else ()), *unread),
            versions=dict(entry.tested),
        )
    if variant.usable:
        return comparison
    return replace(comparison, passed=False, why=f"Notice of the publisher: {variant.notice}.")


def _variant(
    entry: Entry, notice: Notice | None, url: str, memory: int | None, build: str
) -> Variant:
    axes = entry.axes
    context = axes.get("ctx_len") or axes.get("seq_lens") or ""
    return Variant(
        remote=url,
        path=entry.path,
        name=entry.variant,
        key=entry.key16,
        target=str(axes["target"]),
        weights=str(axes.get("weights", "")),
        sizes=" ".join(_sizes(axes)),
        context=",".join(map(str, context)) if isinstance(context, list) else str(context),
        size=entry.size,
        memory=memory,
        finished=entry.finished,
        level=entry.validated,
        signed=entry.signed,
        needs=dict(entry.needs),
        notice=notice_text(notice) if notice else "",
        usable=notice is None or notice.state not in _AGAINST,
        build=build,
    )


def _sizes(axes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that set a package apart, beside target, task and weights."""
    for name, option in OPTIONS.items():
        value = axes.get(name)
        if name in ("target", "task", "weights") or value in (None, False, [], ""):
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        yield option.flag if value is True else f"{option.flag} {text}"


def _effort(manifest: Mapping[str, Any]) -> str:
    provenance = manifest.get("provenance")
    if not isinstance(provenance, Mapping) or not isinstance(provenance.get("seconds"), Mapping):
        return ""
    seconds = sum(number(value) or 0 for value in provenance["seconds"].values())
    peak = number(provenance.get("peak_rss_bytes"))
    return f"{seconds:,.0f} s" + (f", {human_size(int(peak))} of memory" if peak else "")


# --- reports -----------------------------------------------------------------------------------


def _add_failures(models: dict[str, _Found], failures: Iterable[Failure]) -> None:
    """Add packages that a farm could not make, and that no remote has by now."""
    for failure in failures:
        one = models[failure.model]
        one.hub = one.hub and addresses.is_hub_id(failure.model)
        one.model_type = one.model_type or failure.model_type
        if failure.key16 not in {variant.key for variant in one.variants}:
            one.comparisons.append(failure.comparison)


# --- models and architectures ------------------------------------------------------------------


def _model(
    name: str,
    page: str,
    one: _Found,
    recipes: Mapping[str, Recipe],
    tiny: Mapping[str, tuple[Comparison, ...]],
) -> Model:
    covered = one.model_type in recipes and (one.declared or bool(one.comparisons))
    recipe = recipes[one.model_type] if covered else None
    of_architecture = tiny[one.model_type] if covered else ()
    own = sorted(one.comparisons, key=lambda c: (-LEVELS.index(c.level), c.target, c.weights))
    return Model(
        name=name,
        page=page,
        task=one.task or (recipe.task if recipe else ""),
        special=recipe.special if recipe else "",
        cells=_cells(own, of_architecture, declared=one.declared),
        comparisons=tuple(own),
        architecture=one.model_type if covered else "",
        hub=one.hub and addresses.is_hub_id(name),
        license=", ".join(sorted(one.licenses)),
        revisions=tuple(sorted(one.revisions)),
        variants=tuple(sorted(one.variants, key=lambda v: (v.finished, v.path), reverse=True)),
        speeds=tuple(one.speeds),
    )


def _architecture(recipe: Recipe, tiny: tuple[Comparison, ...], models: int) -> Architecture:
    return Architecture(
        name=recipe.model_type,
        page=f"{addresses.OWN}/architectures/{registry.file_name(recipe.model_type)}",
        task=recipe.task,
        special=recipe.special,
        cells=_cells(tiny, (), declared=True),
        comparisons=tiny,
        tasks=tasks_of(recipe),
        classes=recipe.architectures,
        models=models,
    )


def _cells(
    own: Iterable[Comparison], of_architecture: Iterable[Comparison], *, declared: bool
) -> tuple[Cell, ...]:
    """Return a cell for each target; the architecture's evidence counts where the model has none of its own."""
    cells = []
    for target in targets.NAMES:
        records = [
            one for one in own if one.target == target and (one.level != LEVELS[0] or one.why)
        ]
        named = any(one.target == target for one in own)
        inherited = not records
        records = records or [one for one in of_architecture if one.target == target]
        red = tuple(dict.fromkeys(_because(record) for record in records if not record.passed))
        if passed := [record for record in records if record.passed]:
            level = highest(one.level for one in passed)
            best = next(one for one in passed if one.level == level)
            cells.append(Cell(target=target, state=PROVED, level=level, how=_how(best), red=red))
        elif records:
            compared = any(record.level != LEVELS[0] for record in records)
            text = "The comparison with Hugging Face failed" if compared else "No usable package"
            text += " for models of this architecture with random weights." if inherited else "."
            cells.append(Cell(target=target, state=RED, how=text, red=red))
        elif named or (declared and target == targets.NAMES[0]):
            text = "A package exists." if named else "A recipe covers it."
            cells.append(Cell(target=target, state=DECLARED, how=f"{text} Nothing was compared."))
        else:
            text = "There is no package and no comparison for this target."
            text += "" if declared or own else " No recipe covers the model."
            cells.append(Cell(target=target, state=ABSENT, how=text))
    return tuple(cells)


def _because(comparison: Comparison) -> str:
    of = f"{comparison.weights}: " if comparison.weights else ""
    return f"{of}{comparison.why or 'the comparison failed.'}"


def _how(best: Comparison) -> str:
    weights = f" Weights: {best.weights}." if best.weights else ""
    when = f" Built {best.when[:10]}." if best.when else ""
    by = f" Versions: {words.listed(best.versions)}." if best.versions else ""
    stale = (
        " The graphs were made by an earlier revision of the code: to be compared again."
        if best.stale
        else ""
    )
    sentence = f" {best.sentences[0]}" if best.sentences else ""
    return f"{words.LEVEL_WORDS[best.level]}{sentence}{weights}{when}{by}{stale}"
