# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in the forms that checkpoints publish, small, and draws that change any field of them.

The settings are those of the published files (tokenizer_config.json, tokenizer.json, special_tokens_map.json of the
checkpoints that each form is named after); vocabularies are trained here. `judged` says of a draw whether a package
reads and writes text as transformers does.
"""

import base64
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from qeff_zoo.checkpoint import text as made_text
from qeff_zoo.errors import CheckpointError
from qeff_zoo.validation.content import text
from qeff_zoo.validation.reference import text as reference_text

Json = dict[str, Any]
#: Verdicts that leave nothing to explain.
EXPLAINED = ("agrees", "refused", "Python code", "changes when saved")
TRAINED_ON = [
    "the quick brown fox jumps over the lazy dog, hello world",
    "class Person: def __init__(self, name): return self.items.pop(0)",
    "Hello world, how are you today? I'm fine, don't worry. 1234 567",
    "Der Fluss trat über die Ufer; naïve café. Привет мир 你好世界",
] * 4
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
    "' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
HEADERS = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
_SIZE = 420


# --- vocabularies ----------------------------------------------------------------------------------


@cache
def bytes_bpe(specials: tuple[str, ...] = (), *, first: bool = False) -> str:
    """Train a byte-level BPE; special tokens come behind the vocabulary, or before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE,
        special_tokens=list(specials) if first else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    tokenizer.add_special_tokens(list(specials))
    return str(tokenizer.to_str())


@cache
def pieces_bpe(specials: tuple[str, ...] = ("<unk>", "<s>", "</s>")) -> str:
    """Train BPE of SentencePiece's pieces with bytes, as Llama 2's tokenizer.json has it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE + 256,
        special_tokens=[*specials, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][: len(specials)]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return str(tokenizer.to_str())


@cache
def word_pieces(*, lower: bool) -> str:
    """Train WordPiece as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.WordPieceTrainer(
        vocab_size=_SIZE,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    return str(tokenizer.to_str())


@cache
def sentence_pieces(kind: str, begins: str = "") -> bytes:
    """Train a SentencePiece model: "unigram" or "bpe"; with T5's or Llama's first ids."""
    ids = (
        {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        if begins == "t5"
        else {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    )
    with tempfile.TemporaryDirectory() as name:
        lines = Path(name) / "text"
        lines.write_text("\n".join(TRAINED_ON), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines),
            model_prefix=f"{name}/made",
            model_type=kind,
            vocab_size=160 if kind == "unigram" else 400,
            byte_fallback=kind == "bpe",
            hard_vocab_limit=False,
            minloglevel=2,
            **ids,
        )
        return (Path(name) / "made.model").read_bytes()


@cache
def unigram(begins: tuple[str, ...], ends: tuple[str, ...] = ()) -> str:
    """Train Unigram pieces as T5's and XLM-R's tokenizer.json have them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=180, special_tokens=list(begins), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] += [[end, 0.0] for end in ends]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(list(ends))
    return str(tokenizer.to_str())


# --- forms -----------------------------------------------------------------------------------------


@dataclass
class Form:
    """A tokenizer's files; the values of JSON files may be changed.

    Args:
        model_type: Of config.json.
        settings: tokenizer_config.json; None without one.
        tokenizer: tokenizer.json; None without one.
        files: Others, by name.
        config: What config.json has besides.
        writes: Whether the model writes text.
    """

    model_type: str
    settings: Json | None = None
    tokenizer: Json | None = None
    files: dict[str, Any] = field(default_factory=dict)
    config: Json = field(default_factory=dict)
    writes: bool = True

    def write(self, folder: Path) -> Path:
        """Write the files to a new folder."""
        folder.mkdir(parents=True)
        named = {
            "config.json": {"model_type": self.model_type, **self.config},
            "tokenizer_config.json": self.settings,
            "tokenizer.json": self.tokenizer,
            **self.files,
        }
        for name, content in named.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif isinstance(content, str):
                path.write_text(content, encoding="utf-8")
            elif content is not None:
                path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return folder


def _token(content: str, **changes: bool) -> Json:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, **plain, "special": True, **changes}


def _added(tokenizer: Json) -> Json:
    """Return `added_tokens_decoder` as a tokenizer.json has its added tokens."""
    return {
        str(token["id"]): {name: value for name, value in token.items() if name != "id"}
        for token in tokenizer["added_tokens"]
    }


def _with(source: str, change: Callable[[Tokenizer], object]) -> Json:
    tokenizer = Tokenizer.from_str(source)
    change(tokenizer)
    content: Json = json.loads(tokenizer.to_str())
    return content


def _beginning(token: str, more: Sequence[Any] = ()) -> Callable[[Tokenizer], None]:
    """Return what sets a post-processor that writes a token before every text."""

    def change(tokenizer: Tokenizer) -> None:
        named = [(token, tokenizer.token_to_id(token))]
        template = processors.TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=named
        )
        tokenizer.post_processor = processors.Sequence([*more, template]) if more else template

    return change


def _splitting(pattern: str) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def llama2() -> Form:
    tokenizer = _with(pieces_bpe(), _beginning("<s>"))
    typed = {"__type": "AddedToken", "lstrip": False, "normalized": False, "rstrip": False}
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": {**typed, "content": "<s>", "single_word": False},
        "chat_template": INST,
        "clean_up_tokenization_spaces": False,
        "eos_token": {**typed, "content": "</s>", "single_word": False},
        "legacy": False,
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": None,
        "padding_side": "right",
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": {**typed, "content": "<unk>", "single_word": False},
    }
    specials = {
        name: {key: value for key, value in _token(one).items() if key != "special"}
        for name, one in (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
    }
    return Form("llama", settings, tokenizer, {"special_tokens_map.json": specials})


def llama2_model() -> Form:
    form = llama2()
    model = sentence_pieces("bpe")
    return Form("llama", form.settings, None, {**form.files, "tokenizer.model": model})


def llama3() -> Form:
    specials = ("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>")
    specials += ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

    def change(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = _splitting(LLAMA3)
        _beginning("<|begin_of_text|>", [processors.ByteLevel(trim_offsets=True)])(tokenizer)

    tokenizer = _with(bytes_bpe(specials), change)
    tokenizer["model"]["ignore_merges"] = True
    settings = {
        "added_tokens_decoder": _added(tokenizer),
        "bos_token": "<|begin_of_text|>",
        "chat_template": HEADERS,
        "clean_up_tokenization_spaces": True,
        "eos_token": "<|eot_id|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    named = {"bos_token": _token(specials[0]), "eos_token": _token(specials[-1])}
    for one in named.values():
        del one["special"]
    return Form("llama", settings, tokenizer, {"special_tokens_map.json": named})


def mistral() -> Form:
    controls = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]")
    tokenizer = _with(pieces_bpe(controls), _beginning("<s>"))
    tokenizer["normalizer"] = None
    tokenizer["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "first",
        "split": False,
    }
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "add_prefix_space": True,
        "added_tokens_decoder": _added(tokenizer),
        "additional_special_tokens": [],
        "bos_token": "<s>",
        "chat_template": INST,
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "legacy": False,
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": None,
        "sp_model_kwargs": {},
        "spaces_between_special_tokens": False,
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": "<unk>",
        "use_default_system_prompt": False,
    }
    return Form("mistral", settings, tokenizer)


def qwen2() -> Form:
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

    def change(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = _splitting(QWEN2)
        tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
        tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])

    tokenizer = _with(bytes_bpe(specials), change)
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": _added(tokenizer),
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    return Form("qwen2", settings, tokenizer, _vocab_and_merges(tokenizer))


def qwen3() -> Form:
    form = qwen2()
    return Form("qwen3", form.settings, form.tokenizer, form.files)


def qwen_files() -> Form:
    """Make one without tokenizer.json, as the first Qwen 2 checkpoints of others are."""
    form = qwen2()
    return Form("qwen3", form.settings, None, form.files)


def _vocab_and_merges(tokenizer: Json) -> dict[str, Any]:
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in tokenizer["model"]["merges"]
    ]
    vocab = tokenizer["model"]["vocab"]
    return {"vocab.json": vocab, "merges.txt": "\n".join(["#version: 0.2", *merges])}


def gemma() -> Form:
    specials = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")

    def change(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        _beginning("<bos>")(tokenizer)
        tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])

    tokenizer = _with(pieces_bpe(specials), change)
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": _added(tokenizer),
        "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
        "bos_token": "<bos>",
        "chat_template": CHATML.replace("<|im_start|>", "<start_of_turn>"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<eos>",
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": "<pad>",
        "sp_model_kwargs": {},
        "spaces_between_special_tokens": False,
        "tokenizer_class": "GemmaTokenizer",
        "unk_token": "<unk>",
        "use_default_system_prompt": False,
    }
    return Form("gemma2", settings, tokenizer)


def gpt2() -> Form:
    tokenizer = _with(
        bytes_bpe(("<|endoftext|>",)),
        lambda one: setattr(one, "post_processor", processors.ByteLevel(trim_offsets=False)),
    )
    return Form("gpt2", {"model_max_length": 1024}, tokenizer, _vocab_and_merges(tokenizer))


def gpt2_files() -> Form:
    form = gpt2()
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    return Form("gpt2", settings, None, form.files)


def opt() -> Form:
    tokenizer = _with(bytes_bpe(("<s>", "<pad>", "</s>", "<unk>"), first=True), _beginning("</s>"))
    settings = {
        "add_bos_token": True,
        "add_prefix_space": False,
        "bos_token": {"__type": "AddedToken", **_token("</s>", normalized=True)},
        "eos_token": {"__type": "AddedToken", **_token("</s>", normalized=True)},
        "errors": "replace",
        "pad_token": {"__type": "AddedToken", **_token("<pad>", normalized=True)},
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": {"__type": "AddedToken", **_token("</s>", normalized=True)},
    }
    return Form("opt", settings, tokenizer, _vocab_and_merges(tokenizer))


def pythia() -> Form:
    tokenizer = _with(bytes_bpe(("<|endoftext|>", "<|padding|>")), lambda one: None)
    settings = {
        "add_prefix_space": False,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "name_or_path": "EleutherAI/gpt-neox-20b",
        "tokenizer_class": "GPTNeoXTokenizer",
        "unk_token": "<|endoftext|>",
    }
    return Form("gpt_neox", settings, tokenizer)


def falcon() -> Form:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation("contiguous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
                pre_tokenizers.Digits(individual_digits=False),
            ]
        )

    tokenizer = _with(bytes_bpe((">>TITLE<<", "<|endoftext|>"), first=True), change)
    settings = {
        "add_prefix_space": False,
        "eos_token": "<|endoftext|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 2048,
        "special_tokens_map_file": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return Form("falcon", settings, tokenizer)


def bert(*, lower: bool = True, model_type: str = "bert", name: str = "BertTokenizer") -> Form:
    def change(tokenizer: Tokenizer) -> None:
        ids = [(one, tokenizer.token_to_id(one)) for one in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
        )

    tokenizer = _with(word_pieces(lower=lower), change)
    settings = {
        "cls_token": "[CLS]",
        "clean_up_tokenization_spaces": True,
        "do_basic_tokenize": True,
        "do_lower_case": lower,
        "mask_token": "[MASK]",
        "model_max_length": 512,
        "never_split": None,
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": name,
        "unk_token": "[UNK]",
    }
    vocab = tokenizer["model"]["vocab"]
    lines = "\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n"
    return Form(model_type, settings, tokenizer, {"vocab.txt": lines})


def bert_cased() -> Form:
    return bert(lower=False)


def bert_vocab() -> Form:
    form = bert(lower=False)
    settings = {"do_lower_case": False, "model_max_length": 512}
    return Form("bert", settings, None, form.files)


def distilbert() -> Form:
    return bert(model_type="distilbert", name="DistilBertTokenizer")


def mpnet() -> Form:
    """Make a sentence-transformers checkpoint's, which saves how it cuts and pads."""
    form = bert(model_type="mpnet", name="MPNetTokenizer")
    assert form.tokenizer
    assert form.settings
    form.tokenizer["truncation"] = {
        "direction": "Right",
        "max_length": 128,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    form.tokenizer["padding"] = {
        "strategy": {"Fixed": 128},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    form.settings |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    return form


def roberta() -> Form:
    specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

    def change(tokenizer: Tokenizer) -> None:
        ids = [(one, tokenizer.token_to_id(one)) for one in ("</s>", "<s>")]
        tokenizer.post_processor = processors.RobertaProcessing(*ids, add_prefix_space=False)

    tokenizer = _with(bytes_bpe(specials, first=True), change)
    settings = {
        "add_prefix_space": False,
        "bos_token": "<s>",
        "cls_token": "<s>",
        "eos_token": "</s>",
        "errors": "replace",
        "mask_token": {"__type": "AddedToken", **_token("<mask>", lstrip=True)},
        "model_max_length": 512,
        "pad_token": "<pad>",
        "sep_token": "</s>",
        "tokenizer_class": "RobertaTokenizer",
        "trim_offsets": True,
        "unk_token": "<unk>",
    }
    return Form("roberta", settings, tokenizer, _vocab_and_merges(tokenizer))


def bart() -> Form:
    form = roberta()
    assert form.settings
    settings = {**form.settings, "tokenizer_class": "BartTokenizer"}
    return Form("bart", settings, form.tokenizer, form.files)


def t5() -> Form:
    extra = tuple(f"<extra_id_{number}>" for number in reversed(range(100)))
    tokenizer = _with(unigram(("<pad>", "</s>", "<unk>"), extra), _ending("</s>"))
    settings = {
        "additional_special_tokens": [f"<extra_id_{number}>" for number in range(100)],
        "clean_up_tokenization_spaces": True,
        "eos_token": "</s>",
        "extra_ids": 100,
        "model_max_length": 512,
        "pad_token": "<pad>",
        "sp_model_kwargs": {},
        "tokenizer_class": "T5Tokenizer",
        "unk_token": "<unk>",
    }
    return Form("t5", settings, tokenizer)


def _ending(token: str) -> Callable[[Tokenizer], None]:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {token}",
            pair=f"$A {token} $B {token}",
            special_tokens=[(token, tokenizer.token_to_id(token))],
        )

    return change


def t5_model() -> Form:
    form = t5()
    assert form.settings
    settings = {
        name: value for name, value in form.settings.items() if name != "additional_special_tokens"
    }
    return Form("t5", settings, None, {"spiece.model": sentence_pieces("unigram", "t5")})


def xlm_roberta() -> Form:
    def change(tokenizer: Tokenizer) -> None:
        ids = [(one, tokenizer.token_to_id(one)) for one in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids
        )

    tokenizer = _with(unigram(("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",)), change)
    settings = {
        "bos_token": "<s>",
        "clean_up_tokenization_spaces": True,
        "cls_token": "<s>",
        "eos_token": "</s>",
        "mask_token": {"__type": "AddedToken", **_token("<mask>", lstrip=True, normalized=True)},
        "model_max_length": 512,
        "pad_token": "<pad>",
        "sep_token": "</s>",
        "tokenizer_class": "XLMRobertaTokenizer",
        "unk_token": "<unk>",
    }
    return Form("xlm-roberta", settings, tokenizer)


def xlm_roberta_model() -> Form:
    form = xlm_roberta()
    model = sentence_pieces("unigram")
    return Form("xlm-roberta", form.settings, None, {"sentencepiece.bpe.model": model})


def albert() -> Form:
    tokenizer = _with(unigram(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")), lambda one: None)
    settings = {
        "bos_token": "[CLS]",
        "cls_token": "[CLS]",
        "do_lower_case": True,
        "eos_token": "[SEP]",
        "keep_accents": False,
        "mask_token": {"__type": "AddedToken", **_token("[MASK]", lstrip=True)},
        "pad_token": "<pad>",
        "remove_space": True,
        "sep_token": "[SEP]",
        "tokenizer_class": "AlbertTokenizer",
        "unk_token": "<unk>",
    }
    return Form("albert", settings, tokenizer)


def deberta() -> Form:
    tokenizer = _with(unigram(("[PAD]", "[CLS]", "[SEP]", "<unk>"), ("[MASK]",)), lambda one: None)
    settings = {
        "bos_token": "[CLS]",
        "cls_token": "[CLS]",
        "do_lower_case": False,
        "eos_token": "[SEP]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "split_by_punct": False,
        "tokenizer_class": "DebertaV2Tokenizer",
        "unk_token": "<unk>",
        "vocab_type": "spm",
    }
    return Form("deberta-v2", settings, tokenizer)


def phi3() -> Form:
    turns = ("<|assistant|>", "<|system|>", "<|end|>", "<|user|>")
    tokenizer = _with(pieces_bpe(), _beginning("<s>"))
    size = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] += [
        {"id": size + number, **_token(one, rstrip=True)}
        for number, one in enumerate(("<|endoftext|>", *turns))
    ]
    settings = {
        "add_bos_token": False,
        "add_eos_token": False,
        "added_tokens_decoder": _added(tokenizer),
        "bos_token": "<s>",
        "chat_template": CHATML.replace("'<|im_start|>' + message['role'] + '", "'<|user|>"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "legacy": False,
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": "<unk>",
        "use_default_system_prompt": False,
    }
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"][3:]}
    return Form("phi3", settings, tokenizer, {"added_tokens.json": added})


def deepseek() -> Form:
    specials = (
        "<\uff5cbegin▁of▁sentence\uff5c>",
        "<\uff5cend▁of▁sentence\uff5c>",
        "<\uff5c▁pad▁\uff5c>",
    )

    def change(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.Sequence([])
        tokenizer.pre_tokenizer = _splitting(LLAMA3)
        tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
        tokenizer.add_tokens(
            [AddedToken("<\uff5cUser\uff5c>"), AddedToken("<\uff5cAssistant\uff5c>")]
        )

    tokenizer = _with(bytes_bpe(specials, first=True), change)
    typed = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False}
    named = {
        name: {**typed, "content": special, "single_word": False}
        for name, special in zip(("bos_token", "eos_token", "pad_token"), specials, strict=True)
    }
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "chat_template": INST,
        "clean_up_tokenization_spaces": False,
        "legacy": True,
        "model_max_length": 16384,
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizerFast",
        "unk_token": None,
        **named,
    }
    return Form("deepseek_v3", settings, tokenizer)


def whisper() -> Form:
    specials = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>")
    specials += ("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")

    def change(tokenizer: Tokenizer) -> None:
        times = [f"<|{number / 50:.2f}|>" for number in range(20)]
        tokenizer.add_tokens([AddedToken(time, normalized=False) for time in times])
        ids = [
            (one, tokenizer.token_to_id(one))
            for one in ("<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>")
        ]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|startoftranscript|> <|notimestamps|> $A <|endoftext|>",
            pair="<|startoftranscript|> <|notimestamps|> $A $B <|endoftext|>",
            special_tokens=ids,
        )

    tokenizer = _with(bytes_bpe(specials), change)
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": _added(tokenizer),
        "additional_special_tokens": list(specials),
        "bos_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": True,
        "eos_token": "<|endoftext|>",
        "errors": "replace",
        "model_max_length": 1024,
        "pad_token": "<|endoftext|>",
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "tokenizer_class": "WhisperTokenizer",
        "unk_token": "<|endoftext|>",
    }
    return Form("whisper", settings, tokenizer, _vocab_and_merges(tokenizer))


def clip() -> Form:
    tokenizer = Tokenizer(
        models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", fuse_unk=False)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE + 256,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    content: Json = json.loads(tokenizer.to_str())
    settings = {
        "add_prefix_space": False,
        "bos_token": {"__type": "AddedToken", **_token("<|startoftext|>", normalized=True)},
        "do_lower_case": True,
        "eos_token": {"__type": "AddedToken", **_token("<|endoftext|>", normalized=True)},
        "errors": "replace",
        "model_max_length": 77,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "CLIPTokenizer",
        "unk_token": {"__type": "AddedToken", **_token("<|endoftext|>", normalized=True)},
    }
    return Form("clip", settings, content, _vocab_and_merges(content), writes=False)


def tekken() -> Form:
    content = {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
            "num_vocab_tokens": 300,
            "default_vocab_size": 400,
            "default_num_special_tokens": 100,
            "version": "v3",
        },
        "vocab": [
            {
                "rank": byte,
                "token_bytes": base64.b64encode(bytes([byte])).decode(),
                "token_str": None,
            }
            for byte in range(256)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": one, "is_control": True}
            for rank, one in enumerate(("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
        ],
    }
    return Form("mistral", None, None, {"tekken.json": content, "chat_template.jinja": INST})


def tiktoken() -> Form:
    ranks = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return Form("llama", settings, None, {"tokenizer.model": ranks})


FORMS: Mapping[str, Callable[[], Form]] = {
    one.__name__: one
    for one in (
        *(llama2, llama2_model, llama3, mistral, qwen2, qwen3, qwen_files, gemma, gpt2, gpt2_files),
        *(opt, pythia, falcon, bert, bert_cased, bert_vocab, distilbert, mpnet, roberta, bart),
        *(t5, t5_model, xlm_roberta, xlm_roberta_model, albert, deberta, phi3, deepseek, whisper),
        *(clip, tekken, tiktoken),
    )
}


# --- draws -----------------------------------------------------------------------------------------

_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "mask_token",
    "sep_token",
    "cls_token",
)
_TOKENS: tuple[Any, ...] = (None, "<|new|>", "the", "▁the", "<s>", "</s>", "[SEP]", "<|endoftext|>")
_TOKENS += ({"__type": "AddedToken", **_token("<|obj|>", lstrip=True)}, {**_token("<|plain|>")})
_BOOLEANS = (
    *("add_prefix_space", "add_bos_token", "add_eos_token", "do_lower_case", "strip_accents"),
    *("tokenize_chinese_chars", "keep_accents", "remove_space", "clean_up_tokenization_spaces"),
    *("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "legacy"),
    *("split_special_tokens", "spaces_between_special_tokens", "trim_offsets", "from_slow"),
    *("use_default_system_prompt", "fix_mistral_regex", "split_by_punct", "add_dummy_prefix_space"),
    *("use_fast", "return_attention_mask"),
)
_SETTINGS: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(_NAMES, _TOKENS),
    **dict.fromkeys(_BOOLEANS, (True, False, None)),
    "additional_special_tokens": (["<|a|>", "<|b|>"], [], [_token("<|c|>", rstrip=True)], None),
    "extra_special_tokens": (["<|x|>"], {"image_token": "<image>"}, {"odd": "<odd>"}, {}, []),
    "image_token": ("<image>", None),
    "errors": ("ignore", "strict"),
    "extra_ids": (0, 100),
    "model_input_names": (["input_ids"], ["input_ids", "token_type_ids", "attention_mask"]),
    "model_max_length": (8, None, 1.5),
    "truncation_side": ("left", "right"),
    "padding_side": ("left", "right"),
    "chat_template": (CHATML, [{"name": "default", "template": INST}], None, "{{ bad", "{{ odd }}"),
    "tokenizer_class": (
        *("LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"),
        *("GPT2Tokenizer", "BertTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "RobertaTokenizer"),
        *("T5Tokenizer", "XLMRobertaTokenizer", "GPT2TokenizerFast", "OddTokenizer", None),
    ),
    "tokenizer_file": ("/etc/passwd", None),
    "auto_map": ({"AutoTokenizer": ["tokenization_odd.OddTokenizer", None]},),
}
_TYPES = ("llama", "mistral", "qwen2", "gpt2", "bert", "roberta", "t5", "gemma2", "phi3", "whisper")
_NORMALIZERS: tuple[Any, ...] = (
    None,
    {"type": "Lowercase"},
    {"type": "NFC"},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
)
_DECODERS: tuple[Any, ...] = (
    None,
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
)


def drawn(seed: int) -> tuple[str, Form, list[str]]:
    """Return a form with one to three of its fields changed, and what was changed."""
    draw = random.Random(seed)
    name = draw.choice(sorted(FORMS))
    form = FORMS[name]()
    changes = [draw.choice(_CHANGES)(draw, form) for _ in range(draw.choice((1, 1, 2, 3)))]
    return name, form, changes


def _set(draw: random.Random, form: Form) -> str:
    key = draw.choice(sorted(_SETTINGS))
    value = draw.choice(_SETTINGS[key])
    form.settings = {**(form.settings or {}), key: value}
    return f"{key} = {value!r:.60}"


def _flip(draw: random.Random, form: Form) -> str:
    """Change a setting that is there, or leave it out."""
    if not form.settings:
        return _set(draw, form)
    key = draw.choice(sorted(form.settings))
    value = form.settings[key]
    if isinstance(value, bool) and draw.random() < 0.7:
        form.settings[key] = not value
    elif key in _SETTINGS and draw.random() < 0.6:
        form.settings[key] = draw.choice(_SETTINGS[key])
    else:
        return f"no {form.settings.pop(key) and key}"
    return f"{key} = {form.settings[key]!r:.60}"


def _decoder_entry(draw: random.Random, form: Form) -> str:
    """Change a flag of `added_tokens_decoder`, or add a token to it, at the end or behind a gap."""
    settings = form.settings = form.settings or {}
    added = settings.setdefault(
        "added_tokens_decoder", _added(form.tokenizer) if form.tokenizer else {}
    )
    if added and draw.random() < 0.5:
        number = draw.choice(sorted(added))
        flag = draw.choice(("lstrip", "rstrip", "normalized", "single_word", "special"))
        added[number] = {**added[number], flag: not added[number].get(flag)}
        return f"added_tokens_decoder[{number}].{flag}"
    end = _size(form) + draw.choice((0, 0, 3))
    token = draw.choice(("<|dec|>", " odd ", "<|im_start|>", "über"))
    added[str(end)] = _token(token, special=draw.random() < 0.6)
    return f"added_tokens_decoder[{end}] = {token!r}"


def _size(form: Form) -> int:
    if not form.tokenizer:
        return 400
    ids = [token["id"] for token in form.tokenizer["added_tokens"]]
    return max([len(form.tokenizer["model"]["vocab"]) - 1, *ids]) + 1


def _added_entry(draw: random.Random, form: Form) -> str:
    """Change the added tokens of tokenizer.json."""
    if not form.tokenizer:
        return _set(draw, form)
    added = form.tokenizer["added_tokens"] = [dict(one) for one in form.tokenizer["added_tokens"]]
    if added and draw.random() < 0.6:
        one = draw.choice(added)
        flag = draw.choice(("lstrip", "rstrip", "normalized", "single_word", "special"))
        one[flag] = not one[flag]
        return f"added_tokens[{one['content']!r}].{flag}"
    if added and draw.random() < 0.5:
        return f"no added token {added.pop(draw.randrange(len(added)))['content']!r}"
    token = draw.choice(("<|end|>", "hello", "  "))
    added.append({"id": _size(form), **_token(token, special=draw.random() < 0.5)})
    return f"added_tokens has {token!r}"


def _component(draw: random.Random, form: Form) -> str:
    """Change a part of tokenizer.json."""
    if not form.tokenizer:
        return _set(draw, form)
    form.tokenizer = json.loads(json.dumps(form.tokenizer))
    assert form.tokenizer
    key = draw.choice(
        (
            "normalizer",
            "pre_tokenizer",
            "decoder",
            "post_processor",
            "flags",
            "truncation",
            "padding",
        )
    )
    if key == "normalizer":
        form.tokenizer[key] = draw.choice(_NORMALIZERS)
    elif key == "decoder":
        form.tokenizer[key] = draw.choice(_DECODERS)
    elif key == "post_processor":
        form.tokenizer[key] = None
    elif key == "truncation":
        form.tokenizer[key] = {
            "direction": draw.choice(("Left", "Right")),
            "max_length": 12,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    elif key == "padding":
        form.tokenizer[key] = {
            "strategy": "BatchLongest",
            "direction": "Left",
            "pad_to_multiple_of": 8,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": draw.choice(("<pad>", "the")),
        }
    else:
        part = form.tokenizer["model" if key == "flags" else key] or {}
        flags = [
            (inner, name)
            for inner in (part, *part.get("pretokenizers", ()))
            for name, value in inner.items()
            if isinstance(value, bool)
        ]
        if not flags:
            return f"{key} as it is"
        inner, name = draw.choice(flags)
        inner[name] = not inner[name]
        return f"{key}.{name} = {inner[name]}"
    return f"{key} = {form.tokenizer[key]!r:.60}"


def _file(draw: random.Random, form: Form) -> str:
    """Take a file away, or put one there."""
    present = [name for name in form.files if name != "tekken.json"]
    kind = draw.choice(("gone", "added", "specials", "jinja", "chat", "named", "settings"))
    if kind == "gone" and present:
        return f"no {form.files.pop(name := draw.choice(sorted(present))) and name}"
    if kind == "settings":
        form.settings = None
        return "no tokenizer_config.json"
    if kind == "added":
        tokens = draw.sample(("<|im_start|>", "<|im_end|>", "<s>", "the", "ü ü"), 2)
        form.files["added_tokens.json"] = {
            token: _size(form) + number for number, token in enumerate(tokens)
        }
        return f"added_tokens.json of {tokens}"
    if kind == "specials":
        names = draw.sample(_NAMES, 3)
        values = [draw.choice(_TOKENS) for _ in names]
        plain = [
            {key: item for key, item in value.items() if key != "__type"}
            if isinstance(value, dict)
            else value
            for value in values
        ]
        found = {name: one for name, one in zip(names, plain, strict=True) if one is not None}
        form.files["special_tokens_map.json"] = {
            **found,
            **draw.choice(({}, {"additional_special_tokens": ["<|map|>"]})),
        }
        return f"special_tokens_map.json of {found}"
    if kind == "chat":
        form.files["chat_template.json"] = {"chat_template": INST}
        return "chat_template.json"
    if kind == "named":
        form.files["additional_chat_templates/tool_use.jinja"] = INST
        return "additional_chat_templates"
    form.files["chat_template.jinja"] = draw.choice((CHATML, INST, HEADERS))
    return "chat_template.jinja"


def _config(draw: random.Random, form: Form) -> str:
    if draw.random() < 0.3:
        form.config["tokenizer_class"] = draw.choice(_SETTINGS["tokenizer_class"])
        return f"config.json's tokenizer_class {form.config['tokenizer_class']}"
    form.model_type = draw.choice(_TYPES)
    return f"model_type {form.model_type}"


_CHANGES = (_set, _set, _set, _flip, _flip, _flip, _decoder_entry, _added_entry, _added_entry)
_CHANGES += (_component, _component, _file, _file, _config)


# --- verdicts --------------------------------------------------------------------------------------


def judged(form: Form, folder: Path, *, media: bool = False) -> str:
    """Return one of `EXPLAINED`, or what is wrong: how a package differs from transformers.

    What "changes when saved" is refused: transformers does not load again what it saves.

    Args:
        form: Of the tokenizer.
        folder: A folder that does not exist yet.
        media: Whether a processor reads the prompts.
    """
    source, package = form.write(folder / "checkpoint"), folder / "package"
    answer = error = None
    requested = {"model_id": None, "parts": media, "writes": form.writes}
    try:
        answer = reference_text.answer({"checkpoint": str(source), "text": requested})
    except CheckpointError as found:
        error = found
    shutil.copytree(source, package)
    try:
        tokenizer = made_text.write(package, "made", media=media)
    except CheckpointError as found:
        changes = "changes when it is saved" in str(found)
        alone = "changes when saved" if changes else f"refused alone: {found}"
        return "refused" if error else alone
    if error:
        return f"made alone: {error}"
    if not made_text.has_backend(tokenizer):
        return "Python code"
    assert answer
    return next(_differences(package, answer), "agrees")


def _differences(package: Path, answer: Mapping[str, Any]) -> Iterator[str]:
    for comparison in text.comparisons(package, answer):
        if comparison.questions and (found := comparison.first()):
            yield f"{comparison.metric}: {found!r}"
