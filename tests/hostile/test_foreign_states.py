# SPDX-License-Identifier: Apache-2.0
"""A folder of prefix caches that somebody else may write to changes no answer, and stops nobody."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_builds import Models

import qeff_zoo
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime.caches import state_cache
from qeff_zoo.runtime.caches.state_cache import StateFiles

PROMPT = [list(range(3, 73))]
STATES = {"a": np.ones((1, 3, 2), np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def package(models: Models, home: Path) -> Package:
    return models.build(models.llama, home, batch_size=2, ctx_len=128, prefill_seq_len=16)


def answer(package: Package, folder: Path | None) -> Any:
    session = qeff_zoo.load(package, threads=1, prefix_cache_dir=folder)
    return session.generate(PROMPT, generation_len=4)[0].token_ids  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(GenerationError, match=f"its mode is {mode:o}, so that others may change"):
        StateFiles(folder, {})
    folder.chmod(0o700)
    files = StateFiles(folder, {})
    next(path for path in folder.iterdir() if path.is_dir()).chmod(mode)
    with pytest.raises(GenerationError, match="its mode is"):
        StateFiles(folder, {})
    assert files.entries == []


def test_a_folder_or_secret_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StateFiles(folder, {})
    (folder / "secret").chmod(0o644)
    with pytest.raises(GenerationError, match="its mode is 644"):
        StateFiles(folder, {})
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(
        GenerationError, match=r"it belongs to user \d+\. Expected a folder of this"
    ):
        StateFiles(folder, {})


def forged(path: Path) -> bytes:
    """Write other states into a file, with the digest that anybody can compute."""
    content = path.read_bytes()[: -state_cache._DIGEST]
    at = 16 + int.from_bytes(content[8:16], "big")
    content = content[:at] + bytes(len(content) - at)
    return content + hashlib.blake2b(content, digest_size=state_cache._DIGEST).digest()


def test_states_without_our_key_are_dropped(
    package: Package, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    genuine = answer(package, None)
    assert answer(package, folder) == genuine
    for path in folder.glob("*/*.states"):
        path.write_bytes(forged(path))
    assert answer(package, folder) == genuine
    assert "it is damaged, or another user wrote it" in caplog.text
    other = folder.with_name("other")  # of another folder, whose secret is another
    assert answer(package, other) == genuine
    for path in other.glob("*/*.states"):
        path.replace(folder / path.relative_to(other))
    caplog.clear()
    assert answer(package, folder) == genuine
    assert "another user wrote it" in caplog.text


@pytest.mark.parametrize("change", ["dtype", "shape", "names"])
def test_what_cannot_be_restored_is_dropped(
    package: Package, folder: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a defect: the digest is right, and the arrays are not."""
    genuine = answer(package, folder)
    session: Any = qeff_zoo.load(package, threads=1, prefix_cache_dir=folder)
    files = session.decoder and StateFiles(folder, terms_of(folder))
    for key, _ in files.entries:
        states = files.read(key)
        assert states
        name, array = next(iter(states.items()))
        changes = {
            "dtype": {name: array.astype(np.float64)},
            "shape": {name: array[..., :1]},
            "names": {"another": array},
        }
        assert files.write(key, {**states, **changes[change]})
    for _ in range(2):  # and computed anew the second time it is there again
        assert answer(package, folder) == genuine
    assert caplog.text.count("have another shape or type") == len(files.entries)


def terms_of(folder: Path) -> Any:
    content = next(folder.glob("*/*.states")).read_bytes()
    return json.loads(content[16 : 16 + int.from_bytes(content[8:16], "big")])["terms"]
