# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's small files -> the folder of a package: its tokenizer, configs and licence."""

import json
import shutil
from pathlib import Path

from qeff_zoo.checkpoint import Checkpoint, processors

_OLDER_TOKENIZERS = {
    "vocab.json",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
}


#: Settings of a processor of images or sounds.
_OF_MEDIA = {"processor_config.json", "preprocessor_config.json"}
#: Of a tokenizer of SentencePiece's pieces, whose numbers are in a table.
_PIECES = {"vocab.json", "sentencepiece.bpe.model"}


def copy(checkpoint: Checkpoint, folder: Path, *, reads: str = "text") -> None:
    """Copy the tokenizer and other small files; convert a tokenizer that only transformers can read.

    Args:
        checkpoint: Fetched.
        folder: Of the package that is being built.
        reads: What the package reads: "text", or something of which tokens are decoded alone.
    """
    for name, source in checkpoint.companions.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    if _OF_MEDIA & checkpoint.companions.keys():
        processors.write(checkpoint.companions["config.json"].parent, folder)
    if "pretrained_cfg" in checkpoint.config:
        _name_labels(checkpoint, folder / "config.json")
    if reads == "sound" and checkpoint.companions.keys() >= _PIECES:
        _convert_pieces(folder)
    elif _needs_conversion(checkpoint):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(checkpoint.companions["config.json"].parent)
        # One for labels of sound has a table of characters, and nothing to convert.
        if hasattr(tokenizer, "backend_tokenizer"):
            tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))


def _name_labels(checkpoint: Checkpoint, path: Path) -> None:
    """Write down the labels that timm knows of a checkpoint, and what transformers calls its type."""
    from transformers import TimmWrapperConfig

    labels = TimmWrapperConfig.from_dict(dict(checkpoint.config)).id2label
    named = {"label_names": [labels[number] for number in sorted(labels)]}
    path.write_text(json.dumps({**checkpoint.config, **named}), encoding="utf-8")


def _needs_conversion(checkpoint: Checkpoint) -> bool:
    """Tell whether tokenizer.json alone would not tokenize as transformers does."""
    companions = checkpoint.companions
    if "tokenizer.json" not in companions:
        return bool(_OLDER_TOKENIZERS & companions.keys())
    if "tokenizer_config.json" not in companions:
        return False
    # transformers adds these tokens itself, whatever tokenizer.json says.
    config = json.loads(companions["tokenizer_config.json"].read_text(encoding="utf-8"))
    return any(name in config for name in ("add_bos_token", "add_eos_token"))


def _convert_pieces(folder: Path) -> None:
    """Write a tokenizer.json that makes text of numbers of SentencePiece's pieces, and cuts no text into them."""
    import tokenizers
    from tokenizers import decoders, models

    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([piece for piece in vocab if piece[:1] == "<" and piece[-1:] == ">"])
    made.save(str(folder / "tokenizer.json"))
