# SPDX-License-Identifier: Apache-2.0
"""The reference: transformers' own model, unpatched, in a process of its own.

    python -m qeff_zoo.validation.reference qeff_zoo.validation.reference.process answer.npz arrays.npz < request.json

In: a checkpoint's folder, token sequences, and the positions whose answers matter. Out, per variant
and sequence, an array of logits, one embedding, or labels' logits. The weights are loaded once; of a text decoder that
does not fit into memory, layer by layer: see `qeff_zoo.validation.reference.layerwise`. Variants:

    reference   float32, eager attention, each sequence alone and whole; of quantized checkpoints their dequantized
                weights
    rounded     the same with the weights that the package rounds rounded; what follows has them, too
    noise       as right, but not the same: every sum in another order, sequences in padded batches; of packages that
                round activations beginnings alone, which answer a question of each stage
    half        of packages that compute in float16: as right, computed by transformers in float16
    double      as right, in float64; of small models that are not quantized
    simulated   of packages that round activations: the left sides of products rounded likewise; beginnings alone
    device      of emulated packages: in all of the device's numerics, see `qeff_zoo.validation.reference.device`
    device_noise    the same with every sum in another order
    canary.N    wrong on purpose, from the slightest on, as far as it takes until each stage notices one: see
                `qeff_zoo.validation.reference.damage`; beginnings that answer a question of each stage
    swapped     of packages that round activations, are emulated, or draw tokens: two heads swapped; of the first
                beginnings alone

and for each fault of a stage (`qeff_zoo.validation.trial.faults`) `fault.N`. `loss.VARIANT` and `divergence.VARIANT`
are what rounding costs, see `qeff_zoo.validation.reference.losses`.

Where a model chooses, of experts or of keys, `noise`, `half` and `double` choose as the variant that they are compared
with does, so that they differ by their arithmetic alone. And that variant runs again for every run of the package in
which another choice was equally right by the reference's own scores: see `qeff_zoo.validation.reference.routing`.
"""

import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers

from qeff_zoo import contract
from qeff_zoo.graph.numerics import DeviceNumerics, Numerics
from qeff_zoo.validation.reference.damage import HEADS, damaged
from qeff_zoo.validation.reference.device import computing_as
from qeff_zoo.validation.reference.formats.orders import by_parameter
from qeff_zoo.validation.reference.layerwise import Found, Layerwise, unloaded_if_large
from qeff_zoo.validation.reference.loading import about_quantization, decoded_weights, load_model
from qeff_zoo.validation.reference.noticing import Early, Noticing
from qeff_zoo.validation.reference.numerics import (
    Arithmetic,
    Preparation,
    Widest,
    compute_in_float64,
    in_float16,
    round_matrices_to_float16,
    round_weights,
)
from qeff_zoo.validation.reference.resuming import Resuming
from qeff_zoo.validation.reference.routing import Choices
from qeff_zoo.validation.reference.runs import Answers, announce, read_request
from qeff_zoo.validation.reference.subjects import answers_of
from qeff_zoo.validation.reference.turns import keep_freed_memory, return_freed_memory
from qeff_zoo.validation.trial.faults import Fault

from . import sentences, settings, stored_weights, text

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_SMALL = 50_000_000  # parameters: float64 fits easily, and takes no time
_OURS = (
    "qeff_zoo.export.transforms",
    "qeff_zoo.export.ops",
    "qeff_zoo.export.loader",
    "qeff_zoo.export.exporter",
)


def main(arguments: Sequence[str]) -> None:
    """Answer one request.

    Args:
        arguments: The answer's file, and that of what the package chose and read.
    """
    request = read_request()
    torch.set_grad_enabled(False)
    with np.load(arguments[1], allow_pickle=False) as found:
        arrays = dict(found)
    task, factors = request["task"], request["settings"].get("rope_factors")
    unloaded = unloaded_if_large(request, arrays)
    model = unloaded.model if unloaded else load_model(request, task, factors)
    answers = answers_of(model, request, arrays)
    brought = ("media.", "audio.")
    chosen = {name: array for name, array in arrays.items() if not name.startswith(brought)}
    choices = Choices(request["runs"], chosen, **request["noise"])
    if unloaded:
        return_freed_memory()
    else:
        keep_freed_memory(sum(weight.nbytes for weight in model.parameters()))
    stored = stored_weights.answer(request, model, unloaded)
    ran = (
        Layerwise(unloaded, request, answers, choices).run()
        if unloaded
        else _run_variants(model, request, answers, choices)
    )
    about = {
        "class": type(model).__name__,
        "transformers": transformers.__version__,
        "torch": importlib.metadata.version("torch"),
        "layer_by_layer": unloaded is not None,
        "modules": answers.witness,
        "noticed": ran.noticed,
        "greedy": ran.greedy,
        "choices": choices.summary(),
        "text": text.answer(request),
        "stored": stored,
        "settings": settings.answer(request, model),
        "sentences": sentences.answer(request, model) if answers.reads_texts else None,
        **about_quantization(request),
    }
    assert_unpatched()
    np.savez(arguments[0], allow_pickle=False, about=np.array(json.dumps(about)), **ran.arrays)


def _run_variants(
    model: Any, request: Mapping[str, Any], answers: Answers, choices: Choices
) -> Found:
    """Run every variant."""
    numerics = Numerics.from_dict(request["numerics"])
    if (tokens := _tokens(model, request, answers, numerics)) is not None:
        announce(tokens)
    continued = _continued(answers, request.get("greedy"))
    rounds = bool(numerics.rounds_weights or request.get("float16_weights"))
    losses = answers.losses() if rounds else None
    resuming = Resuming(model, answers)
    with resuming.recording(), answers.scoring(losses, "reference") as found:
        runs = {"reference": answers.alone(choices.note)}
    early, every = Early(request), range(len(runs["reference"]))
    begun: dict[str, Mapping[int, Array]] = {}
    weights = None if request.get("gguf") else decoded_weights(Path(request["checkpoint"]))
    orders = by_parameter(model, weights.tensors, weights.orders) if weights else {}
    left_sides = round_weights(model, numerics.matrices, orders, Preparation.of(request))
    judged = "reference"
    if request.get("float16_weights"):
        round_matrices_to_float16(model, numerics.matrices)
    if rounds:
        judged = "rounded"
        with resuming.recording(), answers.scoring(losses, "rounded") as scored:
            runs["rounded"] = answers.alone(choices.note)
        found |= scored
    with Arithmetic(halved=True):
        runs["noise"] = answers.together(
            choices.repeat, early.each_stage if early.suffices_for_noise(answers) else None
        )
    if numerics.int8_activations:
        with Arithmetic(left_sides, halved=False):
            begun["simulated"] = answers.beginnings(every, early.short)
    if numerics.int8_activations or request.get("swapped"):
        with damaged(answers.halves):
            if request.get("swapped"):
                runs["swapped"] = answers.alone()
            else:
                begun["swapped"] = answers.beginnings(every, early.short)
    if numerics.activations == "float16" and not request.get("float16_weights"):
        runs["half"] = _in_float16(model, answers, choices)
    followed = _follow_package(answers, choices)
    others = [runs[name] for name in ("noise", "half") if name in runs]
    comparison = contract.find(request["task"]).comparison

    def damage(number: int, sequences: list[int]) -> tuple[str, Mapping[int, Array]]:
        return resuming.beginnings(HEADS[number], sequences, early.each_stage, runs[judged])

    faults = [Fault.from_dict(entry) for entry in request["faults"]]
    damages, noticed = Noticing(request, comparison, runs[judged], others).run(
        damage, lambda number: answers.faulty(faults[number])
    )
    if request.get("device"):
        runs |= _run_device(model, DeviceNumerics(**request["device"]), answers, choices)
    elif not numerics.rounds and _is_small(model):
        runs["double"] = _in_float64(model, answers, choices)
    whole = {name: dict(enumerate(answered)) for name, answered in runs.items()}
    arrays = {
        f"{variant}.{number}": array
        for variant, answered in (*whole.items(), *begun.items(), *damages.items())
        for number, array in answered.items()
    }
    arrays |= {f"{judged}.{name}": array for name, array in followed.items()}
    return Found(arrays=arrays | found, noticed=noticed, greedy=continued)


def _tokens(
    model: Any, request: Mapping[str, Any], answers: Answers, numerics: Numerics
) -> int | None:
    """Return the tokens that all variants read together; None if calls are counted instead.

    Of canaries the slightest alone, which most stages notice.
    """
    whole, early = answers.tokens(), Early(request)
    if whole is None:
        return None
    device, halves = bool(request.get("device")), bool(request.get("float16_weights"))
    passes = 1 + (numerics.rounds_weights or halves) + bool(request.get("swapped")) + 2 * device
    passes += numerics.activations == "float16" and not halves
    passes += not device and not numerics.rounds and _is_small(model)
    passes += not early.suffices_for_noise(answers)
    lengths = [early.each_stage] * (1 + early.suffices_for_noise(answers))
    if numerics.int8_activations:
        lengths += [early.short] * (1 if request.get("swapped") else 2)
    faults = sum(sum(fault["stops"].values()) for fault in request["faults"])
    return int(passes * whole + sum(answers.tokens(one) or 0 for one in lengths) + faults)


def _continued(answers: Answers, greedy: Mapping[str, Any] | None) -> list[int]:
    """Return the reference's tokens beside those that the package generated, right up to the first that differs."""
    if not greedy:
        return []
    if answers.plain:
        return answers.likeliest(greedy["prompt"], greedy["tokens"])
    return answers.greedy(greedy["prompt"], len(greedy["tokens"]))


def _is_small(model: Any) -> bool:
    return bool(sum(weight.numel() for weight in model.parameters()) < _SMALL)


def _in_float64(model: Any, answers: Answers, choices: Choices) -> list[Array]:
    """Compute in float64; the model's weights stay so."""
    compute_in_float64(model)
    torch.set_default_dtype(torch.float64)  # for what transformers makes on the way
    with Widest():
        return answers.alone(choices.repeat)


def _in_float16(model: Any, answers: Answers, choices: Choices) -> list[Array]:
    """Compute in float16; what a model's own code makes in float32 all the same, rounded after every operator."""
    try:
        with in_float16(model):
            return answers.alone(choices.repeat)
    except RuntimeError:  # its operators get both types
        kept = {name: parameter.data.clone() for name, parameter in model.named_parameters()}
        try:
            with computing_as(model, DeviceNumerics()):
                return answers.alone(choices.repeat)
        finally:
            for name, parameter in model.named_parameters():
                parameter.data.copy_(kept[name])


def _run_device(
    model: Any, device: DeviceNumerics, answers: Answers, choices: Choices
) -> dict[str, list[Array]]:
    """Run the variants in a device's numerics; the model's weights stay so."""
    with computing_as(model, device):  # its matrices are rounded already
        found = {"device": answers.alone(choices.repeat)}
        with Arithmetic(halved=True):
            found["device_noise"] = answers.alone(choices.repeat)
    return found


def _follow_package(answers: Answers, choices: Choices) -> dict[str, Array]:
    """Run a sequence again for each run of the package that chose otherwise; return `sequence.run` arrays.

    They are none if the reference would follow more choices than noise explains.
    """
    followed = {}
    for run in choices.differing():
        number = choices.runs[run]
        # A text by itself may also choose another of equal scores than as the beginning of a longer one.
        followed[f"{number}.{run}"] = answers.run_prefix(
            number, choices.length(run), choices.following(run)
        )
    return followed if choices.excused else {}


def assert_unpatched() -> None:
    """Make sure that nothing of ours was there to change transformers."""
    ours = [name for name in sys.modules if name.startswith(_OURS)]
    assert not ours, f"The reference must be Hugging Face's own; it imported {ours}."
