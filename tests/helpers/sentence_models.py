# SPDX-License-Identifier: Apache-2.0
"""Embedding models made and saved by sentence-transformers itself, of a tiny encoder with random weights."""

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as of_library
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
)

import qeff_zoo
from qeff_zoo.sessions import EmbeddingSession, open_session

WIDTH, LONGEST = 32, 48
TEXTS = ["the cat", "hello world, hello dog", "A query of some words?", "dog " * 60]
_LETTERS = "abcdefghijklmnopqrstuvwxyzQ0123456789"
_WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *_LETTERS, *":,.?!", *("##" + letter for letter in _LETTERS),
    *("the", "cat", "dog", "query", "hello", "world"),
]  # fmt: skip


def tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """Return a cased WordPiece tokenizer."""
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(_WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, **{"model_max_length": LONGEST, **names, **options}
    )


@cache
def encoder(head: str = "", **tokens: Any) -> Path:
    """Write the encoder once: a BERT with large weights, so that tokens differ."""
    folder = Path(tempfile.mkdtemp(prefix="sentence-model-"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(_WORDS),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        pad_token_id=0,
    )
    return _write(folder, (BertForMaskedLM if head else BertModel)(config).eval(), **tokens)


@cache
def windowed_encoder() -> Path:
    """Write a ModernBERT once, some layers of which attend to 5 tokens on either side."""
    torch.manual_seed(0)
    ids = {
        f"{name}_token_id": id
        for name, id in zip(("cls", "bos", "sep", "eos"), (2, 2, 3, 3), strict=True)
    }
    config = ModernBertConfig(
        vocab_size=len(_WORDS),
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        local_attention=10,
        pad_token_id=0,
        **ids,
    )
    return _write(Path(tempfile.mkdtemp(prefix="sentence-model-")), ModernBertModel(config).eval())


def _write(folder: Path, model: Any, **tokens: Any) -> Path:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= 3
            else:
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokenizer(**tokens).save_pretrained(folder)
    return folder


def dense(out: int = 24, inputs: int = WIDTH, **options: Any) -> Any:
    """Return a dense layer of random weights."""
    return of_library.Dense(inputs, out, **options)


def pooling(mode: str | Sequence[str] = "mean", **options: Any) -> Any:
    """Return a pooling."""
    return of_library.Pooling(WIDTH, pooling_mode=mode, **options)


def normalize(**options: Any) -> Any:
    """Return a normalization."""
    return of_library.Normalize(**options)


def save(
    folder: Path,
    *modules: Any,
    first: dict[str, Any] | None = None,
    base: Path | None = None,
    **options: Any,
) -> Path:
    """Save a model as sentence-transformers does.

    Args:
        folder: Made here.
        *modules: Modules after the encoder.
        first: Options of the encoder's module.
        base: Folder of the encoder; None for a BERT.
        **options: Options of the model.
    """
    torch.manual_seed(1)
    start = of_library.Transformer(str(base or encoder()), **(first or {}))
    for module in modules:  # of small random weights, each other than the next
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    model = SentenceTransformer(modules=[start, *modules], device="cpu", **options)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def of_witness(folder: Path) -> SentenceTransformer:
    """Open a saved model by sentence-transformers."""
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def built(folder: Path, **options: Any) -> EmbeddingSession:
    """Build a saved model and open the package."""
    given = {"seq_lens": (16, LONGEST), "batch_size": 2, "validate": False, **options}
    session = open_session(qeff_zoo.build(folder, **given), threads=1)
    assert isinstance(session, EmbeddingSession)
    return session
