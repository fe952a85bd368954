# SPDX-License-Identifier: Apache-2.0
"""ColBERT checkpoints of PyLate and of ColBERT's authors, read as a `MultiVectorEncoder` of sentence-transformers.

Input: the reader of a checkpoint's small files. Output: a reader of the same files as a `MultiVectorEncoder` has them,
and its modules.

PyLate writes its settings into config_sentence_transformers.json, and lists no masks. ColBERT's authors write
artifact.metadata, and the projection beside the encoder's weights.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.checkpoint.sentence_transformers.files import (
    ENCODER_SETTINGS,
    LIBRARY,
    LISTED,
    METADATA,
    SETTINGS,
    Module,
    Reader,
)
from qeff_zoo.errors import UnsupportedModelError

#: Class of the checkpoints of ColBERT's authors.
HF_COLBERT = "HF_ColBERT"
SEVERAL = "MultiVectorEncoder"
_PYLATE, _PYLATE_DENSE = "ColBERT", "pylate.models.Dense"
#: Field of the settings with the prefixes that are one token each.
MARKERS = "markers"
_SIMILARITY = "maxsim"
_PREFIXES = {"query_prefix": "query", "document_prefix": "document"}
_LENGTHS = ("query_length", "document_length", "query_expansion")
_FIELDS = (
    *(*_PREFIXES, *_LENGTHS, "do_query_expansion", "attend_to_expansion_tokens"),
    *("attend_to_mask_tokens", "skiplist_words"),
)
_QUERY_LENGTH, _DIMENSIONS = 32, 128  # without such settings
_TOKENS = {"module_input_name": "token_embeddings"}


@dataclass(frozen=True, kw_only=True)
class Colbert:
    """Settings of a ColBERT checkpoint.

    Args:
        prefixes: Prefix of each kind of text.
        encoder: Settings of the encoder: lengths, and the expansion of queries.
        skipped: Words of documents that are not compared; None for those of the modules.
        projection: Config of the projection beside the encoder's weights; None for a module of its own.
    """

    prefixes: Mapping[str, str]
    encoder: Mapping[str, Any]
    skipped: list[str] | None
    projection: Mapping[str, Any] | None = field(default=None)

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return config_sentence_transformers.json as a `MultiVectorEncoder` has it."""
        prompts = dict(own.get("prompts") or {})
        for kind, prefix in self.prefixes.items():
            prompts[kind] = prefix + (prompts.get(kind) or "").removeprefix(prefix)
        markers = [prefix for prefix in self.prefixes.values() if prefix]
        rest = {"model_type": SEVERAL, "similarity_fn_name": _SIMILARITY}
        return {**own, **rest, "prompts": prompts, MARKERS: markers}

    def modules(self, listed: list[Module]) -> list[Module]:
        """Return the modules with those that the checkpoint leaves out."""
        if self.projection is not None:
            listed = [_module("Transformer"), _module("Dense", self.projection)]
        if self.skipped is None:
            return listed
        kept = [one for one in listed if one.kind not in ("Pooling", "Normalize")]
        if all(one.kind != "Dense" for one in kept):
            raise UnsupportedModelError(
                f"{LISTED} of a ColBERT checkpoint lists {[one.described for one in listed]}; expected Transformer and "
                "Dense. Without a trained projection its scores have no meaning: use a trained model."
            )
        mask = _module("MultiVectorMask", {"skiplist_words": self.skipped})
        return [*map(_of_tokens, kept), mask, _module("Normalize", _TOKENS)]


def read_colbert(read: Reader) -> Colbert | None:
    """Read the settings of a ColBERT checkpoint of PyLate, or of ColBERT's authors; None for others.

    Args:
        read: Reader of the checkpoint's files.
    """
    own = read(SETTINGS)
    kind = own.get("model_type")
    if kind is None and HF_COLBERT in (read("config.json").get("architectures") or ()):
        return _of_authors(read)
    if kind not in (None, _PYLATE, SEVERAL, "SentenceTransformer"):
        return None
    marked = any(name in own for name in _FIELDS)
    return _of_pylate(own, kind) if marked or kind == _PYLATE else None


def translated(read: Reader) -> Reader:
    """Return a reader that returns the settings of a ColBERT checkpoint as those of a `MultiVectorEncoder`."""
    settings = read_colbert(read)
    if settings is None:
        return read
    file = next((setting for setting in ENCODER_SETTINGS if read(setting)), ENCODER_SETTINGS[0])

    def translate(name: str) -> dict[str, Any]:
        if name == SETTINGS:
            return settings.settings(read(name))
        return {**settings.encoder, **read(name)} if name == file else read(name)

    return translate


def _of_pylate(own: Mapping[str, Any], kind: str | None) -> Colbert:
    encoder = {
        name: own[name]
        for name in _LENGTHS
        if name in own and (own[name] is not None or name == "query_expansion")
    }
    if "query_expansion" not in own and any(name in own for name in _FIELDS):
        attends = own.get("attend_to_expansion_tokens", own.get("attend_to_mask_tokens"))
        length = encoder.pop("query_length", None) or _QUERY_LENGTH
        expands = own.get("do_query_expansion") is not False
        encoder["query_expansion"] = _expansion(length, attends) if expands else None
        if not expands and own.get("query_length"):
            encoder["query_length"] = length
    prefixes = {prefix: own[name] or "" for name, prefix in _PREFIXES.items() if name in own}
    skipped = own.get("skiplist_words")
    if skipped is None and (prefixes or kind == _PYLATE):
        skipped = string.punctuation
    return Colbert(
        prefixes=prefixes,
        encoder=encoder,
        skipped=None if kind == SEVERAL else list(skipped or ()),
    )


def _of_authors(read: Reader) -> Colbert:
    metadata, config = read(METADATA), read("config.json")
    encoder = {
        "query_expansion": _expansion(
            metadata.get("query_maxlen") or _QUERY_LENGTH, metadata.get("attend_to_mask_tokens")
        )
    }
    if metadata.get("doc_maxlen") is not None:
        encoder["document_length"] = metadata["doc_maxlen"]
    return Colbert(
        prefixes={
            "query": (metadata.get("query_token_id") or "[unused0]") + " ",
            "document": (metadata.get("doc_token_id") or "[unused1]") + " ",
        },
        encoder=encoder,
        skipped=list(string.punctuation) if metadata.get("mask_punctuation", True) else [],
        projection={
            "in_features": config.get("hidden_size")
            or config.get("dim"),  # DistilBERT has the latter
            "out_features": metadata.get("dim") or _DIMENSIONS,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )


def _expansion(length: int, attends: object) -> dict[str, Any]:
    return {"strategy": "fixed", "attend": bool(attends), "length": length}


def _module(kind: str, config: Mapping[str, Any] | None = None) -> Module:
    return Module(library=LIBRARY, kind=kind, folder="", config=config or {})


def _of_tokens(module: Module) -> Module:
    """Return a module whose dense layer reads the states of tokens, of the library if PyLate has the same."""
    library = LIBRARY if module.library == _PYLATE_DENSE else module.library
    reads = {**module.config, **_TOKENS} if module.kind == "Dense" else module.config
    return Module(
        library=library,
        kind=module.kind,
        arguments=module.arguments,
        folder=module.folder,
        config=reads,
    )
