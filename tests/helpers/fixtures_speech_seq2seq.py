# SPDX-License-Identifier: Apache-2.0
"""What several tests of speech seq2seq and others use."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from parity import Array, Subject
from tiny_checkpoint import plain_class

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.export.tracing import encoder_decoder_tracing as tracing
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.sessions import (
    SpeechSeq2SeqSession,
)
from qeff_zoo.validation import tiny_models

EOS, START, PREVIOUS, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, NO_TIMES = 200, *range(201, 208)


#: What generation_config.json of a multilingual model says.
TOKENS = {
    "decoder_start_token_id": START,
    "eos_token_id": EOS,
    "bos_token_id": EOS,
    "pad_token_id": EOS,
    "prev_sot_token_id": PREVIOUS,
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "no_timestamps_token_id": NO_TIMES,
    "is_multilingual": True,
    "max_initial_timestamp_index": 40,
    "suppress_tokens": [1, 2, 7, START, PREVIOUS, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, NO_TIMES],
    "begin_suppress_tokens": [11, EOS],
    "max_length": 64,
    "alignment_heads": [[0, 1], [2, 3], [3, 0]],
}


SPECIAL = [
    *("<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|en|>", "<|de|>"),
    *("<|translate|>", "<|transcribe|>", "<|notimestamps|>"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of windows of one second, whose vocabulary ends with times up to one second."""
    recipe = find_recipe("whisper")
    folder = tmp_path_factory.mktemp("speech") / "whisper"
    tiny_models.make(recipe, recipe.tiny[0], folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "eos_token_id": EOS,
        "bos_token_id": EOS,
        "pad_token_id": EOS,
        "decoder_start_token_id": START,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(TOKENS))
    words = {f"w{number}": number for number in range(EOS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(257 - NO_TIMES - 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    extractor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def session(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("store")))
        package = qeff_zoo.build(checkpoint, batch_size=2, prefill_seq_len=8)
        assert package.validated == "checkpoint"
        yield qeff_zoo.load(package, threads=1)


def recordings_for(of: Subject) -> list[torch.Tensor]:
    """Draw two recordings as the model takes them, of which the second is shorter where it may be."""
    random = torch.Generator().manual_seed(1)
    source = tracing._source(of.transformed)
    (whole, _), *mask = source.values()
    lengths = [whole.shape[1], whole.shape[1] // 2 + 3 if mask else whole.shape[1]]
    return [torch.randn(length, *whole.shape[2:], generator=random) for length in lengths]


def expected_of(model: Any, recordings: list[torch.Tensor], tokens: torch.Tensor) -> Array:
    """Ask Hugging Face about each recording by itself, without padding and without a mask."""
    found = []
    with torch.no_grad():
        for recording, row in zip(recordings, tokens, strict=True):
            given = {model.main_input_name: recording[None].to(model.dtype)}
            logits = model(**given, decoder_input_ids=row[None]).logits
            found.append(logits[0].double().numpy())
    return np.stack(found)


def steps_of(model: Any, recordings: list[torch.Tensor], tokens: torch.Tensor) -> Array:
    """Encode recordings once; decode tokens of each row in chunks of three, the last of them padded; then singly."""
    states = tracing.probe(model)
    step, rows, found = tracing.Step(model, states), len(tokens), []
    source = [torch.nn.utils.rnn.pad_sequence(recordings, batch_first=True, padding_value=9.0)]
    if len(tracing._source(model)) > 1:
        there = [torch.ones(len(recording), dtype=torch.long) for recording in recordings]
        source.append(torch.nn.utils.rnn.pad_sequence(there, batch_first=True))
    with torch.no_grad():
        names = [state.name for state in states if not state.written]
        made = tracing.Read(model)(source)
        read, lengths = dict(zip(names, made, strict=False)), made[len(names) :]
        more = [(torch.arange(made[0].shape[2]) < length[:, None]).long() for length in lengths]
        memory = {
            state.name: torch.zeros(
                [rows, *(24 if size == "ctx_len" else size for size in state.axes[1:])]
            )
            for state in states
            if state.written
        } | read
        for begin, end, width in ((0, 3, 3), (3, 5, 3), (5, 6, 1), (6, 7, 1)):
            ids = torch.zeros(rows, width, dtype=torch.long)
            positions = torch.full((rows, width), -1)
            ids[:, : end - begin] = tokens[:, begin:end]
            positions[:, : end - begin] = torch.arange(begin, end)
            past = [memory[state.name] for state in states]
            logits, *after = step(ids, positions, past, more=more)
            memory |= dict(
                zip([state.name for state in states if state.written], after, strict=True)
            )
            found.append(logits[:, 0].numpy())
    return np.stack(found, 1)


ENDS = [2, 4, 5, 6]


def audio_model(folder: Path, name: str, extract: Any, store: Path, *seq_lens: int) -> Any:
    """Open a package of a tiny model that reads recordings of any length; give it with Hugging Face's model."""
    model_type, _, variant = name.partition("-")
    recipe = find_recipe(model_type)
    (tiny,) = (one for one in recipe.tiny if one.name == variant)
    tiny_models.make(recipe, tiny, folder)
    settings = {"decoder_start_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "max_length": 20}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    words = {f"w{number}": number for number in range(3, 257)} | {"<s>": 1, "</s>": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w3"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    extract.save_pretrained(folder)
    reference = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(store))
        requested = Request(full_batch_size=2, ctx_len=32, prefill_seq_len=4, seq_lens=seq_lens)
        package = pipeline.build(str(folder), requested, validate=False).package
        return qeff_zoo.load(package, threads=1), reference


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give a package of a model that reads recordings of at most two seconds as they are, and Hugging Face's model."""
    folder, store = (
        tmp_path_factory.mktemp("speech") / "moonshine",
        tmp_path_factory.mktemp("store"),
    )
    extract = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    return audio_model(folder, "moonshine-base", extract, store, 16_000, 32_000)


@pytest.fixture(scope="module")
def model(
    checkpoint: Path, session: SpeechSeq2SeqSession
) -> qeff_zoo.QEFFAutoModelForSpeechSeq2Seq:
    """Give what QEfficient's users would load, compiled: here opened already."""
    loaded = qeff_zoo.QEFFAutoModelForSpeechSeq2Seq.from_pretrained(checkpoint)
    loaded.package, loaded._session = qeff_zoo.find_package(str(session.folder)), session
    return loaded
