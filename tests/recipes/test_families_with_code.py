# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose files name Python code, which is never run: the same weights in transformers' classes."""

import base64
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import internvl_checkpoint
import numpy as np
import pytest
import runnable_package
import tiktoken
import torch
from fixtures_families_with_code import rewrite
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
)

from qeff_zoo.checkpoint import text
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import FEATURE_EXTRACTION, IMAGE_TEXT_TO_TEXT, TEXT_GENERATION
from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.export import architectures
from qeff_zoo.media.image_processor import read_image_processor
from qeff_zoo.registry import recipe_for
from qeff_zoo.validation.reference.loading import load_model

TOKENS = torch.arange(3, 27).view(2, 12)


def reference_of(folder: Path, task: str) -> Any:
    """Return the model that the reference process compares with."""
    return load_model({"checkpoint": str(folder)}, task, None)


# --- Kimi K2 -----------------------------------------------------------------------------------------------------

#: `pat_str` of moonshotai/Kimi-K2-Instruct, tokenization_kimi.py.
KIMI_PIECES = (
    r"[\p{Han}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI_TEXTS = (
    *(
        "hello world",
        "HelloWorld isn't DON'T",
        "你好world。你 好12345",
        "  \n\n a\t b  ",
        "漢字カナ 안녕 çéß",
    ),
    *("[BOS]<|im_user|>hi<|im_end|>", "a,b!!\r\n  c", "<|reserved_token_275|>"),
)


@pytest.fixture
def kimi(tmp_path: Path) -> Path:
    """A checkpoint with the fields of moonshotai/Kimi-K2-Instruct's config.json, and a tokenizer of the same files."""
    architectures.register("kimi_k2")
    folder = runnable_package.checkpoint(tmp_path / "kimi", "kimi_k2", vocab_size=526)
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    code = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "deepseek.Deepseek")
    named = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "auto_map": code,
        "topk_method": "noaux_tc",
    }
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    rewrite(
        folder, **named, rope_parameters=None, rope_theta=theta, rope_scaling={**rope, "type": kind}
    )
    (folder / "tokenizer.json").unlink()
    words = ["he", "ll", "hell", "hello", " w", "or", " wor", "你", "你好", "12", "'t", "Wor", "oW"]
    tokens = [bytes([byte]) for byte in range(256)] + ["你".encode()[:2], *map(str.encode, words)]
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_text("".join(lines))
    (folder / "tokenizer_config.json").write_text(json.dumps(kimi_settings(len(tokens))))
    return folder


def kimi_settings(first: int) -> dict[str, Any]:
    """Return a tokenizer_config.json whose special tokens follow those of the tiktoken file."""
    numbers = {
        "[BOS]": 0,
        "[EOS]": 1,
        "<|im_end|>": 2,
        "<|im_user|>": 3,
        "[UNK]": 254,
        "[PAD]": 255,
    }
    own = {
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }
    return {
        "added_tokens_decoder": {
            str(first + number): {"content": name, **own} for name, number in numbers.items()
        },
        **{f"{name}_token": f"[{name.upper()}]" for name in ("bos", "eos", "unk", "pad")},
        "additional_special_tokens": ["<|im_end|>", "<|im_user|>"],
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    }


def test_kimi_k2_is_deepseek_v3(kimi: Path) -> None:
    config = json.loads((kimi / "config.json").read_text()) | {"model_type": "deepseek_v3"}
    reference = DeepseekV3ForCausalLM.from_pretrained(
        None,
        config=DeepseekV3Config.from_dict(config),
        state_dict=load_file(kimi / "model.safetensors"),
        attn_implementation="eager",
    ).eval()
    with torch.no_grad():
        ours = reference_of(kimi, TEXT_GENERATION)(TOKENS).logits
        assert torch.equal(ours, reference(TOKENS).logits)


def test_kimi_k2_s_tokenizer_is_that_of_its_tiktoken_file(kimi: Path) -> None:
    tokenizer = text.load(kimi, "kimi")
    ranks = tiktoken.load.load_tiktoken_bpe(str(kimi / "tiktoken.model"))
    named = {
        int(number): token["content"]
        for number, token in kimi_settings(len(ranks))["added_tokens_decoder"].items()
    }
    special = {
        named.get(number, f"<|reserved_token_{number}|>"): number
        for number in range(len(ranks), len(ranks) + 256)
    }
    reference = tiktoken.Encoding(
        "kimi", pat_str=KIMI_PIECES, mergeable_ranks=ranks, special_tokens=special
    )
    for one in KIMI_TEXTS:
        ids = reference.encode(one, allowed_special="all")
        assert tokenizer.encode(one) == ids
        assert tokenizer.decode(ids) == reference.decode(ids)
    assert text.write(kimi, "kimi").pad_token_id == len(ranks) + 255


def test_the_language_model_of_a_kimi_k2_5_as_published_is_transformed() -> None:
    def published(model_type: str) -> Mapping[str, Any]:
        return {"model_type": "kimi_k25", "text_config": {"model_type": model_type}}

    names = [transform.name for transform in recipe_for(published("kimi_k2")).transforms]
    assert (
        names
        == [transform.name for transform in recipe_for(published("deepseek_v3")).transforms]
        != []
    )


# --- Jina Embeddings 2 -------------------------------------------------------------------------------------------


def norm(weights: Mapping[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    """Normalize as BERT does."""
    scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return functional.layer_norm(hidden, hidden.shape[-1:], scale, shift, 1e-12)


def product(weights: Mapping[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    """Multiply by a matrix, and add its bias if it has one."""
    return functional.linear(hidden, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def jina_states(weights: Mapping[str, Tensor], tokens: Tensor, heads: int) -> Tensor:
    """Compute the token states of one text from the published description: arXiv 2310.19923, and 2108.12409 on slopes.

    jina-embeddings-v2-base-code differs as its weights' names do: norms of queries and keys, and one more after the
    attention; the other half of the gated projection is the gate.
    """
    power = 2 ** math.floor(math.log2(heads))
    ratios = [2 ** (-8 / power * (index + 1)) for index in range(power)]
    ratios += [2 ** (-4 / power * (index + 1)) for index in range(0, 2 * (heads - power), 2)]
    places = torch.arange(len(tokens))
    bias = -(places[:, None] - places).abs() * torch.tensor(ratios)[:, None, None]
    hidden = weights["embeddings.word_embeddings.weight"][tokens]
    hidden = hidden + weights["embeddings.token_type_embeddings.weight"][0]
    hidden = norm(weights, "embeddings.LayerNorm", hidden)
    for number in range(4):
        own = {
            name.removeprefix(f"encoder.layer.{number}."): value
            for name, value in weights.items()
            if name.startswith(f"encoder.layer.{number}.")
        }
        code = "layer_norm_1.weight" in own
        query, key, value = (
            product(own, f"attention.self.{one}", hidden) for one in ("query", "key", "value")
        )
        if code:
            query = norm(own, "attention.self.layer_norm_q", query)
            key = norm(own, "attention.self.layer_norm_k", key)
        query, key, value = (
            one.view(len(tokens), heads, -1).transpose(0, 1) for one in (query, key, value)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + bias
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        attended = product(own, "attention.output.dense", mixed) + hidden
        attended = norm(own, "attention.output.LayerNorm", attended)
        if code:
            attended = norm(own, "layer_norm_1", attended + hidden)
            up, gate = product(own, "mlp.up_gated_layer", attended).chunk(2, -1)
            down = product(own, "mlp.down_layer", up * functional.gelu(gate))
            hidden = norm(own, "layer_norm_2", attended + down)
        else:
            gate, up = product(own, "mlp.gated_layers", attended).chunk(2, -1)
            hidden = norm(
                own, "mlp.layernorm", attended + product(own, "mlp.wo", functional.gelu(gate) * up)
            )
    return hidden


@pytest.mark.parametrize("code", ["implementation", "v2-qk-post-norm"])
def test_jina_embeddings_2_are_those_of_the_published_description(
    tmp_path: Path, code: str
) -> None:
    architectures.register("jina_bert")
    folder = tmp_path / "jina"
    tiny = int(code != "implementation")
    runnable_package.checkpoint(folder, "jina_bert", tiny)
    of_code = {"AutoConfig": f"jinaai/jina-bert-{code}--configuration_bert.JinaBertConfig"}
    named = {"model_type": "bert", "architectures": ["JinaBertForMaskedLM"], "qk_norm": None}
    config = rewrite(folder, **named, auto_map=of_code)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.model_type == "jina_bert"
    assert checkpoint.config["qk_norm"] == bool(tiny)
    weights = load_file(folder / "model.safetensors")
    with torch.no_grad():
        ours = reference_of(folder, FEATURE_EXTRACTION)(TOKENS[:1]).last_hidden_state[0]
    reference = jina_states(weights, TOKENS[0], config["num_attention_heads"])
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)


# --- Grok-1 ------------------------------------------------------------------------------------------------------


def grok_logits(weights: Mapping[str, Tensor], config: Mapping[str, Any], tokens: Tensor) -> Tensor:
    """Compute the logits of one text as xAI's Grok-1 does, with the names of hpcai-tech/grok-1's weights."""

    def rms(name: str, hidden: Tensor) -> Tensor:
        return functional.rms_norm(
            hidden, hidden.shape[-1:], weights[f"{name}.scale"], config["rms_norm_eps"]
        )

    count, places = len(tokens), torch.arange(len(tokens))
    hidden = weights["model.embed_tokens.weight"][tokens] * config["embedding_multiplier_scale"]
    size = config["hidden_size"] // config["num_attention_heads"]
    angles = places[:, None] / config["rope_theta"] ** (torch.arange(0, size, 2) / size)

    def rotate(heads: Tensor) -> Tensor:
        first, second = heads.chunk(2, -1)
        turned = [
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ]
        return torch.cat(turned, -1)

    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        read = rms(f"{layer}.pre_attn_norm", hidden)
        query, key, value = (
            product(weights, f"{layer}.attn.{letter}_proj", read)
            .view(count, -1, size)
            .transpose(0, 1)
            for letter in "qkv"
        )
        groups = len(query) // len(key)
        key, value = (one.repeat_interleave(groups, 0) for one in (rotate(key), value))
        cap = config["max_attn_value"]
        scores = rotate(query) @ key.mT * config["attn_output_multiplier"]
        scores = (cap * torch.tanh(scores / cap)).masked_fill(places > places[:, None], -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        attended = product(weights, f"{layer}.attn.o_proj", mixed)
        hidden = hidden + rms(f"{layer}.post_attn_norm", attended)
        read = rms(f"{layer}.pre_moe_norm", hidden)
        routed = product(weights, f"{layer}.moe_block.gate", read).softmax(-1)
        chosen = routed >= routed.topk(2).values[:, 1:]
        mixed = torch.zeros_like(read)
        for expert in range(routed.shape[1]):
            name = f"{layer}.moe_block.experts.{expert}"
            gate, up = (
                product(weights, f"{name}.linear", read),
                product(weights, f"{name}.linear_v", read),
            )
            share = (routed * chosen)[:, expert, None]
            mixed = mixed + share * product(weights, f"{name}.linear_1", functional.gelu(gate) * up)
        hidden = hidden + rms(f"{layer}.post_moe_norm", mixed)
    head = weights["model.embed_tokens.weight"]
    return rms("model.norm", hidden) @ head.mT * config["output_multiplier_scale"]


def test_grok_1_is_that_of_the_published_description(tmp_path: Path) -> None:
    architectures.register("grok-1")
    folder = tmp_path / "grok"
    runnable_package.checkpoint(folder, "grok-1")
    code = {"AutoConfig": "configuration_grok1.Grok1Config"}
    config = rewrite(
        folder, rope_parameters=None, num_local_experts=None, num_experts=5, auto_map=code
    )
    with torch.no_grad():
        ours = reference_of(folder, TEXT_GENERATION)(TOKENS[:1]).logits[0]
    weights = load_file(folder / "model.safetensors")
    reference = grok_logits(weights, {"rope_theta": 10000.0, **config}, TOKENS[0])
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)


# --- InternVL ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def internvl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint in the form of OpenGVLab/InternVL3-1B, and transformers' model with the same weights."""
    folder = tmp_path_factory.mktemp("internvl") / "checkpoint"
    return folder, internvl_checkpoint.write(folder)


def test_internvl_in_its_own_form_is_that_of_transformers(internvl: tuple[Path, Any]) -> None:
    folder, reference = internvl
    ours = reference_of(folder, IMAGE_TEXT_TO_TEXT)
    tokens = torch.tensor([[5, 257, *[259] * 8, 258, 7, 8, 9]])
    pixels = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        found = ours(input_ids=tokens, pixel_values=pixels).logits
        assert torch.equal(found, reference(input_ids=tokens, pixel_values=pixels).logits)


def test_internvl_s_images_are_those_of_its_code(internvl: tuple[Path, Any]) -> None:
    checkpoint = open_checkpoint(str(internvl[0]))
    processor = read_image_processor(checkpoint.companions)
    assert checkpoint.config["image_token_id"] == 259
    assert checkpoint.text_config["eos_token_id"] == 260
    assert processor([np.zeros((28, 56, 3), np.uint8)])["pixel_values"].shape == (3, 3, 28, 28)


def test_odd_values_in_internvl_s_files_are_refused(
    internvl: tuple[Path, Any], tmp_path: Path
) -> None:
    for name, content in {
        "config.json": json.dumps({"force_image_size": "large"}),
        "added_tokens.json": "{}",
        "tokenizer_config.json": json.dumps({"added_tokens_decoder": 5}),
    }.items():
        folder = shutil.copytree(internvl[0], tmp_path / name)
        (folder / "tokenizer.json").unlink()
        known = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**known, **json.loads(content)}))
        with pytest.raises(CheckpointError, match=r"Expected .*[.] Get "):
            open_checkpoint(str(folder))


def test_an_internvl_whose_language_model_is_code_is_refused(
    internvl: tuple[Path, Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(internvl[0], tmp_path / "checkpoint")
    text = json.loads((folder / "config.json").read_text())["llm_config"]
    code = {"AutoConfig": "configuration_internlm2.InternLM2Config"}
    rewrite(folder, llm_config={**text, "model_type": "internlm2", "auto_map": code})
    with pytest.raises(UnsupportedModelError, match="'internlm2', Python code of the checkpoint"):
        open_checkpoint(str(folder))
