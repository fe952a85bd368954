# SPDX-License-Identifier: Apache-2.0
"""A package: a folder that stands alone, described and guarded by its manifest.json.

In: a folder. Out: a `Package`, of which the manifest has been checked and every file is there with
its size; `Package.verify` reads the bytes too. `write_manifest` makes a folder a package.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qeff_zoo.disk.digests import Progress
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.staging import settle, write_durably
from qeff_zoo.errors import PackageError, ZooError
from qeff_zoo.package.identity import build_key, canonical, tree_digest
from qeff_zoo.package.manifest import (
    MANIFEST_LIMIT,
    MANIFEST_NAME,
    PREPARED,
    SCHEMA_ID,
    VALIDATED,
    Manifest,
    dump,
    parse,
    problems,
)
from qeff_zoo.package.programs import CompiledProgram, key_of
from qeff_zoo.terminal.progress import out_of_memory
from qeff_zoo.terminal.sanitize import shortened

from . import files as package_files

_SPECIALIZATIONS = "specializations.json"


@dataclass(frozen=True)
class Package:
    """A complete package on disk.

    Args:
        path: Absolute path of the folder.
        manifest: Checked manifest.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Package":
        """Check a package's manifest and that every file is there with its size, in milliseconds.

        The bytes of the files are not read; `verify` does that.

        Args:
            path: The package's folder.

        Raises:
            PackageError: The folder is not a package, or not a complete one.

        Example:
            >>> package = Package.open("llama-tiny")  # doctest: +SKIP
            >>> package.file("graph")  # doctest: +SKIP
            PosixPath('/home/me/llama-tiny/model.onnx')
        """
        folder = Path(os.path.abspath(path))  # noqa: PTH100 -- a link to the folder stays a link
        package = cls(folder, _read_manifest(folder))
        if broken := _problems(folder, package.manifest):
            raise _damaged(folder, broken)
        return package

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def build_key(self) -> str:
        return str(self.manifest["build_key"])

    @cached_property
    def programs(self) -> tuple[CompiledProgram, ...]:
        """What can be run of it."""
        return tuple(CompiledProgram.from_entry(entry) for entry in self.manifest["programs"])

    def program(self, role: str) -> CompiledProgram:
        """Find a program by its role.

        Raises:
            PackageError: There is none of that role.
        """
        match = next((program for program in self.programs if program.role == role), None)
        if match is None:
            known = ", ".join(program.role for program in self.programs)
            raise PackageError(
                f"Package {str(self.path)!r} has no program {role!r}; expected one of: {known}. Build or pull a "
                "package that has it."
            )
        return match

    @property
    def task(self) -> str:
        return str(self.manifest["task"])

    @property
    def model_type(self) -> str:
        return str(self.manifest["model_type"])

    @property
    def target(self) -> str:
        return str(self.manifest["target"]["name"])

    @property
    def validated(self) -> str:
        return str(self.manifest["validated"])

    @property
    def dirty(self) -> bool:
        """Whether it was built from sources with changes that no commit has."""
        return bool(self.manifest["provenance"].get("dirty"))

    @property
    def standing(self) -> tuple[int, bool]:
        """How far it was proved, then whether others can have the sources; greater is better."""
        return VALIDATED.index(self.validated), not self.dirty

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(file["size"] for file in self.manifest["files"])

    def file(self, role_or_path: str) -> Path:
        """Find a file by its path, by its role, or a program by its role.

        Args:
            role_or_path: "model.onnx", "tokenizer.json"; "graph", "weights"; "decoder".

        Raises:
            PackageError: No file, or more than one, has that role.
        """
        files = self.manifest["files"]
        paths: list[str] = [file["path"] for file in files if file["path"] == role_or_path]
        paths = paths or [file["path"] for file in files if file["role"] == role_or_path]
        programs = self.manifest["programs"]
        paths = paths or [entry["path"] for entry in programs if entry["role"] == role_or_path]
        if len(paths) == 1:
            return self.path / paths[0]
        known = sorted({entry["role"] for entry in (*files, *programs)})
        what = f"{len(paths)} files ({', '.join(paths)})" if paths else "no file"
        raise PackageError(
            f"Package {str(self.path)!r} has {what} for {role_or_path!r}; expected one. Give a "
            f"path that `qeff-zoo inspect` lists, or one of the roles {', '.join(known)}."
        )

    def altered(self, path: str) -> str | None:
        """Read one of the files, or a whole folder, and describe how it differs from the manifest."""
        files = self.manifest["files"]
        read = [file for file in files if f"{file['path']}/".startswith(f"{path}/")]
        differences = (package_files.altered(self.path, file, None) for file in read)
        return next(filter(None, differences), None)

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Read every byte and compare it with the manifest.

        Args:
            progress: Callback for the bytes read; all together are `size`.

        Returns:
            One line per problem, none for an intact package. A file that the manifest does not list
            is a problem too.
        """
        if broken := problems(self.manifest):
            return broken
        files = self.manifest["files"]
        absent = package_files.misplaced(self.path, files)
        read = (
            package_files.altered(self.path, file, progress)
            for file in files
            if file["path"] not in absent
        )
        extra = (f"{name!r} is not in the manifest" for name in self.unlisted())
        return [*absent.values(), *(problem for problem in read if problem), *extra]

    def unlisted(self) -> list[str]:
        """List the paths in the folder that the manifest does not know."""
        listed = {file["path"] for file in self.manifest["files"]}
        # A killed `with_validation` may leave the new manifest under a name of this kind.
        return [
            name
            for name in sorted(package_files.walk(self.path))
            if name not in listed and not name.removeprefix(".").startswith(MANIFEST_NAME)
        ]

    def with_validation(self, records: list[Mapping[str, Any]], validated: str) -> "Package":
        """Replace the validation evidence, on disk and in the package returned.

        Args:
            records: Value of the manifest's `validation`.
            validated: The level that they prove.
        """
        manifest = {**self.manifest, "validation": records, "validated": validated}
        return _seal(replace(self, manifest=manifest))


def write_manifest(
    folder: Path,
    manifest: Manifest,
    digests: Mapping[str, tuple[int, str]],
) -> Package:
    """Make a folder a package: digest its files, check everything, write manifest.json last.

    Written too: the specializations of every program, in `specializations.json`, or where there are
    several programs in `ROLE.specializations.json`. Filled in: `schema`, `build_key`, each program's
    `program_key`. Every file reaches the disk before the manifest does.

    Args:
        folder: Holds all files of the package and no other.
        manifest: The manifest without `files` and `tree`.
        digests: (size, SHA-256 in hexadecimal) by path, of files hashed while they were written, so
            that they are not read again.

    Raises:
        PackageError: The manifest would be refused by `Package.open`.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 -- as in Package.open
    body = {"schema": SCHEMA_ID, **manifest}
    body["spec"] = json.loads(canonical(body["spec"]))
    body.setdefault("build_key", build_key(body["spec"]))
    body["programs"] = [{"program_key": key_of(entry), **entry} for entry in body["programs"]]
    for entry in body["programs"]:
        prefix = f"{entry['role']}." if len(body["programs"]) > 1 else ""
        _write_specializations(folder / (prefix + _SPECIALIZATIONS), entry["specializations"])
    body["files"] = [
        package_files.entry(folder, name, digests.get(name))
        for name in sorted(package_files.walk(folder))
        if name != MANIFEST_NAME
    ]
    body["tree"] = tree_digest(body["files"])
    settle(folder)
    return _seal(Package(folder, body))


def _seal(package: Package) -> Package:
    if broken := _problems(package.path, package.manifest):
        raise _damaged(package.path, broken)
    write_durably(package.path / MANIFEST_NAME, dump(package.manifest))
    return Package.open(package.path)


def _write_specializations(path: Path, specializations: list[Mapping[str, Any]]) -> None:
    content = {"specializations": specializations}
    if not path.exists():
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    elif json.loads(read_regular(path)) != content:
        raise PackageError(
            f"{str(path)!r} disagrees with the manifest's specializations; expected the same "
            "list. Write one of them from the other."
        )


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_NAME
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode):
            raise _damaged(folder, [f"{MANIFEST_NAME} is not a regular file"])
        if info.st_size > MANIFEST_LIMIT:
            size = f"{MANIFEST_NAME} has {info.st_size} bytes, more than {MANIFEST_LIMIT}"
            raise _damaged(folder, [size])
        manifest = parse(read_regular(path))
    except (FileNotFoundError, NotADirectoryError):
        if (folder / PREPARED).is_file():
            raise PackageError(
                f"{str(folder)!r} is not a package yet, but what one is compiled from; expected a folder that "
                "`qeff-zoo build` or `qeff-zoo adopt` printed. Run its compile.sh where the compiler is, then "
                "`qeff-zoo adopt`."
            ) from None
        raise PackageError(
            f"{str(folder)!r} is not a package: it has no {MANIFEST_NAME}; expected a folder that "
            "`qeff-zoo build` or `qeff-zoo pull` printed. Check the path."
        ) from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, [f"{MANIFEST_NAME} cannot be read: {error}"]) from error
    if manifest.get("schema") != SCHEMA_ID:
        raise PackageError(
            f"Package {str(folder)!r} has manifest schema {shortened(repr(manifest.get('schema')))}; expected "
            f"{SCHEMA_ID!r}. Build it again with this qeff-zoo, or use the one that wrote it."
        )
    return manifest


def refused_graph(runtime: str, path: Path, reason: str) -> ZooError:
    """Return the error for a graph that a runtime does not open: damage if it differs from its manifest.

    A runtime reports a lack of memory by its message alone.

    Args:
        runtime: Name and version of the runtime.
        path: Path of the graph.
        reason: Message of the runtime.
    """
    if short := out_of_memory(RuntimeError(reason), f"while {runtime} opens {str(path)!r}"):
        return short
    what = f"{runtime} cannot open {str(path)!r}: {reason.rstrip('. ')}."
    if not (path.parent / MANIFEST_NAME).is_file():
        return PackageError(f"{what} Expected a graph as qeff-zoo writes it. Build it again.")
    try:
        package = Package.open(path.parent)
    except PackageError as error:
        return PackageError(f"{what} {error}")
    if changed := package.altered(path.name):
        return PackageError(f"{what} {_damaged(package.path, [changed])}")
    return PackageError(
        f"{what} The graph is as it was built. Run `qeff-zoo inspect PACKAGE --verify` to compare the weights, too; if "
        "they are as built, this runtime does not open the graph on this processor: build the package again with "
        "this version of qeff-zoo, or report this message and the line 'processor' of `qeff-zoo doctor`."
    )


def _problems(folder: Path, manifest: Manifest) -> list[str]:
    """List the faults of a manifest, or else those of its files that show without reading them."""
    return problems(manifest) or list(package_files.misplaced(folder, manifest["files"]).values())


def _damaged(folder: Path, broken: list[str]) -> PackageError:
    shown = "; ".join(broken[:5]) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
    return PackageError(
        f"Package {str(folder)!r} is damaged: {shown}. Expected what its manifest promises. Build "
        "or pull it again."
    )
