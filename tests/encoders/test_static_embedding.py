# SPDX-License-Identifier: Apache-2.0
"""Static embeddings of sentence-transformers and model2vec: their packages embed as the library itself."""

import json
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_serving import MODEL, post, running
from safetensors.torch import load_file, save_file
from sentence_models import TEXTS, built, dense, normalize, of_library, of_witness, tokenizer
from sentence_transformers import SentenceTransformer

from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import main
from qeff_zoo.errors import CheckpointError, PlanError
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

Making = Callable[[Path], Path]
SIZE = 12
_WEIGHTS = "model.safetensors"


def saved(
    *modules: Callable[[], Any], dtype: torch.dtype = torch.float32, **options: Any
) -> Making:
    """Return a function that saves a model as sentence-transformers does."""

    def make(folder: Path) -> Path:
        torch.manual_seed(4)
        vectors = torch.randn(len(tokenizer()), SIZE).to(dtype)
        static = of_library.StaticEmbedding(tokenizer(), embedding_weights=vectors)
        made = [module() for module in modules]
        for module in made:
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
        model = SentenceTransformer(modules=[static, *made], device="cpu", **options)
        model.save_pretrained(str(folder), create_model_card=False)
        return folder

    return make


def older(folder: Path) -> Path:
    """Save a model whose module has a folder of its own, as releases before 5 write it."""
    saved()(folder)
    (folder / "0_StaticEmbedding").mkdir()
    for name in (_WEIGHTS, "tokenizer.json"):
        (folder / name).rename(folder / "0_StaticEmbedding" / name)
    kind = "sentence_transformers.models.StaticEmbedding"
    listed = [{"idx": 0, "name": "0", "path": "0_StaticEmbedding", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def of_model2vec(**changes: Callable[[torch.Tensor], torch.Tensor]) -> Making:
    """Return a function that saves a model as model2vec does.

    Args:
        changes: Functions of the vectors that make further tensors.
    """

    def make(folder: Path) -> Path:
        saved(normalize)(folder)
        vectors = load_file(folder / _WEIGHTS)["embedding.weight"]
        further = {name: change(vectors) for name, change in changes.items()}
        save_file({"embeddings": vectors, **further}, folder / _WEIGHTS)
        config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True}
        (folder / "config.json").write_text(json.dumps({**config, "hidden_dim": SIZE}))
        listed = json.loads((folder / "modules.json").read_text())
        listed[0] |= {"path": ".", "type": "sentence_transformers.models.StaticEmbedding"}
        (folder / "modules.json").write_text(json.dumps(listed))
        return folder

    return make


def truncating(folder: Path) -> Path:
    """Save a model whose tokenizer truncates texts."""
    saved()(folder)
    made = json.loads((folder / "tokenizer.json").read_text())
    made["truncation"] = {
        "direction": "Right",
        "max_length": 7,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(made))
    return folder


RIGHT: dict[str, Making] = {
    "plain": saved(),
    "dense": saved(lambda: dense(9, SIZE), normalize, dtype=torch.float16),
    "prompts": saved(normalize, prompts={"query": "query: ", "document": "the "}),
    "older": older,
    "model2vec": of_model2vec(),
    "model2vec-quantized": of_model2vec(
        mapping=lambda vectors: torch.arange(len(vectors)).flip(0),
        weights=lambda vectors: torch.linspace(0.1, 2, len(vectors), dtype=torch.float64),
    ),
    "truncating": truncating,
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.sampled(2)
def test_a_package_embeds_as_the_library(name: str, home: Path, tmp_path: Path) -> None:
    folder = RIGHT[name](tmp_path / "model")
    # The library computes in the type of the vectors.
    session, model = built(folder, seq_lens=(16, 80)), of_witness(folder).float()
    for embed, encode in (
        (session.embed, model.encode),
        (session.embed_query, model.encode_query),
        (session.embed_document, model.encode_document),
    ):
        np.testing.assert_allclose(embed(TEXTS), encode(TEXTS), atol=3e-6)
    expected = model.encode(TEXTS, prompt="dog ")
    np.testing.assert_allclose(session.embed(TEXTS, prompt="dog "), expected, atol=3e-6)


def test_a_record_names_the_library_and_a_server_embeds(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(normalize, prompts={"query": "query: "})(tmp_path / "model")
    session, model = built(folder, seq_lens=(16, 80), validate=True), of_witness(folder)
    checks = json.loads((session.folder / "manifest.json").read_text())["validation"]
    assert all(one["passed"] for one in checks)
    assert "same_sentence_tokens" in {one["metric"] for one in checks}
    witness = f"sentence-transformers {version('sentence-transformers')}"
    exact = ("text", "settings", "weights")
    assert {one["against"].get("modules") for one in checks if one["stage"] not in exact} == {
        witness
    }
    expected = model.encode_query(TEXTS)
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        body = {"model": MODEL, "input": TEXTS, "input_type": "query"}
        status, found = post(url, "embeddings", json.dumps(body).encode())
    assert status == 200, found
    np.testing.assert_allclose([one["embedding"] for one in found["data"]], expected, atol=3e-6)
    command = ["run", str(session.folder), "--prompt", TEXTS[0], "--prompt-name", "query"]
    assert main([*command, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    np.testing.assert_allclose(found["embedding"], expected[0], atol=3e-6)


def test_what_is_missing_or_unknown_is_refused(home: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(saved()(tmp_path / "model")))
    with pytest.raises(PlanError, match="does not replace"):
        check(checkpoint, Request(pooling="max"))
    bare = saved()(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"lacks tokenizer.json of its module"):
        open_checkpoint(str(bare))
    other = saved()(tmp_path / "other")
    save_file({"table": torch.zeros(3, 4)}, other / _WEIGHTS)
    with pytest.raises(CheckpointError, match=r"tensors table; expected a matrix"):
        open_checkpoint(str(other))
