# SPDX-License-Identifier: Apache-2.0
"""A store of two users in a folder of their group: both build, pull and run, and neither removes what the other uses.

Users are ids without accounts, and only root can change to them. The tests fork this process for a user's commands.
"""

import hashlib
import io
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from fixtures_builds import Models
from remote_builder import make, noise, remote

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.store import Store

pytestmark = [
    pytest.mark.skipif(
        os.name != "posix" or os.geteuid() != 0, reason="only root runs commands as other users"
    ),
    pytest.mark.turns(2),
]
ALICE, BOB, GROUP = 41_001, 41_002, 41_000
WEIGHTS = noise(200_000)


class Shared:
    """Folder of a group, with a store and a checkpoint.

    Args:
        root: The folder.
        checkpoint: Checkpoint that everybody can read.
    """

    def __init__(self, root: Path, checkpoint: Path) -> None:
        self.home, self.checkpoint = root / "home", checkpoint

    def begin(self, user: int, *argv: str, umask: int = 0o002) -> tuple[int, int]:
        """Begin a command as a user; return the process and a pipe with its output."""
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            return child, reading
        code, text = 99, io.StringIO()
        try:
            os.setgroups([GROUP])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(umask)
            os.environ.update(QEFF_HOME=str(self.home), HOME="/nonexistent", QEFF_ZOO_TRUST="off")
            with redirect_stdout(text), redirect_stderr(text):
                code = self._run(argv, writing)
        except BaseException:
            text.write(traceback.format_exc())
        finally:
            os.write(writing, text.getvalue().encode()[-20_000:])
            os._exit(code)

    def _run(self, argv: tuple[str, ...], writing: int) -> int:
        if argv[0] == "half":
            with Store().partials.claim(argv[1]) as path:
                path.write_bytes(WEIGHTS[:150_000])
                os.kill(os.getpid(), signal.SIGKILL)
        if argv[0] != "hold":
            return cli.main([*argv])
        session = qeff_zoo.load(argv[1], threads=1)
        os.write(writing, b"held")
        Path(argv[2]).read_text()  # of a FIFO, until somebody writes
        del session
        return 0

    def run(self, user: int, *argv: str, **options: Any) -> tuple[int, str]:
        """Run a command as a user; return its exit code and output."""
        child, reading = self.begin(user, *argv, **options)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text

    def build(self, user: int, *more: str, **options: Any) -> tuple[int, str]:
        """Build the checkpoint as a user."""
        return self.run(user, "build", str(self.checkpoint), "--no-validate", *more, **options)


@pytest.fixture
def shared(models: Models) -> Iterator[Shared]:
    """Give a folder that is not below root's own, as those of pytest are, with the graph of a checkpoint."""
    root = Path(tempfile.mkdtemp(prefix="qeff-zoo-shared-"))
    checkpoint = Path(shutil.copytree(models.llama, root / "llama"))
    models.trace(models.llama, root / "home")
    for path in (root, *root.rglob("*")):
        os.chown(path, 0 if "llama" in path.parts else ALICE, GROUP)
        path.chmod(0o2775 if path.is_dir() else 0o664)
    yield Shared(root, checkpoint)
    shutil.rmtree(root)


def test_both_users_build_and_run(shared: Shared) -> None:
    assert shared.build(ALICE)[0] == 0
    code, text = shared.build(BOB)
    assert (code, "was in the store already" in text) == (0, True)
    assert shared.build(BOB, "--ctx-len", "64")[0] == 0
    packages = {path.stat().st_uid: path for path in (shared.home / "packages").iterdir()}
    assert {*packages} == {ALICE, BOB}
    for user, path in ((BOB, packages[ALICE]), (ALICE, packages[BOB])):
        code, text = shared.run(user, "run", str(path), "--prompt", "a", "--generation-len", "3")
        assert code == 0, text
    code, text = shared.run(BOB, "cache", "verify")
    assert (code, text.count("intact")) == (0, 3)
    assert shared.run(BOB, "cache", "gc", "--older-than", "0")[0] == 0
    assert [*(shared.home / "packages").iterdir()] == []


def test_a_package_of_another_users_process_stays(shared: Shared, tmp_path: Path) -> None:
    assert shared.build(ALICE)[0] == 0
    (package,) = (shared.home / "packages").iterdir()
    fifo = shared.home.parent / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    child, reading = shared.begin(ALICE, "hold", str(package), str(fifo))
    with os.fdopen(reading) as pipe:
        assert pipe.read(4) == "held"
        assert shared.run(BOB, "cache", "gc", "--older-than", "0")[0] == 0
        assert package.exists()
        code, text = shared.run(BOB, "cache", "rm", package.name)
        assert (code, "a process runs it" in text) == (1, True)
        fifo.write_text("")
        assert pipe.read() == ""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared.run(BOB, "cache", "gc", "--older-than", "0")[0] == 0
    assert not package.exists()


def test_a_private_folder_of_another_user_is_used_and_not_written(shared: Shared) -> None:
    """By the umask of most systems, a group may read."""
    assert shared.build(ALICE)[0] == 0
    for path in (shared.home, *shared.home.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022)
    (package,) = (shared.home / "packages").iterdir()
    assert shared.build(BOB)[0] == 0
    code, text = shared.run(BOB, "run", str(package), "--prompt", "a", "--generation-len", "3")
    assert code == 0, text
    for argv in (
        ("build", str(shared.checkpoint), "--no-validate", "--ctx-len", "64"),
        ("cache", "gc", "--older-than", "0"),
        ("cache", "rm", package.name),
    ):
        code, text = shared.run(BOB, *argv)
        assert (code, "Permission denied" in text, "Traceback" in text) == (1, True, False), text
    assert [*Store(shared.home).verify().values()] == [[], []]


@pytest.mark.parametrize("umask", [0o002, 0o022], ids=["group", "private"])
def test_a_new_store_of_either_umask_is_shared(shared: Shared, umask: int) -> None:
    """The other user runs the package; by a private umask a build ends, and names the folder that is in the way."""
    for path in (entry for entry in shared.home.iterdir() if entry.name != "graphs"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    code, text = shared.build(ALICE, umask=umask)
    assert code == 0, text
    (package,) = (shared.home / "packages").iterdir()
    for argv in (
        ("run", str(package), "--prompt", "a", "--generation-len", "3"),
        ("inspect", str(package)),
        ("cache", "verify"),
        ("build", str(shared.checkpoint), "--no-validate"),
    ):
        code, text = shared.run(BOB, *argv, umask=umask)
        assert code == 0, text
    for argv in (
        ("build", str(shared.checkpoint), "--no-validate", "--ctx-len", "64"),
        ("cache", "gc", "--older-than", "0"),
        ("cache", "rm", package.name),
    ):
        code, text = shared.run(BOB, *argv, umask=umask)
        assert "Traceback" not in text
        if umask == 0o002:
            assert code == (0 if argv[:2] != ("cache", "rm") else 1), text
        else:
            assert (code, str(shared.home) in text, "Permission denied" in text) == (1, True, True)
    left = [*(shared.home / "packages").iterdir()]
    assert left == ([package] if umask == 0o022 else [])
    assert [*(shared.home / "staging").iterdir()] == []


@pytest.mark.parametrize("umask", [0o002, 0o022], ids=["group", "private"])
def test_a_download_goes_on_as_another_user(shared: Shared, tmp_path: Path, umask: int) -> None:
    published = make(tmp_path / "published", {"model.onnx.data": WEIGHTS})
    zoo = shared.home.parent / "zoo"
    for name, content in remote(published).items():
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_bytes(content)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    partial = shared.home / "partials" / digest
    partial.parent.mkdir(mode=0o2775)
    os.chown(partial.parent, ALICE, GROUP)
    partial.parent.chmod(0o2775)
    assert shared.run(ALICE, "half", digest, umask=umask)[0] == -signal.SIGKILL
    assert partial.stat().st_size == 150_000
    code, text = shared.run(BOB, "pull", f"file://{zoo}")
    assert code == 0, text
    assert not partial.exists()
