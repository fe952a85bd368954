# SPDX-License-Identifier: Apache-2.0
"""Names of packages: a variant and the beginning of a key, `ort-int4-cl4096 · 802246d4`.

In: the path of a package in a remote, or its folder in the store. Out: its short name, and whether a reference names
it. A reference is a path, a variant, a build key, or variant and key with `/` or `·` between them. The first 8 hex
digits of a key suffice.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from qeff_zoo.disk.regular import open_regular
from qeff_zoo.hub.entries import Notice, package_path
from qeff_zoo.package.identity import is_key
from qeff_zoo.package.manifest import (
    MANIFEST_LIMIT,
    MANIFEST_NAME,
    Manifest,
    base_name,
    parse,
    problems,
    source_in,
)

_DIGITS = 8
_NAMED = re.compile(r"(?:(?:packages/)?([^/·\s]+)(?:/|\s*·\s*))?(?:qz1-)?([0-9a-f]{8,64})")
_KEY = re.compile(r"((?:q[a-z]|tx)1-[0-9a-f]{8})[0-9a-f]{56}")


def short_name(path: str) -> str:
    """Name a package for people.

    Args:
        path: `packages/<variant>/<16 hex digits>`, as an index has it.

    Example:
        >>> short_name("packages/ort-int4-cl4096/802246d4ab81ea7c")
        'ort-int4-cl4096 · 802246d4'
    """
    _, variant, key16 = path.split("/")
    return f"{variant} · {key16[:_DIGITS]}"


def full_name(model: str, path: str) -> str:
    """Name a package for people, with its model: `org/model ort-int4-cl4096 · 802246d4`."""
    return f"{model} {short_name(path)}"


def notice_text(notice: Notice) -> str:
    """Describe a notice about a package."""
    instead = f" (take {short_name(notice.instead)})" if notice.instead else ""
    return f"{notice.state.replace('_', ' ')}: {notice.reason.rstrip('.')}{instead}"


def is_named(reference: str, path: str, build_key: str = "") -> bool:
    """Whether a reference names a package.

    Args:
        reference: Name as the user wrote it.
        path: See `short_name`.
        build_key: Complete build key; "" if only the path is known.
    """
    _, variant, key16 = path.split("/")
    match = _NAMED.fullmatch(reference)
    if match is None:
        return reference == variant
    key = build_key.removeprefix("qz1-") or key16
    return match[1] in (None, variant) and is_key(match[2][: len(key)], key)


def ambiguity(reference: str, names: Iterable[str]) -> str:
    """Describe an ambiguous package name.

    Args:
        reference: Name as the user wrote it.
        names: Names of each package.
    """
    lines = sorted(names)
    return (
        f"{reference!r} names {len(lines)} packages. Expected one. Give the key of one of these, or more of it:"
        + "".join(f"\n  {line}" for line in lines)
    )


# --- packages of the store ---------------------------------------------------------------------


def is_called(reference: str, manifest: Manifest) -> bool:
    """Whether a reference names a package by its model, or by `is_named`.

    The name that a package records counts only if its checkpoint has that name.

    Args:
        reference: Name as the user wrote it.
        manifest: The package's, checked.
    """
    name = base_name(manifest)
    if reference == manifest["name"] and source_in(manifest).get("model_id", name) == name:
        return True
    return is_named(reference, package_path(manifest), manifest["build_key"])


def is_at(reference: str, folder: Path) -> bool:
    """Whether a reference names a package of the store, damaged ones included.

    Args:
        reference: Path, key, or another name that `is_called` accepts.
        folder: Folder of the package, named after its key.
    """
    if is_key(reference, folder.name) or (
        reference and Path(reference).resolve() == folder.resolve()
    ):
        return True
    manifest = _manifest(folder)
    return manifest is not None and is_called(reference, manifest)


def names_at(folder: Path) -> tuple[str, str]:
    """Return a package's model and its short name; "" and the shortened key if its manifest is invalid."""
    manifest = _manifest(folder)
    if manifest is None:
        return "", _KEY.sub(r"\1", folder.name)
    return manifest["name"], short_name(package_path(manifest))


def name_at(folder: Path) -> str:
    """Return the names of `names_at` as a single text."""
    return " ".join(names_at(folder)).strip()


def _manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a package without checking its files; None if the manifest is invalid."""
    with suppress(OSError, ValueError), open_regular(folder / MANIFEST_NAME) as file:
        manifest: Manifest = parse(file.read(MANIFEST_LIMIT))
        return None if problems(manifest) else manifest
    return None
