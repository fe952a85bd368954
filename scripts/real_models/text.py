# SPDX-License-Identifier: Apache-2.0
"""A fixed text: its perplexity, and the distance of a package's (and llama.cpp's) predictions from transformers'."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import qeff_zoo
from qeff_zoo.errors import ParityError
from qeff_zoo.package import Package
from qeff_zoo.pipeline.checks import source_of
from qeff_zoo.runtime.program import Array
from qeff_zoo.validation import perplexity
from qeff_zoo.validation.perplexity import Score, Scoring
from real_models.models import Place

ROOT = Path(__file__).parents[2]
TEXT = Path(__file__).with_name("text.txt")
#: The tokens before are read in chunks, and are as many as Gemma 3 sees in its local layers. The rest is decoded.
FIRST = 512


@dataclass(frozen=True)
class Reference:
    """Predictions of transformers' unpatched model in float32, from the checkpoint's dequantized weights.

    Args:
        scoring: The text's tokens and windows.
        score: Its perplexity.
        logits: (targets, vocabulary), in a file.
    """

    scoring: Scoring
    score: Score
    logits: Array


def fixed() -> str:
    """Return a digest of all that figures depend on besides the package."""
    return hashlib.sha256(TEXT.read_bytes() + str(FIRST).encode()).hexdigest()


def reference(package: Package, place: Place) -> Reference:
    """Run transformers on the text.

    Args:
        package: A package of the checkpoint, whose tokenizer is used.
        place: Folders; the scratch folder gets the logits.
    """
    scoring = replace(perplexity.prepare(package, TEXT.read_text("utf-8")), first=FIRST)
    file, source = place.scratch / "reference.npy", source_of(package, str(place.checkpoint))
    score = perplexity.score_reference(scoring, source, None, lambda _: None, file)
    return Reference(scoring, score, np.load(file, mmap_mode="r"))


def measure(package: Package, expected: Reference) -> dict[str, Any]:
    """Return the figures of a package."""
    session: Any = qeff_zoo.load(package)
    answers = perplexity.predictions(expected.scoring, session.decoder, lambda _: None)
    return figures(answers, expected)


def measure_llama_cpp(expected: Reference, place: Place) -> dict[str, Any]:
    """Return the figures of llama.cpp on the same GGUF file, for the same tokens in the same windows.

    Args:
        expected: Predictions of transformers.
        place: Folders.

    Raises:
        ParityError: llama.cpp does not run the file.
    """
    scoring = expected.scoring
    logits = place.scratch / "llama-cpp.npy"
    asked = {
        "file": str(place.checkpoint),
        "text": TEXT.read_text("utf-8"),
        "tokens": list(scoring.tokens),
        "windows": [(window.start, window.first, window.stop) for window in scoring.windows],
        "logits": str(logits),
    }
    path = os.pathsep.join(map(str, (ROOT / "scripts", ROOT / "tests" / "helpers")))
    done = subprocess.run(
        [sys.executable, "-m", "real_models.llama_cpp"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise ParityError(f"llama.cpp does not run {str(place.checkpoint)!r}: {said}")
    answers = zip(scoring.targets, np.load(logits, mmap_mode="r"), strict=True)
    return {
        **figures(answers, expected),
        **json.loads(done.stdout),
        "library": f"xllamacpp=={version('xllamacpp')}",
    }


def figures(answers: Iterable[tuple[int, Array]], expected: Reference) -> dict[str, Any]:
    """Compare predictions with transformers'.

    Args:
        answers: Numbers of targets, and the logits that predict each.
        expected: Predictions of transformers.

    Returns:
        The number of targets, both perplexities, the mean KL divergence in nats with its standard error, and how
        often the likeliest token is the same.
    """
    rows = {target: row for row, target in enumerate(expected.scoring.targets)}
    losses, divergences, same = [], [], 0
    for target, logits in answers:
        theirs = expected.logits[rows[target]]
        losses.append(perplexity.loss_of(logits, expected.scoring.tokens[target]))
        divergences.append(_divergence(theirs, logits))
        same += int(theirs.argmax() == logits.argmax())
    if len(losses) != len(rows):
        raise ParityError(f"{len(losses)} of {len(rows)} targets were predicted; expected all.")
    return {
        "targets": len(rows),
        "perplexity": math.exp(np.mean(losses)),
        "reference": expected.score.perplexity,
        "mean_kl": float(np.mean(divergences)),
        "kl_error": float(np.std(divergences) / math.sqrt(len(rows))),
        "top1_agreement": same / len(rows),
    }


def _divergence(expected: Array, got: Array) -> float:
    """Return the KL divergence of predictions from those that are expected, in nats."""
    theirs, ours = (_log_softmax(one) for one in (expected, got))
    return float((np.exp(theirs) * (theirs - ours)).sum())


def _log_softmax(logits: Array) -> Array:
    values = logits.astype(np.float64)
    values -= values.max()
    found: Array = values - np.log(np.exp(values).sum())
    return found
