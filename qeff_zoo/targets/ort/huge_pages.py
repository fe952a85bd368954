# SPDX-License-Identifier: Apache-2.0
"""Huge pages for ONNX Runtime's copies of weights, which every token reads: fewer translations of addresses.

Most distributions of Linux leave the choice to each process (`madvise`), and ONNX Runtime makes none. Decoding of 1.2 B
parameters in int4 takes 0.7 to 0.8 times as long with them, on an AMD EPYC.
"""

import ctypes
import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from qeff_zoo.runtime.engine.priority import lower_priority

_Regions: TypeAlias = Sequence[tuple[int, int]]  # start and end

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_MAPS = Path("/proc/self/maps")
_COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1: now. MADV_HUGEPAGE leaves it to a thread of the kernel, for minutes
_AT_ONCE = 8  # huge pages of a call


@contextmanager
def huge_pages() -> Iterator[None]:
    """Move memory that is allocated in the block to huge pages, if the system leaves the choice to processes.

    A thread of low priority copies it after the block: it takes up to 4 ms for each MB, and programs can run meanwhile.
    """
    size = _size()
    before = _regions(size)
    yield
    if new := [part for region in _regions(size) for part in _without(region, before, size)]:
        name = "qeff-zoo huge pages"
        threading.Thread(target=_collapse, args=(new, size), name=name, daemon=True).start()


def _collapse(regions: _Regions, size: int) -> None:
    """Move regions to huge pages of a size; those that have been released in the meantime are skipped."""
    lower_priority()
    advise = ctypes.CDLL(None).madvise
    for start, stop in regions:
        first, last, step = -(-start // size) * size, stop // size * size, _AT_ONCE * size
        for address in range(first, last, step):
            part = ctypes.c_void_p(address), ctypes.c_size_t(min(step, last - address))
            if advise(*part, _COLLAPSE):
                advise(*part, mmap.MADV_HUGEPAGE)


def _without(region: tuple[int, int], others: _Regions, least: int) -> _Regions:
    """Return the parts of a region that are in no other one and have at least some bytes; all regions ascend."""
    start, stop = region
    parts = []
    for first, last in others:
        if first < stop and start < last:
            parts.append((start, first))
            start = last
    return [part for part in (*parts, (start, stop)) if part[1] - part[0] >= least]


def _size() -> int:
    """Return the bytes of a huge page; 0 unless the system leaves the choice to processes."""
    with suppress(OSError, ValueError):
        if "[madvise]" in (_SETTINGS / "enabled").read_text(encoding="ascii"):
            return int((_SETTINGS / "hpage_pmd_size").read_text(encoding="ascii"))
    return 0


def _regions(size: int) -> _Regions:
    """Return regions of private memory, not of a file, that may have a huge page of a size; none for size 0."""
    regions = []
    for line in _MAPS.read_text(errors="replace").splitlines() if size else ():
        addresses, rights, _, _, inode, *path = line.split(maxsplit=5)
        start, stop = (int(one, 16) for one in addresses.split("-"))
        if rights == "rw-p" and inode == "0" and path in ([], ["[heap]"]) and stop - start >= size:
            regions.append((start, stop))
    return regions
