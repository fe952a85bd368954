# SPDX-License-Identifier: Apache-2.0
"""Comparison of a package's audio features with transformers' feature extractor, on two awkward recordings."""

from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.errors import PackageError, ParityError
from qeff_zoo.media.features import Array, Features, find
from qeff_zoo.package.files import read_json
from qeff_zoo.validation.trial.sample_audio import voice

#: Samples of recordings: beyond whole frames, and so few that most is filled up.
AWKWARD = 16_161, 5_003
#: Distance of features in parts of their spread: transforms in float32 and in float64 are a tenth of it apart.
TOLERANCE = 1e-3
#: Errors of settings that contradict one another.
_IMPOSSIBLE = ArithmeticError, LookupError, RuntimeError, TypeError, ValueError


def compare(package: Path, processor: Any) -> dict[str, str]:
    """Compare a package's features with those of transformers' feature extractor.

    Args:
        package: With the settings that a build wrote; nothing is compared without those of a feature extractor.
        processor: Processor of the checkpoint, from `processors.load`.

    Returns:
        `audio`, in words, for a record.

    Raises:
        ParityError: A feature differs.
    """
    settings = read_json(package / PROCESSOR_SETTINGS).get("feature_extractor")
    if not settings:
        return {}
    try:
        ours = find(settings)
    except PackageError as error:
        return {"audio": f"not compared: {error}"}
    reference = processors.extractor_of(processor)
    if reference is None:
        return {"audio": "not compared: transformers loads no feature extractor of the checkpoint"}
    name = type(reference).__name__
    for samples in AWKWARD:
        if problem := difference(ours, reference, voice(samples, ours.rate, samples)):
            raise ParityError(
                f"A recording of {samples:,} samples has other features than by transformers' {name}: {problem}. "
                f"Expected the same. Compare the settings in {PROCESSOR_SETTINGS} with those of the checkpoint."
            )
    return {"audio": f"{len(AWKWARD)} recordings as transformers' {name} computes their features"}


def difference(ours: Features, reference: Any, audio: Array) -> str | None:
    """Return in words what differs between the features of a recording; None for nothing.

    Args:
        ours: A package's.
        reference: Feature extractor of transformers.
        audio: Samples.
    """
    audio = audio[: ours.most or None]
    try:
        features = reference(
            [audio], sampling_rate=ours.rate, return_tensors="pt", return_attention_mask=True
        )
        right, computed = np.asarray(features[ours.name][0]), ours.compute(audio)
        if right.shape[-1:] != computed.shape[-1:] and right.ndim > 1:
            right = right.T  # some have bins first
        if len(right) * ours.step == ours.most:  # what silence fills up
            computed = ours.compute(np.pad(audio, (0, ours.most - len(audio))))
    except _IMPOSSIBLE as error:
        return f"they cannot be computed ({type(error).__name__}: {error})"
    masks = [
        np.asarray(value[0])
        for name, value in features.items()
        if "mask" in name and value.ndim == 2
    ]
    count = min([len(computed), *(int(mask.sum()) for mask in masks if len(mask) == len(right))])
    if computed.shape[1:] != right.shape[1:] or count > len(right):
        return f"{ours.name} has the shape {computed.shape}, not {right.shape}"
    largest = float(np.abs(computed[:count] - right[:count]).max())
    if largest > TOLERANCE * max(1.0, float(np.ptp(right[:count]))):
        return f"{ours.name} differs by up to {largest:.3g}"
    return None
