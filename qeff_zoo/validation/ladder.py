# SPDX-License-Identifier: Apache-2.0
"""Whether a package is right: its answers are compared with those of Hugging Face's own model, and judged.

In: a package and its checkpoint. Out: a `Record` of checks that fail closed, in two steps:

- The package computes the model. Its programs, without the rounding of activations where they round (the same weights
  and kernels, see `OpenOptions.unrounded`), agree with Hugging Face's model of the same weights to the noise of
  float32, in every stage.
- The package rounds as expected. As it ships, it lies about as far from that model as a simulation of the rounding.

What rounding costs is measured beside them (`qeff_zoo.validation.costs`). The reference runs in its own process and
answers several times (see `qeff_zoo.validation.reference.process`): right, right in other ways, and wrong on purpose,
which the checks must notice.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from qeff_zoo import targets
from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.contract import find
from qeff_zoo.graph.numerics import DeviceNumerics, Numerics
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import adapter_axis, adapters_in, source_in
from qeff_zoo.runtime.program import Program
from qeff_zoo.runtime.text.tokenizer import sharing_tokenizers
from qeff_zoo.sessions.opening import Opening
from qeff_zoo.targets.base import OpenOptions
from qeff_zoo.terminal.progress import Reporter, Silent
from qeff_zoo.validation.content import (
    audio_arrays,
    image_arrays,
    sentences,
    settings,
    stored_weights,
    text,
)
from qeff_zoo.validation.costs import as_shipped, measure
from qeff_zoo.validation.judgement.parity import (
    TOLERANCES,
    Array,
    Canary,
    Check,
    Judge,
    Tolerance,
    measure_floor,
    relative_errors,
)
from qeff_zoo.validation.judgement.records import Record
from qeff_zoo.validation.reference.answers import Answers, Reference
from qeff_zoo.validation.reference.preloaded import Server
from qeff_zoo.validation.trial.cases import short_stages
from qeff_zoo.validation.trial.package_runner import Key, Trial, try_package
from qeff_zoo.validation.trial.phases import Phases, Progress

__all__ = ["Record", "validate"]

_DEVICE = "device"  # variant of the reference
_TOP = 16  # logits of a position that are kept as evidence


def validate(
    package: Package,
    checkpoint: Checkpoint | Path,
    *,
    level: str = "checkpoint",
    threads: int | None = None,
    reporter: Reporter | None = None,
    opening: Opening | None = None,
    exact: Opening | None = None,
    server: Server | None = None,
) -> Record:
    """Compare a package with Hugging Face's model.

    Args:
        package: Any that can run here.
        checkpoint: Source checkpoint of the package, or its folder.
        level: "tiny" for a recipe's tiny model; with real weights what the target's programs prove.
        threads: CPU threads of the package and of the reference; None for one per physical core.
        reporter: Shows the phases: runs of the package, and of the reference.
        opening: Opens what predicts the package's programs on this machine, in the device's numerics, for a device
            that is not here.
        exact: Opens the same programs without the device's rounding of activations and states.
        server: Server that forks the reference; None for a new Python.

    Raises:
        ParityError: The reference does not run. A package that disagrees is not an error: see `Record.passed`.

    Example:
        >>> record = validate(package, Path("examples/tiny-llama"))  # doctest: +SKIP
        >>> record.passed, record.failures  # doctest: +SKIP
        (True, [])
    """
    exact = exact or unrounded(package)
    phases = Phases(reporter or Silent(), 3 if exact else 2)
    # The reference starts while the package runs.
    with sharing_tokenizers(), Reference(threads, server=server) as process:
        shipped = None
        with phases.next("package") as step:
            trial = try_package(package, threads, step, exact or opening, continues=not exact)
        if exact:
            # A device is compared in every stage, in its own numerics.
            short = None if opening else short_stages(trial.keys, trial.positions)
            with phases.next("package, rounded") as step:
                shipped = try_package(
                    package, threads, step, opening or _briefly(package), short, routing=False
                )
        device = DeviceNumerics.of_program(package.manifest["programs"][0]) if opening else None
        with phases.next("reference") as step:
            reference = run_reference(
                process, package, checkpoint, trial, shipped=shipped, device=device, progress=step
            )
        record = judge(package, trial, reference, shipped=shipped, level=level, device=device)
    source = checkpoint if isinstance(checkpoint, Path) else checkpoint.config_file.parent
    return replace(record, reported={**record.reported, **_arrays(package.path, source)})


def _arrays(package: Path, source: Path) -> dict[str, str]:
    """Compare a package's preprocessing of images and audio with transformers' processor.

    Args:
        package: Nothing is compared without the settings that a build wrote.
        source: Folder of the checkpoint's small files.
    """
    if not (package / PROCESSOR_SETTINGS).is_file():
        return {}
    processor = processors.load(source)
    return image_arrays.compare(package, processor) | audio_arrays.compare(package, processor)


def rounding_of(package: Package) -> Numerics:
    """Return all that the programs of a package round."""
    return Numerics.together(program.numerics for program in package.programs)


def unrounded(package: Package) -> Opening | None:
    """Return what opens programs without the rounding of activations; None if they round none."""
    target = targets.find(package.target)
    if not rounding_of(package).int8_activations:
        return None
    assert target.unrounded, f"{target.name} rounds what it cannot leave out."

    def opens(role: str, options: OpenOptions) -> Program:
        return target.open(package, role, replace(options, unrounded=True))

    return opens


def _briefly(package: Package) -> Opening:
    """Return what opens programs for the few calls of a trial."""
    target = targets.find(package.target)
    return lambda role, options: target.open(package, role, replace(options, brief=True))


def run_reference(
    process: Reference,
    package: Package,
    checkpoint: Checkpoint | Path,
    trial: Trial,
    *,
    shipped: Trial | None = None,
    device: DeviceNumerics | None = None,
    progress: Progress,
) -> Answers:
    """Run the reference on a package's input.

    Args:
        process: Process that has not run yet.
        package: See `validate`.
        checkpoint: See `validate`.
        trial: Input and answers of the package.
        shipped: See `judge`.
        device: Roundings of an emulated package's device.
        progress: Called after every step.
    """
    rounding, chosen = rounding_of(package), _chosen(trial)
    twin = device if shipped else None
    tolerance = TOLERANCES[_row(package, rounding, twin)]
    request = _request(package, checkpoint, trial, rounding, tolerance)
    if generated := (shipped or trial).greedy:
        request["greedy"] = {"prompt": generated[0], "tokens": generated[1]}
    request["device"] = device and asdict(device)
    request["float16_weights"] = twin is not None
    request["text"] = text.request_of(package)
    request |= stored_weights.request_of(package)
    request["swapped"] = bool(device or (shipped or trial).drawn)
    request["tolerance"] = asdict(tolerance)
    request["runs"] = [run.sequence for run in trial.runs] if chosen else []
    recordings = {f"audio.{number}": audio for number, audio in enumerate(trial.recordings)}
    return process.run(request, progress, {**chosen, **shown(trial), **recordings})


def judge(
    package: Package,
    trial: Trial,
    reference: Answers,
    *,
    shipped: Trial | None = None,
    level: str,
    device: DeviceNumerics | None = None,
) -> Record:
    """Judge what a package answered.

    Args:
        package: See `validate`.
        trial: Answers of the package, without the rounding of activations.
        reference: Answers to the same questions.
        shipped: Answers of the package as it ships, or emulated; None if it rounds no activations.
        level: See `validate`.
        device: See `run_reference`.
    """
    rounding = rounding_of(package)
    twin = device if shipped else None
    judges = _judges(package, reference, rounding, level, device=device, twin=twin)
    right, rounded = _judged(rounding, twin), None if device else shipped
    costs = measure(trial, rounded, reference, right, find(package.task).comparison)
    return Record(
        level=level,
        checks=[
            *_judge(trial, shipped or trial, reference, judges),
            *as_shipped(costs, judges[right]),
            *judge_files(package, trial, reference, level),
        ],
        reported=_report(trial, shipped, reference, judges),
        costs=costs.as_dict(),
        versions=_versions(package, reference),
        sequences=trial.sequences,
        arrays=_evidence(trial, reference, right, judges),
    )


def judge_answers(package: Package, trial: Trial, reference: Answers, level: str) -> list[Check]:
    """Judge the answers of any stages, without the rounding of activations.

    Args:
        package: See `validate`.
        trial: See `judge`.
        reference: See `judge`.
        level: See `validate`.
    """
    judges = _judges(package, reference, rounding_of(package), level, device=None, twin=None)
    return _judge(trial, trial, reference, judges)


def judge_files(package: Package, trial: Trial, reference: Answers, level: str) -> list[Check]:
    """Judge what a package has beside its programs: tokenizer and chat template, settings, stored weights.

    Args:
        package: See `validate`.
        trial: Trial with its session's reading of the settings.
        reference: See `judge`.
        level: See `validate`.
    """
    about = reference.about
    return [
        *text.judge(package, about["text"], level),
        *sentences.judge(package, about.get("sentences"), level),
        *settings.judge(package, trial.settings, about["settings"], level, about["transformers"]),
        *stored_weights.judge(about["stored"], level, _of_weights(package, reference)),
    ]


def _of_weights(package: Package, reference: Answers) -> dict[str, Any]:
    """Return the reference of stored weights."""
    return {
        "reference": reference.about["class"],
        "revision": source_in(package.manifest).get("revision"),
        "transformers": reference.about["transformers"],
        "dtype": "weights in float32",
        "patched": False,
    }


def _judged(rounding: Numerics, twin: DeviceNumerics | None) -> str:
    """Return the variant of the reference that has the weights of what is compared; those of a twin are float16."""
    return "rounded" if twin or rounding.rounds_weights else "reference"


def _request(
    package: Package,
    checkpoint: Checkpoint | Path,
    trial: Trial,
    rounding: Numerics,
    tolerance: Tolerance,
) -> dict[str, Any]:
    """Return the request to the reference: see `qeff_zoo.validation.reference.process`."""
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
        "prompts": trial.prompts,
        "attended": trial.attended,
        "sources": trial.sources,
        "texts": trial.texts,
        "media": [len(found) for found in trial.media],
        "of_media": trial.of_media,
        "settings": _reference_settings(package),
        "numerics": rounding.as_dict(),
        "noise": {
            "factor": tolerance.factor,
            "least": tolerance.least,
        },
        "stages": {
            stage: [(number, index) for number, index, _ in keys]
            for stage, keys in trial.keys.items()
        },
        "faults": [fault.as_dict() for fault in trial.faults],
    }


def _row(package: Package, rounding: Numerics, twin: DeviceNumerics | None) -> str:
    """Return the row of the table for products as the package computes them when it is compared.

    Args:
        package: See `validate`.
        rounding: Rounding of the package.
        twin: Whose numerics are emulated, and are left out in this comparison; None if they are not.
    """
    if twin:
        return "fp32"
    if rounding.activations == "float16":
        return "fp16"
    target = targets.find(package.target)
    if rounding.int8_activations and target.unrounded:
        return target.unrounded
    return "fp32"


def _chosen(trial: Trial) -> dict[str, Array]:
    """Return what the package chose, by run and choice."""
    return {
        f"{number}.{name}": indices
        for number, run in enumerate(trial.runs)
        for name, indices in run.all().items()
    }


def shown(trial: Trial) -> dict[str, Array]:
    """Return the images or audio in the sequences of a trial, by name, in the form for `reference`."""
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


def _reference_settings(package: Package) -> dict[str, Any]:
    """Return further settings of the reference: a user's pooling, longrope's factors, adapters to merge."""
    task, why = package.manifest["spec"].get("task", {}), package.manifest["why"]
    chosen = [
        name
        for name in ("pooling", "normalize")
        if name in task and why.get(f"task.{name}", "").startswith("user")
    ]
    merged = adapter_axis(adapters_in(package.manifest))
    chosen_values = {name: task[name] for name in (*chosen, "rope_factors") if name in task}
    return {**chosen_values, **({"adapters": merged} if merged else {})}


def _judges(
    package: Package,
    reference: Answers,
    rounding: Numerics,
    level: str,
    *,
    device: DeviceNumerics | None,
    twin: DeviceNumerics | None,
) -> dict[str, Judge]:
    """Make a judge for each variant that the package is compared with.

    That is Hugging Face's model with the weights that the package has; of an emulated package also in all of the
    device's numerics.
    """
    storage = str(package.manifest["weights"]["storage"])
    right = [variant for variant in ("noise", "double", "half") if reference.has(variant)]
    exact = "float32 of dequantized weights" if reference.about.get("quantization") else "float32"
    if rounding.rounds_weights:
        exact += (
            " rounded as the package computes" if storage == "stored" else f" rounded to {storage}"
        )
    elif twin:
        exact += " of float16 weights"
    chosen, modules = _reference_settings(package), reference.about.get("modules")
    # variant -> what it is, the row of the table, and variants that are as right
    held: dict[str, tuple[str, str, list[str]]] = {
        _judged(rounding, twin): (exact, _row(package, rounding, twin), right)
    }
    if device and device.states and not twin:
        held = {_judged(rounding, twin): (exact, device.states, [_DEVICE])}
    if device:
        what = " + ".join(filter(None, (device.activations, device.weights, device.states)))
        # Noise takes a state to the other side of int8's roundings, which is what sets two such answers apart.
        held[_DEVICE] = (what, device.states or "fp16", ["device_noise"])
    judges = {}
    for variant, (dtype, row, others) in held.items():
        pairs = [reference.beside(variant, other) for other in others]
        judges[variant] = Judge(
            level=level,
            tolerance=TOLERANCES[row],
            floor=measure_floor(pairs, find(package.task).comparison),
            against={
                "reference": reference.about["class"],
                "revision": source_in(package.manifest).get("revision"),
                "transformers": reference.about["transformers"],
                "dtype": dtype,
                "patched": False,
                **({"modules": modules} if modules else {}),
                **({"settings": chosen} if chosen else {}),
            },
            comparison=find(package.task).comparison,
        )
    return judges


def _deciding(judges: Mapping[str, Judge], reference: Answers) -> dict[str, Judge]:
    """Leave out comparisons that judge nothing, but for the last.

    Those in a device's numerics if a model chooses experts or keys, since it may choose others; and those whose noise
    exceeds every tolerance.
    """
    choices = reference.about["choices"]["made"]
    *others, last = (name for name in judges if not (choices and name == _DEVICE))
    kept = [name for name in others if judges[name].decides]
    return {name: judges[name] for name in (*kept, last)}


def _judge(
    trial: Trial, shipped: Trial, reference: Answers, judges: Mapping[str, Judge]
) -> list[Check]:
    checks: list[Check] = []
    deciding = _deciding(judges, reference)
    noticed = reference.about["noticed"]
    for stage, keys in trial.keys.items():
        damage = noticed["stages"][stage]
        faults = {
            fault["words"]: reference.at(fault["variant"], keys)
            for fault in noticed["faults"]
            if fault["stage"] == stage
        }
        slight = _canary(reference, damage["variant"], damage["words"], keys, faults)
        gross = slight
        if reference.has("swapped") and len(reference.answered("swapped", keys)) == len(keys):
            gross = _canary(reference, "swapped", "two heads swapped", keys)
        judged = []
        for variant, judge in deciding.items():
            tried, canary = (shipped, gross) if variant == _DEVICE else (trial, slight)
            expected = reference.at(variant, keys)
            judged += judge.judge(stage, expected, tried.answers[stage], canary)
        if stage in shipped.drawn:
            judge = next(iter(deciding.values()))
            judged.append(judge.drawn(stage, shipped.answers[stage], shipped.drawn[stage], gross))
        if not any("canary" in check for check in judged):
            variant, judge = next(iter(deciding.items()))
            judged.append(judge.uncaught(stage, reference.at(variant, keys), slight))
        followed = _followed_choices(keys, reference)
        checks += [{**check, **followed} for check in judged]
    return checks


def _canary(
    reference: Answers,
    variant: str,
    words: str,
    keys: Sequence[Key],
    faults: Mapping[str, Array] = MappingProxyType({}),
) -> Canary:
    """Return a damaged variant's answers to the questions of a stage, as far as it answered them."""
    rows = reference.answered(variant, keys)
    return Canary(words, reference.at(variant, [keys[row] for row in rows]), faults, rows)


def _followed_choices(keys: Sequence[Key], reference: Answers) -> dict[str, Any]:
    """Count the choices of a stage that the reference followed because its own scores were as near."""
    summary = reference.about["choices"]
    if not summary["made"]:
        return {}
    runs = {str(run) for _, _, run in keys}
    counts = [summary["runs"].get(run, (0, 0)) for run in sorted(runs)]
    nearer, equal = (sum(count[at] for count in counts) for at in (0, 1))
    return {"followed": {"near": nearer, "equal": equal}}


def _report(
    trial: Trial, shipped: Trial | None, reference: Answers, judges: Mapping[str, Judge]
) -> dict[str, Any]:
    floors = {judge.against["dtype"]: asdict(judge.floor) for judge in judges.values()}
    reported: dict[str, Any] = {"noise_floor": floors}
    if reference.about.get("layer_by_layer"):
        reported["layer_by_layer"] = True
    if left_out := reference.about.get("left_out"):
        reported["not_applied"] = (
            f"The checkpoint says how {' and '.join(left_out)} are rounded; neither the package nor the reference "
            "does so."
        )
    chosen = next(iter(judges.values())).against.get("settings", {})
    if factors := chosen.get("rope_factors"):
        reported["rope_factors"] = (
            f"longrope's {factors} factors rotate every text, in the package and in the reference. transformers "
            "chooses in every call: its cached decode of a text that crosses the original context differs."
        )
    not_judged = judges.keys() - _deciding(judges, reference).keys()
    if not_judged:
        reported["not_judged"] = sorted(judges[name].against["dtype"] for name in not_judged)
    choices = {name: value for name, value in reference.about["choices"].items() if name != "runs"}
    if choices["made"]:
        reported["choices"] = choices
    greedy = (shipped or trial).greedy
    if greedy is not None:
        reported["greedy"] = _greedy_match(greedy[1], reference)
    reported |= stored_weights.reported(reference.about["stored"])
    reported |= settings.reported(trial.settings, reference.about["settings"])
    return reported


def _greedy_match(generated: list[int], reference: Answers) -> dict[str, int]:
    """Count the tokens up to the first that the reference would not have generated."""
    pairs = zip(generated, reference.about["greedy"], strict=False)
    same = [ours == expected for ours, expected in pairs]
    return {"generated": len(generated), "matched": [*same, False].index(False)}


def _evidence(
    trial: Trial, reference: Answers, judged: str, judges: Mapping[str, Judge]
) -> dict[str, Array]:
    """Keep of every answer the largest values, ours and the reference's, and the distance."""
    arrays: dict[str, Array] = {}
    spread = judges[judged].floor.spread
    for stage, keys in trial.keys.items():
        got, expected = trial.answers[stage], reference.at(judged, keys)
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
