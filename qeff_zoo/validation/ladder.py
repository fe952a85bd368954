# SPDX-License-Identifier: Apache-2.0
"""Is a package right? It answers what Hugging Face's own model answers, and the distance is judged.

In: a package and its checkpoint. Out: a `Record` of checks that fail closed. The reference runs in
its own process and answers several times (see `qeff_zoo.validation.reference`): right, right in other ways,
and wrong on purpose, which the checks must notice.
"""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.numerics import Numerics
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import source_in
from qeff_zoo.tasks import find
from qeff_zoo.validation.parity import (
    TOLERANCES,
    Array,
    Check,
    Judge,
    measure_floor,
    relative_errors,
)
from qeff_zoo.validation.records import Record
from qeff_zoo.validation.reference_answers import Answers, ask
from qeff_zoo.validation.trials import Progress, Trial, try_package

__all__ = ["Record", "validate"]

_TOP = 16  # logits of a position that are kept as evidence


def validate(
    package: Package,
    checkpoint: Path,
    *,
    level: str = "checkpoint",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Record:
    """Compare a package with Hugging Face's model.

    Args:
        package: For target `ort`.
        checkpoint: Folder of the checkpoint that it was built from.
        level: "tiny" for a recipe's tiny model, "checkpoint" for real weights.
        threads: CPU threads of the package and of the reference; None for one per physical core.
        progress: Told of every step.

    Raises:
        ParityError: The reference does not run. A package that disagrees is no error: see `Record.passed`.

    Example:
        >>> record = validate(package, Path("examples/tiny-llama"))  # doctest: +SKIP
        >>> record.passed, record.failures  # doctest: +SKIP
        (True, [])
    """
    step = progress or (lambda steps: None)
    trial = try_package(package, threads, step)
    (program,) = package.programs
    rounding = program.numerics
    reference = ask(_request(package, checkpoint, trial, rounding), threads, step)
    judges = _judges(package, reference, rounding, level)
    return Record(
        level=level,
        checks=_judge(trial, reference, judges),
        reported=_report(trial, reference, judges),
        versions=_versions(reference),
        sequences=trial.sequences,
        arrays=_evidence(trial, reference, judges["reference"].floor.spread),
    )


def _request(
    package: Package, checkpoint: Path, trial: Trial, rounding: Numerics
) -> dict[str, Any]:
    """Write down what the reference is asked: see `qeff_zoo.validation.reference`."""
    return {
        "checkpoint": str(checkpoint.absolute()),
        "task": package.task,
        "ctx_len": max(program.ctx_len for program in package.programs),
        "sequences": trial.sequences,
        "positions": trial.positions,
        "types": trial.types,
        "pooling": _chosen_pooling(package),
        "greedy": trial.greedy and {"prompt": trial.greedy[0], "length": len(trial.greedy[1])},
        "numerics": rounding.as_dict(),
    }


def _versions(reference: Answers) -> dict[str, str]:
    return {
        "qeff_zoo": importlib.metadata.version("qeff-zoo"),
        "onnxruntime": importlib.metadata.version("onnxruntime"),
        **{name: reference.about[name] for name in ("torch", "transformers")},
    }


def _chosen_pooling(package: Package) -> dict[str, Any]:
    """Return what a user chose of the pooling; what nobody chose the reference finds by itself."""
    task, why = package.manifest["spec"]["task"], package.manifest["why"]
    names = [name for name in ("pooling", "normalize") if name in task]
    return {name: task[name] for name in names if why.get(f"task.{name}", "").startswith("user")}


def _judges(
    package: Package, reference: Answers, rounding: Numerics, level: str
) -> dict[str, Judge]:
    """Make a judge for each variant that the package is held against.

    A package of rounded weights is near Hugging Face's model as far as rounding lets it, and very
    near to the same model with the same weights rounded.
    """
    storage = str(package.manifest["weights"]["storage"])
    right = [variant for variant in ("noise", "double") if reference.has(variant)]
    # variant -> what it is, the row of the table, and variants that are as right
    held: dict[str, tuple[str, str, list[str]]] = {"reference": ("float32", storage, right)}
    if rounding.matrices:
        arithmetic = "int8" if rounding.activation_block else "fp32"
        held["reference"] = ("float32", storage, ["rounded"])
        held["rounded"] = (f"float32 rounded to {storage}", arithmetic, right)
    judges = {}
    for variant, (dtype, row, others) in held.items():
        pairs = [(reference.all(variant), reference.all(other)) for other in others]
        judges[variant] = Judge(
            level=level,
            tolerance=TOLERANCES[row],
            floor=measure_floor(pairs, find(package.task).answers),
            mutation=reference.about["mutation"],
            against={
                "reference": reference.about["class"],
                "revision": source_in(package.manifest).get("revision"),
                "transformers": reference.about["transformers"],
                "dtype": dtype,
                "patched": False,
            },
            kind=find(package.task).answers,
        )
    return judges


def _judge(trial: Trial, reference: Answers, judges: Mapping[str, Judge]) -> list[Check]:
    checks: list[Check] = []
    for stage, keys in trial.keys.items():
        canary = reference.at("canary", keys)
        found = [
            check
            for variant, judge in judges.items()
            for check in judge.judge(
                stage, reference.at(variant, keys), trial.answers[stage], canary
            )
        ]
        if not any("canary" in check for check in found):
            variant, judge = list(judges.items())[-1]
            found.append(judge.uncaught(stage, reference.at(variant, keys), canary))
        checks += found
    return checks


def _report(trial: Trial, reference: Answers, judges: Mapping[str, Judge]) -> dict[str, Any]:
    floors = {judge.against["dtype"]: asdict(judge.floor) for judge in judges.values()}
    if trial.greedy is None:
        return {"noise_floor": floors}
    return {"noise_floor": floors, "greedy": _greedy_match(trial.greedy[1], reference)}


def _greedy_match(generated: list[int], reference: Answers) -> dict[str, int]:
    """Count the tokens up to the first that the reference would not have generated."""
    pairs = zip(generated, reference.about["greedy"], strict=False)
    same = [ours == theirs for ours, theirs in pairs]
    return {"generated": len(generated), "matched": [*same, False].index(False)}


def _evidence(trial: Trial, reference: Answers, spread: float | None) -> dict[str, Array]:
    """Keep of every answer the largest values, ours and the reference's, and the distance."""
    arrays: dict[str, Array] = {}
    for stage, keys in trial.keys.items():
        got, expected = trial.answers[stage], reference.at("reference", keys)
        arrays[f"{stage}.positions"] = np.array(
            [(number, trial.positions[number][index]) for number, index in keys]
        )
        arrays[f"{stage}.relative_errors"] = relative_errors(expected, got, spread)
        if trial.greedy is None:  # an embedding has no largest value, and labels are few
            arrays[f"{stage}.expected"], arrays[f"{stage}.got"] = expected, got
            continue
        top = np.argsort(-expected, axis=1, kind="stable")[:, :_TOP]
        arrays[f"{stage}.tokens"] = top
        arrays[f"{stage}.expected"] = np.take_along_axis(expected, top, axis=1)
        arrays[f"{stage}.got"] = np.take_along_axis(got, top, axis=1)
    return arrays
