# SPDX-License-Identifier: Apache-2.0
"""Behind `qeff-zoo validate`: a package against its checkpoint again, or a recipe against its tiny models."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from qeff_zoo import pipeline, registry, targets
from qeff_zoo.checkpoint.draft_heads import HEADS, OF_MODEL
from qeff_zoo.checkpoint.draft_heads.mtp import MTP
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.checkpoint.sources import with_speculator
from qeff_zoo.contract import find, for_task, tasks_of
from qeff_zoo.errors import (
    AdapterError,
    CheckpointError,
    CompileError,
    SpeculatorError,
)
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import adapters_in, source_in
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Tiny
from qeff_zoo.store import Store
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a comparison found.

    Args:
        subject: Name of what was compared, for people.
        level: "tiny" or "checkpoint".
        checks: Entries of the manifest's `validation`, each with its model.
        reported: Measurements without a verdict.
        recorded: Path of the record, if it was written.
    """

    subject: str
    level: str
    checks: list[dict[str, Any]]
    reported: list[dict[str, Any]]
    recorded: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether every check did, and there were some."""
        return bool(self.checks) and all(check["passed"] for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for a program."""
        recorded = {"recorded": str(self.recorded)} if self.recorded else {}
        return {
            "subject": self.subject,
            "level": self.level,
            "passed": self.passed,
            "checks": self.checks,
            "reported": self.reported,
            **recorded,
        }


def check_recipe(
    model_type: str,
    *,
    target: str | None = None,
    record: bool = False,
    reporter: Reporter | None = None,
) -> Outcome:
    """Compare packages of a recipe's tiny models with Hugging Face.

    Args:
        model_type: Model type of the recipe.
        target: Target of the packages; None for the default.
        record: Write `validated_models/_tiny/MODEL_TYPE.json`, or `validated_models/_targets/TARGET.json` of a target
            other than the default.
        reporter: Shows progress.

    Raises:
        ExportError: The recipe needs packages that cannot be imported.
    """
    watch = Stopwatch(reporter or Silent())
    recipe = registry.find_recipe(model_type)
    registry.require_packages(recipe)
    if target in (None, targets.NAMES[0]):
        return _check_recipe(recipe, watch, record=record)
    return _check_on_target(recipe, str(target), watch, record=record)


def check_package(
    package: Package,
    *,
    checkpoint: str | None = None,
    adapters: Sequence[str] = (),
    record: bool = False,
    reporter: Reporter | None = None,
) -> Outcome:
    """Compare a package with Hugging Face.

    Args:
        package: The package.
        checkpoint: Current place of its checkpoint; None for its place at the build on this machine.
        adapters: Current places of merged adapters, in any order; others are expected at their places at the build.
        record: Write `validated_models/ORG/NAME.json`.
        reporter: Shows progress.

    Raises:
        CheckpointError: The checkpoint is not to be found, or is another one.
        AdapterError: The same of an adapter.
    """
    watch = Stopwatch(reporter or Silent())
    return _check_package(package, source_of(package, checkpoint, adapters), watch, record=record)


def _check_package(
    package: Package, source: Checkpoint, watch: Stopwatch, *, record: bool
) -> Outcome:
    from qeff_zoo.validation import ladder as validation
    from qeff_zoo.validation.judgement import records

    with watch.timed("validate") as reporter:
        level = targets.find(package.target).level
        found = validation.validate(package, source, level=level, reporter=reporter)
    return Outcome(
        subject=package.name,
        level=found.level,
        checks=found.checks,
        reported=[dict(found.reported)],
        recorded=records.write(package, found) if record else None,
    )


def source_of(package: Package, given: str | None, adapters: Sequence[str] = ()) -> Checkpoint:
    """Open the checkpoint that a package was built from, and make sure that it is the one.

    Args:
        package: Any.
        given: Current place of the checkpoint; None for its place at the build on this machine.
        adapters: Current places of merged adapters, in any order; others are expected at their places at the build.

    Raises:
        CheckpointError: The checkpoint is missing, or is another one.
        AdapterError: The same of an adapter.
    """
    store, spec = Store(), source_in(package.manifest)
    here = store.source(package.build_key)
    in_gguf = here is not None and here.suffix == ".gguf"  # of which a repository may have several
    known = given or (here if in_gguf else spec.get("model_id") or here)
    if known is None:
        raise CheckpointError(
            f"Where the checkpoint of {package.name!r} lies is not known on this machine. Expected a package that was "
            f"built here, or from the Hub. Name the folder with --checkpoint."
        )
    in_gguf = str(known).endswith(".gguf")
    checkpoint = open_checkpoint(
        str(known),
        revision=None if given or in_gguf else spec.get("revision"),
        config_from=str(package.path / "config.json") if in_gguf else None,
    )
    checkpoint.fetch()
    if (digest := checkpoint.weights_digest(store.file_digest)) != spec["weights"]:
        raise CheckpointError(
            f"The weights in {str(known)!r} are {digest}, but package {package.name!r} was built from "
            f"{spec['weights']}. Name the folder of the right checkpoint with --checkpoint, or build again."
        )
    checkpoint = _with_adapters(checkpoint, package, store, adapters)
    return _with_heads(checkpoint, package, store)


def _with_heads(checkpoint: Checkpoint, package: Package, store: Store) -> Checkpoint:
    """Add the heads that draft for a package, and make sure that they are the ones."""
    made = source_in(package.manifest, "speculator")
    if not made:
        return checkpoint
    if made == OF_MODEL:
        return with_speculator(checkpoint, MTP)
    hub = f"{made['model_id']}@{made['revision']}" if "model_id" in made else None
    place = hub or store.source(package.build_key, HEADS)
    if place is None:
        raise SpeculatorError(
            f"Where the heads {made['digest']} of {package.name!r} lie is not known on this machine. Expected a "
            "package that was built here, or heads of the Hub. Build it again with --draft-heads."
        )
    found = with_speculator(checkpoint, str(place))
    assert found.speculator is not None
    if (digest := found.speculator.source["digest"]) != made["digest"]:
        raise SpeculatorError(
            f"The heads in {str(place)!r} are {digest}, but package {package.name!r} was built with "
            f"{made['digest']}. Expected those. Put them back, or build again with --draft-heads."
        )
    return found


def _with_adapters(
    checkpoint: Checkpoint, package: Package, store: Store, given: Sequence[str]
) -> Checkpoint:
    """Add the adapters that were merged into a package, and make sure that they are the ones."""
    from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
    from qeff_zoo.checkpoint.sources import with_adapters

    made = adapters_in(package.manifest)
    digests = [one["digest"] for one in made]
    here = {f"sha256:{open_adapter(one).digest}": one for one in given}
    if strange := [here[digest] for digest in here if digest not in digests]:
        raise AdapterError(
            f"The adapter {strange[0]!r} was not merged into {package.name!r}. Expected those of the digests "
            f"{', '.join(digests) or 'none'}. Name their folders with --adapter, or leave it out."
        )
    adapters = []
    for number, one in enumerate(made, 1):
        hub = f"{one['model_id']}@{one['revision']}" if "model_id" in one else None
        place = here.get(one["digest"]) or hub or store.source(package.build_key, number)
        if place is None:
            raise AdapterError(
                f"Where the adapter {one['digest']} of {package.name!r} lies is not known on this machine. Expected a "
                "package that was built here, or an adapter of the Hub. Name its folder with --adapter."
            )
        adapters.append(f"{place}={one['weight']!r}")
    found = with_adapters(checkpoint, adapters)
    for one, now in zip(made, found.merged, strict=True):
        if one["digest"] != now.source["digest"]:
            raise AdapterError(
                f"The adapter {now.adapter.name!r} is {now.source['digest']}, but package {package.name!r} was "
                f"built with {one['digest']}. Expected that one. Name its folder with --adapter, or build again."
            )
    return found


def _check_recipe(recipe: Recipe, watch: Stopwatch, *, record: bool) -> Outcome:
    """Build every tiny model for every task with random weights, in a store that goes away, and compare it."""
    from qeff_zoo.validation import ladder as validation
    from qeff_zoo.validation.judgement import records

    checks, reported, found = [], [], {}
    for task, tiny in product(tasks_of(recipe), recipe.tiny):
        one, name = (
            for_task(recipe, task),
            tiny.name if task == recipe.task else f"{tiny.name} {task}",
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            watch.stage(f"{recipe.model_type} {name}"),
        ):
            answer = validation.validate(*tiny_package(one, tiny, Path(folder)), level="tiny")
        found[task, tiny.name] = answer
        checks += [{"model": name, **item} for item in answer.checks]
        reported.append({"model": name, **answer.reported})
    return Outcome(
        subject=recipe.model_type,
        level="tiny",
        checks=checks,
        reported=reported,
        recorded=records.write_tiny(recipe, found) if record else None,
    )


def _check_on_target(recipe: Recipe, target: str, watch: Stopwatch, *, record: bool) -> Outcome:
    """Build the tiny models of a recipe's own task for a target, and compare them; a refusal is an outcome too."""
    from qeff_zoo.validation import ladder as validation
    from qeff_zoo.validation.judgement import records

    found: dict[str, records.OnTarget] = {}
    for tiny in recipe.tiny:
        name = f"{recipe.model_type}-{tiny.name}"
        with tempfile.TemporaryDirectory() as folder, watch.stage(f"{name} {target}"):
            try:
                package, checkpoint = tiny_package(recipe, tiny, Path(folder), target)
                found[name] = validation.validate(package, checkpoint, level="tiny")
            except CompileError as error:
                found[name] = error
    checks: list[dict[str, Any]] = []
    reported: list[dict[str, Any]] = []
    for name, answer in found.items():
        if isinstance(answer, CompileError):
            reported.append({"model": name, "refused": str(answer)})
        else:
            checks += [{"model": name, **item} for item in answer.checks]
            reported.append({"model": name, **answer.reported})
    refused = any(isinstance(answer, CompileError) for answer in found.values())
    return Outcome(
        subject=recipe.model_type,
        level="tiny",
        checks=[] if refused else checks,
        reported=reported,
        recorded=records.write_on_target(recipe, target, found) if record else None,
    )


def tiny_package(
    recipe: Recipe,
    tiny: Tiny,
    folder: Path,
    target: str | None = None,
    *,
    weights: str | None = None,
    seed: int = 0,
    store: Store | None = None,
) -> tuple[Package, Path]:
    """Build a tiny model, without validation; return the package, and the folder of its checkpoint.

    Args:
        recipe: Recipe of the model, for one of its tasks.
        tiny: One of its tiny models.
        folder: A folder for the checkpoint.
        target: Target of the package; None for the default.
        weights: Storage of the weights; None for the target's default.
        seed: Seed of the random weights.
        store: Store of the package and its graphs; None for one in the folder.
    """
    from qeff_zoo.validation import tiny_models

    checkpoint = tiny_models.make(recipe, tiny, folder / "checkpoint", seed=seed)
    # A tenth of a real recording is enough for frames of all kinds.
    first = next(iter(recipe.shapes.values()))
    of_audio = [length // 10 for length in first.seq_lens[:2]]
    lengths = tuple(of_audio) if find(recipe.task).reads == "audio" else (8, 24)
    encoder = Request(target=target, task=recipe.task, weights=weights, seq_lens=lengths)
    read = lengths if of_audio else None  # of those that read texts before they write
    decoder = Request(
        target=target,
        task=recipe.task,
        weights=weights,
        batch_size=3 if target is None else None,  # others may run one row alone
        prefill_seq_len=8,
        ctx_len=tiny.ctx_len or 48,
        seq_lens=read,
        max_num_images=2 if first.max_num_images else None,
    )
    images = Request(target=target, task=recipe.task, weights=weights, batch_size=3)
    built = pipeline.build(
        str(checkpoint),
        {"decoder": decoder, "encoder": encoder}.get(find(recipe.task).role, images),
        validate=False,
        store=store or Store(folder / "store"),
    )
    return built.package, checkpoint
