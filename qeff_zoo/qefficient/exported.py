# SPDX-License-Identifier: Apache-2.0
"""Folders of the user's that hold no package yet: where they are, and the note beside an exported graph.

model.onnx, its weights    by `export`
exported.json              which model and which choices they are of, so that `compile` takes the path of the graph
"""

import json
import mmap
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.disk.regular import open_regular
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.package.manifest import MANIFEST_LIMIT, PREPARED, parse

NOTE = "exported.json"
_SCHEMA = "qeff-exported/1"
#: What QEfficient writes beside its own exports, and into them: metadata, and functions that write and read a cache.
_EXPORT_PARAMS = "hashed_export_params.json"
_MARKS = (b"qeff_transforms", b"CtxScatter")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which checkpoint is meant."""

    #: What is said besides its name.
    BESIDE: ClassVar[tuple[str, ...]] = (
        *("revision", "gguf_file", "config_from"),
        *("token", "cache_dir"),
    )

    model: str
    revision: str | None = None
    gguf_file: str | None = None
    config_from: str | None = None
    token: str | None = field(default=None, repr=False)
    cache_dir: str | None = None

    @property
    def beside(self) -> dict[str, Any]:
        """Further content of the note."""
        return {name: getattr(self, name) for name in self.BESIDE}


@dataclass(frozen=True, kw_only=True)
class Note:
    """What is noted beside an exported graph.

    Args:
        key: Key of the plan of the export.
        graph: Name of its file.
        digest: Digest of that file, "sha256:…".
        model: Hub id, or absolute path of the checkpoint.
        revision: Revision of the Hub id.
        task: Hub pipeline tag.
        continuous_batching: Whether it is a graph of that.
        schema: Schema of the note.
    """

    key: str
    graph: str
    digest: str
    model: str
    revision: str | None
    task: str
    continuous_batching: bool
    schema: str = _SCHEMA


def place(name: str, what: str, key: str) -> Path:
    """Return the default folder of a model's files: below `qeff_models` here.

    Args:
        name: Name of the model.
        what: Is put there.
        key: Key of its plan.
    """
    return Path("qeff_models") / name / f"{what}-{key.partition('-')[2][:16]}"


def write(graph: Path, key: str, source: Source, task: str, *, continuous: bool) -> Note:
    """Note what a graph is of.

    Args:
        graph: File of the graph.
        key: Key of its plan.
        source: Checkpoint of the graph.
        task: Hub pipeline tag.
        continuous: Whether it is one of continuous batching.
    """
    local = os.path.exists(source.model)  # noqa: PTH110 -- a name too long for a file is none
    note = Note(
        key=key,
        graph=graph.name,
        digest=f"sha256:{sha256_file(graph)}",
        model=str(Path(source.model).resolve()) if local else source.model,
        revision=source.revision,
        task=task,
        continuous_batching=continuous,
    )
    write_durably(graph.with_name(NOTE), json.dumps(asdict(note), indent=2).encode())
    return note


def is_foreign(graph: Path) -> bool:
    """Whether QEfficient exported a graph; it may have been moved away from the files beside it."""
    if (graph.parent / _EXPORT_PARAMS).is_file():
        return True
    ours = any((graph.parent / name).exists() for name in (NOTE, PREPARED))
    if ours or not graph.is_file() or not graph.stat().st_size:
        return False
    with (
        open_regular(graph) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return any(content.find(mark) >= 0 for mark in _MARKS)


def find(folder: Path) -> Note | None:
    """Return what is noted in a folder; None where nothing is, or the graph is another than the one that was exported.

    Args:
        folder: Folder from `QEFFAutoModelForCausalLM.export`.
    """
    try:
        with open_regular(folder / NOTE) as file:
            note = Note(**parse(file.read(MANIFEST_LIMIT)))
        texts = (note.key, note.graph, note.model, note.task, note.revision or "")
        if note.schema != _SCHEMA or not all(isinstance(text, str) for text in texts):
            return None
        digest = sha256_file(folder / Path(note.graph).name)
    except (OSError, ValueError, TypeError):
        return None
    return note if note.digest == f"sha256:{digest}" else None
