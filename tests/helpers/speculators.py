# SPDX-License-Identifier: Apache-2.0
"""What drafts, with random weights, in the formats in which it is shared; packages with it, and their sessions."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import published_mtp
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
)

import qeff_zoo
from qeff_zoo import registry
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.checkpoint.sources import with_speculator
from qeff_zoo.package import Package
from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.validation.reference.assistant import all_shared

_LAYERS, _INNER = 2, 24


def turbo(folder: Path, hidden: int, vocab: int, heads: int = 3) -> Path:
    """Write heads as QEfficient reads them."""
    sizes = {"turbo_num_layers": _LAYERS, "turbo_num_heads": heads}
    names = [f"projections.{head}.{layer}" for head in range(heads) for layer in range(_LAYERS)]
    return _write(folder, "speculator_config.json", sizes, "speculator", _blocks(names, hidden))


def medusa(folder: Path, hidden: int, vocab: int, heads: int = 3) -> Path:
    """Write heads as Medusa has them: with matrices of their own for logits."""
    sizes = {"medusa_num_layers": 1, "medusa_num_heads": heads}
    tensors = _blocks([f"{head}.0" for head in range(heads)], hidden)
    tensors |= {f"{head}.1.weight": _random(vocab, hidden) for head in range(heads)}
    return _write(folder, "config.json", sizes, "medusa_lm_head", tensors)


def chained(folder: Path, hidden: int, vocab: int, heads: int = 3, *, tied: bool = False) -> Path:
    """Write heads as IBM shares them."""
    sizes = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "n_predict": heads,
        "emb_dim": hidden,
        "inner_dim": _INNER,
        "vocab_size": vocab,
        "tie_weights": tied,
        "scale_input": tied,
    }
    tensors = {}
    for head in range(1 if tied else heads):
        tensors |= {
            f"speculator.emb.{head}.weight": _random(vocab, _INNER),
            f"speculator.ln.{head}.weight": 1 + _random(_INNER),
            f"speculator.ln.{head}.bias": _random(_INNER),
            f"speculator.head.{head}.weight": _random(vocab, _INNER),
        }
    for head in range(2 if tied else heads):
        tensors[f"speculator.proj.{head}.weight"] = _random(_INNER, _INNER if head else hidden)
    return _write(folder, "config.json", sizes, "model", tensors)


def tied(folder: Path, hidden: int, vocab: int) -> Path:
    """Write heads that share their weights, and scale what they read."""
    return chained(folder, hidden, vocab, tied=True)


def eagle3(folder: Path, hidden: int, vocab: int, drafted: int = 100, **more: object) -> Path:
    """Write a layer as SafeAILab shares it: with a vocabulary of its own, which is part of the model's."""
    heads, keys, size, inner = 4, 2, 24, 40
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": size,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "vocab_size": vocab,
        "draft_vocab_size": drafted,
        # As those of gpt-oss say it: the layers whose results these are.
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        **more,
    }
    shapes = {
        "fc": (hidden, 3 * hidden),
        "lm_head": (drafted, hidden),
        "midlayer.self_attn.q_proj": (heads * size, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, heads * size),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    tensors = {f"{name}.weight": _random(*shape) for name, shape in shapes.items()}
    tensors |= {f"midlayer.{name}.weight": 1 + _random(hidden) for name in norms}
    tensors["norm.weight"] = 1 + _random(hidden)
    chosen = torch.randperm(vocab)[:drafted].sort().values
    tensors["d2t"] = chosen - torch.arange(drafted)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, value=True)
    return _write(folder, "config.json", config, "model", tensors)


def of_speculators(folder: Path, hidden: int, vocab: int) -> Path:
    """Write a layer as vLLM's speculators share it: other names, embeddings and all tokens of its own."""
    more = {
        "norm_before_residual": True,
        "attention_bias": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    }
    eagle3(folder, hidden, vocab, drafted=vocab, **more)
    config = json.loads((folder / "config.json").read_text())
    outer = {name: config.pop(name) for name in ("draft_vocab_size", "norm_before_residual")}
    del config["eagle_config"]
    outer["eagle_aux_hidden_state_layer_ids"] = config.pop("eagle_aux_hidden_state_layer_ids")
    outer |= {"speculators_model_type": "eagle3", "transformer_layer_config": config}
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if name not in ("d2t", "t2d")
    }
    for name in "qkvo":
        matrix = tensors[f"layers.0.self_attn.{name}_proj.weight"]
        tensors[f"layers.0.self_attn.{name}_proj.bias"] = _random(len(matrix))
    tensors["embed_tokens.weight"] = _random(vocab, hidden)
    return _write(folder, "config.json", outer, "model", tensors)


def assistant(folder: Path) -> Path:
    """Write an assistant as Google shares it, and the Gemma 4 that it is of; return the assistant's folder."""
    tiny = copy.deepcopy(dict(registry.find_recipe("gemma4_text").tiny[0].config))
    tiny |= {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    config = Gemma4TextConfig(**tiny)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    layers = ["sliding_attention", "full_attention"]
    small = {"hidden_size": 32, "num_hidden_layers": 2, "layer_types": layers}
    settings = Gemma4AssistantConfig(
        text_config={"model_type": "gemma4_text", **tiny, **small, "vocab_size_per_layer_input": 0},
        backbone_hidden_size=config.hidden_size,
    )
    with all_shared(type(settings.text_config)):
        Gemma4AssistantForCausalLM(settings).save_pretrained(folder / "assistant")
    return folder / "assistant"


def dflash(folder: Path, hidden: int, vocab: int, **more: object) -> Path:
    """Write a block drafter as z-lab shares it; it reads the same layers as `eagle3`."""
    heads, keys, size, inner, layers = 4, 2, 24, 40, 2
    config = {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "block_size": 5,
        "dflash_config": {"mask_token_id": 250, "target_layer_ids": [0, 1, 2]},
        "num_target_layers": 4,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": size,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500.0,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "vocab_size": vocab,
        "draft_vocab_size": vocab,
        "tie_word_embeddings": False,
        **more,
    }
    shapes = {
        "self_attn.q_proj": (heads * size, hidden),
        "self_attn.k_proj": (keys * size, hidden),
        "self_attn.v_proj": (keys * size, hidden),
        "self_attn.o_proj": (hidden, heads * size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    norms |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
    tensors = {"fc.weight": _random(hidden, 3 * hidden)}
    tensors |= {f"{name}.weight": 1 + _random(hidden) for name in ("norm", "hidden_norm")}
    for layer in range(layers):
        part = f"layers.{layer}"
        tensors |= {f"{part}.{name}.weight": _random(*shape) for name, shape in shapes.items()}
        tensors |= {f"{part}.{name}.weight": 1 + _random(count) for name, count in norms.items()}
    return _write(folder, "config.json", config, "model", tensors)


KINDS = {"turbo": turbo, "medusa": medusa, "chained": chained, "tied": tied}
ASSISTANT = "assistant"
LAYERS = {"eagle3": eagle3, "speculators": of_speculators, "dflash": dflash}
SIZES: dict[str, Any] = {"full_batch_size": 2, "prefill_seq_len": 8, "ctx_len": 48}


@dataclass(frozen=True)
class Made:
    """A package with what drafts for it.

    Args:
        checkpoint: Of the model.
        speculator: As the package was built with.
        package: As built.
        home: Whose store has it.
    """

    checkpoint: Path
    speculator: str
    package: Package
    home: Path

    @cached_property
    def model(self) -> Any:
        """Hugging Face's."""
        return published_mtp.loaded(self.checkpoint)

    @cached_property
    def located(self) -> Any:
        """What drafts, for the reference."""
        found = with_speculator(open_checkpoint(str(self.checkpoint)), self.speculator).speculator
        assert found is not None
        return found.located


def maker(llama: Path, folder: Path) -> Callable[..., Made]:
    """Return what makes heads or a layer for the tiny Llama, or a model with one of its own, and a package; once."""
    known, home = dict[Any, Made](), folder / "home"

    def make(kind: str, **choices: Any) -> Made:
        key = kind, *choices.items()
        if key not in known:
            own, place, kinds = kind in published_mtp.KINDS, folder / kind, {**KINDS, **LAYERS}
            checkpoint, speculator = (place, "mtp") if own else (llama, str(place))
            if kind == ASSISTANT:
                checkpoint, speculator = place / "model", str(place / "assistant")
            if not place.exists():
                torch.manual_seed(3)
                if kind == ASSISTANT:
                    assistant(place)
                else:
                    published_mtp.write(kind, place) if own else kinds[kind](place, 64, 257)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("QEFF_HOME", str(home))
                choices = {"validate": False, **SIZES, **choices}
                package = qeff_zoo.build(checkpoint, draft_heads=speculator, **choices)
            known[key] = Made(checkpoint, speculator, package, home)
        return known[key]

    return make


def opened(package: Package, speculate: Any = "heads") -> TextGenerationSession:
    """Open a package whose wide calls and drafts seem to be free: as much is drafted as can be."""
    session = qeff_zoo.load(package, threads=1, draft=speculate)
    assert isinstance(session, TextGenerationSession)
    if session.speculation:
        costs: Any = session.speculation.drafter(session.request([1]))._costs  # type: ignore[attr-defined]
        object.__setattr__(costs, "beginning", 0.0)
        object.__setattr__(costs, "drafting", 0.0)
        costs.together.update(dict.fromkeys(costs.together, 1e9))
        costs.seconds.update(dict.fromkeys(costs.seconds, 1.0))
    return session


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape) * (0.5 if len(shape) < 2 else shape[-1] ** -0.5)


def _blocks(names: list[str], hidden: int) -> dict[str, torch.Tensor]:
    pairs = [(f"{name}.linear.weight", f"{name}.linear.bias") for name in names]
    return {weight: _random(hidden, hidden) for weight, _ in pairs} | {
        bias: _random(hidden) for _, bias in pairs
    }


def _write(folder: Path, config: str, sizes: dict, weights: str, tensors: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / config).write_text(json.dumps(sizes), encoding="utf-8")
    save_file(tensors, folder / f"{weights}.safetensors")
    return folder
