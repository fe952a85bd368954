# SPDX-License-Identifier: Apache-2.0
"""Prepared folders: all that a package is made from, where its compiler is on another machine.

    prepared.json    the future manifest, and the digest of every file; marks the folder as unfinished
    SHA256SUMS       the same digests, for `sha256sum --check`
    compile.sh       compiles the folder, and writes compiled.json, the digests of its inputs, beside the program
    …                graphs, their weights, configs of the compiler, tokenizer and configs

`qeff_zoo.store.adoption` makes a package of such a folder and its compiled program.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from qeff_zoo.disk.regular import open_regular
from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.disk.staging import settle, write_durably
from qeff_zoo.errors import PackageError
from qeff_zoo.package.identity import canonical
from qeff_zoo.package.manifest import MANIFEST_LIMIT, PREPARED, Manifest, dump, parse
from qeff_zoo.package.manifest import SCHEMA as MANIFEST_SCHEMA
from qeff_zoo.package.manifest import SCHEMA_ID as MANIFEST_ID
from qeff_zoo.package.schemas import violations
from qeff_zoo.terminal.sanitize import shortened

from . import files as package_files

SUMS, SCRIPT = "SHA256SUMS", "compile.sh"
#: What every compiler of Cloud AI 100 writes into a program's folder.
PROGRAM = "programqpc.bin"
#: Lies beside a program: what the script compiled, and with which compiler.
NOTE = "compiled.json"
SCHEMA_ID = "qeff-prepared/1"
_SCHEMA = Path(__file__).with_name("prepared.schema.json")
_NOT_YET = "This is no package: it has no program. Run compile.sh where the compiler is, then `qeff-zoo adopt`."
_ZEROS = "0" * 64
#: Name or version of a compiler.
WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")


def write(folder: Path, manifest: Manifest, digests: Mapping[str, tuple[int, str]]) -> None:
    """Complete a prepared folder: digest its files, and describe the future package.

    Args:
        folder: Holds all files and no other.
        manifest: Manifest of the package, see `qeff_zoo.package.write_manifest`.
        digests: See `qeff_zoo.package.write_manifest`.
    """
    names = sorted(package_files.walk(folder))
    files = [package_files.entry(folder, name, digests.get(name)) for name in names]
    sums = "".join(f"{file['digest'].removeprefix('sha256:')}  {file['path']}\n" for file in files)
    (folder / SUMS).write_text(sums, encoding="utf-8")
    content = {
        "schema": SCHEMA_ID,
        "note": _NOT_YET,
        "manifest": {**manifest, "spec": json.loads(canonical(manifest["spec"]))},
        "files": [*files, package_files.entry(folder, SUMS, None)],
    }
    settle(folder)
    write_durably(folder / PREPARED, dump(content))


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of what a prepared folder will be a package of.

    Raises:
        PackageError: The folder is none, or damaged.
    """
    return _content(folder)["manifest"]  # type: ignore[no-any-return]


def is_known(toolchain: Mapping[str, str]) -> bool:
    """Whether a compiler has a known version; the graphs of other versions are unknown.

    Args:
        toolchain: Versions by name.
    """
    return all(
        WORD.fullmatch(version) and any(map(str.isdigit, version)) for version in toolchain.values()
    )


def _content(folder: Path) -> dict[str, Any]:
    """Read what was prepared, and check all but the files."""
    path = folder / PREPARED
    try:
        with open_regular(path) as file:
            content = parse(file.read(MANIFEST_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        raise PackageError(
            f"{str(folder)!r} is no prepared folder: it has no {PREPARED}; expected what `qeff-zoo build "
            "--prepare-only` made. Check the path."
        ) from None
    except (OSError, ValueError) as error:
        raise damaged(folder, f"{PREPARED} cannot be read: {error}") from error
    if content.get("schema") != SCHEMA_ID:
        raise damaged(folder, f"its schema is {content.get('schema')!r:.100}, not {SCHEMA_ID!r}")
    for problem in chain(violations(_SCHEMA, content), _of_manifest(content)):
        raise damaged(folder, shortened(f"{problem.json_path} {problem.message}"))
    if len({Path(entry["path"]).parts[0] for entry in content["manifest"]["programs"]}) != 1:
        raise damaged(folder, "its programs are to lie in several folders")
    return content


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the future manifest of a prepared folder, and its list of files, after a check of every file.

    Raises:
        PackageError: If the folder is none, or damaged.
    """
    content = _content(folder)
    manifest, files = content["manifest"], content["files"]
    for broken in _problems(folder, files):
        raise damaged(folder, broken)
    return manifest, files


def _of_manifest(content: Mapping[str, Any]) -> Iterator[Any]:
    """Check what is there of the manifest by the schema of manifests."""
    manifest = content["manifest"]
    programs = [{**entry, "program_key": "qp1-" + _ZEROS} for entry in manifest["programs"]]
    rest = {"schema": MANIFEST_ID, "files": content["files"], "tree": "sha256:" + _ZEROS}
    yield from violations(MANIFEST_SCHEMA, {**manifest, **rest, "programs": programs})


def _problems(folder: Path, files: list[dict[str, Any]]) -> Iterator[str]:
    names = [file["path"] for file in files]
    for name in names:
        if reason := unsafe_path(name):
            yield f"path {name!r} {reason}"
    if names.count(SUMS) != 1:
        yield f"it does not list {SUMS} once"
    yield from package_files.misplaced(folder, files).values()
    for file in files:
        if altered := package_files.altered(folder, file, None):
            yield altered


def damaged(folder: Path, why: str) -> PackageError:
    """Return the error of a prepared folder that is damaged."""
    return PackageError(
        f"Prepared folder {str(folder)!r} is damaged: {why}. Expected every file as it was prepared. Prepare it again."
    )
