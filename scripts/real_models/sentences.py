# SPDX-License-Identifier: Apache-2.0
"""Fixed pairs of sentences: how far a package's embeddings, and their cosines, are from sentence-transformers'."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime.program import Array
from real_models.models import Place

PAIRS = Path(__file__).with_name("pairs.json")


def fixed() -> str:
    """Return a digest of all that figures depend on besides the package."""
    return hashlib.sha256(PAIRS.read_bytes()).hexdigest()


def reference(package: Package, place: Place) -> Array:
    """Return transformers' embeddings of the sentences by sentence-transformers' rule, of length 1, in float32.

    The rule: the tokens of `max_seq_length`, their mean over the attention mask, perhaps scaled to length 1.

    Args:
        package: Not used; the checkpoint has a tokenizer.
        place: Folders; the checkpoint is one of sentence-transformers.
    """
    checkpoint = place.checkpoint
    pooling = json.loads((checkpoint / "1_Pooling" / "config.json").read_bytes())
    if not pooling["pooling_mode_mean_tokens"]:
        raise ValueError(
            f"{str(checkpoint)!r} pools by {pooling}; expected the mean of its tokens."
        )
    most = json.loads((checkpoint / "sentence_bert_config.json").read_bytes())["max_seq_length"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32)
    found = []
    for sentence in sentences():
        inputs = tokenizer(sentence, truncation=True, max_length=most, return_tensors="pt")
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state[0]  # (tokens, hidden)
        found.append(states.mean(0).numpy())  # one text a batch: nothing is padded
    return _unit(np.stack(found))


def measure(package: Package, expected: Array) -> dict[str, Any]:
    """Compare a package's embeddings with those of the reference.

    Returns:
        The mean cosine distance of a sentence's two embeddings, and the largest difference of a pair's cosines.
    """
    session: Any = qeff_zoo.load(package)
    got = _unit(session.embed(sentences()))
    return {
        "pairs": len(got) // 2,
        "mean_distance": float(np.mean(1 - (got * expected).sum(-1))),
        "max_cosine_error": float(np.abs(_cosines(got) - _cosines(expected)).max()),
    }


def sentences() -> list[str]:
    """Return the sentences of all pairs, one pair after the other."""
    return [sentence for pair in json.loads(PAIRS.read_bytes())["pairs"] for sentence in pair]


def _cosines(embeddings: Array) -> Array:
    found: Array = (embeddings[::2] * embeddings[1::2]).sum(-1)
    return found


def _unit(embeddings: Array) -> Array:
    values = embeddings.astype(np.float64)
    found: Array = values / np.linalg.norm(values, axis=-1, keepdims=True)
    return found
