# SPDX-License-Identifier: Apache-2.0
"""Arguments and attributes of QEfficient's classes, as QEfficient's own examples and docstrings write them."""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from qeff_zoo import pipeline, qefficient
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import PlanError
from qeff_zoo.plan.request import Request

ROOT = Path(__file__).parent.parent
LLAMA, VLM = (str(ROOT / "examples" / name) for name in ("tiny-llama", "tiny-vlm"))
Causal = qefficient.QEFFAutoModelForCausalLM
Vision = qefficient.QEFFAutoModelForImageTextToText
#: Turns the arguments of `compile` into the request of a build.
Asks = Callable[..., Request]


@pytest.fixture(autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp() / "classes"
        patch.setenv("QEFF_HOME", str(folder))
        yield folder


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> Asks:
    """Give a function that returns the request that a model prepares for a card, planned and not built."""

    def prepare(self: Any, request: Request, _: object) -> Path:
        pipeline.make_plan(self._source.model, request, **self._source.beside)
        asked.append(request)
        return Path()

    def ask(model: Any, **choices: Any) -> Request:
        model.compile(**{"target": "qaic", "prefill_seq_len": 32, "ctx_len": 128} | choices)
        return asked[-1]

    asked: list[Request] = []
    monkeypatch.setattr(qefficient.models.Model, "_prepare", prepare)
    return ask


# --- configuration -------------------------------------------------------------------------------


def test_a_cut_model_equals_transformers() -> None:
    model = Causal.from_pretrained(LLAMA, num_hidden_layers=2)
    assert model.model_name == "tiny-llama-2-layers"
    assert model.config.num_hidden_layers == 2
    checkpoint = open_checkpoint(model._source.model)
    assert checkpoint.name == "tiny-llama-2-layers"
    logging.set_verbosity_error()  # of the weights of other layers
    ours = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(LLAMA, num_hidden_layers=2, dtype=torch.float32)
    ids = torch.arange(100, 116)[None]
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    assert len(ours.model.layers) == 2


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


def test_values_of_layers_are_cut_too(tmp_path: Path) -> None:
    from transformers import Gemma3nTextConfig

    from qeff_zoo.qefficient import configs

    config = Gemma3nTextConfig(
        num_hidden_layers=10, num_kv_shared_layers=4, intermediate_size=[8] * 10
    )
    content = configs._content(config)
    changes = configs._following(content, {"num_hidden_layers": 8})
    assert changes["num_kv_shared_layers"] == 2
    assert changes["layer_types"] == config.layer_types[:8]
    assert changes["intermediate_size"] == [8] * 8
    assert configs._following(content, {"num_hidden_layers": 3})["num_kv_shared_layers"] == 0


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


def test_aliases_replace_defaults(asks: Asks) -> None:
    model = Causal.from_pretrained(LLAMA)
    assert asks(model, mdp_ts_num_devices=2, mdp_strategy="onnx").num_devices == 2
    assert asks(model, aic_num_cores=14, num_devices=0).num_cores == 14
    assert asks(model, num_devices=0).num_devices is None
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
    config: dict[str, Any], options: tuple[Any, ...], early: bool, asks: Asks
) -> None:
    config = {"enable_blocking": True, **config}
    model = Causal.from_pretrained(LLAMA, **({"qaic_config": config} if early else {}))
    request = asks(model, **({} if early else {"qaic_config": config}))
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


def test_blocked_attention_is_refused_by_name(asks: Asks) -> None:
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
        assert asks(model, qaic_config=config).num_kv_blocks == 2


def test_none_is_no_value() -> None:
    nothing = dict.fromkeys(("specializations", "dtype", "token", "config", "anything"))
    model = Causal.from_pretrained(LLAMA, qaic_config={"blocking_mode": None}, **nothing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from qeff_zoo.qefficient import translation

        translation.refuse("generate", nothing, translation.GENERATING)
    assert repr(model) == f"QEFFAutoModelForCausalLM({LLAMA!r})"
