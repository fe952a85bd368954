# SPDX-License-Identifier: Apache-2.0
"""Comparisons from records, from tiny models' evidence and from manifests."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo import targets
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import PackageError
from qeff_zoo.hub.entries import Entry
from qeff_zoo.package.manifest import holds
from qeff_zoo.package.proof import sentences
from qeff_zoo.plan.spec import EXPORTER_REVISION, SPEC_VERSION
from qeff_zoo.recipe import Recipe
from qeff_zoo.site import words
from qeff_zoo.site.content import LEVELS, Check, Comparison, Speed, number
from qeff_zoo.validation.judgement.known_models import (
    made_of,
    recipe_digest,
    target_evidence,
    tiny_evidence,
)

_TINY_LEVEL = "tiny"
_SENTENCE = 1000  # characters
#: Tools whose versions are shown, and figures of a comparison.
_MOST_TOOLS, _MOST_CHECKS = 64, 500


#: Errors of code that reads values of another form than a record's or a manifest's.
WRONG_FORM = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


# --- records of checkpoints --------------------------------------------------------------------


def read_records(file: Path) -> dict[str, Any]:
    """Read `ORG/NAME.json` of a folder of records.

    Args:
        file: Path of the file.

    Raises:
        PackageError: The file is no record, or a newer version wrote it.
    """
    content = _read(file)
    try:
        name = content["model_id"] or content["name"]
        for record in content["records"]:
            form, level = record["plan"]["spec"], record["level"]
            if form > SPEC_VERSION or level not in LEVELS:
                raise PackageError(
                    f"A record in {str(file)!r} has form {form!r} and level {level!r}; expected at most form "
                    f"{SPEC_VERSION}, and one of {', '.join(LEVELS)}. A newer qeff-zoo wrote it: install that version."
                )
        return {**content, "name": str(name), "hub": content["model_id"] is not None}
    except (KeyError, TypeError) as error:
        raise no_record(file, f"{type(error).__name__}: {error}") from error


def of_record(record: Mapping[str, Any]) -> Comparison:
    """Return the comparison of a record's entry."""
    passed = record["verdict"] == "validated"
    checks = tuple(_checks(record["checks"]))
    return Comparison(
        what="record",
        target=str(record["target"]),
        weights=str(record["weights"]),
        level=record["level"],
        passed=passed,
        when=str(record.get("finished", "")),
        stale=_is_stale(record["plan"]),
        why="" if passed else _failures(checks),
        sentences=(
            *sentences(record["checks"], {}),
            *words.costs(record.get("costs")),
            *words.measured(record.get("measured")),
        ),
        versions={str(name): str(value) for name, value in record["versions"].items()},
        checks=checks,
    )


def speeds_of(record: Mapping[str, Any]) -> Iterator[Speed]:
    """Yield the measured speed of a record's package, see `bench --record`."""
    speed = record.get("measured", {}).get("speed", {})
    for case in speed.get("cases", ()):
        of_prompts = "prompt_len" in case
        yield Speed(
            weights=str(record["weights"]),
            target=str(record["target"]),
            where=str(speed["where"]),
            batch_size=case["batch_size"],
            context=case["prompt_len"] + case["generation_len"] if of_prompts else None,
            prefill=case["prefill_tokens_per_s"] if of_prompts else None,
            decode=case["decode_tokens_per_s"],
            ttft=case["ttft_s"],
            audio=None if of_prompts else 1 / max(case["real_time_factor"], 1e-9),
            memory=case["peak_rss_bytes"],
        )


# --- tiny models of architectures --------------------------------------------------------------


def read_targets(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Read the evidence of all tiny models on each target, by target and by name of the model.

    Args:
        folder: Folder such as `validated_models/`.
    """
    paths = {name: target_evidence(name, folder) for name in targets.NAMES}
    return {name: _read(path)["models"] for name, path in paths.items() if path.is_file()}


def of_tiny_models(
    recipe: Recipe, folder: Path, on_targets: Mapping[str, Mapping[str, Any]]
) -> tuple[Comparison, ...]:
    """Return the comparisons of an architecture's tiny models, one for each target.

    Args:
        recipe: Recipe with its own task.
        folder: Folder such as `validated_models/`.
        on_targets: Result of `read_targets`.
    """
    others = (_on_target(recipe, name, known) for name, known in on_targets.items())
    return tuple(one for one in (_on_default_target(recipe, folder), *others) if one)


def _on_default_target(recipe: Recipe, folder: Path) -> Comparison | None:
    path = tiny_evidence(recipe.model_type, folder)
    if not path.is_file():
        return None
    content = _read(path)
    try:
        tasks = content["tasks"]
        checks = tuple(
            Check(
                stage=f"{task}, {name}: {stage}",
                metric=metric,
                value=number(value["value"]),
                op=next(op for op in ("<=", ">=", "==") if op in value),
                threshold=number(next(value[op] for op in ("<=", ">=", "==") if op in value)),
                passed=entry["verdict"] == "validated",
                canary=number(value["canary"]),
            )
            for task, entry in tasks.items()
            for name, stages in entry["models"].items()
            for stage, metrics in stages.items()
            for metric, value in metrics.items()
        )
        failed = [task for task, entry in tasks.items() if entry["verdict"] != "validated"]
        return Comparison(
            what="tiny models",
            target=targets.NAMES[0],
            level=_TINY_LEVEL,
            passed=not failed,
            stale=content["recipe"] != recipe_digest(recipe),
            why=f"The tiny models differ for {', '.join(failed)}." if failed else "",
            sentences=(_worst_of(checks),),
            versions=content["versions"],
            checks=checks,
        )
    except (KeyError, TypeError, StopIteration) as error:
        raise no_record(path, f"{type(error).__name__}: {error}") from error


def _on_target(recipe: Recipe, target: str, known: Mapping[str, Any]) -> Comparison | None:
    named = [f"{recipe.model_type}-{tiny.name}" for tiny in recipe.tiny]
    verdicts = {name: known[name] for name in named if name in known}
    if not verdicts:
        return None
    checks = tuple(
        Check(
            stage=name,
            metric="max_relative_error",
            value=number(verdict["max_relative_error"]),
            op="<=",
            threshold=number(verdict["<="]),
            passed=holds(verdict["max_relative_error"], "<=", verdict["<="]),
        )
        for name, verdict in verdicts.items()
        if "max_relative_error" in verdict
    )
    refused = [
        words.reason(verdict["why"])
        for verdict in verdicts.values()
        if verdict["verdict"] == "refused"
    ]
    passed = all(verdict["verdict"] == "agrees" for verdict in verdicts.values())
    return Comparison(
        what="tiny models",
        target=target,
        level=_TINY_LEVEL,
        passed=passed,
        stale=any(verdict["made_of"] != made_of(recipe, target) for verdict in verdicts.values()),
        why="" if passed else " ".join(refused) or _failures(checks),
        sentences=(_worst_of(checks),) if checks else (),
        versions=next(iter(verdicts.values())).get("versions", {}),
        checks=checks,
    )


# --- manifests ---------------------------------------------------------------------------------


def of_manifest(manifest: Mapping[str, Any], entry: Entry) -> Comparison | None:
    """Return the comparison in a manifest; None if nothing was compared.

    Args:
        manifest: Content of a manifest, not checked against its schema.
        entry: Index entry of the package, with the versions of its newest validation.

    Raises:
        ValueError: A value has another type than in a manifest.
    """
    try:
        checks = tuple(_checks(manifest["validation"][:_MOST_CHECKS]))
        if not checks:
            return None
        costs = manifest.get("costs", {})
        against = manifest["validation"][0]["against"]
        tools = manifest["spec"].get("toolchain", {})
        passed = all(check.passed for check in checks)
        return Comparison(
            what=entry.path,
            target=_line(manifest["target"]["name"]),
            weights=_line(manifest["weights"]["storage"]),
            level=manifest["validated"] if manifest["validated"] in LEVELS else LEVELS[0],
            passed=passed,
            when=entry.finished,
            stale=_is_stale(manifest["spec"]),
            why="" if passed else _failures(checks),
            sentences=(
                *(_line(sentence, _SENTENCE) for sentence in sentences(manifest["validation"], {})),
                *words.costs(costs),
            ),
            versions={
                "transformers": _line(against["transformers"]),
                **{_line(tool): _line(version) for tool, version in [*tools.items()][:_MOST_TOOLS]},
                **entry.tested,
            },
            checks=checks,
        )
    except WRONG_FORM as error:
        raise ValueError(_line(f"{type(error).__name__}: {error}")) from error


# --- what they share ---------------------------------------------------------------------------


def _line(text: Any, longest: int = 100) -> str:
    """Shorten a text of others, and put it on one line."""
    return " ".join(str(text)[: 2 * longest].split())[:longest]


def _checks(checks: Iterable[Mapping[str, Any]]) -> Iterator[Check]:
    for check in checks:
        canary = check.get("canary")
        yield Check(
            stage=_line(check["stage"]),
            metric=_line(check["metric"]),
            value=number(check["value"]),
            op=_line(check["op"]),
            threshold=number(check["threshold"]),
            passed=check["passed"] is True,
            canary=number(canary["value"]) if canary else None,
        )


def _is_stale(spec: Mapping[str, Any]) -> bool:
    """Whether a package's graphs were made by an earlier revision of the exporter, or of the target's lowering."""
    of_target = spec.get("target", {})
    now = targets.find(of_target["name"]).revision if of_target.get("name") in targets.NAMES else 0
    revision = of_target.get("revision", now), spec.get("exporter", EXPORTER_REVISION)
    return revision != (now, EXPORTER_REVISION)


def _failures(checks: Iterable[Check]) -> str:
    failed = [check for check in checks if not check.passed]
    if not failed:
        return "A figure failed that the record does not name; the largest error of an output is within its threshold."
    one = failed[0]
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return (
        f"{one.stage}: {words.metric(one.metric)} is {words.figure(one.value, one.metric)}; "
        f"expected {words.allowed(one)}{more}."
    )


def _worst_of(checks: Iterable[Check]) -> str:
    """Return the largest error and its threshold, in a sentence."""
    errors = [check for check in checks if check.metric == "max_relative_error"]
    if not errors:
        return f"{len([*checks])} figures were compared."
    worst = max(errors, key=_excess)
    return (
        f"The largest error of an output is {words.figure(worst.value, worst.metric)} of the spread of all outputs; "
        f"{words.figure(worst.threshold, worst.metric)} is allowed."
    )


def _excess(check: Check) -> float:
    if check.value is None:
        return float("inf")
    return check.value / check.threshold if check.threshold else check.value


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(file))
    except (OSError, RecursionError, ValueError) as error:
        raise no_record(file, str(error)) from error
    if not isinstance(content, dict):
        raise no_record(file, f"it has a {type(content).__name__}")
    return content


def no_record(file: Path, why: str) -> PackageError:
    """Return the refusal of a file of records.

    Args:
        file: Path of the file.
        why: Reason, as a part of a sentence.
    """
    return PackageError(
        f"{str(file)!r} is no record of this version: {why}. Expected a file that `qeff-zoo validate --record` wrote. "
        "Write it again, or install the qeff-zoo that wrote it."
    )
