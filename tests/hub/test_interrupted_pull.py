# SPDX-License-Identifier: Apache-2.0
"""Pulls whose connection breaks, whose process is killed, or that are not alone: nothing is lost, or half used."""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import selection
from fixtures_pulls import (
    REPO,
    URL,
    WEIGHTS,
    assert_recovers,
    content_bytes,
    is_clean,
    is_same,
    partial_bytes,
    pull,
)
from kills import empty, kill
from local_hub import LocalHub
from remote_builder import make, noise, remote

from qeff_zoo.errors import RemoteError
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME
from qeff_zoo.store import Store

pytestmark = [pytest.mark.usefixtures("pulling"), pytest.mark.turns(2)]
SEED = 20_26_11


# --- connections -----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", range(selection.few(100)))
def test_connections_cut_at_random_bytes(
    zoo: LocalHub, published: Package, home: Path, run: int
) -> None:
    """Several are cut in each run, of index, manifest and files alike; some servers do not know Range."""
    dice = random.Random(SEED + run)
    ignorant = dice.random() < 0.25
    for _ in range(dice.randint(1, 12)):
        limit = dice.choice([50, 5000, len(WEIGHTS)])
        zoo.fault(
            "GET", dice.choice(["resolve|_cdn", "data|_cdn", "manifest", "index"]),
            cut=dice.randint(0, limit), skip=dice.randint(0, 5), whole=ignorant,
        )  # fmt: skip
    try:
        pulled = pull()
    except RemoteError:  # so many that it gave up
        assert is_clean(home)
        zoo.faults.clear()
        before = partial_bytes(home)
        pulled = pull()
        assert pulled.bytes_transferred == content_bytes(published) - before
    else:
        small = sum(f["size"] for f in published.manifest["files"]) - len(WEIGHTS)
        assert pulled.bytes_transferred <= content_bytes(published) + small
    assert is_same(pulled.package, published)
    assert not any((home / "partials").iterdir())


def test_every_request_may_fail_once(zoo: LocalHub, published: Package, home: Path) -> None:
    pull()
    requests = len(zoo.log)
    assert requests > 8
    for status in (429, 500, 503):
        for number in range(requests):
            shutil.rmtree(home)
            zoo.faults.clear()
            zoo.fault("GET", "", status=status, skip=number)
            assert is_same(pull().package, published)
            assert zoo.faults[0].times == 0  # it did fail


def test_every_request_may_fail_for_ever(zoo: LocalHub, published: Package, home: Path) -> None:
    pull()
    paths = {request.path for request in zoo.log}
    for path in sorted(paths):
        shutil.rmtree(home)
        zoo.faults.clear()
        zoo.fault("GET", f"{path.split('?')[0]}", status=503, times=10**6)
        with pytest.raises(RemoteError, match="503"):
            pull()
        assert is_clean(home)
        before = partial_bytes(home)
        zoo.faults.clear()
        pulled = pull()
        assert is_same(pulled.package, published)
        assert pulled.bytes_transferred == content_bytes(published) - before


def test_a_server_that_does_not_know_range_costs_bytes_and_nothing_else(
    zoo: LocalHub, published: Package
) -> None:
    zoo.fault("GET", "onnx.data", cut=150_000)
    zoo.fault("GET", "onnx.data", whole=True, times=100)
    pulled = pull()
    assert is_same(pulled.package, published)
    assert [(r.range, r.sent) for r in zoo.requests("onnx.data")] == [
        (None, 150_000),
        ("bytes=150000-", len(WEIGHTS)),
    ]


# --- several processes -----------------------------------------------------------------------------


def test_two_pulls_at_once(zoo: LocalHub, published: Package, home: Path) -> None:
    """Neither takes what the other is writing, nor fetches it again; both have the package."""
    meeting = threading.Barrier(2)
    for _ in range(2):
        zoo.fault("GET", "manifest.json", call=meeting.wait)  # both have begun when either goes on
    with ThreadPoolExecutor(2) as pool:
        pulled = [future.result() for future in [pool.submit(pull), pool.submit(pull)]]
    for each in pulled:
        assert is_same(each.package, published)
        assert each.package.path == pulled[0].package.path
    manifest = (published.path / MANIFEST_NAME).stat().st_size
    received = sum(each.bytes_transferred for each in pulled)
    assert received == content_bytes(published) + manifest
    assert not any((home / "partials").iterdir())
    assert not any((home / "staging").iterdir())


def test_five_processes_fetch_content_once(hub: LocalHub, tmp_path: Path, home: Path) -> None:
    """Two pull the same package, and the others packages with the same weights and a few files of their own."""
    weights = noise(1_000_000)
    packages = [
        make(tmp_path / f"{n}", {"model.onnx.data": weights}, ctx_len=1024 * (n + 1))
        for n in range(4)
    ]
    hub.commit(REPO, remote(*packages))
    keys = [package.build_key for package in (packages[0], *packages)]
    begun = threading.Semaphore(0)
    hub.fault("GET", "manifest.json", call=begun.release, times=100)
    hub.fault("GET", "onnx.data", call=lambda: [begun.acquire(timeout=20) for _ in range(5)])
    command = [sys.executable, "-m", "qeff_zoo", "pull", REPO, "--key"]
    processes = [
        subprocess.Popen([*command, key], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for key in keys
    ]
    for process, key in zip(processes, keys, strict=True):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert Path(out.strip()).name == key
    assert all(problems == [] for problems in Store().verify().values())
    assert [request.sent for request in hub.requests("onnx.data")] == [len(weights)]
    assert not any((home / "partials").iterdir())


def test_the_rest_of_a_download_is_fetched_when_who_fetched_it_dies(
    zoo: LocalHub, published: Package, home: Path
) -> None:
    code = (
        "import sys, time; from qeff_zoo.store import Store\n"
        "with Store().partials.claim(sys.argv[1]) as path:\n"
        "    path.write_bytes(b''); print('mine', flush=True); sys.stdin.read(); time.sleep(60)\n"
    )
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    other = subprocess.Popen(
        [sys.executable, "-c", code, digest],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "mine\n"
    (home / "partials" / digest).write_bytes(WEIGHTS[:-1])
    with ThreadPoolExecutor(1) as pool:
        pulling = pool.submit(pull)
        time.sleep(0.3)
        assert not pulling.done()
        other.kill()
        other.communicate()
        pulled = pulling.result(60)
    assert is_same(pulled.package, published)
    assert pulled.bytes_transferred == content_bytes(published) - len(WEIGHTS) + 1
    assert zoo.requests("onnx.data")[-1].range == f"bytes={len(WEIGHTS) - 1}-"


def test_pulls_that_want_the_same_files_do_not_wait_for_each_other(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever each begins with: with one file at a time, the order is that of sizes, which differ."""
    monkeypatch.setattr("qeff_zoo.hub.pull.transfer.PARALLEL", 1)
    shared = [noise(50_000, 1), noise(50_000, 2)]
    packages = [
        make(tmp_path / f"{n}", dict(zip(("a.bin", "b.bin"), contents, strict=True)), ctx_len=n)
        for n, contents in ((1024, shared), (2048, shared[::-1]))
    ]
    hub.commit(REPO, remote(*packages))
    meeting = threading.Barrier(2, timeout=20)
    hub.fault("GET", "bin", call=meeting.wait, times=2)
    with ThreadPoolExecutor(2) as pool:
        pulls = [pool.submit(pull, number=number) for number in range(2)]
        for future in pulls:
            assert future.result(60).package.verify() == []
    assert len([request for request in hub.requests("_content") if request.sent == 50_000]) == 2


def test_killed_before_every_single_change_of_the_store(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dict.fromkeys(("tokenizer.json", "config.json", "LICENSE"))
    package = make(tmp_path / "few", {"model.onnx.data": WEIGHTS, **few})
    hub.commit(REPO, remote(package))
    runs = kill(["pull", URL], empty(tmp_path), tmp_path / "places")
    assert len(runs) > (40 if selection.EVERY else 5)
    assert {run.at for run in runs} >= {
        "open",
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.link",
        "os.chmod",
    }
    for run in runs:
        monkeypatch.setenv("QEFF_HOME", str(run.place / "home"))
        assert_recovers(package)


def test_killed_within_files(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"model.onnx.data": noise(3_000_000), "model.onnx": noise(400_000, 1)}
    package = make(tmp_path / "large", weights)
    hub.commit(REPO, remote(package))
    dice = random.Random(SEED)
    sizes = [dice.randint(10_000, 2_999_999) for _ in range(selection.few(15))]
    runs = kill(["pull", URL], empty(tmp_path), tmp_path / "places", most=0, sizes=sizes)
    received = []
    for run in runs[1:]:
        assert run.at == "size"
        monkeypatch.setenv("QEFF_HOME", str(run.place / "home"))
        received.append(assert_recovers(package))
        shutil.rmtree(run.place)
    assert sum(received) < 0.8 * len(sizes) * package.size  # what came before was of use


def test_interrupted_it_ends_and_keeps_what_came(
    zoo: LocalHub, published: Package, home: Path
) -> None:
    processes: list[subprocess.Popen[str]] = []
    zoo.fault("GET", "onnx.data", cut=150_000)
    zoo.fault("GET", "onnx.data", call=lambda: processes[0].send_signal(signal.SIGINT))
    processes.append(
        subprocess.Popen(
            [sys.executable, "-m", "qeff_zoo", "pull", URL],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
    )  # fmt: skip
    out, err = processes[0].communicate(timeout=120)
    if processes[0].returncode != 0:  # it may have been through before it noticed
        assert (processes[0].returncode, out) == (130, "")
        assert "interrupted" in err
        assert is_clean(home)
        assert partial_bytes(home) >= 150_000
    assert_recovers(published)
