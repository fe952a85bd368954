# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints under the names of the Hub's: random weights, with the processors of the published ones.

They lie in a folder as `ORG/NAME`, so that a script finds them by its own names, relative to that folder.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import published_processors as published
import transformers
from runnable_package import checkpoint as decoder
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from qeff_zoo.recipe import Tiny
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation import tiny_models

Make = Callable[[Path], Any]
_LONG = {"max_position_embeddings": 131_072}
#: Size of a vocabulary that is trained on the scripts: their prompts have about as many tokens as published ones.
_WORDS = 8192
#: Number of layers of a published config, made small.
_FEW = 2
_BASE = "mistralai/Mistral-7B-v0.1"
_LABELS = {"id2label": {0: "BENIGN", 1: "MALICIOUS"}, "label2id": {"BENIGN": 0, "MALICIOUS": 1}}
#: Of a chat whose published template is not stored, with the token of an image.
_TEMPLATE = (
    "{{% for message in messages %}}[{{{{ message['role'] }}}}]{{% if message['content'] is string %}}"
    "{{{{ message['content'] }}}}{{% else %}}{{% for part in message['content'] %}}{{% if part['type'] == 'image' %}}"
    "{image}{{% elif part['type'] == 'text' %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}"
    "{{% endfor %}}"
)


def _text(model_type: str, **config: Any) -> Make:
    def make(folder: Path) -> None:
        decoder(folder, model_type, **{**_LONG, "vocab_size": _WORDS, **config})
        scripts = (folder.parents[1] / "checkout").rglob("*.py")
        known = Tokenizer.from_file(str(folder / "tokenizer.json"))
        special = [token.content for _, token in sorted(known.get_added_tokens_decoder().items())]
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer, trained.decoder = known.pre_tokenizer, known.decoder
        trainer = trainers.BpeTrainer(
            vocab_size=_WORDS,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        trained.train([str(path) for path in sorted(scripts)], trainer)
        trained.post_processor = known.post_processor
        trained.save(str(folder / "tokenizer.json"))

    return make


def _deep(config: Any, layers: int) -> Any:
    """Give a published config, made small, layers that scripts may cut off, and room for their contexts.

    Args:
        config: The config, or a value in it.
        layers: Number of layers of the text model; `_FEW` leaves their kinds as they are.
    """
    if not isinstance(config, Mapping):
        return config
    made = {
        name: _deep(value, layers)
        for name, value in config.items()
        if layers == _FEW or name not in ("layer_types", "no_rope_layers")
    }
    if "vocab_size" in made and "num_hidden_layers" in made:
        made |= {"num_hidden_layers": layers, **_LONG}
    return made


def _seeing(
    name: str,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda one: one,
    layers: int = 4,
) -> Make:
    """Return the maker of a vision-language model by a file of `tests/published`."""

    def make(folder: Path) -> None:
        facts = published.read(name)
        config = change(_deep(deepcopy(published.scaled(facts)), layers))
        tiny_models.make(find_recipe(config.pop("model_type")), Tiny(config=config), folder)
        published.write(facts, folder)
        if not facts.get("chat_template"):
            image = next(one for one in ("<|image|>", "<image>", "[IMG]") if one in facts["tokens"])
            (folder / "chat_template.jinja").write_text(
                _TEMPLATE.format(image=image), encoding="utf-8"
            )

    return make


def _deep_vision(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config of Qwen3-VL whose vision encoder has the layer that scripts cut it after."""
    config["vision_config"] |= {"depth": 10, "deepstack_visual_indexes": [8, 9]}
    return config


def _reranker(folder: Path) -> None:
    """Write a checkpoint of Qwen3-VL whose vocabulary has a reranker's two answers."""

    def wider(config: dict[str, Any]) -> dict[str, Any]:
        config["text_config"]["vocab_size"] += 2
        return _deep_vision(config)

    _seeing("qwen3_vl", wider)(folder)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.add_tokens(["yes", "no"])
    words.save(str(folder / "tokenizer.json"))


def _experts(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config of Qwen3-VL as one with experts."""
    more = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "model_type": "qwen3_vl_moe_text",
    }
    config["text_config"] |= more
    return {**config, "model_type": "qwen3_vl_moe"}


def _gated(model_type: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a config of Qwen3-VL as one of Qwen3.5."""
    text = find_recipe(f"{model_type}_text").tiny[0].config
    known = {
        name: config["text_config"][name] for name in ("vocab_size", "bos_token_id", "eos_token_id")
    }
    rope = {**text["rope_parameters"], "mrope_section": [2, 2, 2], "mrope_interleaved": True}
    config["text_config"] = {**text, **known, **_LONG, "rope_parameters": rope}
    vision = {
        **config["vision_config"],
        "out_hidden_size": text["hidden_size"],
        "depth": 4,
        "model_type": model_type,
    }
    vision.pop("deepstack_visual_indexes", None)
    return {**config, "vision_config": vision, "model_type": model_type}


def _whisper(folder: Path) -> None:
    end, *others = range(200, 208)
    names = (
        "endoftext",
        "startoftranscript",
        "startofprev",
        "en",
        "de",
        "translate",
        "transcribe",
        "notimestamps",
    )
    recipe = find_recipe("whisper")
    known = {
        **recipe.tiny[0].config,
        "max_target_positions": 448,
        "decoder_start_token_id": others[0],
    }
    known |= dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), end)
    tiny_models.make(recipe, Tiny(config=known), folder)
    start, previous, english, german, translate, transcribe, no_times = others
    generation = {
        "decoder_start_token_id": start, "eos_token_id": end, "bos_token_id": end, "pad_token_id": end,
        "prev_sot_token_id": previous, "lang_to_id": {"<|en|>": english, "<|de|>": german}, "is_multilingual": True,
        "task_to_id": {"translate": translate, "transcribe": transcribe}, "no_timestamps_token_id": no_times,
        "max_length": 64, "begin_suppress_tokens": [end],
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    words = Tokenizer(
        models.WordLevel({f"w{number}": number for number in range(end)}, unk_token="w0")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([f"<|{name}|>" for name in names])
    words.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(257 - no_times - 1)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    ).save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained(folder)
    path = folder / "preprocessor_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "processor_class": "WhisperProcessor"})
    )


def _wav2vec2(folder: Path) -> None:
    recipe = find_recipe("wav2vec2")
    tiny_models.make(recipe, recipe.tiny[0], folder)
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZabcde"]
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)


def _adapter(folder: Path, base: str = _BASE) -> None:
    folder.mkdir(parents=True)
    draw = np.random.default_rng(len(folder.name)).normal
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    config = json.loads((folder.parents[1] / base / "config.json").read_text())
    wide = config["num_attention_heads"] * config.get("head_dim", 0) or config["hidden_size"]
    tensors = {
        f"{module}.lora_{side}.weight": draw(size=size).astype(np.float32)
        for side, size in (("A", (2, config["hidden_size"])), ("B", (wide, 2)))
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4,
                "target_modules": ["q_proj"], "base_model_name_or_path": base}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _with_heads(folder: Path) -> None:
    import speculators

    _text("llama")(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    speculators.turbo(folder, config["hidden_size"], config["vocab_size"])


def _gguf(folder: Path) -> None:
    import gguf_files

    source = folder.with_name("as_safetensors")
    _text("qwen2", head_dim=16)(source)
    folder.mkdir(parents=True)
    gguf_files.write(folder / "qwen2-1_5b-instruct-q8_0.gguf", source, tokens=True)


_VAE_BLOCKS = {"down": "DownEncoderBlock2D", "up": "UpDecoderBlock2D"}
#: Code of InternVL's checkpoint that scripts read the configuration of; the model has no weights.
_INTERNVL = {
    "configuration": """from transformers import PreTrainedConfig, Qwen2Config

class InternVisionConfig(PreTrainedConfig):
    model_type = "intern_vit_6b"

class InternVLChatConfig(PreTrainedConfig):
    model_type = "internvl_chat"

    def __init__(self, llm_config=None, vision_config=None, **fields):
        self.llm_config = Qwen2Config(**(llm_config or {}))
        self.vision_config = InternVisionConfig(**(vision_config or {}))
        super().__init__(**fields)
""",
    "modeling": """from torch import nn
from transformers import PreTrainedModel
from .configuration_internvl_chat import InternVLChatConfig

class InternVLChatModel(PreTrainedModel):
    config_class = InternVLChatConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(1, 1)
        self.post_init()
""",
}


def _internvl(folder: Path) -> None:
    import internvl_checkpoint

    internvl_checkpoint.write(folder, 448, 112, **_LONG)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"template": "internvl2_5", "max_dynamic_patch": 12}
    config["auto_map"]["AutoModelForCausalLM"] = "modeling_internvl_chat.InternVLChatModel"
    for name, code in _INTERNVL.items():
        (folder / f"{name}_internvl_chat.py").write_text(code, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _molmo(folder: Path) -> None:
    import molmo_checkpoint
    import molmo_processor

    molmo_checkpoint.write(folder, side=336, patch=14, **_LONG)
    processor = {"auto_map": {"AutoProcessor": "preprocessing_molmo.MolmoProcessor"}}
    (folder / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    code = "from transformers import PreTrainedConfig\n\n\nclass MolmoConfig(PreTrainedConfig):\n"
    (folder / "config_molmo.py").write_text(f"{code}    model_type = 'molmo'\n", encoding="utf-8")
    shutil.copy(molmo_processor.__file__, folder / "preprocessing_molmo.py")


def _flux(folder: Path) -> None:
    """Write a pipeline whose images are eight times as wide as its latents, as published ones are."""
    recipe = find_recipe("FluxPipeline")
    config = dict(recipe.tiny[0].config)
    blocks: dict[str, Any] = {"block_out_channels": [8, 8, 8, 16]}
    blocks |= {f"{way}_block_types": [kind] * 4 for way, kind in _VAE_BLOCKS.items()}
    tiny_models.make(recipe, Tiny(config={**config, "vae": {**config["vae"], **blocks}}), folder)


def _coded(model_type: str) -> Make:
    """Return the maker of a checkpoint whose classes are in its own code, of which there is only a configuration."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        code = "from transformers import PreTrainedConfig\n\n\nclass Config(PreTrainedConfig):\n"
        (folder / "configuration.py").write_text(
            f"{code}    model_type = {model_type!r}\n", encoding="utf-8"
        )
        config = {"model_type": model_type, "auto_map": {"AutoConfig": "configuration.Config"}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")

    return make


_GPT_OSS, _QWEN3_MOE, _LLAMA, _BERT = (
    _text("gpt_oss"),
    _text("qwen3_moe"),
    _text("llama"),
    partial(decoder, model_type="bert"),
)
_LLAVA, _QWEN2_5_VL = map(_seeing, ("llava", "qwen2_5_vl"))
_QWEN3_VL = _seeing("qwen3_vl", _deep_vision)
_GEMMA4 = _seeing("gemma4", layers=_FEW)
_QWEN3_VL_MOE = _seeing("qwen3_vl", _experts)
_QWEN3_5, _QWEN3_5_MOE = (
    _seeing("qwen3_vl", partial(_gated, one)) for one in ("qwen3_5", "qwen3_5_moe")
)
#: By the Hub's names.
CHECKPOINTS: Mapping[str, Make] = {
    "Qwen/Qwen2-1.5B-Instruct": _text("qwen2"),
    "Qwen/Qwen2-1.5B-Instruct-GGUF": _gguf,
    "black-forest-labs/FLUX.1-schnell": _flux,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _with_heads,
    **dict.fromkeys(("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B",
                     "meta-llama/Meta-Llama-3-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"), _LLAMA),
    **dict.fromkeys(("openai/gpt-oss-20b", "tiny-random/gpt-oss-bf16"), _GPT_OSS),
    **dict.fromkeys(("Qwen/Qwen3-30B-A3B-Instruct-2507", "yujiepan/qwen3-moe-tiny-random",
                     "Qwen/Qwen3-235B-A22B-Instruct-2507"), _QWEN3_MOE),
    **dict.fromkeys(("tiny-random/glm-4-moe", "zai-org/GLM-4.7"), _text("glm4_moe")),
    _BASE: _text("mistral"),
    **{f"predibase/{name}": _adapter for name in ("gsm8k", "magicoder", "tldr_content_gen", "tldr_headline_gen",
                                                  "dbpedia", "agnews_explained")},
    **dict.fromkeys(("gpt2", "openai-community/gpt2"), _text("gpt2")),
    "moonshotai/Kimi-K2-Thinking": _text("deepseek_v3"),
    "moonshotai/Kimi-K2.5": _coded("kimi_k25"),
    **dict.fromkeys(("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-base-en-v1.5"), _BERT),
    "training_results/complete_epoch_1": partial(_adapter, base="meta-llama/Llama-3.2-1B"),
    "meta-llama/Llama-Prompt-Guard-2-22M": _text(
        "deberta-v2", task="text-classification", num_labels=2, max_position_embeddings=512, **_LABELS
    ),
    "openai/whisper-tiny": _whisper,
    **dict.fromkeys(("facebook/wav2vec2-base", "facebook/wav2vec2-base-960h"), _wav2vec2),
    "llava-hf/llava-1.5-7b-hf": _LLAVA,
    "ibm-granite/granite-vision-3.2-2b": _seeing("llava_next"),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": _seeing("mistral3"),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _seeing("llama4"),
    "meta-llama/Llama-3.2-11B-Vision-Instruct": _seeing("mllama"),
    **dict.fromkeys(("google/gemma-3-27b-it", "google/gemma-3-4b-it"), _seeing("gemma3")),
    **dict.fromkeys(("google/gemma-4-E2B-it", "google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it",
                     "tiny-random/gemma-4-dense"), _GEMMA4),
    **dict.fromkeys(("Qwen/Qwen2.5-VL-32B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct"), _QWEN2_5_VL),
    **dict.fromkeys(("Qwen/Qwen3-VL-32B-Instruct", "Qwen/Qwen3-VL-2B-Instruct", "yujiepan/qwen3-vl-tiny-random",
                     "Qwen/Qwen3-VL-Embedding-8B"), _QWEN3_VL),
    "Qwen/Qwen3-VL-Reranker-2B": _reranker,
    **dict.fromkeys(("Qwen/Qwen3-VL-30B-A3B-Instruct", "tiny-random/qwen3-vl-moe"), _QWEN3_VL_MOE),
    "Qwen/Qwen3.5-0.8B": _QWEN3_5,
    **dict.fromkeys(("Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.5-397B-A17B", "Qwen/Qwen3.5-35B-A3B",
                     "Qwen/Qwen3.5-122B-A10B"), _QWEN3_5_MOE),
    "OpenGVLab/InternVL2_5-1B": _internvl,
    "allenai/Molmo-7B-D-0924": _molmo,
}  # fmt: skip
#: The same files under several names: each is written once, by its maker.
_TWINS = {make: name for name, make in reversed([*CHECKPOINTS.items()]) if make is not _adapter}


def provide(name: str, work: Path) -> None:
    """Write a checkpoint, unless it is there.

    Args:
        name: The Hub's name.
        work: Folder of all checkpoints.
    """
    make = CHECKPOINTS[name]
    folder = work / name
    first = _TWINS.get(make, name)
    if folder.exists():
        return
    if make is _adapter:
        provide(_BASE, work)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if first != name:
        provide(first, work)
        folder.symlink_to(work / first)
        return
    partial_folder = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial_folder, ignore_errors=True)
    make(partial_folder)
    partial_folder.rename(folder)
