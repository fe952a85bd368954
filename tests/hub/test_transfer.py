# SPDX-License-Identifier: Apache-2.0
"""Files of a source, which may give anything, onto the disk, where only the right bytes may end."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from checkout import HELPERS
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from local_hub import LocalHub
from static_server import served

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.pull import ranges
from qeff_zoo.hub.pull import transfer as transfers
from qeff_zoo.hub.pull.transfer import Transfer, Wanted
from qeff_zoo.hub.remotes import http, open_remote

CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE", 0.0)


def cut(message: str = "cut") -> RemoteError:
    return RemoteError(message, retryable=True)


@dataclass
class Script:
    """A source that follows a script: for each request, how many bytes it gives before it breaks, and of what.

    Args:
        cuts: Bytes until the connection breaks, a request each; -1 for not at all, as all requests are after the last.
        contents: What the file is, a request each; the last one stays.
        piece: Bytes at a time.
    """

    cuts: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=lambda: [CONTENT])
    piece: int = 700
    url: str = "script://"
    offsets: list[int] = field(default_factory=list)

    @contextmanager
    def stream(
        self, path: str, *, offset: int = 0, end: int | None = None
    ) -> Iterator[Iterator[bytes]]:
        self.offsets.append(offset)
        content = self.contents.pop(0) if len(self.contents) > 1 else self.contents[0]
        until = self.cuts.pop(0) if self.cuts else -1
        yield self._pieces(content[offset:end], until)

    def _pieces(self, content: bytes, until: int) -> Iterator[bytes]:
        kept = content if until < 0 else content[:until]
        for start in range(0, len(kept), self.piece):
            yield kept[start : start + self.piece]
        if until >= 0:
            raise cut()


def wanted(target: Path, content: bytes = CONTENT) -> Wanted:
    return Wanted(
        path=target.name,
        size=len(content),
        digest=hashlib.sha256(content).hexdigest(),
        place=lambda *_: nullcontext(target),
    )


def fetch(script: Script, target: Path) -> tuple[int, int]:
    """Fetch a file; give the bytes received, and the sum of all progress."""
    progress: list[int] = []
    transfer = Transfer(script, progress.append)
    transfer.fetch([wanted(target)])
    return transfer.received, sum(progress)


@settings(max_examples=example_count(200))
@given(
    cuts=st.lists(st.integers(0, len(CONTENT)), max_size=12),
    piece=st.integers(1, 3000),
    there=st.integers(0, len(CONTENT)),
)
def test_breaks_anywhere_are_taken_up_where_they_were(
    cuts: list[int], piece: int, there: int
) -> None:
    cuts = [count for number, count in enumerate(cuts) if count or number % 3]  # not six in a row
    script = Script(cuts, piece=piece)
    with TemporaryDirectory() as folder:
        target = Path(folder, "a")
        target.write_bytes(CONTENT[:there])
        received, progress = fetch(script, target)
        assert target.read_bytes() == CONTENT
    assert received == len(CONTENT) - there  # not one byte twice
    assert progress == len(CONTENT)
    assert script.offsets == sorted(script.offsets)
    assert script.offsets[:1] == ([there] if there < len(CONTENT) else [])


def test_transfer_stops_after_repeated_stalls(tmp_path: Path) -> None:
    script = Script([5000, *[0] * 50])
    with pytest.raises(RemoteError, match="cut"):
        fetch(script, tmp_path / "a")
    assert len(script.offsets) == 1 + http.ATTEMPTS - 1
    assert (tmp_path / "a").read_bytes() == CONTENT[:5000]  # kept for the next time
    assert fetch(Script(), tmp_path / "a") == (len(CONTENT) - 5000, len(CONTENT))


def test_permanent_failures_are_not_requested_again(tmp_path: Path) -> None:
    class Gone(Script):
        def _pieces(self, content: bytes, until: int) -> Iterator[bytes]:
            raise RemoteError("gone")
            yield b""

    script = Gone()
    with pytest.raises(RemoteError, match="gone"):
        fetch(script, tmp_path / "a")
    assert script.offsets == [0]


WRONG = {
    "of-the-same-size": CONTENT[:4000] + b"x" + CONTENT[4001:],
    "longer": CONTENT + b"x",
    "much-longer": CONTENT * 5,
    "shorter": CONTENT[:-1],
    "empty": b"",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_content_is_fetched_anew_once(tmp_path: Path, wrong: str) -> None:
    # What is short is asked for its rest, of which there is none, before it is given up.
    again = [WRONG[wrong]] * (2 if len(WRONG[wrong]) in range(1, len(CONTENT)) else 1)
    received, progress = fetch(Script(contents=[*again, CONTENT]), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert progress == len(CONTENT)
    assert received >= len(CONTENT)


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_content_is_refused_the_second_time(tmp_path: Path, wrong: str) -> None:
    script = Script(contents=[WRONG[wrong]], piece=1 << 20)
    with pytest.raises(RemoteError, match=r"'a' of 'script://' has .*expected 10,240 bytes"):
        fetch(script, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert len(script.offsets) <= 4


def test_no_more_is_taken_than_was_promised(tmp_path: Path) -> None:
    endless = Script(contents=[CONTENT * 100], piece=1000)
    with pytest.raises(RemoteError, match="more than 10,240 bytes"):
        fetch(endless, tmp_path / "a")

    transfer = Transfer(Script(contents=[CONTENT * 100, CONTENT], piece=1000), lambda _: None)
    transfer.fetch([wanted(tmp_path / "a")])
    assert transfer.received <= len(CONTENT) * 2 + 1000


def test_a_wrong_beginning_from_before_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0" * 5000)  # as a file system may leave it after a crash
    assert fetch(Script(), tmp_path / "a") == (2 * len(CONTENT) - 5000, len(CONTENT))
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_complete_files_are_not_requested(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    script = Script()
    assert fetch(script, tmp_path / "a") == (0, len(CONTENT))
    assert script.offsets == []


@pytest.mark.parametrize("size", [len(CONTENT), 5000, len(CONTENT) + 1])
def test_nothing_is_written_through_the_name_of_a_package(tmp_path: Path, size: int) -> None:
    """Whoever fetched it was killed once a package had it too; then something changed its size."""
    shared = tmp_path / "of a package"
    shared.write_bytes((CONTENT + b"x")[:size])
    shared.chmod(0o444)
    before = shared.stat()
    os.link(shared, tmp_path / "a")
    received, progress = fetch(Script(), tmp_path / "a")
    assert (received, progress) == (0 if size == len(CONTENT) else len(CONTENT), len(CONTENT))
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert (shared.stat().st_size, shared.stat().st_mtime_ns) == (size, before.st_mtime_ns)


def test_partial_download_of_another_user_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(CONTENT[:5000])
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert fetch(Script(), tmp_path / "a") == (len(CONTENT), len(CONTENT))


def test_an_empty_file_needs_no_request(tmp_path: Path) -> None:
    script = Script()
    Transfer(script, lambda _: None).fetch([wanted(tmp_path / "a", b"")])
    assert (tmp_path / "a").read_bytes() == b""
    assert script.offsets == []


def test_files_come_at_the_same_time_and_all_stop_when_one_cannot_be_had(tmp_path: Path) -> None:
    """The first waits for the second to begin, the second for the first to fail: in turn, neither would end."""
    begun, failed = threading.Event(), threading.Event()

    class EncDecCache(Script):
        @contextmanager
        def stream(
            self, path: str, *, offset: int = 0, end: int | None = None
        ) -> Iterator[Iterator[bytes]]:
            yield self._first() if path == "a" else self._second()

        def _first(self) -> Iterator[bytes]:
            begun.set()
            yield CONTENT[:10]
            assert failed.wait(60)
            while True:  # for ever, unless it is told to stop
                yield b"x"

        def _second(self) -> Iterator[bytes]:
            assert begun.wait(60)
            failed.set()
            raise RemoteError("gone")
            yield b""

    files = [wanted(tmp_path / "a", CONTENT * 1000), wanted(tmp_path / "b")]
    with pytest.raises(RemoteError, match="gone"):
        Transfer(EncDecCache(), lambda _: None).fetch(files)
    assert (tmp_path / "a").read_bytes().startswith(CONTENT[:10])


# --- in ranges -------------------------------------------------------------------------------------


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the content have eleven ranges, several at a time."""
    monkeypatch.setattr(ranges, "RANGE", 1000)
    monkeypatch.setattr(transfers, "_FAST_SECONDS", 0.0)


@settings(max_examples=example_count(100))
@given(
    cuts=st.lists(st.integers(1, len(CONTENT)), max_size=20),
    piece=st.integers(1, 3000),
    there=st.integers(0, len(CONTENT)),
)
def test_ranges_that_break_anywhere_are_taken_up_where_they_were(
    small_ranges: None, cuts: list[int], piece: int, there: int
) -> None:
    script = Script(list(cuts), piece=piece)
    with TemporaryDirectory() as folder:
        target = Path(folder, "a")
        target.write_bytes(CONTENT[:there])
        received, progress = fetch(script, target)
        assert target.read_bytes() == CONTENT
    assert received == len(CONTENT) - there  # not one byte twice
    assert progress == len(CONTENT)


def test_ranges_come_at_the_same_time_where_that_helps(
    small_ranges: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting, order = threading.Barrier(2, timeout=20), count()

    class Meeting(Script):
        def _pieces(self, content: bytes, until: int) -> Iterator[bytes]:
            is_early = next(order) < 2
            yield content[:1]
            if is_early:
                meeting.wait()
            yield content[1:]

    script = Meeting()
    assert fetch(script, tmp_path / "a") == (len(CONTENT), len(CONTENT))
    assert len(script.offsets) == 11
    script = Script()
    assert fetch(script, tmp_path / "a") == (0, len(CONTENT))  # and is what it would be otherwise
    assert script.offsets == []

    alone = threading.Lock()

    class Fast(Script):
        def _pieces(self, content: bytes, until: int) -> Iterator[bytes]:
            assert alone.acquire(blocking=False)
            yield content
            alone.release()

    monkeypatch.setattr(transfers, "_FAST_SECONDS", 60.0)
    assert fetch(Fast(), tmp_path / "b") == (len(CONTENT), len(CONTENT))


_KILLED = """
import os, signal, sys
from pathlib import Path

tests, helpers, folder, *limits = sys.argv[1:]
sys.path[:0] = tests, helpers
from test_transfer import Script, Transfer, ranges, transfers, wanted

ranges.RANGE, transfers._FAST_SECONDS = 1000, 0.0
for limit in map(int, limits):
    seen = [0]

    def die(amount):
        seen[0] += amount
        if seen[0] > limit:
            os.kill(os.getpid(), signal.SIGKILL)

    if not os.fork():
        Transfer(Script(piece=77), die).fetch([wanted(Path(folder, str(limit)))])
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL
"""


def test_a_process_killed_in_its_ranges_loses_nothing(small_ranges: None, tmp_path: Path) -> None:
    limits = [0, 1, 999, 1000, 5000, 9999, len(CONTENT) - 1]
    command = [
        sys.executable,
        "-c",
        _KILLED,
        str(Path(__file__).parent),
        str(HELPERS),
        str(tmp_path),
    ]
    subprocess.run([*command, *map(str, limits)], check=True, timeout=60)
    for limit in limits:
        target = tmp_path / str(limit)
        before = target.read_bytes()
        with ranges.Ranges(target, len(CONTENT)) as left:
            there = sum(left.counts)
            for number, count in enumerate(left.counts):
                start, _ = left.span(number)
                assert before[start : start + count] == CONTENT[start : start + count]
        assert there >= limit  # what was counted was there before
        assert fetch(Script(), target) == (len(CONTENT) - there, len(CONTENT))
        assert target.read_bytes() == CONTENT


def test_ranges_are_resumed_as_one_stream(
    small_ranges: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script([1500, 300, *[0] * 100], piece=100)
    with pytest.raises(RemoteError, match="cut"):
        fetch(script, tmp_path / "a")
    monkeypatch.setattr(ranges, "RANGE", 1 << 30)
    received, progress = fetch(Script(), tmp_path / "a")
    assert received < len(CONTENT)
    assert progress == len(CONTENT)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_source_without_ranges_gives_one_stream(small_ranges: None, tmp_path: Path) -> None:
    class Whole(Script):
        def _pieces(self, content: bytes, until: int) -> Iterator[bytes]:
            if len(content) <= 1000:
                raise http.RangesIgnored("all of it")
            yield from super()._pieces(content, until)

    script, progress = Whole(), list[int]()
    transfer = Transfer(script, progress.append)
    transfer.fetch([wanted(tmp_path / name) for name in "ab"])
    assert (transfer.received, sum(progress)) == (2 * len(CONTENT), 2 * len(CONTENT))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == CONTENT
    assert len(script.offsets) <= 2 + 2 * 11


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_ranges_are_fetched_anew_in_one_stream(
    small_ranges: None, tmp_path: Path, wrong: str
) -> None:
    class Wrong(Script):
        @contextmanager
        def stream(
            self, path: str, *, offset: int = 0, end: int | None = None
        ) -> Iterator[Iterator[bytes]]:
            self.offsets.append(offset)
            content = CONTENT if end is None else WRONG[wrong]
            yield self._pieces(content[offset:end], -1)

    script = Wrong()
    received, progress = fetch(script, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert progress == len(CONTENT)
    if wrong not in ("longer", "much-longer"):  # which no range shows
        assert received >= len(CONTENT)
        assert script.offsets[-1] == 0


NOTES = {
    "none": b"",
    "half": b"\1\0\0",
    "too-much": b"\xff" * 88,
    "zeros": bytes(88),
    "fewer": b"\0\4\0\0\0\0\0\0",
    "more": bytes(8000),
    "uneven": bytes(83),
}


@pytest.mark.parametrize("note", NOTES)
def test_a_note_that_is_damaged_costs_bytes_and_nothing_else(
    small_ranges: None, tmp_path: Path, note: str
) -> None:
    (tmp_path / "a").write_bytes((b"y" * len(CONTENT)).ljust(12_288, b"\0") + NOTES[note])
    received, progress = fetch(Script(), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert progress == len(CONTENT)
    assert len(CONTENT) <= received <= 2 * len(CONTENT)


def test_large_files_of_a_hub_come_in_ranges(
    small_ranges: None, hub: LocalHub, home: Path, tmp_path: Path
) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(Index()), "a": CONTENT})
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None
    hub.fault("GET", "zoo/resolve/.*/a", cut=100, times=3)
    transfer = Transfer(snapshot, lambda _: None)
    transfer.fetch([wanted(tmp_path / "a")])
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert transfer.received == len(CONTENT)
    sent = [request for request in hub.requests("/a") if request.status == 206]
    assert len(sent) == 11 + 3
    assert sum(request.sent for request in sent) == len(CONTENT)

    hub.fault("GET", "zoo/resolve/.*/a", whole=True, times=100)
    transfer = Transfer(snapshot, lambda _: None)
    transfer.fetch([replace(wanted(tmp_path / "b"), path="a")])
    assert transfer.received == len(CONTENT)
    assert (tmp_path / "b").read_bytes() == CONTENT


def test_large_files_of_a_plain_server_and_a_folder(
    small_ranges: None, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "a").write_bytes(CONTENT)
    (tmp_path / "zoo" / INDEX_NAME).write_bytes(encode(Index()))
    with served(tmp_path / "zoo") as (url, _):
        for number, place in enumerate((url, (tmp_path / "zoo").as_uri())):
            snapshot = open_remote(place).snapshot()
            assert snapshot is not None
            transfer = Transfer(snapshot, lambda _: None)
            file = replace(wanted(tmp_path / f"{number}"), path="a")
            transfer.fetch([file])
            assert (tmp_path / f"{number}").read_bytes() == CONTENT
            assert transfer.received == len(CONTENT)
