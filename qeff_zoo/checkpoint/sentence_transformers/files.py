# SPDX-License-Identifier: Apache-2.0
"""modules.json of sentence-transformers: the modules of a model in order, each with the content of its config."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from qeff_zoo.checkpoint.json_files import read_json, read_objects
from qeff_zoo.errors import UnsupportedModelError

LISTED, SETTINGS = "modules.json", "config_sentence_transformers.json"
#: Settings of a checkpoint of ColBERT's authors.
METADATA = "artifact.metadata"
#: Configs of the encoder, the first that exists counts.
ENCODER_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
WEIGHTS = "model.safetensors"
LIBRARY = "sentence_transformers"
#: Module with a vector for each token, in place of an encoder.
STATIC = "StaticEmbedding"
#: Field of config.json that marks such a model, which reads texts without special tokens.
VECTORS = "static_vectors"
#: Function that returns the object in a JSON file by its relative path; empty without such a file.
Reader: TypeAlias = Callable[[str], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Module:
    """One entry of modules.json.

    Args:
        library: Python module of its class.
        kind: Name of its class.
        arguments: Names of the arguments that it takes in every call.
        folder: Folder of its config and weights, below the checkpoint's.
        config: Content of its config.
    """

    library: str
    kind: str
    arguments: tuple[str, ...] = ()
    folder: str
    config: Mapping[str, Any]

    @property
    def file(self) -> str:
        """Relative path of its config."""
        return str(PurePosixPath(self.folder) / "config.json")

    @property
    def described(self) -> str:
        """Name of its class, with the library if that is another."""
        own = self.library.partition(".")[0] == LIBRARY
        return self.kind if own else f"{self.library}.{self.kind}"

    def require_own(self) -> None:
        """Raise `UnsupportedModelError` if its class is of another library, or takes arguments of a call."""
        if self.described != self.kind:
            raise UnsupportedModelError(
                f"{LISTED} lists {self.described!r}, which is Python code of the checkpoint or of another library; "
                f"expected modules of {LIBRARY}. Such code is never run: use a model without it."
            )
        if self.arguments:
            raise UnsupportedModelError(
                f"{LISTED} gives {self.kind} the arguments {', '.join(self.arguments)} of every call; expected a "
                "module without `kwargs`. Use a model without them."
            )

    def refuse(self, setting: str, value: object, expected: str) -> UnsupportedModelError:
        """Return the error for a setting that is not supported."""
        return UnsupportedModelError(
            f"{self.file} of module {self.kind} sets {setting} to {value!r}; expected {expected}. Embeddings without "
            "that setting would differ from those of sentence-transformers: use a model without it."
        )


def reader_of(companions: Mapping[str, Path]) -> Reader:
    """Return the reader of a checkpoint's small files.

    Args:
        companions: Files beside the checkpoint, by relative path.
    """

    def read(name: str) -> dict[str, Any]:
        return read_json(companions[name]) if name in companions else {}

    return read


def read_modules(companions: Mapping[str, Path]) -> list[Module]:
    """Return the listed modules of a model in order; none for a checkpoint without modules.json.

    Args:
        companions: Files beside the checkpoint, by relative path.

    """
    if LISTED not in companions:
        return []
    read, modules = reader_of(companions), []
    for entry in read_objects(companions[LISTED]):
        library, _, kind = str(entry["type"]).rpartition(".")
        folder = str(entry.get("path") or "")
        config = read(str(PurePosixPath(folder) / "config.json")) if folder else {}
        arguments = tuple(entry.get("kwargs") or ())
        modules.append(
            Module(library=library, kind=kind, arguments=arguments, folder=folder, config=config)
        )
    return modules


def files_of(folder: Path) -> dict[str, Path]:
    """Return the small files of a folder, by relative path.

    Args:
        folder: Folder of a checkpoint or a package.
    """
    paths = [*folder.glob("*.json"), *folder.glob("*/config.json"), *folder.glob(METADATA)]
    return {path.relative_to(folder).as_posix(): path for path in paths}
