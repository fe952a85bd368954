# SPDX-License-Identifier: Apache-2.0
import errno
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import selection
from checkout import HELPERS
from package_builder import FILES, SPEC, draft, fill, overwrite

from qeff_zoo.disk import digests, staging
from qeff_zoo.disk.processes import Owner
from qeff_zoo.errors import PackageError, StoreError
from qeff_zoo.package import Package
from qeff_zoo.package.identity import build_key
from qeff_zoo.store import Store, default_root, housekeeping
from qeff_zoo.store.copies import copy_out
from qeff_zoo.store.origins import BUILT_HERE, Origin

KEY = build_key(SPEC)
GRAPH = "graph-" + "5" * 64
UNVALIDATED: dict[str, Any] = {"validated": "none", "validation": []}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def build(store: Store, **changes: Any) -> Package:
    with store.stage("build") as folder:
        package = fill(folder, **changes)
        return store.promote(folder, package.build_key)


def build_graph(store: Store, content: bytes = b"graph") -> Path:
    with store.stage("graph") as folder:
        (folder / "model.onnx").write_bytes(content)
        return store.promote_graph(folder, GRAPH)


def states(store: Store) -> dict[str, str]:
    return {f"{entry.kind}": entry.state for entry in store.entries()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def left_in_staging(store: Store) -> list[str]:
    folder = store.root / "staging"
    return names(folder) if folder.exists() else []


# --- where the store is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"QEFF_HOME": "/x/home", "XDG_CACHE_HOME": "/x/cache"}, "/x/home"),
        ({"QEFF_HOME": "~/zoo"}, "/home/me/zoo"),
        ({"QEFF_HOME": "", "XDG_CACHE_HOME": "/x/cache"}, "/x/cache/qeff_cache"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/qeff_cache"),
        ({}, "/home/me/.cache/qeff_cache"),
    ],
)
def test_root_is_read_when_used(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("QEFF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_root() == Path(expected)
    assert Store().root == Path(expected)


def test_looking_makes_nothing(store: Store) -> None:
    assert store.lookup(KEY) is None
    assert store.graph(GRAPH) is None
    assert store.entries() == []
    assert store.gc(older_than=timedelta(0)) == []
    assert store.verify() == {}
    assert not store.root.exists()


@pytest.mark.parametrize("key", ["", "../x", "a/b", "..", ".hidden-file", "QZ1-" + "0" * 64])
def test_keys_are_names(store: Store, key: str) -> None:
    for method in (store.lookup, store.graph):
        with pytest.raises(ValueError, match="not a folder name"):
            method(key)


# --- stage and promote ---------------------------------------------------------------------------


def test_promoted_packages_are_found(store: Store) -> None:
    package = build(store)
    assert package.path == store.root / "packages" / KEY
    assert package == store.lookup(KEY)
    assert package.verify() == []
    assert left_in_staging(store) == []


def test_folders_have_the_user_s_usual_rights(store: Store) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert build(store).path.stat().st_mode & 0o777 == 0o777 & ~umask


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_staging_folder_is_removed_without_promotion(
    store: Store, error: type[BaseException]
) -> None:
    with pytest.raises(error), store.stage("build") as folder:
        raise error(fill(folder))
    assert store.lookup(KEY) is None
    assert left_in_staging(store) == []


def test_incomplete_packages_are_not_promoted(store: Store) -> None:
    with store.stage("build") as folder:
        fill(folder)
        (folder / "model.onnx").unlink()
        with pytest.raises(PackageError, match=r"model\.onnx"):
            store.promote(folder, KEY)
    assert store.lookup(KEY) is None


def test_packages_are_not_promoted_under_another_key(store: Store) -> None:
    with store.stage("build") as folder:
        fill(folder)
        with pytest.raises(ValueError, match="has key qz1-"):
            store.promote(folder, "qz1-" + "0" * 64)


def test_the_first_of_two_wins(store: Store) -> None:
    first = build(store)
    (first.path / "witness").touch()
    assert build(store) == first
    assert (first.path / "witness").exists()
    assert left_in_staging(store) == []


@pytest.mark.parametrize(
    "damage", ["missing", "truncated", "no manifest", "empty", "a file", "link"]
)
def test_a_damaged_entry_is_replaced(store: Store, damage: str, tmp_path: Path) -> None:
    path = build(store).path
    if damage in ("missing", "truncated", "no manifest"):
        name = "manifest.json" if damage == "no manifest" else "model.onnx"
        overwrite(path / name, b"") if damage == "truncated" else (path / name).unlink()
    else:
        shutil.rmtree(path)
        if damage == "empty":
            path.mkdir()
        elif damage == "a file":
            path.write_text("x")
        else:
            path.symlink_to(tmp_path / "nowhere")
    assert store.lookup(KEY) is None
    assert build(store).verify() == []
    assert store.lookup(KEY) is not None
    assert left_in_staging(store) == []


def test_better_validated_packages_replace_others_and_not_the_reverse(store: Store) -> None:
    build(store, **UNVALIDATED)
    assert build(store).validated == "checkpoint"
    assert build(store, **UNVALIDATED).validated == "checkpoint"
    found = store.lookup(KEY)
    assert found is not None
    assert found.validated == "checkpoint"


def test_failed_builds_are_kept_as_evidence_and_never_found(store: Store) -> None:
    for attempt in ("1", "2"):
        with store.stage("build") as folder:
            fill(folder, **UNVALIDATED)
            (folder / "attempt").write_text(attempt)
            kept = store.failed(folder, KEY)
    assert kept == store.root / "failed" / KEY
    assert (kept / "attempt").read_text() == "2"
    assert store.lookup(KEY) is None
    assert states(store) == {"failed": "failed"}
    assert [entry.kind for entry in store.gc()] == ["failed"]
    assert not kept.exists()


def test_graphs_are_kept_and_checked(store: Store) -> None:
    path = build_graph(store)
    assert store.graph(GRAPH) == path
    (path / "model.onnx").write_bytes(b"grape")
    assert store.graph(GRAPH) is None
    assert store.verify() == {GRAPH: ["'model.onnx' is not what was stored"]}
    assert build_graph(store) == path
    assert (store.graph(GRAPH) or path).joinpath("model.onnx").read_bytes() == b"graph"
    build_graph(store, b"another")
    assert (path / "model.onnx").read_bytes() == b"graph"
    assert left_in_staging(store) == []


def test_errors_of_the_file_system_are_explained(store: Store, monkeypatch: Any) -> None:
    store.root.parent.mkdir(exist_ok=True)
    store.root.write_text("a file")
    with pytest.raises(StoreError, match=r"Cannot make a staging folder in '.*; expected .* Check"):
        build(store)
    store.root.unlink()

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store.stage("build") as folder:
        fill(folder)
        monkeypatch.setattr(staging, "settle", full)
        with pytest.raises(StoreError, match="No space left on device"):
            store.promote(folder, KEY)
    assert store.lookup(KEY) is None


def test_errors_of_the_builder_stay_what_they_are(store: Store) -> None:
    with pytest.raises(FileNotFoundError), store.stage("build") as folder:
        (folder / "absent").read_bytes()


def test_space_is_checked_before_writing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=40))
    store.require_space(store.root / "not" / "yet", 40, "the package")
    with pytest.raises(StoreError, match=r"the package to '.*': it takes 41 bytes and 40 are free"):
        store.require_space(store.root, 41, "the package")
    with pytest.raises(StoreError, match=r"package 'org/tiny'.*cache gc"):
        copy_out(build(store), store.root.parent / "copy")


def test_the_room_of_another_disk_is_not_that_of_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `cache gc` removes frees nothing where another disk is full."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=40))
    monkeypatch.setattr("qeff_zoo.store._shares_disk", lambda _: False)
    with pytest.raises(StoreError, match="which is not the store's") as caught:
        copy_out(build(store), store.root.parent / "copy")
    assert "cache gc" not in str(caught.value)
    assert "QEFF_HOME" not in str(caught.value)


def test_everything_is_on_disk_before_it_has_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    named: list[list[int]] = []
    fsync, rename = os.fsync, Path.rename

    def note_sync(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    def note_rename(self: Path, target: Path) -> Path:
        named.append(list(synced))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    package = build(store)
    inodes = {path.stat().st_ino for path in [package.path, *package.path.rglob("*")]}
    assert inodes <= set(named[0])
    first = {inode: named[0].index(inode) for inode in inodes}
    manifest = (package.path / "manifest.json").stat().st_ino
    listed = [*FILES, "manifest.json"]  # beside them lies the note of where it is from
    files = {(package.path / name).stat().st_ino for name in listed}
    assert max(files, key=lambda inode: first[inode]) == manifest
    assert (store.root / "packages").stat().st_ino in synced[len(named[0]) :]


# --- killed, and in parallel ---------------------------------------------------------------------

BUILDER = f"""
import os, signal, sys
sys.path.insert(0, {str(HELPERS)!r})
from pathlib import Path
from package_builder import fill
from qeff_zoo.store import Store

left = int(sys.argv[2])
done = 0

def count(event, arguments):
    global done
    if event == "open" or event.startswith(("os.", "shutil.")):
        done += 1
        if done == left:
            os.kill(os.getpid(), signal.SIGKILL)

store = Store(Path(sys.argv[1]))
sys.addaudithook(count)
with store.stage("build") as folder:
    package = fill(folder)
    store.promote(folder, package.build_key)
print(done)
"""


def run_builder(store: Store, kill_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BUILDER, str(store.root), str(kill_at)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def steps_of_a_build(store: Store) -> int:
    result = run_builder(store, -1)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize("before", ["nothing", "damaged"])
def test_killed_builds_leave_all_or_nothing(tmp_path: Path, before: str) -> None:
    steps = steps_of_a_build(Store(tmp_path / "count"))
    moments = random.Random(before).sample(range(1, steps + 1), selection.few(7))
    # The last steps are those that give the package its name and clean up.
    for kill_at in [*moments, steps - 4]:
        store = Store(tmp_path / f"killed-{kill_at}")
        if before == "damaged":
            (build(store).path / "model.onnx").unlink()
        assert run_builder(store, kill_at).returncode == -signal.SIGKILL
        found = store.lookup(KEY)
        assert found is None or found.verify() == []
        assert build(store).verify() == []
        store.gc()
        assert left_in_staging(store) == []
        assert states(store) == {"package": "complete"}


RACER = f"""
import sys, time
sys.path.insert(0, {str(HELPERS)!r})
from pathlib import Path
from package_builder import SPEC, fill
from qeff_zoo.store import Store

store = Store(Path(sys.argv[1]))
for turn in range(int(sys.argv[2])):
    with store.stage("race") as folder:
        package = fill(folder, spec={{**SPEC, "turn": turn}})
        mark = store.root / f"{{turn}}-{{sys.argv[3]}}"
        mark.touch()
        while len(list(store.root.glob(f"{{turn}}-*"))) < 2:
            pass
        store.promote(folder, package.build_key)
"""


def test_two_processes_may_promote_one_key_at_once(store: Store) -> None:
    turns = 12
    keys = [build_key({**SPEC, "turn": turn}) for turn in range(turns)]
    for key in keys[::3]:  # a third of the names are taken by damaged packages
        damaged = store.root / "packages" / key
        damaged.mkdir(parents=True)
        (damaged / "manifest.json").write_text("{")
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(store.root), str(turns), name])
        for name in ("a", "b")
    ]
    while any(racer.poll() is None for racer in racers):
        for key in keys:
            store.lookup(key)  # whatever it finds, it finds whole
        time.sleep(0.02)
    assert [racer.returncode for racer in racers] == [0, 0]
    assert store.verify() == {key: [] for key in keys}
    assert left_in_staging(store) == []


# --- housekeeping --------------------------------------------------------------------------------

STAGER = """
import sys
from pathlib import Path
from qeff_zoo.store import Store
with Store(Path(sys.argv[1])).stage("live") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_staging_lives_as_long_as_its_process(store: Store) -> None:
    command = [sys.executable, "-c", STAGER, str(store.root)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        assert states(store) == {"staging": "live"}
        build(store)  # sweeps before it stages
        assert [entry.kind for entry in store.gc(older_than=timedelta(seconds=-60))] == ["package"]
        assert folder.is_dir()
        process.kill()
        while Owner(**json.loads(folder.with_name(f"{folder.name}.owner").read_text())).lives():
            time.sleep(0.01)
        assert states(store) == {"staging": "abandoned"}
        assert [entry.path for entry in store.gc(dry_run=True)] == [folder]
        assert folder.is_dir()
        assert [entry.path for entry in store.gc()] == [folder]
    assert left_in_staging(store) == []


def test_a_new_build_clears_up_after_killed_ones(store: Store) -> None:
    run_builder(store, steps_of_a_build(Store(store.root.with_name("count"))) // 2)
    assert len(left_in_staging(store)) == 2
    build(store)
    assert left_in_staging(store) == []


def write_owner(store: Store, **changes: Any) -> Path:
    folder = store.root / "staging" / "other-0"
    folder.mkdir(parents=True)
    owner = {**vars(Owner.current()), **changes}
    folder.with_name("other-0.owner").write_text(json.dumps(owner))
    return folder


def test_a_reused_process_id_is_another_process(store: Store) -> None:
    write_owner(store, started="1")
    assert states(store) == {"staging": "abandoned"}


@pytest.mark.parametrize("elsewhere", [{"host": "other"}, {"boot": "other"}, {"space": "pid:[1]"}])
def test_staging_of_another_machine_is_left_for_a_day(
    store: Store, elsewhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_owner(store, pid=2**22, **elsewhere)
    assert states(store) == {"staging": "live"}
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    assert states(store) == {"staging": "abandoned"}
    (folder / "deep").mkdir()
    (folder / "deep" / "file").touch()
    os.utime(folder / "deep" / "file", (now, now + 24 * 3600))
    assert states(store) == {"staging": "live"}


@pytest.mark.parametrize("note", [None, "", "{", "[]", "{}"])
def test_staging_without_a_readable_owner_is_left_for_a_day(store: Store, note: str | None) -> None:
    folder = write_owner(store)
    if note is None:
        folder.with_name("other-0.owner").unlink()
    else:
        folder.with_name("other-0.owner").write_text(note)
    assert states(store) == {"staging": "live"}


def age(store: Store, key: str, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(store.root / "used" / key, (then, then))


def test_gc_removes_what_was_long_unused(store: Store) -> None:
    build(store)
    build_graph(store)
    age(store, KEY, days=8)
    assert store.gc() == []
    assert store.gc(older_than=timedelta(days=9)) == []
    assert store.gc(older_than=timedelta(days=7), keep=[KEY]) == []
    store.lookup(KEY)
    assert store.gc(older_than=timedelta(days=7)) == []
    age(store, KEY, days=8)
    removed = store.gc(older_than=timedelta(days=7))
    assert [(entry.kind, entry.key) for entry in removed] == [("package", KEY)]
    assert removed[0].size > sum(map(len, FILES.values()))
    assert store.lookup(KEY) is None
    assert store.graph(GRAPH) is not None
    assert names(store.root / "used") == [GRAPH]
    assert left_in_staging(store) == []


def test_gc_removes_what_was_made_of_a_gguf_file_and_long_unused(store: Store) -> None:
    with store.stage("companions") as folder:
        (folder / "config.json").write_text("{}")
        store.promote_companions(folder, GRAPH)
    assert store.companions(GRAPH) is not None
    assert store.gc(older_than=timedelta(days=7)) == []
    age(store, GRAPH, days=8)
    removed = store.gc(older_than=timedelta(days=7))
    assert [(entry.kind, entry.key) for entry in removed] == [("companions", GRAPH)]
    assert store.companions(GRAPH) is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show who maps a file")
@pytest.mark.parametrize("how", ["mapped", "open"])
def test_gc_spares_what_a_process_uses(store: Store, how: str) -> None:
    package = build(store)
    age(store, KEY, days=8)
    with package.file("weights").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if how == "mapped":
            file.close()
        else:
            mapped.close()
        assert store.gc(older_than=timedelta(days=7)) == []
        with pytest.raises(StoreError, match="a process runs it"):
            store.remove(store.entries())
        mapped.close()
    assert len(store.gc(older_than=timedelta(days=7))) == 1


def test_only_unshared_bytes_are_freed(store: Store, tmp_path: Path) -> None:
    package = build(store)
    size = sum(path.stat().st_size for path in package.path.rglob("*") if path.is_file())
    weights = package.file("weights")
    os.link(weights, weights.with_name("twice"))  # in the same package
    entries = store.entries()
    assert store.remove(entries, dry_run=True) == size
    os.link(weights, tmp_path / "elsewhere")
    assert store.remove(entries, dry_run=True) == size - weights.stat().st_size
    assert store.lookup(KEY) is not None
    assert store.remove(entries) == size - (tmp_path / "elsewhere").stat().st_size
    assert store.entries() == []
    assert left_in_staging(store) == []


def test_verify_reads_everything(store: Store) -> None:
    package = build(store)
    build_graph(store)
    done: list[int] = []
    assert store.verify(done.append) == {KEY: [], GRAPH: []}
    assert sum(done) == package.size + len(b"graph")
    overwrite(package.file("weights"), bytes(len(FILES["model.onnx.data"])))
    assert "has digest" in store.verify()[KEY][0]
    (package.path / "manifest.json.origin").write_text("{")
    assert "note of origin" in store.verify()[KEY][0]
    package.file("weights").unlink()
    assert "is damaged" in store.verify()[KEY][0]
    assert states(store) == {"package": "damaged", "graph": "complete"}


def test_a_package_under_a_false_name_is_not_found(store: Store) -> None:
    other = "qz1-" + "0" * 64
    build(store).path.rename(store.root / "packages" / other)
    assert store.lookup(other) is None
    assert "its key is" in store.verify()[other][0]


def test_a_read_only_store_can_be_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    build(store)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EROFS, "read-only")

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    assert store.lookup(KEY) is not None
    assert len(store.file_digest(Path(__file__))) == 64


# --- digests of files ----------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", -1.0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x" * 3_000_000)
    return path


def test_files_are_hashed_once(store: Store, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    first = store.file_digest(source, done.append)
    assert first == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    assert sum(done) == 3_000_000
    monkeypatch.setattr(digests, "sha256_file", None)
    done.clear()
    assert Store(store.root).file_digest(source, done.append) == first
    assert sum(done) == 3_000_000


@pytest.mark.parametrize("change", ["content", "same size and time", "replaced", "corrupt memory"])
def test_changed_files_are_hashed_again(store: Store, source: Path, change: str) -> None:
    store.file_digest(source)
    before = source.stat()
    if change == "content":
        source.write_bytes(b"y")
    elif change == "same size and time":
        source.write_bytes(b"y" * 3_000_000)
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "replaced":
        source.with_name("new").write_bytes(b"y" * 3_000_000)
        source.with_name("new").replace(source)
    else:
        next((store.root / "digests").iterdir()).write_text('{"identity": [1')
    assert store.file_digest(source) == digests.sha256_file(source)


def test_files_that_may_still_change_are_not_remembered(
    store: Store, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", 2.0)
    store.file_digest(source)
    assert not (store.root / "digests").exists()


def test_digests_are_forgotten_in_time(store: Store, source: Path) -> None:
    store.file_digest(source)
    store.gc(older_than=timedelta(days=1))
    assert len(names(store.root / "digests")) == 1
    store.gc(older_than=timedelta(seconds=-60))
    assert names(store.root / "digests") == []


# --- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["absent", "empty", "same", "older", "deep"])
def test_packages_are_copied_whole(store: Store, tmp_path: Path, there: str) -> None:
    package = build(store)
    target = tmp_path / "out" / "deeper" if there == "deep" else tmp_path / "out"
    if there == "empty":
        target.mkdir()
    elif there == "same":
        copy_out(package, target)
    elif there == "older":
        fill(target, **UNVALIDATED)
    copy = copy_out(package, target)
    assert copy == Package(target, package.manifest)
    assert copy.verify() == []
    assert names(target.parent) in (["out", "store"], ["deeper"])


@pytest.mark.parametrize("there", ["file", "other files", "other package", "added file", "damaged"])
def test_copies_overwrite_nothing_else(store: Store, tmp_path: Path, there: str) -> None:
    package = build(store)
    target = tmp_path / "out"
    if there == "file":
        target.write_text("mine")
    elif there == "other files":
        target.mkdir()
        (target / "mine").write_text("mine")
    elif there == "other package":
        fill(target, spec={**SPEC, "other": 1})
    else:
        fill(target)
        if there == "added file":
            (target / "mine").write_text("mine")
        else:
            (target / "model.onnx").unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"'.*/out': it holds something else; expected .* Give"):
        copy_out(package, target)
    assert sorted(tmp_path.rglob("*")) == before


def test_leftovers_of_a_killed_copy_are_removed(store: Store, tmp_path: Path) -> None:
    package, target = build(store), tmp_path / "out[1].d"
    ours, reference = (
        tmp_path / f".{target.name}-{'0' * 16}",
        tmp_path / f".{target.name}-mine.owner",
    )
    ours.mkdir()
    dead = {**vars(Owner.current()), "pid": 2**22 + 1, "started": "1"}
    staging.owner_note(ours).write_text(json.dumps(dead))
    reference.write_text("")
    os.utime(reference, (0, 0))
    copy_out(package, target)
    assert names(tmp_path) == sorted([reference.name, target.name, "store"])


def test_a_copy_onto_itself_is_itself(store: Store) -> None:
    package = build(store)
    assert copy_out(package, package.path) == package


def test_the_draft_is_not_changed_by_building(store: Store) -> None:
    manifest = draft()
    build(store, **manifest)
    assert manifest == draft()


# --- downloads under way ---------------------------------------------------------------------------

DIGEST = "d" * 64


def test_partial_download_is_kept_for_the_next_pull(store: Store) -> None:
    with store.partials.claim(DIGEST) as path:
        path.write_bytes(b"half of")
    assert store.partials.size(DIGEST) == len(b"half of")
    with store.partials.claim(DIGEST) as path:
        assert path.read_bytes() == b"half of"
    with store.partials.claim("e" * 64) as path:
        assert not path.exists()


def test_concurrent_download_is_awaited_and_reused(store: Store) -> None:
    reference = ExitStack()
    reference.enter_context(store.partials.claim(DIGEST)).write_bytes(b"theirs")
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        store.partials.drop(DIGEST)  # which leaves it alone
        assert store.gc() == []
        assert states(store) == {"partial": "live"}
        if len(waits) == 3:
            reference.close()

    with store.partials.claim(DIGEST, pause) as path:
        assert path.read_bytes() == b"theirs"
    assert len(waits) == 3
    assert states(store) == {"partial": "abandoned"}
    store.partials.drop(DIGEST)
    assert names(store.root / "partials") == []


def test_files_of_earlier_versions_are_removed(store: Store) -> None:
    """It named them by a random number, and noted the process that wrote to each."""
    folder = store.root / "partials"
    folder.mkdir(parents=True)
    for name in ("-0123456789abcdef", "-0123456789abcdef.owner"):
        (folder / f"{DIGEST}{name}").write_bytes(b"half")
    with store.partials.claim(DIGEST) as path:
        assert not path.exists()
    store.gc()
    assert names(folder) == []


def test_a_wait_for_a_download_can_be_ended(store: Store) -> None:
    def pause(_: float) -> None:
        raise KeyboardInterrupt

    with store.partials.claim(DIGEST):
        other = store.partials.claim(DIGEST, pause)
        with pytest.raises(KeyboardInterrupt):
            other.__enter__()
    assert names(store.root / "partials") == []


def test_of_many_one_at_a_time_has_a_download(store: Store) -> None:
    """Each removes it, with its lock, for which others wait at that moment."""
    inside: list[int] = []

    def use(number: int) -> None:
        for _ in range(20):
            with store.partials.claim(DIGEST, lambda _: time.sleep(0)) as path:
                inside.append(number)
                assert not path.exists()
                path.write_bytes(b"mine")
                assert inside == [number]
                path.unlink()
                inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(6)))
    assert names(store.root / "partials") == []


def test_downloads_of_killed_processes_are_anybodys(store: Store) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from qeff_zoo.store import Store\n"
        f"with Store(Path(sys.argv[1])).partials.claim({DIGEST!r}) as path:\n"
        "    path.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert states(store) == {"partial": "abandoned"}
    with store.partials.claim(DIGEST) as path:
        assert path.read_bytes() == b"half"
    assert [(entry.kind, entry.size) for entry in store.gc()] == [("partial", 4)]
    assert names(store.root / "partials") == []


def test_where_a_package_came_from_is_remembered_until_it_is_replaced(store: Store) -> None:
    origin = Origin(url="file:///zoo", path="packages/a/b", manifest="0" * 64, signed=True)
    with store.stage("pull") as folder:
        package = fill(folder, **UNVALIDATED)
        store.promote(folder, package.build_key, origin=origin)
    assert store.origin(KEY) == origin
    assert Store(store.root).origin(KEY) == origin
    assert not store.is_built_here(KEY)
    build(store)  # validated, so that it takes its place
    assert store.origin(KEY) == BUILT_HERE


@pytest.mark.parametrize(
    "note",
    [None, b"", b"{", b"[]", b"{}", b'{"built_here": false}', b'{"built_here": true, "url": ""}',
     b'{"url": 1, "path": "a", "manifest": "b", "signed": true}'],
)  # fmt: skip
def test_origin_is_unknown_without_a_complete_note(store: Store, note: bytes | None) -> None:
    path = build(store).path / "manifest.json.origin"
    assert store.is_built_here(KEY)
    path.unlink()
    if note is not None:
        path.write_bytes(note)
    assert store.origin(KEY) is None
    assert not store.is_built_here(KEY)
    build(store)  # what is surely ours takes its place, though it is no better
    assert store.is_built_here(KEY)


def test_a_pulled_package_does_not_take_the_place_of_one_that_was_built_here(store: Store) -> None:
    build(store)
    origin = Origin(url="file:///zoo", path="packages/a/b", manifest="0" * 64, signed=True)
    with store.stage("pull") as folder:
        package = fill(folder)
        store.promote(folder, package.build_key, origin=origin)
    assert store.is_built_here(KEY)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_package_may_be_replaced_whatever_the_store_has(
    store: Store, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(staging, "_exchange", lambda *_: False)
    first = build(store)
    overwrite(first.path / "tokenizer.json", b"[]")  # damaged unseen: as long as it was
    with store.stage("repair") as folder:
        fill(folder)
        store.promote(folder, KEY, adopt=False)
    assert first.verify() == []
    assert left_in_staging(store) == []


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


def test_files_of_a_package_are_read_only(store: Store, tmp_path: Path) -> None:
    """Packages share files by links, so an editor that writes in place would change another package too."""
    with store.stage("build") as folder:
        fill(folder)
        (folder / "tokenizer.json").chmod(0o777)
        (folder / "LICENSE").chmod(0o640)
        package = store.promote(folder, KEY)
    assert modes(package.path) == {0o444, 0o440}
    assert stat.S_IMODE((package.path / "LICENSE").stat().st_mode) == 0o440
    assert os.access(package.path, os.W_OK)  # for its removal
    resealed = package.with_validation([], "none")
    assert resealed.verify() == []
    assert store.gc(older_than=timedelta(seconds=-60)) != []
    assert not package.path.exists()


def test_copies_for_users_may_be_written_to(store: Store, tmp_path: Path) -> None:
    copy = copy_out(build(store), tmp_path / "copy")
    assert all(mode & stat.S_IWUSR for mode in modes(copy.path))


def test_a_file_system_without_permissions_will_do(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "chmod", refuse)
    monkeypatch.setattr(os, "chmod", refuse)
    assert build(store).verify() == []


def test_files_are_found_by_digest(store: Store) -> None:
    package = build(store)
    digest = hashlib.sha256(FILES["model.onnx.data"]).hexdigest()
    assert store.files_by_digest()[digest] == [package.path / "model.onnx.data"]
    (package.path / "model.onnx").unlink()
    assert digest in store.files_by_digest()  # of a damaged package too
    overwrite(package.path / "manifest.json", b'{"files": [3]}')
    assert store.files_by_digest() == {}


def test_packages_are_found_by_their_manifest(store: Store) -> None:
    package = build(store)
    digest = hashlib.sha256((package.path / "manifest.json").read_bytes()).hexdigest()
    assert store.with_manifest(digest) == package
    assert store.with_manifest("0" * 64) is None
    (package.path / "model.onnx").unlink()
    assert store.with_manifest(digest) is None


# --- programs ------------------------------------------------------------------------------------


def test_a_compiled_program_is_found_by_its_key(store: Store) -> None:
    package = build(store)
    (program,) = package.programs
    assert store.program(program.key) == (package, program)
    assert store.program("qp1-" + "0" * 64) is None


@pytest.mark.parametrize("wrong", ["pulled", "altered", "changed sources"])
def test_a_program_of_others_or_an_altered_one_is_compiled_again(store: Store, wrong: str) -> None:
    if wrong == "pulled":
        origin = Origin(url="file:///zoo", path="packages/a/b", manifest="0" * 64, signed=True)
        with store.stage("pull") as folder:
            package = fill(folder)
            package = store.promote(folder, package.build_key, origin=origin)
    elif wrong == "changed sources":
        package = build(store, provenance={**draft()["provenance"], "dirty": True})
    else:
        package = build(store)
        path = package.file("model.onnx")
        overwrite(path, b"x" * path.stat().st_size)
    assert store.program(package.programs[0].key) is None


# --- a full disk ---------------------------------------------------------------------------------


def test_a_full_disk_can_be_cleaned(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice for a full disk is `cache gc`, so that needs no room."""
    package, other = build(store), build_graph(store)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(staging, "note_owner", full)
    removed = store.gc(older_than=timedelta(0))
    assert {entry.key for entry in removed} == {package.build_key, other.name}
    assert store.entries() == []
    assert not package.path.exists()
    assert not other.exists()


def test_kill_on_a_full_disk_leaves_no_package(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = build(store)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(staging, "note_owner", full)
    monkeypatch.setattr(housekeeping, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        store.gc(older_than=timedelta(0))
    assert store.lookup(package.build_key) is None
    assert package.path.exists()
