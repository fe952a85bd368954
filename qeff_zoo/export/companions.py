# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's small files in a package: tokenizer, configurations and licence."""

import json
import shutil
import tempfile
import warnings
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from qeff_zoo.checkpoint import processors, text
from qeff_zoo.checkpoint.files import digest_of_files
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.contract import Task
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.export import architectures, chats
from qeff_zoo.package.identity import digest
from qeff_zoo.store import Store
from qeff_zoo.versions import installed

if TYPE_CHECKING:
    from qeff_zoo.runtime.text.tokenizer import Tokenizer

#: Files of a SentencePiece tokenizer with a separate table of numbers.
_PIECES = {"vocab.json", "sentencepiece.bpe.model"}
#: Distributions that determine the tokenizer and the settings of the processor.
_MAKERS = ("transformers", "tokenizers", "torchvision", "timm")


def copy(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the configuration, the tokenizer and other small files unchanged.

    Args:
        checkpoint: Opened checkpoint.
        folder: An existing folder.
    """
    for name, source in checkpoint.companions.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def obtain(checkpoint: Checkpoint, folder: Path, task: Task, store: Store) -> None:
    """Copy the small files of a package from the store, or make them: that imports transformers, which takes seconds.

    Args:
        checkpoint: Opened checkpoint.
        folder: Folder of the package under construction.
        task: Task of the package.
        store: Store of the files; those with a warning are not stored, so that each build repeats it.

    Raises:
        CheckpointError: transformers fails to make a tokenizer from the checkpoint's files.
    """
    names = checkpoint.companions
    made_of = {
        "files": digest_of_files({name: sha256_file(path) for name, path in names.items()}),
        "model_id": checkpoint.model_id,
        "task": task.name,
        "tokenizer": text.identity_of(checkpoint.tokenizer_files),
        "processor": processors.identity_of(names),
        "versions": {name: installed(name) or "absent" for name in _MAKERS},
    }
    key = f"tx1-{digest(made_of, 'qz-text-1')}"
    if not (companions := store.companions(key)):
        with store.stage("companions") as staged:
            with warnings.catch_warnings(record=True) as caught:
                package(checkpoint, staged, task)
            if caught:
                shutil.copytree(staged, folder, dirs_exist_ok=True)
                for one in caught:
                    warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
                return
            companions = store.promote_companions(staged, key)
    shutil.copytree(companions, folder, dirs_exist_ok=True)


def package(checkpoint: Checkpoint, folder: Path, task: Task) -> None:
    """Copy the small files of a checkpoint into a package; its tokenizer is the one that transformers makes.

    Args:
        checkpoint: Opened checkpoint.
        folder: Folder of the package under construction.
        task: Task of the package.

    Raises:
        CheckpointError: transformers fails to make a tokenizer from the checkpoint's files.
    """
    copy(checkpoint, folder)
    if checkpoint.is_pipeline:
        for inner in sorted(
            {PurePosixPath(name).parent.as_posix() for name in checkpoint.companions}
        ):
            if text.has_tokenizer(path.name for path in (folder / inner).iterdir()):
                text.write(folder / inner, f"{checkpoint.name}/{inner}")
        return
    architectures.register(checkpoint.model_type)
    if processors.FILES & checkpoint.companions.keys():
        processors.write(checkpoint.companions["config.json"].parent, folder)
    if "pretrained_cfg" in checkpoint.config:
        _name_labels(checkpoint, folder / "config.json")
    if task.reads == "audio" and checkpoint.companions.keys() >= _PIECES:
        _convert_pieces(folder)
    elif text.has_tokenizer(checkpoint.companions):
        media = bool({"vision", "audio"} & task.parts.keys())
        tokenizer = text.write(folder, checkpoint.name, checkpoint.model_id, media=media)
        if text.has_backend(tokenizer):
            chats.check(checkpoint.name, tokenizer, folder)
        elif task.reads != "audio" and not task.reads_characters:
            text.warn_of_no_text(checkpoint.name, tokenizer)
    if checkpoint.needs_remote_code:  # as the build and the runtime read it
        own = {name: value for name, value in checkpoint.config.items() if name != "auto_map"}
        (folder / "config.json").write_text(json.dumps(own), encoding="utf-8")


def tokenizer_of(checkpoint: Checkpoint) -> "Tokenizer | None":
    """Return the tokenizer of a package of a checkpoint.

    Args:
        checkpoint: Opened checkpoint.

    Raises:
        CheckpointError: transformers fails to make a tokenizer from the checkpoint's files.
    """
    from qeff_zoo.runtime.text.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory(prefix="qeff-tokenizer-") as name:
        folder = Path(name)
        copy(checkpoint, folder)
        architectures.register(checkpoint.model_type)
        if text.has_tokenizer(checkpoint.companions):
            text.write(folder, checkpoint.name, checkpoint.model_id)
        return Tokenizer.find(folder)


def _name_labels(checkpoint: Checkpoint, path: Path) -> None:
    """Write timm's labels of a checkpoint, and transformers' name of its type."""
    from transformers import TimmWrapperConfig

    labels = TimmWrapperConfig.from_dict(dict(checkpoint.config)).id2label
    named = {"label_names": [labels[number] for number in sorted(labels)]}
    path.write_text(json.dumps({**checkpoint.config, **named}), encoding="utf-8")


def _convert_pieces(folder: Path) -> None:
    """Write a tokenizer.json that decodes numbers of SentencePiece's pieces, and does not encode text."""
    import tokenizers
    from tokenizers import decoders, models

    vocab = read_json(folder / "vocab.json")
    decoder = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    decoder.decoder = decoders.Metaspace()
    decoder.add_special_tokens([piece for piece in vocab if piece[:1] == "<" and piece[-1:] == ">"])
    decoder.save(str(folder / "tokenizer.json"))
