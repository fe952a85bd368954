# SPDX-License-Identifier: Apache-2.0
"""Files of an index: their form, and what is checked before one is used.

In: an `Index`, or the bytes of its files. Out: the same. Each file is a gzipped line of JSON with the schema
`index.schema.json`. Only the root changes its content under its name. If it is signed, its second line is the
signature of the first.

    index.json.gz
        {"schema": "qeff-index/3", "prefix": "", "serial": 12, "remotes": ["hf://acme/zoo"],
         "packages": [{"path": "packages/ort-int4-…/0123456789abcdef", "manifest": <SHA-256>, "axes": {…}, …}, …],
         "notices": {path: {"state": "yanked", "reason": …, "instead": path}, …}, "files": {}}

Of more packages than `LEAF_PACKAGES`, the root lists files in place of packages: leaves, which list packages, and
pages, which list files again. `qeff_zoo.hub.index_tree` assigns packages to files.

    index.json.gz
        {…, "serial": 12, "packages": [], "notices": {}, "files": {"01": {"sha256": <SHA-256>, "packages": 180}, …}}
    index/01-<SHA-256>.json.gz
        {"schema": "qeff-index/3", "prefix": "01", "packages": […], "notices": {…}, "files": {}}

So the signature, the serial and the digests of the root are over all of it: a server of another file, an older one,
or another remote's, is noticed.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import INDEX_NAME, Index, Sign
from qeff_zoo.hub.index_tree import (
    PAGE_BITS,
    Leaf,
    Node,
    Page,
    Reference,
    bits_of,
    superseded,
)
from qeff_zoo.package.manifest import parse
from qeff_zoo.package.schemas import violations
from qeff_zoo.terminal.sanitize import shortened

#: What signatures call the text of the root.
SIGNED_NAME = "index.json"
SCHEMA_ID = "qeff-index/3"
_SCHEMA = Path(__file__).with_name("index.schema.json")
#: Folder of all files but the root.
FOLDER_NAME = "index"
#: The most bytes of a file that are ever read, and the most that they may become.
INDEX_LIMIT = 8 << 20
_INFLATED_LIMIT = 32 << 20
#: The most values that a file may hold, so that no small file fills the memory. One package has about 30.
_MOST_VALUES = 1_000_000
#: Files that are kept in memory while an index is read.
KEPT = 8


def file_path(prefix: str, reference: Reference) -> str:
    """Name a file of an index by its content, so that no publication changes what a reader is about to read.

    Args:
        prefix: Prefix of its models' digests.
        reference: Reference of the page above it.
    """
    return f"{FOLDER_NAME}/{prefix}-{reference.sha256}.json.gz"


# --- writing -----------------------------------------------------------------------------------


def files_of(index: Index, sign: Sign | None = None) -> dict[str, bytes]:
    """Write the files of an index that are new, by path; the root is the last.

    Args:
        index: Index; files that it was read from, and that are unchanged, are not written again.
        sign: Signs the root; None for an index that is not signed.
    """
    written: dict[str, bytes] = {}
    root = replace(index, tree=_referred(index.tree, written))
    return {**written, INDEX_NAME: encode(root, sign)}


def encode(index: Index, sign: Sign | None = None) -> bytes:
    """Write the root of an index; the same one always as the same bytes.

    Args:
        index: Index whose other files are written.
        sign: Signs the root.
    """
    remotes = {"remotes": list(index.remotes)} if index.remotes else {}
    text = _dump({**_content("", index.tree), "serial": index.serial, **remotes})
    return _packed(text if sign is None else text + b"\n" + sign(text))


def _referred(node: Node, written: dict[str, bytes]) -> Node:
    """Replace what a page has in memory by references; their files are added to those that are written."""
    if isinstance(node, Leaf):
        return node
    parts: dict[str, Node | Reference] = {}
    for prefix, part in node.parts.items():
        if not isinstance(part, Reference):
            content = _packed(_dump(_content(prefix, _referred(part, written))))
            part = Reference(hashlib.sha256(content).hexdigest(), part.packages)
            written[file_path(prefix, part)] = content
        parts[prefix] = part
    return Page(parts)


def _content(prefix: str, node: Node) -> dict[str, Any]:
    leaf = node if isinstance(node, Leaf) else Leaf()
    parts = node.parts if isinstance(node, Page) else {}
    return {
        "schema": SCHEMA_ID,
        "prefix": prefix,
        "packages": [_as_json(entry) for entry in leaf.entries],
        "notices": {
            path: {name: value for name, value in asdict(notice).items() if value is not None}
            for path, notice in leaf.notices.items()
        },
        "files": {each: vars(part) for each, part in parts.items()},
    }


def _as_json(entry: Entry) -> dict[str, Any]:
    values = {each.name: getattr(entry, each.name) for each in fields(Entry)}
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if name != "proof" or value
    }


def _dump(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def _packed(text: bytes) -> bytes:
    return gzip.compress(text, compresslevel=9, mtime=0)


def stale_files(before: Index, after: Index) -> list[str]:
    """List the paths of an index's files that its next version does not have; those of all files for `Index()`."""
    gone = superseded(before.tree, after.tree, before.read)
    return [file_path(prefix, reference) for prefix, reference in gone]


# --- reading -----------------------------------------------------------------------------------


def decode(content: bytes, *, known: bool = False) -> Index:
    """Read the root of an index that anyone may have written.

    Args:
        content: Bytes of the file.
        known: They were read and checked before.

    Raises:
        RemoteError: The file is not an index, has an unknown version, or lists a path outside `packages/`.
    """
    content_, signature = _found(content, known=known)
    if content_["prefix"] or "serial" not in content_:
        raise _malformed(
            f"its prefix is {content_['prefix']!r}, and a root has a serial and no prefix"
        )
    return Index(content_["serial"], _node(content_), tuple(content_.get("remotes", ())), signature)


def decode_file(content: bytes, prefix: str, reference: Reference, *, known: bool = False) -> Node:
    """Read a file that the root of an index, or a page, refers to.

    Args:
        content: Bytes of the file.
        prefix: Prefix that it has there.
        reference: Reference to it.
        known: The bytes were checked before.

    Raises:
        RemoteError: The file is another one, or is malformed.
    """
    path = file_path(prefix, reference)
    if (digest := hashlib.sha256(content).hexdigest()) != reference.sha256:
        raise _malformed(f"the SHA-256 of {path!r} is {digest}: it was changed or swapped")
    found, signature = _found(content, known=known)
    node = _node(found)
    if found["prefix"] != prefix or "serial" in found or signature is not None:
        raise _malformed(f"{path!r} is a file of the prefix {found['prefix']!r}, or another root")
    if node.packages != reference.packages:
        raise _malformed(f"{path!r} has {node.packages:,} packages, not {reference.packages:,}")
    models = {entry.model for entry in node.entries} if isinstance(node, Leaf) else ()
    if astray := [model for model in models if not bits_of(model).startswith(prefix)]:
        raise _malformed(f"{path!r} lists the model {astray[0]!r:.200}, which is of another file")
    return node


def decode_part(content: bytes, *, known: bool = False) -> Node:
    """Read any file of an index, wherever it is from."""
    return _node(_found(content, known=known)[0])


def _found(content: bytes, *, known: bool) -> tuple[dict[str, Any], bytes | None]:
    """Return the content of a file, checked against the schema, and the signature over it."""
    try:
        text, signature = parts(content)
        if not known and sum(map(text.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")  # noqa: TRY301
        document = json.loads(text) if known else parse(text)
    except (ValueError, zlib.error) as error:
        raise _malformed(str(error)) from error
    if document.get("schema") != SCHEMA_ID:
        raise RemoteError(
            f"The index has schema {document.get('schema')!r:.100}; expected {SCHEMA_ID!r}. Install a newer qeff-zoo, "
            "or have the index written by this one."
        )
    if not known and (problem := next(violations(_SCHEMA, document), None)):
        raise _malformed(f"{problem.json_path} {shortened(problem.message)}")
    return document, signature


def _node(content: dict[str, Any]) -> Node:
    prefix, listed = content["prefix"], sorted(content["files"])
    if not listed:
        entries = tuple(map(_entry, content["packages"]))
        if len({entry.path for entry in entries}) != len(entries):
            raise _malformed("it lists one path twice")
        notices = {path: Notice(**notice) for path, notice in content["notices"].items()}
        return Leaf(entries, MappingProxyType(notices))
    if content["packages"] or content["notices"]:
        raise _malformed("it lists files and packages; expected one of both")
    if astray := [
        each
        for each in listed
        if not each.startswith(prefix) or not 0 < len(each) - len(prefix) <= PAGE_BITS
    ]:
        raise _malformed(f"it lists the prefix {astray[0]!r} on the page of {prefix!r}")
    if double := [two for one, two in pairwise(listed) if two.startswith(one)]:
        raise _malformed(f"it lists the prefix {double[0]!r} twice")
    return Page({each: Reference(**content["files"][each]) for each in listed})


def _entry(package: dict[str, Any]) -> Entry:
    """Do what `Entry(**package)` does, at a sixth of its time: there may be thousands, of which few are looked at."""
    entry = object.__new__(Entry)
    vars(entry).update(package)
    return entry


def parts(content: bytes) -> tuple[bytes, bytes | None]:
    """Split a file of an index into its content and the signature over it; None for no signature.

    Args:
        content: Bytes of the file.

    Raises:
        ValueError: They are too many, or become too many.
        zlib.error: They are not gzipped.
    """
    text, signed, signature = _inflated(content).partition(b"\n")
    return text, signature if signed else None


def _inflated(content: bytes) -> bytes:
    """Undo gzip, within a bound that no compression can lead beyond."""
    if len(content) > INDEX_LIMIT:
        raise ValueError(f"it has more than {INDEX_LIMIT:,} bytes")
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    inflated = stream.decompress(content, _INFLATED_LIMIT + 1)
    if len(inflated) > _INFLATED_LIMIT:
        raise ValueError(f"it grows to more than {_INFLATED_LIMIT:,} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError("it is cut short, or something follows it")
    return inflated


def _malformed(why: str) -> RemoteError:
    return RemoteError(
        f"The index cannot be read: {why}. Expected what `qeff-zoo publish` writes. Publish to the remote again, or "
        "take another remote."
    )
