# SPDX-License-Identifier: Apache-2.0
"""Copies of weights move to huge pages where the system leaves the choice to processes, and nothing else does."""

import mmap
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qeff_zoo.targets.ort import huge_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has these settings")

SIZE = 2 << 20
NAME = "qeff-zoo huge pages"


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the system's setting: each process chooses."""
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    (tmp_path / "hpage_pmd_size").write_text(f"{SIZE}\n")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    return tmp_path / "enabled"


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Advice to the kernel: address, bytes, kind."""
    found: list[tuple[int, int, int]] = []

    def madvise(start: Any, length: Any, kind: int) -> int:
        found.append((start.value, length.value, kind))
        return int(kind == huge_pages._COLLAPSE)  # as by an older kernel

    monkeypatch.setattr(huge_pages, "ctypes", SimpleNamespace(**vars(huge_pages.ctypes)))
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda _: SimpleNamespace(madvise=madvise))
    return found


def allocated() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Map memory in a block; that of `malloc` may have been freed before, and is then not new."""
    with huge_pages.huge_pages():
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        array = np.frombuffer(mmap.mmap(-1, 16 * SIZE, flags=anonymous), np.uint8)
        array[:] = 7
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join()
    return array


def test_new_memory_is_moved(setting: Path, advised: list[tuple[int, int, int]]) -> None:
    before = np.full(16 * SIZE, 7, np.uint8)
    array = allocated()
    assert {kind for *_, kind in advised} == {huge_pages._COLLAPSE, mmap.MADV_HUGEPAGE}
    assert all(start % SIZE == length % SIZE == 0 for start, length, _ in advised)
    pages = {page for start, length, _ in advised for page in range(start, start + length, SIZE)}
    first = -(-array.ctypes.data // SIZE) * SIZE
    assert {*range(first, array.ctypes.data + array.nbytes - SIZE, SIZE)} <= pages
    end = before.ctypes.data + before.nbytes - SIZE
    assert not any(before.ctypes.data <= page < end for page in pages)


@pytest.mark.parametrize("value", ["[always] madvise never", "always madvise [never]", ""])
def test_the_systems_setting_counts(
    value: str, setting: Path, advised: list[tuple[int, int, int]]
) -> None:
    setting.write_text(value)
    allocated()
    assert not advised


def test_memory_keeps_its_content(setting: Path) -> None:
    """Whatever this kernel does with the advice."""
    assert (allocated() == 7).all()


@pytest.mark.parametrize(
    ("others", "parts"),
    [
        ([], [(10, 50)]),
        ([(0, 9), (50, 60)], [(10, 50)]),
        ([(0, 10), (20, 30)], [(10, 20), (30, 50)]),
        ([(0, 45)], []),
        ([(12, 20), (20, 49)], []),
        ([(10, 30)], [(30, 50)]),
    ],
)
def test_parts_of_regions(others: list[tuple[int, int]], parts: list[tuple[int, int]]) -> None:
    assert huge_pages._without((10, 50), others, 10) == parts
