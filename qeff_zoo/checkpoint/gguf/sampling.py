# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters in the metadata of a GGUF file, as those of a generation_config.json.

Source: https://github.com/ggml-org/llama.cpp, common/common.cpp
"""

import warnings
from array import array
from collections.abc import Callable, Mapping
from typing import Any

_PREFIX = "general.sampling."
#: Token ids that are never generated, such as the ends of images and audio of Gemma 4.
_SUPPRESSED = "tokenizer.ggml.suppress_tokens"
#: Metadata that transformers has under another name.
_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
#: Metadata without a counterpart, and whether a value changes what is generated.
_OTHERS: Mapping[str, Callable[[Any], bool]] = {
    "xtc_probability": lambda value: value > 0,
    "mirostat": lambda value: value != 0,
    "sequence": lambda value: True,
}
#: Metadata that only set how others of these apply.
_DETAILS = ("xtc_threshold", "mirostat_tau", "mirostat_eta", "penalty_last_n")


def sampling_of(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters of a file, by transformers' names; empty without any.

    Warns about those that transformers does not have.

    Args:
        name: Name of the file, for messages.
        metadata: Metadata of the file.
    """
    given = {
        key.removeprefix(_PREFIX): float(f"{value:.7g}") if isinstance(value, float) else value
        for key, value in metadata.items()
        if key.startswith(_PREFIX)
    }
    left_out = [
        key
        for key, value in given.items()
        if key not in (*_NAMES, *_DETAILS) and _OTHERS.get(key, lambda _: True)(value)
    ]
    if left_out:
        listed = ", ".join(f"{_PREFIX}{key} {given[key]!r}" for key in left_out)
        warnings.warn(
            f"{name!r} sets {listed:.200}, which transformers does not have. Text is sampled without it.",
            stacklevel=2,
        )
    parameters = {ours: given[key] for key, ours in _NAMES.items() if key in given}
    never = metadata.get(_SUPPRESSED)
    suppressed = {"suppress_tokens": [*never]} if isinstance(never, array) and never else {}
    if not parameters:
        return suppressed
    draws = parameters.get("temperature", 1.0) > 0
    if not draws:
        del parameters["temperature"]
    return {"do_sample": draws, **parameters, **suppressed}
