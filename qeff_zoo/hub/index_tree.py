# SPDX-License-Identifier: Apache-2.0
"""Tree of an index: which file lists the packages of a model, so that one model is found without reading the others.

In: packages, and the bits of the SHA-256 of their models' ids. Out: leaves with at most 256 packages, and pages that
refer to them. Nothing here touches the network or the disk; `Read` reads a file that a page refers to.

A leaf with more packages than that is divided by the next bit of its models' digests, unless all are of one model. A
page lists what its prefix was divided into, eight bits deep; what has to be divided further is a page of its own. So
the same packages always make the same tree, and a change of one package changes one leaf, and the pages above it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from qeff_zoo.hub.entries import Entry, Notice

#: The most packages of a leaf with several models; about 25 KB.
LEAF_PACKAGES = 256
#: Bits of a prefix by which one page divides its packages, and of the longest prefix.
PAGE_BITS, MOST_BITS = 8, 64


@dataclass(frozen=True)
class Reference:
    """A file of the index, as the page above it refers to it.

    Args:
        sha256: SHA-256 of its bytes, 64 hex digits.
        packages: Number of packages in it, or below it.
    """

    sha256: str
    packages: int


@dataclass(frozen=True)
class Leaf:
    """Packages of the models whose digests begin with one prefix.

    Args:
        entries: One for each package, in the order of their publication.
        notices: Notices by the path of their package.
    """

    entries: tuple[Entry, ...] = ()
    notices: Mapping[str, Notice] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def packages(self) -> int:
        """Number of packages."""
        return len(self.entries)

    def under(self, prefix: str) -> "Leaf":
        """Return the part whose models' digests begin with a prefix."""
        entries = tuple(entry for entry in self.entries if bits_of(entry.model).startswith(prefix))
        paths = {entry.path for entry in entries}
        notices = {path: notice for path, notice in self.notices.items() if path in paths}
        return Leaf(entries, MappingProxyType(notices))


@dataclass(frozen=True)
class Page:
    """What a prefix is divided into.

    Args:
        parts: Leaf or page by its prefix, or the reference to its file. No prefix begins with another one.
    """

    parts: "Mapping[str, Node | Reference]"

    @property
    def packages(self) -> int:
        """Number of packages below it."""
        return sum(part.packages for part in self.parts.values())

    def prefix_of(self, bits: str) -> str | None:
        """Return the prefix that covers a digest; None if no package is there."""
        return next((p for end in range(1, MOST_BITS + 1) if (p := bits[:end]) in self.parts), None)

    def free_prefix(self, bits: str) -> str:
        """Return the shortest prefix of a digest that is divided no further here."""
        beginnings = {prefix[:end] for prefix in self.parts for end in range(len(prefix))}
        return next(p for end in range(1, MOST_BITS + 1) if (p := bits[:end]) not in beginnings)


Node: TypeAlias = Leaf | Page
#: From a prefix and a reference to the content of the file, checked.
Read: TypeAlias = Callable[[str, Reference], Node]


@lru_cache(maxsize=4096)
def bits_of(model: str) -> str:
    """Return the first bits of a model's digest, which place it in the tree.

    Args:
        model: Model id.
    """
    digest = hashlib.sha256(model.encode(errors="surrogatepass")).digest()[: MOST_BITS // 8]
    return f"{int.from_bytes(digest, 'big'):0{MOST_BITS}b}"


def leaf_of(node: Node, model: str, read: Read) -> Leaf:
    """Find the leaf that lists a model's packages; an empty one if there are none.

    Args:
        node: Root of the tree.
        model: Model id.
        read: Reads the files on the way: one for each page, and the leaf.
    """
    bits = bits_of(model)
    while isinstance(node, Page):
        prefix = node.prefix_of(bits)
        if prefix is None:
            return Leaf()
        node = _loaded(prefix, node.parts[prefix], read)
    return node


def leaves(node: Node, read: Read) -> Iterator[Leaf]:
    """List all leaves; of those that are files, one is in memory at a time."""
    if isinstance(node, Leaf):
        yield node
        return
    for prefix in sorted(node.parts):
        yield from leaves(_loaded(prefix, node.parts[prefix], read), read)


def with_leaf(node: Node, model: str, change: Callable[[Leaf], Leaf], read: Read) -> Node:
    """Change the leaf of a model; return the same tree if the leaf is unchanged.

    Args:
        node: Root of the tree.
        model: Model id.
        change: Function from a leaf to the new one, with all other models unchanged; the same leaf for no change.
        read: Reads the files on the way.
    """
    if isinstance(node, Page):
        return _with_part(node, 0, bits_of(model), change, read)
    leaf = change(node)
    return node if leaf is node else divided(leaf)


def _with_part(
    page: Page, start: int, bits: str, change: Callable[[Leaf], Leaf], read: Read
) -> Page:
    prefix = page.prefix_of(bits) or page.free_prefix(bits)
    node = _loaded(prefix, page.parts.get(prefix, Leaf()), read)
    if isinstance(node, Page):
        changed: Node = _with_part(node, len(prefix), bits, change, read)
        parts = {prefix: changed}
    else:
        changed = change(node)
        parts = _parts(prefix, changed, start + PAGE_BITS)
    if changed is node:
        return page
    others = {each: part for each, part in page.parts.items() if each != prefix}
    return Page({**others, **parts})


def divided(leaf: Leaf, prefix: str = "") -> Node:
    """Divide packages until each leaf is small enough.

    Args:
        leaf: Packages of any number.
        prefix: Beginning of all their models' digests; a multiple of eight bits.
    """
    return Page(_halves(prefix, leaf, len(prefix) + PAGE_BITS)) if _is_large(leaf) else leaf


def _parts(prefix: str, leaf: Leaf, end: int) -> dict[str, Node]:
    """Divide the packages of a prefix, on a page that is divided up to `end` bits."""
    if not leaf.entries:
        return {}
    if not _is_large(leaf) or len(prefix) == MOST_BITS:
        return {prefix: leaf}
    return {prefix: divided(leaf, prefix)} if len(prefix) == end else _halves(prefix, leaf, end)


def _halves(prefix: str, leaf: Leaf, end: int) -> dict[str, Node]:
    halves = (prefix + bit for bit in "01")
    return {
        each: node for half in halves for each, node in _parts(half, leaf.under(half), end).items()
    }


def _is_large(leaf: Leaf) -> bool:
    return len(leaf.entries) > LEAF_PACKAGES and len({entry.model for entry in leaf.entries}) > 1


def superseded(before: Node, after: Node, read: Read) -> Iterator[tuple[str, Reference]]:
    """List the files of a tree that another one does not have, each with its prefix.

    Args:
        before: Root of the tree.
        after: Root of the other; `Leaf()` for all files.
        read: Reads the pages of the tree.
    """
    there = after.parts if isinstance(after, Page) else {}
    for prefix, part in before.parts.items() if isinstance(before, Page) else ():
        other = there.get(prefix, Leaf())
        if isinstance(part, Reference) and part != other:
            yield prefix, part
            other = Leaf() if isinstance(other, Reference) else other
            yield from superseded(read(prefix, part), other, read)


def _loaded(prefix: str, part: Node | Reference, read: Read) -> Node:
    return read(prefix, part) if isinstance(part, Reference) else part
