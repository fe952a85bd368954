# SPDX-License-Identifier: Apache-2.0
"""The reference: transformers' own model, unpatched, in a process of its own.

    python -m qeff_zoo.validation.reference answer.npz arrays.npz < request.json

In: a checkpoint's folder, token sequences, and the positions whose answers matter. Out, per variant
and sequence, an array of logits, one embedding, or labels' logits. The weights are loaded once. Variants:

    reference   float32, eager attention, each sequence alone and whole; of quantized checkpoints their dequantized
                weights
    rounded     of packages that round: the same with the weights that the package rounds rounded, and
                the left sides of products where it rounds those
    noise       as right, but not the same: every sum in another order, sequences in padded batches;
                of quantized packages with rounded weights
    half        of packages that compute in float16: as right, computed by transformers in float16
    device      of predicted packages: in all of the device's numerics, see `qeff_zoo.validation.reference_device`
    device_noise    the same with every sum in another order
    double      as right, in float64; of small models that are not quantized
    canary      wrong on purpose: two heads of the first layer swapped, else as the package computes
    plain_canary    of packages that round: all heads of that layer in reverse, for where noise hides the canary

Where a model chooses, of experts or of keys, `noise` and `double` choose as the variant that they are compared with
does, so that they differ by their arithmetic alone. And that variant runs again for every run of the package in which
another choice was equally right by the reference's own scores: see `qeff_zoo.validation.reference_choices`.
"""

import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers

from qeff_zoo.numerics import DeviceNumerics, Numerics
from qeff_zoo.validation import reference_text
from qeff_zoo.validation.reference_choices import Choices
from qeff_zoo.validation.reference_device import computing_as
from qeff_zoo.validation.reference_formats.orders import by_parameter
from qeff_zoo.validation.reference_loading import about_quantization, decoded_weights, load_model
from qeff_zoo.validation.reference_numerics import (
    Arithmetic,
    Widest,
    compute_in_float64,
    in_float16,
    round_weights,
    swapped_heads,
)
from qeff_zoo.validation.reference_subjects import Answers, answers_of, read_request

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_SMALL = 50_000_000  # parameters: float64 fits easily, and takes no time
_OURS = (
    "qeff_zoo.transforms",
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
    told = request["told"]
    model = load_model(request, request["task"], told.get("rope_factors"))
    with np.load(arguments[1], allow_pickle=False) as found:
        arrays = dict(found)
    answers = answers_of(model, request, arrays)
    brought = ("media.", "sound.")
    chosen = {name: array for name, array in arrays.items() if not name.startswith(brought)}
    choices = Choices(request["runs"], chosen, **request["noise"])
    greedy = answers.greedy(**request["greedy"]) if request.get("greedy") else []
    arrays, mutations = _run_variants(model, request, answers, choices)
    about = {
        "class": type(model).__name__,
        "transformers": transformers.__version__,
        "torch": importlib.metadata.version("torch"),
        "mutations": mutations,
        "greedy": greedy,
        "choices": choices.summary(),
        "text": reference_text.answer(request),
        **about_quantization(request),
    }
    assert_unpatched()
    np.savez(arguments[0], allow_pickle=False, about=np.array(json.dumps(about)), **arrays)


def _run_variants(
    model: Any, request: Mapping[str, Any], answers: Answers, choices: Choices
) -> tuple[dict[str, Array], dict[str, str]]:
    """Run every variant; return `variant.sequence` arrays, and by canary what its damage was."""
    runs = {"reference": answers.alone(choices.note)}
    numerics = Numerics.from_dict(request["numerics"])
    weights = None if request.get("gguf") else decoded_weights(Path(request["checkpoint"]))
    orders = by_parameter(model, weights.tensors, weights.orders) if weights else {}
    left_sides = round_weights(model, numerics.matrices, orders)
    as_the_package = Arithmetic(left_sides if numerics.int8_activations else {}, halved=False)
    if numerics.rounds:
        with as_the_package:
            runs["rounded"] = answers.alone(choices.note)
    with Arithmetic(halved=True):
        runs["noise"] = answers.together(choices.repeat)
    if numerics.activations == "float16":
        runs["half"] = _in_float16(model, answers, choices)
    with as_the_package:
        told = _run_told(answers, choices)
    mutations = {}
    for name in ("canary", "plain_canary") if numerics.rounds else ("canary",):
        with ExitStack() as damage, as_the_package:
            halves = [swapped_heads(one, every=name != "canary") for one in answers.halves]
            mutations[name] = " and ".join(damage.enter_context(half) for half in halves)
            runs[name] = answers.alone()
    if request.get("device"):
        runs |= _run_device(model, DeviceNumerics(**request["device"]), answers, choices)
    elif not numerics.rounds and sum(weight.numel() for weight in model.parameters()) < _SMALL:
        compute_in_float64(model)
        torch.set_default_dtype(torch.float64)  # for what transformers makes on the way
        with Widest():
            runs["double"] = answers.alone(choices.repeat)
    arrays = {
        f"{variant}.{number}": array
        for variant, found in runs.items()
        for number, array in enumerate(found)
    }
    judged = "rounded" if numerics.rounds else "reference"
    return arrays | {f"{judged}.{name}": array for name, array in told.items()}, mutations


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


def _run_told(answers: Answers, choices: Choices) -> dict[str, Array]:
    """Run a sequence again for each run of the package that chose otherwise; return `sequence.run` arrays.

    They are none where more was told than noise can explain.
    """
    told = {}
    for run in choices.differing():
        number = choices.runs[run]
        array = answers.told(number, choices.length(run), choices.tell(run))
        if any(choices.told[run]):
            told[f"{number}.{run}"] = array
    return told if choices.excused else {}


def assert_unpatched() -> None:
    """Make sure that nothing of ours was there to change transformers."""
    ours = [name for name in sys.modules if name.startswith(_OURS)]
    assert not ours, f"The reference must be Hugging Face's own; it imported {ours}."


if __name__ == "__main__":
    main(sys.argv[1:])
