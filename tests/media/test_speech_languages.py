# SPDX-License-Identifier: Apache-2.0
"""Speech models that are told the language and how to write: text is that of transformers' processor and `generate`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from parity import Array
from transformers.models.canary.processing_canary import LANGUAGE_CODE_TO_NAME
from transformers.models.cohere_asr.processing_cohere_asr import LANGUAGES as LANGUAGES_OF_COHERE

import qeff_zoo
from qeff_zoo import bench, pipeline
from qeff_zoo.bench import case as bench_case
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.media import audio_chunking, features
from qeff_zoo.media.dither import noise
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.text.languages import code_of
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.store import Store
from qeff_zoo.tasks.speech.speech_tokens import SpeechTokens
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial.sample_audio import voice

RATE, EOS = 16_000, 3
LANGUAGES = ("de", "en", "ja")
SPECIAL = [
    *("<unk>", "<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>"),
    *("<|startofcontext|>", "<|emo:undefined|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
    *(f"<|{code}|>" for code in LANGUAGES),
    "\N{LOWER ONE EIGHTH BLOCK}",
]  # fmt: skip


#: As NeMo's prompts of Canary.
TEMPLATE = (
    "{% set asked = messages[0].content[1] %}<|startofcontext|> <|startoftranscript|> <|emo:undefined|> "
    "<|{{ asked.source_language }}|> <|{{ asked.target_language }}|> "
    "{{ '<|pnc|>' if asked.punctuation else '<|nopnc|>' }} <|noitn|> <|notimestamp|> <|nodiarize|>"
)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("de", "de"), ("German", "de"), ("<|de|>", "de"), ("de-DE", "de"), ("pt_BR", "pt"), ("zh-Hans-CN", "zh"),
        ("es-419", "es"), ("yue-HK", "yue"), ("nb-NO", "no"), ("haitian creole", "ht"), ("Mandarin", "zh"),
        ("deu_Latn", "deu_latn"), ("xx-YY", "xx-yy"), ("klingon", "klingon"),
    ],
)  # fmt: skip
def test_tags_of_languages_are_read(given: str, code: str) -> None:
    assert code_of(given) == code


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"is_multilingual": False}, "en"),
        ({"vocab_size": 51_864}, "en"),
        ({"is_multilingual": True, "vocab_size": 51_864}, None),
        ({"is_multilingual": False, "lang_to_id": {"<|de|>": 9}}, None),
        ({"model_type": "moonshine"}, None),
    ],
)
def test_a_whisper_for_english_alone_has_that_language(
    settings: dict[str, Any], code: str | None, tmp_path: Path
) -> None:
    config = {"model_type": "whisper", "decoder_start_token_id": 1, "eos_token_id": 2, **settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text("{}")
    assert SpeechTokens.read(tmp_path).code_of(None) == code


def checkpoint(folder: Path, **settings: Any) -> Any:
    """Write a tiny Cohere Transcribe with a tokenizer; return transformers' processor of it."""
    recipe = find_recipe("cohere_asr")
    tiny_models.make(recipe, recipe.tiny[0], folder)
    return processor_of("cohere_asr", folder, **settings)


def processor_of(name: str, folder: Path, **settings: Any) -> Any:
    """Write and return transformers' processor."""
    words = {f"w{number}": number for number in range(len(SPECIAL), 257)}
    words |= {text: number for number, text in enumerate(SPECIAL)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(SPECIAL)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", pad_token="<pad>", eos_token="<|endoftext|>"
    )
    processor: Any
    if name == "canary":
        extractor = transformers.ParakeetFeatureExtractor(feature_size=16)
        processor = transformers.CanaryProcessor(extractor, fast, chat_template=TEMPLATE)
    else:
        extractor = transformers.CohereAsrFeatureExtractor(feature_size=16, **settings)
        processor = transformers.CohereAsrProcessor(extractor, fast)
    processor.save_pretrained(folder)
    return processor


def session_of(folder: Path, store: Path) -> Any:
    requested = Request(full_batch_size=2, ctx_len=32, prefill_seq_len=4, seq_lens=(200,))
    found = pipeline.build(str(folder), requested, validate=False, store=Store(store))
    return qeff_zoo.load(found.package, threads=1)


def answers(model: Any, processor: Any, recording: Array, **asked: Any) -> tuple[list[Any], str]:
    """Answer by transformers' processor, model and `generate`: tokens of each piece, and the text of all."""
    given = processor(recording, sampling_rate=RATE, **asked)
    index = given.pop("audio_chunk_index")
    begun = given["decoder_input_ids"].shape[1]
    with torch.no_grad():
        found = model.generate(**given, max_new_tokens=12, do_sample=False)
    texts = processor.decode(
        found, audio_chunk_index=index, language=asked["language"], skip_special_tokens=True
    )
    begun += int(found[0, 0] != given["decoder_input_ids"][0, 0])
    tokens = [[token for token in row[begun:].tolist() if token not in (2, EOS)] for row in found]
    return tokens, texts[0]


@pytest.mark.full
def test_text_of_cohere_transcribe_is_that_of_generate(tmp_path: Path) -> None:
    """Of short recordings, and of one that is cut at quiet places; both share the decoder's rows."""
    limits = {
        "max_audio_clip_s": 1.6,
        "overlap_chunk_second": 0.4,
        "min_energy_window_samples": 400,
    }
    folder = tmp_path / "cohere"
    processor = checkpoint(folder, **limits)
    session = session_of(folder, tmp_path / "store")
    model = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(folder)
    recordings = [voice(length, RATE, length) for length in (9000, 60_000, 25_599)]
    for language in ("de", "ja"):
        found = session.transcribe(recordings, language=language, generation_len=12)
        for recording, one in zip(recordings, found, strict=True):
            tokens, text = answers(model, processor, recording, language=language)
            assert [list(part.tokens) for part in one.segments] == tokens
            assert one.text == text
            assert one.segments[-1].end == pytest.approx(one.seconds)
    assert len(found[1].segments) == 3
    case = bench.SpeechCase(batch_size=2, generation_len=4, threads=1, language="de")
    assert bench_case.transcribe_once(session, case, 0)["audio_s"] == pytest.approx(2, abs=0.1)
    with pytest.raises(
        GenerationError, match=r"requires the spoken language; expected one of ar, de"
    ):
        session.transcribe(recordings[0])
    with pytest.raises(GenerationError, match=r"Language 'sv' is not known"):
        session.transcribe(recordings[0], language="sv")


def test_answers_of_canary_begin_as_its_chat_template_writes(tmp_path: Path) -> None:
    """In the language that is spoken, or in another; graphs and `generate` are as of Cohere Transcribe."""
    processor = processor_of("canary", tmp_path)
    transformers.CanaryConfig().save_pretrained(tmp_path)
    speech = find_recipe("canary").speech
    assert speech is not None
    found = SpeechTokens.read(tmp_path, asdict(speech), Tokenizer.find(tmp_path))
    for task, target in (("transcribe", "de"), ("translate", "en"), (None, "de")):
        right = processor.apply_transcription_request(voice(4000, RATE, 1), "de", target)
        ours = found.beginning(found.language_token("German"), task, times=False)
        assert list(ours) == right["decoder_input_ids"][0].tolist()
    for given in ("fr", "French"):
        right = processor.apply_transcription_request(voice(4000, RATE, 1), "en", "fr")
        english = found.language_token("en")
        ours = found.beginning(english, None, times=False, target=given)
        assert list(ours) == right["decoder_input_ids"][0].tolist()
    with pytest.raises(GenerationError, match=r"Language 'ja' is not known to this model"):
        found.beginning(english, None, times=False, target="ja")
    assert {*speech.languages} == {*LANGUAGE_CODE_TO_NAME}
    with pytest.raises(GenerationError, match="requires the spoken language"):
        found.beginning(None, None, times=False)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(PackageError, match="has no chat template"):
        SpeechTokens.read(tmp_path, asdict(speech), Tokenizer.find(tmp_path))


def test_cohere_transcribe_has_the_languages_of_its_processor() -> None:
    speech = find_recipe("cohere_asr").speech
    assert speech is not None
    assert {*speech.languages} == LANGUAGES_OF_COHERE


def test_noise_is_that_of_pytorch() -> None:
    for count in (16, 17, 31, 4000, 50_001):
        generator = torch.Generator().manual_seed(count)
        right = torch.randn(count, generator=generator).numpy()
        np.testing.assert_allclose(noise(count, count), right, atol=1e-6, rtol=0)


@pytest.mark.parametrize("samples", [1600, 16_001, 50_123, 36 * RATE])
def test_features_of_cohere_transcribe_are_those_of_transformers(samples: int) -> None:
    """To 3e-4: transformers' own float32 is up to 2e-4 from float64, and ours 1e-4."""
    extractor = transformers.CohereAsrFeatureExtractor()
    ours, recording = features.find(json.loads(extractor.to_json_string())), voice(samples, RATE, 1)
    reference = extractor(recording, sampling_rate=RATE, return_tensors="np")
    found = [ours.compute(part) for part in ours.cut(recording)]
    assert [len(one) for one in found] == reference["attention_mask"].sum(1).tolist()
    for one, right in zip(found, reference["input_features"], strict=True):
        np.testing.assert_allclose(one, right[: len(one)], atol=3e-4, rtol=0)


def test_a_recording_is_cut_where_it_is_quiet() -> None:
    loud = np.ones(100, np.float32)
    loud[44:48] = 0
    found = audio_chunking.cut(loud, most=60, search=20, window=4)
    assert [len(one) for one in found] == [44, 56]
    assert [len(one) for one in audio_chunking.cut(loud, most=60, search=0, window=4)] == [60, 40]
    assert [len(one) for one in audio_chunking.cut(loud, most=60, search=3, window=4)] == [58, 42]
