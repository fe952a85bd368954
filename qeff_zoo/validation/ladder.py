# SPDX-License-Identifier: Apache-2.0
"""Whether a package is right: its answers are compared with those of Hugging Face's own model, and judged.

In: a package and its checkpoint. Out: a `Record` of checks that fail closed. The reference runs in
its own process and answers several times (see `qeff_zoo.validation.reference`): right, right in other ways,
and wrong on purpose, which the checks must notice.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo import targets
from qeff_zoo.checkpoint import Checkpoint
from qeff_zoo.numerics import DeviceNumerics, Numerics
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import adapter_axis, adapters_in, source_in
from qeff_zoo.runtime.sessions import Opening
from qeff_zoo.tasks import find
from qeff_zoo.validation import image_arrays
from qeff_zoo.validation.parity import (
    TOLERANCES,
    Array,
    Canary,
    Check,
    Judge,
    measure_floor,
    relative_errors,
)
from qeff_zoo.validation.records import Record
from qeff_zoo.validation.reference_answers import Answers, Reference
from qeff_zoo.validation.trials import Key, Progress, Trial, try_package

__all__ = ["Record", "validate"]

_TOP = 16  # logits of a position that are kept as evidence


def validate(
    package: Package,
    checkpoint: Checkpoint | Path,
    *,
    level: str = "checkpoint",
    threads: int | None = None,
    progress: Progress | None = None,
    opening: Opening | None = None,
) -> Record:
    """Compare a package with Hugging Face's model.

    Args:
        package: Any that can run here.
        checkpoint: That it was built from, or the folder of it.
        level: "tiny" for a recipe's tiny model; with real weights what the target's programs prove.
        threads: CPU threads of the package and of the reference; None for one per physical core.
        progress: Told of every step.
        opening: Opens what predicts the package's programs on this machine, which are then compared in their place, and
            with Hugging Face's model in the device's numerics as well.

    Raises:
        ParityError: The reference does not run. A package that disagrees is not an error: see `Record.passed`.

    Example:
        >>> record = validate(package, Path("examples/tiny-llama"))  # doctest: +SKIP
        >>> record.passed, record.failures  # doctest: +SKIP
        (True, [])
    """
    step = progress or (lambda steps: None)
    source = (
        checkpoint if isinstance(checkpoint, Path) else checkpoint.companions["config.json"].parent
    )
    rounding = Numerics.together(program.numerics for program in package.programs)
    device = DeviceNumerics.of_program(package.manifest["programs"][0]) if opening else None
    with Reference(threads) as process:  # it starts while the package runs
        trial = try_package(package, threads, step, opening)
        chosen = _chosen(trial)
        request = _request(package, checkpoint, trial, rounding)
        request["device"] = device and asdict(device)
        request["runs"] = [run.sequence for run in trial.runs] if chosen else []
        heard = {f"sound.{number}": sound for number, sound in enumerate(trial.sounds)}
        reference = process.ask(request, step, {**chosen, **shown(trial), **heard})
    judges = _judges(package, reference, rounding, level, told=request["told"], device=device)
    return Record(
        level=level,
        checks=_judge(trial, reference, judges),
        reported=_report(trial, reference, judges) | image_arrays.compare(package.path, source),
        versions=_versions(package, reference),
        sequences=trial.sequences,
        arrays=_evidence(trial, reference, judges["reference"].floor.spread),
    )


def _request(
    package: Package, checkpoint: Checkpoint | Path, trial: Trial, rounding: Numerics
) -> dict[str, Any]:
    """Write down what the reference is asked: see `qeff_zoo.validation.reference`."""
    located = (
        {"checkpoint": str(checkpoint.absolute())}
        if isinstance(checkpoint, Path)
        else checkpoint.located
    )
    return {
        **located,
        "task": package.task,
        "sequences": trial.sequences,
        "positions": trial.positions,
        "types": trial.types,
        "sources": trial.sources,
        "texts": trial.texts,
        "media": [len(found) for found in trial.media],
        "of_media": trial.of_media,
        "told": _told(package),
        "greedy": trial.greedy and {"prompt": trial.greedy[0], "length": len(trial.greedy[1])},
        "numerics": rounding.as_dict(),
        "noise": {
            "factor": TOLERANCES[_arithmetic(rounding)].factor,
            "least": TOLERANCES[_arithmetic(rounding)].least,
        },
    }


def _arithmetic(rounding: Numerics) -> str:
    """Return the row of the table for products as the package computes them."""
    if rounding.activations == "float16":
        return "fp16"
    return "int8" if rounding.int8_activations else "fp32"


def _chosen(trial: Trial) -> dict[str, Array]:
    """Return what the package chose, by run and choice."""
    return {
        f"{number}.{name}": indices
        for number, run in enumerate(trial.runs)
        for name, indices in run.all().items()
    }


def shown(trial: Trial) -> dict[str, Array]:
    """Return the pictures or sounds in the sequences of a trial, by name, as `reference` takes them."""
    return {
        f"media.{number}.{place}.{name}": array
        for number, found in enumerate(trial.media)
        for place, one in enumerate(found)
        for name, array in one.items()
    }


def _versions(package: Package, reference: Answers) -> dict[str, str]:
    compilers = targets.find(package.target).resolve({}, {}).toolchain
    return {
        "qeff_zoo": importlib.metadata.version("qeff-zoo"),
        **compilers,
        **{name: reference.about[name] for name in ("torch", "transformers")},
    }


def _told(package: Package) -> dict[str, Any]:
    """Return what the reference is told to do otherwise: a user's pooling, longrope's factors, adapters to merge."""
    task, why = package.manifest["spec"].get("task", {}), package.manifest["why"]
    chosen = [
        name
        for name in ("pooling", "normalize")
        if name in task and why.get(f"task.{name}", "").startswith("user")
    ]
    merged = adapter_axis(adapters_in(package.manifest))
    told = {name: task[name] for name in (*chosen, "rope_factors") if name in task}
    return {**told, **({"adapters": merged} if merged else {})}


def _judges(
    package: Package,
    reference: Answers,
    rounding: Numerics,
    level: str,
    *,
    told: Mapping[str, Any],
    device: DeviceNumerics | None,
) -> dict[str, Judge]:
    """Make a judge for each variant that the package is compared with.

    A package of rounded weights is very near to the same model with the same weights rounded. It is near Hugging
    Face's model as far as rounding lets it, unless that chooses other experts or keys: then it may be anywhere.
    """
    storage = str(package.manifest["weights"]["storage"])
    right = [variant for variant in ("noise", "double", "half") if reference.has(variant)]
    exact = "float32 of dequantized weights" if reference.about.get("quantization") else "float32"
    rounded = f"rounded to {storage}"
    if storage == "stored":
        rounded = "rounded as the package computes"
    # variant -> what it is, the row of the table, and variants that are as right
    held: dict[str, tuple[str, str, list[str]]] = {
        "reference": (exact, _arithmetic(rounding), right)
    }
    if rounding.rounds:
        held["reference"] = (exact, storage, ["rounded"])
        held["rounded"] = (f"{exact} {rounded}", _arithmetic(rounding), right)
    if device:
        if device.states:
            held = {
                name: (dtype, device.states, ["device"]) for name, (dtype, _, _) in held.items()
            }
        what = " + ".join(filter(None, (device.activations, device.weights, device.states)))
        # Noise takes a state to the other side of int8's roundings, which is what sets two such answers apart.
        row = device.states or _arithmetic(rounding)
        held["device"] = (what, row, ["device_noise"])
    judges = {}
    for variant, (dtype, row, others) in held.items():
        pairs = [(reference.all(variant), reference.all(other)) for other in others]
        judges[variant] = Judge(
            level=level,
            tolerance=TOLERANCES[row],
            floor=measure_floor(pairs, find(package.task).answers),
            against={
                "reference": reference.about["class"],
                "revision": source_in(package.manifest).get("revision"),
                "transformers": reference.about["transformers"],
                "dtype": dtype,
                "patched": False,
                **({"told": dict(told)} if told else {}),
            },
            kind=find(package.task).answers,
        )
    return judges


def _deciding(judges: Mapping[str, Judge], reference: Answers) -> dict[str, Judge]:
    """Leave out comparisons with what is not rounded where they judge nothing.

    Where a model chooses, of experts or of keys, a rounded one may choose others. So may a device's, which is not told
    of other choices that are as right.
    """
    made = reference.about["choices"]["made"]
    names = [name for name in judges if not (made and name == "device")]
    *losses, last = names
    kept = [name for name in losses if not made and judges[name].decides]
    return {name: judges[name] for name in (*kept, last)}


def _judge(trial: Trial, reference: Answers, judges: Mapping[str, Judge]) -> list[Check]:
    checks: list[Check] = []
    deciding = _deciding(judges, reference)
    for stage, keys in trial.keys.items():
        exact = reference.at("reference", keys)
        for name, mutation in reference.about["mutations"].items():
            canary = Canary(mutation, reference.at(name, keys))
            found = [
                check
                for variant, judge in deciding.items()
                for check in judge.judge(
                    stage, reference.at(variant, keys), trial.answers[stage], canary, exact
                )
            ]
            if stage in trial.drawn:
                judge = next(iter(deciding.values()))
                found.append(judge.drawn(stage, trial.answers[stage], trial.drawn[stage], canary))
            if any("canary" in check for check in found):
                break
        else:
            variant, judge = list(deciding.items())[-1]
            found.append(judge.uncaught(stage, reference.at(variant, keys), canary))
        told = _told_choices(keys, reference)
        checks += [{**check, **told} for check in found]
    return checks


def _told_choices(keys: Sequence[Key], reference: Answers) -> dict[str, Any]:
    """Count the choices of a stage that the reference followed because its own scores were as near."""
    summary = reference.about["choices"]
    if not summary["made"]:
        return {}
    runs = {str(run) for _, _, run in keys}
    counts = [summary["runs"].get(run, (0, 0)) for run in sorted(runs)]
    nearer, equal = (sum(count[at] for count in counts) for at in (0, 1))
    return {"followed": {"near": nearer, "equal": equal}}


def _report(trial: Trial, reference: Answers, judges: Mapping[str, Judge]) -> dict[str, Any]:
    floors = {judge.against["dtype"]: asdict(judge.floor) for judge in judges.values()}
    reported: dict[str, Any] = {"noise_floor": floors}
    if left_out := reference.about.get("left_out"):
        reported["not_applied"] = (
            f"The checkpoint says how {' and '.join(left_out)} are rounded; neither the package nor the reference "
            "does so."
        )
    not_judged = judges.keys() - _deciding(judges, reference).keys()
    if not_judged:
        reported["not_judged"] = sorted(judges[name].against["dtype"] for name in not_judged)
    choices = {name: value for name, value in reference.about["choices"].items() if name != "runs"}
    if choices["made"]:
        reported["choices"] = choices
    if trial.greedy is not None:
        reported["greedy"] = _greedy_match(trial.greedy[1], reference)
    return reported


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
            [(number, trial.positions[number][index]) for number, index, _ in keys]
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
