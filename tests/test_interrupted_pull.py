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
from fixtures_pulls import REPO, URL, WEIGHTS, content_bytes, is_clean, is_same, partial_bytes, pull
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


_KILLED = """
import os, signal, sys, threading

url, folder, *moments = sys.argv[1:]
from qeff_zoo import cli
from qeff_zoo.hub import hub_remote, pulling, retries, transfer
import huggingface_hub, jsonschema
huggingface_hub.get_session, jsonschema.Draft202012Validator
retries._FIRST_PAUSE = 0.0

once = threading.Lock()
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")


def die(what):
    once.acquire()  # another thread may get here before the end
    os.write(killed, f"{what}\\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_bytes(limit):
    advance, count = transfer.Transfer._advance, [0]

    def counted(self, amount, *, received=False):
        count[0] += amount if received else 0
        if count[0] >= limit:
            die("bytes")
        advance(self, amount, received=received)

    transfer.Transfer._advance = counted


def die_before_change(number, home):
    count = [0]

    def hook(event, arguments):
        if event in CHANGES or event == "open" and arguments[2] and arguments[2] & WRITES:
            if str(arguments[0]).startswith(home + "/"):
                count[0] += 1
                if count[0] == number:
                    die(event)

    sys.addaudithook(hook)


def run(moment):
    home = os.environ["QEFF_HOME"] = os.path.join(folder, moment)
    child = os.fork()
    if not child:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        kind, number = moment[0], int(moment[1:])
        die_after_bytes(number) if kind == "b" else die_before_change(number, home)
        os._exit(cli.main(["pull", url]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), (moment, code)
    return code


killed = os.open(folder + ".killed", os.O_CREAT | os.O_WRONLY)
for moment in moments:
    run(moment)
number = 1
while not moments and run(f"c{number:03}"):
    number += 1
"""


def kill(folder: Path, *moments: str) -> list[str]:
    """Kill a pull for each moment, of a store of its own below `folder`; give what each was killed at.

    Args:
        folder: Empty.
        moments: "b1000" for once 1,000 bytes have come. None for before every single change of the store.
    """
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, URL, str(folder), *moments],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return folder.with_suffix(".killed").read_text().split()


def assert_recovers(home: Path, published: Package) -> int:
    """Check what a killed pull left, pull again, and check that all is as if nothing had happened; give what came."""
    store = Store()
    assert store.root == home
    assert {entry.state for entry in store.entries()} <= {"complete", "abandoned"}
    assert all(problems == [] for problems in store.verify().values())
    complete = store.lookup(published.build_key) is not None
    before = partial_bytes(home)

    pulled = pull()

    assert is_same(pulled.package, published)
    assert pulled.hit == complete
    # Not a byte that had come and was written comes again.
    assert pulled.bytes_transferred == (0 if complete else content_bytes(published) - before)
    store.gc()
    assert not any((home / "staging").iterdir())
    assert not any((home / "partials").iterdir())
    assert [(entry.kind, entry.state) for entry in store.entries()] == [("package", "complete")]
    return pulled.bytes_transferred


def test_killed_at_random_moments(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"model.onnx.data": noise(3_000_000), "model.onnx": noise(400_000, 1)}
    package = make(tmp_path / "large", weights)
    hub.commit(REPO, remote(package))
    dice = random.Random(SEED)
    moments = [f"b{dice.randint(1, package.size - 1)}" for _ in range(30)]
    assert kill(tmp_path / "homes", *moments) == ["bytes"] * 30
    received = []
    for moment in moments:
        monkeypatch.setenv("QEFF_HOME", str(tmp_path / "homes" / moment))
        received.append(assert_recovers(tmp_path / "homes" / moment, package))
        shutil.rmtree(tmp_path / "homes" / moment)
    assert sum(received) < 0.8 * 30 * package.size  # what came before was of use


def test_killed_before_every_single_change_of_the_store(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dict.fromkeys(("tokenizer.json", "config.json", "LICENSE"))
    package = make(tmp_path / "few", {"model.onnx.data": WEIGHTS, **few})
    hub.commit(REPO, remote(package))
    changes = kill(tmp_path / "homes")
    homes = sorted((tmp_path / "homes").iterdir())
    assert homes[-1].name == f"c{len(changes) + 1:03}"  # which was not killed
    assert len(changes) > 40
    assert {*changes} >= {"open", "os.mkdir", "os.rename", "os.remove", "os.link"}
    for home in homes:
        monkeypatch.setenv("QEFF_HOME", str(home))
        assert_recovers(home, package)


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
    assert_recovers(home, published)
