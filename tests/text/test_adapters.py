# SPDX-License-Identifier: Apache-2.0
"""Adapters that are loaded while a package runs: what peft says, in one batch, and every refusal."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import openai
import peft_adapters
import pytest
import torch
from fixtures_builds import Models
from fixtures_serving import MODEL, connect, running
from rejecting import Oracle
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer, GenerationConfig, TextIteratorStreamer

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.checkpoint.adapters import REVISION
from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import main
from qeff_zoo.errors import AdapterError, CheckpointError, ExportError, GenerationError, PlanError
from qeff_zoo.graph.numerics import format_of
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.qefficient import QEffAutoLoraModelForCausalLM, QEffAutoPeftModelForCausalLM
from qeff_zoo.runtime import Engine, TextGenerationSession
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.engine.speculation import Speculation
from qeff_zoo.serving.apis.vllm.adapters import Sources
from qeff_zoo.weights.quantization import round_trip

pytestmark = pytest.mark.turns(3)

SLOTS, RANK = 4, 8
SHAPE = {"batch_size": 4, "prefill_seq_len": 16, "ctx_len": 48}
TAKING = {"max_loras": SLOTS, "max_lora_rank": RANK}
TOKENS = [list(range(3 + row, 27 + row)) for row in range(4)]
BLOCK = 32
#: Builds a package of a checkpoint with some choices, and opens it.
Building: TypeAlias = Callable[..., Any]
#: Relative to the spread of logits.
EXACT = 1e-4


@pytest.fixture(scope="module")
def adapters(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give adapters of the tiny Llama, by their kind."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        kind: peft_adapters.write(
            folder / kind, peft_adapters.load(models.llama), number, task_type="CAUSAL_LM", **config
        )
        for number, (kind, config) in enumerate(peft_adapters.KINDS.items())
    }


@pytest.fixture(scope="module")
def expected(models: Models, adapters: dict[str, Path]) -> list[np.ndarray[Any, Any]]:
    """Give what peft says of each row: the model as it is, then each adapter."""
    every = [None, *adapters.values()]
    return [
        peft_adapters.logits(models.llama, adapter, tokens)
        for adapter, tokens in zip(every, TOKENS, strict=True)
    ]


@pytest.fixture(scope="module")
def build(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Building:
    """Give what builds a package that nobody validated, and opens it; each graph is traced once."""
    home = tmp_path_factory.mktemp("home")
    models.trace(models.llama, home)
    models.trace(models.llama, home, **TAKING)

    def opened(source: Path, **choices: Any) -> Any:
        from runnable_package import package

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QEFF_HOME", str(home))
            return qeff_zoo.load(package(source, **choices), threads=1)

    return opened


@pytest.fixture(scope="module")
def package(models: Models, build: Building) -> Path:
    folder: Path = build(models.llama, **SHAPE, **TAKING).folder
    return folder


@pytest.fixture
def session(package: Path) -> TextGenerationSession:
    opened = qeff_zoo.load(package, threads=1)
    assert isinstance(opened, TextGenerationSession)
    return opened


def apart(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.abs(got - expected).max() / expected.std())


def run(session: TextGenerationSession, slots: list[int]) -> list[np.ndarray[Any, Any]]:
    """Run each row's tokens by a chunk, a rest, and token by token."""
    decoder = session.decoder
    decoder.prefill({row: Piece(TOKENS[row][:16], 0, slot=slot) for row, slot in enumerate(slots)})
    for row, slot in enumerate(slots):
        decoder.prefill({row: Piece(TOKENS[row][16:20], 16, slot=slot)})
    for at in range(20, 24):
        pieces = {
            row: Piece(TOKENS[row][at : at + 1], at, slot=slot) for row, slot in enumerate(slots)
        }
        got = decoder.decode(pieces)
    return [got[row] for row in range(len(slots))]


def test_a_batch_of_adapters_equals_peft(
    session: TextGenerationSession,
    adapters: dict[str, Path],
    expected: list[np.ndarray[Any, Any]],
    models: Models,
) -> None:
    for kind, folder in adapters.items():
        session.adapters.load(kind, folder)
    assert {adapter.slot for adapter in session.adapters.values()} == {1, 2, 3}
    for got, wanted in zip(run(session, [0, 1, 2, 3]), expected, strict=True):
        assert apart(got, wanted) < EXACT
    base = peft_adapters.logits(models.llama, None, TOKENS[2])
    assert apart(base, expected[2]) > 1000 * EXACT  # adapters matter


def test_adapters_are_swapped_between_calls(
    session: TextGenerationSession,
    adapters: dict[str, Path],
    expected: list[np.ndarray[Any, Any]],
) -> None:
    """The matrices of a slot change under the same session."""
    one, two, three = adapters
    session.adapters.load(three, adapters[three])
    run(session, [0, 1, 1, 1])
    session.adapters.load(three, adapters[one])  # by its name again
    assert session.adapters[three].slot == 1
    assert apart(run(session, [0, 1, 0, 0])[1], expected[1]) < EXACT
    session.adapters.unload(three)
    session.adapters.load(two, adapters[two])
    assert apart(run(session, [0, 0, 1, 0])[2], expected[2]) < EXACT


@pytest.mark.parametrize("weights", ["int8", "int4", "w8a8"])
def test_quantized_weights_take_adapters(
    models: Models, build: Building, adapters: dict[str, Path], tmp_path: Path, weights: str
) -> None:
    """Of a checkpoint whose matrices are what is left of them in integers: what an adapter adds is not rounded."""
    source = models.copy(models.llama, tmp_path / "rounded")
    format = format_of(weights, BLOCK)
    matrices = load_file(source / "model.safetensors")
    for name, value in matrices.items():
        if value.ndim == 2:
            matrices[name] = round_trip(value, format).reshape(value.shape)
    save_file(matrices, source / "model.safetensors", {"format": "pt"})
    choices = {"block_size": BLOCK} if format.block else {}
    session = build(source, weights=weights, **choices, **SHAPE, **TAKING)
    session.adapters.load("a", adapters["attention"])
    got, plain = (run(session, [0, slot, 0, 0])[1] for slot in (1, 0))
    wanted, base = (
        peft_adapters.logits(source, one, TOKENS[1]) for one in (adapters["attention"], None)
    )
    # Left sides of products are rounded to int8, with an adapter and without.
    assert apart(got, wanted) < 3 * apart(plain, base)
    assert apart(base, wanted) > 5 * apart(got, wanted)


def test_requests_name_adapters_and_share_no_prefixes(
    session: TextGenerationSession, adapters: dict[str, Path]
) -> None:
    """Requests of all adapters at a time are answered as one at a time; a prefix is of one adapter."""
    kinds = [None, *adapters]
    for kind, folder in adapters.items():
        session.adapters.load(kind, folder)
    prompt = [*range(5, 37)]
    alone = [session.generate([prompt], generation_len=6, adapter=kind)[0] for kind in kinds]
    assert len({tuple(one.token_ids) for one in alone}) == len(kinds)
    assert {one.reused_tokens for one in alone} == {0}
    requests = [session.request(prompt, generation_len=6, adapter=kind) for kind in kinds * 2]
    together = session.generate(requests)
    assert [one.token_ids for one in together] == 2 * [one.token_ids for one in alone]
    assert {one.reused_tokens for one in together} == {16}


def test_a_slot_in_use_is_not_given_away(
    session: TextGenerationSession, adapters: dict[str, Path]
) -> None:
    (folder,) = list(adapters.values())[:1]
    names = [f"number{number}" for number in range(SLOTS)]
    for name in names:
        session.adapters.load(name, folder)
    with pytest.raises(
        AdapterError, match=r"no room for the adapter 'more': 'number0', .* all 4 slots"
    ):
        session.adapters.load("more", folder)
    request = session.request([5, 6, 7], generation_len=4, adapter="number1")
    deltas = session.stream(request)
    next(deltas)
    session.adapters.unload("number1")
    with pytest.raises(AdapterError, match=r"no adapter 'number1' here; .*'number0', 'number2'"):
        session.request([5], adapter="number1")
    with pytest.raises(AdapterError, match="no room for the adapter 'more'"):
        session.adapters.load("more", folder)
    assert len([*deltas]) == 3
    assert session.adapters.load("more", folder).slot == 2


def test_an_encoder_takes_adapters(models: Models, build: Building, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"seq_lens": (16,), "batch_size": 2, "pooling": "mean"}
    session = build(models.bert, **choices, **TAKING)
    model = peft_adapters.load(models.bert, "feature-extraction")
    adapter = peft_adapters.write(tmp_path / "bert", model, r=4, target_modules="all-linear")
    assert any("pooler.dense" in name for name in load_file(adapter / "adapter_model.safetensors"))
    session.adapters.load("a", adapter)
    tokens = [*range(5, 17)]
    model = peft_adapters.load(models.bert, "feature-extraction")
    wrapped = peft_adapters.PeftModel.from_pretrained(model, str(adapter)).eval()
    with torch.no_grad():
        wanted = wrapped(torch.tensor([tokens])).last_hidden_state[0].mean(0).numpy()
    got, plain = (session.embed([tokens], adapter=name)[0] for name in ("a", None))
    assert apart(got, wanted) < EXACT
    assert apart(plain, wanted) > 1000 * EXACT


def test_without_adapters_nothing_changes(models: Models) -> None:
    """Neither the spec nor the graph of a package that takes none knows of them."""
    checkpoint = open_checkpoint(str(models.llama))
    plain, taking = (check(checkpoint, Request(max_loras=count)) for count in (None, 2))
    assert plain.programs[0].variant == {}
    assert not any("lora" in name for name in plain.spec["task"])
    assert taking.programs[0].variant == {
        "max_loras": 2,
        "max_lora_rank": 16,
        "lora_rev": REVISION,
    }
    assert plain.build_key != taking.build_key


def test_targets_narrow_what_adapters_change(
    models: Models, build: Building, adapters: dict[str, Path]
) -> None:
    session = build(models.llama, lora_targets=("q_proj", "self_attn.v_proj"), **SHAPE, **TAKING)
    assert {site.module for site in session.adapters.sites} == {
        "self_attn.q_proj",
        "self_attn.v_proj",
    }
    session.adapters.load("fits", adapters["attention"])
    with pytest.raises(AdapterError, match=r"changes 'model.layers.0.mlp.down_proj', which is no"):
        session.adapters.load("not", adapters["patterns"])


REFUSED_PLANS: list[tuple[dict[str, Any], str]] = [
    ({"max_loras": 0}, "--max-loras is 0, expected at least 1"),
    ({"max_loras": 1, "max_lora_rank": 0}, "--max-lora-rank is 0, expected at least 1"),
    ({"max_lora_rank": 4}, "--max-lora-rank is for packages that take adapters"),
    ({"lora_targets": ("q_proj",)}, "--lora-targets is for packages that take adapters"),
    ({"max_loras": 1, "kv_heads": 4}, "--max-loras and --kv-heads exclude each other"),
    *(
        ({"max_loras": 1, "target": target}, f"target '{target}' takes no adapters while it runs")
        for target in ("openvino", "qnn-htp", "qnn-aic")
    ),
]


@pytest.mark.parametrize(("choices", "message"), REFUSED_PLANS)
def test_plans_that_are_refused(models: Models, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check(open_checkpoint(str(models.llama)), Request(**choices))


def test_targets_that_the_model_does_not_have(models: Models, home: Path) -> None:
    with pytest.raises(ExportError, match=r"by the names \['query'\].*: self_attn.q_proj, "):
        pipeline.build(str(models.llama), Request(max_loras=1, lora_targets=("query",)))


def _config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _tensors(folder: Path, change: Any) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def _first(tensors: dict[str, Any], kind: str) -> str:
    return next(name for name in tensors if f"lora_{kind}" in name)


BROKEN: dict[str, tuple[Any, type[Exception], str]] = {
    "no config": (
        lambda folder: (folder / "adapter_config.json").unlink(),
        *(AdapterError, "has no adapter_config.json, so it is no adapter"),
    ),
    "pickle": (
        lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
        *(AdapterError, "only adapter_model.bin: a pickle, which can run code"),
    ),
    "damaged": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\x00" * 40),
        *(CheckpointError, "adapter_model.safetensors"),
    ),
    "not JSON": (
        lambda folder: (folder / "adapter_config.json").write_text("{"),
        *(CheckpointError, "as JSON"),
    ),
    "another method": (
        lambda folder: _config(folder, peft_type="IA3"),
        *(AdapterError, "peft_type is 'IA3'; expected 'LORA'"),
    ),
    "no rank": (lambda folder: _config(folder, r=None), AdapterError, "r is None"),
    "a bad pattern": (
        lambda folder: _config(folder, rank_pattern={"(": 4}),
        *(AdapterError, r"the pattern '\(', and it is no regular expression"),
    ),
    "another rank": (
        lambda folder: _config(folder, r=3),
        *(AdapterError, r"matrices of \[4, 64\] and \[.*, 4\]; expected both of rank 3"),
    ),
    "DoRA": (
        lambda folder: _config(folder, use_dora=True),
        *(AdapterError, r"scales whole weights \(DoRA\).* `qeff-zoo build MODEL --adapter "),
    ),
    "modules": (
        lambda folder: _config(folder, modules_to_save=["lm_head"]),
        *(AdapterError, "replaces whole modules"),
    ),
    "experts": (
        lambda folder: _config(folder, target_parameters=["mlp.experts.down_proj"]),
        *(AdapterError, "changes stacked parameters, as of experts.* --adapter "),
    ),
    "biases": (
        lambda folder: _config(folder, lora_bias=True),
        *(AdapterError, "has biases of its own"),
    ),
    "layers again": (
        lambda folder: _config(folder, layer_replication=[[0, 2], [1, 3]]),
        *(AdapterError, "repeats layers of its base"),
    ),
    "half a pair": (
        lambda folder: _tensors(folder, lambda tensors: tensors.pop(_first(tensors, "B"))),
        *(AdapterError, "expected two matrices"),
    ),
    "other layers": (
        lambda folder: _tensors(
            folder,
            lambda tensors: [
                tensors.update({name.replace("layers.0.", "layers.9."): tensors.pop(name)})
                for name in [*tensors]
                if "layers.0." in name
            ],
        ),
        *(AdapterError, "changes 'model.layers.9.self_attn.q_proj', which is no layer that"),
    ),
    "other sizes": (
        lambda folder: _tensors(
            folder,
            lambda tensors: tensors.update({_first(tensors, "A"): np.zeros((4, 48), np.float32)}),
        ),
        *(AdapterError, "is from 48 to .*, here from 64 to"),
    ),
    "a tensor of something else": (
        lambda folder: _tensors(
            folder, lambda tensors: tensors.update({"base_model.model.x.lora_E": np.zeros(2)})
        ),
        *(AdapterError, "it has 'base_model.model.x.lora_E'"),
    ),
    "infinite": (
        lambda folder: _tensors(folder, lambda tensors: tensors[_first(tensors, "A")].fill(np.inf)),
        *(AdapterError, "is infinite or not a number"),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_adapters_that_are_refused(
    session: TextGenerationSession,
    adapters: dict[str, Path],
    models: Models,
    tmp_path: Path,
    what: str,
) -> None:
    change, kind, message = BROKEN[what]
    folder = models.copy(adapters["attention"], tmp_path / "adapter")
    change(folder)
    with pytest.raises(kind, match=message):
        session.adapters.load("a", folder)
    assert not session.adapters


def test_a_larger_rank_is_refused(
    session: TextGenerationSession, models: Models, tmp_path: Path
) -> None:
    model = peft_adapters.load(models.llama)
    folder = peft_adapters.write(tmp_path / "a", model, r=RANK + 1, target_modules=["q_proj"])
    with pytest.raises(AdapterError, match="has rank 9, and here the largest is 8"):
        session.adapters.load("a", folder)


def test_an_adapter_of_another_model_is_taken_with_a_warning(
    session: TextGenerationSession,
    adapters: dict[str, Path],
    models: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the names of both on the Hub; a path says nothing."""
    monkeypatch.setattr(session.adapters, "_model", "org/llama")
    session.adapters.load("path", adapters["attention"])
    folder = models.copy(adapters["attention"], tmp_path / "adapter")
    _config(folder, base_model_name_or_path="org/other")
    with pytest.warns(UserWarning, match=r"names 'org/other' as its base, .* with 'org/llama'"):
        session.adapters.load("a", folder)
    _config(folder, base_model_name_or_path="org/Llama")
    session.adapters.load("a", folder)


def test_drafts_change_no_answer_of_an_adapter(
    models: Models, build: Building, adapters: dict[str, Path]
) -> None:
    """Checked with the adapter of their request, beside another's, and forgotten where they were wrong."""
    session = build(models.llama, **SHAPE, **TAKING, num_speculative_tokens=(3,))
    for number, kind in enumerate(("every layer", "attention")):
        session.adapters.load(str(number), adapters[kind])
    prompts = [(5, 6, 7), (7, 6, 5), (9, 8, 7)]
    requests = [
        session.request(prompt, generation_len=24, ignore_eos=True, adapter=adapter)
        for prompt, adapter in zip(prompts, ("0", "1", None), strict=True)
    ]
    plain = [output.token_ids for output in session.generate(requests)]
    oracle = Oracle(dict(zip(prompts, plain, strict=True)), frozenset(range(0, 24, 5)))
    session.speculation = Speculation(most=3, drafter=lambda _: oracle)
    outputs = session.generate(requests)
    assert [output.token_ids for output in outputs] == plain
    assert all(output.drafted_tokens > output.accepted_tokens > 0 for output in outputs)
    (base,) = session.generate([prompts[0]], generation_len=24, ignore_eos=True)
    assert base.token_ids != plain[0]


def test_a_package_without_slots_takes_none(
    models: Models, build: Building, adapters: dict[str, Path]
) -> None:
    session = build(models.llama, **SHAPE)
    with pytest.raises(AdapterError, match=r"takes no adapters, .* --max-loras"):
        session.adapters.load("a", adapters["attention"])
    with pytest.raises(AdapterError, match=r"no adapter 'a' here; .*: none"):
        session.generate([[5]], adapter="a")
    with pytest.raises(AdapterError, match="No folder '/nowhere'"):
        open_adapter("/nowhere")


def test_the_command_line_runs_with_an_adapter(
    package: Path,
    session: TextGenerationSession,
    adapters: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", str(package), "--prompt", "the quick", "--generation-len", "6", "--json"]
    assert main([*command, "--adapter", f"sql={adapters['every layer']}"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["outputs"]
    session.adapters.load("a", adapters["every layer"])
    by_name = [
        session.generate("the quick", generation_len=6, adapter=name)[0].token_ids
        for name in ("a", None)
    ]
    assert printed["token_ids"] == by_name[0] != by_name[1]
    assert main([*command, "--adapter", "sql"]) == 1
    assert "--adapter is 'sql'; expected NAME=DIR" in capsys.readouterr().err


def test_a_server_has_adapters_as_models(
    session: TextGenerationSession, adapters: dict[str, Path]
) -> None:
    """Loaded, asked for, listed and unloaded by vLLM's endpoints; the others stay as they are."""
    path = str(adapters["every layer"])
    sources = Sources.of([path, str(adapters["attention"].parent)])
    with (
        Engine(session) as engine,
        running(engine, adapter_sources=sources) as url,
        connect(url) as client,
    ):

        def output(model: str) -> str:
            requested = {"prompt": [5, 6, 7, 8], "max_tokens": 8, "temperature": 0}
            answer = client.completions.create(model=model, **requested)
            assert answer.model == model
            return answer.choices[0].text

        def send_request(path: str, **body: str) -> tuple[int, str]:
            request = urllib.request.Request(
                f"{url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        base = output(MODEL)
        with pytest.raises(openai.NotFoundError, match="no model 'sql'; expected 'tiny', the only"):
            output("sql")
        status, text = send_request("load_lora_adapter", lora_name="sql", lora_path=path)
        assert (status, text) == (200, "Success: LoRA adapter 'sql' added successfully.")
        assert output("sql") != base == output(MODEL)
        assert [one.id for one in client.models.list()] == [MODEL, "sql"]
        assert client.models.retrieve("sql").parent == MODEL  # type: ignore[attr-defined]
        for name in ("sql", MODEL):
            status, text = send_request("load_lora_adapter", lora_name=name, lora_path=path)
            assert (status, "There is a model" in text) == (400, True)
        status, text = send_request("load_lora_adapter", lora_name="other", lora_path="/nowhere")
        assert (status, "no adapter from '/nowhere'" in text) == (403, True)
        status, text = send_request("unload_lora_adapter", lora_name="sql")
        assert (status, text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
        assert send_request("unload_lora_adapter", lora_name="sql")[0] == 404
        with pytest.raises(openai.NotFoundError):
            output("sql")
        with running(engine) as closed:  # nobody has said where from
            url = closed
            for name in ("load_lora_adapter", "unload_lora_adapter"):
                assert send_request(name, lora_name="sql", lora_path=path)[0] == 404


def test_adapters_of_running_and_waiting_requests_are_a_metric(
    session: TextGenerationSession, adapters: dict[str, Path]
) -> None:
    """As gateways read it of vLLM: three labels, and the time; without adapter slots there is none."""
    for name in ("b", "a"):
        session.adapters.load(name, adapters["every layer"])

    def request(adapter: str) -> Any:
        return session.request([5, 6, 7], generation_len=40, ignore_eos=True, adapter=adapter)

    with Engine(session) as engine, running(engine) as url:
        assert engine.stats().running_adapters == ()
        slots = session.decoder.sizes.rows
        handles = [engine.submit(request(name)) for name in ("b",) * 8 * slots + ("a",)]
        found = list[str]()
        while not found and any(not one.done for one in handles):
            with urllib.request.urlopen(url.replace("/v1", "/metrics"), timeout=60) as answer:
                lines = answer.read().decode().splitlines()
            found = [
                line
                for line in lines
                if 'running_lora_adapters="b",waiting_lora_adapters="a,b"' in line
            ]
        for handle in handles:
            handle.cancel()
    head, value = found[0].split()
    assert head.startswith(f'vllm:lora_requests_info{{max_lora="{SLOTS}",')
    assert 0 <= time.time() - float(value) < 600
    assert "vllm:lora_requests_info gauge" in "\n".join(lines)


def test_qefficients_classes(
    models: Models,
    build: Building,
    session: TextGenerationSession,
    adapters: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several in a batch, by a mapping of prompts; or one at a time, which is swapped."""
    monkeypatch.setenv("QEFF_HOME", str(session.folder.parents[1]))
    one, two = adapters["every layer"], adapters["attention"]
    for name, folder in (("one", one), ("two", two)):
        session.adapters.load(name, folder)
    prompt = [5, 6, 7, 8, 9]
    settings = {
        name: session.generate([prompt], generation_len=5, adapter=name)[0].token_ids
        for name in ("one", "two", None)
    }
    sizes: dict[str, Any] = {**SHAPE, **TAKING, "target": "ort"}
    telling: dict[str, Any] = {"generation_len": 5, "stream": False}

    several = QEffAutoLoraModelForCausalLM.from_pretrained(models.llama)
    assert several.load_adapter(one, "one") == 1
    several.compile(**sizes)
    mapping = ["one", "base"]
    found = several.generate(prompts=[prompt] * 2, prompt_to_adapter_mapping=mapping, **telling)
    assert found.generated_ids == [settings["one"], settings[None]]
    assert several.load_adapter(two, "two") == several.get_adapter_id("two") == 2
    mapping = ["two", "one", "base"]
    found = several.generate(prompts=[prompt] * 3, prompt_to_adapter_mapping=mapping, **telling)
    assert found.generated_ids == [settings["two"], settings["one"], settings[None]]
    several.unload_adapter("one")
    with pytest.raises(AdapterError, match=r"no adapter 'one'; .*: 'two'"):
        several.get_adapter_id("one")
    with pytest.raises(GenerationError, match="has 1 names for 2 prompts"):
        several.generate(prompts=[prompt] * 2, prompt_to_adapter_mapping=["two"])
    with pytest.raises(AdapterError, match="cannot be called 'base'"):
        several.load_adapter(one, "base")

    swapped: Any = QEffAutoPeftModelForCausalLM.from_pretrained(one, "one")
    swapped.compile(**sizes)
    assert swapped.generate(prompts=[prompt], **telling).generated_ids == [settings["one"]]
    swapped.load_adapter(two, "two")
    swapped.set_adapter("two")
    swapped._session.adapters.slots = 1  # as if `compile` had known one adapter
    assert swapped.generate(prompts=[prompt], **telling).generated_ids == [settings["two"]]
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    streamer: Any = TextIteratorStreamer(tokenizer)
    swapped.set_adapter("one")
    inputs = {name: torch.tensor([prompt]) for name in ("input_ids", "token_type_ids")}
    got = swapped.generate(**inputs, streamer=streamer, max_new_tokens=5)
    assert got.tolist() == [settings["one"]]
    assert "".join(streamer) == tokenizer.decode([*prompt, *settings["one"]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    config = GenerationConfig(max_new_tokens=5)
    padded = {"inputs": torch.tensor([[0, 0, *prompt]]), "attention_mask": mask}
    assert swapped.generate(**padded, generation_config=config).tolist() == [settings["one"]]
    with pytest.raises(PlanError, match="num_beams is 3, which means nothing here"):
        swapped.generate(**padded, num_beams=3)
    with pytest.raises(GenerationError, match="max_new_tokens is None; expected at least 1"):
        swapped.generate(**padded)
    finite = QEffAutoPeftModelForCausalLM.from_pretrained(one, "one", finite_adapters=True)
    assert type(finite) is QEffAutoLoraModelForCausalLM


#: Matrices stored input-major; routers that read tokens of all rows one after another; routers that are linear layers
#: and make more than numbers, which adapters leave alone.
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set")  # peft sets it
@pytest.mark.parametrize("model_type", ["gpt2", "dbrx", "phimoe"])
@pytest.mark.sampled(3)
def test_other_architectures_take_adapters(
    models: Models, build: Building, tmp_path: Path, model_type: str
) -> None:
    source = models.checkpoint(model_type, model_type)
    session = build(source, **SHAPE, **TAKING)
    sites = list(session.adapters.sites)
    model = peft_adapters.load(source)
    names = [name for name, _ in model.named_modules() if any(site.is_of(name) for site in sites)]
    assert len(names) == len(sites)
    folder = peft_adapters.write(tmp_path / "a", model, size=0.1, r=4, target_modules=names)
    session.adapters.load("a", folder)
    got = run(session, [0, 1, 0, 1])
    for row, adapter in enumerate([None, folder]):
        wanted = peft_adapters.logits(source, adapter, TOKENS[row])
        assert apart(got[row], wanted) < EXACT
        assert (apart(got[row], got[row + 2]) > 1000 * EXACT) or adapter is None
