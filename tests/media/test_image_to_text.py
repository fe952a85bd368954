# SPDX-License-Identifier: Apache-2.0
"""What is written of images by cross-attention: logits and tokens are those of Hugging Face's and of `generate`."""

import base64
import copy
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import parity
import pytest
import selection
import tokenizers
import torch
import transformers
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled
from fixtures_serving import chat, complete, connect, figures, running
from fixtures_text2text import SPANS, texts
from parity import Array, Subject
from PIL import Image
from tiny_checkpoint import plain_class

import qeff_zoo
from qeff_zoo import bench, pipeline
from qeff_zoo.bench import case as bench_case
from qeff_zoo.checkpoint.generation_settings import GenerationSettings, effective_of
from qeff_zoo.cli import main
from qeff_zoo.contract import IMAGE_TO_TEXT, find
from qeff_zoo.errors import GenerationError, MediaError, PlanError
from qeff_zoo.export.tracing import encoder_decoder_tracing as tracing
from qeff_zoo.pipeline import checks, make_plan
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe, list_recipes
from qeff_zoo.runtime import Engine, Grammar
from qeff_zoo.sessions import ImageToTextSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.validation import ladder, tiny_models
from qeff_zoo.validation.trial.sample_images import draw

pytestmark = pytest.mark.turns(3)

__all__ = ["rt"]
PAIRED = find_recipe("vision-encoder-decoder")
VIT, TROCR = (PAIRED.tiny[0].config[half] for half in ("encoder", "decoder"))
_SHORT = {"num_hidden_layers": 2, "initializer_range": 0.2}
_TEXT = {
    **_SHORT, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64,
    "vocab_size": 257, "is_decoder": True, "add_cross_attention": True, "pad_token_id": 1,
}  # fmt: skip
_SWIN = {
    "model_type": "swin", "image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4],
    "window_size": 4, "initializer_range": 0.2,
}  # fmt: skip
#: The other models that a checkpoint may be made of, each once.
PAIRS: Mapping[str, dict[str, Any]] = {
    "deit-bert": {"encoder": {**VIT, "model_type": "deit"}, "decoder": {**_TEXT, "model_type": "bert"}},
    "beit-bart": {
        "encoder": {**VIT, "model_type": "beit", "use_relative_position_bias": True},
        "decoder": {**PAIRED.tiny[1].config["decoder"], "model_type": "bart"},
    },
    "swin-roberta": {"encoder": _SWIN, "decoder": {**_TEXT, "model_type": "roberta"}},
    "vit-xlm-roberta": {"encoder": VIT, "decoder": {**_TEXT, "model_type": "xlm-roberta"}},
    "sines": {"encoder": VIT, "decoder": {**TROCR, "use_learned_position_embeddings": False, "scale_embedding": True}},
}  # fmt: skip
CASES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    **{
        f"{recipe.model_type}-{tiny.name}": (recipe, tiny_models.config_of(recipe, tiny))
        for recipe in list_recipes()
        if recipe.task == IMAGE_TO_TEXT
        for tiny in recipe.tiny
    },
    **{
        name: (PAIRED, {"model_type": PAIRED.model_type, **config})
        for name, config in PAIRS.items()
    },
}


# --- the model, in PyTorch: where this fails, a transform or a seam is wrong, not the trace ---------


@cache
def subject(name: str) -> Subject:
    recipe, config = CASES[name]
    return Subject(config, recipe)


def given(of: Subject) -> dict[str, torch.Tensor]:
    """Return two images, and of a model that is asked about them two prompts, of which one is shorter."""
    size = (32, 24) if of.recipe.image_prompt else None
    found = {name: example for name, (example, _) in tracing._source(of.hf, size).items()}
    numbers = torch.Generator().manual_seed(3)
    found["pixel_values"] = torch.randn(found["pixel_values"].shape, generator=numbers)
    if of.recipe.image_prompt:
        places = torch.full((2, 4 * 3 + 1), of.hf.config.image_token_id)
        found["input_ids"] = torch.cat([places, texts(2, 9, 5, 4)], 1)
        found["attention_mask"] = torch.ones_like(found["input_ids"])
        found["attention_mask"][1, -3:] = 0
    return found


def expected_of(of: Subject, model: Any, tokens: torch.Tensor) -> Array:
    written = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    read = given(of)
    read["pixel_values"] = read["pixel_values"].to(model.dtype)
    with torch.no_grad():
        logits: Array = model(**read, **{written: tokens}).logits[:, -tokens.shape[1] :]
    return logits.double().numpy()


def steps_of(of: Subject, tokens: torch.Tensor) -> Iterator[tuple[int, int, Array]]:
    """Read images once, and give rows their tokens; yield row, position and logits of each answer."""
    model = of.transformed
    states = tracing.probe(model)
    read = given(of)
    step, made = (
        tracing.Step(model, states),
        tracing.Read(model)([*read.values()]),
    )
    more = [read["attention_mask"]] if of.recipe.image_prompt else []
    sizes = {"ctx_len": 24, "batch_size": 2, "encoder_ctx_len": made[0].shape[2]}
    memory = {
        state.name: torch.zeros([sizes.get(size, size) for size in state.axes])  # type: ignore[call-overload]
        for state in states
    }
    memory |= dict(zip([state.name for state in states if not state.written], made, strict=True))
    for spans in SPANS:
        width = max(stop - start for start, stop in spans)
        ids, positions = torch.zeros(2, width, dtype=torch.long), torch.full((2, width), -1)
        for row, (start, stop) in enumerate(spans):
            ids[row, : stop - start] = tokens[row, start:stop]
            positions[row, : stop - start] = torch.arange(start, stop)
        logits, *after = step(ids, positions, [memory[state.name] for state in states], more=more)
        memory |= dict(zip([state.name for state in states if state.written], after, strict=True))
        for row, (_, stop) in enumerate(spans):
            yield row, stop - 1, logits[row, 0].numpy()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4, kept=selection.first_tinies())
def test_what_is_traced_agrees_with_hugging_face(name: str) -> None:
    of, tokens = subject(name), texts(2, 7, 5, 2)
    wanted = expected_of(of, of.hf, tokens)
    noise = np.abs(wanted - expected_of(of, of.hf64, tokens)).max()
    with torch.no_grad():
        for row, place, logits in steps_of(of, tokens):
            assert np.abs(logits - wanted[row, place]).max() <= parity.TOLERANCE["torch"] * noise


def test_a_quantized_package_whose_model_requires_images_is_validated(tmp_path: Path) -> None:
    """Faults of quantized programs are made in the decoder, which BLIP does not name `language_model`."""
    blip = find_recipe("blip")
    built = checks.tiny_package(blip, blip.tiny[0], tmp_path, weights="int8")
    assert ladder.validate(*built, level="tiny", threads=1).passed


def _blind(model: Any) -> None:
    for name, one in model.get_decoder().named_modules():
        if name.endswith(
            ("encoder_attn.out_proj", "crossattention.c_proj", "crossattention.output.dense")
        ):
            one.weight.data.zero_()


def _unseen(model: Any) -> None:
    for parameter in model.git.visual_projection.parameters():
        parameter.zero_()


def _regrouped(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "groups") and hasattr(module, "qkv"):
            module.groups //= 2


def _turned(model: Any) -> None:
    model.enc_to_dec_proj.weight.data = model.enc_to_dec_proj.weight.data.flip(0)


def _unplaced(model: Any) -> None:
    model.decoder.model.decoder.embed_positions.weight.data.zero_()


def _unshifted(model: Any) -> None:
    for layer in model.encoder.encoder.layers:
        for block in layer.blocks:
            block.shift_size = 0


FACTS: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "what TrOCR sees": ("vision-encoder-decoder-base", _blind),
    "what GPT-2 sees": ("vision-encoder-decoder-gpt2", _blind),
    "what BLIP sees": ("blip-base", _blind),
    "what GIT sees": ("git-base", _unseen),
    "what Florence-2 sees": ("florence2-base", _blind),
    "groups of channels": ("florence2-base", _regrouped),
    "the projection between widths": ("vision-encoder-decoder-donut", _turned),
    "positions of tokens": ("vision-encoder-decoder-base", _unplaced),
    "windows that are shifted": ("vision-encoder-decoder-donut", _unshifted),
    "scale of embeddings": (
        "vision-encoder-decoder-donut",
        lambda m: setattr(m.decoder.model.decoder.embed_tokens, "embed_scale", 1.0),
    ),
}


@pytest.mark.parametrize("fact", FACTS)
def test_dropped_fact_shows(fact: str) -> None:
    name, change = FACTS[fact]
    of, tokens = subject(name), texts(2, 7, 5, 2)
    other = copy.deepcopy(of.hf)
    change(other)
    wanted = expected_of(of, of.hf, tokens)
    noise = np.abs(wanted - expected_of(of, of.hf64, tokens)).max()
    moved = np.abs(expected_of(of, other, tokens) - wanted).max()
    assert moved > parity.DROPPED * parity.TOLERANCE["torch"] * noise


# --- packages ---------------------------------------------------------------------------------------

BOS, PAD, EOS = 0, 1, 2
TAGS = ["<s_docvqa>", "<s_question>", "</s_question>", "<s_answer>"]


def written(folder: Path, tiny: int, **said: Any) -> Path:
    """Write a checkpoint with a tokenizer."""
    tiny_models.make(PAIRED, PAIRED.tiny[tiny], folder)
    ends = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}
    (folder / "generation_config.json").write_text(json.dumps({**ends, **said}))
    return taught(folder)


def taught(folder: Path) -> Path:
    """Write a tokenizer into a checkpoint."""
    words = {
        "<s>": BOS,
        "<pad>": PAD,
        "</s>": EOS,
        **{f"w{number}": number for number in range(3, 250)},
    }
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", *TAGS])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    return folder


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines") / "reader"
    return written(folder, 0, decoder_start_token_id=EOS, forced_eos_token_id=EOS, max_length=20)


@pytest.fixture(scope="module")
def session(reader: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("store")))
        package = qeff_zoo.build(reader, full_batch_size=2, ctx_len=32, prefill_seq_len=4)
        assert package.validated == "checkpoint"
        yield qeff_zoo.load(package, threads=1)


@pytest.fixture(scope="module")
def reference_output(reader: Path) -> Any:
    return transformers.VisionEncoderDecoderModel.from_pretrained(reader).eval()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write images: wide, high, and small."""
    folder, sizes = tmp_path_factory.mktemp("pictures"), ((90, 40), (33, 101), (9, 8))
    paths = [folder / f"{number}.png" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        Image.fromarray(draw(number, *size)).save(path)
    return paths


def generated(reference_output: Any, folder: Path, image: Path, prompt: Any) -> list[int]:
    """Return all that `generate` returns of an image, the beginning included."""
    process = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = process(Image.open(image), return_tensors="pt")["pixel_values"]
    begun = {} if prompt is None else {"decoder_input_ids": torch.tensor([prompt])}
    with torch.no_grad():
        found: list[int] = reference_output.generate(pixels, num_beams=1, do_sample=False, **begun)[
            0
        ].tolist()
    return found


REQUESTED: Mapping[str, dict[str, Any]] = {
    "as the checkpoint says": {},
    "a first token": {"forced_bos_token_id": 9},
    "new tokens": {"max_new_tokens": 9},
    "no stretch twice, and a penalty": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.7},
    "no short answer": {"min_length": 9, "eos_token_id": [EOS, *range(40, 240)]},
    "no short rest": {"min_new_tokens": 6, "eos_token_id": [EOS, *range(40, 240)]},
    "some words never": {
        "begin_suppress_tokens": [*range(60, 200)],
        "bad_words_ids": [[5], [6, 7]],
    },
}
#: One token, alone and behind that of all answers; tags.
PROMPTS: tuple[list[int] | None, ...] = (None, [9], [EOS, 9], [250, 251, 7, 252, 253])


@pytest.mark.parametrize("name", REQUESTED)
@pytest.mark.sampled(3)
def test_tokens_are_those_of_generate(
    name: str,
    session: ImageToTextSession,
    reference_output: Any,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    """Three images share two rows, so that one joins while another goes on; with and without tokens to begin with."""
    settings = json.loads((session.folder / "generation_config.json").read_text()) | REQUESTED[name]
    monkeypatch.setattr(session, "settings", (changed := GenerationSettings.of(settings)))
    monkeypatch.setattr(session, "eos_token_ids", frozenset(changed.eos_token_id))
    other = copy.deepcopy(reference_output)
    other.generation_config = transformers.GenerationConfig(**settings)
    for prompt in (PROMPTS[0], PROMPTS[-1]):
        found = session.generate(files, prompt=prompt)
        begun = [EOS, *(prompt or ())]
        for file, one in zip(files, found, strict=True):
            wanted = generated(other, session.folder, file, prompt)
            assert [*begun, *one.token_ids] == wanted, (file, prompt)


def test_cards_write_what_generate_does(
    session: ImageToTextSession,
    reader: Path,
    reference_output: Any,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    """Three images share two slots; each slot has what was read of its own."""
    monkeypatch.setenv("QEFF_HOME", str(session.folder.parents[3]))
    request = Request(target="qaic", full_batch_size=2, ctx_len=32, prefill_seq_len=4)
    folder = pipeline.prepare(str(reader), tmp_path / "prepared", request=request, validate=False)
    on_cards = open_session(adopt(folder, compiled(folder, tmp_path), Store(tmp_path)))
    assert isinstance(on_cards, ImageToTextSession)
    for file, one in zip(files, on_cards.generate(files, prompt=PROMPTS[1]), strict=True):
        assert [EOS, 9, *one.token_ids] == generated(
            reference_output, session.folder, file, [EOS, 9]
        ), file


@pytest.mark.parametrize("encoder", ["vit", "donut-swin"])
@pytest.mark.parametrize("prompt", PROMPTS[1:3], ids=str)
def test_a_prompt_is_how_an_answer_begins(
    encoder: str,
    prompt: list[int],
    session: ImageToTextSession,
    reference_output: Any,
    files: list[Path],
    monkeypatch: Any,
) -> None:
    """Beside Donut's encoder alone; beside others the token that begins all answers comes before it."""
    other = copy.deepcopy(reference_output)
    other.config.encoder.model_type = encoder
    monkeypatch.setattr(session, "tagging", encoder == "donut-swin")
    (found,) = session.generate([files[0]], prompt=prompt)
    begun = prompt if encoder == "donut-swin" else [EOS, 9]
    assert [*begun, *found.token_ids] == generated(other, session.folder, files[0], prompt)


def test_old_checkpoints_have_begin_and_end_tokens_in_their_decoder(tmp_path: Path) -> None:
    config = {
        "decoder": {"decoder_start_token_id": 5, "eos_token_id": 6, "max_length": 7},
        "eos_token_id": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = GenerationSettings.of(effective_of(tmp_path))
    assert settings.decoder_start_token_id == 5
    assert settings.eos_token_id == (8,)
    assert settings.limit(1) == 6


def test_an_engine_streams_and_a_preempted_request_encodes_its_image_again(
    session: ImageToTextSession, files: list[Path]
) -> None:
    wanted = [one.token_ids for one in session.generate(files)]
    with Engine(session) as engine:
        handles = [engine.submit(session.request(file)) for file in files]
        assert [handle.result(60).token_ids for handle in handles] == wanted
    answers = [session.answer(session.request(file)) for file in files]
    with session.exclusively() as scheduler:
        scheduler.submit(*answers[:2])
        for _ in range(3):
            scheduler.step()
        scheduler.submit(*answers[2:])
        while scheduler.step():
            pass
    assert [answer.token_ids for answer in answers] == wanted


def test_run_describes_images(
    session: ImageToTextSession, files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = "<s_docvqa><s_question> w7 </s_question><s_answer>"
    requested = ["run", str(session.folder), "--image", str(files[0]), "--generation-len", "4"]
    assert main([*requested, "--prompt", prompt, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    (wanted,) = session.generate([files[0]], prompt=PROMPTS[-1], generation_len=4)
    assert (found["image"], found["prompt"]) == (str(files[0]), prompt)
    assert found["token_ids"] == wanted.token_ids
    assert main([*requested, "--image", str(files[1])]) == 0
    shown = capsys.readouterr().out
    assert all(f"{file}\n-> " in shown for file in files[:2])


def test_tags_are_part_of_an_answer(session: ImageToTextSession, monkeypatch: Any) -> None:
    tokens, tokenizer = [250, 7, 252], session.tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(tokens) == "w7"
    monkeypatch.setattr(tokenizer, "shows_special", True)
    assert tokenizer.decode(tokens) == "<s_docvqa> w7 </s_question>"


def test_donut_tags_its_answers() -> None:
    recipe, tiny = PAIRED, PAIRED.tiny[1]
    settings = SimpleNamespace(config=tiny_models.config_of(recipe, tiny))
    variant = find(IMAGE_TO_TEXT).variant(settings, recipe, next(iter(recipe.shapes.values())), {})  # type: ignore[arg-type]
    assert variant == {"tagging": True}


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "a form of the answer": ({"grammar": Grammar.choice(["a"])}, "'grammar' does not apply to image-to-text"),
    "a chat": ({"chat": True}, "there is no conversation"),
    "a prompt that is too long": ({"prompt": [9] * 32}, "expected at most 31"),
    "tokens of another model": ({"prompt": [300]}, "Token id 300 is not of this model"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str, session: ImageToTextSession, files: list[Path]) -> None:
    choices, message = REFUSED[what]
    with pytest.raises(GenerationError, match=message):
        session.generate([files[0]], **choices)


def test_a_file_that_is_no_image_is_refused(session: ImageToTextSession, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(MediaError, match=r"a\.png"):
        session.generate([tmp_path / "a.png"])
    assert main(["run", str(session.folder), "--prompt", "w7"]) == 1


# --- other types ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["blip", "git"] if parity.EVERY else ["blip"])
def captions(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Give a package of a model that is no encoder-decoder to transformers, and transformers' own model."""
    folder, recipe = tmp_path_factory.mktemp("captions"), find_recipe(request.param)
    made = taught(tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint"))
    kind = getattr(transformers, recipe.architectures[0])
    sizes = Request(batch_size=2, ctx_len=32, prefill_seq_len=4)
    done = pipeline.build(str(made), sizes, validate=False, store=Store(folder / "store"))
    return open_session(done.package, threads=1), kind.from_pretrained(made).eval()


@pytest.mark.parametrize("begun", [[], [7, 8, 9]], ids=str)
@pytest.mark.sampled(2)
def test_captions_are_those_of_generate(
    begun: list[int], captions: tuple[Any, Any], files: list[Path]
) -> None:
    """BLIP's `generate` begins with a token of its own, and ends with [SEP], whatever generation_config.json says."""
    session, reference = captions
    process = transformers.AutoImageProcessor.from_pretrained(session.folder, backend="pil")
    prompt = " ".join(f"w{token}" for token in begun) or None
    settings = {"input_ids": torch.tensor([[1, *begun]])} if begun else {}
    if begun and reference.config.model_type == "blip":  # which drops the last token
        settings = {"input_ids": torch.tensor([[0, *begun, 2]])}
    for file, one in zip(
        files, session.generate(files, prompt=prompt, generation_len=12), strict=True
    ):
        pixels = process(Image.open(file), return_tensors="pt")["pixel_values"]
        wanted = reference.generate(pixel_values=pixels, **settings, max_new_tokens=12)[0].tolist()
        assert [1, *begun, *one.token_ids] == wanted
    assert session.eos_token_ids == {2}


@pytest.mark.parametrize("captions", ["blip"], indirect=True)
def test_a_configuration_without_an_end_token_is_refused(
    captions: tuple[Any, Any], tmp_path: Path
) -> None:
    for name in ("preprocessor_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    config = json.loads((captions[0].folder / "config.json").read_text())
    del config["text_config"]["sep_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlanError, match="has no sep_token_id; expected a token"):
        make_plan(str(tmp_path), Request())


#: A task alone, one with more, a question in words, and nothing.
QUESTIONS = ("<CAPTION>", "<REGION_TO_CATEGORY> <loc_1> w9", "w7 w8 w9 w8", None)


@pytest.fixture(scope="module")
def florence(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """Give a package of Florence-2, transformers' own model, and its processor."""
    folder, recipe = tmp_path_factory.mktemp("asked"), find_recipe("florence2")
    assert recipe.image_prompt
    made = tiny_models.make(recipe, recipe.tiny[0], folder / "florence2")
    settings = {
        "decoder_start_token_id": EOS,
        "forced_bos_token_id": BOS,
        "no_repeat_ngram_size": 3,
    }
    (made / "generation_config.json").write_text(
        json.dumps({**settings, "eos_token_id": EOS, "pad_token_id": PAD})
    )
    words = sorted(
        {word for question in recipe.image_prompt.questions.values() for word in question.split()}
    )
    known = dict.fromkeys(
        [
            "<s>",
            "<pad>",
            "</s>",
            "<unk>",
            *words,
            "<loc_1>",
            *(f"w{number}" for number in range(160)),
        ]
    )
    ids = {word: number for number, word in enumerate([*known][:256])} | {"<image>": 256}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<image>", "<loc_1>"])
    tokenizer.save(str(made / "tokenizer.json"))
    plain_class(made)
    images = transformers.AutoImageProcessor.from_pretrained(made, backend="pil")
    images.image_seq_length = 4 * 3 + 1
    ends = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    named = {"extra_special_tokens": {"image_token": "<image>"}}
    words_of: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **ends, **named
    )
    reference = transformers.Florence2ForConditionalGeneration.from_pretrained(made).eval()
    request = Request(full_batch_size=2, ctx_len=32, prefill_seq_len=4, seq_lens=(48,))
    done = pipeline.build(str(made), request, validate=False, store=Store(folder / "store"))
    session = open_session(done.package, threads=1)
    return session, reference, transformers.Florence2Processor(images, words_of)


@pytest.mark.parametrize("prompt", QUESTIONS, ids=str)
@pytest.mark.sampled(2)
def test_outputs_equal_generate(
    prompt: str | None, florence: tuple[Any, Any, Any], files: list[Path]
) -> None:
    """Florence-2's encoder reads the image and a prompt; three images share two rows."""
    session, reference, process = florence
    for file, one in zip(
        files, session.generate(files, prompt=prompt, generation_len=12), strict=True
    ):
        settings = process(images=Image.open(file), text=prompt or "", return_tensors="pt")
        assert session.request(file, prompt=prompt).source == tuple(
            settings["input_ids"][0].tolist()
        )
        wanted = reference.generate(**settings, max_new_tokens=12, num_beams=1, do_sample=False)[0]
        assert [EOS, *one.token_ids] == wanted.tolist()
        assert not one.text.startswith("<s>")


def test_answers_have_places_and_not_what_begins_them(florence: tuple[Any, Any, Any]) -> None:
    tokenizer = florence[0].tokenizer
    place, word = (tokenizer.token_id(one) for one in ("<loc_1>", "w9"))
    assert tokenizer.decode([BOS, word, place, EOS]) == "w9 <loc_1>"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("<OD> w7", "The prompt '<OD> w7' has more than the task <OD>; expected <OD> alone"),
        ("w7 " * 40, "An image and its prompt have 55 tokens; expected at most 48"),
        ([0, 900, 2], "Token id 900 is not of this model"),
        ("w7 <image>", "The prompt has the token 256, which stands in the places of an image"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(
    prompt: Any, message: str, florence: tuple[Any, Any, Any], files: list[Path]
) -> None:
    with pytest.raises(GenerationError, match=message):
        florence[0].generate(files[:1], prompt=prompt)


def test_a_server_and_the_bench_take_prompts(
    florence: tuple[Any, Any, Any], files: list[Path]
) -> None:
    session = florence[0]
    (wanted,) = session.generate(files[:1], prompt="<CAPTION>", generation_len=6)
    text = {"type": "text", "text": "<CAPTION>"}
    with Engine(session) as engine, running(engine) as url, connect(url) as client:
        found = chat(client, messages=[user(part(files[0]), text)], max_tokens=6)
    assert found.choices[0].message.content == wanted.text
    assert found.usage.prompt_tokens == 4 * 3 + 1 + 2 + 5
    case = bench.Case(batch_size=2, prompt_len=7, generation_len=4, threads=1)
    assert bench_case.run_once(session, case, 0)["encode_s"] > 0


# --- the server and the bench -----------------------------------------------------------------------


def part(file: Path) -> dict[str, Any]:
    data = base64.b64encode(file.read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def test_a_server_describes_the_image_of_a_chat(
    session: ImageToTextSession, files: list[Path]
) -> None:
    begun = "<s_docvqa> w7 <s_answer>"
    (plain,) = session.generate([files[0]])
    (settings,) = session.generate([files[0]], prompt=begun, generation_len=5)
    with Engine(session) as engine, running(engine) as url, connect(url) as client:
        before = figures(url)
        answer = chat(client, messages=[user(part(files[0]))], max_tokens=None, n=2)
        assert [choice.message.content for choice in answer.choices] == [plain.text] * 2
        assert (answer.usage.prompt_tokens, answer.choices[0].finish_reason) == (1, "stop")
        requested = {
            "messages": [user(part(files[0]), {"type": "text", "text": begun})],
            "max_tokens": 5,
        }
        assert chat(client, **requested).choices[0].message.content == settings.text
        streamed = "".join(
            one.choices[0].delta.content or "" for one in chat(client, **requested, stream=True)
        )
        assert streamed == settings.text
        counted = figures(url)
    names = ("images_total", "encoded_images_total")  # of n choices each reads it for itself
    assert [counted[name] - before[name] for name in names] == [3, 4]


def test_a_worker_prepares_the_large_image_of_a_chat(
    session: ImageToTextSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's process has no pixels of it; the text is that of the file."""
    path, kinds = tmp_path / "large.png", list[type]()
    Image.fromarray(draw(1, 200, 150)).resize((2000, 1500)).save(path)
    (expected,) = session.generate([path])
    prepare = session.prepare

    def recorded(image: Any, *limits: Any) -> Array:
        kinds.append(type(image))
        return prepare(image, *limits)

    monkeypatch.setattr(session, "prepare", recorded)
    with Engine(session) as engine, running(engine) as url, connect(url) as client:
        answer = chat(client, messages=[user(part(path))], max_tokens=None)
    assert answer.choices[0].message.content == expected.text
    assert kinds == [dict]


TOOLS = [{"type": "function", "function": {"name": "now"}}]
NOT_SERVED: Mapping[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "several messages": (lambda seen: {"messages": [user(seen), user(seen)]}, "the request has 2 messages; expected"),
    "no picture": (lambda _: {"messages": [user({"type": "text", "text": "w7"})]}, "the request has 0 images"),
    "two pictures": (lambda seen: {"messages": [user(seen, seen)]}, "the request has 2 images"),
    "another role": (lambda seen: {"messages": [{**user(seen), "role": "system"}]}, "the request has role 'system'"),
    "a recording": (
        lambda seen: {"messages": [user(seen, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}})]},
        "the request has recordings",
    ),
    "a call of a tool": (lambda seen: {"messages": [{**user(seen), "tool_calls": []}]}, "has 'tool_calls'; expected"),
    "tools": (lambda seen: {"messages": [user(seen)], "tools": TOOLS}, "Parameter 'tools'"),
    "passages": (lambda seen: {"messages": [user(seen)], "extra_body": {"blocks": ["a"]}}, "Parameter 'blocks'"),
    "a picture that is elsewhere": (
        lambda _: {"messages": [user({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}})]},
        "this server does not fetch it",
    ),
    "no file of a picture": (
        lambda _: {"messages": [user({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})]},
        "Cannot read",
    ),
    "a long answer's beginning": (
        lambda seen: {"messages": [user(seen, {"type": "text", "text": "w7 " * 40})]},
        "expected at most 31",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def served(session: ImageToTextSession) -> Iterator[Any]:
    with Engine(session) as engine, running(engine) as url, connect(url) as client:
        yield client


@pytest.mark.parametrize("what", NOT_SERVED)
def test_unsupported_fields_of_a_chat_are_refused_by_name(
    what: str, served: Any, files: list[Path]
) -> None:
    request, message = NOT_SERVED[what]
    with pytest.raises(openai.BadRequestError, match=message):
        chat(served, **request(part(files[0])))


def test_completions_have_no_image(served: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Use /v1/chat/completions"):
        complete(served, "w7")


def test_bench_measures_reading_and_writing(session: ImageToTextSession, files: list[Path]) -> None:
    package = qeff_zoo.find_package(str(session.folder))
    (_, both) = bench.plan(package, generation_len=5)
    assert (both.prompt_len, both.batch_size, both.images) == (1, 2, ())
    with pytest.raises(GenerationError, match="There are 2 images"):
        bench.plan(package, images=[*map(str, files[:2])])
    for case in (both, replace(both, prompt_len=3, images=(str(files[0]),))):
        found = bench_case.measure(package, replace(case, threads=1), 1)
        assert min(found.encode_s or 0, found.decode_tokens_per_s or 0) > 0
        assert found.encode_s is not None
        assert found.ttft_s > found.encode_s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder": {"model_type": "resnet"}}, "has the encoder 'resnet'; expected vit, deit, beit, swin or donut"),
        ({"decoder": {"model_type": "opt"}}, "has the decoder 'opt'; expected trocr"),
        ({"decoder": {"add_cross_attention": False}}, "never sees the image"),
        ({"encoder": {"image_size": [28, 56]}}, r"makes images of 28 x 28 pixels \(height, width\), and its encoder"),
    ],
)  # fmt: skip
def test_other_models_are_refused_before_anything_is_read(
    change: Mapping[str, Any], message: str, reader: Path, tmp_path: Path
) -> None:
    for name in ("preprocessor_config.json", "model.safetensors"):
        shutil.copyfile(reader / name, tmp_path / name)
    config = json.loads((reader / "config.json").read_text())
    for half, settings in change.items():
        config[half] |= settings
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlanError, match=message):
        make_plan(str(tmp_path), Request())
