# SPDX-License-Identifier: Apache-2.0
"""The files of a package's folder, checked against the list in its manifest.

In: a folder and `files` entries, whose paths `qeff_zoo.package.manifest` has checked. Out: entries, or
what is wrong with each file.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from qeff_zoo.disk.digests import Progress, sha256_file
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import PackageError
from qeff_zoo.terminal.sanitize import shortened

# The first pattern that a path or a file name matches determines the role.
_ROLES: tuple[tuple[str, str], ...] = (
    (r"evidence/", "evidence"),
    (r"qpc/", "program"),
    (r"model_package/", "config"),
    (r"([a-z0-9_-]+\.)?specializations\.json$", "specializations"),
    (
        r"([a-z0-9_-]+\.)?(custom_io(_config)?\.yaml|node_precision_info\.yaml|(mdp_|qnn_|tensor_slicing).*\.json)$",
        "compile-config",
    ),
    (r".*\.onnx$", "graph"),
    (r".*(\.safetensors|\.data|\.bin)$", "weights"),
    (r"(tokenizer|special_tokens_map|added_tokens|vocab|merges|chat_template|spiece)", "tokenizer"),
    (r"(\w+_)?config\.json$|configuration_", "config"),
    (r"(?i:licen[cs]e|notice|use_policy)", "license"),
    (r"README\.md$", "card"),
    (r".*\.log$", "log"),
)


def entry(folder: Path, name: str, known: tuple[int, str] | None) -> Any:
    """Describe a file as a manifest does.

    Args:
        folder: The package.
        name: The file's path in it.
        known: Size and SHA-256, if the file need not be read for them.
    """
    path = folder / name
    size, digest = known or (path.lstat().st_size, sha256_file(path))
    return {"path": name, "size": size, "digest": f"sha256:{digest}", "role": role_of(name)}


def role_of(name: str) -> str:
    """Return a file's role from its path."""
    last = PurePosixPath(name).name
    fits = (role for pattern, role in _ROLES if re.match(pattern, name) or re.match(pattern, last))
    return next(fits, "other")


def walk(folder: Path) -> Iterator[str]:
    """Name everything below a folder that is not a folder, links included."""
    for root, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(root, name).is_symlink()]
        for name in (*files, *linked):
            yield Path(root, name).relative_to(folder).as_posix()


def misplaced(folder: Path, files: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """List files by path that are missing or differ from the manifest in size or kind, without reading any."""
    folders = {"": True}

    def there(parent: str) -> bool:
        if parent not in folders:
            above = there(parent.rpartition("/")[0])
            folders[parent] = above and _is_real(folder / parent, stat.S_ISDIR)
        return folders[parent]

    broken: dict[str, str] = {}
    for file in files:
        name = file["path"]
        if not there(name.rpartition("/")[0]):
            broken[name] = f"{name!r} is missing, or lies behind a symbolic link"
        elif not _is_real(path := folder / name, stat.S_ISREG):
            broken[name] = f"{name!r} is missing, or not a regular file"
        elif (size := path.lstat().st_size) != file["size"]:
            broken[name] = f"{name!r} has {size} bytes, expected {file['size']}"
    return broken


def altered(folder: Path, file: Mapping[str, Any], progress: Progress | None) -> str | None:
    """Read a file and describe how it differs from its entry."""
    try:
        digest = "sha256:" + sha256_file(folder / file["path"], progress)
    except OSError as error:
        return f"{file['path']!r} cannot be read: {error}"
    if digest != file["digest"]:
        return f"{file['path']!r} has digest {digest}, expected {file['digest']}"
    return None


def _is_real(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except OSError:
        return False


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty for a missing file.

    Raises:
        PackageError: If the file has other content.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_regular(path))
    except (OSError, RecursionError, ValueError) as error:
        raise damaged(str(path), error) from error
    if not isinstance(content, dict):
        raise damaged(str(path), f"it holds a {type(content).__name__}, not an object")
    return content


def damaged(path: str, error: object) -> PackageError:
    """Return the error of a file of a package that cannot be read."""
    return PackageError(
        f"Cannot read {path!r}: {shortened(str(error))}. Expected it as the package was built with it. Build or pull "
        "the package again."
    )
