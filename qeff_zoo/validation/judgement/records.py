# SPDX-License-Identifier: Apache-2.0
"""The evidence of a validation, and the files it is kept in."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo import targets
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import CompileError, PackageError
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import adapter_axis, base_name, source_in
from qeff_zoo.package.proof import sentences
from qeff_zoo.recipe import Recipe
from qeff_zoo.validation.judgement.known_models import (
    made_of,
    recipe_digest,
    target_evidence,
    tiny_evidence,
)
from qeff_zoo.validation.judgement.parity import Array, Check

_QUOTED, _TOP = "prefill", 10  # stage and logits that a record quotes


@dataclass(frozen=True, kw_only=True)
class Record:
    """The evidence that a package is right, or is not.

    Args:
        level: Level of the validation.
        checks: Entries of the manifest's `validation`.
        reported: Measurements without a verdict: the noise floors, agreement of greedy answers.
        costs: Costs of rounding, from the manifest's `costs`.
        versions: Versions of the compared software.
        sequences: Token ids of what was run.
        arrays: Answers: the largest logits, or whole embeddings.
    """

    level: str
    checks: list[Check]
    reported: Mapping[str, Any]
    costs: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str]
    sequences: list[list[int]] = field(repr=False)
    arrays: Mapping[str, Array] = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether every check did, and there were some."""
        return bool(self.checks) and all(check["passed"] for check in self.checks)

    @property
    def failures(self) -> list[str]:
        """One line for each check that failed."""
        return [
            f"{check['stage']}: {check['metric']} is {check['value']}, expected "
            f"{check['op']} {check['threshold']} (against {check['against']['dtype']})"
            + (f": {check['note']}" if "note" in check else "")
            for check in self.checks
            if not check["passed"]
        ]

    def in_manifest(self) -> dict[str, Any]:
        """Return the entries of a manifest: its checks, and what rounding costs."""
        return {"validation": self.checks, **({"costs": self.costs} if self.costs else {})}

    def save_evidence(self, folder: Path) -> Path:
        """Write the arrays to `evidence/validation.npz` of a package's folder."""
        path = folder / "evidence" / "validation.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, allow_pickle=False, **self.arrays)
        return path


def write(package: Package, record: Record, folder: Path = Path("validated_models")) -> Path:
    """Write a record to `ORG/NAME.json`, beside those of the checkpoint's other targets, storages and tasks.

    Args:
        package: Validated package.
        record: Result of the validation.
        folder: Folder of all records.
    """
    path, model = _path_of(package, folder), base_name(package.manifest)
    entry = _entry(package, record)
    kept = json.loads(path.read_bytes())["records"] if path.is_file() else []
    for one in kept:
        if one["build_key"] == entry["build_key"] and "measured" in one:
            entry["measured"] = one["measured"]
    others = [one for one in kept if _identity(one) != _identity(entry)]
    source = source_in(package.manifest)
    content = {
        "model_id": source.get("model_id"),
        "name": model,
        "model_type": package.model_type,
        "task": package.task,
        "records": sorted([*others, entry], key=_identity),
    }
    return _write(path, content)


def measured(package: Package, folder: Path = Path("validated_models")) -> Mapping[str, Any] | None:
    """Return the measurements in a package's record; None if there are none.

    Args:
        package: A package that was perhaps recorded.
        folder: Folder of all records.
    """
    path = _path_of(package, folder)
    records = json.loads(path.read_bytes())["records"] if path.is_file() else []
    measurements = (
        record.get("measured") for record in records if record["build_key"] == package.build_key
    )
    return next(measurements, None)


def add_measured(
    package: Package, figures: Mapping[str, Any], folder: Path = Path("validated_models")
) -> Path:
    """Write measurements of a package's answers into its record. They are no check: nothing is refused for them.

    Args:
        package: A package that was recorded.
        figures: Measurements by name.
        folder: Folder of all records.

    Raises:
        PackageError: The package has no record.
    """
    path = _path_of(package, folder)
    content = json.loads(path.read_bytes()) if path.is_file() else {"records": []}
    entry = next(
        (record for record in content["records"] if record["build_key"] == package.build_key), None
    )
    if entry is None:
        raise PackageError(
            f"Package {package.name!r} has no record in {str(path)!r}. Expected one, to which measurements are added. "
            "Run `qeff-zoo validate PACKAGE --record` first, in the same folder."
        )
    entry["measured"] = {**entry.get("measured", {}), **figures}
    return _write(path, content)


def _path_of(package: Package, folder: Path) -> Path:
    organization, _, name = base_name(package.manifest).rpartition("/")
    return folder / (organization or "local") / f"{name}.json"


def write_tiny(
    recipe: Recipe,
    results: Mapping[tuple[str, str], Record],
    folder: Path = Path("validated_models"),
) -> Path:
    """Write what came of a recipe's tiny models to `_tiny/MODEL_TYPE.json`, in place of what was there.

    Args:
        recipe: Recipe with its own task.
        results: Results by task and name of the tiny model.
        folder: Folder of all records.
    """
    tasks: dict[str, Any] = {}
    for (task, name), record in sorted(results.items()):
        entry = tasks.setdefault(task, {"verdict": "validated", "models": {}})
        entry["models"][name] = _summary(record)
        if not record.passed:
            entry["verdict"] = "failed"
    path = tiny_evidence(recipe.model_type, folder)
    content = {
        "model_type": recipe.model_type,
        "recipe": recipe_digest(recipe),
        "versions": next(iter(results.values())).versions,
        "tasks": tasks,
    }
    return _write(path, content)


#: A comparison, or what the compiler refused.
OnTarget: TypeAlias = Record | CompileError


def write_on_target(
    recipe: Recipe,
    target: str,
    results: Mapping[str, OnTarget],
    folder: Path = Path("validated_models"),
) -> Path:
    """Write what came of tiny models on a target to `_targets/TARGET.json`, beside those of other recipes.

    Args:
        recipe: Recipe with its own task.
        target: Name of the target.
        results: Results by name of the tiny model.
        folder: Folder of all records.
    """
    path = target_evidence(target, folder)
    kept = json.loads(path.read_bytes())["models"] if path.is_file() else {}
    versions = dict(targets.find(target).resolve({}, {}).toolchain)
    of = {"made_of": made_of(recipe, target), "versions": versions}
    verdicts = {name: {**_verdict(result), **of} for name, result in results.items()}
    return _write(path, {"target": target, "models": {**kept, **verdicts}})


def _verdict(results: OnTarget) -> dict[str, Any]:
    if isinstance(results, CompileError):
        return {"verdict": "refused", "why": str(results)}
    errors = [check for check in results.checks if check["metric"] == "max_relative_error"]
    worst = max(errors, key=_excess)
    return {
        "verdict": "agrees" if results.passed else "differs",
        "max_relative_error": worst["value"],
        "<=": worst["threshold"],
    }


def _excess(check: Check) -> float:
    """Return an error in units of what is allowed; what is not a number is beyond everything."""
    value = check["value"]
    return math.inf if value is None else float(value / check["threshold"])


def _summary(record: Record) -> dict[str, dict[str, Any]]:
    """Return each check by stage and metric: what was found, what was required, and the canary's."""
    summary: dict[str, dict[str, Any]] = {}
    for check in record.checks:
        summary.setdefault(check["stage"], {})[check["metric"]] = {
            "value": check["value"],
            check["op"]: check["threshold"],
            "canary": check["canary"]["value"] if check.get("canary") else None,
        }
    return summary


def _write(path: Path, content: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_durably(path, (text + "\n").encode())
    return path


def _entry(package: Package, record: Record) -> dict[str, Any]:
    return {
        "target": package.target,
        "weights": package.manifest["weights"]["storage"],
        "revision": source_in(package.manifest).get("revision"),
        "build_key": package.build_key,
        "finished": package.manifest["provenance"]["finished"][:19] + "Z",
        "plan": package.manifest["spec"],
        "level": record.level,
        "verdict": "validated" if record.passed else "failed",
        "checks": record.checks,
        "reported": record.reported,
        "costs": record.costs,
        "proof": sentences(record.checks, record.costs),
        "versions": record.versions,
        "prompts": record.sequences,
        "reference": _top_answers(record),
    }


def _identity(entry: Mapping[str, Any]) -> tuple[str, ...]:
    merged = adapter_axis(entry["plan"]["sources"].get("adapters", ()))
    return (entry["target"], entry["weights"], entry["plan"]["task"]["name"], *merged)


def _top_answers(record: Record) -> list[dict[str, Any]]:
    """Quote the reference's largest logits after each prompt of one call, and the package's for the same tokens."""
    if f"{_QUOTED}.tokens" not in record.arrays:  # embeddings
        return []
    columns = [
        record.arrays[f"{_QUOTED}.{name}"] for name in ("positions", "tokens", "expected", "got")
    ]
    return [
        {
            "sequence": int(position[0]),
            "position": int(position[1]),
            "tokens": tokens[:_TOP].tolist(),
            "logits": _rounded(expected),
            "package": _rounded(got),
        }
        for position, tokens, expected, got in zip(*columns, strict=True)
    ]


def _rounded(logits: Array) -> list[float]:
    return [float(f"{value:.6g}") for value in logits[:_TOP]]
