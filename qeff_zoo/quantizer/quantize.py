# SPDX-License-Identifier: Apache-2.0
"""Behind `qeff-zoo quantize`: a checkpoint of floats to one of integers, layer by layer."""

import json
import shutil
from pathlib import Path

import torch

from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.checkpoint.sentence_transformers.modules import weight_files as module_files
from qeff_zoo.errors import PlanError, UnsupportedModelError
from qeff_zoo.export.streaming import Streamed
from qeff_zoo.plan import resolve as plans
from qeff_zoo.plan.request import Request
from qeff_zoo.quantizer.measuring import Measured
from qeff_zoo.quantizer.options import BITS, GROUPS, METHODS, Quantized, QuantizeOptions
from qeff_zoo.quantizer.subject import Subject
from qeff_zoo.quantizer.work import Work
from qeff_zoo.store import Store
from qeff_zoo.store.copies import new_folder
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch

from . import texts


def quantize(
    model: str,
    output: Path,
    options: QuantizeOptions,
    *,
    text: str | None = None,
    revision: str | None = None,
    reporter: Reporter | None = None,
) -> Quantized:
    """Write a quantized checkpoint (compressed-tensors), which appears whole or not at all.

    Args:
        model: Hub id or folder of a checkpoint of floats.
        output: A folder that is absent or empty.
        options: Options.
        text: To calibrate on; None for a few texts of ours.
        revision: Branch, tag or commit of a Hub model.
        reporter: Shows progress.

    Raises:
        PlanError: The choices conflict, or the budget is too small.
        UnsupportedModelError: The model cannot be quantized here.
        GenerationError: The text is too short.
        StoreError: The folder holds something, or has no room.

    """
    watch = Stopwatch(reporter or Silent())
    checkpoint = open_checkpoint(model, revision=revision)
    _check(checkpoint, options)
    plan = plans.check(checkpoint, Request())
    with new_folder(output) as folder, torch.no_grad():
        checkpoint.fetch()
        streamed = Streamed(checkpoint, plan.programs[0].task)
        read = texts.read(checkpoint, text, options.tokens, encoder=not streamed.is_decoder)
        subject = Subject(checkpoint, streamed, read, options)
        subject.check()
        measured = Measured(subject)
        with watch.stage("float model", total=len(streamed.layers), unit="layer") as step:
            measured.measure(step)
        work = Work(measured)
        Store.require_space(folder, work.nbytes, f"{checkpoint.name!r} in integers")
        with watch.stage("quantizing", total=len(streamed.layers), unit="layer") as step:
            work.write(folder, step)
        behind = module_files(checkpoint.companions).values()
        for name in (*checkpoint.companions, *behind):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint.folder / name, folder / name)
        config = {**checkpoint.config, "quantization_config": work.config()}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    checkpoint.close()
    return work.answer(output)


def _check(checkpoint: Checkpoint, options: QuantizeOptions) -> None:
    """Refuse what can be known to be wrong before any weight is read."""
    problems = []
    if options.bits not in BITS:
        problems.append(f"Cannot quantize to {options.bits} bits; expected 4 or 8. Change --bits.")
    if options.group_size not in GROUPS:
        sizes = ", ".join(map(str, sorted(GROUPS)))
        problems.append(
            f"Cannot quantize in groups of {options.group_size}; expected one of {sizes}. Change --group-size."
        )
    if options.method not in METHODS:
        problems.append(
            f"No method {options.method!r}; expected one of {', '.join(METHODS)}. Change --method."
        )
    if options.tokens < 1:
        problems.append(
            f"Cannot calibrate on {options.tokens} tokens; expected some. Change --calibration-tokens."
        )
    if problems:
        raise PlanError(problems)
    if checkpoint.quantization:
        raise UnsupportedModelError(
            f"{checkpoint.name!r} is quantized already, with {checkpoint.method!r}. Expected a checkpoint of floats: "
            "what was rounded once is not rounded better again. Give the one it was made from, or build it as it is."
        )
