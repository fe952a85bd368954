# SPDX-License-Identifier: Apache-2.0
"""A FIFO, where a file of somebody else is read, keeps nobody waiting."""

import ast
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from fixtures_builds import Models
from fixtures_pulls import pull
from remote_builder import entry_of, make, write_remote

from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.errors import ZooError
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.pull.bundle import import_bundle
from qeff_zoo.hub.pull.lock import read_lock
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME
from qeff_zoo.package.prepared import PREPARED
from qeff_zoo.runtime.caches.state_cache import StateFiles
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt

SECONDS = 10.0
CORE = ROOT / "qeff_zoo"
#: What reads files that a user names, our own, or those of the system.
OWN = {
    "qefficient/sdks.py", "qefficient/cloud/finetune.py", "cli/doctor.py", "finetuning/config_files.py",
    "hub/trust/policy.py", "hub/trust/signatures.py", "media/images.py", "media/audio.py", "media/videos.py",
    "package/schemas.py", "terminal/progress.py", "runtime/memory.py", "settings.py", "disk/text_files.py",
    "disk/yaml_files.py",
    "cli/options.py", "runtime/engine/disaggregated.py", "weights/writing.py", "scaffold/subject.py",
    "export/transforms/__init__.py", "disk/processes.py", "disk/cloning.py", "quantizer/writing.py",
    "checkpoint/gguf/config.py", "checkpoint/gguf/names.py", "checkpoint/gguf/vocabulary.py", "pipeline/graphs.py",
    "serving/server/page.py", "site/pages.py", "farm/cluster.py",
    "tasks/encoders/reference.py", "unsupported.py", "runtime/text/chat_output/formats.py",
}  # fmt: skip
FOLDERS = (
    "targets/",
    "checkpoint/formats/",
    "validation/",
    "prediction/",
)  # SDKs' files, our own tables, our own processes'


@contextmanager
def unblocked(fifo: Path) -> Iterator[None]:
    """Let go whoever still waits for a FIFO at the end."""
    try:
        yield
    finally:
        try:
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return


def outcome(fifo: Path, read: Callable[[], Any]) -> Any:
    """Put a FIFO somewhere, read it, and give what is returned or raised; "waiting" if nothing is."""
    fifo.unlink(missing_ok=True)
    fifo.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(fifo)
    found: list[Any] = ["waiting"]

    def work() -> None:
        try:
            found.append(read())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    with unblocked(fifo):
        thread.start()
        thread.join(SECONDS)
    return found[-1]


def doors(tmp: Path, models: Models) -> dict[str, tuple[Path, Callable[[], Any]]]:
    """Give every kind of foreign file: where it lies, and what reads it."""
    package = make(tmp / "package")
    zoo = tmp / "zoo"
    url = write_remote(zoo, package)
    there = zoo / entry_of(package).path
    checkpoint = models.copy(models.llama, tmp / "checkpoint")
    adapter = tmp / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 4}')
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    states = StateFiles(tmp / "states", {})
    return {
        "manifest": (package.path / MANIFEST_NAME, lambda: Package.open(package.path)),
        "signature": (package.path / SIGNATURE_NAME, lambda: Package.open(package.path).verify()),
        "file": (package.path / "model.onnx", lambda: Package.open(package.path)),
        "index": (zoo / INDEX_NAME, lambda: pull(url)),
        "remote manifest": (there / MANIFEST_NAME, lambda: pull(url)),
        "remote file": (there / "model.onnx", lambda: pull(url)),
        "bundle": (tmp / "x.tar", lambda: import_bundle(tmp / "x.tar")),
        "lock": (tmp / "lock", lambda: read_lock(tmp / "lock")),
        "prepared": (tmp / PREPARED, lambda: adopt(tmp, tmp, Store())),
        "states": (states._path(bytes(32)), lambda: states.read(bytes(32))),
        "secret": (tmp / "other" / "secret", lambda: StateFiles(tmp / "other", {})),
        "digest": (tmp / "any", lambda: sha256_file(tmp / "any")),
        "adapter": (adapter / "adapter_config.json", lambda: open_adapter(adapter)),
        "adapter weights": (adapter / "adapter_model.safetensors", lambda: open_adapter(adapter)),
        "gguf": (tmp / "m.gguf", lambda: open_checkpoint(str(tmp / "m.gguf"))),
        **{
            name: (checkpoint / name, lambda: open_checkpoint(str(checkpoint)))
            for name in (
                "config.json",
                "tokenizer.json",
                "model.safetensors",
                "1_Pooling/config.json",
            )
        },
    }


NAMES = (
    "manifest", "signature", "file", "index", "remote manifest", "remote file", "bundle", "lock", "prepared", "states",
    "secret", "digest", "adapter", "adapter weights", "gguf", "config.json", "tokenizer.json", "model.safetensors",
    "1_Pooling/config.json",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_reader_waits_for_a_fifo(name: str, models: Models, home: Path, tmp_path: Path) -> None:
    found = doors(tmp_path, models)
    assert sorted(found) == sorted(NAMES)
    settings = outcome(*found[name])
    if name in ("states", "signature"):  # computed again; what is no file is no signature
        assert settings in (None, [])
    else:
        assert isinstance(settings, OSError if name == "digest" else ZooError), settings
        assert "Expected" in str(settings) or "expected" in str(settings) or name == "digest"


def test_foreign_files_are_read_in_one_way() -> None:
    """By `qeff_zoo.disk.regular`, and not by what waits for a FIFO."""
    others = []
    for path in CORE.rglob("*.py"):
        name = path.relative_to(CORE).as_posix()
        if name in OWN or name.startswith(FOLDERS) or name == "disk/regular.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = [ast.unparse(each) for each in node.args]
                reads = node.func.attr in ("read_bytes", "read_text")
                if (reads and not given) or (node.func.attr == "open" and given[:1] == ["'rb'"]):
                    others.append(f"{name}:{node.lineno}")
    assert others == []
