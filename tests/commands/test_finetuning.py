# SPDX-License-Identifier: Apache-2.0
"""Training on the small Llama: an adapter that helps, runs that go on as if they had not stopped, and refusals."""

import importlib
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures_finetuning import CHATS, HALF, LLAMA, STEPS, chat, chats, choices, run, trained, write
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import PlanError, TrainingError, UnsupportedModelError
from qeff_zoo.finetuning import models, rows
from qeff_zoo.finetuning.config import Config
from qeff_zoo.finetuning.config_files import as_yaml, read
from qeff_zoo.finetuning.finetune import Finetuned, finetune
from qeff_zoo.finetuning.run_folder import RunFolder
from qeff_zoo.finetuning.tokens import Reader

__all__ = ["chats", "run"]


pytestmark = pytest.mark.together("finetuning")


def loss_on(model: torch.nn.Module, found: list[dict[str, Any]]) -> float:
    """Compute the loss of the answers of chats by transformers alone, a chat at a time."""
    tokenizer = AutoTokenizer.from_pretrained(LLAMA)
    total, tokens = 0.0, 0
    for row in found:
        whole = tokenizer.apply_chat_template(row["messages"], return_dict=True)["input_ids"]
        given = tokenizer.apply_chat_template(
            row["messages"][:-1], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
        learnt = range(len(given), len(whole))
        total -= sum(float(logits[at - 1, whole[at]]) for at in learnt)
        tokens += len(learnt)
    return total / tokens


def test_chats_in_the_form_of_sharegpt(tmp_path: Path) -> None:
    """Also in another column; what is learnt is what the same chats teach in the usual form."""
    names = {"user": "human", "assistant": "gpt"}
    shared = [
        {
            "conversations": [
                {"from": names[message["role"]], "value": message["content"]}
                for message in row["messages"]
            ]
        }
        for row in CHATS
    ]
    tokenizer = AutoTokenizer.from_pretrained(LLAMA)
    digests = set()
    for name, found in (("usual", CHATS), ("shared", shared)):
        config = choices(write(tmp_path / f"{name}.jsonl", found), tmp_path / "run")
        source = rows.load(config, tmp_path / f"{name}-cache").train
        digests.add(Reader(config, tokenizer).write(source, tmp_path / name / "rows.arrow").digest)
    assert len(digests) == 1

    wrong = [{"messages": [{"speaker": "a", "text": "b"}]}] * 4
    config = choices(write(tmp_path / "wrong.jsonl", wrong), tmp_path / "run")
    source = rows.load(config, tmp_path / "wrong-cache").train
    with pytest.raises(TrainingError, match=r"a message has 'speaker', 'text', and neither 'role'"):
        Reader(config, tokenizer).write(source, tmp_path / "wrong" / "rows.arrow")


def test_a_file_without_rows(tmp_path: Path) -> None:
    config = choices(write(tmp_path / "empty.jsonl", []), tmp_path / "run")
    with pytest.raises(TrainingError, match=r"empty.jsonl' has no rows. Expected a json file"):
        rows.load(config, tmp_path / "cache")


def test_the_whole_way(
    run: Finetuned, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a trained adapter to answers: merged into a package, or loaded into one, it says what it does with peft."""
    requested = "What is thing 7?"
    tokenizer = AutoTokenizer.from_pretrained(LLAMA)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": requested}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    base = AutoModelForCausalLM.from_pretrained(LLAMA, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, run.path).eval()
    output = adapted.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[
        0, len(ids) :
    ]
    expected = tokenizer.decode(output, skip_special_tokens=True)

    argv = ["--ctx-len", "256", "--no-validate", "-q", "-o", str(tmp_path / "package")]
    assert cli.main(["build", str(LLAMA), "--adapter", str(run.path), *argv]) == 0
    argv = ["--chat", "--prompt", requested, "--generation-len", "16", "--json"]
    capsys.readouterr()
    assert cli.main(["run", str(tmp_path / "package"), *argv]) == 0
    (merged,) = json.loads(capsys.readouterr().out)["outputs"]

    package = qeff_zoo.build(LLAMA, ctx_len=256, max_loras=1, max_lora_rank=8, validate=False)
    session = qeff_zoo.load(package)
    session.adapters.load("trained", run.path)
    loaded, plain = (
        session.generate([requested], adapter=name, chat=True, generation_len=16)[0]
        for name in ("trained", None)
    )
    assert merged["text"] == loaded.text == expected != plain.text
    assert merged["token_ids"] == list(loaded.token_ids)


# --- what comes of a run -------------------------------------------------------------------------


def test_the_adapter_improves_the_loss_by_the_recorded_amount(run: Finetuned) -> None:
    held_out = rows.load(choices(str(_data(run)), run.folder), run.folder / "scratch").validation
    assert held_out is not None
    texts = [row for _, row in held_out]
    base = AutoModelForCausalLM.from_pretrained(LLAMA, dtype=torch.float32)
    assert loss_on(base, texts) == pytest.approx(run.first["eval_loss"], rel=1e-5)
    adapted = PeftModel.from_pretrained(base, run.path).eval()
    assert loss_on(adapted, texts) == pytest.approx(run.last["eval_loss"], rel=1e-5)
    assert run.last["eval_perplexity"] < run.first["eval_perplexity"] / 3


def _data(run: Finetuned) -> str:
    return str(json.loads((run.folder / "run.json").read_text())["config"]["data"])


def test_the_merged_model_computes_what_the_adapter_does(run: Finetuned) -> None:
    assert run.merged is not None
    base = AutoModelForCausalLM.from_pretrained(LLAMA, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, run.path).eval()
    merged = AutoModelForCausalLM.from_pretrained(run.merged, dtype=torch.float32)
    ids = torch.arange(8, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, atol=1e-4, rtol=1e-4)


def test_the_folder_records_its_origin(run: Finetuned) -> None:
    found = json.loads((run.folder / "run.json").read_text())
    assert found["model"]["weights"].startswith("sha256:")
    assert next(iter(found["data"]["files"].values())).startswith("sha256:")
    assert found["data"]["train"]["rows"] == 32
    assert found["config"]["seed"] == 42
    assert found["versions"]["trl"]
    assert found["result"]["steps"] == STEPS
    assert read(run.folder / "config.yaml", {}) == Config(
        **{**found["config"], "target_modules": ("all-linear",)}
    )
    names = {path.name for path in run.path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not [path for path in run.path.iterdir() if path.suffix in (".bin", ".pt", ".pth")]
    assert not (run.folder / ".tokens").exists()


def test_all_weights_are_trained_without_an_adapter_and_nothing_is_reported(
    chats: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = list[Any]()
    monkeypatch.delenv("CI", raising=False)  # where trl reports nothing
    monkeypatch.setattr(
        "trl.trainer.base_trainer.send_telemetry", lambda **report: reports.append(report)
    )
    config = choices(
        chats, tmp_path / "run", use_peft=False, max_steps=2, learning_rate=1e-3, save_strategy="no"
    )
    found = trained(config)
    assert found.last["eval_loss"] < found.first["eval_loss"]
    model = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.float32)
    assert loss_on(model, CHATS) < loss_on(AutoModelForCausalLM.from_pretrained(LLAMA), CHATS)
    assert not reports


def test_the_command_prints_the_adapter(
    chats: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(choices(chats, tmp_path / "run", save_strategy="no")))
    argv = ["finetune", str(file), "--max-steps", "1", "--packing", "--eval-strategy", "no"]
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(tmp_path / "run" / "adapter")
    assert "1 steps" in err


# --- what is learnt of a row ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Return what is learnt of rows, as text."""
    from datasets import Dataset

    from qeff_zoo.finetuning.tokens import Reader

    tokenizer = AutoTokenizer.from_pretrained(LLAMA)
    folder = tmp_path_factory.mktemp("tokens")

    def texts(found: list[dict[str, Any]], template: str | None = None, **others: Any) -> list[str]:
        config = choices("rows", folder, **others)
        table = Dataset.from_list(found)
        using = tokenizer
        if template:
            using = AutoTokenizer.from_pretrained(LLAMA)
            using.chat_template = template
        reader = Reader(config, using)
        counts = reader.write(rows.Rows("rows", table, range(len(table))), folder / "rows.arrow")
        read = Dataset.from_file(str(folder / "rows.arrow"))
        texts.counts = counts  # type: ignore[attr-defined]
        return [using.decode([label for label in row["labels"] if label >= 0]) for row in read]

    return texts


def test_answers_alone_are_learnt(learnt: Callable[..., list[str]]) -> None:
    end = "<|end_of_turn|>"
    assert learnt([chat("Hello?", "First.", "And?", "Second.")]) == [f"First.{end}Second.{end}"]
    pair = {"prompt": "Two and two is ", "completion": "four."}
    assert learnt([pair]) == ["four.<|end|>"]
    assert learnt([pair], completion_only_loss=False) == ["<|begin|>Two and two is four.<|end|>"]
    assert learnt([{"text": "All of it."}]) == ["All of it.<|end|>"]
    answer = [{"role": "assistant", "content": "this"}]
    parts = {"prompt": chat("Hi", "not this", "So?")["messages"], "completion": answer}
    assert learnt([parts]) == [f"this{end}"]


def test_a_template_that_writes_earlier_answers_otherwise_gives_an_example_each(
    learnt: Callable[..., list[str]],
) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}{% else %}A:{% if loop.last %}(hm){% endif %}"
        "{{ m.content }};{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    found = learnt([chat("Hello?", "First.", "And?", "Second.")], template)
    assert found == ["(hm)First.;", "(hm)Second.;"]
    changing = "{% for m in messages %}{{ messages|length }}{{ m.content }}{% endfor %}"
    with pytest.raises(TrainingError, match=r"row 1 .* writes a prompt in another way"):
        learnt([chat("Hello?", "First.")], changing)


def test_known_data_sets_have_their_prompts(learnt: Callable[..., list[str]]) -> None:
    alpaca = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Say hello.", "input": "", "output": "Hello"},
    ]
    assert learnt(alpaca, data_format="alpaca", max_length=256) == ["3<|end|>", "Hello<|end|>"]
    prompts = learnt(alpaca, data_format="alpaca", max_length=256, completion_only_loss=False)
    assert ["### Input:\n1 and 2\n\n### Response:" in prompt for prompt in prompts] == [True, False]
    grammar = [{"input": "He go.", "target": "He goes."}]
    assert learnt(grammar, data_format="grammar") == ["He goes.<|end|>"]
    gsm8k = [{"question": "How many?", "answer": "It is <<20+30=50>>50.\n#### 50"}]
    (found,) = learnt(gsm8k, data_format="gsm8k", max_length=512)
    assert found == "It is <<20+30=50.\n#### 50<|end|>"
    own = {"prompt_template": "Q: {q}\n", "completion_template": "{a}"}
    assert learnt([{"q": "Why?", "a": "So."}], **own) == ["So.<|end|>"]


def test_rows_that_are_too_long_are_counted(learnt: Callable[..., list[str]]) -> None:
    long = [
        {"prompt": "word " * 60, "completion": "never"},
        {"prompt": "Say ", "completion": "word " * 60},
        {"prompt": "Say ", "completion": "it"},
    ]
    found = learnt(long, max_length=24)
    counts = learnt.counts  # type: ignore[attr-defined]
    assert (counts.rows, counts.examples, counts.cut, counts.dropped) == (3, 2, 2, 1)
    assert len(found) == 2
    with pytest.raises(TrainingError, match=r"Nothing is learnt .* Raise --max-length"):
        learnt(long[:1], max_length=24)


# --- going on ------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_same_to_the_bit(run: Finetuned, chats: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    shutil.rmtree(folder / "adapter")
    (folder / f"checkpoint-{STEPS}" / "optimizer.pt").unlink()
    config = choices(chats, folder)
    assert [path.name for path in RunFolder(folder).checkpoints()] == [f"checkpoint-{HALF}"]
    found = trained(config, "last")
    for name in ("adapter_model.safetensors",):
        assert (found.path / name).read_bytes() == (run.path / name).read_bytes()
    assert (folder / "log.jsonl").read_text() == (run.folder / "log.jsonl").read_text()


def test_a_run_killed_at_its_end_or_its_beginning_is_the_same_too(
    run: Finetuned, chats: str, tmp_path: Path
) -> None:
    weights = "adapter_model.safetensors"
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    shutil.rmtree(folder / "adapter")
    found = trained(choices(chats, folder), "last")
    assert found.steps == STEPS
    assert (found.path / weights).read_bytes() == (run.path / weights).read_bytes()
    assert (folder / "log.jsonl").read_text() == (run.folder / "log.jsonl").read_text()

    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / ".tokens").mkdir()
    (folder / f"checkpoint-{HALF}").mkdir()
    made_by = json.loads((run.folder / "run.json").read_text())
    del made_by["result"]
    (folder / "run.json").write_text(json.dumps(made_by))
    found = trained(choices(chats, folder))
    assert (found.path / weights).read_bytes() == (run.path / weights).read_bytes()


def test_only_what_made_a_run_resumes_it(run: Finetuned, chats: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    with pytest.raises(TrainingError, match=r"learning_rate was 0\.003 and is 0\.1"):
        finetune(choices(chats, folder, learning_rate=0.1), resume="last")
    other = write(tmp_path / "chats.jsonl", CHATS[::-1])
    with pytest.raises(TrainingError, match="Cannot resume"):
        finetune(choices(other, folder), resume="last")
    with pytest.raises(TrainingError, match=r"'checkpoint-9' .* is not there\. .* checkpoint-3"):
        finetune(choices(chats, folder), resume="checkpoint-9")
    with pytest.raises(TrainingError, match=r"not empty; its last checkpoint is 'checkpoint-6'"):
        finetune(choices(chats, folder))


def test_the_oldest_checkpoints_go_first(chats: str, tmp_path: Path) -> None:
    config = choices(chats, tmp_path / "run", save_steps=1, save_total_limit=2, max_steps=3)
    found = trained(config)
    names = [path.name for path in RunFolder(found.folder).checkpoints()]
    assert names == ["checkpoint-2", "checkpoint-3"]
    assert not (found.folder / "checkpoint-1").exists()


def in_a_fork(work: Callable[[], object]) -> int:
    """Run something in a copy of this process; return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        code = 70
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("peft.peft_model", "safe_save_file"),
        ("torch", "save"),
        ("qeff_zoo.finetuning.run_folder", "write_durably"),
    ],
)
@pytest.mark.sampled(3)
def test_a_run_killed_while_it_writes_a_checkpoint_goes_on_from_the_one_before(
    module: str, function: str, run: Finetuned, chats: str, tmp_path: Path
) -> None:
    config = choices(chats, tmp_path / "run")
    where = importlib.import_module(module)
    save = getattr(where, function)

    def half(*given: Any, **facts: Any) -> None:
        """Write half of a file of the second checkpoint, and die."""
        path = next(one for one in given if isinstance(one, str | Path))
        save(*given, **facts)
        if f"checkpoint-{STEPS}/" in str(path):
            os.truncate(path, Path(path).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        setattr(where, function, half)
        finetune(config)

    assert in_a_fork(work) == -signal.SIGKILL
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in folder.checkpoints()] == [f"checkpoint-{HALF}"]
    assert folder.checkpoint(STEPS).exists()
    found = trained(config, "last")
    weights = "adapter_model.safetensors"
    assert (found.path / weights).read_bytes() == (run.path / weights).read_bytes()


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Let no file get longer than some bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("most", [100_000, 500_000])
def test_a_full_disk_leaves_the_checkpoint_before(
    most: int,
    chats: str,
    tmp_path: Path,
    small_files: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complete = RunFolder.complete

    def then_full(folder: RunFolder, *arguments: Any) -> None:
        complete(folder, *arguments)
        small_files(most)

    monkeypatch.setattr(RunFolder, "complete", then_full)
    with pytest.raises(
        TrainingError, match=r"Cannot write the checkpoint of step 6 .* 'checkpoint-3' is whole"
    ):
        finetune(choices(chats, tmp_path / "run"))
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in folder.checkpoints()] == ["checkpoint-3"]
    assert not folder.checkpoint(6).exists()


def test_a_full_disk_before_training_leaves_nothing(
    chats: str, tmp_path: Path, small_files: Callable[[int], None]
) -> None:
    small_files(1000)
    with pytest.raises(TrainingError, match=r"Cannot (write into|read) "):
        finetune(choices(chats, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[tuple[float, float]]]:
    """Train two steps on all rows of a file, each a batch in itself; return losses and norms of the gradient."""
    folder = tmp_path_factory.mktemp("alike")
    rows = [
        {"text": f"Number {number} is for {'x ' * (number % 7 + 1)}things."} for number in range(24)
    ]
    data = write(folder / "texts.jsonl", rows)

    def figures(name: str, **others: Any) -> list[tuple[float, float]]:
        facts = {
            "lora_dropout": 0,
            "warmup_ratio": 0,
            "eval_strategy": "no",
            "save_strategy": "no",
            "max_steps": 2,
        }
        config = choices(
            data,
            folder / name,
            **{**facts, "split_ratio": 1, "per_device_train_batch_size": 24, **others},
        )
        return [
            (entry["loss"], entry["grad_norm"])
            for entry in RunFolder(trained(config).folder).entries()
        ]

    return figures


@pytest.fixture(scope="module")
def plain(alike: Callable[..., list[tuple[float, float]]]) -> list[tuple[float, float]]:
    return alike("plain")


@pytest.mark.parametrize(
    "others",
    [
        {"gradient_checkpointing": True},
        {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 6},
        {"packing": True},
        {"group_by_length": True},
    ],
    ids=lambda others: next(iter(others)),
)
@pytest.mark.sampled(2)
def test_how_a_step_is_computed_does_not_change_it(
    others: dict[str, Any],
    alike: Callable[..., list[tuple[float, float]]],
    plain: list[tuple[float, float]],
    tmp_path: Path,
) -> None:
    found = alike(f"other-{tmp_path.name}", **others)
    assert found == [pytest.approx(entry, rel=1e-4) for entry in plain]


# --- refusals, before anything expensive ---------------------------------------------------------


@pytest.fixture
def refused(chats: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return the error of a run that is refused; no model may be loaded before it."""

    def never(*_: Any, **__: Any) -> None:
        pytest.fail("a model was loaded")

    def message(*, loads: bool = False, **others: Any) -> str:
        if not loads:
            monkeypatch.setattr(models, "load", never)
        with pytest.raises((TrainingError, PlanError, UnsupportedModelError)) as caught:
            finetune(choices(others.pop("data", chats), tmp_path / "run", **others))
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    return message


def test_data_that_will_not_do_are_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "There is no file 'gone.jsonl'" in refused(data="gone.jsonl")
    assert "expected the name to end in .json" in refused(data=str(LLAMA / "README.md"))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "fine"}\n{"text": \n')
    assert "Cannot read" in refused(data=str(broken))
    other = write(tmp_path / "other.jsonl", [{"question": "?", "reply": "!"}] * 4)
    assert "Cannot find training texts in" in refused(data=other)
    assert "no column 'answer': it has 'question', 'reply'" in refused(
        data=other, data_format="gsm8k"
    )
    assert "no column 'body'" in refused(data=other, text_column="body")
    empty = write(tmp_path / "one.jsonl", [{"text": "alone"}])
    assert "none is left for validation" in refused(data=empty)
    wrong = write(tmp_path / "wrong.jsonl", [{"text": "a"}, {"text": None}])
    assert "row 2" in refused(data=wrong, eval_strategy="no", split_ratio=1)
    silent = write(tmp_path / "silent.jsonl", [chat("Only a question?")] * 4)
    assert "no message with role 'assistant'" in refused(data=silent)


def test_models_and_choices_that_will_not_do_are_refused(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "reads 1024 tokens" in refused(max_length=4096)
    quantized = tmp_path / "quantized"
    shutil.copytree(LLAMA, quantized)
    config = json.loads((LLAMA / "config.json").read_text())
    (quantized / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "gptq"}})
    )
    assert "is quantized, with 'gptq'" in refused(model_name=str(quantized))
    assert "there is no torch_qaic here" in refused(device="qaic")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no GPU" in refused(device="cuda")
    assert "Cannot train in 'float16' on the CPU" in refused(autocast="float16")
    assert "There is no adapter in" in refused(from_peft_checkpoint=str(tmp_path))


def test_adapters_that_do_not_fit_are_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    found = refused(loads=True, target_modules="q_proj,nonsense")
    assert "no module is called 'nonsense'" in found
    assert "linear layers: down_proj, gate_proj, k_proj" in found
    assert "output matrix" in refused(loads=True, target_modules="lm_head")


def test_adapters_of_another_model_are_refused(
    run: Finetuned, refused: Callable[..., str], tmp_path: Path
) -> None:
    weights = "adapter_model.safetensors"
    for name, change in (
        ("wider", lambda key, value: (key, torch.cat((value, value), -1))),
        ("renamed", lambda key, value: (key.replace(".layers.", ".blocks."), value)),
    ):
        adapter = tmp_path / name
        shutil.copytree(run.path, adapter)
        changed = dict(change(key, value) for key, value in load_file(run.path / weights).items())
        save_file(changed, adapter / weights)
        found = refused(loads=True, from_peft_checkpoint=str(adapter))
        assert f"The adapter {str(adapter)!r} does not fit" in found


def test_an_adapter_names_the_model_of_the_hub(run: Finetuned, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(run.path, adapter)
    of_hub = replace(open_checkpoint(str(LLAMA)), model_id="org/name")
    models.name_base(adapter, of_hub)
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/name"
    assert "base_model: org/name" in (adapter / "README.md").read_text()
    assert str(LLAMA) not in (adapter / "README.md").read_text()


def test_a_loss_that_is_no_number_ends_the_run(chats: str, tmp_path: Path) -> None:
    config = choices(
        chats,
        tmp_path / "run",
        learning_rate=1e30,
        warmup_ratio=0,
        max_grad_norm=1e30,
        save_steps=1,
    )
    with pytest.raises(TrainingError, match=r"The loss of step \d is (nan|inf)"):
        finetune(config)


# --- configurations ------------------------------------------------------------------------------


def test_aliases_of_a_configuration_are_refused(tmp_path: Path) -> None:
    """Nine lists, each of nine aliases of the one before, are 387 million values."""
    file = tmp_path / "config.yaml"
    lists = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    file.write_text("\n".join(["a0: &a0 [lol]", *lists]))
    with pytest.raises(PlanError, match="has the alias '\\*a0' in line 2"):
        read(file, {})


def test_sections_of_qefficient_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("""
model:
  model_type: hf
  auto_class_name: AutoModelForCausalLM
  model_name: org/name
  use_peft: true
  peft_config: {lora_r: 16, lora_alpha: 32, target_modules: [q_proj, v_proj], task_type: CAUSAL_LM, use_rslora: true}
dataset:
  dataset_type: sft_dataset
  dataset_name: alpaca
  json_file_path: alpaca.json
  max_seq_length: 256
training:
  type: sft
  output_dir: run
  fp16: false
  torch_compile: False
  ddp_config: {ddp_backend: gloo, ddp_timeout: 60}
optimizers: {optimizer_name: AdamW, lr: 1e-4}
scheduler: {scheduler_name: cosine}
callbacks:
  early_stopping: {early_stopping_patience: 3, early_stopping_threshold: 0.001}
  tensorboard:
""")
    found = read(file, {"max_steps": "7"})
    assert (found.lora_r, found.target_modules) == (16, ("q_proj", "v_proj"))
    assert found.peft_options == {"use_rslora": True}
    assert (found.data_format, found.data, found.max_length) == ("alpaca", "alpaca.json", 256)
    assert (found.learning_rate, found.optim, found.max_steps) == (1e-4, "adamw_torch", 7)
    assert (found.early_stopping_patience, found.tensorboard, found.ddp_timeout) == (3, True, 60)
    again = tmp_path / "again.yaml"
    again.write_text(as_yaml(found))
    assert read(again, {}) == found


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("training: {type: dpo, learning_rat: 1, num_train_epochs: many}\n")
    with pytest.raises(PlanError) as caught:
        read(file, {"lora_r": "eight"})
    message = str(caught.value)
    assert "type is 'dpo'; expected 'sft'" in message
    assert "Did you mean 'learning_rate'?" in message
    assert "num_train_epochs is 'many'; expected a number" in message
    assert "lora_r is 'eight'; expected a whole number" in message
    with pytest.raises(PlanError) as caught:
        read(None, {"lora_r": 0, "early_stopping_patience": 1, "eval_strategy": "no", "gamma": -1})
    message = str(caught.value)
    for part in ("no model_name", "no data", "lora_r is 0", "gamma is -1", "a validation loss"):
        assert part in message
    file.write_text("- a list\n")
    with pytest.raises(PlanError, match="holds list; expected sections"):
        read(file, {})


def test_a_function_of_the_users_gives_rows(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def rows(split):\n    return [{'text': f'{split} {n}'} for n in range(4)]\n")
    config = choices(f"{file}:rows", tmp_path / "run", validation_data=f"{file}:rows")
    found = rows.load(config, tmp_path / "scratch")
    assert found.validation is not None
    assert [row["text"] for _, row in found.validation][:2] == ["validation 0", "validation 1"]
    assert len(found.train.chosen) == 4
    with pytest.raises(TrainingError, match="has no function 'gone'"):
        rows.load(choices(f"{file}:gone", tmp_path / "run"), tmp_path / "scratch")


@pytest.mark.parametrize("suffix", ["json", "csv", "tsv", "parquet"])
def test_every_kind_of_file_is_read(suffix: str, tmp_path: Path) -> None:
    from datasets import Dataset

    found = [{"prompt": f"p{number}", "completion": f"c{number}"} for number in range(5)]
    table, path = Dataset.from_list(found), tmp_path / f"rows.{suffix}"
    if suffix == "json":
        path.write_text(json.dumps(found))
    elif suffix == "parquet":
        table.to_pandas().to_parquet(path)
    else:
        table.to_pandas().to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    loaded = rows.load(choices(str(path), tmp_path / "run", split_ratio=0.6), tmp_path / "scratch")
    assert loaded.validation is not None
    numbers = sorted([*loaded.train.chosen, *loaded.validation.chosen])
    assert numbers == [0, 1, 2, 3, 4]
    assert len(loaded.train.chosen) == 3
    assert dict(loaded.train)[loaded.train.chosen[0]] == found[loaded.train.chosen[0]]
