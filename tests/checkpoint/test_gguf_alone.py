# SPDX-License-Identifier: Apache-2.0
"""A GGUF file alone computes in transformers what llama.cpp computes of it: one made file for each architecture."""

import json
from pathlib import Path
from typing import Any

import fixtures_gguf_encoder_decoder
import gguf
import numpy as np
import pytest
import torch
from fixtures_gguf_alone import EMBEDDERS, MODELS, VOCABULARY, make, rope, windows, write
from gguf_files import Array, stored
from llama_cpp import opened
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from qeff_zoo.checkpoint.expressions import rows
from qeff_zoo.checkpoint.gguf.config import _known
from qeff_zoo.checkpoint.gguf.names import _document, layouts
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.checkpoint.sentence_transformers.modules import bindings_of, read_pooling, read_steps
from qeff_zoo.contract import FEATURE_EXTRACTION, TEXT_GENERATION
from qeff_zoo.errors import ZooError
from qeff_zoo.validation.reference.loading import load_model

pytestmark = pytest.mark.turns(2)

REFUSED: dict[str, str] = dict(_document()["refused"])


def of_transformers(checkpoint: Checkpoint, folder: Path, auto: Any = None) -> Any:
    """Load with transformers what a file alone was taken for."""
    folder.mkdir()
    tensors = {
        name: np.array(
            rows(checkpoint.values.get(name, name), checkpoint.read, checkpoint.tensors), order="C"
        )
        for name in checkpoint.logical
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(dict(checkpoint.config) | {"quantization_config": None})
    )
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    auto = auto or (AutoModel if config.model_type in EMBEDDERS else AutoModelForCausalLM)
    return auto.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def difference(path: Path, folder: Path) -> float:
    """Return how far transformers' logits are from llama.cpp's, in their standard deviations."""
    tokens = np.random.default_rng(1).integers(0, 256, 48).tolist()
    with opened(path) as llama:
        expected = llama.logits(tokens)
    model = of_transformers(open_checkpoint(str(path)), folder)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    return float(np.abs(logits - expected).max() / expected.std())


#: ggml looks GELU up in a table of float16.
LIMIT = 2e-3


def test_every_architecture_is_here() -> None:
    kinds = {*MODELS, *EMBEDDERS, *fixtures_gguf_encoder_decoder.KINDS}
    models = _known()["models"].items()
    assert kinds == {entry.get("model_type", kind) for kind, entry in models}
    alone = {layouts()[kind].architecture for kind in kinds}
    assert alone == {layout.architecture for layout in layouts().values()}


def llama3_factors(
    size: int, theta: float, factor: float = 32, high: float = 4, context: int = 8192
) -> Array:
    """Give the factors that converters make of Llama 3's scaling."""
    waves = 2 * np.pi * theta ** (np.arange(0, size, 2) / size)
    smooth = np.clip((context / waves - 1) / (high - 1), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


#: Factors of RoPE in files of a type.
FACTORS: dict[str, dict[str, Array]] = {
    "gemma4_text": {"rope_freqs.weight": np.repeat(np.float32([1, 1e30]), [4, 12])},
    "llama": {"rope_freqs.weight": llama3_factors(24, 500000.0)},
}


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_file_alone_computes_what_llama_cpp_computes(
    home: Path, tmp_path: Path, kind: str
) -> None:
    folder = make(tmp_path / "model", kind)
    path = write(tmp_path / "model.gguf", folder, {**FACTORS.get(kind, {})})
    assert difference(path, tmp_path / "again") < LIMIT


#: Architectures of llama.cpp that are another type here: language models of multimodal ones, and others under a name
#: of their own. Type, changes of its configuration, metadata.
LANGUAGE_MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "baichuan": ("llama", {**rope(), "num_hidden_layers": 32, "head_dim": 16}, {}),
    "gemma4": (
        "gemma4_text",
        {
            "attention_k_eq_v": False,
            "enable_moe_block": False,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCABULARY,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            **windows(2, layers=6),
        },
        {"expert_count": None, "expert_used_count": None, "expert_feed_forward_length": None},
    ),
    "internlm2": ("llama", {**rope(), "head_dim": 16}, {}),
    "nemotron_h_moe": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 1.7,
        },
        {},
    ),
    "qwen2vl": (
        "qwen2",
        {},
        {
            "rope__dimension_sections": [2, 3, 3, 0],
            "attention__layer_norm_rms_epsilon": 1e-6,  # llama.cpp has no other for it
        },
    ),
    "qwen3vl": ("qwen3", {}, {"rope__dimension_sections": [4, 4, 4, 0], "n_deepstack_layers": 0}),
    "qwen3vlmoe": (
        "qwen3_moe",
        {},
        {"rope__dimension_sections": [4, 4, 4, 0], "n_deepstack_layers": 0},
    ),
}


@pytest.mark.parametrize("architecture", LANGUAGE_MODELS)
def test_a_model_under_another_name_computes_what_llama_cpp_computes(
    home: Path, tmp_path: Path, architecture: str
) -> None:
    kind, own, changes = LANGUAGE_MODELS[architecture]
    folder = make(tmp_path / "model", kind, **own)
    extra = FACTORS[kind] if architecture == "gemma4" else {}
    path = write(tmp_path / "model.gguf", folder, extra, architecture=architecture, **changes)
    assert difference(path, tmp_path / "again") < LIMIT
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    read = {"checkpoint": folder, "gguf": [path]}
    (folder / "model.safetensors").unlink()
    for name, value in load_model(read, TEXT_GENERATION, None).state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_fused_heads_are_taken_apart(home: Path, tmp_path: Path) -> None:
    """GLM's first releases have one matrix of queries, keys and values."""
    folder = make(tmp_path / "model", "glm")
    apart = open_checkpoint(str(write(tmp_path / "apart.gguf", folder)))
    tensors = stored(folder)
    for end in ("weight", "bias"):
        for at in range(4):
            parts = [tensors.pop(f"blk.{at}.attn_{letter}.{end}") for letter in "qkv"]
            tensors[f"blk.{at}.attn_qkv.{end}"] = np.concatenate(parts)
    path = write(tmp_path / "fused.gguf", folder, tensors=tensors)
    fused = open_checkpoint(str(path))
    assert fused.config == apart.config
    assert fused.logical.keys() == apart.logical.keys()
    for name in fused.logical:
        one, other = (
            rows(each.values.get(name, name), each.read, each.tensors) for each in (fused, apart)
        )
        assert np.array_equal(one, other), name
    assert difference(path, tmp_path / "again") < LIMIT
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    (folder / "model.safetensors").unlink()
    found = load_model({"checkpoint": folder, "gguf": [path]}, TEXT_GENERATION, None).state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_layers_that_share_keys_and_values(home: Path, tmp_path: Path) -> None:
    """llama.cpp's layers from the 21st on share those of the 19th and 20th, and the first 10 are sparse."""
    changes = {"num_hidden_layers": 22, "num_kv_shared_layers": 2, **windows(5, layers=22)}
    sparse = [0.95] * 10 + [0.0] * 12
    folder = make(tmp_path / "model", "gemma3n_text", activation_sparsity_pattern=sparse, **changes)
    tensors = load_file(folder / "model.safetensors")
    small = [
        f".layers.{at}." for at in range(17)
    ]  # lest differences of GELU grow from layer to layer
    for name in tensors:
        if "post_" in name and any(one in name for one in small):
            tensors[name] *= np.float32(0.05)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = write(tmp_path / "model.gguf", folder)
    assert difference(path, tmp_path / "again") < LIMIT
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    (folder / "model.safetensors").unlink()
    read = {"checkpoint": folder, "gguf": [path]}
    for name, value in load_model(read, TEXT_GENERATION, None).state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_multipliers_in_the_weights_are_not_applied_again(home: Path, tmp_path: Path) -> None:
    multipliers = {
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.4,
        "mlp_multipliers": [0.7, 1.4],
        "attention_in_multiplier": 0.8,
        "attention_out_multiplier": 1.3,
        "key_multiplier": 0.6,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7,
        "ssm_multipliers": [0.8, 1.2, 0.7, 1.4, 0.6],
    }
    folder = make(tmp_path / "model", "falcon_h1", **multipliers, mamba_rms_norm=False)
    path = write(tmp_path / "model.gguf", folder)
    assert difference(path, tmp_path / "again") < LIMIT
    tokens = torch.arange(3, 40)[None]
    one, other = (
        AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32).eval()(tokens).logits
        for each in (folder, tmp_path / "again")
    )
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * one.std().item())
    with pytest.raises(ZooError, match=r"multipliers .* attention_in_multiplier 0\.8"):
        open_checkpoint(str(path), config_from=str(folder))


def test_draft_layers_behind_the_model_are_left_out(home: Path, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "glm4_moe")
    plain = open_checkpoint(str(write(tmp_path / "plain.gguf", folder)))
    draft = {f"blk.4.nextn.{one}.weight": np.ones(64, np.float32) for one in ("enorm", "hnorm")}
    changes = {"block_count": 5, "nextn_predict_layers": 1}
    path = write(tmp_path / "drafts.gguf", folder, draft, **changes)
    with_drafts = open_checkpoint(str(path))
    assert with_drafts.config == plain.config
    assert with_drafts.logical.keys() == plain.logical.keys()
    load_model({"checkpoint": folder, "gguf": [path]}, TEXT_GENERATION, None)


def test_refused_architectures_are_llama_cpp_s_and_read_by_no_layout() -> None:
    known = {architecture for layout in layouts().values() for architecture in layout.architectures}
    assert not set(REFUSED) & known
    assert all(reason.endswith(".") for reason in REFUSED.values())
    assert {*REFUSED} - {"deepseek4"} <= {*gguf.MODEL_ARCH_NAMES.values()}  # gguf-py is older


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("phimoe", REFUSED["phimoe"]), ("xyz", "It is unknown.")],
)
def test_a_file_that_is_not_read_has_a_reason(
    home: Path, tmp_path: Path, architecture: str, reason: str
) -> None:
    path = write(
        tmp_path / "model.gguf", make(tmp_path / "model", "qwen3"), architecture=architecture
    )
    with pytest.raises(
        ZooError, match=f"architecture '{architecture}', which is not read"
    ) as caught:
        open_checkpoint(str(path))
    assert reason in str(caught.value)
    assert "Use the safetensors checkpoint" in str(caught.value)


def test_metadata_that_fit_no_model_of_an_architecture_are_named(
    home: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path / "model", "deepseek_v3")
    path = write(tmp_path / "model.gguf", folder, expert_gating_func=1)
    with pytest.raises(ZooError, match=r"deepseek2\.expert_gating_func 1 in place of 2") as caught:
        open_checkpoint(str(path))
    assert "unknown" not in str(caught.value)
    # transformers computes no other biases
    path = write(
        tmp_path / "mpt.gguf", make(tmp_path / "mpt", "mpt"), attention__max_alibi_bias=16.0
    )
    with pytest.raises(ZooError, match=r"mpt\.attention\.max_alibi_bias 16\.0 in place of 8\.0"):
        open_checkpoint(str(path))
    heads = [2, 2, 0, 0, 2]
    folder = make(tmp_path / "jamba", "jamba")
    path = write(tmp_path / "jamba.gguf", folder, attention__head_count_kv=heads)
    with pytest.raises(ZooError, match=r"attn in the layers \[0, 1, 4\] has unequal intervals"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(("pooling", "number"), [("mean", 1), ("cls", 2), ("lasttoken", 3)])
@pytest.mark.parametrize("kind", sorted(EMBEDDERS))
def test_an_embedder_alone_embeds_as_llama_cpp_does(
    home: Path, tmp_path: Path, kind: str, pooling: str, number: int
) -> None:
    path = write(tmp_path / "model.gguf", make(tmp_path / "model", kind), pooling_type=number)
    tokens = np.random.default_rng(1).integers(0, 256, 40).tolist()
    with opened(path) as llama:
        expected = llama.embedding(tokens)
    checkpoint = open_checkpoint(str(path))
    assert read_pooling(checkpoint.companions) == (pooling, True)
    model = of_transformers(checkpoint, tmp_path / "again")
    with torch.no_grad():
        states = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    pooled = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[pooling]
    assert np.abs(pooled - expected).max() < LIMIT * expected.std()


@pytest.mark.parametrize("dense", [False, True])
def test_an_embedding_gemma_alone_embeds_as_llama_cpp_does(
    home: Path, tmp_path: Path, dense: bool
) -> None:
    folder = make(tmp_path / "model", "gemma3_text")
    changes = {"attention__sliding_window": 10, "pooling_type": 1, "attention__causal": False}
    random = np.random.default_rng(2)
    layers = {"dense_2": (128, 64), "dense_3": (64, 128)} if dense else {}
    extra = {f"{name}.weight": random.standard_normal(shape) for name, shape in layers.items()}
    for name, (rows_, columns) in layers.items():
        changes |= {f"{name}_feat_in": columns, f"{name}_feat_out": rows_}
    path = write(tmp_path / "model.gguf", folder, extra, architecture="gemma-embedding", **changes)
    tokens = np.random.default_rng(1).integers(0, 256, 40).tolist()
    with opened(path) as llama:
        expected = llama.embedding(tokens)
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.architectures == ("Gemma3TextModel",)
    found = read_pooling(checkpoint.companions)
    assert found is not None
    assert found == ("mean", True)
    steps = bindings_of(read_steps(checkpoint.companions))
    assert sorted(steps.values()) == sorted(name for name in checkpoint.logical if "Dense" in name)
    assert len(steps) == len(layers)
    model = of_transformers(checkpoint, tmp_path / "again", AutoModel)
    assert model.config.sliding_window == 6  # as transformers takes it of a bidirectional model
    with torch.no_grad():
        states = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    embedding = states.mean(0)
    for name in sorted(name for name in checkpoint.logical if "Dense" in name):
        embedding = rows(checkpoint.values[name], checkpoint.read, checkpoint.tensors) @ embedding
    assert np.abs(embedding - expected).max() < LIMIT * expected.std()


def test_gates_may_stand_apart(home: Path, tmp_path: Path) -> None:
    """Older files of Jina's embedders have gates and ups as two tensors."""
    folder = make(tmp_path / "model", "jina_bert")
    fused = open_checkpoint(str(write(tmp_path / "fused.gguf", folder)))
    tensors = stored(folder)
    for at in range(3):
        both = tensors.pop(f"blk.{at}.ffn_up.weight")
        tensors[f"blk.{at}.ffn_gate.weight"], tensors[f"blk.{at}.ffn_up.weight"] = np.split(both, 2)
    path = write(tmp_path / "apart.gguf", folder, tensors=tensors)
    apart = open_checkpoint(str(path))
    name = "encoder.layer.1.mlp.gated_layers.weight"
    one, other = (
        rows(each.values.get(name, name), each.read, each.tensors) for each in (fused, apart)
    )
    assert np.array_equal(one, other)
    tokens = [5, 6, 7, 8]
    found = []
    for file in ("fused", "apart"):
        with opened(tmp_path / f"{file}.gguf") as llama:
            found.append(llama.embedding(tokens))
    np.testing.assert_allclose(*found, atol=1e-3)
    expected = AutoModel.from_pretrained(folder, dtype=torch.float32).state_dict()[name]
    (folder / "model.safetensors").unlink()
    for file in ("fused", "apart"):
        read = {"checkpoint": folder, "gguf": [tmp_path / f"{file}.gguf"]}
        assert torch.equal(load_model(read, FEATURE_EXTRACTION, None).state_dict()[name], expected)


def yarned(**changes: Any) -> dict[str, Any]:
    settings = {
        "scaling__type": "yarn",
        "scaling__factor": 4.0,
        "scaling__original_context_length": 64,
    }
    return {f"rope__{key}": value for key, value in {**settings, **changes}.items()}


YARN = (
    *("type", "factor", "original_context_length", "yarn_log_multiplier"),
    *("yarn_beta_fast", "yarn_beta_slow"),
)
#: Files of single types with other metadata, or further tensors, than the ones above.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Array]]] = {
    "numbers of heads are llama.cpp's": ("olmoe", {"attention__head_count_kv": None}, {}),
    "yarn": ("arcee", yarned(), {}),
    "linear by its old name": ("arcee", {"rope__scale_linear": 4.0}, {}),
    "no scaling": ("arcee", {"rope__scaling__type": "none"}, {}),
    "no window": ("gemma3_text", {"attention__sliding_window": None}, {}),
    "a pattern of windows": (
        "gemma3_text",
        {"attention__sliding_window_pattern": [True, False, True, True, False, True, False]},
        {},
    ),
    "an interval of windows": ("gemma2", {"attention__sliding_window_pattern": 3}, {}),
    "no temperature": (
        "ministral3",
        {
            "attention__temperature_scale": None,
            **{f"rope__scaling__{one}": None for one in YARN},
        },
        {},
    ),
    "another local theta": ("gemma3_text", {"rope__freq_base_swa": 500.0}, {}),
    "factors of one": ("llama", {}, {"rope_freqs.weight": np.ones(12, np.float32)}),
    "other factors of Llama 3": (
        "llama",
        {"rope__freq_base": 300.0},
        {"rope_freqs.weight": llama3_factors(24, 300.0, factor=5, high=3, context=600)},
    ),
    "factors for short contexts": (
        "phi3",
        {
            "context_length": 1024,
            "rope__scaling__original_context_length": 256,
            "rope__scaling__attn_factor": 1.1180341,
        },
        {
            "rope_factors_short.weight": np.linspace(1, 2, 12, dtype=np.float32),
            "rope_factors_long.weight": np.linspace(1, 9, 12, dtype=np.float32),
        },
    ),
}


@pytest.mark.parametrize(("kind", "changes", "extra"), CASES.values(), ids=list(CASES))
def test_other_files_of_single_types(
    home: Path, tmp_path: Path, kind: str, changes: dict[str, Any], extra: dict[str, Array]
) -> None:
    path = write(tmp_path / "model.gguf", make(tmp_path / "model", kind), extra, **changes)
    assert difference(path, tmp_path / "again") < LIMIT


def test_what_is_in_neither_is_named(home: Path, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "llama")
    rope_factors = {"rope_freqs.weight": np.linspace(1, 3, 12, dtype=np.float32)}
    for changes, extra, named in (
        ({"feed_forward_length": None}, {}, "its metadata lack llama.feed_forward_length"),
        ({"router_temperature": 2.0}, {}, "its metadata llama.router_temperature"),
        ({"attention__value_length": 8}, {}, "key_length 24 and value_length 8"),
        ({"attention__head_count": 0}, {}, "llama.attention.head_count: 0. Expected one size"),
        ({"attention__head_count_kv": "2"}, {}, "head_count_kv: '2'. Expected one number"),
        ({"feed_forward_length": [96] * 4}, {}, "llama.feed_forward_length: values by layer"),
        ({}, rope_factors, "factors of RoPE that no scaling of Llama 3 has"),
    ):
        path = write(tmp_path / f"{len(named)}.gguf", folder, extra, **changes)
        with pytest.raises(ZooError, match="--config-from") as caught:
            open_checkpoint(str(path))
        assert named in str(caught.value)


def test_a_configuration_that_differs_from_the_file_is_warned_of(
    home: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path / "model", "qwen3")
    path = write(folder / "model.gguf", folder)
    (folder / "model.safetensors").unlink()
    open_checkpoint(str(path))
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 1e6
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    with pytest.warns(UserWarning, match=r"rms_norm_eps 0\.001 in the file and 1e-05") as caught:
        checkpoint = open_checkpoint(str(path))
    assert "rope_theta 5000.0 in the file and 1000000.0 in the configuration" in str(
        caught[0].message
    )
    assert checkpoint.config["rms_norm_eps"] == 1e-5


def test_an_answer_ends_where_llama_cpp_ends_it(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", make(tmp_path / "model", "qwen3"))
    checkpoint = open_checkpoint(str(path))
    with opened(path, vocabulary_only=True) as llama:
        ends = [number for number in range(VOCABULARY) if llama.ends(number)]
    assert checkpoint.config["eos_token_id"] == 257
    assert sorted(checkpoint.generation_config["eos_token_id"]) == ends


@pytest.mark.parametrize("kind", sorted({*MODELS, *EMBEDDERS}))
@pytest.mark.sampled(3)
def test_the_reference_reads_every_architecture(tmp_path: Path, kind: str) -> None:
    folder = make(tmp_path / "model", kind)
    path = write(tmp_path / "model.gguf", folder)
    task, auto = TEXT_GENERATION, AutoModelForCausalLM
    if kind in EMBEDDERS:
        task, auto = FEATURE_EXTRACTION, AutoModel
    expected = auto.from_pretrained(folder, dtype=torch.float32).state_dict()
    (folder / "model.safetensors").unlink()
    found = load_model({"checkpoint": folder, "gguf": [path]}, task, None).state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if not name.startswith("pooler."):
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("context", "full"), [(4096, range(8)), (1 << 20, (0, 1, 2, 6))], ids=["older", "5.2"]
)
def test_indexers_that_a_file_does_not_name_are_those_of_llama_cpp(
    context: int, full: Any, home: Path, tmp_path: Path
) -> None:
    types = ["full" if at in full else "shared" for at in range(8)]
    folder = make(tmp_path / "model", "glm_moe_dsa", num_hidden_layers=8, indexer_types=types)
    named: dict[str, Any] = {"attention__indexer__types": None, "context_length": context}
    path = write(tmp_path / "a.gguf", folder, **named)
    assert open_checkpoint(str(path)).config["indexer_types"] == types
