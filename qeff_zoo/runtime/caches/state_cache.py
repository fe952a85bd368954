# SPDX-License-Identifier: Apache-2.0
"""Cache of states by key within a memory budget; optionally also on disk, where states outlive a process.

A file is a magic number, the length of its JSON in 8 bytes, the JSON, the arrays, and a digest of all that, keyed
with a secret of the folder. The JSON records the package, precision and layout of the states, and the versions that
computed them: states with other terms are never used, nor those of other users, who cannot read the secret.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.memory import available_memory
from qeff_zoo.runtime.program import Array
from qeff_zoo.terminal.printing import human_size

States: TypeAlias = dict[str, Array]

_SPARE = 128 << 20  # bytes of memory left to other processes
_MARK, _LENGTH, _DIGEST = b"QZSTATE2", 8, 32
_SECRET, _SECRET_BYTES = "secret", 32
#: Permissions with which others may change the contents of a folder, or read a secret.
_CHANGES, _READS = 0o022, 0o077
_NAME = re.compile(r"[0-9a-f]{64}\.states")
_ABANDONED = 600.0  # seconds after which an incomplete file is removed
_LOG = logging.getLogger(__name__)


class StateFiles:
    """States in files of one folder, one file per key.

    Args:
        folder: The folder, created if absent; a subfolder is for states with these terms alone.
        terms: Terms of the states, as JSON values.

    Raises:
        GenerationError: If the folder cannot be created, or others may write to it.
    """

    def __init__(self, folder: Path, terms: Mapping[str, Any]) -> None:
        self._terms = json.loads(json.dumps(terms))
        text = json.dumps(self._terms, sort_keys=True).encode()
        self._folder = folder / hashlib.sha256(text).hexdigest()[:16]
        try:
            for path in (folder, self._folder):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
                _require_ours(path, _CHANGES)
            self._secret = _secret(folder / _SECRET)
            entries = list(self._folder.iterdir())
        except OSError as error:
            raise GenerationError(
                f"Cannot keep the prefix cache in {str(folder)!r}: {error.strerror}. Expected a folder that can be "
                "written. Change prefix_cache_dir."
            ) from error
        self._writes = True
        #: Keys and sizes of the files, least recently used first.
        self.entries = self._look(entries)

    def read(self, key: bytes) -> States | None:
        """Return the states of a key; None, with a warning, if the file is damaged or has other terms."""
        path = self._path(key)
        try:
            content = read_regular(path)
            states = self._unpacked(content, key)
        except FileNotFoundError:  # another process has removed it
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            _LOG.warning("%s is not used: %s. What it had is computed again.", path, error)
            self.remove(key)
            return None
        return states

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark files as used, the first key last, for the order of `entries` in later processes."""
        now = time.time_ns()
        # Distinct times: clocks of file systems are coarse.
        for age, key in enumerate(reversed(keys)):
            with suppress(OSError):
                os.utime(self._path(key), ns=(now + age, now + age))

    def write(self, key: bytes, states: States) -> bool:
        """Write a file atomically; return whether it exists."""
        if not self._writes:
            return False
        path = self._path(key)
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            # Without waiting for the disk: the digest detects damage by a power failure.
            scratch.touch(0o600, exist_ok=False)
            with scratch.open("wb") as file:
                file.writelines(self._packed(key, states))
            scratch.replace(path)
        except OSError as error:
            self._writes = False
            _LOG.warning("The prefix cache is no longer kept in %s: %s.", self._folder, error)
        finally:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
        return self._writes

    def remove(self, key: bytes) -> None:
        """Remove a file, if it is there."""
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.states"

    def _look(self, entries: Sequence[Path]) -> list[tuple[bytes, int]]:
        """Return the entries; remove files of killed processes, and report foreign files."""
        present = []
        for path in entries:
            with suppress(OSError):
                facts = path.stat()
                if _NAME.fullmatch(path.name):
                    present.append((facts.st_mtime_ns, bytes.fromhex(path.stem), facts.st_size))
                elif not path.name.startswith("."):
                    _LOG.warning("%s is not used: it is no file of a prefix cache.", path)
                elif time.time() - facts.st_mtime > _ABANDONED:
                    path.unlink()
        return [(key, size) for _, key, size in sorted(present)]

    def _packed(self, key: bytes, states: States) -> list[bytes]:
        shapes = {
            name: [str(state.dtype), list(state.shape)] for name, state in sorted(states.items())
        }
        head = json.dumps({"key": key.hex(), "terms": self._terms, "states": shapes}).encode()
        parts = [_MARK, len(head).to_bytes(_LENGTH, "big"), head]
        parts += [np.ascontiguousarray(states[name]).tobytes() for name in shapes]
        digest = hashlib.blake2b(digest_size=_DIGEST, key=self._secret)
        for part in parts:
            digest.update(part)
        return [*parts, digest.digest()]

    def _unpacked(self, content: bytes, key: bytes) -> States:
        whole, digest = content[:-_DIGEST], content[-_DIGEST:]
        expected = hashlib.blake2b(whole, digest_size=_DIGEST, key=self._secret).digest()
        if not secrets.compare_digest(expected, digest):
            raise ValueError("it is damaged, or another user wrote it")
        begin = len(_MARK) + _LENGTH
        at = begin + int.from_bytes(whole[len(_MARK) : begin], "big")
        head = json.loads(whole[begin:at])
        other = [name for name, term in self._terms.items() if head["terms"].get(name) != term]
        if not whole.startswith(_MARK) or other or head["key"] != key.hex():
            raise ValueError(f"it is of another {' and '.join(other) or 'stretch of tokens'}")
        states = {}
        for name, (dtype, shape) in head["states"].items():
            count = int(np.prod(shape))
            states[name] = np.frombuffer(whole, dtype, count, at).reshape(shape)
            at += states[name].nbytes
        return states


def _secret(path: Path) -> bytes:
    """Return the secret of a folder, created if absent; reject one that others may read or have written."""
    with suppress(FileExistsError):
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            scratch.touch(0o600, exist_ok=False)
            scratch.write_bytes(secrets.token_bytes(_SECRET_BYTES))
            os.link(scratch, path)  # atomic: the first of several processes creates it
        finally:
            scratch.unlink(missing_ok=True)
    _require_ours(path, _READS)
    secret = read_regular(path)
    if len(secret) != _SECRET_BYTES:
        raise GenerationError(
            f"{str(path)!r} has {len(secret)} bytes; expected the {_SECRET_BYTES} of a secret. Remove it; "
            "what was kept is computed again."
        )
    return secret


def _require_ours(path: Path, forbidden: int) -> None:
    """Reject a path that another user owns, or may write to or read: states reveal prompts and determine output."""
    facts = path.stat()
    if facts.st_uid != os.geteuid():
        state = f"it belongs to user {facts.st_uid}"
    elif facts.st_mode & forbidden:
        state = f"its mode is {facts.st_mode & 0o777:o}, so that others may change or read it"
    else:
        return
    raise GenerationError(
        f"Cannot keep the prefix cache in {str(path)!r}: {state}. Expected a folder of this user alone. Run `chmod -R "
        "go-rwx` on it if no other user has written there, or change prefix_cache_dir."
    )


@dataclass
class _Kept:
    """Entry of one key.

    Args:
        size: Size in bytes.
        states: States; None while they are only in a file.
        on_disk: Whether the states are in a file.
    """

    size: int
    states: States | None
    on_disk: bool


class KeptStates:
    """LRU cache of states by key, limited by the budget, and by memory if it gets scarce.

    Args:
        budget: Maximum size in bytes, including files that are not read yet.
        files: Second store of the states, on disk.
    """

    def __init__(self, budget: int, files: StateFiles | None = None) -> None:
        #: Bytes in use.
        self.used = 0
        self.budget, self._files = budget, files
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # least recently used first
        for key, size in files.entries if files else ():
            self._add(key, _Kept(size, None, on_disk=True))
        self._make_room()

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def get(self, key: bytes) -> States | None:
        """Return the states of a key; None without any."""
        kept = self._kept.get(key)
        if kept is not None and kept.states is None:
            assert self._files is not None
            kept.states = self._files.read(key)
            if kept.states is None:
                self._drop(key)
        return kept.states if kept else None

    def put(self, fresh: Mapping[bytes, States], used: Sequence[bytes]) -> None:
        """Add states, and drop others beyond the budget; states that exceed the budget alone are not added.

        Args:
            fresh: States by new key, which are not modified.
            used: Keys in use, as for `touch`.
        """
        sizes = {
            key: sum(state.nbytes for state in states.values()) for key, states in fresh.items()
        }
        for key, size in sizes.items():
            if size <= self.budget:
                on_disk = self._files is not None and self._files.write(key, fresh[key])
                self._add(key, _Kept(size, fresh[key], on_disk))
        if fresh:
            self.touch(used)
            self._make_room()

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark keys as used, the first one last: without it the others cannot be found."""
        held = [key for key in keys if key in self._kept]
        for key in reversed(held):
            self._kept.move_to_end(key)
        if self._files is not None:
            self._files.touch([key for key in held if self._kept[key].on_disk])

    def drop(self, key: bytes) -> None:
        """Drop an unusable entry, with a warning."""
        _LOG.warning("States of %s have another shape or type, and are computed again.", key.hex())
        self._drop(key)

    def _add(self, key: bytes, kept: _Kept) -> None:
        before = self._kept.pop(key, None)  # two requests may compute the same states
        self.used += kept.size - (before.size if before else 0)
        self._kept[key] = kept

    def _drop(self, key: bytes) -> None:
        kept = self._kept.pop(key)
        self.used -= kept.size
        if self._files is not None and kept.on_disk:
            self._files.remove(key)

    def _make_room(self) -> None:
        while self.used > self.budget:
            self._drop(next(iter(self._kept)))
        free = available_memory()
        short = 0 if free is None else _SPARE - free
        for key, kept in list(self._kept.items()) if short > 0 else ():
            if short > 0 and kept.states is not None:
                short -= kept.size
                if kept.on_disk:
                    kept.states = None
                else:
                    self._drop(key)


def check_budget(budget: int, beside: int) -> None:
    """Reject a budget that exceeds the memory.

    Args:
        budget: Requested size in bytes.
        beside: Bytes of the batch slots' states.

    Raises:
        GenerationError: If the budget is negative, or exceeds the memory.
    """
    if budget < 0:
        raise GenerationError(
            f"The prefix cache cannot take {budget!r} bytes; expected 0 for none, or more. Change prefix_cache_bytes."
        )
    free = available_memory()
    if budget and free is not None and budget > free - beside:
        raise GenerationError(
            f"The prefix cache cannot take {human_size(budget)}; expected at most {human_size(max(free - beside, 0))}, "
            f"which are free beside the {human_size(beside)} of the batch slots. Give prefix_cache_bytes a smaller "
            "number."
        )
