# SPDX-License-Identifier: Apache-2.0
"""The tokenizer in a GGUF file's metadata -> transformers' tokenizer that cuts text as llama.cpp does.

llama.cpp has four kinds: byte-level BPE, SentencePiece's pairs by score, WordPiece, and SentencePiece's unigrams. What
files leave out are its defaults; gguf_pretokenizers.json has what it knows by name.
Source: https://github.com/ggml-org/llama.cpp, src/llama-vocab.cpp, src/unicode.cpp
"""

import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.files import some
from qeff_zoo.checkpoint.gguf_index import read_gguf
from qeff_zoo.errors import CheckpointError, UnsupportedModelError

_PREFIX = "tokenizer.ggml."
_TEXTS = (f"{_PREFIX}tokens", f"{_PREFIX}merges")
#: Values of `token_type`. All others are ordinary tokens.
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
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
        ids: Configuration values: `bos_token_id`, `eos_token_id`, `pad_token_id`, those that the file has.
        ends: Ids of all tokens that end an answer.
    """

    tokenizer: Any
    ids: Mapping[str, int]
    ends: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Vocabulary:
    """Metadata of a tokenizer.

    Args:
        name: File name, for messages.
        said: Metadata without "tokenizer.ggml.".
        tokens: Texts by id.
        types: Values of `token_type` by id.
    """

    name: str
    said: Mapping[str, Any]
    tokens: list[str]
    types: list[int]

    @property
    def ids(self) -> dict[str, int]:
        """Ids by text."""
        return {token: number for number, token in enumerate(self.tokens)}

    @property
    def scores(self) -> list[float]:
        """Scores by id; 0 in a file without scores."""
        scores = self.said.get("scores")
        count = len(self.tokens)
        if scores is None:
            return [0.0] * count
        if not isinstance(scores, array) or len(scores) < count:
            raise self.wrong("scores", f"scores of {count} tokens")
        return [float(score) for score in scores[:count]]

    def special(self, which: str, default: int | None) -> int | None:
        """Return the id of a special token.

        Args:
            which: llama.cpp's name, such as "bos".
            default: llama.cpp's own, where the file has none.
        """
        number = self.said.get(f"{which}_token_id")
        known = type(number) is int and 0 <= number < len(self.tokens)
        found = number if known else default
        return found if found is not None and found < len(self.tokens) else None

    def flag(self, key: str, default: bool) -> bool:
        """Return a setting."""
        return bool(self.said.get(key, default))

    def wrong(self, key: str, expected: str) -> CheckpointError:
        """Make the error of metadata that contradict themselves."""
        return CheckpointError(
            f"{self.name!r} has no usable {_PREFIX}{key}. Expected {expected}. Get the file again from its source, or "
            "name the checkpoint that it was made from with --config-from."
        )


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of tokenizers: the value of `tokenizer.ggml.model`, and llama.cpp's defaults.

    Args:
        backend: Makes the `tokenizers.Tokenizer`.
        special: Ids of special tokens by llama.cpp's names.
        begins: Whether a text begins with BOS.
        ends: Special token that ends a text; nothing for none.
        fixed: Whether files cannot change this.
    """

    backend: Callable[[_Vocabulary], Any]
    special: Mapping[str, int]
    begins: bool = False
    ends: str = ""
    fixed: bool = False


@cache
def _known() -> Mapping[str, Any]:
    """Return gguf_pretokenizers.json."""
    path = Path(__file__).with_name("gguf_pretokenizers.json")
    known: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return known


def tokenizer_of(path: Path) -> GgufTokenizer:
    """Make the tokenizer of a GGUF file.

    Args:
        path: The file, or the first of several.

    Raises:
        CheckpointError: The metadata contradict themselves.
        UnsupportedModelError: llama.cpp's tokenizer or pre-tokenizer of this name is unknown here.
    """
    from transformers import PreTrainedTokenizerFast

    vocabulary, template = _read(path)
    kind = _KINDS[str(vocabulary.said["model"])]
    backend = kind.backend(vocabulary)
    _add_special(backend, vocabulary)
    ids = {
        ours: number
        for ours, which in _SPECIAL.items()
        if (number := vocabulary.special(which, kind.special.get(which))) is not None
    }
    _add_ends(backend, vocabulary, kind, ids)
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
        ends=_ends_of(vocabulary, ids.get("eos_token")),
    )


def _read(path: Path) -> tuple[_Vocabulary, str | None]:
    """Read a file's vocabulary and chat template."""
    metadata = read_gguf(path, _TEXTS).metadata
    said = {
        key.removeprefix(_PREFIX): value
        for key, value in metadata.items()
        if key.startswith(_PREFIX)
    }
    said["general.name"] = metadata.get("general.name", "")
    model = said.get("model")
    if model not in _KINDS:
        raise UnsupportedModelError(
            f"{path.name!r} has a tokenizer {model!r}. Expected one of {', '.join(map(repr, _KINDS))}. Name the "
            "checkpoint that it was made from with --config-from."
        )
    tokens, types = said.get("tokens"), said.get("token_type")
    vocabulary = _Vocabulary(name=path.name, said=said, tokens=[], types=[])
    if not isinstance(tokens, list) or not tokens:
        raise vocabulary.wrong("tokens", "the texts of all tokens")
    if types is not None and (not isinstance(types, array) or len(types) < len(tokens)):
        raise vocabulary.wrong("token_type", f"types of {len(tokens)} tokens")
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
    if len(set(tokens)) < len(tokens):
        raise vocabulary.wrong("tokens", "each token once")
    types = list(types[: len(tokens)]) if types is not None else [1] * len(tokens)
    vocabulary = _Vocabulary(name=path.name, said=said, tokens=tokens, types=types)
    _correct(vocabulary)
    template = metadata.get("tokenizer.chat_template")
    return vocabulary, template if isinstance(template, str) else None


def _correct(vocabulary: _Vocabulary) -> None:
    """Change the types of tokens whose texts tell what they are, as llama.cpp does."""
    known, ids = _known(), vocabulary.ids
    for text in (*known["ends"], *known["infill ends"], *known["infill"]):
        if text in ids:
            vocabulary.types[ids[text]] = _CONTROL
    for text in known["shown"]:
        if text in ids:
            vocabulary.types[ids[text]] = _USER_DEFINED
    if _is_harmony(ids):
        vocabulary.types[ids["<|end|>"]] = _USER_DEFINED


def _is_harmony(ids: Mapping[str, int]) -> bool:
    """Tell whether "<|end|>" ends a message, and others an answer."""
    both = [{"<|return|>", "<|flush|>"} & ids.keys(), {"<|call|>", "<|calls|>"} & ids.keys()]
    return "<|end|>" in ids and all(both)


def _ends_of(vocabulary: _Vocabulary, eos: int | None) -> tuple[int, ...]:
    """Return the ids of tokens that end an answer, EOS first."""
    known, ids = _known(), vocabulary.ids
    texts = [text for text in (*known["ends"], *known["infill ends"]) if text in ids]
    if _is_harmony(ids) and "<|end|>" in texts:
        texts.remove("<|end|>")
    said = [vocabulary.special(which, None) for which in ("eot", "eom")]
    numbers = [eos, *(ids[text] for text in texts), *said]
    return tuple(dict.fromkeys(number for number in numbers if number is not None))


def _add_special(backend: Any, vocabulary: _Vocabulary) -> None:
    """Add the tokens that are found in a text before it is cut."""
    from tokenizers import AddedToken

    name = str(vocabulary.said.get("general.name", "")).lower()
    strips = any(part in name for part in _known()["strips"]["models"])
    kept = set(_known()["strips"]["except"])
    for special in (True, False):
        wanted = (_CONTROL, _UNKNOWN) if special else (_USER_DEFINED,)
        backend.add_tokens(
            [
                AddedToken(
                    token, special=special, normalized=False, rstrip=strips and token not in kept
                )
                for token, type_ in zip(vocabulary.tokens, vocabulary.types, strict=True)
                if type_ in wanted
            ]
        )


def _add_ends(backend: Any, vocabulary: _Vocabulary, kind: _Kind, ids: Mapping[str, int]) -> None:
    """Add what a text begins and ends with."""
    from tokenizers.processors import TemplateProcessing

    begins, ends = kind.begins, kind.ends
    if not kind.fixed:
        pre = (
            _pre_of(vocabulary).get("add_bos", False)
            if vocabulary.said["model"] == "gpt2"
            else begins
        )
        begins = vocabulary.flag("add_bos_token", pre)
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


def _pre_of(vocabulary: _Vocabulary) -> Mapping[str, Any]:
    """Return how a file's text is cut before BPE.

    Raises:
        UnsupportedModelError: Its name is unknown.
    """
    name, known = vocabulary.said.get("pre") or "default", _known()["names"]
    if name not in known:
        raise UnsupportedModelError(
            f"{vocabulary.name!r} cuts text by the pre-tokenizer {name!r}, which is unknown. Expected one of "
            f"{some(list(known), len(known))}. Name the checkpoint that it was made from with --config-from."
        )
    found: Mapping[str, Any] = known[name]
    return found


def _bpe(vocabulary: _Vocabulary) -> Any:
    """Make a tokenizer of byte-level BPE."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre, ids = _pre_of(vocabulary), vocabulary.ids
    merges = vocabulary.said.get("merges")
    if not isinstance(merges, list):
        raise vocabulary.wrong("merges", "the pairs of tokens that are merged")
    pairs = []
    for merge in merges:
        split = merge.find(" ", 1)
        left, right = merge[:split], merge[split + 1 :]
        if split > 0 and left in ids and right in ids and left + right in ids:
            pairs.append((left, right))
    model = models.BPE(vocab=ids, merges=pairs, ignore_merges=pre.get("ignore_merges", False))
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(cut), "isolated") for cut in _known()["cuts"][pre["cut"]]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _spm(vocabulary: _Vocabulary) -> Any:
    """Make a tokenizer that joins the pair of the highest score, and has bytes for what is unknown."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids, scores = vocabulary.ids, vocabulary.scores
    pairs = []
    for number, token in enumerate(vocabulary.tokens):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                pairs.append((-scores[number], number, left, right))
    pairs.sort(key=lambda pair: pair[:2])
    unknown = vocabulary.special("unknown", 0)
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


def _wpm(vocabulary: _Vocabulary) -> Any:
    """Make a tokenizer of WordPiece, whose tokens in GGUF begin words by a mark and go on without one."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    unknown = vocabulary.special("unknown", 100)
    if unknown is None:
        raise vocabulary.wrong("unknown_token_id", "the token of unknown words")
    special = {
        vocabulary.special(which, _KINDS["bert"].special.get(which)) for which in _SPECIAL.values()
    }
    for number, token in enumerate(vocabulary.tokens):
        ordinary = vocabulary.types[number] not in (_CONTROL, _UNKNOWN, _USER_DEFINED)
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


def _ugm(vocabulary: _Vocabulary) -> Any:
    """Make a tokenizer that finds the most likely pieces of a text."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers

    unknown = vocabulary.special("unknown", 2)
    pieces = list(zip(vocabulary.tokens, vocabulary.scores, strict=True))
    backend = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    steps = []
    charsmap = vocabulary.said.get("precompiled_charsmap")
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


_KINDS: Mapping[str, _Kind] = {
    "llama": _Kind(backend=_spm, special={"bos": 1, "eos": 2, "unknown": 0}, begins=True),
    "gpt2": _Kind(backend=_bpe, special={"bos": 11, "eos": 11}),
    "bert": _Kind(
        backend=_wpm,
        special={"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
        begins=True,
        ends="sep_token",
        fixed=True,
    ),
    "t5": _Kind(backend=_ugm, special={"eos": 1, "unknown": 2, "padding": 0}, ends="eos_token"),
}
