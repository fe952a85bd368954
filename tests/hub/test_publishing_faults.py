# SPDX-License-Identifier: Apache-2.0
"""Publishing when the network, the Hub, or another publisher is in the way: all of it is there, or nothing."""

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import package_builder
import pytest
import selection
from fixtures_builds import TIMEOUT
from kills import kill
from local_hub import LocalHub
from publications import (
    REPO,
    Make,
    assert_listed,
    assert_whole,
    folder_files,
    go,
    titles,
    uploaded,
)

from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.index_files import decode
from qeff_zoo.hub.publish import publish
from qeff_zoo.hub.publish.plan import Publication, plan_publication

pytestmark = [pytest.mark.usefixtures("no_waiting"), pytest.mark.turns(2)]
SEED = selection.seed(__name__)

#: Everything that a second publication asks the Hub.
ENDPOINTS = {
    "files": ("GET", "/api/models/acme/zoo.blobs"),
    "source": ("GET", "/api/models/org/tiny"),
    "create": ("POST", "/api/repos/create"),
    "visibility": ("GET", "/api/models/acme/zoo$"),
    "modes": ("POST", "/preupload/"),
    "batch": ("POST", "/objects/batch"),
    "upload": ("PUT", "/_content/"),
    "complete": ("POST", "/_complete/"),
    "verify": ("POST", "/objects/verify"),
    "index": ("GET", "/resolve/.*/index.json.gz"),
    "index-content": ("GET", "/_content/"),
    "card": ("GET", "/resolve/.*/README.md"),
    "yaml": ("POST", "/api/validate-yaml"),
    "commit": ("POST", "/commit/main"),
}


@pytest.fixture
def parts(alice: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the weights go in parts."""
    monkeypatch.setattr(alice, "part_bytes", 5000)


def test_the_endpoints_are_all_that_there_are(
    make_package: Make, alice: LocalHub, parts: None
) -> None:
    for ctx_len in (1024, 2048):
        go(make_package(ctx_len, license="mit"))
    requested = {(request.method, request.path) for request in alice.log}
    for method, path in ENDPOINTS.values():
        matching = {one for one in requested if one[0] == method and re.search(path, one[1])}
        assert matching, path
    known = {
        one
        for one in requested
        for method, path in ENDPOINTS.values()
        if one[0] == method and re.search(path, one[1])
    }
    assert {path for _, path in requested - known} <= {"/api/agent-harnesses"}


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.sampled(4)
def test_an_endpoint_that_fails_for_a_while(
    make_package: Make,
    alice: LocalHub,
    parts: None,
    endpoint: str,
    status: int,
) -> None:
    packages = [make_package(ctx_len) for ctx_len in (1024, 2048)]
    if endpoint == "index-content":
        go(packages[0])
    alice.fault(*ENDPOINTS[endpoint], status=status, times=2)
    for package in packages:
        go(package)
    assert alice.faults[0].times == 0
    assert_whole(alice.files(REPO), *packages)
    assert not alice.models[REPO].private
    assert len(titles(alice)) == 3


@pytest.mark.parametrize("endpoint", [name for name in ENDPOINTS if name != "verify"])
def test_an_endpoint_that_fails_for_good(
    make_package: Make, alice: LocalHub, parts: None, endpoint: str
) -> None:
    first, second = make_package(1024), make_package(2048, license="mit")
    new = endpoint in ("create", "upload", "complete")
    if not new:
        go(first)
    alice.fault(*ENDPOINTS[endpoint], status=503, times=10_000)
    if endpoint == "source":  # it is not known to be open, and the repository is
        with pytest.raises(PublishError, match="it is not known whether org/tiny is gated"):
            go(second)
    else:
        with pytest.raises((PublishError, RemoteError), match=r"503|upload") as caught:
            go(second)
        assert "again" in str(caught.value)
    alice.faults.clear()
    if REPO in alice.models:
        assert_whole(alice.files(REPO), *([] if new else [first]))
    go(second)
    assert_whole(alice.files(REPO), *([second] if new else [first, second]))


@pytest.mark.parametrize("answer", [{"status": 503}, {}], ids=["503", "no-answer"])
@pytest.mark.parametrize("endpoint", ["create", "batch", "upload", "complete", "verify", "commit"])
def test_an_answer_that_is_lost(
    make_package: Make, alice: LocalHub, parts: None, endpoint: str, answer: dict[str, int]
) -> None:
    package = make_package()
    alice.fault(*ENDPOINTS[endpoint], served=True, **answer)
    go(package)
    assert_whole(alice.files(REPO), package)
    assert len(titles(alice)) == 2


def test_a_pull_request_whose_answer_is_lost_is_not_opened_twice(
    make_package: Make, alice: LocalHub
) -> None:
    go(make_package(1024))
    alice.fault(*ENDPOINTS["commit"], served=True, status=503)
    with pytest.raises(PublishError):
        go(make_package(2048), create_pr=True)
    assert len(alice.models[REPO].pulls) == 1


@pytest.mark.parametrize(
    "share", [round(random.Random(SEED + n).random(), 3) for n in range(selection.few(8))]
)
def test_an_upload_that_is_cut(make_package: Make, alice: LocalHub, share: float) -> None:
    package = make_package()
    alice.fault(*ENDPOINTS["upload"], read=int(share * package.size), times=2)
    go(package)
    assert_whole(alice.files(REPO), package)


def test_uploaded_files_are_not_uploaded_again(
    make_package: Make, alice: LocalHub, parts: None
) -> None:
    package = make_package()
    weights = len(package_builder.FILES["model.onnx.data"])
    alice.fault(*ENDPOINTS["commit"], status=503, times=10_000)
    with pytest.raises(PublishError, match="publish again to go on from there"):
        go(package)
    assert uploaded(alice) >= weights
    alice.faults.clear()
    alice.log.clear()
    go(package)
    assert uploaded(alice) == 0
    assert_whole(alice.files(REPO), package)


def test_only_the_file_that_did_not_arrive_is_sent_again(
    make_package: Make, alice: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"part-{n}.bin": bytes([n]) * 40_000 for n in range(4)}
    for name, content in parts.items():
        monkeypatch.setitem(package_builder.FILES, name, content)
    package = make_package()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    alice.fault("PUT", digests["part-2.bin"], read=20_000, times=10_000)
    with pytest.raises(PublishError, match="publish again to go on from there"):
        go(package)
    assert REPO not in alice.models or INDEX_NAME not in alice.files(REPO)
    alice.faults.clear()
    alice.log.clear()
    go(package)
    sent = [name for name, digest in digests.items() if alice.requests(digest, "PUT")]
    assert sent == ["part-2.bin"]
    assert_whole(alice.files(REPO), package)


# --- others at the same time ----------------------------------------------------------------------
def test_another_publisher_commits_in_between(make_package: Make, alice: LocalHub) -> None:
    first, second, third = (make_package(ctx_len) for ctx_len in (1024, 2048, 4096))
    go(first)
    alice.fault(*ENDPOINTS["commit"], call=lambda: go(second))
    go(third)
    index = assert_whole(alice.files(REPO), first, second, third)
    assert index.serial == 3
    assert alice.requests("/commit/main", "POST")[-2].status == 412


def test_the_card_is_edited_in_between(make_package: Make, alice: LocalHub) -> None:
    go(make_package(1024))

    def edit() -> None:
        card = alice.files(REPO)["README.md"]
        alice.commit(REPO, {"README.md": card.replace(b"# org/tiny", b"# Ada's zoo")})

    alice.fault(*ENDPOINTS["commit"], call=edit)
    go(make_package(2048))
    card = alice.files(REPO)["README.md"].decode()
    assert "# Ada's zoo" in card
    assert "cl2048" in card


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_publishers_at_once(make_package: Make, alice: LocalHub, tmp_path: Path, kind: str) -> None:
    where = REPO if kind == "hub" else f"file://{tmp_path}/zoo"
    packages = [make_package(1024 * n) for n in range(1, 7)]
    with ThreadPoolExecutor(len(packages)) as pool:
        for done in [pool.submit(go, package, where) for package in packages]:
            done.result()
    files = alice.files(REPO) if kind == "hub" else folder_files(tmp_path / "zoo")
    assert assert_whole(files, *packages).serial == len(packages)


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_publishers_of_one_package_at_once(
    make_package: Make, alice: LocalHub, tmp_path: Path, kind: str
) -> None:
    where = REPO if kind == "hub" else f"file://{tmp_path}/zoo"
    package = make_package()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(go, package, where) for _ in range(4)]:
            done.result()
    files = alice.files(REPO) if kind == "hub" else folder_files(tmp_path / "zoo")
    assert assert_whole(files, package).serial == 1


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_of_two_builds_of_one_key_at_once_one_is_published(
    make_package: Make, alice: LocalHub, tmp_path: Path, kind: str
) -> None:
    where = REPO if kind == "hub" else f"file://{tmp_path}/zoo"
    made = package_builder.draft()["provenance"]
    packages = [make_package(provenance={**made, "seconds": {"trace": n}}) for n in range(4)]
    plans = [plan_publication(package, where) for package in packages]

    def attempt(plan: Publication) -> bool:
        try:
            publish(plan)
        except PublishError:
            return False
        return True

    with ThreadPoolExecutor(len(plans)) as pool:
        published = [*pool.map(attempt, plans)]
    files = alice.files(REPO) if kind == "hub" else folder_files(tmp_path / "zoo")
    (entry,) = assert_whole(files, packages[0]).entries
    assert published.count(True) == 1
    assert entry.manifest == plans[published.index(True)].entry.manifest


# --- killed ---------------------------------------------------------------------------------------
_PUBLISHER = """
import os, sys
import huggingface_hub._commit_api, huggingface_hub.lfs
from qeff_zoo import cli
import qeff_zoo.hub.publish

for line in sys.stdin:
    child = os.fork()
    if not child:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        os._exit(cli.main(["publish", *line.split()]))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def publisher(alice: LocalHub, home: Path) -> Iterator["subprocess.Popen[str]"]:
    """Give a process that publishes in processes of its own, which take no time to start."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", _PUBLISHER], **pipes) as process:
        yield process
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0


def test_killed_at_a_random_moment(
    make_package: Make, alice: LocalHub, publisher: "subprocess.Popen[str]"
) -> None:
    """Kill a publisher at moments: before a request, within an upload, or after an answer that it never read."""
    package = make_package()
    go(package)
    requests, chance, outcomes = len(alice.log), random.Random(SEED), Counter[str]()
    moments = selection.few(30)
    for _ in range(moments):
        alice.clear()
        alice.commit("org/tiny", {"config.json": b"{}"})
        pid: Queue[int] = Queue()
        manner = chance.choice(
            [{"read": 0}, {"read": chance.randrange(package.size)}, {"served": True}]
        )
        kill = lambda pid=pid: os.kill(pid.get(timeout=TIMEOUT), signal.SIGKILL)  # noqa: E731
        alice.fault("[A-Z]+", "", skip=chance.randrange(requests), call=kill, **manner)
        publisher.stdin.write(f"{package.path} {REPO}\n")
        pid.put(int(publisher.stdout.readline()))
        assert int(publisher.stdout.readline()) in (-signal.SIGKILL, 0)
        alice.faults.clear()

        files = alice.files(REPO) if REPO in alice.models else {}
        published = INDEX_NAME in files
        outcomes["published" if published else "nothing"] += 1
        assert_whole(files, *([package] if published else []))
        assert published or not files

        go(package)
        assert_whole(alice.files(REPO), package)
        assert len(titles(alice)) == 2
    assert outcomes["nothing"] > moments // 3


def test_killed_at_changes_of_a_folder_or_within_a_file(make_package: Make, tmp_path: Path) -> None:
    first, second = make_package(1024), make_package(2048)
    go(first, f"file://{tmp_path}/before/zoo")
    argv = ["publish", str(second.path), "file://{place}/zoo", "--of-others"]
    sizes = [1000, len(package_builder.FILES["model.onnx.data"]) // 2]
    whole, *killed = kill(argv, tmp_path / "before", tmp_path / "zoos", most=40, sizes=sizes)

    assert_whole(folder_files(whole.place / "zoo"), first, second)
    assert len(killed) == 42 if selection.EVERY else len(killed) > 6
    assert {run.at for run in killed} >= {
        "open",
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.rmdir",
        "size",
    }
    published = []
    for run in killed:
        zoo = run.place / "zoo"
        listed = len(decode((zoo / INDEX_NAME).read_bytes()).entries) == 2
        assert_listed(folder_files(zoo), *([first, second] if listed else [first]))
        published.append(listed)
        go(second, f"file://{zoo}")
        assert_whole(folder_files(zoo), first, second)
        assert not any((zoo / ".staging").iterdir())
    assert published[:-2] == sorted(published[:-2])  # from one change on
    assert {*published} == {False, True}
