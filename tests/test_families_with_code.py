# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose files name Python code, which is never run: the same weights in transformers' classes."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import runnable_package
import tiktoken
import torch
from safetensors.torch import load_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from qeff_zoo.checkpoint import text
from qeff_zoo.export import architectures
from qeff_zoo.registry import recipe_for
from qeff_zoo.tasks import TEXT_GENERATION
from qeff_zoo.validation.reference.loading import load_model

TOKENS = torch.arange(3, 27).view(2, 12)


def rewrite(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change fields of a config.json; those that become None are removed."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    config = {name: value for name, value in config.items() if value is not None}
    path.write_text(json.dumps(config))
    return config


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
    folder = runnable_package.checkpoint(tmp_path / "kimi", "kimi_k2")
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
            str(first + one): {"content": name, **own} for name, one in numbers.items()
        },
        **{f"{name}_token": f"[{name.upper()}]" for name in ("bos", "eos", "unk", "pad")},
        "additional_special_tokens": ["<|im_end|>", "<|im_user|>"],
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    }


def test_kimi_k2_is_deepseek_v3(kimi: Path) -> None:
    config = json.loads((kimi / "config.json").read_text()) | {"model_type": "deepseek_v3"}
    theirs = DeepseekV3ForCausalLM.from_pretrained(
        None,
        config=DeepseekV3Config.from_dict(config),
        state_dict=load_file(kimi / "model.safetensors"),
        attn_implementation="eager",
    ).eval()
    with torch.no_grad():
        ours = reference_of(kimi, TEXT_GENERATION)(TOKENS).logits
        assert torch.equal(ours, theirs(TOKENS).logits)


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
    theirs = tiktoken.Encoding(
        "kimi", pat_str=KIMI_PIECES, mergeable_ranks=ranks, special_tokens=special
    )
    for one in KIMI_TEXTS:
        ids = theirs.encode(one, allowed_special="all")
        assert tokenizer.encode(one) == ids
        assert tokenizer.decode(ids) == theirs.decode(ids)
    assert text.write(kimi, "kimi").pad_token_id == len(ranks) + 255


def test_the_language_model_of_a_kimi_k2_5_as_published_is_transformed() -> None:
    def published(model_type: str) -> Mapping[str, Any]:
        return {"model_type": "kimi_k25", "text_config": {"model_type": model_type}}

    names = [one.name for one in recipe_for(published("kimi_k2")).transforms]
    assert names == [one.name for one in recipe_for(published("deepseek_v3")).transforms] != []
