# SPDX-License-Identifier: Apache-2.0
"""Pulls whose connection breaks, whose process is killed, or that are not alone: nothing is lost, or half used."""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
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
from qeff_zoo.store import Store

pytestmark = pytest.mark.usefixtures("pulling")
SEED = 20_26_11


# --- connections -----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", range(100))
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
    """Neither takes what the other is writing; both have the package."""
    meeting = threading.Barrier(2)
    for _ in range(2):
        zoo.fault("GET", "onnx.data", call=meeting.wait)  # both have begun when either goes on
    with ThreadPoolExecutor(2) as pool:
        pulled = [future.result() for future in [pool.submit(pull), pool.submit(pull)]]
    for each in pulled:
        assert is_same(each.package, published)
        assert each.package.path == pulled[0].package.path
    assert [each.bytes_transferred for each in pulled] == [content_bytes(published)] * 2
    assert not any((home / "partials").iterdir())
    assert not any((home / "staging").iterdir())


def test_what_another_process_writes_is_left_alone(zoo: LocalHub, published: Package) -> None:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    with Store().partials.claim(digest) as theirs:
        theirs.write_bytes(WEIGHTS[:-1])
        assert pull().bytes_transferred == content_bytes(published)
        assert theirs.read_bytes() == WEIGHTS[:-1]


def test_killed_before_every_single_change_of_the_store(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dict.fromkeys(("tokenizer.json", "config.json", "LICENSE"))
    package = make(tmp_path / "few", {"model.onnx.data": WEIGHTS, **few})
    hub.commit(REPO, remote(package))
    runs = kill(["pull", URL], empty(tmp_path), tmp_path / "places")
    assert len(runs) > 40
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
    sizes = [dice.randint(10_000, 2_999_999) for _ in range(15)]
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
