# SPDX-License-Identifier: Apache-2.0
"""Settings of sentence-transformers besides its modules: prompts, lengths, similarity, and what is not supported.

They are read from the files of a checkpoint, or from the same files of a package.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qeff_zoo.checkpoint.sentence_transformers.colbert import MARKERS, SEVERAL, translated
from qeff_zoo.checkpoint.sentence_transformers.files import (
    ENCODER_SETTINGS,
    SETTINGS,
    VECTORS,
    Reader,
)
from qeff_zoo.errors import GenerationError

#: Classes of models in their settings: of one embedding per text, and of sparse embeddings.
SINGLE, SPARSE = "SentenceTransformer", "SparseEncoder"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
MAX_SIMILARITY = "maxsim"
QUERY, DOCUMENT = "query", "document"
#: Names of prompts of documents, the first that a model has.
_DOCUMENTS = (DOCUMENT, "passage", "corpus")
_UNLIMITED = 1 << 30  # tokens
#: Supported settings of a call of the tokenizer, with their values; None for any.
_CALL_SETTINGS: Mapping[str, tuple[Any, ...] | None] = {
    "max_length": None,
    "padding": None,  # padding has no effect on an embedding
    "pad_to_multiple_of": None,
    "padding_side": None,
    "return_tensors": None,
    "return_attention_mask": None,
    "truncation": (True, "longest_first", "only_first"),
    "add_special_tokens": (True,),
}
#: Settings of a loaded tokenizer that change no token ids, besides its maximum length.
_NEUTRAL_SETTINGS = {
    *("model_max_length", "padding_side", "use_fast", "trust_remote_code", "token", "revision"),
    *("cache_dir", "local_files_only", "subfolder"),
}
#: Fields with such settings, the newer name first.
_TOKENIZER_FIELDS = ("processor_kwargs", "tokenizer_args")


@dataclass(frozen=True, kw_only=True)
class SentenceSettings:
    """Settings of sentence-transformers.

    Args:
        max_length: Number of tokens to which texts are truncated.
        lengths: Other numbers by kind of text, "query" or "document".
        lowercase: Whether texts are converted to lower case first.
        prompts: Texts that precede a text, by name.
        default_prompt: Name of the prompt that precedes texts for which none is requested; None for no prompt.
        similarity: Name of the function that compares embeddings, one of `SIMILARITIES`.
        truncate_dim: Number of the first values of an embedding that are returned; None for all.
        max_active_dims: Number of the largest weights of a sparse embedding that are returned; None for all.
        expansion: Expansion of queries of late interaction: `strategy`, `length`, `token`, `attend`; None for none.
        markers: Prompts of a ColBERT checkpoint that are one token each if the vocabulary has it.
        special_tokens: Whether the tokenizer's special tokens are added.
    """

    max_length: int
    lengths: Mapping[str, int]
    lowercase: bool
    prompts: Mapping[str, str]
    default_prompt: str | None
    similarity: str
    truncate_dim: int | None
    max_active_dims: int | None
    expansion: Mapping[str, Any] | None
    markers: tuple[str, ...] = ()
    special_tokens: bool = True

    def prompt(self, prompt: str | None, name: str | None) -> str:
        """Return the text that precedes texts: the given one, else the named one, else the default one.

        Raises:
            GenerationError: No prompt has this name.
        """
        if prompt is not None:
            return prompt
        name = name if name is not None else self.default_prompt
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise GenerationError(
                f"The prompt {name!r} is not of this model; expected one of {known}. Change its name, or give the text "
                "of a prompt."
            )
        return self.prompts[name] if name is not None else ""

    def prompt_of(self, kind: str | None) -> str | None:
        """Return the name of the prompt for a kind of text, "query" or "document"; None for the default."""
        names = {QUERY: (QUERY,), DOCUMENT: _DOCUMENTS}.get(kind or "", ())
        return next((name for name in names if name in self.prompts), None)

    def length_of(self, kind: str | None) -> int:
        """Return the number of tokens to which texts of a kind are truncated."""
        return self.lengths.get(kind or "", self.max_length)


def read_settings(read: Reader, similarity: str = SIMILARITIES[0]) -> SentenceSettings:
    """Read the settings of a checkpoint or of a package; those of transformers without sentence-transformers' files.

    Args:
        read: Reader of their files.
        similarity: Similarity of a model whose files set none.
    """
    read = translated(read)
    encoder, own = encoder_settings(read), read(SETTINGS)
    called = _call_settings(encoder).get("max_length")
    lengths = {kind: encoder.get(f"{kind}_length") for kind in (QUERY, DOCUMENT)}
    prompts = {QUERY: "", DOCUMENT: "", **(own.get("prompts") or {})} if own else {}
    return SentenceSettings(
        max_length=int(called or _length_of_tokenizer(read, encoder)),
        lengths={kind: int(called or length) for kind, length in lengths.items() if length},
        lowercase=bool(encoder.get("do_lower_case")),
        prompts={name: text or "" for name, text in prompts.items()},
        default_prompt=own.get("default_prompt_name"),
        similarity=own.get("similarity_fn_name") or similarity,
        truncate_dim=own.get("truncate_dim"),
        max_active_dims=own.get("max_active_dims"),
        expansion=encoder.get("query_expansion"),
        markers=tuple(own.get(MARKERS) or ()),
        special_tokens=VECTORS not in read("config.json"),
    )


def problems_of(name: str, read: Reader, output: str, *, kind: str = SINGLE) -> list[str]:
    """Return why embeddings would differ from those of sentence-transformers, one sentence each.

    Args:
        name: Name of the checkpoint.
        read: Reader of its files.
        output: Output of transformers' model that the task computes.
        kind: Class of models with such modules.
    """
    read = translated(read)
    encoder, own, several = encoder_settings(read), read(SETTINGS), kind == SEVERAL
    file = next((setting for setting in ENCODER_SETTINGS if read(setting)), ENCODER_SETTINGS[0])
    reasons = [
        *_problems_of_encoder(file, encoder, output),
        *(
            _problem(file, f"processing_kwargs.{key}", value, "padding, truncation and max_length")
            for key, value in _call_settings(encoder).items()
            if key not in _CALL_SETTINGS or value not in (_CALL_SETTINGS[key] or (value,))
        ),
    ]
    if own and (described := own.get("model_type") or SINGLE) != kind:
        reasons.append(
            f"{SETTINGS} describes a {described}; expected a {kind} for these modules. Run it with "
            "sentence-transformers itself."
        )
    settings = read_settings(read)
    if settings.expansion and not several:
        reasons.append(
            _problem(file, "query_expansion", settings.expansion, "none, without late interaction")
        )
    similarities = (MAX_SIMILARITY,) if several else SIMILARITIES
    if settings.default_prompt is not None and settings.default_prompt not in settings.prompts:
        known = ", ".join(settings.prompts)
        reasons.append(_problem(SETTINGS, "default_prompt_name", settings.default_prompt, known))
    if settings.similarity not in similarities and own.get("similarity_fn_name"):
        expected = ", ".join(similarities)
        reasons.append(_problem(SETTINGS, "similarity_fn_name", settings.similarity, expected))
    for limit in ("truncate_dim", "max_active_dims"):
        if (size := own.get(limit)) is not None and (type(size) is not int or size < 1):
            reasons.append(_problem(SETTINGS, limit, size, "a number of values"))
    return [f"{name!r}: {problem}" for problem in reasons]


def _problems_of_encoder(file: str, encoder: Mapping[str, Any], output: str) -> list[str]:
    """Return the settings of the encoder by which it would return other states, one sentence each."""
    reasons = []
    modalities = encoder.get("modality_config") or {}
    if "message" in modalities:
        reasons.append(
            _problem(file, "modality_config", "message", "text alone: a chat template would render every text")
        )  # fmt: skip
    returned = (modalities.get("text") or {}).get("method_output_name", output)
    if returned not in (output, [output]):
        name = "modality_config.text.method_output_name"
        reasons.append(_problem(file, name, returned, output))
    for field in _TOKENIZER_FIELDS:
        reasons += [
            _problem(file, f"{field}.{key}", value, "model_max_length alone")
            for key, value in (encoder.get(field) or {}).items()
            if key not in _NEUTRAL_SETTINGS
        ]
    for field in ("config_kwargs", "config_args"):
        reasons += [
            _problem(file, f"{field}.{key}", value, "a config that is as in config.json")
            for key, value in (encoder.get(field) or {}).items()
            if key not in _NEUTRAL_SETTINGS
        ]
    return reasons


def _problem(file: str, setting: str, value: object, expected: str) -> str:
    return (
        f"{file} sets {setting} to {value!r}; expected {expected}. Embeddings without that setting would differ from "
        "those of sentence-transformers: use a model without it."
    )


def encoder_settings(read: Reader) -> dict[str, Any]:
    """Return the encoder's settings, from the first of their files that has any."""
    return next(filter(None, map(read, ENCODER_SETTINGS)), {})


def _call_settings(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a call of the tokenizer."""
    settings = encoder.get("processing_kwargs") or {}
    return {**(settings.get("common") or {}), **(settings.get("text") or {})}


def _length_of_tokenizer(read: Reader, encoder: Mapping[str, Any]) -> int:
    """Return the maximum length of the loaded tokenizer."""
    fields = (encoder.get(name) or {} for name in _TOKENIZER_FIELDS)
    for limit in (
        *(field.get("model_max_length") for field in fields),
        encoder.get("max_seq_length"),
    ):
        if limit:
            return int(limit)
    positions = read("config.json").get("max_position_embeddings")
    bounds = (read("tokenizer_config.json").get("model_max_length"), positions)
    return min((int(bound) for bound in bounds if bound and bound != -1), default=_UNLIMITED)
