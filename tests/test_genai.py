# SPDX-License-Identifier: Apache-2.0
"""Packages for ONNX Runtime as the genuine onnxruntime-genai opens them: the same tokens, or a reason why not."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai
import pytest
from fixtures_builds import Models
from runnable_package import package as build

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.package.description import describe
from qeff_zoo.targets.ort import genai

SIZES = {"ctx_len": 64, "prefill_seq_len": 4}
PROMPTS = [[0, 45, 116, 19, 20, 54], [0, 45, 116, 19, 20, 77]]


@pytest.fixture(scope="module")
def packages(
    models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Package]]:
    home = tmp_path_factory.mktemp("genai")
    models.trace(models.llama, home)
    falcon = models.checkpoint("falcon-alibi", "falcon", alibi=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        yield {
            "fp32": build(models.llama, **SIZES),
            "int8": build(models.llama, weights="int8", **SIZES),
            # Its attention has no kernel: it reads all rows of the cache, written or not.
            "alibi": build(falcon, **SIZES),
        }


def generated(package: Package, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Generate with onnxruntime-genai, greedily; prompts of one length."""
    model = onnxruntime_genai.Model(str(package.path))
    length = len(prompts[0])
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=length + count, batch_size=len(prompts))
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(np.array(prompts, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [generator.get_sequence(row)[length:].tolist() for row in range(len(prompts))]


@pytest.mark.parametrize("name", ["fp32", "int8", "alibi"])
def test_it_generates_our_tokens(name: str, packages: dict[str, Package]) -> None:
    package = packages[name]
    session: Any = qeff_zoo.load(package)
    ours = [one.token_ids for one in session.generate(PROMPTS, generation_len=16)]
    assert [len(tokens) for tokens in ours] == [16, 16]
    assert generated(package, PROMPTS, 16) == ours
    assert [generated(package, [prompt], 16)[0] for prompt in PROMPTS] == ours
    assert "onnxruntime-genai opens it too" in describe(package)


def test_it_reads_text_and_ends_where_the_model_does(packages: dict[str, Package]) -> None:
    package = packages["fp32"]
    tokenizer = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(str(package.path)))
    session: Any = qeff_zoo.load(package)
    text = "a text of words,\nit's héllo 12"
    ids = tokenizer.encode(text).tolist()
    assert ids == session.tokenizer.encode(text, special_tokens=False)
    assert tokenizer.decode(np.array(ids, np.int32)) == text
    said = json.loads((package.path / genai.CONFIG).read_text())["model"]
    ends = (
        said["eos_token_id"] if isinstance(said["eos_token_id"], list) else [said["eos_token_id"]]
    )
    assert frozenset(ends) == session.eos_token_ids
    assert list(tokenizer.eos_token_ids) == ends


NUMBERS = {"dtype": "int64", "shape": ["batch_size", 1]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": [{"name": "comp_ctx_lengths", **NUMBERS}]}, "compute contexts"),
        ({"inputs": [{"name": "num_logits_to_keep", **NUMBERS}]}, "speculation"),
        ({"inputs": [{"name": "lora_ids", **NUMBERS}]}, "input lora_ids"),
        ({"states": {"kind": "window"}}, "window states"),
        ({"states": {"kind": "recurrent"}}, "recurrent states"),
        ({"states": {"name": "compressed_kv.0"}}, "layers without keys and values of their own"),
        ({"states": {"axes": ["batch_size", 1, "ctx_len", 8]}}, "caches of different sizes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_has_no_place_for_is_said(
    change: dict[str, Any], reason: str, packages: dict[str, Package], tmp_path: Path
) -> None:
    package = packages["fp32"]
    (program,) = package.manifest["programs"]
    first, *others = program["states"]
    states = [{**first, **change.get("states", {})}, *others]
    inputs = [*program["inputs"], *change.get("inputs", ())]
    manifest = {
        **package.manifest,
        "programs": [{**program, "states": states, "inputs": inputs}],
    }
    assert genai.said(manifest) == f"onnxruntime-genai does not open it: {reason}"
    genai.write(tmp_path, manifest)
    assert not [*tmp_path.iterdir()]


def test_a_package_without_the_file_is_said_to_have_none(packages: dict[str, Package]) -> None:
    package = packages["fp32"]
    without = [one for one in package.manifest["files"] if one["path"] != genai.CONFIG]
    manifest = {**package.manifest, "files": without}
    assert "opens it once it is built again" in genai.said(manifest)
    encoder = {**manifest, "task": "feature-extraction"}
    assert genai.said(encoder) == "onnxruntime-genai does not open it: task feature-extraction"
