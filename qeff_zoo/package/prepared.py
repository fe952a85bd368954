# SPDX-License-Identifier: Apache-2.0
"""Prepared folders: all that a package is made from, where its compiler is on another machine.

    prepared.json    what the package will be, and the digest of every file; says that it is none yet
    SHA256SUMS       the same digests, for `sha256sum --check`
    compile.sh       compiles what lies there, and puts compiled.json beside the program: what it was made from
    …                graphs, their weights, configs of the compiler, tokenizer and configs

In: a folder of a build that was not compiled, later the program as well. Out: a package of the store.
"""

import json
import re
import shutil
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
from qeff_zoo.package.programs import key_of
from qeff_zoo.package.schemas import validator
from qeff_zoo.store import Store, refused
from qeff_zoo.terminal.sanitize import shortened

from . import Package, write_manifest
from . import files as package_files

SUMS, SCRIPT = "SHA256SUMS", "compile.sh"
#: What every compiler of Cloud AI 100 writes into a program's folder.
PROGRAM = "programqpc.bin"
#: Lies beside a program: what the script compiled, and with which compiler.
NOTE = "compiled.json"
SCHEMA_ID = "qeff-prepared/1"
_SCHEMA = Path(__file__).with_name("prepared.schema.json")
_NOT_YET = "This is no package: it has no program. Run compile.sh where the compiler is, then `qeff-zoo adopt`."
#: Roles of files that only the compiler reads.
_COMPILED = ("graph", "weights")
_NOTE_LIMIT, _ZEROS = 1 << 16, "0" * 64
_WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")


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


def package_of(folder: Path) -> Package:
    """Return the future package of a prepared folder; it has no program and lists no file.

    Raises:
        PackageError: The folder is none, or damaged.
    """
    manifest = manifest_of(folder)
    programs = [{**entry, "program_key": key_of(entry)} for entry in manifest["programs"]]
    return Package(folder.absolute(), {**manifest, "programs": programs, "files": []})


def adopt(folder: Path, compiled: Path, store: Store, *, unchecked: bool = False) -> Package:
    """Make a package of a prepared folder and the program that was compiled from it.

    What was predicted of the folder holds of a program that says it was compiled from exactly that, by a compiler of a
    version that it names. Of any other nothing is claimed.

    Args:
        folder: Prepared, with every file as it was.
        compiled: The folder that the script made.
        store: Destination store.
        unchecked: Also take a program that does not say what it was compiled from.

    Raises:
        PackageError: The folder or the program is damaged, or the program was compiled from something else.
        StoreError: The store has no room, or cannot be written.
    """
    manifest, files = _read(folder)
    (sums,) = [file["digest"] for file in files if file["path"] == SUMS]
    kept = [
        file["path"]
        for file in files
        if file["role"] not in _COMPILED and file["path"] not in (SUMS, SCRIPT)
    ]
    (top,) = {Path(entry["path"]).parts[0] for entry in manifest["programs"]}
    try:
        notes = [_note_of(entry, compiled, sums, unchecked) for entry in manifest["programs"]]
        made = dict(_made(compiled, top))
    except OSError as error:
        why = f"{str(error.filename)!r} cannot be read: {error.strerror}"
        raise _foreign(compiled, why) from error
    programs = [
        _compiled(entry, note) for entry, note in zip(manifest["programs"], notes, strict=True)
    ]
    sources = {**{name: folder / name for name in kept}, **made}
    size = sum(path.stat().st_size for path in sources.values())
    store.require_space(store.root, size, "the package")
    with store.stage("adopt") as staged:
        try:
            for name, path in sources.items():
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, staged / name)
        except OSError as error:
            raise refused("copy a program to", staged, error) from error
        known = all(is_known({"compiler": str(note.get("version"))}) for note in notes)
        claims = {} if known else {"validated": "none", "validation": []}
        try:
            package = write_manifest(staged, {**manifest, **claims, "programs": programs}, {})
        except ValueError as error:  # a spec without an identity
            raise _damaged(folder, str(error)) from error
        there = store.lookup(package.build_key)
        better = (
            there is not None
            and there.validated != "none"
            and there.standing[0] >= package.standing[0]
        )
        return store.promote(staged, package.build_key, adopt=better)


def is_known(toolchain: Mapping[str, str]) -> bool:
    """Whether a compiler has a known version; the graphs of other versions are unknown.

    Args:
        toolchain: Versions by name.
    """
    return all(
        _WORD.fullmatch(version) and any(map(str.isdigit, version))
        for version in toolchain.values()
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
        raise _damaged(folder, f"{PREPARED} cannot be read: {error}") from error
    if content.get("schema") != SCHEMA_ID:
        raise _damaged(folder, f"its schema is {content.get('schema')!r:.100}, not {SCHEMA_ID!r}")
    for problem in chain(validator(_SCHEMA).iter_errors(content), _of_manifest(content)):
        raise _damaged(folder, shortened(f"{problem.json_path} {problem.message}"))
    if len({Path(entry["path"]).parts[0] for entry in content["manifest"]["programs"]}) != 1:
        raise _damaged(folder, "its programs are to lie in several folders")
    return content


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read what was prepared, and check every file of it."""
    content = _content(folder)
    manifest, files = content["manifest"], content["files"]
    for broken in _problems(folder, files):
        raise _damaged(folder, broken)
    return manifest, files


def _of_manifest(content: Mapping[str, Any]) -> Iterator[Any]:
    """Check what is there of the manifest by the schema of manifests."""
    manifest = content["manifest"]
    programs = [{**entry, "program_key": "qp1-" + _ZEROS} for entry in manifest["programs"]]
    rest = {"schema": MANIFEST_ID, "files": content["files"], "tree": "sha256:" + _ZEROS}
    yield from validator(MANIFEST_SCHEMA).iter_errors({**manifest, **rest, "programs": programs})


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


def _note_of(
    entry: Mapping[str, Any], compiled: Path, sums: str, unchecked: bool
) -> dict[str, Any]:
    """Return the note of one program, after a check that it is the expected one; empty without a note."""
    _, *below = Path(entry["path"]).parts
    folder = compiled.joinpath(*below)
    path = folder / PROGRAM
    if path.is_symlink() or not path.is_file() or not path.stat().st_size:
        raise _foreign(compiled, f"it has no {PROGRAM}, or an empty one")
    note = _note(folder / NOTE)
    if note is None:
        if unchecked:
            return {}
        raise PackageError(
            f"Cannot adopt {str(compiled)!r}: it has no {NOTE}, so that nobody knows what it was compiled from; "
            f"expected what {SCRIPT} of the prepared folder made. Run that, or say --unchecked if you are sure."
        )
    if f"sha256:{note.get('sums')}" != sums:
        raise _foreign(compiled, f"{NOTE} says that it was compiled from other files")
    return note


def _made(compiled: Path, top: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of what was compiled, by their names in a package; each is a regular one that can be opened.

    Args:
        compiled: The folder.
        top: Name in a package.
    """
    for name in package_files.walk(compiled):
        path, shown = compiled / name, f"{top}/{name}"
        if path.name == NOTE:
            continue
        if path.is_symlink():
            raise _foreign(compiled, f"{shown!r} is a symbolic link")
        if not path.is_file():
            raise _foreign(compiled, f"{shown!r} is no regular file")
        open_regular(path).close()
        yield shown, path


def _compiled(entry: Mapping[str, Any], note: Mapping[str, Any]) -> dict[str, Any]:
    """Record the compiler in a program's entry."""
    name, version = note.get("compiler"), note.get("version")
    compiler = dict(entry["compiled_from"]["compiler"])
    if all(isinstance(word, str) and _WORD.fullmatch(word) for word in (name, version)):
        compiler |= {"name": name, "version": version}
    return {**entry, "compiled_from": {**entry["compiled_from"], "compiler": compiler}}


def _note(path: Path) -> dict[str, Any] | None:
    try:
        with open_regular(path) as file:
            note = parse(file.read(_NOTE_LIMIT))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _foreign(path.parent, f"{NOTE} cannot be read: {error}") from error
    return note


def _damaged(folder: Path, why: str) -> PackageError:
    return PackageError(
        f"Prepared folder {str(folder)!r} is damaged: {why}. Expected every file as it was prepared. Prepare it again."
    )


def _foreign(compiled: Path, why: str) -> PackageError:
    return PackageError(
        f"Cannot adopt {str(compiled)!r}: {why}. Expected the folder that {SCRIPT} of this prepared folder made. Run "
        "it again."
    )
