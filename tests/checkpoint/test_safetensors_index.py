# SPDX-License-Identifier: Apache-2.0
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tiny_checkpoint as tiny
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from qeff_zoo.checkpoint.safetensors_index import TensorReader, index_tensors, read_header
from qeff_zoo.errors import CheckpointError

SAMPLE = save(tiny.tensors(), metadata={"format": "np"})
HEADER_END = 8 + int.from_bytes(SAMPLE[:8], "little")


def reader(path: Path) -> TensorReader:
    return TensorReader(index_tensors([path]))


def with_header(header: Any, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(SAMPLE)
    return path


@pytest.mark.parametrize("name", tiny.tensors())
def test_a_tensor_is_what_was_saved(sample: Path, name: str) -> None:
    saved = tiny.tensors()[name]
    found = reader(sample).read(name)
    assert found.shape == saved.shape
    assert found.tobytes() == saved.tobytes()


def test_dtypes_that_numpy_lacks_are_viewed_as_integers(sample: Path) -> None:
    tensors = reader(sample)
    assert tensors.read("embed.weight").dtype == np.uint16
    assert tensors.read("quantized.weight").dtype == np.uint8
    assert tensors.read("half.weight").dtype == np.float16
    assert {tensor.name: tensor.dtype for tensor in read_header(sample)} == {
        "embed.weight": "BF16",
        "half.weight": "F16",
        "norm.weight": "F32",
        "quantized.weight": "F8_E4M3",
        "scale": "F32",
        "empty": "F16",
        "ids": "I64",
        "mask": "BOOL",
    }


def test_offsets_are_those_of_the_file(sample: Path) -> None:
    for tensor in read_header(sample):
        stored = SAMPLE[tensor.offset : tensor.offset + tensor.nbytes]
        assert stored == tiny.tensors()[tensor.name].tobytes()


@pytest.mark.parametrize(("start", "stop"), [(3, 9), (None, 4), (20, None), (24, 24), (0, 24)])
def test_rows_are_slices(sample: Path, start: int | None, stop: int | None) -> None:
    rows = reader(sample).read("embed.weight", start, stop)
    assert rows.tobytes() == tiny.tensors()["embed.weight"][start:stop].tobytes()


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 25)])
def test_rows_outside_the_tensor_are_refused(sample: Path, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="outside its 24 rows"):
        reader(sample).read("embed.weight", start, stop)


def test_a_scalar_has_no_rows(sample: Path) -> None:
    with pytest.raises(ValueError, match="scalar"):
        reader(sample).read("scale", 0, 1)


def test_packed_floats_are_bytes_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "packed.safetensors"
    header = {"q": entry("F4", [3, 4], [0, 6]), "odd": entry("F4", [2, 3], [6, 9])}
    path.write_bytes(with_header(header, bytes(range(9))))
    assert reader(path).read("q", 1, 3).tolist() == [[2, 3], [4, 5]]
    with pytest.raises(CheckpointError, match="rows of 12 bits"):
        reader(path).read("odd")


def test_nothing_is_copied(sample: Path) -> None:
    tensors = reader(sample)
    whole, rows = tensors.read("embed.weight"), tensors.read("embed.weight", 2, 3)
    assert np.shares_memory(whole, rows)
    assert not whole.flags.writeable


def test_views_outlive_release_and_close(sample: Path) -> None:
    tensors = reader(sample)
    view = tensors.read("embed.weight")
    tensors.release("embed.weight")
    tensors.release("ids")
    tensors.close()
    assert view.tobytes() == tiny.tensors()["embed.weight"].tobytes()
    assert tensors.read("ids").tolist() == [0, 1, 2, 3, 4]


def test_an_unknown_name_gets_the_nearest(sample: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Did you mean 'embed\.weight'"):
        reader(sample).read("embed.weigth")


def test_a_slice_of_a_huge_file_takes_the_memory_of_the_slice(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    rows, width = 3 << 10, 1 << 20  # 3 GiB, all of it a hole
    raw = with_header({"huge": entry("U8", [rows, width], [0, rows * width])})
    with path.open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + rows * width)
    process, tensors = psutil.Process(), reader(path)
    before = process.memory_info().rss
    assert int(tensors.read("huge", rows - 64, rows).max()) == 0
    used = process.memory_info().rss - before
    tensors.release("huge")
    kept = process.memory_info().rss - before
    assert used < 100 << 20
    assert kept < 16 << 20


DAMAGE = {
    "empty file": (b"", "it has 0 bytes"),
    "half a length": (SAMPLE[:5], "it has 5 bytes"),
    "header cut": (SAMPLE[: HEADER_END - 1], "header alone would end at"),
    "data cut": (SAMPLE[:-1], "its header describes"),
    "bytes after the data": (SAMPLE + b"x", "its header describes"),
    "huge header": ((1 << 62).to_bytes(8, "little") + b"{}", "header alone would end at"),
    "not UTF-8": (with_header(b'{"\xff": 1}'), "does not parse"),
    "not JSON": (with_header(b"{]"), "does not parse"),
    "deeply nested": (with_header(b"[" * 100_000), "does not parse"),
    "a name twice": (with_header(b'{"a": {}, "a": {}}'), "a key occurs twice"),
    "a name that is no text": (with_header(b'{"\\ud800": {}}'), "does not parse"),
    "a list": (with_header([]), "not a JSON object"),
    "metadata of numbers": (with_header({"__metadata__": {"a": 1}}), "text for metadata"),
    "a tensor that is a number": (with_header({"a": 1}), "no usable shape"),
    "negative length": (with_header({"a": entry(shape=[-2])}), "no usable shape"),
    "length true": (with_header({"a": entry(shape=[True, 2])}), "no usable shape"),
    "one offset": (with_header({"a": entry(offsets=[0])}), "no usable shape"),
    "too many axes": (with_header({"a": entry(shape=[1] * 33 + [2])}), "no usable shape"),
    "unknown dtype": (with_header({"a": entry("F7")}), "unknown dtype 'F7'"),
    "dtype a list": (with_header({"a": entry(["F32"])}), "unknown dtype"),
    "impossible": (with_header({"a": entry(shape=[0, 1 << 62])}), "impossible shape"),
    "size at odds": (with_header({"a": entry(offsets=[0, 7])}, b"1234567"), "has 7 bytes, not 8"),
    "half a byte": (with_header({"a": entry("F4", [1], [0, 1])}, b"1"), "has 1 bytes, not 0.5"),
    "beyond the file": (with_header({"a": entry()}), "its header describes"),
    "overlap": (
        with_header({"a": entry(), "b": entry(offsets=[4, 12])}, b"123456789012"),
        "overlaps the tensor before it",
    ),
    "hole": (with_header({"a": entry(offsets=[4, 12])}, b"123456789012"), "follows unnamed bytes"),
}


@pytest.mark.parametrize(("content", "reason"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_named_with_its_file(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_an_oversized_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((200 << 20).to_bytes(8, "little"))
        file.truncate(300 << 20)
    with pytest.raises(CheckpointError, match="the format allows"):
        read_header(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Cannot read .*model"):
        read_header(tmp_path / "model.safetensors")


def accepted(content: bytes) -> bool:
    """Read a file whole, and agree with the safetensors package on what may be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        path.write_bytes(content)
        try:
            tensors = TensorReader(index_tensors([path]))
        except CheckpointError:
            return False
        for tensor in index_tensors([path]).values():
            assert tensors.read(tensor.name).shape == tensor.shape
        tensors.close()
        try:
            with safe_open(path, "np") as other:
                assert sorted(other.keys()) == sorted(index_tensors([path]))
        except SafetensorError as error:
            raise AssertionError("safetensors refuses what we read") from error
    return True


@settings(max_examples=example_count(60))
@given(length=st.integers(0, len(SAMPLE) - 1))
def test_every_truncation_is_refused(length: int) -> None:
    assert not accepted(SAMPLE[:length])


@settings(max_examples=example_count(250))
@given(st.dictionaries(st.integers(0, HEADER_END - 1), st.integers(0, 255), max_size=3))
def test_changed_header_bytes_are_harmless_or_refused(changes: dict[int, int]) -> None:
    content = bytearray(SAMPLE)
    for position, value in changes.items():
        content[position] = value
    assert accepted(bytes(content)) or bytes(content) != SAMPLE


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        path.write_bytes(save({"w": np.zeros(2, np.float32)}))
    with pytest.raises(CheckpointError, match=r"'w' is in '.*a.safetensors' and again in"):
        index_tensors(paths)


def test_files_without_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({}))
    with pytest.raises(CheckpointError, match=r"No tensor in '.*model\.safetensors'"):
        index_tensors([path])
