# SPDX-License-Identifier: Apache-2.0
"""Cut checkpoint: the first layers of another one, as a folder of the store with its own configuration.

The folder links to the files of weights, and has copies of all other files. It is a local checkpoint like any other:
build key, package and reference follow from its config.json.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.weight_files import weights_entry
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.errors import CheckpointError

#: Raised if the same checkpoint and configuration give another folder.
_REVISION = "cut1"


def cut(checkpoint: Checkpoint, config: Mapping[str, Any], suffix: str) -> Path:
    """Return the folder of a checkpoint with another configuration; its weights are downloaded.

    Args:
        checkpoint: Opened checkpoint of safetensors.
        config: Content of the new config.json.
        suffix: End of the folder's name, such as "-2-layers".

    Raises:
        CheckpointError: The weights are in GGUF files.
    """
    from qeff_zoo.store import Store

    if checkpoint.gguf:
        raise CheckpointError(
            f"{checkpoint.gguf!r} cannot be cut to fewer layers: a GGUF file has the configuration of all its tensors. "
            "Expected a checkpoint of safetensors. Cut the original checkpoint."
        )
    checkpoint.fetch()
    store = Store()
    name = checkpoint.name.rpartition("/")[2] + suffix
    key = f"{_REVISION}-{_identity(checkpoint, config)}"
    if folder := store.companions(key):
        return folder / name
    with store.stage("companions") as staged:
        _write(checkpoint, config, staged / name)
        return store.promote_companions(staged, key) / name


def _identity(checkpoint: Checkpoint, config: Mapping[str, Any]) -> str:
    """Return a digest of small files by content, and of weights by place, size and time."""
    small = {name: sha256_file(path) for name, path in checkpoint.companions.items()}
    weights = [_place(checkpoint, name) for name in checkpoint.weight_files]
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in weights]
    content = json.dumps([checkpoint.name, config, small, stats], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _place(checkpoint: Checkpoint, name: str) -> Path:
    return (checkpoint.folder / name).resolve()


def _write(checkpoint: Checkpoint, config: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir()
    for name, source in checkpoint.companions.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, folder / name)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in {weights_entry(checkpoint.config, checkpoint.files), *checkpoint.weight_files}:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(_place(checkpoint, name))
