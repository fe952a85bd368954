# SPDX-License-Identifier: Apache-2.0
"""What QEfficient documents works here with one changed line: its snippets and its commands; the rest is refused."""

import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import selection
import speculators
import torch
import warm
from checkout import ROOT
from fixtures_builds import HEAVY, TIMEOUT, Models
from fixtures_qaic_build import compiler
from PIL import Image
from runnable_package import checkpoint
from safetensors.numpy import save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import qeff_zoo
from qeff_zoo import pipeline, qefficient
from qeff_zoo.errors import (
    CompileError,
    GenerationError,
    MediaError,
    PlanError,
    UnsupportedModelError,
    ZooError,
)
from qeff_zoo.package import Package
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.qefficient import translation, vision
from qeff_zoo.qefficient.cloud import flags
from qeff_zoo.qefficient.execution import prompts_of
from qeff_zoo.qefficient.processor_outputs import rows_of, to_numpy
from qeff_zoo.qefficient.sampler import samplings
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime import Grammar, Sampling
from qeff_zoo.targets.qaic import ops, sdk
from qeff_zoo.validation import tiny_models

GUIDE = (ROOT / "docs" / "from-qefficient.md").read_text(encoding="utf-8")
#: Each with the lines of Python that follow it. Those that need a recording are run by test_speech.py and
#: test_speech_seq2seq.py, one that needs a picture by test_images.py, those of pipelines by test_qefficient_flux.py and
#: test_qefficient_wan.py.
SNIPPETS = [
    (before, re.findall(r"```python\n(.*?)```", after, re.DOTALL))
    for before, after in re.findall(r"```diff\n(.*?)```(.*?)(?=```diff|\n## )", GUIDE, re.DOTALL)
    if not any(name in before for name in ("ForCTC", "Speech", "ForImageTextToText", "Flux", "Wan"))
]
COMMANDS = re.search(r"<!-- commands -->\n```console\n(.*?)```", GUIDE, re.DOTALL)[1].splitlines()
CLOUD = ("infer", "export", "compile", "execute", "finetune")
DECODERS = (
    "gpt2",
    "TinyLlama/TinyLlama_v1.1",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "Salesforce/codegen-2B-mono",
    "Qwen/Qwen2-1.5B-Instruct",
    "meta-llama/Llama-2-70b-chat-hf",
    "mistralai/Mistral-7B-v0.1",
)
ADAPTERS = ("predibase/gsm8k", "predibase/magicoder")
SWIFTKV = "Snowflake/Llama-3.1-SwiftKV-8B-Instruct"
ENCODER, CLASSIFIER = "BAAI/bge-small-en-v1.5", "cross-encoder/ms-marco-MiniLM-L6-v2"
TINY = {"prefill_seq_len": 32, "ctx_len": 128}

pytestmark = pytest.mark.together("from-qefficient")


@pytest.fixture(scope="module")
def workplace(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder where the guide's models and files are, and a store that all tests here share."""
    folder = tmp_path_factory.mktemp("qefficient")
    for name in (*DECODERS, *ADAPTERS, SWIFTKV, ENCODER, CLASSIFIER):
        (folder / name).parent.mkdir(exist_ok=True)
    for name in DECODERS:
        (folder / name).symlink_to(ROOT / "examples" / "tiny-llama")
    for seed, name in enumerate(ADAPTERS):
        adapter(folder / name, DECODERS[-1], seed)
    swiftkv = find_recipe("llama_swiftkv")
    tiny_models.make(swiftkv, swiftkv.tiny[0], folder / SWIFTKV)
    for one in models.llama.glob("tokenizer*"):
        shutil.copy(one, folder / SWIFTKV)
    shutil.copytree(models.bert, folder / ENCODER)
    of_parts(folder / ENCODER, "Normalize", {})
    checkpoint(folder / CLASSIFIER, "bert", task="text-classification")
    speculators.turbo(folder / "org" / "heads", 192, 2048)
    (folder / "examples").mkdir()
    (folder / "examples" / "prompts.txt").write_text("My name is\nThe sun rises from\n")
    (folder / "dataset").mkdir()
    row = {"instruction": "Name a module.", "input": "", "output": "socket"}
    (folder / "dataset" / "alpaca_data.json").write_text(json.dumps([row] * 20))
    (folder / "QEfficient" / "compile").mkdir(parents=True)
    (folder / "QEfficient" / "compile" / "qnn_config.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("QEFF_HOME", str(folder / "store"))
        for name in (sdk.COMPILER_VARIABLE, "QNN_SDK_ROOT"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture
def llama(workplace: Path) -> qefficient.QEFFAutoModelForCausalLM:
    return qefficient.QEFFAutoModelForCausalLM.from_pretrained("gpt2")


def adapter(folder: Path, base: str, seed: int) -> None:
    """Write an adapter of random matrices for the queries of the tiny Llama's first layer, as peft would."""
    folder.mkdir()
    draw = np.random.default_rng(seed).normal
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{module}.lora_{side}.weight": draw(size=size).astype(np.float32)
        for side, size in (("A", (2, 192)), ("B", (192, 2)))
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def compiled(model: Any, **choices: Any) -> Path:
    """Compile a model, and expect to be told that it is for the CPU."""
    with pytest.warns(UserWarning, match="There is no Cloud AI SDK here"):
        return Path(model.compile(**choices))


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run `qeff-cloud-…` in this process."""
    module = importlib.import_module(f"qeff_zoo.qefficient.cloud.{argv[0]}")
    capsys.readouterr()
    code = module.main(argv[1:])
    return (code, *capsys.readouterr())


# --- the guide ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("snippet", "more"), SNIPPETS)
@pytest.mark.sampled(3)
def test_a_snippet_runs_with_one_changed_line(
    snippet: str,
    more: list[str],
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = snippet.splitlines()
    if snippet != SNIPPETS[0][0]:  # packages of the same model, compared once
        for name in ("build", "prepare"):
            monkeypatch.setattr(pipeline, name, partial(getattr(pipeline, name), validate=False))
    (before,) = (line[1:] for line in lines if line.startswith("-"))
    (after,) = (line[1:] for line in lines if line.startswith("+"))
    assert before.split()[1] == "QEfficient"
    assert "qeff_zoo" in after
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names: dict[str, Any] = {}
        for code in ("\n".join(line[1:] for line in lines if not line.startswith("-")), *more):
            exec(code, names)
    message = [str(one.message) for one in caught]
    for_a_card = "artifact_only=True" in snippet
    assert any("There is no Cloud AI SDK here: " in one for one in message) != for_a_card
    out = capsys.readouterr().out
    if for_a_card:
        assert (Path(names["compile_dir"]) / "compile.sh").exists()
        assert (names["io_dir"] / "aic_batch_io.json").exists()
    elif "info =" in snippet:
        assert all(names["info"].generated_ids)
    elif "generate(prompts=" in snippet or "exec_kv" in snippet:
        assert re.search(r"Prompt: .+\nCompletion: .*\w", out, re.DOTALL)
    drafting = sum("draft=" in code for code in more)
    assert out.count("Draft model: ") == out.count("Prompt lookup: ") == drafting
    assert ("max_new_tokens" in str(more)) == ("def fibonac" in out)


def test_the_commands_of_the_guide_run(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparisons with Hugging Face, which the first snippet makes."""
    monkeypatch.setattr(pipeline, "build", partial(pipeline.build, validate=False))
    printed = ""
    for line in COMMANDS:
        words = shlex.split(line.replace("ONNX_PATH", printed.strip()))
        assert words[:3] == ["$", "python", "-m"]
        name = words[3].removeprefix("qeff_zoo.qefficient.cloud.")
        code, printed, message = run([name, *words[4:]], capsys)
        assert (code, "Something went wrong" in message) == (0, False), (line, message)
        if name in ("infer", "execute"):
            prompts = 2 if ".txt" in line else line.count("|") + 1
            assert printed.count("Completion: ") == prompts
            assert re.search(r"Decode is= [\d.]+ tokens/sec", message)
        else:
            assert Path(printed.strip()).exists()
    assert {line.split()[3].rpartition(".")[2] for line in COMMANDS} == {*CLOUD}


def test_the_guide_names_every_class_and_function() -> None:
    for name in qefficient.__all__:
        assert name in GUIDE or name in ("CloudAI100ExecInfo", "PerfMetrics", "transform")


EXAMPLES = {
    "compute_contexts": ("Completion: ", '"comp_ctx_lengths": "64"'),
    "continuous_batching": ("'def open(' -> '", "5 prompts on 2 slots"),
    "devices": ("mdp_partitions.json", "-mxfp6-matmul"),
    "embeddings": ("cosine similarities:", "1."),
    "perplexity": ("hugging-face", "int8"),
    "speculation": ("lookup: ", "drafted tokens accepted"),
    "vision": ("What is this? -> 'two yellow crosses'", "Decode is= "),
    "prefix_caching": (" 0 of them reused", " 64 of them reused"),
    "qnn": ("qnn-context-binary-generator", "--log_level debug"),
    "text": ("Prompt: class socket.", "Decode is= "),
}


def test_the_examples_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the comparisons with Hugging Face: of these packages others tell."""
    for name in ("build", "prepare"):
        monkeypatch.setattr(pipeline, name, partial(getattr(pipeline, name), validate=False))
    drawn = EXAMPLES if selection.EVERY else selection.sample(dict.fromkeys(EXAMPLES, ()), 3)
    for name in sorted(drawn):
        message, path = EXAMPLES[name], ROOT / "examples" / f"{name}.py"
        assert len(path.read_text().splitlines()) <= 60
        words = [ENCODER] if name == "embeddings" else []
        monkeypatch.setattr(sys, "argv", [str(path), *words])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            runpy.run_path(str(path), run_name="__main__")
        printed = capsys.readouterr().out
        assert [one for one in message if one not in printed] == [], (name, printed)


# --- answers -----------------------------------------------------------------------------------


def test_answers_are_those_of_hugging_face(llama: qefficient.QEFFAutoModelForCausalLM) -> None:
    compiled(llama, **TINY, num_cores=16)
    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    hf = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float32)
    ids = tokenizer("class socket.", return_tensors="pt")["input_ids"]
    expected = hf.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()

    info = llama.generate(tokenizer, ["class socket."], generation_len=12, stream=False)
    assert info.generated_ids == [expected]
    assert info.batch_size == 1
    speed = info.perf_metrics
    assert 0 < speed.prefill_time <= speed.total_time
    assert min(speed.decode_perf, speed.total_perf) > 0
    printed = dict(line.split("is= ") for line in str(info).splitlines())
    assert printed["Decode "] == f"{speed.decode_perf:.2f} tokens/sec"
    assert printed["Average Prefill time a.k.a TTFT "] == f"{speed.prefill_time:.2f} sec"
    assert repr(info) == f"{info}"
    for write_io in (False, True):
        own = llama.generate(
            prompt="class socket.", generation_len=12, stream=False, write_io=write_io
        )
        texts = own.generated_texts, own.generated_ids
        assert texts == (info.generated_texts, info.generated_ids)
    (folder,) = Path("qeff_models", llama.model_name).glob("ort-*/io_dir/*")
    prefill, decode = (
        {path.stem: np.load(path) for path in folder.glob(f"{call}/*/*.npy")} for call in (1, 2)
    )
    assert prefill["input_ids"].tolist() == ids.tolist()
    assert decode["input_ids"].tolist() == [expected[:1]]
    assert [one["logits"][0, -1].argmax() for one in (prefill, decode)] == expected[:2]


def test_a_model_of_transformers_is_built_as_it_is(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "build", partial(pipeline.build, validate=False))
    hf = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float32, num_hidden_layers=1)
    attention = hf.model.layers[0].self_attn
    for one in (attention.k_proj, attention.v_proj):  # as QEfficient's script replicates heads
        heads = one.weight.view(hf.config.num_key_value_heads, attention.head_dim, -1)
        one.weight.data = heads.repeat_interleave(3, 0).flatten(0, 1).detach()
    hf.config.num_key_value_heads *= 3
    attention.num_key_value_groups //= 3
    hf.lm_head.weight.data = hf.lm_head.weight.flip(0).detach()
    model = qefficient.QEFFAutoModelForCausalLM(hf, continuous_batching=False)
    compiled(model, **TINY)
    ids = AutoTokenizer.from_pretrained("gpt2")("class socket.", return_tensors="pt")["input_ids"]
    expected = hf.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()
    found = model.generate(prompts="class socket.", generation_len=8, stream=False)
    assert found.generated_ids == [expected]
    assert model.config.num_key_value_heads == hf.config.num_key_value_heads


def test_parameters_of_the_sampler_are_those_of_each_prompt(
    llama: qefficient.QEFFAutoModelForCausalLM,
) -> None:
    random = np.random.default_rng(0).random((2, 8))
    given = {
        "temperatures": np.array([[0.0], [0.7]]),
        "top_ks": np.array([[0], [9]]),
        "top_ps": np.array([0.9]),
        "min_ps": None,
        "repetition_penalties": np.array([[1.0], [1.5]]),
        "presence_penalties": [[0.0], [0.5]],
        "random_numbers": random,
    }
    greedy, drawn = samplings(given, 2, 4)
    assert (greedy.temperature, greedy.top_k, greedy.top_p, greedy.repetition_penalty) == (
        0,
        4,
        0.9,
        1,
    )
    assert (drawn.temperature, drawn.top_k, drawn.min_p) == (0.7, 4, 0)
    assert (drawn.repetition_penalty, drawn.presence_penalty) == (1.5, 0.5)
    assert greedy.seed != drawn.seed
    assert samplings({}, 1) == [Sampling(temperature=1.0)]
    masks = np.array([[True, False, True, False], [True, True, True, True]])
    masked = [sampling.allowed_token_ids for sampling in samplings({"token_bitmasks": masks}, 2)]
    assert masked == [(0, 2), None]
    for wrong, problem in (
        ({"token_bitmasks": np.zeros((1, 4))}, "allows no token in row 0"),
        ({"token_bitmasks": np.ones(4)}, "4 rows of 'token_bitmasks' for 2 prompts"),
        ({"top_ps": np.ones((3, 1))}, "3 rows of 'top_ps' for 2 prompts"),
    ):
        with pytest.raises(PlanError, match=problem):
            samplings(wrong, 2)
    with pytest.raises(GenerationError, match="top_p 2"):
        samplings({"top_ps": [2.0]}, 1)

    compiled(llama, **TINY)
    prompts = ["class socket."] * 3
    sampled = {"temperatures": np.ones((3, 1)), "random_numbers": random[[0, 1, 1]]}
    settings = {"generation_len": 8, "stream": False}
    found = llama.generate(prompts=prompts, sampling_params=sampled, **settings).generated_ids
    assert found[1] == found[2] != found[0]
    assert (
        llama.generate(prompts=prompts, sampling_params=sampled, **settings).generated_ids == found
    )
    held = llama.generate(
        prompts=prompts, sampling_params=sampled, grammar=Grammar.choice(["a", "b"]), **settings
    )
    assert {*held.generated_texts} <= {"a", "b"}
    with pytest.raises(GenerationError, match="Leave one out"):
        llama.generate(prompts=prompts, sampling_params=sampled, sampling=Sampling())


@pytest.mark.parametrize(
    ("ctx_len", "lengths"),
    [
        (128, None),
        (4096, None),
        (16_384, [4096, 8192]),
        (32_768, [4096, 8192, 16_384]),
        (65_536, [8192, 16_384, 32_768]),
        (1_000_000, [16_384, 32_768, 65_536, 131_072]),
    ],
)
def test_compute_contexts_are_chosen_where_none_are_given(
    ctx_len: int,
    lengths: list[int] | None,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = qefficient.QEFFAutoModelForCausalLM.from_pretrained(
        "gpt2", qaic_config={"ccl_enabled": True}
    )
    requested: dict[str, Any] = {}
    monkeypatch.setattr(model, "_compile", lambda _target, _folder, given: requested.update(given))
    model.compile(ctx_len=ctx_len)
    assert requested["comp_ctx_lengths_prefill"] == requested["comp_ctx_lengths_decode"] == lengths
    model.compile(ctx_len=ctx_len, comp_ctx_lengths_decode=[64])
    assert (requested["comp_ctx_lengths_prefill"], requested["comp_ctx_lengths_decode"]) == (
        None,
        [64],
    )


def test_a_sampler_is_for_a_card(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"include_sampler": True, "return_pdfs": True, "max_top_k_ids": 64}
    model = qefficient.QEFFAutoModelForCausalLM.from_pretrained("gpt2", qaic_config=config)
    with pytest.raises(PlanError, match=r"'ort' knows no return_pdfs=True\. Leave it out"):
        model.compile(target="ort")
    requested: list[Request] = []
    monkeypatch.setattr(model, "_prepare", lambda request, _: requested.append(request) or Path())
    model.compile(target="qaic")
    assert {name: getattr(requested[0], name) for name in config} == config
    assert requested[0].include_guided_decoding is None


def test_any_number_of_prompts_is_answered(
    llama: qefficient.QEFFAutoModelForCausalLM, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(llama, **TINY)
    prompts = ["class socket.", "import os", "def f("]
    alone = [llama.generate(prompts=[prompt], generation_len=5, stream=False) for prompt in prompts]
    assert capsys.readouterr().out == ""

    info = llama.generate(prompts=prompts, generation_len=5)
    assert info.generated_texts == [one.generated_texts[0] for one in alone]
    shown = [
        f"Prompt: {p}\nCompletion: {t}\n"
        for p, t in zip(prompts, info.generated_texts, strict=True)
    ]
    assert capsys.readouterr().out == "".join(shown)
    file = {"prompts_txt_file_path": "examples/prompts.txt", "include_guided_decoding": None}
    info = llama.generate(prompts=None, **file, generation_len=5, stream=False)
    assert [len(one) for one in info.generated_ids] == [5, 5]
    with pytest.raises(GenerationError, match=r"There is both of"):
        llama.generate(prompts=prompts, **file)


def test_a_package_is_that_of_build(llama: qefficient.QEFFAutoModelForCausalLM) -> None:
    path = compiled(llama, **TINY, num_cores=14, mxfp6=True)
    request = {"ctx_len": 128, "prefill_seq_len": 32, "batch_size": 1}
    assert qeff_zoo.build("gpt2", **request).path == path
    assert llama.qpc_path == str(path)


def test_embeddings_are_those_of_the_session(workplace: Path) -> None:
    model = qeff_zoo.QEFFAutoModel.from_pretrained(ENCODER, pooling="mean")
    package = compiled(model, seq_len=[16, 32])
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    texts = ["the quick fox", "a dog", "a text of words"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    found = model.generate(inputs)["output"]
    expected = qeff_zoo.load(package).embed(texts)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    states = AutoModel.from_pretrained(ENCODER)(**inputs).last_hidden_state.detach()
    mask = inputs["attention_mask"][..., None]
    means = (states * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(found, means, atol=1e-5)  # without the checkpoint's normalization
    with pytest.raises(PlanError, match="pooling is 'cls', and the model was loaded for 'mean'"):
        model.compile(pooling="cls")
    with pytest.raises(GenerationError, match="expected input_ids"):
        model.generate({"text": "a dog"})
    with pytest.raises(GenerationError, match="expected 'text-generation'"):
        qefficient.cloud_ai_100_exec_kv(None, package, ["a dog"])


def test_outputs_of_tokenizers_and_processors() -> None:
    """Tensors, arrays and lists, padded on either side or not, of one prompt or several; numpy has no bfloat16."""
    mask = [[0, 1, 1], [1, 1, 0]]
    for ids in ([[0, 5, 6], [7, 8, 0]], np.array([[0, 5, 6], [7, 8, 0]])):
        assert rows_of({"input_ids": ids, "attention_mask": torch.tensor(mask)}) == [[5, 6], [7, 8]]
    assert rows_of({"input_ids": [[5, 6], [7]], "attention_mask": None}) == [[5, 6], [7]]
    assert rows_of({"input_ids": [5, 6], "attention_mask": [1, 1]}, "token_type_ids") == [[0, 0]]
    half = torch.tensor([0.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    assert to_numpy(half).tolist() == [0.5, -2.0]
    with pytest.raises(GenerationError, match=r"rows differ in length.*padding=True"):
        to_numpy([np.zeros((3, 2)), np.zeros((3, 4))])


def test_images_are_resized_before_the_processor(tmp_path: Path) -> None:
    image = Image.fromarray(np.arange(5 * 8 * 3, dtype=np.uint8).reshape(5, 8, 3))
    image.save(tmp_path / "image.png")
    found = vision._resized(tmp_path / "image.png", 10, 4)
    np.testing.assert_array_equal(found, image.resize((4, 10)))
    assert vision.fetched(image) is image
    with pytest.raises(MediaError, match="Cannot fetch the image at 'https://'"):
        vision.fetched("https://")


def test_images_that_a_package_cannot_process_go_through_the_processor() -> None:
    """As transformers' processor encodes the message; without one, the refusal of the package stands."""
    image = Image.fromarray(np.zeros((5, 8, 3), np.uint8))

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedModelError("no such processor")

    def encode(messages: Any, **_: Any) -> dict[str, Any]:
        (message,) = messages
        assert [one["type"] for one in message["content"]] == ["image", "text"]
        assert message["content"][0]["image"].size == image.size
        return {"input_ids": torch.tensor([[5, 6, 7]])}

    media = SimpleNamespace(pixels="pixel_values", arrays=())
    session = SimpleNamespace(
        request=refuse,
        request_written_out=lambda *given, **_: given,
        media=media,
        media_tokens=SimpleNamespace(placeholders=()),
    )
    processor = SimpleNamespace(apply_chat_template=encode)
    (found,) = vision._requests(session, "What is it?", [image], processor, {})
    assert found == ([5, 6, 7], [])
    for images, given in (([image], None), ([], processor)):
        with pytest.raises(UnsupportedModelError, match="no such processor"):
            vision._requests(session, "What is it?", images, given, {})


def test_a_function_pools_states_of_tokens(workplace: Path) -> None:
    """Of a program without pooling; or a name, if a checkpoint's dense layers follow its own."""

    def pooling(last_hidden_states: Any, attention_mask: Any) -> Any:
        last_hidden_states[attention_mask == 0] = -1e9
        return last_hidden_states.max(1).values

    model = qeff_zoo.QEFFAutoModel.from_pretrained(ENCODER, pooling=pooling)
    package = compiled(model, seq_len=[16, 32])
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    texts = ["the quick fox", "a dog", "a text of words"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(ENCODER)(**inputs).last_hidden_state.detach()
    expected = pooling(states.clone(), inputs["attention_mask"])
    np.testing.assert_allclose(model.generate(inputs)["output"], expected, atol=1e-5)
    session = qeff_zoo.load(package)
    (second,) = session.states(texts[1])
    np.testing.assert_allclose(second, states[1, : len(second)], atol=1e-5)
    with pytest.raises(GenerationError, match="has no pooling, and returns a state for each token"):
        session.embed(texts)
    with pytest.raises(
        PlanError, match="expected a function with the arguments last_hidden_states"
    ):
        qeff_zoo.QEFFAutoModel.from_pretrained(ENCODER, pooling=lambda states: states)
    config = {
        "in_features": 2,
        "out_features": 2,
        "bias": True,
        "activation_function": "torch.nn.Tanh",
    }
    shutil.copytree(ENCODER, dense := workplace / "org" / "dense")
    of_parts(dense, "Dense", config)
    layer = {"linear.weight": np.ones((2, 2), np.float32), "linear.bias": np.ones(2, np.float32)}
    save_file(layer, dense / "2_Dense" / "model.safetensors")
    model = qeff_zoo.QEFFAutoModel.from_pretrained(dense, pooling="max")
    model.package = package
    np.testing.assert_allclose(model.generate(inputs)["output"], expected, atol=1e-5)


def of_parts(folder: Path, name: str, config: dict[str, Any]) -> None:
    """Write a checkpoint's pooling, and a part after it, as sentence-transformers does."""
    settings = {"1_Pooling": {"pooling_mode_mean_tokens": True}, f"2_{name}": config}
    parts = {"": "Transformer", "1_Pooling": "Pooling", f"2_{name}": name}
    for at, setting in settings.items():
        (folder / at).mkdir(exist_ok=True)
        (folder / at / "config.json").write_text(json.dumps(setting))
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(parts.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


def test_logits_of_a_pair_are_those_of_hugging_face(workplace: Path) -> None:
    model = qeff_zoo.QEFFAutoModelForSequenceClassification.from_pretrained(CLASSIFIER)
    compiled(model, seq_len=32)
    inputs = AutoTokenizer.from_pretrained(CLASSIFIER)("a fox", "a dog", return_tensors="pt")
    hf = AutoModelForSequenceClassification.from_pretrained(CLASSIFIER, dtype=torch.float32)
    expected = hf(**inputs).logits.detach().numpy()
    np.testing.assert_allclose(model.generate(inputs)["logits"], expected, atol=1e-5)


def test_an_export_is_made_once(llama: qefficient.QEFFAutoModelForCausalLM, tmp_path: Path) -> None:
    path = Path(llama.export(tmp_path / "graph"))
    written = path.stat().st_mtime_ns
    assert (
        Path(llama.export(tmp_path / "graph", use_onnx_subfunctions=True)),
        path.stat().st_mtime_ns,
    ) == (path, written)
    other = qefficient.QEFFAutoModelForCausalLM.from_pretrained("gpt2", continuous_batching=True)
    with pytest.raises(ZooError, match="is there already"):
        other.export(tmp_path / "graph")


def test_only_a_graph_of_ours_is_compiled(
    llama: qefficient.QEFFAutoModelForCausalLM, tmp_path: Path
) -> None:
    path = Path(llama.export(tmp_path / "graph"))
    path.write_bytes(path.read_bytes() + b"\0")
    for foreign in (path, tmp_path / "absent.onnx"):
        with pytest.raises(CompileError, match="Export the model again"):
            qefficient.compile(foreign, tmp_path / "qpc", num_cores=16)


def of_qefficient(path: Path, *, rows: str = "batch_size", logits: bool = False) -> Path:
    """Write a graph as QEfficient exports them: its names of inputs, its functions, its metadata.

    Args:
        path: Of its file.
        rows: Size of the cache's first axis.
        logits: Whether it is told how many logits are kept.
    """
    cache = onnx.helper.make_function(
        "com.qualcomm.cloud", "CtxScatter", ["data", "index", "updates"], ["output"],
        [onnx.helper.make_node("ScatterND", ["data", "index", "updates"], ["output"])],
        [onnx.helper.make_opsetid("", 17)],
    )  # fmt: skip
    real, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    shape = [rows, 2, "ctx_len", 8]
    inputs = [
        onnx.helper.make_tensor_value_info("past_key.0", real, shape),
        onnx.helper.make_tensor_value_info("position_ids", whole, ["batch_size", "seq_len", 3]),
        onnx.helper.make_tensor_value_info("keys", real, ["batch_size", "seq_len", 8]),
    ]
    outputs = [onnx.helper.make_tensor_value_info("past_key.0_RetainedState", real, shape)]
    node = onnx.helper.make_node(
        "CtxScatter", [one.name for one in inputs], [outputs[0].name], "write",
        domain="com.qualcomm.cloud",
    )  # fmt: skip
    if logits:
        kept = ("num_logits_to_keep", whole, ["num_logits_to_keep", 1])
        inputs.append(onnx.helper.make_tensor_value_info(*kept))
    graph = onnx.helper.make_graph([node], "main_graph", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.qualcomm.cloud", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=[cache])
    onnx.save(model, path)
    return path


def test_a_graph_of_qefficients_is_compiled_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside QEfficient's own files, or moved elsewhere."""
    folder, qpc = tmp_path / "LlamaForCausalLM-0123456789abcdef", tmp_path / "qpc"
    folder.mkdir()
    (folder / "hashed_export_params.json").write_text("{}")
    graph = of_qefficient(folder / "LlamaForCausalLM.onnx")
    sizes = {
        "num_cores": 14,
        "batch_size": 2,
        "prompt_len": 16,
        "ctx_len": 64,
        "device_group": [0, 1],
    }
    with pytest.warns(UserWarning, match="There is no Cloud AI SDK here"):
        assert qefficient.compile(graph, qpc, **sizes) == str(qpc)
    assert json.loads((qpc / "specializations.json").read_text())["specializations"] == [
        {"name": "Prefill", "symbols": {"batch_size": "2", "seq_len": "16", "ctx_len": "64"}},
        {"name": "Decode", "symbols": {"batch_size": "2", "seq_len": "1", "ctx_len": "64"}},
    ]
    script = (qpc / "compile.sh").read_text()
    assert f"-m={graph} -retained-state -convert-to-fp16 -aic-num-cores=14" in script

    monkeypatch.setenv(sdk.COMPILER_VARIABLE, str(compiler(tmp_path / "sdk")))
    made = qefficient.compile(graph, qpc, **sizes)
    program = Path(made, "programqpc.bin")
    assert made == str(qpc / "qpcs")
    assert program.read_bytes().startswith(b"NO QPC")
    written = program.stat().st_mtime_ns
    assert qefficient.compile(graph, qpc, **sizes) == made
    assert program.stat().st_mtime_ns == written
    for other in (
        {"ctx_len": 128},
        {"mxfp6": True},
        {"num_cores": 16},
    ):  # what is a file, and what is a flag
        with pytest.raises(CompileError, match="holds something else"):
            qefficient.compile(graph, qpc, **{**sizes, **other})
    (program.parent / "compiled.json").write_text("{}")
    with pytest.raises(CompileError, match="was not compiled from what lies beside it"):
        qefficient.compile(graph, qpc, **sizes)

    moved = graph.rename(tmp_path / "model.onnx")
    words = ["--onnx-path", str(moved), "--qpc_path", str(tmp_path / "other"), "--mxfp6"]
    code, out, message = run(
        ["compile", *words, "--num_cores", "16", "--device_group", "[0]"], capsys
    )
    assert (code, out) == (1, "")
    assert "-mxfp6-matmul, and no product has a constant on its right" in message
    del words[-1]
    code, out, message = run(
        ["compile", *words, "--num_cores", "16", "--device_group", "[0]"], capsys
    )
    assert (code, out) == (1, "")
    assert "holds something else" in message  # what failed left its choices there
    words[3] = str(tmp_path / "third")
    code, out, _ = run(["compile", *words, "--num_cores", "16", "--device_group", "[0]"], capsys)
    assert (code, out) == (0, f"{words[3]}/qpcs\n")


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"full_batch_size": 4}, "its sizes are batch_size, ctx_len, seq_len, and those that were chosen"),
        ({"num_speculative_tokens": 3}, "its sizes are batch_size, ctx_len"),
        ({"weights": "int8"}, "weights is 'int8', which QEfficient's graph has settled"),
        ({"target": "ort"}, "whose operators only target 'qaic' has"),
        ({"mxint8": True}, "rows of 8, which are no blocks of MXINT8"),
        ({"num_cores": 99}, "expected at most 16"),
        ({"ctx_len": 0}, "expected at least"),
    ],
)  # fmt: skip
def test_unsupported_qefficient_graphs_are_refused(
    choices: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    graph = of_qefficient(tmp_path / "model.onnx")
    with pytest.raises((CompileError, PlanError), match=problem):
        qefficient.compile(graph, tmp_path / "qpc", **{"num_cores": 16, **choices})
    assert not (tmp_path / "qpc").exists()


def test_slots_and_drafts_of_qefficients_graphs(tmp_path: Path) -> None:
    graph = of_qefficient(tmp_path / "model.onnx", rows="full_batch_size", logits=True)
    sizes = {"full_batch_size": 4, "num_speculative_tokens": 3, "ctx_len": 64}
    with pytest.warns(UserWarning, match="There is no Cloud AI SDK here"):
        qefficient.compile(graph, tmp_path / "qpc", **sizes)
    same = {"ctx_len": "64", "full_batch_size": "4"}
    assert json.loads((tmp_path / "qpc" / "specializations.json").read_text()) == {
        "specializations": [
            {"name": "Prefill", "symbols": {"batch_size": "1", "seq_len": "32", "num_logits_to_keep": "1", **same}},
            {"name": "Decode", "symbols": {"batch_size": "4", "seq_len": "4", "num_logits_to_keep": "4", **same}},
        ]
    }  # fmt: skip
    with pytest.raises(PlanError, match="expected one number"):
        qefficient.compile(graph, tmp_path / "other", **{**sizes, "num_speculative_tokens": [3, 5]})


def test_nothing_else_is_taken_for_a_graph_of_qefficients(tmp_path: Path) -> None:
    for name, content in (("empty.onnx", b""), ("other.onnx", b"\x08\x0aother")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CompileError, match="json beside it says"):
            qefficient.compile(tmp_path / name, tmp_path / "qpc", num_cores=16)
    assert not (tmp_path / "qpc").exists()


def same_next_token(model: Any, folder: Path, source: Path) -> None:
    """Run the files of a first call with the prepared graph, and compare the next token with transformers'."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    bundle = model.generate(tokenizer, prompts=["the quick fox"], artifact_only=True)
    assert bundle == folder / "io"
    (entries,) = json.loads((bundle / "aic_batch_io.json").read_text())["IO-files"]
    inputs = {entry["map-to"]: entry for entry in entries if entry["io-direction"] == "in"}
    assert {*inputs} == {"input_ids", "position_ids"}
    (logits,) = (entry for entry in entries if entry["io-direction"] == "out")
    assert (logits["map-to"], logits["elem-size"], logits["dims"][:2]) == ("logits", 4, [1, 1])
    graph = ops.with_host_bodies(ir.load(folder / "model.onnx"))
    ir.save(graph, folder / "host.onnx")
    session = onnxruntime.InferenceSession(folder / "host.onnx")
    (folder / "host.onnx").unlink()
    sizes = {"batch_size": 1, "ctx_len": 64, "seq_len": 16}
    fed = {
        one.name: np.zeros([sizes.get(axis, axis) for axis in one.shape], np.float32)
        for one in session.get_inputs()
        if one.name not in inputs
    }
    for name, one in inputs.items():
        assert one["elem-size"] == 8
        fed[name] = np.fromfile(bundle / one["path"], np.int64).reshape(one["dims"])
    found = session.run(["logits"], fed)[0].argmax()
    hugging_face = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        expected = hugging_face(**tokenizer("the quick fox", return_tensors="pt")).logits[0, -1]
    assert found == expected.argmax()


# --- what is for a card --------------------------------------------------------------------------


def test_without_an_sdk_a_folder_is_left_and_with_one_a_package(
    models: Models, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qefficient.QEFFAutoModelForCausalLM.from_pretrained(models.llama)
    choices = {
        "target": "qaic", "prefill_seq_len": 16, "ctx_len": 64, "device_group": [0, 1], "mxfp6": True,
        "time_passes": True, "stats_level": "10",
    }  # fmt: skip
    # Of the folder, which is prepared from what the package below is compiled from and compared with.
    monkeypatch.setattr(pipeline, "prepare", partial(pipeline.prepare, validate=False))
    folder = Path(model.compile(**choices))
    script = (folder / "compile.sh").read_text()
    assert "-mxfp6-matmul -aic-num-cores=16 -stats-level=10 -time-passes -mdp-load" in script
    assert "qeff_models" in folder.parts
    written = (folder / "prepared.json").stat().st_mtime_ns
    assert Path(model.compile(**choices)) == folder
    assert (folder / "prepared.json").stat().st_mtime_ns == written
    with pytest.raises(GenerationError, match="is prepared, and has no program yet"):
        model.generate(prompts=["fox"])
    same_next_token(model, folder, models.llama)

    monkeypatch.setenv(sdk.COMPILER_VARIABLE, str(compiler(tmp_path / "sdk")))
    package = Package.open(model.compile(**choices))
    assert (package.target, package.validated) == ("qaic", "none")
    with pytest.raises(GenerationError, match="runtime_ai100 is False"):
        model.generate(prompts=["fox"], runtime_ai100=False)
    with pytest.raises(GenerationError, match="Cannot run on Cloud AI 100"):
        model.generate(prompts=["fox"], device_id=[0, 1])


def test_options_of_qnn(
    llama: qefficient.QEFFAutoModelForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = {}
    monkeypatch.setattr(
        pipeline, "prepare", lambda *_, request, **__: requested.update(vars(request))
    )
    config = tmp_path / "qnn.json"
    config.write_text('{"converter_args_extension": ""}')
    llama.compile(
        **TINY,
        target="qnn-aic",
        enable_qnn=True,
        qnn_config=config,
        device_group=[0, 1],
        mxint8=True,
    )
    wanted = {
        "target": "qnn-aic",
        "qnn_config": config.read_text().replace(" ", ""),
        "num_devices": 2,
    }
    assert {**requested, **wanted, "mxint8_kv_cache": True, "ctx_len": 128} == requested


def test_options_of_cards_are_named_in_a_warning(
    llama: qefficient.QEFFAutoModelForCausalLM,
) -> None:
    with pytest.warns(UserWarning, match="There is no Cloud AI SDK") as caught:
        llama.compile(**TINY, num_cores=14, mos=2, device_group=[0, 1], io_encrypt="yes")
    (message,) = [str(one.message) for one in caught]
    assert caught[0].filename == __file__
    assert "knows it: num_devices=2, num_cores=14, mos=2, -io-encrypt=yes. target='qaic'" in message
    with pytest.warns(UserWarning, match="is left out: a package of target 'ort' runs on the CPU"):
        llama.generate(prompts=["a"], device_id=[0], generation_len=1)
    with pytest.raises(GenerationError, match="There are no prompts"):
        llama.generate()


def test_prefill_only_has_three_values() -> None:
    found = [
        translation.translate({"prefill_only": value}, ()).choices for value in (True, False, None)
    ]
    assert found == [{"prefill_only": True}, {"decode_only": True}, {}]


# --- what means nothing here ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"num_speculative_tokens": "many"}, "expected one value or a list"),
        ({"prefill_only": "yes"}, "expected True or False"),
        ({"kv_cache_batch_size": 8}, "share their states by themselves"),
        ({"full_batch_size": 4}, "without continuous batching"),
        ({"specializations": []}, "Use prefill_seq_len, ctx_len and batch_size"),
        ({"mdp_load_partition_config": "f.json"}, "Use num_devices and mdp_num_partitions"),
        ({"onnx_path": "m.onnx"}, "Use qeff_zoo.qefficient.compile"),
        ({"artifacts": True, "target": "ort"}, "expected one of a card"),
        ({"kv_cache_prefix": "VLLM", "target": "qaic"}, "kv_cache_prefix is 'VLLM'"),
        ({"kv_cache_prefix": "a.b"}, "kv_cache_prefix is 'a.b'"),
        ({"prefil_seq_len": 8}, "Did you mean 'prefill_seq_len'?"),
        ({"num_cores": "many"}, "expected a whole number"),
        ({"mxfp6_matmul": "yes"}, "expected True or False"),
        ({"mos": 1, "device_group": [0, 1], "num_devices": 4}, "num_devices is said to be"),
        ({"qnn_config": "f.json"}, "without enable_qnn"),
        ({"enable_qnn": True, "qnn_config": "absent.json"}, "Cannot read qnn_config"),
        ({"enable_qnn": True, "target": "qaic"}, "expected 'qnn-aic'"),
        ({"target": "qiac"}, "target is 'qiac', expected one of 'ort'"),
        ({"target": "ort", "mos": 2}, "Target 'ort' knows no mos=2"),
    ],
)  # fmt: skip
def test_compile_refuses_by_name(
    choices: dict[str, Any], problem: str, llama: qefficient.QEFFAutoModelForCausalLM
) -> None:
    with pytest.raises(PlanError, match=re.escape(problem)):
        llama.compile(**choices)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"qaic_config": {"speculative_model_type": "x"}}, "There are 'target', a model that"),
        ({"qaic_config": {"anything": 1}}, "`qaic_config` takes no 'anything'"),
        ({"qaic_config": {"target_layer_ids": [1, 9]}}, "Give draft_heads=DRAFTER to `compile`"),
        ({"local_files_only": True}, "Set HF_HUB_OFFLINE=1"),
        ({"torch_dtype": torch.float64}, "torch_dtype is torch.float64, which means nothing here"),
    ],
)
def test_from_pretrained_refuses_by_name(
    arguments: dict[str, Any], problem: str, workplace: Path
) -> None:
    with pytest.raises(PlanError, match=re.escape(problem)):
        qefficient.QEFFAutoModelForCausalLM.from_pretrained("gpt2", **arguments)


def test_other_refusals(llama: qefficient.QEFFAutoModelForCausalLM) -> None:
    with pytest.raises(GenerationError, match="Call `compile` before `generate`"):
        llama.generate(prompts=["a"])
    with pytest.raises(PlanError, match="is 'text-classification', and the model was loaded for"):
        llama.compile(task="text-classification")
    with pytest.warns(UserWarning, match="enable_proxy is left out"):
        qefficient.QEFFAutoModelForCausalLM.from_pretrained("gpt2", enable_proxy=True)
    with pytest.raises(PlanError, match=r"called with ctx_len, bs, and .* expected `compile`"):
        llama.transform(ctx_len=64, bs=1)
    with pytest.raises(PlanError, match="kv_cache_prefix is 'abc'"):
        llama.export(kv_cache_prefix="abc")
    with pytest.raises(PlanError, match="Save it, and load the folder"):
        qefficient.transform(torch.nn.Linear(1, 1))
    with pytest.raises(PlanError, match="Call save_pretrained"):
        qefficient.QEFFAutoModelForCausalLM.from_pretrained(torch.nn.Linear(1, 1))
    with pytest.raises(PlanError, match="Call save_pretrained"):
        qefficient.QEFFAutoModelForCausalLM(torch.nn.Linear(1, 1))
    with pytest.raises(PlanError, match="'lasttoken'"):
        qefficient.QEFFAutoModel.from_pretrained(ENCODER, pooling="weighted")
    batched = qefficient.QEFFAutoModelForCausalLM.from_pretrained("gpt2", continuous_batching=True)
    with pytest.raises(PlanError, match="full_batch_size is not given"):
        batched.compile()
    for output in ({"is_tlm": True}, {"qaic_config": {"speculative_model_type": "target"}}):
        checks = qefficient.QEFFAutoModelForCausalLM.from_pretrained("gpt2", **output)
        with pytest.raises(PlanError, match="expected how many a call checks"):
            checks.compile()
    assert qefficient.transform(llama) is llama


@pytest.mark.parametrize(
    "table", [translation.LOADING, translation.EXPORTING, translation.COMPILING, translation.GENERATING]
)  # fmt: skip
def test_neutral_arguments_of_qefficient_are_accepted(
    table: dict[str, translation.Foreign],
) -> None:
    for name, one in table.items():
        for value in one.harmless:
            given = value(3) if isinstance(value, type) else value
            translation.refuse("f", {name: given}, table)
        with pytest.raises(PlanError, match=f"`f`: {name} is <object"):
            translation.refuse("f", {name: object()}, table)


def test_every_option_of_a_build_has_a_flag() -> None:
    values: dict[Any, Any] = {int: 2, bool: True, tuple[int, ...]: (2,), tuple[str, ...]: ("a",)}
    for name, option in OPTIONS.items():
        value = values.get(option.kind, "text")
        assert translation.translate({name: value}, ()).choices == {name: value}
    assert set(OPTIONS) == set(Request.__dataclass_fields__)


@pytest.mark.parametrize(
    ("prompt", "file", "problem"),
    [
        (None, None, "There is neither of"),
        ("a", "b", "There is both of"),
        (" | ", None, "There is no prompt in"),
        (None, "absent.txt", "Cannot read 'absent.txt'"),
    ],
)
def test_prompts_are_required(
    prompt: str | None, file: str | None, problem: str, workplace: Path
) -> None:
    with pytest.raises(GenerationError, match=re.escape(problem)):
        prompts_of(prompt, file)


# --- commands ------------------------------------------------------------------------------------


def options_of(name: str) -> dict[str, Any]:
    module = importlib.import_module(f"qeff_zoo.qefficient.cloud.{name}")
    return {flag: action for action in module._parser()._actions for flag in action.option_strings}


@pytest.mark.parametrize("name", ["infer", "export", "compile", "execute"])
def test_every_flag_has_both_spellings(name: str) -> None:
    options = options_of(name)
    for flag, action in options.items():
        if flag.startswith("--"):
            for other in (flag[2:].replace("_", "-"), flag[2:].replace("-", "_")):
                assert options[f"--{other}"] is action


def test_defaults_are_those_of_qefficient() -> None:
    infer, build = options_of("infer"), options_of("compile")
    for options, mos in ((infer, 1), (build, -1)):
        wanted = {
            "batch_size": 1,
            "prompt_len": 32,
            "ctx_len": 128,
            "mos": mos,
            "mxfp6": False,
            "enable_qnn": False,
        }
        assert {name: options[f"--{name}"].default for name in wanted} == wanted
        assert options["--num_cores"].required
        assert options["--mxfp6-matmul"] is options["--mxfp6"] if options is infer else True
    assert (infer["--device_group"].required, build["--device_group"].required) == (False, True)


def test_an_answer_as_json(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "infer",
        "--model-name",
        "gpt2",
        "--num-cores",
        "16",
        "--prompt",
        "a|b",
        "--generation-len",
        "3",
    ]
    code, out, _ = run([*words, "--json", "-v"], capsys)
    answer = json.loads(out)
    assert (code, len(answer["generated_texts"])) == (0, 2)
    assert [len(ids) for ids in answer["generated_ids"]] == [3, 3]
    code, out, _ = run(
        ["execute", "--qpc-path", answer["package"], "--prompt", "a|b", "--generation-len", "3", "--json"], capsys
    )  # fmt: skip
    assert (code, json.loads(out)["generated_ids"]) == (0, answer["generated_ids"])


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["infer", "--model_name", "gpt2", "--num_cores", "16"], "There is neither of --prompt"),
        (["infer", "--model_name", "gpt2", "--num_cores", "16", "--prompt", "a", "--image_url", "u"],
         "'gpt2' is a model for 'text-generation', which reads none"),
        (["infer", "--model_name", "gpt2", "--num_cores", "16", "--prompt", "a", "--contextlen", "8",
          "--ctx_lenn", "8"], "Did you mean 'ctx_len'?"),
        (["execute", "--qpc_path", "absent", "--prompt", "a"], "No package at 'absent'"),
        (["compile", "--onnx_path", "a.onnx", "--qpc_path", "q", "--num_cores", "16", "--device_group", "[0]"],
         "Export the model again"),
        (["finetune", "--device", "qaic:0", "--use-peft"], "there is no torch_qaic here"),
    ],
)  # fmt: skip
def test_a_command_fails_in_a_line(
    argv: list[str], problem: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, message = run(argv, capsys)
    assert (code, out) == (1, "")
    assert message.startswith("qeff-zoo: ")
    assert problem in message


def test_the_path_of_the_quick_start_means_what_infer_built(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = qeff_zoo.build("gpt2", ctx_len=128, prefill_seq_len=32, batch_size=1)
    path = "qeff_models/none/qpc_16cores_{}_32PL_128CL_1devices_mxfp6/qpcs"
    words = ["execute", "--prompt", "a", "--generation_len", "2", "--json", "--qpc_path"]
    for name in (path, path.replace("qpc_16", "qpc_qnn_16")):
        code, out, message = run([*words, name.format("1BS"), "--model_name", "gpt2"], capsys)
        assert (code, json.loads(out)["package"]) == (0, str(package.path))
        assert "which has these sizes" in message
    for missing in ([path.format("7FBS"), "--model_name", "gpt2"], [path.format("1BS")]):
        code, out, message = run([*words, *missing], capsys)
        assert (code, out) == (1, "")
        assert "No package at 'qeff_models/none/qpc_16cores" in message


def test_a_package_must_have_the_requested_slots(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = qeff_zoo.build("gpt2", ctx_len=128, prefill_seq_len=32, batch_size=1)
    argv = ["execute", "--qpc_path", str(package.path), "--prompt", "a", "--full_batch_size", "4"]
    code, _, message = run(argv, capsys)
    assert code == 1
    assert "has none; expected the same" in message


def test_the_hub_is_configured_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.setenv(name, "before")
    words = ["--model_name", "org/name", "--cache-dir", "/there", "--local_model_dir", "here"]
    words += ["--mxint8-kv-cache", "True"]
    arguments = (
        importlib.import_module("qeff_zoo.qefficient.cloud.export")._parser().parse_args(words)
    )
    assert flags.configure_hub(arguments) == "here"
    assert (os.environ["HF_HUB_CACHE"], os.environ["HF_TOKEN"]) == ("/there", "before")


def test_a_stray_word_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["infer", "--model_name", "a", "--num_cores", "16", "--flag", "value", "stray"], capsys)
    assert "unrecognized arguments: stray" in capsys.readouterr().err


@pytest.mark.parametrize("name", CLOUD)
def test_help_and_import_are_light(name: str) -> None:
    program = f"""
import sys
import qeff_zoo
from qeff_zoo.qefficient.cloud import {name}
try:
    {name}.main(["--help"])
except SystemExit as stop:
    assert not stop.code
names = {HEAVY!r} + ("numpy", "huggingface_hub", "QEfficient")
assert not [one for one in names if one in sys.modules], [one for one in names if one in sys.modules]
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: qeff-cloud-{name}")


def test_the_scripts_are_declared() -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in CLOUD:
        assert declared[f"qeff-cloud-{name}"] == f"qeff_zoo.qefficient.cloud.{name}:main"


def test_to_execute_takes_neither_torch_nor_transformers(workplace: Path) -> None:
    package = qeff_zoo.build("gpt2", ctx_len=128, prefill_seq_len=32, batch_size=1)
    program = f"""
import sys
from qeff_zoo.qefficient.cloud import execute
code = execute.main(["--qpc_path", {str(package.path)!r}, "--prompt", "a", "--generation_len", "2"])
sys.exit(code or bool({{"torch", "transformers", "onnx", "onnx_ir"}} & {{*sys.modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_as_a_module(workplace: Path) -> None:
    done = subprocess.run(
        [warm.PYTHON.executable, "-m", "qeff_zoo.qefficient.cloud.finetune"],
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no torch_qaic here: training on the CPU." in done.stderr
    assert "No model 'meta-llama/Llama-3.2-1B'" in done.stderr
