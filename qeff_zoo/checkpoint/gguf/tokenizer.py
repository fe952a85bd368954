# SPDX-License-Identifier: Apache-2.0
"""Conversion of the tokenizer in a GGUF file's metadata to transformers' tokenizer, with llama.cpp's results.

llama.cpp has five kinds: byte-level BPE, Gemma 4's BPE of characters, SentencePiece's pairs by score, WordPiece, and
SentencePiece's unigrams.
Absent values get its defaults; pretokenizers.json has its pre-tokenizers by name.
Source: https://github.com/ggml-org/llama.cpp, src/llama-vocab.cpp, src/unicode.cpp
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.gguf.vocabulary import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    ends_of,
    known,
    read_vocabulary,
)

#: Special tokens: transformers' name -> llama.cpp's.
_SPECIAL = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
_SPACE = "\u2581"


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """A file's tokenizer.

    Args:
        tokenizer: transformers' tokenizer.
        ids: Configuration values `bos_token_id`, `eos_token_id` and `pad_token_id`, as far as the file has them.
        ends: Ids of all tokens that end a text.
    """

    tokenizer: Any
    ids: Mapping[str, int]
    ends: tuple[int, ...]


def tokenizer_of(path: Path) -> GgufTokenizer:
    """Return the tokenizer of a GGUF file.

    Args:
        path: The file, or the first of several.

    Raises:
        CheckpointError: The metadata are inconsistent.
        UnsupportedModelError: llama.cpp's tokenizer or pre-tokenizer of this name is unknown here.
    """
    from transformers import PreTrainedTokenizerFast

    vocabulary, template = read_vocabulary(path)
    backend = _BACKENDS[vocabulary.facts["kind"]](vocabulary)
    _add_special(backend, vocabulary)
    ids = {
        ours: number
        for ours, which in _SPECIAL.items()
        if (number := vocabulary.special(which)) is not None
    }
    _add_ends(backend, vocabulary, ids)
    named = {ours: vocabulary.tokens[number] for ours, number in ids.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        **named,
    )
    return GgufTokenizer(
        tokenizer=tokenizer,
        ids={
            f"{ours}_id": number
            for ours, number in ids.items()
            if ours in ("bos_token", "eos_token", "pad_token")
        },
        ends=ends_of(vocabulary, ids.get("eos_token")),
    )


def _add_special(backend: Any, vocabulary: Vocabulary) -> None:
    """Add the special tokens, which are matched before a text is split."""
    from tokenizers import AddedToken

    name = str(vocabulary.fields.get("general.name", "")).lower()
    strips = any(part in name for part in known()["strips"]["models"])
    kept = set(known()["strips"]["except"])
    for special in (True, False):
        wanted = (CONTROL, UNKNOWN) if special else (USER_DEFINED,)
        backend.add_tokens(
            [
                AddedToken(
                    token, special=special, normalized=False, rstrip=strips and token not in kept
                )
                for token, type_ in zip(vocabulary.tokens, vocabulary.types, strict=True)
                if type_ in wanted
            ]
        )


def _add_ends(backend: Any, vocabulary: Vocabulary, ids: Mapping[str, int]) -> None:
    """Add the tokens that begin and end a text."""
    from tokenizers.processors import TemplateProcessing

    facts = vocabulary.facts
    begins, ends = facts.get("begins", False), facts.get("ends", "")
    if not facts.get("fixed"):
        begins = vocabulary.flag("add_bos_token", begins or vocabulary.pre.get("add_bos", False))
        begins = begins or facts.get("always begins", False)
        ends = "eos_token" if vocabulary.flag("add_eos_token", bool(ends)) else ""
    parts = ["bos_token"] * begins + ["$A"] + [ends] * bool(ends)
    missing = [part for part in parts if part != "$A" and part not in ids]
    if missing:
        raise vocabulary.wrong(f"{_SPECIAL[missing[0]]}_token_id", "the token that texts have")
    if len(parts) == 1:
        return
    texts = {part: vocabulary.tokens[ids[part]] for part in parts if part != "$A"}
    single = [texts.get(part, part) for part in parts]
    backend.post_processor = TemplateProcessing(
        single=single,
        pair=single + [f"{part}:1" if part != "$A" else "$B:1" for part in single],
        special_tokens=[(text, ids[part]) for part, text in texts.items()],
    )


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the pairs of tokens that are merged, in this order."""
    merges, ids = vocabulary.fields.get("merges"), vocabulary.ids
    if not isinstance(merges, list):
        raise vocabulary.wrong("merges", "the pairs of tokens that are merged")
    pairs = []
    for merge in merges:
        split = merge.find(" ", 1)
        left, right = merge[:split], merge[split + 1 :]
        if split > 0 and left in ids and right in ids and left + right in ids:
            pairs.append((left, right))
    return pairs


def _bpe(vocabulary: Vocabulary) -> Any:
    """Return a tokenizer of byte-level BPE."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre, ids = vocabulary.pre, vocabulary.ids
    ignored = pre.get("ignore_merges", False)
    model = models.BPE(vocab=ids, merges=_merges(vocabulary), ignore_merges=ignored)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(cut), "isolated") for cut in known()["cuts"][pre["cut"]]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _lines(vocabulary: Vocabulary) -> Any:
    """Return a tokenizer of BPE over the characters of a line, with byte fallback."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(
        models.BPE(vocab=vocabulary.ids, merges=_merges(vocabulary), byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _spm(vocabulary: Vocabulary) -> Any:
    """Return a tokenizer that joins the pair of the highest score, with byte fallback."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids, scores = vocabulary.ids, vocabulary.scores
    pairs = []
    for number, token in enumerate(vocabulary.tokens):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                pairs.append((-scores[number], number, left, right))
    pairs.sort(key=lambda pair: pair[:2])
    unknown = vocabulary.special("unknown")
    backend = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=[pair[2:] for pair in pairs],
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    escape = normalizers.Replace(" ", _SPACE)
    prefixed = vocabulary.flag("add_space_prefix", True)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), escape]) if prefixed else escape
    )
    unescape = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*unescape, *([decoders.Strip(" ", 1, 0)] if prefixed else [])]
    )
    return backend


def _wpm(vocabulary: Vocabulary) -> Any:
    """Return a WordPiece tokenizer; in GGUF tokens that begin a word have a mark, and others have none."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    unknown = vocabulary.special("unknown")
    if unknown is None:
        raise vocabulary.wrong("unknown_token_id", "the token of unknown words")
    special = {vocabulary.special(which) for which in _SPECIAL.values()}
    for number, token in enumerate(vocabulary.tokens):
        ordinary = vocabulary.types[number] not in (CONTROL, UNKNOWN, USER_DEFINED)
        if ordinary and number not in special:
            begins = token.startswith(_SPACE)
            vocabulary.tokens[number] = token[len(_SPACE) :] if begins else f"##{token}"
    lower = vocabulary.flag("normalizer.lowercase", True)
    stripped = vocabulary.flag("normalizer.strip_accents", lower)
    backend = Tokenizer(
        models.WordPiece(
            vocab=vocabulary.ids,
            unk_token=vocabulary.tokens[unknown],
            max_input_chars_per_word=1_000_000,
        )
    )
    cleaned = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=stripped,
        lowercase=lower,
    )
    # Spaces for llama.cpp, control characters for transformers; marks that take space are accents for llama.cpp.
    spaces = normalizers.Replace(Regex("[\v\f\u0085]"), " ")
    marks = [normalizers.Replace(Regex(r"\p{M}"), "")] if stripped else []
    backend.normalizer = normalizers.Sequence([spaces, cleaned, *marks])
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _ugm(vocabulary: Vocabulary) -> Any:
    """Return a tokenizer that finds the most probable pieces of a text."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers

    unknown = vocabulary.special("unknown")
    pieces = list(zip(vocabulary.tokens, vocabulary.scores, strict=True))
    backend = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    steps: list[Any] = []
    charsmap = vocabulary.fields.get("precompiled_charsmap")
    if isinstance(charsmap, array) and len(charsmap):
        steps.append(normalizers.Precompiled(charsmap.tobytes()))
    merged = vocabulary.flag("remove_extra_whitespaces", False)
    if merged:
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if merged or vocabulary.flag("add_space_prefix", False):
        no_words = normalizers.Replace(Regex(rf"\A{_SPACE}(?= *\z)"), "")
        steps += [normalizers.Prepend(_SPACE), no_words]
    steps.append(normalizers.Replace(" ", _SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Metaspace()
    return backend


_BACKENDS: Mapping[str, Callable[[Vocabulary], Any]] = {
    "merges": _bpe,
    "merges in a line": _lines,
    "pairs by score": _spm,
    "longest pieces": _wpm,
    "likeliest pieces": _ugm,
}
