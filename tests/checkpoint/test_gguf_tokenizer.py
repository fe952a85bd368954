# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a GGUF file gives llama.cpp's token ids: every kind, every pre-tokenizer, every setting."""

import io
import json
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from llama_cpp import opened
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from qeff_zoo.checkpoint.gguf.tokenizer import tokenizer_of
from qeff_zoo.checkpoint.gguf.vocabulary import known
from qeff_zoo.errors import CheckpointError, UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PROSE = [
    "The quick brown fox jumps over 13 lazy dogs, doesn't it? I'LL say: IT'S 3.14159!",
    "def f(x):\n\treturn x['key'] + 1234567  # naïve\n\n\n    pass\r\n\r\n",
    "Straße, İstanbul, Ελληνικά, Привет, мир! CamelCaseWord HTTPServer ǅ",
    "नमस्ते दुनिया १२३ — ภาษาไทย ๑๒ العربية ١٢٣ עברית",
    "你好\uff0c世界。こんにちは カタカナ 안녕하세요 ㄅㄆ \uff10\uff11\uff12\uff41\uff42\uff43",
    "👍🏽 👨‍👩‍👧 ☃ €100 x² ½ a+b=c <=> $x$ `tick` |pipe| ~tilde^caret",
    "spaces:  two   three    four\ttab \t mixed\u00a0nbsp\u3000wide\u2028line\u0085next \n \n end  ",
    '<|user|>hi<|end_of_turn|> and <sep> or <unk>, raw ▁ mark; $5 (a) [b] {c} "q" — “d” … e/f\\g',
]


def texts() -> list[str]:
    """Give texts of every script, and random ones of characters at which cuts differ."""
    random_ = random.Random(7)
    characters = "".join(PROSE) + "0123456789 \n\t'.,!AaZzéÉñßдЖकिำ٣½²五あア한🏽€+" * 8
    drawn = ["".join(random_.choices(characters, k=40)) for _ in range(60)]
    return ["", " ", "\n", "a", *PROSE, *drawn]


def trained(size: int, model: Any, trainer: Any) -> Tokenizer:
    """Train on texts that nothing cuts, so that tokens reach over every place where a text may be cut."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = [text[at : at + 12] for text in texts() for at in range(0, len(text), 3)]
    tokenizer.train_from_iterator(pieces, trainer)
    assert tokenizer.get_vocab_size() >= size
    return tokenizer


@pytest.fixture(scope="module")
def bpe() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE."""
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=["<s>", "</s>", "<|user|>", "<|end_of_turn|>", "<sep>", " dogs"],
    )
    tokenizer = trained(1000, models.BPE(), trainer)
    message = json.loads(tokenizer.to_str())["model"]
    ranked = sorted(message["vocab"].items(), key=lambda pair: pair[1])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in message["merges"]]
    return [token for token, _ in ranked], merges


TYPES = {
    "<s>": CONTROL,
    "</s>": CONTROL,
    "<unk>": UNKNOWN,
    "<|user|>": CONTROL,
    "<|end_of_turn|>": CONTROL,
    "<sep>": USER_DEFINED,
    " dogs": USER_DEFINED,
}


def write(
    path: Path,
    model: str,
    tokens: Iterable[str],
    *,
    merges: list[str] | None = None,
    scores: list[float] | None = None,
    types: Mapping[str, int] | None = None,
    **said: Any,
) -> Path:
    """Write a file of a vocabulary alone; `said` are further keys of tokenizer.ggml."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    tokens, types = list(tokens), {**TYPES, **(types or {})}
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(token, NORMAL) for token in tokens])
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for key, value in said.items():
        key = f"tokenizer.ggml.{key.replace('__', '.')}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, bytes):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    for key, value in (
        ("context_length", 64),
        ("embedding_length", 8),
        ("block_count", 1),
        ("attention.head_count", 1),
    ):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_same(path: Path, compared: Iterable[str] | None = None) -> Any:
    """Compare ids and pieces with llama.cpp's, also once transformers has saved and loaded the tokenizer."""
    made = tokenizer_of(path)
    made.tokenizer.save_pretrained(path.with_suffix(""))
    ours = [made.tokenizer, AutoTokenizer.from_pretrained(path.with_suffix(""))]
    with opened(path, vocabulary_only=True) as llama:
        for text in texts() if compared is None else compared:
            expected = llama.encode(text)
            bare = llama.encode(text, special=False)
            for tokenizer in ours:
                assert tokenizer(text)["input_ids"] == expected, text
                assert tokenizer(text, add_special_tokens=False)["input_ids"] == bare, text
        ends = {number for number in range(len(made.tokenizer)) if llama.ends(number)}
    assert set(made.ends) == ends
    return made


def first_of_each() -> set[str]:
    """Give one name of each way to cut; the others of it have the same."""
    ways = {json.dumps(way): name for name, way in sorted(known()["names"].items(), reverse=True)}
    return set(ways.values())


@pytest.mark.parametrize("pre", sorted(known()["names"]))
@pytest.mark.sampled(3)
def test_a_pre_tokenizer_cuts_as_llama_cpp_does(
    tmp_path: Path, bpe: tuple[list[str], list[str]], pre: str
) -> None:
    tokens, merges = bpe
    settings = {"pre": pre, "bos_token_id": 0, "eos_token_id": 1}
    path = write(tmp_path / "m.gguf", "gpt2", tokens, merges=merges, **settings)
    made = tokenizer_of(path).tokenizer
    with opened(path, vocabulary_only=True) as llama:
        for text in texts() if pre in first_of_each() else PROSE[:2]:
            assert made(text)["input_ids"] == llama.encode(text), text


@pytest.mark.parametrize(
    "output",
    [
        {"pre": "llama-bpe"},
        {"pre": "llama-bpe", "add_bos_token": False},
        {"pre": "qwen2", "add_bos_token": True, "add_eos_token": True},
        {"pre": ""},
        {},
    ],
    ids=["default", "without", "both", "empty", "none"],
)
def test_texts_begin_and_end_as_llama_cpp_has_it(
    tmp_path: Path, bpe: tuple[list[str], list[str]], output: dict[str, Any]
) -> None:
    tokens, merges = bpe
    path = write(
        tmp_path / "m.gguf", "gpt2", tokens, merges=merges, **output, bos_token_id=0, eos_token_id=1
    )
    made = assert_same(path)
    assert (made.tokenizer.bos_token, made.tokenizer.eos_token) == ("<s>", "</s>")
    answer = made.tokenizer("a<sep>b</s>", add_special_tokens=False)["input_ids"]
    assert made.tokenizer.decode(answer, skip_special_tokens=True) == "a<sep>b"


SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|end_of_turn|>", "<sep>"]


@pytest.mark.parametrize("prefix", [None, True, False])
def test_pairs_are_joined_by_their_scores(tmp_path: Path, prefix: bool | None) -> None:
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(
        [f"\u2581{text}".replace(" ", "\u2581") for text in texts()[::2]], trainer
    )
    ranked = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    octets = [f"<0x{number:02X}>" for number in range(256)]
    tokens = [*SPECIAL, *octets, *(token for token, _ in ranked if token not in SPECIAL)]
    scores = [0.0] * (len(SPECIAL) + 256)
    scores += [-float(rank) for rank in range(len(tokens) - len(scores))]
    types = dict.fromkeys(octets, BYTE)
    settings = {} if prefix is None else {"add_space_prefix": prefix}
    path = write(tmp_path / "m.gguf", "llama", tokens, scores=scores, types=types, **settings)
    made = assert_same(path)
    assert made.tokenizer("a")["input_ids"][0] == 1
    ids = made.tokenizer("Hello <s> \U00013000", add_special_tokens=False)["input_ids"]
    assert made.tokenizer.decode(ids) == "Hello <s> \U00013000" if prefix is False else True


@pytest.mark.parametrize("begins", [None, True, False])
def test_characters_of_a_line_are_merged(tmp_path: Path, begins: bool | None) -> None:
    """Gemma 4's BPE: spaces are marks, and characters without a token are bytes."""
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer.train_from_iterator([text.replace(" ", "\u2581") for text in texts()[::2]], trainer)
    message = json.loads(tokenizer.to_str())["model"]
    ranked = sorted(message["vocab"].items(), key=lambda pair: pair[1])
    octets = [f"<0x{number:02X}>" for number in range(256)]
    tokens = [*SPECIAL, *octets, *(token for token, _ in ranked if token not in SPECIAL)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in message["merges"]]
    settings = {} if begins is None else {"add_bos_token": begins}
    path = write(
        tmp_path / "m.gguf",
        "gemma4",
        tokens,
        merges=merges,
        types=dict.fromkeys(octets, BYTE),
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        **settings,
    )
    made = assert_same(path)
    ids = made.tokenizer("Hello <s> \U00013000\n\n", add_special_tokens=False)["input_ids"]
    assert made.tokenizer.decode(ids) == "Hello <s> \U00013000\n\n"


@pytest.mark.parametrize("lines", [{}, {"normalizer__lowercase": False}], ids=["lower", "cased"])
def test_words_are_cut_into_the_longest_pieces(tmp_path: Path, lines: dict[str, Any]) -> None:
    words = {word for text in texts() for word in text.replace("\n", " ").split()}
    letters = sorted({letter for word in words for letter in word + word.lower()})
    pieces = sorted({word[:3] for word in words} | {word[:2].lower() for word in words})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [
        *special,
        *(f"\u2581{piece}" for piece in dict.fromkeys([*letters, *pieces])),
        *letters[::2],
    ]
    tokens = list(dict.fromkeys(tokens))
    types = {token: UNKNOWN if token == "[UNK]" else CONTROL for token in special}
    ids = {"bos_token_id": 2, "cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    path = write(
        tmp_path / "m.gguf",
        "bert",
        tokens,
        types=types,
        padding_token_id=0,
        mask_token_id=4,
        **ids,
        **lines,
    )
    made = assert_same(path)
    assert made.tokenizer.tokenize("ab")[0][:2] != "\u2581"


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("prefix", [True, False])
def test_a_text_becomes_its_likeliest_pieces(tmp_path: Path, prefix: bool, merged: bool) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=600, show_progress=False, unk_token="<unk>")
    tokenizer.train_from_iterator(texts()[::2], trainer)
    pieces = [
        (piece, score)
        for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]
        if piece not in SPECIAL
    ]
    tokens = ["<pad>", "</s>", "<unk>", "<sep>", *(piece for piece, _ in pieces)]
    scores = [0.0] * 4 + [score for _, score in pieces]
    path = write(
        tmp_path / "m.gguf",
        "t5",
        tokens,
        scores=scores,
        types={"<pad>": CONTROL},
        add_space_prefix=prefix,
        remove_extra_whitespaces=merged,
    )
    assert_same(path)


def test_texts_are_normalized_by_the_map_of_a_sentencepiece_model(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()[::2]),
        model_writer=model,
        model_type="unigram",
        vocab_size=300,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",  # as T5 and XLM-RoBERTa have it
        pad_id=3,
        minloglevel=2,
    )
    message = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    path = write(
        tmp_path / "m.gguf",
        "t5",
        [piece.piece for piece in message.pieces],
        scores=[piece.score for piece in message.pieces],
        types={piece.piece: piece.type for piece in message.pieces},
        add_space_prefix=message.normalizer_spec.add_dummy_prefix,
        remove_extra_whitespaces=message.normalizer_spec.remove_extra_whitespaces,
        precompiled_charsmap=message.normalizer_spec.precompiled_charsmap,
        eos_token_id=2,
        unknown_token_id=0,
        padding_token_id=3,
    )
    # tokenizers drops a mark behind a character that the map changes; docs/gguf.md says so.
    marked = re.compile("[²½][\u0900-\u097f\u0e00-\u0e7f]")
    made = assert_same(path, [text for text in texts() if not marked.search(text)])
    odd = "\ufb01ne \uff21\uff22\uff23 \u2460 \u00bd\u3000e\u0301"  # a ligature, wide letters, a number in a circle
    ours = made.tokenizer(odd, add_special_tokens=False)["input_ids"]
    with opened(path, vocabulary_only=True) as llama:
        assert ours == llama.encode(odd, special=False)
    assert ours == sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).encode(odd)


def test_unsupported_gguf_tokenizer_is_refused_by_name(
    tmp_path: Path, bpe: tuple[list[str], list[str]]
) -> None:
    tokens, merges = bpe
    path = write(tmp_path / "m.gguf", "gpt2", tokens, merges=merges, pre="from-tomorrow")
    with pytest.raises(
        UnsupportedModelError, match=r"pre-tokenizer 'from-tomorrow'.*--config-from"
    ):
        tokenizer_of(path)
    with pytest.raises(UnsupportedModelError, match=r"a tokenizer 'rwkv'.*--config-from"):
        tokenizer_of(write(tmp_path / "r.gguf", "rwkv", tokens))
    with pytest.raises(CheckpointError, match=r"no usable tokenizer.ggml.merges"):
        tokenizer_of(write(tmp_path / "n.gguf", "gpt2", tokens))
