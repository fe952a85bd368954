# SPDX-License-Identifier: Apache-2.0
"""Settings in the metadata of GGUF files besides those of the architecture: sampling, pooling and causality."""

import json
from pathlib import Path
from typing import Any

import fixtures_gguf_alone as alone
import pytest
from transformers import GenerationConfig

from qeff_zoo.checkpoint.gguf.sampling import sampling_of
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import ZooError

PREFIX = "general.sampling."
SAMPLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "usual": (
        {"temp": 0.6000000238418579, "top_k": 20, "top_p": 0.949999988079071, "min_p": 0.0},
        {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0},
    ),
    "greedy": ({"temp": 0.0, "top_k": 40}, {"do_sample": False, "top_k": 40}),
    "penalty": (
        {"penalty_repeat": 1.0499999523162842, "penalty_last_n": 64},
        {"do_sample": True, "repetition_penalty": 1.05},
    ),
    "off": ({"xtc_probability": 0.0, "mirostat": 0, "mirostat_tau": 5.0}, {}),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampling_parameters_are_those_of_the_file(name: str) -> None:
    given, expected = SAMPLED[name]
    found = sampling_of("a.gguf", {f"{PREFIX}{key}": value for key, value in given.items()})
    assert found == expected
    GenerationConfig(**found).validate(strict=False)


@pytest.mark.parametrize(
    ("key", "value"), [("xtc_probability", 0.5), ("mirostat", 2), ("sequence", "top_k"), ("new", 1)]
)
def test_gguf_settings_without_a_field_of_transformers_are_reported(key: str, value: Any) -> None:
    with pytest.warns(
        UserWarning, match=rf"'a\.gguf' sets general\.sampling\.{key} {value!r}, which"
    ):
        assert sampling_of("a.gguf", {f"{PREFIX}{key}": value}) == {}


def test_a_file_alone_has_them(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, begin = alone.gguf.GGUFWriter, alone.gguf.GGUFWriter.write_header_to_file

    def with_sampling(one: Any) -> None:
        one.add_float32(f"{PREFIX}temp", 0.6)
        one.add_int32(f"{PREFIX}top_k", 20)
        one.add_array("tokenizer.ggml.suppress_tokens", [258, 7])
        begin(one)

    monkeypatch.setattr(writer, "write_header_to_file", with_sampling)
    path = alone.write(tmp_path / "model.gguf", alone.make(tmp_path / "model", "llama"))
    checkpoint = open_checkpoint(str(path))
    expected = {"do_sample": True, "temperature": 0.6, "top_k": 20, "suppress_tokens": [258, 7]}
    assert expected.items() <= checkpoint.generation_config.items()
    written = json.loads(checkpoint.companions["generation_config.json"].read_text())
    assert expected.items() <= written.items()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention__causal": True}, "bert.attention.causal is True, and [False] is computed"),
        ({"pooling_type": 4}, "bert.pooling_type is 4, and [0, 1, 2, 3] is computed"),
    ],
    ids=["causal", "reranker"],
)
def test_settings_that_are_not_computed_are_refused(
    home: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    path = alone.write(tmp_path / "a.gguf", alone.make(tmp_path / "model", "bert"), **changes)
    with pytest.raises(ZooError, match="--config-from") as caught:
        open_checkpoint(str(path))
    assert named in str(caught.value)
