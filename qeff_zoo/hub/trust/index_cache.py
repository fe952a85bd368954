# SPDX-License-Identifier: Apache-2.0
"""Cache of the last index of each remote: it saves transfers, and an older index is refused.

Below `remotes/` in the store, each remote has a file with the root of its index, a line of JSON before the bytes of the
root, and a folder with the other files of the index that were read. The root has their digests, so each file is fetched
and checked once. `newest` is the entry point with a connection, `offline_index` without one.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import RemoteError, TrustError
from qeff_zoo.hub import trust
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.index_files import INDEX_LIMIT, KEPT, decode, decode_file, decode_part, file_path
from qeff_zoo.hub.index_tree import MOST_BITS, Leaf, Node, Reference, bits_of
from qeff_zoo.hub.trust.policy import OFF, policy
from qeff_zoo.hub.urls import canonical, unpinned
from qeff_zoo.store import default_root


class IndexSource(Protocol):
    """Source of the files of an index: the part of a remote's `Snapshot` that the cache uses."""

    @property
    def index(self) -> Index: ...

    def read(self, path: str, *, limit: int) -> bytes: ...


@dataclass(frozen=True)
class FetchedIndex:
    """Root of an index, as a remote returned it.

    Args:
        content: Bytes of the root.
        index: Content of the root; the files that it refers to are not read.
        etag: The remote's ETag of the bytes; empty without one.
        commit: Commit of a Hub repository, 40 hex digits; empty without one.
    """

    content: bytes
    index: Index
    etag: str = ""
    commit: str = ""


def recall(url: str) -> FetchedIndex | None:
    """Return the last index of a remote; None if the cache has no complete one."""
    try:
        head, _, content = read_regular(_file(url)).partition(b"\n")
        facts = json.loads(head)
        if (
            facts["url"] == canonical(url)
            and facts["sha256"] == hashlib.sha256(content).hexdigest()
        ):
            index = _cached(url, decode(content, known=True), partial(_uncached, url))
            return FetchedIndex(content, index, str(facts["etag"]), str(facts["commit"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, RemoteError):
        return None  # absent, of an older version, or damaged: it is fetched again
    return None


def reading(url: str, snapshot: IndexSource, *, offline: bool = False) -> Index:
    """Return the index of a snapshot, which reads its files from the cache or else from there, and remembers them.

    Args:
        url: URL of the remote.
        snapshot: The remote, with the root of its index.
        offline: Whether only the cache is read.
    """
    fetch = partial(_uncached, url) if offline else partial(snapshot.read, limit=INDEX_LIMIT)
    return _cached(url, snapshot.index, fetch)


def _cached(url: str, index: Index, fetch: Callable[[str], bytes]) -> Index:

    @lru_cache(maxsize=KEPT)
    def read(prefix: str, reference: Reference) -> Node:
        kept = _files(url) / prefix
        with suppress(OSError):
            content = read_regular(kept)
            if hashlib.sha256(content).hexdigest() == reference.sha256:
                return decode_file(content, prefix, reference, known=True)
        content = fetch(file_path(prefix, reference))
        node = decode_file(content, prefix, reference)
        with suppress(OSError):  # it need not outlive a crash: its digest is compared
            kept.parent.mkdir(parents=True, exist_ok=True)
            scratch = kept.with_name(f".{prefix}.{secrets.token_hex(8)}")
            scratch.write_bytes(content)
            scratch.replace(kept)
        return node

    return replace(index, read=read)


def _uncached(url: str, path: str) -> bytes:
    raise RemoteError(
        f"{url!r} cannot be asked offline, and {path!r} of its index was not seen before. Expected a model that was "
        "asked for once. Run the command once with a connection."
    )


def last_notices(url: str, model: str) -> Mapping[str, Notice] | None:
    """Return the cached notices about a model's packages, by path, without a request; None without a cached index.

    If the newest root refers to a file that was not read since it changed, the former content of the file counts.

    Args:
        url: URL of the remote.
        model: Model id.
    """
    if (cached := recall(url)) is None:
        return None
    with suppress(RemoteError):
        return cached.index.leaf_of(model).notices
    prefixes = (bits_of(model)[:end] for end in range(1, MOST_BITS + 1))
    files = [file for prefix in prefixes if (file := _files(url) / prefix).is_file()]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        with suppress(OSError, RemoteError):
            node = decode_part(read_regular(file), known=True)
            if isinstance(node, Leaf):
                return node.notices
    return {}


def _files(url: str) -> Path:
    return _file(url).with_suffix(".files")


def accept(url: str, fetched: FetchedIndex) -> FetchedIndex:
    """Accept an index as the current one of a remote, and cache it.

    Args:
        url: URL of the remote.
        fetched: Index that the remote returned.

    Raises:
        TrustError: The index is older than the cached one.
    """
    before = recall(url)  # again, since another process may have cached a newer one
    refuse_older(url, fetched, before)
    if fetched != before:
        _write(url, fetched)
    return fetched


def refuse_older(url: str, fetched: FetchedIndex, before: FetchedIndex | None) -> None:
    """Refuse an index that is older than the cached one, or that cannot follow it.

    Args:
        url: URL of the remote.
        fetched: Index that the remote returned.
        before: Result of `recall`.

    Raises:
        TrustError: The index is older, has the same serial and other content, lost its signature, or has another
            signer.
    """
    if before is None:
        return
    index, known = fetched.index, before.index
    if index.serial < known.serial:
        why = f"one of {known.serial} was seen before: it was rolled back, which would hide what became known since"
    elif index.serial == known.serial and index != known:
        why = "another one of the same serial was seen before: clients get different ones"
    elif _has_weaker_proof(url, fetched, before):
        why = "is not signed as the one that was seen before is: another author wrote it"
    else:
        return
    raise TrustError(
        f"The index of {url!r} has serial {index.serial}, and {why}. Expected {known.serial} or more, from the same "
        f"hands. Ask who keeps the remote; if it was begun anew on purpose, remove {str(_file(url))!r}."
    )


def _has_weaker_proof(url: str, fetched: FetchedIndex, before: FetchedIndex) -> bool:
    """Whether an index has a weaker proof of origin than the cached one."""
    if before.index.signature is None or policy(url).mode == OFF:
        return False
    ranks = [trust.vouches(url, each.content, each.index) for each in (fetched, before)]
    return ranks[0] < ranks[1]


def _write(url: str, fetched: FetchedIndex) -> None:
    digest = hashlib.sha256(fetched.content).hexdigest()
    head = json.dumps(
        {"url": canonical(url), "etag": fetched.etag, "commit": fetched.commit, "sha256": digest}
    )
    with suppress(OSError):  # a store that cannot be written only forgets
        file = _file(url)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, head.encode() + b"\n" + fetched.content)


def _file(url: str) -> Path:
    # The same repository of another Hub is another one.
    url = canonical(url)
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") if url.startswith("hf://") else ""
    name = hashlib.sha256(f"{endpoint} {url}".encode()).hexdigest()[:32]
    return default_root() / "remotes" / name


def offline_index(url: str) -> FetchedIndex:
    """Return the cached index of a remote while offline.

    Raises:
        RemoteError: The cache has no index of this remote.
    """
    if fetched := recall(url):
        return _checked(url, fetched)
    raise RemoteError(
        f"{url!r} cannot be asked offline, and its index was not seen before. Expected a remote that was asked once. "
        "Run the command once with a connection."
    )


def newest(
    url: str, fetch: Callable[[FetchedIndex | None], FetchedIndex | None]
) -> FetchedIndex | None:
    """Fetch the index of a remote, given the cached one.

    Args:
        url: URL of the remote.
        fetch: Function from the last known index to the current one; returns None without an index.

    Raises:
        TrustError: The remote's index is older than the cached one.
    """
    before = recall(url)
    fetched = fetch(before)
    if fetched is None:
        return None
    fetched = _checked(url, fetched)
    return accept(url, fetched) if fetched != before else fetched


def _checked(url: str, fetched: FetchedIndex) -> FetchedIndex:
    return replace(fetched, index=trust.check_index(url, fetched.content, fetched.index))


def is_first_pull(url: str) -> bool:
    """Whether this is the first pull from a remote; True at most once per remote.

    Args:
        url: URL of the remote.
    """
    note = _file(unpinned(url)).with_suffix(".pulled")
    if note.exists():
        return False
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    return True
