# SPDX-License-Identifier: Apache-2.0
"""References of models that do not fit into memory: the same answers, layer by layer, in a part of the memory."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import write
from quantized import quantize
from runnable_package import checkpoint
from transformers import AutoModelForCausalLM

from qeff_zoo.errors import SettingsError
from qeff_zoo.graph.numerics import Numerics, RoundedMatrix, format_of
from qeff_zoo.runtime.memory import MEMORY_ENV, available_memory
from qeff_zoo.validation.judgement.parity import TOLERANCES
from qeff_zoo.validation.reference import process
from qeff_zoo.validation.reference.formats.files import Files
from qeff_zoo.validation.reference.layerwise import Found, Layerwise, unloaded_if_large
from qeff_zoo.validation.reference.loading import load_model, load_unloaded
from qeff_zoo.validation.reference.routing import Choices
from qeff_zoo.validation.reference.subjects import answers_of
from qeff_zoo.validation.trial.faults import Fault

pytestmark = pytest.mark.turns(3)

LENGTHS = (9, 21, 23, 12)
LARGE = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 16,
    "initializer_range": 0.1,
}
LIMIT = 110_000_000  # bytes: of 151 MB, and what each pass keeps of its own
EVERYTHING = {"rounded", "noise", "simulated", "swapped", "loss", "divergence"}


def send_request(folder: Path, numerics: Numerics) -> dict[str, Any]:
    """Return a request as the ladder writes it: four sequences, two stages, a fault of each kind."""
    drawn = np.random.default_rng(0)
    stops = {2: 23, 3: 12}
    faults = [
        Fault(stage="a", kind="position", words="moved", starts={1: 9}, stops={0: 9, 1: 21}),
        Fault(stage="b", kind="window", words="narrow", stops=stops),
        Fault(stage="b", kind="extra", words="seen", stops=stops, token=9),
    ]
    request = {
        "checkpoint": str(folder),
        "task": "text-generation",
        "sequences": [drawn.integers(6, 200, length).tolist() for length in LENGTHS],
        "positions": [[length - 3, length - 1] for length in LENGTHS],
        "settings": {},
        "greedy": {"prompt": [7, 8, 9, 10], "tokens": [11, 12, 13]},
        "numerics": numerics.as_dict(),
        "noise": {"factor": 16, "least": 1e-4},
        "tolerance": asdict(TOLERANCES["parts"]),
        "stages": {"a": [(0, 0), (1, 1)], "b": [(2, 0), (3, 1)]},
        "faults": [fault.as_dict() for fault in faults],
        "runs": [],
    }
    return dict(json.loads(json.dumps(request)))


def int8_of(checkpoint: str | Path, **located: Any) -> Numerics:
    """Return the numerics of a package whose matrices are int8 and whose activations are rounded."""
    model = load_unloaded({"checkpoint": str(checkpoint), **located}, "text-generation", None).model
    matrices = [
        RoundedMatrix(
            name=f"{path}.weight",
            rows=module.weight.shape[0],
            columns=module.weight.shape[1],
            input_major=False,
            format=format_of("int8", 32),
            multiplied=True,
        )
        for path, module in model.named_modules()
        if type(module) is torch.nn.Linear and module.weight.shape[1] % 32 == 0
    ]
    parameters = {name for name, _ in model.named_parameters()}
    if "lm_head.weight" not in parameters:  # tied: the package multiplies by the embedding
        name = next(name for name in parameters if "embed_tokens" in name or "wte" in name)
        matrices = [
            RoundedMatrix(**{**vars(matrix), "name": name})
            if matrix.name == "lm_head.weight"
            else matrix
            for matrix in matrices
        ]
    return Numerics(matrices=tuple(matrices), int8_activations=True)


def run(request: Mapping[str, Any], limit: int | None) -> tuple[Found, bool]:
    """Answer a request in this process; return the answers, and whether layer by layer."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.delenv(MEMORY_ENV, raising=False)
        if limit is not None:
            patch.setenv(MEMORY_ENV, str(limit))
        unloaded = unloaded_if_large(request, {})
        model = unloaded.model if unloaded else load_model(request, request["task"], None)
        answers = answers_of(model, request, {})
        choices = Choices(request["runs"], {}, **request["noise"])
        if unloaded:
            return Layerwise(unloaded, request, answers, choices).run(), True
        return process._run_variants(model, request, answers, choices), False


def compare(whole: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Assert that answers are equal, bit for bit, and of all variants but those canaries that were not needed."""
    canaries = ("canary.",)
    names = {name for name in whole if not name.startswith(canaries)}
    assert names == {name for name in other if not name.startswith(canaries)}
    assert {name.partition(".")[0] for name in names} >= EVERYTHING
    for name in names | (whole.keys() & other.keys()):
        np.testing.assert_array_equal(whole[name], other[name], err_msg=name)
    assert any(name.startswith(canaries) for name in other)


# --- memory ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 151 MB in float32, in bfloat16 and in more than three files."""
    made = checkpoint(tmp_path_factory.mktemp("large") / "made", "llama", **LARGE)
    model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16)
    folder = made.with_name("large")
    model.save_pretrained(folder, max_shard_size="15MB")
    assert len([*folder.glob("*.safetensors")]) >= 3
    return folder


#: Lets the allocator give matrices back at once, so that what is measured is what is held. A forked process reads no
#: such variable, so a warm interpreter does not do.
_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536"}

_MEASURED = """
import sys, threading, time
from pathlib import Path
from qeff_zoo.validation.reference import process

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

before, peak = anonymous(), [0]
threading.Thread(target=watch, daemon=True).start()
process.main(["answer.npz", "arrays.npz"])
Path("peak").write_text(str(max(peak[0], anonymous()) - before))
"""


def measured(request: Mapping[str, Any], folder: Path, **environment: str) -> tuple[Any, int]:
    """Run the reference in a process; return its answers, and the most memory that it took."""
    folder.mkdir()
    np.savez(folder / "arrays.npz")
    subprocess.run(
        [sys.executable, "-c", _MEASURED],
        input=json.dumps(request) + "\n",
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **_RETURNED, **environment},
        text=True,
        check=True,
        capture_output=True,
    )
    with np.load(folder / "answer.npz") as answer:
        return dict(answer), int((folder / "peak").read_text())


@pytest.mark.full
def test_a_model_larger_than_memory_is_computed_in_a_part_of_it(
    large: Path, tmp_path: Path
) -> None:
    request = send_request(large, int8_of(large))
    whole, most = measured(request, tmp_path / "whole")
    layered, least = measured(request, tmp_path / "layered", **{MEMORY_ENV: str(LIMIT)})
    size = 4 * sum(
        parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(large).parameters()
    )
    assert LIMIT < size < most
    assert least < LIMIT
    about = [json.loads(str(one.pop("about"))) for one in (whole, layered)]
    assert [one.pop("layer_by_layer") for one in about] == [False, True]
    compare(whole, layered)
    assert about[0] | {"noticed": None, "greedy": None} == about[1] | {
        "noticed": None,
        "greedy": None,
    }
    assert about[0]["noticed"]["faults"] == about[1]["noticed"]["faults"] != []
    assert about[1]["noticed"]["stages"].keys() == {"a", "b"}


# --- one read -------------------------------------------------------------------------------------
@pytest.mark.parametrize("tied", [False, True])
def test_each_tensor_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    folder = checkpoint(tmp_path / "made", "llama", tie_word_embeddings=tied)
    request, reads, read = send_request(folder, int8_of(folder)), Counter[str](), Files.__getitem__

    def count(files: Files, name: str) -> torch.Tensor:
        reads[name] += 1
        return read(files, name)

    monkeypatch.setattr(Files, "__getitem__", count)
    run(request, 1)
    assert len(reads) == 4 * 9 + 2 + (not tied)
    twice = {"model.embed_tokens.weight"} if tied else set()
    assert reads == {name: 1 + (name in twice) for name in reads}


# --- kinds of models and checkpoints --------------------------------------------------------------
def _plain(model_type: str, tiny: int = 0, **config: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {
        "checkpoint": str(checkpoint(folder / "made", model_type, tiny, **config))
    }


def _quantized(folder: Path) -> dict[str, Any]:
    made = checkpoint(folder / "made", "llama")
    return {"checkpoint": str(quantize(made, folder / "quantized", "gptq-ordered"))}


def _gguf(folder: Path) -> dict[str, Any]:
    made = checkpoint(folder / "made", "llama")
    path = write(folder / "model.gguf", made, "Q8_0")
    (made / "model.safetensors").unlink()
    return {"checkpoint": str(made), "gguf": [str(path)]}


KINDS = {
    "untied": _plain("llama"),
    "windows": _plain("gemma3_text"),  # tied, with a scaled embedding
    "transposed": _plain("gpt2"),  # heads are damaged by a hook, positions are in no layer
    "experts": _plain("mixtral"),  # several tensors are one parameter
    "hybrid": _plain("jamba"),
    "quantized": _quantized,
    "gguf": _gguf,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(3)
def test_answers_are_those_of_the_whole_model(tmp_path: Path, kind: str) -> None:
    located = KINDS[kind](tmp_path)
    request = send_request(Path(located["checkpoint"]), int8_of(**located)) | located
    (whole, is_whole), (layered, is_layered) = run(request, None), run(request, 1)
    assert (is_whole, is_layered) == (False, True)
    compare(whole.arrays, layered.arrays)
    assert whole.noticed["faults"] == layered.noticed["faults"]
    assert whole.greedy[0] == layered.greedy[0]


# --- what is refused ------------------------------------------------------------------------------
def test_large_encoder_is_refused_by_the_layerwise_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "made", "bert")
    request = {"checkpoint": str(folder), "task": "feature-extraction", "settings": {}}
    assert unloaded_if_large(request, {}) is None
    monkeypatch.setenv(MEMORY_ENV, "1000")
    with pytest.raises(ValueError, match=r"float32 weights need .* 1 kB are available, and only"):
        unloaded_if_large(request, {})


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "made", "llama", num_hidden_layers=2)
    text = json.loads((folder / "config.json").read_text()) | {
        "num_hidden_layers": 3,
        "layer_types": None,
    }
    (folder / "config.json").write_text(json.dumps(text))
    with pytest.raises(
        ValueError, match=r"The checkpoint has no \['model.layers.2.input_layernorm"
    ):
        load_unloaded({"checkpoint": str(folder)}, "text-generation", None)


def test_a_limit_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_ENV, "12345")
    assert available_memory() == 12345
    monkeypatch.setenv(MEMORY_ENV, "8 GB")
    with pytest.raises(SettingsError, match="QEFF_ZOO_MEMORY is '8 GB'; expected bytes"):
        available_memory()
