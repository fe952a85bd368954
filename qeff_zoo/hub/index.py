# SPDX-License-Identifier: Apache-2.0
"""Index of a remote: the list of its packages, and the notices published about them since.

In: entries and notices. Out: an `Index`, which reads only the files that are needed: those of a model, or all.
This module uses neither network nor disk; `qeff_zoo.hub.index_files` defines the form of the files.
Packages are never changed. A later finding about a package is a notice in the index.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index_tree import Leaf, Node, Read, Reference, leaf_of, leaves, with_leaf

#: The root of an index; where there are more than a few packages, it refers to other files.
INDEX_NAME = "index.json.gz"
#: A serial that no number of changes leads to; as in the schema.
SERIAL_LIMIT = 10**30

#: From the text of an index's root to its signature.
Sign: TypeAlias = Callable[[bytes], bytes]


def _unread(prefix: str, _: Reference) -> Node:
    raise ValueError(f"The index has a file of the prefix {prefix!r}, and nothing reads it here.")


@dataclass(frozen=True)
class Index:
    """All packages of a remote.

    Args:
        serial: Raised by every change, so that an older index is known for one.
        tree: Packages and notices; where they are many, references to the files that have them.
        remotes: Canonical URLs of the remotes whose index it is; a signed one names them, so that no other remote's
            takes its place. Older versions wrote none.
        signature: Over the root as it was read, which has the digest of every other file; a changed one has none.
        warnings: Issues that the trust policy lets pass, a sentence each.
        read: Reads the files that the tree refers to.
    """

    serial: int = 0
    tree: Node = field(default_factory=Leaf)
    remotes: tuple[str, ...] = ()
    signature: bytes | None = field(default=None, compare=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    read: Read = field(default=_unread, compare=False, repr=False)

    def of_model(self, model_id: str) -> tuple[Entry, ...]:
        """List the packages of one model. At most its leaf is read, and the pages on the way.

        Raises:
            RemoteError: A file of the index cannot be read, or differs from its reference.
        """
        leaf = self.leaf_of(model_id)
        return tuple(entry for entry in leaf.entries if entry.model == model_id)

    def leaf_of(self, model_id: str) -> Leaf:
        """Return the packages of one model and of some others, with the notices about them."""
        return leaf_of(self.tree, model_id, self.read)

    def leaves(self) -> Iterator[Leaf]:
        """List all packages with their notices, leaf by leaf, with one of them in memory at a time."""
        return leaves(self.tree, self.read)

    @property
    def packages(self) -> int:
        """Number of packages; nothing is read for it."""
        return self.tree.packages

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All packages, from every file of the index; of one leaf in the order of their publication."""
        return tuple(entry for leaf in self.leaves() for entry in leaf.entries)

    @property
    def notices(self) -> Mapping[str, Notice]:
        """All notices, from every file of the index, by a package's path."""
        return {path: notice for leaf in self.leaves() for path, notice in leaf.notices.items()}

    @property
    def models(self) -> tuple[str, ...]:
        """The model ids that there are packages of, from every file of the index, sorted."""
        return tuple(sorted(self.each_model()))

    def each_model(self) -> Iterator[str]:
        """List the models, each once; no more files are read than that needs."""
        for leaf in self.leaves():
            yield from {entry.model: None for entry in leaf.entries}

    def find(self, is_meant: Callable[[Entry], bool], model: str | None = None) -> list[Entry]:
        """List the packages that fulfil a condition.

        Args:
            is_meant: Condition.
            model: Model of the packages; None to search every file of the index.
        """
        searched = self.leaves() if model is None else [Leaf(self.of_model(model))]
        return [entry for leaf in searched for entry in leaf.entries if is_meant(entry)]

    def with_entry(self, entry: Entry) -> "Index":
        """Add a package or replace its entry; return the same index if the entry is unchanged."""

        def change(leaf: Leaf) -> Leaf:
            if entry in leaf.entries:
                return leaf
            others = (other for other in leaf.entries if other.path != entry.path)
            return replace(leaf, entries=(*others, entry))

        return self._changed(entry.model, change)

    def with_notice(self, path: str, notice: Notice | None, model: str | None = None) -> "Index":
        """Set the notice about a package, or clear it with None; return the same index if it is unchanged.

        Args:
            path: Path of a package in the index.
            notice: Notice to publish.
            model: Model of the package; None to search every file of the index for it.

        Raises:
            ValueError: There is no such package here, or the notice names one that is not here.
        """
        entry = self._at(path, model)
        if notice and notice.instead is not None and not self.has(notice.instead, entry.model):
            raise _not_here(notice.instead)

        def change(leaf: Leaf) -> Leaf:
            others = {key: value for key, value in leaf.notices.items() if key != path}
            notices = {**others, path: notice} if notice else others
            return leaf if notices == leaf.notices else replace(leaf, notices=notices)

        return self._changed(entry.model, change)

    def has(self, path: str, model: str) -> bool:
        """Whether a package is in the index.

        Args:
            path: Path of the package.
            model: Model whose packages are searched first.
        """
        searched = (
            self.of_model(model),
            (entry for leaf in self.leaves() for entry in leaf.entries),
        )
        return any(entry.path == path for entries in searched for entry in entries)

    def _at(self, path: str, model: str | None) -> Entry:
        match = self.find(lambda entry: entry.path == path, model)
        if not match:
            raise _not_here(path)
        return match[0]

    def _changed(self, model: str, change: Callable[[Leaf], Leaf]) -> "Index":
        tree = with_leaf(self.tree, model, change, self.read)
        if tree is self.tree:
            return self
        return replace(self, serial=self.serial + 1, tree=tree, signature=None)


def _not_here(path: str) -> ValueError:
    return ValueError(f"{path!r} is not a package of the index.")
