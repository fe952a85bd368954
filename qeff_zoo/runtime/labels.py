# SPDX-License-Identifier: Apache-2.0
"""Labels of a classifier: their names, and the scores that its logits yield."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import CrossEncoder
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import activations
from qeff_zoo.runtime.activations import Activation, sigmoid, softmax, unchanged
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


def activation_of(
    config: Mapping[str, Any], count: int, encoder: CrossEncoder | None = None
) -> Activation:
    """Return the function from logits to scores of transformers' pipeline, or of sentence-transformers' CrossEncoder.

    Args:
        config: Content of config.json.
        count: Number of labels.
        encoder: Settings of the CrossEncoder; None for a model that is only transformers'.

    Raises:
        GenerationError: If a CrossEncoder has an unsupported activation.
    """
    if encoder is not None and encoder.activation:
        activation = activations.find(encoder.activation)
        if activation is None:
            raise GenerationError(unsupported(encoder.activation))
        return activation
    if encoder is not None:
        return sigmoid if count == 1 else unchanged
    if config.get("problem_type") == "regression":
        return unchanged
    several = config.get("problem_type") == "multi_label_classification"
    return sigmoid if several or count == 1 else softmax


def unsupported(activation: str) -> str:
    """Return why a saved activation is not computed."""
    return (
        f"The CrossEncoder computes scores with {activation!r}; expected a class of torch.nn with its default "
        f"arguments: {', '.join(activations.BY_CLASS)}. Change `activation_fn` in the checkpoint's "
        "config_sentence_transformers.json or config.json."
    )
