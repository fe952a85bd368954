# SPDX-License-Identifier: Apache-2.0
"""Arguments and attributes of QEfficient's classes, as QEfficient's own examples and docstrings write them."""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import internvl_checkpoint
import pytest
import torch
from checkout import ROOT
from local_hub import LocalHub
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from qeff_zoo import pipeline, qefficient
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import PlanError, UnsupportedModelError
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient import configs, image_sizes, kv_heads, own_form_configs
from qeff_zoo.registry import find_recipe

LLAMA, VLM = (str(ROOT / "examples" / name) for name in ("tiny-llama", "tiny-vlm"))
Causal = qefficient.QEFFAutoModelForCausalLM
Vision = qefficient.QEFFAutoModelForImageTextToText
#: Turns the arguments of `compile` into the request of a build.
Requests = Callable[..., Request]


@pytest.fixture(autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp() / "classes"
        patch.setenv("QEFF_HOME", str(folder))
        yield folder


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Give a function that returns the request that a model prepares for a card, planned and not built."""

    def prepare(self: Any, request: Request, _: object) -> Path:
        pipeline.make_plan(self._source.model, request, **self._source.beside)
        requested.append(request)
        return Path()

    def send_request(model: Any, **choices: Any) -> Request:
        model.compile(**{"target": "qaic", "prefill_seq_len": 32, "ctx_len": 128} | choices)
        return requested[-1]

    requested: list[Request] = []
    monkeypatch.setattr(qefficient.models.Model, "_prepare", prepare)
    return send_request


# --- configuration -------------------------------------------------------------------------------


def test_a_cut_model_equals_transformers() -> None:
    model = Causal.from_pretrained(LLAMA, num_hidden_layers=2)
    assert model.model_name == "tiny-llama-2-layers"
    assert model.config.num_hidden_layers == 2
    checkpoint = open_checkpoint(model._source.model)
    assert checkpoint.name == "tiny-llama-2-layers"
    logging.set_verbosity_error()  # of the weights of other layers
    ours = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(
        LLAMA, num_hidden_layers=2, dtype=torch.float32
    )
    ids = torch.arange(100, 116)[None]
    assert torch.equal(ours(ids).logits, reference(ids).logits)
    assert len(ours.model.layers) == 2


def test_specializations_are_those_of_a_build() -> None:
    model = Causal.from_pretrained(LLAMA, continuous_batching=True)
    assert model.continuous_batching
    assert model.model_architecture == "LlamaForCausalLM"
    common = {"ctx_len": 64, "full_batch_size": 4}
    sizes = {"prefill_seq_len": 8, **common}
    assert model.build_prefill_specialization(**sizes) == {
        "batch_size": 1, "seq_len": 8, **common, "_graph_name": "Prefill",
    }  # fmt: skip
    decode = {"batch_size": 4, "seq_len": 1, **common, "_graph_name": "Decode"}
    assert model.build_decode_specialization(**sizes) == decode
    checks = model.build_decode_specialization(
        **sizes, num_speculative_tokens=3, comp_ctx_lengths=32
    )
    assert checks == {
        **decode,
        "seq_len": 4,
        "num_logits_to_keep": 4,
        "comp_ctx_lengths": 32,
    }
    with pytest.raises(PlanError, match="prefill_only=True, enable_chunking=True"):
        model.prefill(enable=True, enable_chunking=True)


def test_a_model_of_transformers_gets_the_tokenizer_of_a_name() -> None:
    config = AutoConfig.from_pretrained(LLAMA)
    config.num_hidden_layers = 1
    config.name_or_path = ""
    made = AutoModelForCausalLM.from_config(config)
    model = Causal(made, pretrained_model_name_or_path=LLAMA)
    assert (Path(model._source.model) / "tokenizer.json").is_file()
    assert model.config.num_hidden_layers == 1


def test_a_model_of_another_class_is_refused() -> None:
    match = r"'tiny-llama' is a 'llama' model for text-generation.*Speech.* is for speech-seq2seq; expected .*Loader"
    with pytest.raises(UnsupportedModelError, match=match):
        qefficient.QEFFAutoModelForSpeechSeq2Seq.from_pretrained(LLAMA)


def test_a_model_of_the_hub_is_cut(hub: LocalHub, tmp_path: Path) -> None:
    files = (path for path in Path(LLAMA).iterdir() if path.is_file())
    hub.commit("alice/tiny", {path.name: path.read_bytes() for path in files})
    hub.models["alice/tiny"].private = True
    place = {"token": "hf_alice", "cache_dir": tmp_path / "mine"}
    whole = Causal.from_pretrained("alice/tiny", **place)
    model = Causal.from_pretrained("alice/tiny", num_hidden_layers=1, **place)
    assert model.model_name == "tiny-1-layers"
    weights = Path(model._source.model, "model.safetensors").resolve()
    assert weights.is_relative_to(tmp_path / "mine")
    assert "hf_alice" not in f"{whole._source!r}"


def test_another_number_of_layers_is_another_package() -> None:
    request = Request(prefill_seq_len=32, ctx_len=64)
    sources = [
        Causal.from_pretrained(LLAMA, num_hidden_layers=layers)._source.model
        for layers in (None, 6, 3, 2)
    ]
    keys = [pipeline.make_plan(source, request)[1].build_key for source in sources]
    assert sources[:2] == [LLAMA, LLAMA]
    assert len({*keys}) == 3
    config = AutoConfig.from_pretrained(LLAMA)
    config.num_hidden_layers = 2
    assert Causal.from_pretrained(LLAMA, config=config)._source.model == sources[-1]


def test_parts_of_a_configuration_are_cut() -> None:
    config = AutoConfig.from_pretrained(VLM)
    config.text_config.num_hidden_layers = 2
    config.vision_config.num_hidden_layers = 3
    model = Vision.from_pretrained(VLM, config=config, num_hidden_layers=1)
    assert model.model_name == "tiny-vlm-1-layers-3-vision-layers"
    found = AutoConfig.from_pretrained(model._source.model)
    assert found.text_config.num_hidden_layers == 1
    assert found.vision_config.num_hidden_layers == 3


@pytest.fixture(scope="module")
def internvl(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint in the form of its authors' code, whose configuration transformers cannot parse."""
    folder = tmp_path_factory.mktemp("internvl") / "InternVL2_5-1B"
    internvl_checkpoint.write(folder)
    return str(folder)


def reference_output(folder: str, layers: int) -> Any:
    """Return the configuration that a class of the authors has of a checkpoint, with fewer layers."""
    content = json.loads(Path(folder, "config.json").read_text())
    config = own_form_configs.parsed(content)
    config.llm_config.num_hidden_layers = layers
    config.more = "of the class"
    return config


def test_a_configuration_has_the_names_of_its_file(internvl: str) -> None:
    model = Vision.from_pretrained(internvl)
    config = model.model.config
    assert (config.model_type, config.vision_config.patch_size) == ("internvl_chat", 7)
    assert (config.force_image_size, config.downsample_ratio) == (28, 0.5)
    layers = config.llm_config.num_hidden_layers
    for requested in ({"config": reference_output(internvl, 2)}, {"num_hidden_layers": 2}):
        cut = Vision.from_pretrained(internvl, **requested)
        assert cut.model_name == "InternVL2_5-1B-2-layers"
        assert open_checkpoint(cut._source.model).text_config["num_hidden_layers"] == 2
    assert Vision.from_pretrained(
        internvl, config=reference_output(internvl, layers)
    ).model_name == ("InternVL2_5-1B")
    config.llm_config.hidden_size = 5
    with pytest.raises(PlanError, match=r"`compile`: llm_config\.hidden_size of the model's"):
        model.compile()
    with pytest.raises(PlanError, match=r"llm_config\.hidden_size of config differs"):
        Vision.from_pretrained(internvl, config=config)


def test_values_of_layers_are_cut_too(tmp_path: Path) -> None:
    from transformers import Gemma3nTextConfig

    config = Gemma3nTextConfig(
        num_hidden_layers=10, num_kv_shared_layers=4, intermediate_size=[8] * 10
    )
    content = configs._content(config)
    changes = configs._following(content, {"num_hidden_layers": 8})
    assert changes["num_kv_shared_layers"] == 2
    assert changes["layer_types"] == config.layer_types[:8]
    assert changes["intermediate_size"] == [8] * 8
    assert configs._following(content, {"num_hidden_layers": 3})["num_kv_shared_layers"] == 0


@pytest.mark.parametrize("model_type", ["gemma4_text", "zamba2", "gpt2"])
def test_tables_by_layer_are_cut_too(model_type: str, tmp_path: Path) -> None:
    recipe = find_recipe(model_type)
    raw = {**recipe.tiny[0].config, "model_type": model_type}
    config = configs.parsed(raw)
    config.num_hidden_layers = 2
    changes = configs.differences(configs.parsed(raw), config)
    changes |= configs._following(configs._content(configs.parsed(raw)), changes)
    found = configs.parsed(configs._changed(SimpleNamespace(config=raw), changes))
    assert found.num_hidden_layers == 2
    tables = configs._content(found).get("per_layer_config") or {}
    assert all(int(layer) < 2 for layer in tables)
    assert len(getattr(found, "layer_types", None) or [1, 2]) == 2


def test_layers_that_transformers_changes_are_refused() -> None:
    raw = {**find_recipe("nemotron_h").tiny[0].config, "model_type": "nemotron_h"}
    with pytest.raises(PlanError, match="than the checkpoint's first layers have"):
        configs._changed(SimpleNamespace(config=raw), {"num_hidden_layers": 2})


def test_a_configuration_may_differ_without_effect() -> None:
    config = AutoConfig.from_pretrained(LLAMA)
    config.dtype = torch.float16
    config._attn_implementation = "eager"
    config.use_cache = False
    assert Causal.from_pretrained(LLAMA, config=config)._source.model == LLAMA


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_size": 64}, "hidden_size of config differs from the checkpoint's"),
        ({"num_hidden_layers": 9}, "num_hidden_layers of config differs"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "rope_parameters."),
    ],
)
def test_another_configuration_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    config = AutoConfig.from_pretrained(LLAMA)
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(PlanError, match=re.escape(problem)) as refused:
        Causal.from_pretrained(LLAMA, config=config)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("layers", [0, 7, True, "2"])
def test_a_number_of_layers_is_checked(layers: Any) -> None:
    with pytest.raises(PlanError, match="expected a number from 1 to 6, the layers of"):
        Causal.from_pretrained(LLAMA, num_hidden_layers=layers)


def test_a_model_has_its_configuration_and_no_module() -> None:
    model = Causal.from_pretrained(LLAMA)
    assert model.config.to_dict() == model.model.config.to_dict()
    assert model.config.vocab_size == AutoConfig.from_pretrained(LLAMA).vocab_size
    assert model.config.torch_dtype == torch.float32
    inputs = {"input_ids": [[1]]}
    view = model.model
    assert view.prepare_inputs_for_generation(inputs=inputs, batch_size=1) is inputs
    assert not hasattr(view, "layers")
    with pytest.raises(AttributeError, match="give kv_heads=N to `compile`"):
        _ = view.layers
    model.config.num_key_value_heads = 6
    with pytest.raises(PlanError, match="num_key_value_heads of the model's configuration"):
        model.compile(target="qaic")


# --- arguments of compile ------------------------------------------------------------------------


def test_aliases_replace_defaults(requests: Requests) -> None:
    model = Causal.from_pretrained(LLAMA)
    assert requests(model, mdp_ts_num_devices=2, mdp_strategy="onnx").num_devices == 2
    assert requests(model, aic_num_cores=14, num_devices=0).num_cores == 14
    assert requests(model, num_devices=0).num_devices is None
    with pytest.raises(PlanError, match="num_devices is said to be 3 as well"):
        model.compile(num_devices=3, mdp_ts_num_devices=2)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"blocking_mode": "kv", "num_kv_blocks": 4}, ("kv", 4, None, None)),
        ({"blocking_mode": "hqkv", "num_kv_blocks": 2, "head_block_size": 3}, ("hkv", 2, None, 3)),
        ({"blocking_mode": "hkv", "num_kv_blocks": 1, "head_block_size": 3}, ("h", None, None, 3)),
        ({"blocking_mode": "kv"}, (None, None, None, None)),  # all of it fits
    ],
)
@pytest.mark.parametrize("early", [False, True], ids=["compile", "from_pretrained"])
def test_blocked_attention(
    config: dict[str, Any], options: tuple[Any, ...], early: bool, requests: Requests
) -> None:
    config = {"enable_blocking": True, **config}
    model = Causal.from_pretrained(LLAMA, **({"qaic_config": config} if early else {}))
    request = requests(model, **({} if early else {"qaic_config": config}))
    names = ("blocking_mode", "num_kv_blocks", "num_q_blocks", "head_block_size")
    assert tuple(getattr(request, name) for name in names) == options
    assert request.compiler_flag is None


def test_numbers_of_blocks_follow_from_a_core_s_memory() -> None:
    from qeff_zoo.qefficient import blocking

    config = {"num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size": 4096}
    sizes = {"prefill_seq_len": 128, "num_cores": 16, "prefill_only": None, "batch_size": 1}
    found = [
        blocking.options_of({"enable_blocking": True, **mode}, config, {**sizes, **more})
        for mode, more in (
            ({"blocking_mode": "kv"}, {"ctx_len": 131_072, "num_devices": 1}),
            ({}, {"ctx_len": 131_072, "num_devices": 4}),
            ({}, {"ctx_len": 4096, "num_devices": 3}),
        )
    ]
    assert found[0] == {"blocking_mode": "kv", "num_kv_blocks": 256}
    assert found[1] == {"blocking_mode": "hkv", "head_block_size": 4, "num_kv_blocks": 8}
    assert found[2] == {"blocking_mode": "h", "head_block_size": 4}
    for blocks, heads in ((256, 32), (8, 1)):  # 8 tokens of a prefill call for each core
        for count, fits in ((blocks, True), (blocks // 2, False)):
            rows = 131_072 // count
            assert (2 * heads * (8 * 128 + rows * 128 + 8 * rows) < 6 << 20) is fits


def test_fewer_layers_leave_the_labels() -> None:
    labels = ("up", "down", "left")
    config = {
        **json.loads((Path(LLAMA) / "config.json").read_text()),
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    checkpoint: Any = SimpleNamespace(config=config)
    found = configs._changed(checkpoint, {"num_hidden_layers": 1})
    assert (found["num_hidden_layers"], found["id2label"]) == (1, config["id2label"])


@pytest.mark.parametrize(
    ("config", "devices", "heads"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, 16, 16),
        ({"num_attention_heads": 32, "num_key_value_heads": 2}, 8, 4),  # the fewest
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, 4, None),
        ({"num_attention_heads": 32, "num_key_value_heads": 3}, 8, None),
        ({"num_attention_heads": 64, "num_key_value_heads": 1, "kv_lora_rank": 512}, 4, None),
        ({"n_heads": 48, "attn_config": {"kv_n_heads": 8}}, 16, 16),
        ({"n_head": 16, "multi_query": True}, 4, 2),
    ],
)
def test_kv_heads_are_replicated_for_devices(
    config: dict[str, int], devices: int, heads: int | None
) -> None:
    assert kv_heads.replicated(config, devices) == heads


@pytest.mark.parametrize("early", [False, True], ids=["compile", "from_pretrained"])
def test_replicated_kv_heads_are_an_option_of_the_build(early: bool, requests: Requests) -> None:
    config = {"replicate_kv_heads": True}
    model = Causal.from_pretrained(LLAMA, **({"qaic_config": config} if early else {}))
    given = {} if early else {"qaic_config": config}
    assert requests(model, num_devices=6, **given).kv_heads == 6
    assert requests(model, **given).kv_heads is None


def test_blocked_attention_is_refused_by_name(requests: Requests) -> None:
    model = Causal.from_pretrained(LLAMA)
    for config, problem in (
        ({"blocking_mode": "kv"}, "enable_blocking is not True"),
        ({"enable_blocking": True, "blocking_mode": "vk"}, "blocking_mode is 'vk'"),
        ({"ccl_enabled": True}, "Give qaic_config to `from_pretrained`"),
    ):
        with pytest.raises(PlanError, match=re.escape(problem)):
            model.compile(qaic_config=config)
    config = {"enable_blocking": True, "blocking_mode": "kv", "num_kv_blocks": 2, "skip_kv": True}
    with pytest.warns(UserWarning, match="skip_kv=True is left out"):
        assert requests(model, qaic_config=config).num_kv_blocks == 2


def test_none_is_no_value() -> None:
    nothing = dict.fromkeys(("specializations", "dtype", "token", "config", "anything"))
    model = Causal.from_pretrained(LLAMA, qaic_config={"blocking_mode": None}, **nothing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from qeff_zoo.qefficient import translation

        translation.refuse("generate", nothing, translation.GENERATING)
    assert repr(model) == f"QEFFAutoModelForCausalLM({LLAMA!r})"


# --- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((28, 56, 1, None), ("28x56",)),
        (([240, 1024], [360, 1024], [3, 1], None), ("240x360", "1024x1024")),
        (([28, 56], [28, 56], 1, {"min_pixels": 28 * 28 * 4}), ("56x56", "56x56")),
        ((200, 400, None, {"max_pixels": 20_000}), ("100x200",)),
        ((None, None, 4, None), ()),
    ],
)
def test_sizes_of_images(arguments: tuple[Any, ...], sizes: tuple[str, ...]) -> None:
    assert image_sizes.read(*arguments) == sizes


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((28, None, 1, None), "expected as many of each"),
        (([28], [28], [1, 1], None), "expected as many of each"),
        ((28, 28, 1, {"fps": 2}), "expected min_pixels and max_pixels"),
    ],
)
def test_sizes_of_images_are_checked(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        image_sizes.read(*arguments)


def test_arguments_of_images(requests: Requests) -> None:
    with pytest.warns(UserWarning, match="which are not given"):
        assert not image_sizes.read(None, None, 1, {"min_pixels": 3136})
    model = Vision.from_pretrained(VLM, token=None, attn_implementation="eager")
    sizes = {"vision_size": 4096, "max_num_tiles": 17, "num_patches": 10, "max_num_images": 2}
    request = requests(model, **sizes, skip_vision=True, img_size=336, num_frames=1)
    assert request.compiler_flag is None
    assert (request.max_num_images, request.single_program) == (None, None)
    with pytest.raises(PlanError, match="num_frames is 3, and target 'qaic' reads no videos"):
        requests(model, height=[28], width=[28], num_frames=[3])
    single = Vision.from_pretrained(VLM, kv_offload=False)
    assert requests(single).single_program is True
    with pytest.warns(UserWarning, match="kv_offload=False is left out: a package for target"):
        single._request("ort", {"single_program": True, "num_frames": 3})


def test_the_class_of_text_models_finds_that_of_images() -> None:
    model = Causal.from_pretrained(VLM, kv_offload=False, trust_remote_code=True)
    assert isinstance(model, Vision)
    assert model._single_program
    assert not isinstance(Causal.from_pretrained(LLAMA, kv_offload=True), Vision)


# --- other attributes and files ------------------------------------------------------------------


def test_nodes_in_float32(requests: Requests, tmp_path: Path) -> None:
    file = tmp_path / "npi.yaml"
    names = [
        "/model/layers.0/Add_1_output_0",
        "/model/norm/CustomRMSNorm_output_0",
        "onnx::Shape_3",
    ]
    file.write_text("".join(["FP32NodeInstanceNames:\n", *(f" - {name}\n" for name in names)]))
    model = Causal.from_pretrained(LLAMA)
    with pytest.warns(UserWarning, match="onnx::Shape stay in float16"):
        request = requests(model, node_precision_info=str(file))
    assert request.node_precision_info == ("Add", "CustomRMSNorm")
    file.write_text("FP16NodeInstanceNames: ['logits']")
    for value in (str(file), True, None, False):
        assert requests(model, node_precision_info=value).node_precision_info is None
    with pytest.raises(PlanError, match="Cannot read node_precision_info"):
        model.compile(node_precision_info="absent.yaml")


def test_attributes_of_models(tmp_path: Path) -> None:
    assert not Causal.from_pretrained(LLAMA).is_tlm
    assert Causal.from_pretrained(LLAMA, qaic_config={"speculative_model_type": "target"}).is_tlm
    model = qefficient.QEffAutoLoraModelForCausalLM.from_pretrained(LLAMA)
    model._adapters["a"] = "source"
    assert model.unload_adapter("a") is True
    assert model.unload_adapter("a") is False
    swapped = qefficient.QEffAutoPeftModelForCausalLM.from_pretrained
    peft = swapped.__self__.__new__(swapped.__self__)
    peft.disable_adapter()
    assert peft.active_adapter == "base"
