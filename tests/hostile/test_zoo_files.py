# SPDX-License-Identifier: Apache-2.0
"""Zoo files of a farm, and records that a site reads: whatever they hold, they are read or refused by name, soon."""

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from fuzzing import CASES, changed, changes, example_count
from hypothesis import given, settings
from hypothesis import strategies as st

from qeff_zoo.errors import FarmError, PackageError
from qeff_zoo.farm.zoo_file import read
from qeff_zoo.site import evidence, gather
from qeff_zoo.validation.judgement.known_models import FOLDER

MODEL = '[[models]]\nmodel = "org/model"\n'
SIZES = ("ctx_len", "prefill_seq_len", "full_batch_size")
SECONDS = 3.0
FILES = {
    "deep": MODEL + "x = " + "[" * 20_000,
    "deep tables": MODEL + "x = " + "{a = " * 20_000,
    "a long name": f'[[models]]\nmodel = "{"a" * 5000}"\n',
    "a long pattern": f'[[models]]\nmodel = "{"a" * 5000}*"\n',
    "no pattern": '[[models]]\nmodel = "a**b"\n',
    "zero": '[[models]]\nmodel = "a\\u0000*"\n',
    "another user": '[[models]]\nmodel = "~nobody-there/model"\n',
    "size": f'{MODEL}memory = "{"9" * 5000} GB"\n',
    "number": f"{MODEL}memory = {'9' * 5000}\n",
    "variants": f"{MODEL}[[variants]]\n"
    + "\n".join(f"{size} = {[*range(1, 400)]}" for size in SIZES),
    "no JSON number": f"{MODEL}[[variants]]\nqnn_config = {{a = [nan]}}\n",
    "a date": f"{MODEL}[[include]]\nqnn_config = {{a = 2020-01-01}}\n",
    "special files": '[[models]]\nmodel = "folder*"\n',
    "special weights": '[[models]]\nmodel = "*.gguf"\n',
}
RECORD = json.loads((FOLDER / "local" / "tiny-llama.json").read_bytes())


@pytest.mark.parametrize("name", FILES)
def test_a_zoo_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for fifo in ("folder/config.json", "a.gguf"):
        os.mkfifo(tmp_path / fifo)
    (tmp_path / "zoo.toml").write_text(FILES[name])
    begun = time.process_time()
    with pytest.raises(FarmError, match=r"zoo\.toml"):
        read(tmp_path / "zoo.toml")
    assert time.process_time() - begun < SECONDS


def test_a_zoo_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zoo.toml").write_bytes(b"\xff")
    for path in (tmp_path / "zoo.toml", tmp_path, tmp_path / "none.toml"):
        with pytest.raises(FarmError, match="cannot be read"):
            read(path)


def attempt(place: Path, content: bytes) -> None:
    """Read a record as a site does."""
    (place / "org").mkdir(exist_ok=True)
    (place / "org" / "model.json").write_bytes(content)
    found: Any = defaultdict(gather._Found)
    for file in place.glob("*/*.json"):
        message = "is no record"
        try:
            gather._add_file(found, file)
        except PackageError as error:
            message = str(error)
        assert "is no record" in message or "newer qeff-zoo" in message
        assert len(message) < 6000


@settings(CASES, max_examples=example_count(300))
@given(made=changes(RECORD))
def test_unexpected_records(tmp_path: Path, made: Any) -> None:
    attempt(tmp_path, json.dumps(changed(RECORD, made)).encode())


@settings(CASES, max_examples=example_count(100))
@given(damage=st.tuples(st.floats(0, 1), st.binary(max_size=4)))
def test_unexpected_bytes_of_records(tmp_path: Path, damage: tuple[float, bytes]) -> None:
    content = json.dumps(RECORD).encode()
    place = int(damage[0] * len(content))
    attempt(tmp_path, content[:place] + damage[1] + content[place + 1 :])


def test_records_that_are_no_files(tmp_path: Path) -> None:
    attempt(tmp_path, b"[" * 100_000)
    os.mkfifo(tmp_path / "org" / "pipe.json")
    with pytest.raises(PackageError, match=r"is no record of this version: .*Not a regular file"):
        evidence.read_records(tmp_path / "org" / "pipe.json")
