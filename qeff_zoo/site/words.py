# SPDX-License-Identifier: Apache-2.0
"""Figures in words: what a metric measures, and what a measured loss means for a user."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from qeff_zoo.site.content import Check, number

#: Metric -> its name, what it measures, and the unit of its figures.
METRICS: Mapping[str, tuple[str, str, str]] = {
    "max_relative_error": (
        "largest error of an output",
        "The largest difference of an output from Hugging Face's, in percent of the spread of all outputs.",
        "%",
    ),
    "max_kl_divergence": (
        "largest KL divergence",
        "How far a predicted distribution of tokens is from Hugging Face's, at the worst position.",
        " nats",
    ),
    "max_cosine_distance": (
        "largest cosine distance",
        "How far an embedding points away from Hugging Face's, at worst; 0 is the same direction.",
        "",
    ),
    "top1_agreement": (
        "same first choice",
        "Outputs whose most likely token or label is the same.",
        "%",
    ),
    "same_token_ids": ("same token ids", "Texts that become the same token ids.", "%"),
    "same_cut_texts": ("same truncated texts", "Texts that are truncated alike.", "%"),
    "same_decoded_texts": ("same decoded texts", "Token ids that become the same text.", "%"),
    "same_rendered_chats": (
        "same chats",
        "Conversations that the chat template renders alike.",
        "%",
    ),
    "rounding_over_expected": (
        "loss by rounding over the expected",
        "Loss by rounding activations, divided by that of a simulation of the same rounding.",
        "",
    ),
}
LEVEL_WORDS: Mapping[str, str] = {
    "none": "Nothing was compared.",
    "tiny": "Models of this architecture with random weights agree with Hugging Face's own code.",
    "emulated": "The graph agrees with Hugging Face's model where both round as the device does.",
    "checkpoint": "The package agrees with Hugging Face's unpatched model, with the real weights.",
    "simulated": "The compiled program agrees with Hugging Face's model, on a simulator of the device.",
    "device": "The compiled program agrees with Hugging Face's model, on the device.",
    "task": "The package also reaches the score of Hugging Face's model on a task.",
}
_OPS = {"<=": "at most", ">=": "at least", "==": "exactly"}
#: Mean loss up to which a user notices little, and up to which much: nats, or cosine distance.
_GRADES: Mapping[str, tuple[float, float]] = {
    "kl_divergence": (0.01, 0.1),
    "cosine_distance": (0.001, 0.01),
}
_ERROR = re.compile(r"\b(error|failed|refused)\b.*:", re.IGNORECASE)
_LONGEST = 300


def metric(name: str) -> str:
    """Return the name of a metric in words."""
    return METRICS.get(name, (name.replace("_", " "), "", ""))[0]


def figure(value: float | None, name: str) -> str:
    """Write a figure of a metric with its unit."""
    unit = METRICS.get(name, ("", "", ""))[2]
    scaled = None if value is None else number(value * (100 if unit == "%" else 1))
    return "not a finite number" if scaled is None else f"{scaled:.3g}{unit}"


def allowed(check: Check) -> str:
    """Write the threshold of a check."""
    return f"{_OPS.get(check.op, check.op)} {figure(check.threshold, check.metric)}"


def grade(kind: str, mean: float | None) -> str:
    """Return what a mean loss by rounding means for a user.

    Args:
        kind: `kl_divergence` or `cosine_distance`.
        mean: Mean loss over positions.
    """
    little, much = _GRADES.get(kind, _GRADES["kl_divergence"])
    if mean is None or mean > much:
        return "large: expect worse results"
    return "small" if mean <= little else "noticeable"


def costs(content: Any) -> Iterator[str]:
    """Yield the losses by rounding of a manifest or a record, a sentence each."""
    names = {"weights": "Rounding the weights", "activations": "Rounding the activations to int8"}
    for name, text in names.items():
        cost = content.get(name) if isinstance(content, Mapping) else None
        if not isinstance(cost, Mapping):
            continue
        kind, mean = str(cost.get("metric")), number(cost.get("mean"))
        unit = "nats per token" if kind == "kl_divergence" else "of cosine distance"
        loss = "not a finite number" if mean is None else f"{mean:.2g} {unit}"
        ratio = number(cost.get("perplexity_ratio"))
        perplexity = f"; perplexity is {ratio:.3g} times the unrounded one" if ratio else ""
        yield f"{text} costs {loss} on average ({grade(kind, mean)}){perplexity}."


def measured(content: Any) -> Iterator[str]:
    """Yield the measurements of a record, a sentence each: perplexity, mean KL, word errors, distances."""
    if not isinstance(content, Mapping):
        return
    values = {name: number(value) for name, value in content.items()}
    perplexity, reference = values.get("perplexity"), values.get("reference")
    if perplexity and reference:
        yield (
            f"Perplexity {perplexity:.4g}; Hugging Face's model in float32 has {reference:.4g}: "
            f"{perplexity / reference:.4g} times as much."
        )
    if (mean := values.get("mean_kl")) is not None:
        agreement = values.get("top1_agreement")
        same = f"; {agreement:.1%} of next tokens have the same first choice" if agreement else ""
        yield f"Mean KL divergence {mean:.2g} nats per token ({grade('kl_divergence', mean)}){same}."
    if (words := values.get("words")) and (wrong := values.get("wrong")) is not None:
        yield (
            f"{wrong:.0f} of {words:.0f} transcribed words are wrong; Hugging Face's model has "
            f"{reference or 0:.0f} wrong words."
        )
    if (distance := values.get("mean_distance")) is not None:
        yield (
            f"Embeddings differ by {distance:.2g} of cosine distance on average "
            f"({grade('cosine_distance', distance)})."
        )
    peer = content.get("llama.cpp")
    if isinstance(peer, Mapping) and (mean := number(peer.get("mean_kl"))) is not None:
        yield f"llama.cpp with the same file: mean KL divergence {mean:.2g} nats per token."


def reason(text: str) -> str:
    """Shorten the message of a failure to its first sentence and its last line with an error.

    Args:
        text: Message, perhaps with the output of a compiler.
    """
    first, _, output = text.partition(" It said: ")
    lines = [line.strip() for line in output.splitlines() if _ERROR.search(line)]
    short = " ".join([*first.split(), *lines[-1:]])
    return short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…"


def listed(versions: Mapping[str, str]) -> str:
    """Write versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
