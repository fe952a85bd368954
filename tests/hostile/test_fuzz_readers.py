# SPDX-License-Identifier: Apache-2.0
"""Whatever a foreign file holds, reading it gives something, or an error of ours, quickly and on no other file.

Manifests, indexes and bundles have tests of their own (test_fuzz_manifest.py, test_fuzz_sharing.py), and so have
images, videos and recordings (test_fuzz_media.py), GGUF files (test_gguf_files.py) and quantized checkpoints.
QEFF_ZOO_TEST_CASES=1000 tries that many with each reader.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_builds import Models
from fuzzing import CASES, changed, changes, example_count
from hypothesis import given, settings
from hypothesis import strategies as st

from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
from qeff_zoo.checkpoint.files import read_config
from qeff_zoo.checkpoint.generation_settings import GenerationSettings, effective_of, problems
from qeff_zoo.checkpoint.safetensors_index import index_tensors
from qeff_zoo.errors import GenerationError, ZooError
from qeff_zoo.package import Package
from qeff_zoo.runtime.caches.state_cache import StateFiles
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.sessions.opening import _fitting

FEW = settings(CASES, max_examples=example_count(12))
SECONDS = 5.0  # for one case, on a machine that does other things too

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 256, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, "hidden_act": "silu",
    "tie_word_embeddings": True, "max_position_embeddings": 64, "eos_token_id": [1, 2], "dtype": "float32",
    "id2label": {"0": "a"}, "quantization_config": None, "layer_types": ["full_attention"] * 2,
}  # fmt: skip
GENERATION = {
    "eos_token_id": [1, 2],
    "bos_token_id": 0,
    "max_length": 20,
    "suppress_tokens": [1],
    "forced_eos_token_id": 2,
}
ADAPTER = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "org/model",
    "use_rslora": False, "use_dora": False, "bias": "none", "rank_pattern": {}, "alpha_pattern": {"q_proj": 2},
    "layers_to_transform": [0], "modules_to_save": None, "fan_in_fan_out": False,
}  # fmt: skip
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
    "decoder": None, "model": {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1, "b": 2, "?": 3}, "unk_token": "?"},
}  # fmt: skip
SETTINGS = {
    "bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": "{{ 1 }}"}],
    "split_special_tokens": False, "truncation_side": "left", "clean_up_tokenization_spaces": True,
}  # fmt: skip
HEADER = {
    "__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]},
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message.content | trim }}\n{% endfor %}"
)


@dataclass(frozen=True)
class Reader:
    """One kind of foreign file.

    Args:
        name: Of the file.
        genuine: What it holds: a JSON value, or bytes.
        read: Reads it in its folder.
    """

    name: str
    genuine: Any
    read: Callable[[Path], Any]

    @property
    def content(self) -> bytes:
        return (
            self.genuine if isinstance(self.genuine, bytes) else json.dumps(self.genuine).encode()
        )


def _safetensors(header: Any) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(32)


def _model(folder: Path) -> Any:
    """Make the model of a config that is small enough to be made: others are refused by their shapes, later."""
    from qeff_zoo.export.loader import build_meta

    config = read_config(folder / "config.json")
    if config["model_type"] == "llama" and all(
        abs(value) < 10_000 for value in config.values() if isinstance(value, int)
    ):
        return build_meta(config, "text-generation")
    return config


def _tokenizer(folder: Path) -> Any:
    if not (folder / "tokenizer.json").exists():
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return Tokenizer(folder).encode("a b")


def _template(folder: Path) -> Any:
    found = ChatTemplate.find(folder)
    return found and found.render([{"role": "user", "content": "a"}])


def _adapter(folder: Path) -> Any:
    from safetensors.numpy import save

    if not (folder / "adapter_model.safetensors").exists():
        names = ("lora_A", "lora_B")
        shapes = ((4, 8), (8, 4))
        place = "base_model.model.model.layers.0.self_attn.q_proj"
        pairs = zip(names, shapes, strict=True)
        content = {f"{place}.{name}.weight": np.zeros(shape, np.float32) for name, shape in pairs}
        (folder / "adapter_model.safetensors").write_bytes(save(content))
    adapter = open_adapter(folder)
    adapter.require({})
    return adapter.modules, [adapter.scaling(module) for module in adapter.modules]


def _generation(folder: Path) -> Any:
    values = effective_of(folder)
    if found := [*problems(values)]:
        raise GenerationError("\n".join(found))
    return GenerationSettings.of(values)


def opening(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Read a file of a package as whoever opens a session does, who says what does not fit."""

    def opened(folder: Path) -> Any:
        with _fitting(Package(folder, {})):
            return read(folder)

    return opened


READERS = (
    Reader("config.json", CONFIG, _model),
    Reader("generation_config.json", GENERATION, opening(_generation)),
    Reader("tokenizer.json", TOKENIZER, opening(_tokenizer)),
    Reader(
        "tokenizer_config.json",
        SETTINGS,
        opening(lambda folder: (_tokenizer(folder), _template(folder))),
    ),
    Reader("chat_template.jinja", TEMPLATE.encode(), opening(_template)),
    Reader("adapter_config.json", ADAPTER, _adapter),
    Reader(
        "model.safetensors",
        _safetensors(HEADER),
        lambda folder: index_tensors([folder / "model.safetensors"]),
    ),
)
JSON = [reader for reader in READERS if not isinstance(reader.genuine, bytes)]
DAMAGE = st.tuples(st.floats(0, 1), st.binary(max_size=4))


def attempt(reader: Reader, folder: Path, content: bytes) -> None:
    """Read a file with this content; the error must be one of ours."""
    (folder / reader.name).write_bytes(content)
    begun, message = time.process_time(), ""
    try:
        reader.read(folder)
    except ZooError as error:
        message = str(error)
    assert len(message) < 6000
    assert time.process_time() - begun < SECONDS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", JSON, ids=lambda reader: reader.name)
@FEW
@given(data=st.data())
def test_unexpected_values(reader: Reader, tmp_path: Path, data: st.DataObject) -> None:
    made = data.draw(changes(reader.genuine))
    attempt(reader, tmp_path, json.dumps(changed(reader.genuine, made)).encode())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@FEW
@given(damage=DAMAGE)
def test_unexpected_bytes(reader: Reader, tmp_path: Path, damage: tuple[float, bytes]) -> None:
    place, put = int(damage[0] * len(reader.content)), damage[1]
    attempt(reader, tmp_path, reader.content[:place] + put + reader.content[place + 1 :])


@pytest.mark.filterwarnings("ignore")
@FEW
@given(made=changes(HEADER))
def test_an_unexpected_header(tmp_path: Path, made: Any) -> None:
    attempt(READERS[6], tmp_path, _safetensors(changed(HEADER, made)))


@FEW
@given(damage=DAMAGE)
def test_unexpected_states(tmp_path: Path, damage: tuple[float, bytes]) -> None:
    files, key = StateFiles(tmp_path / "kept", {}), bytes(32)
    states = {"a": np.ones((2, 3), np.float32)}
    assert files.write(key, states)
    content = files._path(key).read_bytes()
    place = int(damage[0] * len(content))
    other = content[:place] + damage[1] + content[place + 1 :]
    files._path(key).write_bytes(other)
    found = files.read(key)
    assert (found is None) == (other != content)


def test_what_is_genuine_is_read(models: Models, tmp_path: Path) -> None:
    for reader in READERS:
        (tmp_path / reader.name).write_bytes(reader.content)
    for reader in READERS:
        reader.read(tmp_path)
