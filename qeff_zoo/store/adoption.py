# SPDX-License-Identifier: Apache-2.0
"""Adoption: a prepared folder and the programs that were compiled from it become a package of the store."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.disk.regular import open_regular
from qeff_zoo.errors import PackageError
from qeff_zoo.package import Package, prepared, write_manifest
from qeff_zoo.package import files as package_files
from qeff_zoo.package.manifest import parse
from qeff_zoo.package.prepared import NOTE, PROGRAM, SCRIPT, SUMS, WORD, is_known
from qeff_zoo.package.programs import key_of
from qeff_zoo.store import Store, refused

#: Roles of files that only the compiler reads.
_COMPILED = ("graph", "weights")
_NOTE_LIMIT = 1 << 16


def package_of(folder: Path) -> Package:
    """Return the future package of a prepared folder; it has no program and lists no file.

    Raises:
        PackageError: The folder is none, or damaged.
    """
    manifest = prepared.manifest_of(folder)
    programs = [{**entry, "program_key": key_of(entry)} for entry in manifest["programs"]]
    return Package(folder.absolute(), {**manifest, "programs": programs, "files": []})


def adopt(folder: Path, compiled: Path, store: Store, *, unchecked: bool = False) -> Package:
    """Make a package of a prepared folder and the program that was compiled from it.

    The evidence of the folder holds for a program whose record names that folder and a version of its compiler. For
    any other program nothing is claimed.

    Args:
        folder: Prepared, with every file as it was.
        compiled: Output folder of the script.
        store: Destination store.
        unchecked: Whether to accept a program without a record of its source.

    Raises:
        PackageError: The folder or the program is damaged, or the program was compiled from something else.
        StoreError: The store has no room, or cannot be written.
    """
    manifest, files = prepared.read(folder)
    (sums,) = [file["digest"] for file in files if file["path"] == SUMS]
    kept = [
        file["path"]
        for file in files
        if file["role"] not in _COMPILED and file["path"] not in (SUMS, SCRIPT)
    ]
    (top,) = {Path(entry["path"]).parts[0] for entry in manifest["programs"]}
    try:
        notes = [_note_of(entry, compiled, sums, unchecked) for entry in manifest["programs"]]
        fields = dict(_made(compiled, top))
    except OSError as error:
        why = f"{str(error.filename)!r} cannot be read: {error.strerror}"
        raise _foreign(compiled, why) from error
    programs = [
        _compiled(entry, note) for entry, note in zip(manifest["programs"], notes, strict=True)
    ]
    sources = {**{name: folder / name for name in kept}, **fields}
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
            raise prepared.damaged(folder, str(error)) from error
        there = store.lookup(package.build_key)
        better = (
            there is not None
            and there.validated != "none"
            and there.standing[0] >= package.standing[0]
        )
        return store.promote(staged, package.build_key, adopt=better)


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
            f"Cannot adopt {str(compiled)!r}: it has no {NOTE}, so it is unknown what it was compiled from; "
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
    if all(isinstance(word, str) and WORD.fullmatch(word) for word in (name, version)):
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


def _foreign(compiled: Path, why: str) -> PackageError:
    return PackageError(
        f"Cannot adopt {str(compiled)!r}: {why}. Expected the folder that {SCRIPT} of this prepared folder made. Run "
        "it again."
    )
