# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoders of text: logits and tokens are those of Hugging Face's own models and of their `generate`."""

import copy
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openai
import parity
import pytest
import selection
import tokenizers
import torch
import transformers
from checkout import ROOT
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled, emulated
from fixtures_serving import MODEL, connect, running
from fixtures_text2text import SPANS, texts
from parity import Array, Subject
from tiny_checkpoint import plain_class

import qeff_zoo
from qeff_zoo import bench, pipeline
from qeff_zoo.bench import case
from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.cli import main
from qeff_zoo.contract import TEXT2TEXT, for_task, tasks_of
from qeff_zoo.errors import ContextLengthError, GenerationError, PlanError
from qeff_zoo.export.tracing import encoder_decoder_tracing as tracing
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe, list_recipes
from qeff_zoo.runtime import Engine, Grammar, Sampling
from qeff_zoo.sessions import Text2TextSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.tasks.encoder_decoder.translation import Languages
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(3)

__all__ = ["rt"]
RECIPES = [
    for_task(recipe, TEXT2TEXT) for recipe in list_recipes() if TEXT2TEXT in tasks_of(recipe)
]
CASES = {
    f"{recipe.model_type}-{tiny.name}": (recipe, tiny) for recipe in RECIPES for tiny in recipe.tiny
}
BOS, PAD, EOS, ENGLISH, FRENCH = 0, 1, 2, 250, 251
LONGEST = 24  # tokens of a text


# --- the model, in PyTorch: where this fails, a transform or a seam is wrong, not the trace ---------


@cache
def subject(name: str) -> Subject:
    recipe, tiny = CASES[name]
    return Subject(tiny_models.config_of(recipe, tiny), recipe)


def source() -> dict[str, torch.Tensor]:
    """Return two texts, the second of which is shorter."""
    tokens, mask = texts(2, 9, 5, 1), torch.ones(2, 9, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": tokens.masked_fill(mask == 0, PAD), "attention_mask": mask}


def expected_of(model: Any, tokens: torch.Tensor) -> Array:
    with torch.no_grad():
        logits: Array = model(**source(), decoder_input_ids=tokens).logits.double().numpy()
    return logits


def steps_of(model: Any, tokens: torch.Tensor) -> list[tuple[int, int, Array]]:
    """Read texts once, and give rows their tokens; return row, position and logits of each answer."""
    states = tracing.probe(model)
    step, found, read = tracing.Step(model, states), [], source()
    made = tracing.Read(model)(list(read.values()))
    names = [state.name for state in states if not state.written]
    sizes = {"ctx_len": 24, "encoder_ctx_len": 9, "batch_size": 2}
    memory = {
        state.name: torch.zeros([sizes.get(size, size) for size in state.axes])  # type: ignore[call-overload]
        for state in states
    } | dict(zip(names, made, strict=True))
    for spans in SPANS:
        width = max(stop - start for start, stop in spans)
        ids = torch.zeros(2, width, dtype=torch.long)
        positions = torch.full((2, width), -1)
        for row, (start, stop) in enumerate(spans):
            ids[row, : stop - start] = tokens[row, start:stop]
            positions[row, : stop - start] = torch.arange(start, stop)
        past = [memory[state.name] for state in states]
        logits, *after = step(ids, positions, past, more=[read["attention_mask"]])
        memory |= dict(zip([state.name for state in states if state.written], after, strict=True))
        found += [(row, stop - 1, logits[row, 0].numpy()) for row, (_, stop) in enumerate(spans)]
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4, kept=selection.first_tinies())
def test_what_is_traced_agrees_with_hugging_face(name: str) -> None:
    of, tokens = subject(name), texts(2, 7, 5, 2)
    wanted = expected_of(of.hf, tokens)
    noise = np.abs(wanted - expected_of(of.hf64, tokens)).max()
    with torch.no_grad():
        for row, place, logits in steps_of(of.transformed, tokens):
            assert np.abs(logits - wanted[row, place]).max() <= parity.TOLERANCE["torch"] * noise


def _silent(model: Any) -> None:
    for layer in model.get_decoder().layers:
        layer.encoder_attn.out_proj.weight.zero_()


def _unplaced(model: Any) -> None:
    model.get_decoder().embed_positions.weight.zero_()


def _near(model: Any) -> None:
    (bias,) = (
        module for name, module in model.get_decoder().named_modules() if name.endswith("_bias")
    )
    bias.weight[1:] = bias.weight[:1]


def _scaled(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "relative_attention_num_buckets"):
            module.scaling = module.key_value_proj_dim**-0.5


FACTS: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "what was read": ("bart-base", _silent),
    "positions of tokens": ("bart-base", _unplaced),
    "scale of embeddings": ("bart-scaled", lambda m: setattr(m.model.decoder.embed_tokens, "embed_scale", 1.0)),
    "T5's bias by distance": ("t5-base", _near),
    "T5's scores": ("t5-base", _scaled),
}  # fmt: skip


@pytest.mark.parametrize("fact", FACTS)
def test_dropped_fact_shows(fact: str) -> None:
    name, change = FACTS[fact]
    of, tokens = subject(name), texts(2, 7, 5, 2)
    other = copy.deepcopy(of.hf)
    with torch.no_grad():
        change(other)
    wanted = expected_of(of.hf, tokens)
    noise = np.abs(wanted - expected_of(of.hf64, tokens)).max()
    moved = np.abs(expected_of(other, tokens) - wanted).max()
    assert moved > parity.DROPPED * parity.TOLERANCE["torch"] * noise


# --- packages ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of two languages, whose texts begin with their own and whose answers with theirs."""
    recipe = find_recipe("m2m_100")
    folder = tmp_path_factory.mktemp("texts") / "translator"
    tiny_models.make(recipe, recipe.tiny[0], folder)
    settings = {
        "decoder_start_token_id": EOS, "eos_token_id": EOS, "bos_token_id": BOS, "pad_token_id": PAD,
        "forced_bos_token_id": ENGLISH, "max_length": 20,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(settings))
    words = {f"w{number}": number for number in range(3, ENGLISH)}
    special = {"<s>": BOS, "<pad>": PAD, "</s>": EOS, "eng_Latn": ENGLISH, "fra_Latn": FRENCH}
    vocabulary = {**special, **words}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w3"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*special])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="eng_Latn $A </s>", special_tokens=[("eng_Latn", ENGLISH), ("</s>", EOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    return folder


@pytest.fixture(scope="module")
def session(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("store")))
        package = qeff_zoo.build(
            checkpoint, full_batch_size=2, ctx_len=32, prefill_seq_len=4, seq_lens=(8, LONGEST)
        )
        assert package.validated == "checkpoint"
        yield qeff_zoo.load(package, threads=1)


@pytest.fixture(scope="module")
def reference_output(checkpoint: Path) -> Any:
    return transformers.M2M100ForConditionalGeneration.from_pretrained(
        checkpoint, attn_implementation="eager"
    ).eval()


def generated(reference_output: Any, tokens: Sequence[int], **choices: Any) -> list[int]:
    """Return what `generate` writes of a text, without the token that it begins with."""
    given = {"num_beams": 1, "do_sample": False, **choices}
    with torch.no_grad():
        found: list[int] = reference_output.generate(torch.tensor([tokens]), **given)[
            0, 1:
        ].tolist()
    return found


TEXTS = ["w7 w9 w11", "w30", "w5 w6 w7 w8 w9 w10 w5 w6 w7 w8 w9 w10", "w40 w41 w40 w41 w42"]
REQUESTED: Mapping[str, dict[str, Any]] = {
    "as the checkpoint says": {},
    "another language": {"forced_bos_token_id": FRENCH},
    "no language": {"forced_bos_token_id": None},
    "few tokens, the last of which ends": {"max_length": 7, "forced_eos_token_id": EOS},
    "no stretch twice": {"no_repeat_ngram_size": 2},
    "no stretch of the text": {"encoder_no_repeat_ngram_size": 1},
    "a penalty": {"repetition_penalty": 1.7},
    "no short answer": {"min_length": 9, "eos_token_id": [EOS, 17, 60, 61, 62, 63]},
}


@pytest.mark.parametrize("asked", REQUESTED)
@pytest.mark.sampled(3)
def test_tokens_are_those_of_generate(
    asked: str, session: Text2TextSession, reference_output: Any, monkeypatch: Any
) -> None:
    """Four texts share two rows, so that some join while others go on."""
    settings = (
        json.loads((session.folder / "generation_config.json").read_text()) | REQUESTED[asked]
    )
    monkeypatch.setattr(session, "settings", (changed := GenerationSettings.of(settings)))
    monkeypatch.setattr(session, "eos_token_ids", frozenset(changed.eos_token_id))
    other = copy.deepcopy(reference_output)
    other.generation_config = transformers.GenerationConfig(**settings)
    found = session.generate(TEXTS)
    for text, one in zip(TEXTS, found, strict=True):
        assert one.token_ids == generated(other, session.encode(text)), text
        assert one.prompt == text
    assert session.metrics is not None
    assert session.metrics.prompt_tokens == sum(len(session.encode(text)) for text in TEXTS)


def test_cards_write_what_generate_does(
    session: Text2TextSession,
    checkpoint: Path,
    reference_output: Any,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    """Four texts share two slots; each sees what was read of its own, whatever the rest of the row had."""
    monkeypatch.setenv("QEFF_HOME", str(session.folder.parents[3]))
    sizes = {"full_batch_size": 2, "ctx_len": 32, "prefill_seq_len": 4, "seq_lens": (8, LONGEST)}
    request = Request(target="qaic", **sizes)
    folder = pipeline.prepare(str(checkpoint), tmp_path / "prepared", request=request)
    decoder, encoder = emulated(folder)["programs"]
    names = [state["name"] for state in decoder["states"] if state["kind"] == "cross"]
    assert [output["name"] for output in encoder["outputs"]] == names
    assert decoder["ways"]["states"] == {"growing": len(names), "cross": len(names)}
    on_cards = open_session(adopt(folder, compiled(folder, tmp_path), Store(tmp_path)))
    assert isinstance(on_cards, Text2TextSession)
    for text, one in zip(TEXTS, on_cards.generate(TEXTS), strict=True):
        assert one.token_ids == generated(reference_output, session.encode(text)), text


def test_languages_are_given_by_code_or_name(
    session: Text2TextSession, reference_output: Any
) -> None:
    settings = session.generate(TEXTS[:1], language="fra", source_language="fra_Latn")[0]
    tokens = [FRENCH, 7, 9, 11, EOS]
    assert settings.token_ids == generated(reference_output, tokens, forced_bos_token_id=FRENCH)
    assert settings.token_ids != session.generate(TEXTS[:1])[0].token_ids
    m2m = Languages.read({"__fr__": 5, "__de__": 6})
    assert m2m.write_to([9], "French") == ([9], 5)
    mbart = Languages.read({"fr_XX": 5, "en_XX": 6})
    assert mbart.read_from([6, 9], "fr") == [5, 9]
    marian = Languages.read({">>fra<<": 5})
    assert marian.write_to([9], "fra") == ([5, 9], None)
    with pytest.raises(GenerationError, match="no token for theirs"):
        m2m.read_from([9], "fr")
    with pytest.raises(
        GenerationError, match="'de' is not known to this model; expected one of en_XX, fr_XX"
    ):
        mbart.write_to([9], "de")


def test_an_engine_streams_and_cancels(session: Text2TextSession) -> None:
    (wanted,) = session.generate(TEXTS[:1])
    with Engine(session) as engine:
        handles = [engine.submit(session.request(text)) for text in TEXTS]
        handles[1].cancel()
        assert "".join(delta.text for delta in handles[0]) == wanted.text
        assert handles[1].result(60).finish_reason == "cancelled"
        assert handles[3].result(60).prompt == TEXTS[3]


def test_a_row_that_was_lost_reads_its_text_again(session: Text2TextSession) -> None:
    """Two clients; the second takes a row from the first, which has both."""
    requests = [session.request(text) for text in TEXTS]
    alone = [session.generate([request])[0].token_ids for request in requests]
    answers = [session.answer(request) for request in requests]
    with session.exclusively() as scheduler:
        scheduler.submit(*answers[:2])
        for _ in range(3):
            scheduler.step()
        scheduler.submit(*answers[2:])
        while scheduler.step():
            pass
    assert [answer.token_ids for answer in answers] == alone


def test_drawn_tokens_repeat_with_a_seed(session: Text2TextSession) -> None:
    draw = Sampling(temperature=1.0, seed=3)
    one, same = (session.generate(TEXTS, sampling=draw) for _ in range(2))
    assert one == same
    assert one[0].token_ids[0] == ENGLISH


REFUSED: Mapping[str, tuple[Any, dict[str, Any], str]] = {
    "a text that is too long": ("w5 " * LONGEST, {}, f"expected at most {LONGEST}"),
    "tokens of another model": ([300], {}, "Token id 300 is not of this model"),
    "no tokens": ([], {}, "cannot be read"),
    "a language that it does not know": ("w5", {"language": "xx"}, "one of eng_Latn, fra_Latn"),
    "a form of the answer": ("w5", {"grammar": Grammar.choice(["a"])}, "does not apply"),
    "a chat": ("w5", {"chat": True}, "no chat template"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str, session: Text2TextSession) -> None:
    prompt, choices, message = REFUSED[what]
    kind = ContextLengthError if "long" in what else GenerationError
    with pytest.raises(kind, match=message):
        session.generate([prompt], **choices)


def test_without_a_begin_token(session: Text2TextSession, monkeypatch: Any) -> None:
    monkeypatch.setattr(session, "_published", {"eos_token_id": EOS})
    with pytest.raises(GenerationError, match="no decoder_start_token_id"):
        session._first_token()


# --- the command line, the server, the plan ----------------------------------------------------------


def test_the_command_translates(session: Text2TextSession, capsys: Any) -> None:
    (wanted,) = session.generate(TEXTS[:1], language="fra_Latn")
    command = f"run {session.folder} --prompt '{TEXTS[0]}' --language fra_Latn --source-language eng --json"
    assert main(shlex.split(command)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["outputs"][0]["token_ids"] == wanted.token_ids
    assert main(shlex.split(f"run {session.folder} --image a.png")) == 1
    assert "--image does not apply to text2text-generation" in capsys.readouterr().err


def test_the_server_completes(session: Text2TextSession) -> None:
    (wanted,) = session.generate(TEXTS[:1], language="fra_Latn")
    with Engine(session) as engine, running(engine) as url:
        client = connect(url)
        requested: dict[str, Any] = {"model": MODEL, "max_tokens": 19, "temperature": 0}
        french = {"language": "fra_Latn"}
        answer = client.completions.create(prompt=TEXTS[0], extra_body=french, **requested)
        assert answer.choices[0].text == wanted.text
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 5
        deltas = client.completions.create(
            prompt=TEXTS[0], extra_body=french, stream=True, **requested
        )
        assert "".join(delta.choices[0].text for delta in deltas) == wanted.text
        with pytest.raises(openai.BadRequestError, match="expected one of eng_Latn"):
            client.completions.create(prompt="w5", extra_body={"language": "xx"}, **requested)
        with pytest.raises(openai.BadRequestError, match=f"expected at most {LONGEST}"):
            client.completions.create(prompt="w5 " * LONGEST, **requested)
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "w5"}]
            )


def test_bench_measures_reading_and_writing(session: Text2TextSession) -> None:
    package = qeff_zoo.find_package(str(session.folder))
    (one, both) = bench.plan(package, generation_len=5)
    assert (one.prompt_len, both.batch_size) == (LONGEST, 2)
    with pytest.raises(GenerationError, match=f"expected at most {LONGEST}, by seq_lens"):
        bench.plan(package, prompt_lens=[LONGEST + 1])
    figures = case.measure(package, replace(both, threads=1), 1)
    assert min(figures.ttft_s, figures.prefill_tokens_per_s, figures.decode_tokens_per_s or 0) > 0


def test_choices_that_mean_nothing_here_are_refused(checkpoint: Path) -> None:
    requested = Request(num_speculative_tokens=(3,), prefill_only=True, seq_lens=(2000,))
    with pytest.raises(PlanError) as caught:
        pipeline.make_plan(str(checkpoint), requested)
    for output in (
        "--seq-lens has 2000",
        "--num-speculative-tokens is for",
        "--prefill-only is for",
    ):
        assert output in str(caught.value)


@pytest.mark.full
def test_integers_agree_with_rounded_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "store"))
    recipe = find_recipe("bart")
    made = tiny_models.make(recipe, recipe.tiny[1], tmp_path / "bart")
    package = qeff_zoo.build(
        made, weights="int8", block_size=32, batch_size=2, ctx_len=24, prefill_seq_len=4, seq_lens=[LONGEST]
    )  # fmt: skip
    assert (package.validated, package.task) == ("checkpoint", TEXT2TEXT)


def test_the_guides_snippet_runs(
    session: Text2TextSession, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """With a package that is there already."""
    guide = (ROOT / "docs" / "text2text.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    monkeypatch.setattr(qeff_zoo, "build", lambda _: qeff_zoo.find_package(str(session.folder)))
    exec(snippet, {})
    wanted = session.generate(["Good morning"], language="fra_Latn")[0].text
    assert f"Good morning -> {wanted}\n" in capsys.readouterr().out
