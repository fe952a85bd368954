# SPDX-License-Identifier: Apache-2.0
"""Which process made a thing, whether it still runs, and which files processes use.

In: process ids and folders. Out: answers that err towards "still in use".
"""

import os
import platform
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Owner:
    """Identity of a process among all that ever ran.

    Args:
        host: Name of the machine.
        boot: Which start of the machine.
        space: Which process-id space (container) of the machine.
        pid: The process.
        started: When it started, in the system's ticks, since ids are used again.
    """

    host: str
    boot: str
    space: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> "Owner":
        """Describe this process."""
        boot = space = ""
        with suppress(OSError):
            boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            space = os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115 -- no path: "pid:[4026531836]"
        pid = os.getpid()
        return cls(platform.node(), boot, space, pid, _started(pid))

    def lives(self) -> bool | None:
        """Whether the process still runs; None if that cannot be found out from here."""
        here = Owner.current()
        if (self.host, self.boot, self.space) != (here.host, here.boot, here.space):
            return None
        if started := _started(self.pid):
            return started == self.started
        if os.name != "posix":
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return None  # there, but hidden from us
        return not here.started  # with a /proc to look into, what is left is a zombie


def _started(pid: int) -> str:
    """Return a process's start time, or nothing if it is gone, hidden, or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def used_paths(folder: Path) -> set[str]:
    """List the files below a folder that a process has mapped or open, as far as Linux shows them.

    Args:
        folder: Folder to search; always empty on systems other than Linux. Those of other users' processes are not
            shown: see `is_held`.
    """
    prefix = f"{folder.resolve()}/"
    used: set[str] = set()
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            maps = (process / "maps").read_text(encoding="utf-8", errors="surrogateescape")
            used.update(line[line.index("/") :] for line in maps.splitlines() if prefix in line)
        with suppress(OSError):
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    used.add(os.readlink(link))  # noqa: PTH115 -- may be no path: "socket:[1]"
    return {path for path in used if path.startswith(prefix)}


def hold(path: Path, user: object) -> None:
    """Show to processes of all users that a file is in use, as long as an object lives; see `is_held`.

    Args:
        path: File that this user can read.
        user: Object that uses it.
    """
    with suppress(ImportError, OSError):  # no locks on this system, or on this file system
        import fcntl

        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(user, os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_SH)


def is_held(path: Path) -> bool:
    """Return whether an object of a process of any user holds a file."""
    with suppress(ImportError, OSError):
        import fcntl

        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False
