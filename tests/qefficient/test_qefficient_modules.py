# SPDX-License-Identifier: Apache-2.0
"""QEfficient's modules below the top: its session of one program, loaders, functions behind commands, and refusals."""

import importlib
import inspect
import json
import re
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from fixtures_builds import Models
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from qeff_zoo import pipeline, qefficient
from qeff_zoo.errors import (
    ContextLengthError,
    GenerationError,
    MissingNameError,
    PlanError,
    ZooError,
)
from qeff_zoo.package import Package
from qeff_zoo.qefficient.generation import vision
from qeff_zoo.qefficient.generation.cloud_infer import QAICInferenceSession
from qeff_zoo.qefficient.generation.inputs import InputHandler, get_padding_shape_from_config
from qeff_zoo.qefficient.generation.text_generation_inference import (
    CloudAI100ExecInfoNew,
    PerfMetrics,
    QEffTextGenerationBase,
    calculate_latency,
    fix_prompt_to_lora_id_mapping,
    fix_prompts,
    get_compilation_dims,
    get_input_prompts,
    write_io_files,
)
from qeff_zoo.qefficient.program_paths import ProgramPaths
from qeff_zoo.qefficient.qpc_folders import get_qpc_dir_path, qpc_exists, sizes_of

HERE = "qeff_zoo.qefficient"
GUIDE = (ROOT / "docs" / "from-qefficient.md").read_text(encoding="utf-8")
SIZES = {"prefill_seq_len": 8, "ctx_len": 32}
#: A prompt of two chunks, and how long it is.
IDS, LENGTH = np.random.default_rng(0).integers(3, 250, (1, 16)), 13

pytestmark = pytest.mark.together("qefficient-modules")


@pytest.fixture(scope="module")
def reference_output(models: Models) -> Any:
    return AutoModelForCausalLM.from_pretrained(models.llama, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def package(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return models.build(models.llama, tmp_path_factory.mktemp("store"), **SIZES)


@pytest.fixture(scope="module")
def batched(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Package:
    sizes = {**SIZES, "full_batch_size": 3, "num_speculative_tokens": (2,)}
    return models.build(models.llama, tmp_path_factory.mktemp("store"), **sizes)


def logits(reference_output: Any, *tokens: Any) -> Any:
    """Return transformers' logits after each token of a text."""
    with torch.no_grad():
        return reference_output(torch.tensor([tokens])).logits[0].numpy()


def chunks(tokens: Any = IDS[0, :LENGTH], **more: Any) -> Iterator[dict[str, Any]]:
    """Yield the calls of a prompt as QEfficient's scripts make them: of whole chunks, with position -1 for padding."""
    width = -(-len(tokens) // 8) * 8
    padded = np.pad(tokens, (0, width - len(tokens)))[None]
    positions = np.where(np.arange(width) < len(tokens), np.arange(width), -1)[None]
    for at in range(0, width, 8):
        part = slice(at, at + 8)
        yield {"input_ids": padded[:, part], "position_ids": positions[:, part], **more}


def test_calls_return_transformers_logits_and_states_move_to_another_program(
    package: Package, reference_output: Any
) -> None:
    prefill, decode = (QAICInferenceSession(package.path) for _ in range(2))
    for call in chunks():
        found = prefill.run(call)
    prompt = IDS[0, :LENGTH].tolist()
    np.testing.assert_allclose(
        found["logits"][0, 0], logits(reference_output, *prompt)[-1], atol=1e-4
    )
    moved = {name.removesuffix("_RetainedState"): value for name, value in found.items()}
    del moved["logits"]
    for name, array in [*moved.items()]:  # as compile(kv_cache_prefix="VLLM") calls them
        assert found[f"{name}_VLLM_RetainedState"] is array
        moved[f"{name}_VLLM"] = moved.pop(name)
    with pytest.raises(KeyError, match=r"past_key\.9_VLLM"):
        found["past_key.9_VLLM_RetainedState"]
    for _ in range(3):
        prompt.append(int(found["logits"].argmax()))
        call = {"input_ids": [[prompt[-1]]], "position_ids": [[len(prompt) - 1]]}
        found = decode.run({**call, **moved})
        decode.skip_buffers(
            one for one in decode.input_names + decode.output_names if one.startswith("past_")
        )
        moved = {}  # they stay in the program
        np.testing.assert_allclose(
            found["logits"][0, 0], logits(reference_output, *prompt)[-1], atol=1e-4
        )
    assert [*found] == ["logits"]


def test_rows_go_to_batch_slots_and_several_tokens_are_verified(
    batched: Package, reference_output: Any
) -> None:
    session = QAICInferenceSession(str(batched.path))
    states = [one for one in session.input_names + session.output_names if one.startswith("past_")]
    session.skip_buffers(states)
    texts = {2: [5, 6, 7, 8, 9], 0: IDS[0, :LENGTH].tolist()}
    for slot, text in texts.items():
        for call in chunks(text, batch_index=np.array([[slot]])):
            found = session.run(call)
        np.testing.assert_allclose(
            found["logits"][0, 0], logits(reference_output, *text)[-1], atol=1e-4
        )
    drafts, padding = {0: [11, 12, 13], 2: [21, 22, 23]}, [0, 0, 0]
    inputs = {
        "input_ids": np.array([drafts.get(slot, padding) for slot in range(3)]),
        "position_ids": np.array(
            [
                [len(texts[slot]) + at if slot in texts else -1 for at in range(3)]
                for slot in range(3)
            ]
        ),
        "batch_index": np.arange(3)[:, None],
        "num_logits_to_keep": np.zeros((3, 1)),
    }
    found = session.run(inputs)
    for slot, text in texts.items():
        expected = logits(reference_output, *text, *drafts[slot])[-3:]
        np.testing.assert_allclose(found["logits"][slot], expected, atol=1e-4)
    assert not found["logits"][1].any()
    last = {
        "input_ids": np.array([[1, 2, 3]] * 3),
        "position_ids": np.array([[31, 32, 33], [-1] * 3, [-1] * 3]),
    }
    found = session.run({**inputs, **last})
    assert found["logits"].any(axis=-1).tolist() == [[True, False, False], [False] * 3, [False] * 3]


def test_a_session_describes_its_program(package: Package) -> None:
    session = QAICInferenceSession(package.path / package.programs[0].path, activate=False)
    assert session.input_names[:3] == ["input_ids", "position_ids", "past_key.0"]
    assert session.output_names[:2] == ["logits", "past_key.0_RetainedState"]
    one = session.bindings[session.binding_index_map["input_ids"]]
    assert (one.dims, session.aic_to_np_dtype_mapping[one.type]) == ((1, 8), np.int64)
    assert [shapes[one.index] for shapes in session.allowed_shapes] == [(8, [1, 8]), (8, [1, 1])]
    with pytest.raises(GenerationError, match="not active; expected an open program"):
        session.run({})
    session.activate()
    with pytest.raises(
        GenerationError, match="no 'position_ids'; expected 'input_ids', 'position_ids'"
    ):
        session.run({"input_ids": [[1]]})
    with pytest.raises(GenerationError, match=r"'past_key.0' has shape \(1, 2\); expected \(1, "):
        session.run({**next(chunks()), "past_key.0": np.zeros((1, 2))})
    session.skip_buffers(["past_key.0"])
    with pytest.raises(ContextLengthError, match="ends at position 33; expected at most 32"):
        session.run({"input_ids": [[1]], "position_ids": [[32]]})
    with pytest.warns(UserWarning, match="Buffer 'image' is not found"):
        session.set_buffers({"image": 1})
    session.deactivate()
    assert not session.is_active


def test_the_loop_in_steps_generates_what_transformers_generates(
    models: Models, package: Package, reference_output: Any, tmp_path: Path
) -> None:
    """One prompt of two chunks, with a streamer and without; then four prompts in two batch slots."""
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    prompts = ["The cat sat on a mat", "no", "a b c", "Hello"]

    def expected(prompt: str, count: int) -> list[int]:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        config = GenerationConfig(max_new_tokens=count, eos_token_id=None, pad_token_id=0)
        mask = torch.ones_like(ids)
        found = reference_output.generate(ids, attention_mask=mask, generation_config=config)
        return found[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

    loop = QEffTextGenerationBase(tokenizer, package.path, ctx_len=32)
    assert (loop.batch_size, loop._prefill_seq_len, loop._decode_seq_len) == (1, 8, 1)
    assert loop.full_batch_size is None
    put: list[int] = []
    for streamer in (None, SimpleNamespace(put=lambda tokens: put.extend(tokens.tolist()))):
        loop.initialize_decode_inputs(1, 1, 6)
        outputs, positions, count = loop.run_prefill([prompts[0]], 6)
        loop.update_decode_input(outputs, positions, count)
        inputs = loop.prepare_decode_inputs()
        assert loop.run_decode(inputs, count, automation=True, streamer=streamer) == 5
        assert loop.generated_ids.tolist() == [expected(prompts[0], 6)]
    assert put == expected(prompts[0], 6)
    assert inputs["position_ids"].tolist() == [[positions.item() + 5]]
    _, positions, count = loop.run_prefill(["no"], None)
    assert count == 32 - positions.item()
    with pytest.raises(ValueError, match="neither ctx_len nor generation_len"):
        QEffTextGenerationBase(tokenizer, package.path).run_prefill(["no"], None)
    with pytest.raises(GenerationError, match="given include_sampler, which its steps"):
        QEffTextGenerationBase(tokenizer, package.path, include_sampler=True, is_tlm=None)

    slots = models.build(models.llama, tmp_path / "store", **SIZES, full_batch_size=2)
    tokenizer.eos_token_id, eos = None, tokenizer.eos_token_id
    loop = QEffTextGenerationBase(tokenizer, slots.path, ctx_len=32)
    assert loop.full_batch_size == 2
    queue = deque(prompts)
    loop.initialize_decode_inputs(4, 2, 5)
    loop.run_prefill_for_all_inputs(queue, 5)
    loop.run_continuous_batching_decode(queue, 5)
    found = {tuple(one) for one in loop.generated_ids.tolist()}
    assert found == {tuple(expected(prompt, 5)) for prompt in prompts}
    assert loop.generated_ids[:2].tolist() == [expected(prompt, 5) for prompt in prompts[:2]]
    assert eos is not None


def test_inputs_with_states_are_those_of_transformers(
    models: Models, package: Package, reference_output: Any
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    handler = InputHandler(1, tokenizer, reference_output.config, ["The cat sat"], 8, 32, None)
    session = QAICInferenceSession(package.path)
    inputs = handler.prepare_ort_inputs()
    tensors = handler.prepare_pytorch_inputs()
    assert tensors["input_ids"].tolist() == inputs["input_ids"].tolist()
    assert [one.shape for one in tensors["past_key_values"][0]] == [inputs["past_key.0"].shape] * 2
    tokens = inputs["input_ids"][inputs["position_ids"] >= 0].tolist()
    for _ in range(3):
        found = session.run(inputs)
        expected = logits(reference_output, *tokens)[-1]
        np.testing.assert_allclose(found["logits"][0, -1], expected, atol=1e-4)
        inputs = handler.update_ort_inputs(inputs, handler.update_ort_outputs(found))
        assert inputs["position_ids"].tolist() == [[len(tokens)]]
        tokens.append(inputs["input_ids"].item())
    outputs = {
        "logits": torch.tensor(found["logits"]),
        "past_key_values": tensors["past_key_values"],
    }
    following = handler.update_pytorch_inputs(tensors, outputs)
    assert following["input_ids"].tolist() == [tokens[-1:]]
    assert following["position_ids"].tolist() == [[len(tokens) - 3]]
    many = InputHandler(1, tokenizer, reference_output.config, ["a", "b c d"], 8, 32, 2)
    assert many.prepare_ort_inputs()["batch_index"].tolist() == [[0], [1]]
    assert many.prepare_ort_inputs()["position_ids"].min() == -1


def test_prompts_fill_the_batch_of_a_program(
    package: Package, batched: Package, tmp_path: Path
) -> None:
    sizes = (SIZES["ctx_len"], None)
    assert get_compilation_dims(package.path) == (1, *sizes)
    assert get_compilation_dims(package.path / package.programs[0].path) == (1, *sizes)
    assert get_compilation_dims(str(batched.path))[1:] == (SIZES["ctx_len"], 3)
    for symbols in ({"batch_size": "4", "ctx_len": "64"}, {"batch_size": "1", "ctx_len": "64"}):
        entry = {"name": "Prefill", "symbols": {**symbols, "full_batch_size": "2"}}
        for first, slots in ((symbols, None), (entry, 2)):
            (tmp_path / "specializations.json").write_text(json.dumps({"specializations": [first]}))
            expected = int(symbols["batch_size"]), 64, slots
            assert get_compilation_dims(tmp_path / "qpcs") == expected
    with pytest.raises(FileNotFoundError, match="expected the path that `compile` returned"):
        get_compilation_dims(tmp_path / "other" / "qpcs")

    (tmp_path / "prompts.txt").write_text(" one \ntwo\n")
    assert get_input_prompts("one") == ["one"]
    assert get_input_prompts(None, tmp_path / "prompts.txt") == ["one", "two"]
    with pytest.raises(ValueError, match="Give a text, a list of texts, or a file"):
        get_input_prompts(None, None)
    prompts = ["one", "two", "three"]
    assert fix_prompts(prompts, 1, full_batch_size=4) == [*prompts, "one"]
    assert fix_prompts(prompts, 2, full_batch_size=2) == prompts
    with pytest.warns(UserWarning, match="1 of 3 prompts are left out"):
        assert fix_prompts(prompts, 2) == ["one", "two"]
    assert fix_prompt_to_lora_id_mapping([0, 1, 2], 1, full_batch_size=4) == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("llama", {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}),
        ("gpt2", {"n_embd": 64, "n_head": 4}),
        ("falcon", {"hidden_size": 64, "num_attention_heads": 4, "multi_query": True}),
        (
            "qwen3",
            {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
        ),
    ],
)
def test_states_have_the_shape_of_transformers_cache(
    model_type: str, fields: dict[str, Any]
) -> None:
    config = AutoConfig.for_model(model_type, num_hidden_layers=1, vocab_size=50, **fields)
    model = AutoModelForCausalLM.from_config(config)
    states = model(torch.ones(2, 5, dtype=torch.long)).past_key_values
    assert get_padding_shape_from_config(config, 2, 5) == [*states.layers[0].keys.shape]


def test_a_speed_has_qefficients_numbers() -> None:
    assert calculate_latency(60, 3.0, 1.0, 7.0, 1.0) == (3.0, 20.0, 10.0, 6.0)
    info = CloudAI100ExecInfoNew(1, [np.arange(3)], PerfMetrics(3.0, 20.0, 10.0, 6.0))
    assert "Decode is= 20.00 tokens/sec" in repr(info)


def test_calls_are_files_for_the_runner(tmp_path: Path) -> None:
    inputs = {"input_ids": np.arange(3)[None]}
    outputs = {name: np.ones((1, 2), np.float32) for name in ("logits", "past_key.0_RetainedState")}
    for name, reset in (("first", True), ("second", False)):
        write_io_files(inputs, outputs, str(tmp_path), name, "io", reset=reset)
    calls = json.loads((tmp_path / "io.json").read_text())["IO-files"]
    assert [len(call) for call in calls] == [3, 3]
    tokens, logits, state = calls[1]
    assert tokens == {
        "path": "second/input_ids.raw", "io-direction": "in", "elem-size": 8, "map-to": "input_ids",
    }  # fmt: skip
    assert "dims" not in logits
    assert state["dims"] == [1, 2]
    np.testing.assert_array_equal(np.fromfile(tmp_path / tokens["path"], np.int64), [0, 1, 2])


def test_names_of_folders_have_sizes(package: Package) -> None:
    sizes = (32, 128, False, False, [0], None)
    path = get_qpc_dir_path("gpt2", 16, 1, 2, *sizes)
    assert path == "qeff_models/gpt2/qpc_16cores_2bs_32pl_128cl_1mos_1devices_fp16/qpcs"
    assert sizes_of(path) == {"prefill_seq_len": 32, "ctx_len": 128, "batch_size": 2}
    slots = get_qpc_dir_path("gpt2", 16, -1, 1, 32, 128, True, True, [0, 1], 4)
    assert slots.endswith("_-1mos_4fbs_2devices_mxfp6_mxint8/qpcs")
    assert sizes_of(slots) == {"prefill_seq_len": 32, "ctx_len": 128, "full_batch_size": 4}
    older = sizes_of("qpc_16cores_3FBS_32PL_128CL_1devices")
    assert older == {"prefill_seq_len": 32, "ctx_len": 128, "full_batch_size": 3}
    assert sizes_of("some/folder") is None
    assert qpc_exists(str(package.path))
    assert not qpc_exists(path)


def test_a_prepared_folder_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "compile.sh").touch()
    with pytest.raises(GenerationError, match="is prepared, and has no program yet"):
        QAICInferenceSession(tmp_path)


def test_paths_of_programs_have_qefficients_names() -> None:
    prepared = ProgramPaths.of("folder", None)
    assert (prepared, prepared["vision_qpc_path"], [*prepared][:2]) == (
        "folder",
        "folder",
        ["f", "o"],
    )
    assert "lang_qpc_path" in prepared
    assert dict(prepared.items()).keys() == {*prepared.keys()}
    assert prepared.get("other") is None


def test_padded_patches_are_split_into_images() -> None:
    """As Gemma 4's processor returns them: with a place of each patch, and without a grid."""
    arrays = {
        "pixel_values": np.arange(24).reshape(2, 4, 3),
        "image_position_ids": np.ones((2, 4, 2)),
    }
    found = [*vision._images(arrays)]
    assert [one["pixel_values"].ravel().tolist() for one in found] == [
        [*range(12)],
        [*range(12, 24)],
    ]
    assert [one["image_position_ids"].shape for one in found] == [(1, 4, 2)] * 2


def test_image_tokens_are_marked_in_the_context() -> None:
    calls = object.__new__(vision.ImageCalls)
    calls.program = SimpleNamespace(
        inputs={"input_ids": None, "of_context.mm_token_type_ids": None}
    )
    calls._ctx_len = 6
    positions = np.array([[0, 1, 2, 3], [3, 4, -1, -1]])
    shown = np.array([[True, True, False]])
    found = calls._types({"position_ids": positions}, shown, [1])
    assert found["of_context.mm_token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 0]]


def test_the_guides_loop_runs(package: Package, reference_output: Any) -> None:
    section = GUIDE.partition("## Your own loop")[2].partition("\n## ")[0]
    loop, *_ = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {"qpc_path": str(package.path)}
    exec(loop, names)
    tokens = [11, 12, 13, 14]
    for _ in range(8):
        tokens.append(int(logits(reference_output, *tokens)[-1].argmax()))
    assert (names["tokens"].item(), names["positions"].item()) == (tokens[-1], 11)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("base", "QEFFAutoModelForCTC"),
        ("base.common", "QEFFCommonLoader"),
        ("base.onnx_transforms", "FP16ClipTransform"),
        ("compile.compile_helper", "compile"),
        ("finetune.configs.training", "TrainConfig"),
        ("finetune.utils.logging_utils", "logger"),
        ("generation.cloud_infer", "QAICInferenceSession"),
        ("cloud.export", "get_onnx_path_and_setup_customIO"),
        ("generation.text_generation_inference", "CloudAI100ExecInfo"),
        ("generation.text_generation_inference", "CloudAI100ExecInfoNew"),
        ("generation.text_generation_inference", "fix_prompts"),
        ("generation.text_generation_inference", "QAICInferenceSession"),
        ("utils.generate_inputs", "InputHandler"),
        ("peft.lora", "QEffAutoLoraModelForCausalLM"),
        ("transformers.models.modeling_auto", "QEFFAutoModel"),
        ("transformers.quantizers.auto", "replace_transformers_quantizers"),
        ("transformers.quantizers.awq", "WQLinear_GEMM"),
        ("utils", "check_and_assign_cache_dir"),
        ("utils", "get_padding_shape_from_config"),
        ("utils", "load_hf_tokenizer"),
        ("utils", "constants"),
        ("transformers.models.qwen3_vl._embedding_utils", "QEffQwen3VLEmbedder"),
        ("transformers.models.qwen3_vl._reranker_utils", "score_from_logits"),
        ("utils.constants", "Constants"),
        ("utils.constants", "ONNX_EXPORT_OPSET"),
        ("utils.test_utils", "InternProcessor"),
        ("utils.logging_utils", "logger"),
    ],
)
def test_names_below_the_top_are_found(module: str, name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"from {HERE}.{module} import {name}", names)
    assert names[name] is getattr(importlib.import_module(f"{HERE}.{module}"), name)


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        ("import {}.diffusers.pipelines.flux", "there is `QEffFluxPipeline`"),
        ("import {}.diffusers.pipelines.wan", "and of videos `QEffWanPipeline`"),
        ("from {}.customop import CustomRMSNormAIC", "`qeff-zoo new MODEL` drafts a recipe"),
        (
            "import {}.transformers.models.llama.modeling_llama",
            "`qeff-zoo new MODEL` drafts a recipe",
        ),
        ("from {}.utils.test_utils import load_vlm_model", "`from_pretrained` of the classes"),
        ("import {}.new_in_qefficient", "See docs/from-qefficient.md"),
    ],
)
def test_missing_name_reports_its_replacement(code: str, instead: str) -> None:
    with pytest.raises(
        MissingNameError, match=r"has no counterpart in qeff_zoo\.qefficient"
    ) as caught:
        exec(code.format(HERE), {})
    assert instead in str(caught.value)
    assert isinstance(caught.value, ZooError)
    assert isinstance(caught.value, ImportError)
    assert "\n" not in str(caught.value)


def test_a_misspelled_name_is_no_attribute() -> None:
    assert not hasattr(qefficient, "QEFFAutoModle")


def test_loaders_choose_the_class_and_the_padding(models: Models) -> None:
    from qeff_zoo.qefficient.utils import load_hf_tokenizer, login_and_download_hf_lm

    folder = login_and_download_hf_lm(models.llama)
    assert load_hf_tokenizer(folder).padding_side == "right"
    assert isinstance(
        qefficient.QEFFCommonLoader.from_pretrained(folder), qefficient.QEFFAutoModelForCausalLM
    )
    assert isinstance(
        qefficient.QEFFCommonLoader.from_pretrained(models.bert), qefficient.QEFFAutoModel
    )


def test_the_functions_behind_commands_take_the_names_of_flags(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from qeff_zoo.qefficient.cloud import execute, infer

    parameters = inspect.signature(infer.main).parameters
    assert next(iter(parameters)) == "model_name"
    assert (parameters["ctx_len"].default, parameters["mxfp6"].default) == (128, False)
    package = models.build(models.llama, home, **SIZES)
    monkeypatch.setattr(
        pipeline, "build", lambda *_, **__: (_ for _ in ()).throw(PlanError(["built"]))
    )
    requested: dict[str, Any] = {
        "model_name": str(models.llama),
        "num_cores": 16,
        "prompt": ["a", "b"],
    }
    with pytest.raises(PlanError, match=r"^built$"), warnings.catch_warnings():
        infer.main(**requested, device_group=[0], mxfp6=True, full_batch_size=2, hf_token=None)
    with pytest.raises(PlanError, match="required: --num_cores"):
        infer.main(str(models.llama), prompt="a")
    with pytest.raises(PlanError, match="unrecognized arguments: --mxfp6"):
        execute.main(model_name="a", qpc_path="b", mxfp6=True)
    options = {"qpc_path": str(package.path), "prompt": ["a", "b"], "generation_len": 3}
    capsys.readouterr()
    assert execute.main(str(models.llama), **options, json=True) == 0
    assert len(json.loads(capsys.readouterr().out)["generated_texts"]) == 2


def test_a_run_has_qefficients_defaults_and_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from qeff_zoo.qefficient.cloud import finetune
    from qeff_zoo.qefficient.constants import logger

    config = finetune.TrainConfig(lr=1e-3)
    assert (config.model_name, config.num_epochs, config.lr) == ("meta-llama/Llama-3.2-1B", 1, 1e-3)
    assert (config.use_peft, config.output_dir) == (True, "training_results")
    finetune._name_as_qefficient(tmp_path, 2)
    assert not [*tmp_path.iterdir()]  # all weights were trained
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    finetune._name_as_qefficient(tmp_path, 2)
    assert (tmp_path / "complete_epoch_2" / "adapter_config.json").exists()
    logger.log_rank_zero("in one process", 30)
    assert caplog.messages == ["in one process"]


def test_the_function_compile_stays_one_beside_its_module(tmp_path: Path) -> None:
    helper = importlib.import_module("qeff_zoo.qefficient.compile.compile_helper")
    for function in (qefficient.compile, helper.compile):
        with pytest.raises(ZooError, match="none"):
            function(tmp_path / "none.onnx", tmp_path, num_cores=16)
