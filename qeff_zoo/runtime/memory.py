# SPDX-License-Identifier: Apache-2.0
"""How much memory a process may still take, so that too large a cache is refused and the process not killed."""

from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return bytes that can be allocated without swapping, also by a container's limit.

    Returns:
        None where the system does not tell (other systems than Linux).
    """
    bounds: list[int] = []
    with suppress(OSError):
        lines = dict(line.split(":") for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        bounds.append(int(lines["MemAvailable"].split()[0]) << 10)
    with suppress(OSError, ValueError):  # "max" for no limit
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_GROUP / "memory.current").read_text(encoding="ascii"))
        bounds.append(limit - used + _reclaimable())
    return min(bounds, default=None)


def _reclaimable() -> int:
    """Return the group's bytes that only mirror files."""
    lines = (_GROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    counted = dict(line.split() for line in lines)
    return int(counted.get("inactive_file", 0)) + int(counted.get("active_file", 0))
