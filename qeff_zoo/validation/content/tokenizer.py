# SPDX-License-Identifier: Apache-2.0
"""Content of a tokenizer in sections, each with a digest: what no sample text reaches is compared too.

Pure: the JSON of a backend of the `tokenizers` library in, digests out. Truncation and padding are no part of it: both
sides set them in each call.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Parts of a backend that read or write text.
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
#: Parts of its model that may be long; the rest of the model is one section.
_LONG = ("vocab", "merges")
_DAMAGED = 2  # entries at the end of a long part
#: Settings beside a backend that change what it reads or writes.
SETTINGS = (
    "clean_up_tokenization_spaces",
    "model_input_names",
    "split_special_tokens",
    "truncation_side",
)


@dataclass(frozen=True)
class Section:
    """Digests of a section of a tokenizer.

    Args:
        right: Digest of the section.
        exchanged: Digest of the damaged section: two neighbours exchanged, or one value.
    """

    right: str
    exchanged: str


def sections(content: Mapping[str, Any]) -> dict[str, Section]:
    """Return the digests of a tokenizer's sections.

    Args:
        content: A backend as `to_str` returns it, parsed.
    """
    model = content["model"]
    sections_: dict[str, Any] = {
        "model": {name: value for name, value in model.items() if name not in _LONG},
        "added_tokens": content["added_tokens"],
        **{name: content.get(name) for name in _PARTS},
    }
    digests = {
        name: Section(_digest(value).hexdigest(), _digest(_exchanged(value)).hexdigest())
        for name, value in sections_.items()
    }
    return {f"model.{name}": _of_long(model[name]) for name in _LONG if model.get(name)} | digests


def _of_long(value: Mapping[str, int] | Sequence[Any]) -> Section:
    """Return the digests of a long section, which is read once: the damage is in its last entries.

    The library writes a vocabulary in the order of its ids, so that the order of its entries is part of the digest.
    """
    entries = [*value.items()] if isinstance(value, Mapping) else value
    begun, end = _digest(entries[:-_DAMAGED]), entries[-_DAMAGED:]
    damaged = [*_exchanged(dict(end)).items()] if isinstance(value, Mapping) else _exchanged(end)
    both = []
    for last in (end, damaged):
        digest = begun.copy()
        digest.update(_written(last))
        both.append(digest.hexdigest())
    return Section(*both)


def _exchanged(value: Any) -> Any:
    """Return a section with its last two entries exchanged, or with another entry."""
    if isinstance(value, list) and len(value) > 1 and value[-1] != value[-2]:
        return [*value[:-2], value[-1], value[-2]]
    if isinstance(value, Mapping) and len(value) > 1:
        (*_, first, last), changed = value, dict(value)
        changed[first], changed[last] = value[last], value[first]
        return changed if changed != value else {**value, "": None}
    return [value]


def _digest(value: Any) -> "hashlib._Hash":
    return hashlib.sha256(_written(value))


def _written(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
