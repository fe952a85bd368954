# SPDX-License-Identifier: Apache-2.0
"""Content of a tokenizer in sections, each with a digest: what no sample text reaches is compared too.

Pure: the JSON text of a backend of the `tokenizers` library in, digests out. Truncation and padding are no part of it:
both sides set them in each call.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: Parts of a backend that read or write text.
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
#: Parts of its model that may be long; the rest of the model is one section.
_LONG = ("vocab", "merges")
#: Settings beside a backend that change what it reads or writes.
SETTINGS = (
    "clean_up_tokenization_spaces",
    "model_input_names",
    "split_special_tokens",
    "truncation_side",
)


def sections(serialized: str, *, exchanged: bool = False) -> dict[str, str]:
    """Return the digests of a tokenizer's sections.

    Args:
        serialized: A backend as `to_str` returns it.
        exchanged: Damage each section first, by the exchange of two neighbours, or of one value.
    """
    content = json.loads(serialized)
    model = content["model"]
    found = {f"model.{name}": model[name] for name in _LONG if model.get(name)}
    found["model"] = {name: value for name, value in model.items() if name not in _LONG}
    found["added_tokens"] = content["added_tokens"]
    found |= {name: content.get(name) for name in _PARTS}
    if exchanged:
        found = {name: _exchanged(value) for name, value in found.items()}
    return {name: _digest(value) for name, value in found.items()}


def _exchanged(value: Any) -> Any:
    """Return a section with its last two entries exchanged, or with another entry."""
    if isinstance(value, list) and len(value) > 1 and value[-1] != value[-2]:
        return [*value[:-2], value[-1], value[-2]]
    if isinstance(value, Mapping) and len(value) > 1:
        (*_, first, last), changed = value, dict(value)
        changed[first], changed[last] = value[last], value[first]
        return changed if changed != value else {**value, "": None}
    return [value]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
