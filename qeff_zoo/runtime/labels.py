# SPDX-License-Identifier: Apache-2.0
"""Labels of a classifier: their names, and the scores that its logits yield."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a label.

    Args:
        label: Name of the label.
        score: Probability, or the raw logit of a regression.
    """

    label: str
    score: float


def best_first(names: Sequence[str], values: Array) -> tuple[Score, ...]:
    """Return all labels with their scores, in descending order.

    Args:
        names: Names of the labels, in the order of the scores.
        values: The scores, (labels,).
    """
    scores = [Score(label=n, score=float(v)) for n, v in zip(names, values, strict=True)]
    return tuple(sorted(scores, key=lambda found: -found.score))


def softmax(logits: Array) -> Array:
    """Return probabilities that add up to 1 over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: Array = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: Array) -> Array:
    """Return an independent probability for each logit."""
    probabilities: Array = (1 + np.tanh(logits / 2)) / 2  # without overflow
    return probabilities


def unchanged(logits: Array) -> Array:
    """Return logits unchanged."""
    return logits


#: Activation classes of torch that sentence-transformers names for cross-encoders.
_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"Identity": unchanged, "Sigmoid": sigmoid}
)


def names_of(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the names of labels in the order of the logits.

    Args:
        config: Content of config.json; without names the labels are transformers' `LABEL_0` and so on.
        count: Number of logits.

    Raises:
        GenerationError: If the config names another number of labels.
    """
    listed = dict(enumerate(config.get("label_names") or ()))  # timm's field
    id2label = config.get("id2label") or listed
    named = {int(number): str(name) for number, name in id2label.items()}
    if named and sorted(named) != list(range(count)):
        raise GenerationError(
            f"config.json names the labels {sorted(named)}, but the graph has {count}. Expected 0 to {count - 1} in "
            f"id2label. Build the package again from a checkpoint whose config.json is its own."
        )
    return tuple(named.get(number, f"LABEL_{number}") for number in range(count))


def activation_of(config: Mapping[str, Any], count: int) -> Callable[[Array], Array]:
    """Return the function from logits to scores of transformers' pipeline and sentence-transformers' CrossEncoder.

    Args:
        config: Content of config.json.
        count: Number of labels. sentence-transformers' config may name a single label's activation.

    Raises:
        GenerationError: If the config names an unsupported activation.
    """
    own = config.get("sentence_transformers") or {}
    activation = own.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    if count == 1 and activation:
        name = str(activation).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            raise GenerationError(
                f"config.json makes scores with {activation!r}; expected {' or '.join(_ACTIVATIONS)}. Run the "
                "package's graph with an activation of your own, or change the entry in the checkpoint and build again."
            )
        return _ACTIVATIONS[name]
    if config.get("problem_type") == "regression":
        return unchanged
    several = config.get("problem_type") == "multi_label_classification"
    return sigmoid if several or count == 1 else softmax
