# SPDX-License-Identifier: Apache-2.0
"""Recordings that are read in windows which need more than themselves, against transformers' processors and `generate`.

Music Flamingo's windows know when they are; those of Qwen3-ASR and Qwen's Omni are cut of one sound, whose features are
there at once.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import parity
import pytest
import tokenizers
import torch
import transformers
from fixtures_audio_text import RATE, recording
from fixtures_media_recipes import session_of

from qeff_zoo.contract import AUDIO_TEXT_TO_TEXT, for_task
from qeff_zoo.errors import MediaError
from qeff_zoo.media.audio_processor import AudioProcessor
from qeff_zoo.media.features import find
from qeff_zoo.registry import find_recipe, recipe_for
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.tasks.multimodal.audio_text_session import AudioTextToTextSession

#: Types of models that see, too, which these packages leave out.
OMNI = "qwen2_5_omni", "qwen3_omni_moe"
#: What stands for a sound, and around it, in texts.
WORDS = {
    "musicflamingo": {"<sound>": 200, "<|sound_bos|>": 201, "<|sound_eos|>": 202},
    "qwen3_asr": {"<|audio_pad|>": 200, "<|audio_start|>": 201, "<|audio_end|>": 202},
    **{name: {"<|AUDIO|>": 203, "<|audio_bos|>": 205, "<|audio_eos|>": 206} for name in OMNI},
}
PROMPTS = {
    "musicflamingo": "w7 <sound> w3 w4",
    "qwen3_asr": "w7 <|audio_start|> <|audio_pad|> <|audio_end|> w3",
    **dict.fromkeys(OMNI, "w7 <|audio_bos|> <|AUDIO|> <|audio_eos|> w3"),
}
#: Of feature extractors, by which a window of the tiny models is one second, or two.
EXTRACTORS: dict[str, Any] = {
    "musicflamingo": transformers.WhisperFeatureExtractor(
        feature_size=8, chunk_length=1, hop_length=400
    ),
    "qwen3_asr": transformers.Qwen3ASRFeatureExtractor(feature_size=8),
    **dict.fromkeys(OMNI, transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=3)),
}
PROCESSORS = {
    "musicflamingo": "MusicFlamingoProcessor",
    "qwen3_asr": "Qwen3ASRProcessor",
    "qwen2_5_omni": "Qwen2_5OmniProcessor",
    "qwen3_omni_moe": "Qwen3OmniMoeProcessor",
}


def opened(name: str, folder: Path) -> tuple[AudioTextToTextSession, Any, Any]:
    """Open what a package of the type's tiny model would have; return also transformers' processor and model."""
    own = parity.all_cases()[f"{name}-base"]
    case = replace(own, recipe=for_task(recipe_for(own.config), AUDIO_TEXT_TO_TEXT))
    subject = parity.Subject(case.config, case.recipe)
    session = session_of(case, subject)
    assert isinstance(session, AudioTextToTextSession)
    words = {f"w{number}": number for number in range(257)}
    for word, number in WORDS[name].items():
        del words[f"w{number}"]
        words[word] = number
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = ("audio_token", "audio_bos_token", "audio_eos_token")
    tokens = dict(zip(names, WORDS[name], strict=True))
    if name in OMNI:
        recorded = (f"{one}_token" for one in ("image", "video", "vision_bos", "vision_eos"))
        tokens |= dict.fromkeys(recorded, "w1")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="w0", extra_special_tokens=tokens
    )
    kind, unseen = getattr(transformers, PROCESSORS[name]), [None, None] if name in OMNI else []
    with mock.patch.object(kind, "check_argument_for_proper_class") if unseen else nullcontext():
        processor = kind(*unseen, EXTRACTORS[name], fast)
    if unseen:
        fast.save_pretrained(folder)
        EXTRACTORS[name].save_pretrained(folder)
    else:
        processor.save_pretrained(folder)
    session.folder = folder
    session.tokenizer = session.names.tokenizer = Tokenizer.find(folder)
    return session, processor, subject.hf


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.sampled(3)
def test_answers_are_those_of_transformers_processor_and_generate(
    name: str, tmp_path: Path
) -> None:
    """Of a part of a window, and of several windows, the last of which is not full."""
    session, processor, model = opened(name, tmp_path)
    for number, seconds in enumerate((0.41, 2.7)):
        given = recording(number, seconds)
        prepared = processor(
            text=PROMPTS[name], audio=given, sampling_rate=RATE, return_tensors="pt"
        )
        with torch.no_grad():
            right = model.generate(
                **{key: array for key, array in prepared.items() if key != "num_audio_tokens"},
                max_new_tokens=8, do_sample=False, eos_token_id=None,
            )  # fmt: skip
        (found,) = session.generate(PROMPTS[name], audio=[given], generation_len=8, ignore_eos=True)
        assert found.token_ids == right[0, prepared["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("samples", [3000, 8000, 15_999, 16_000, 40_123])
def test_features_of_qwen3_asr_are_those_of_transformers(samples: int) -> None:
    """To 2e-4, half of which is the rounding of transformers' own."""
    extractor = transformers.Qwen3ASRFeatureExtractor()
    given = recording(samples, samples / RATE)
    reference = extractor(
        given, sampling_rate=RATE, padding=True, return_attention_mask=True, return_tensors="np"
    )
    ours = find(extractor.to_dict()).compute(given)
    count = int(reference["attention_mask"].sum())
    assert ours.shape == (count, 128)
    np.testing.assert_allclose(ours.T, reference["input_features"][0, :, :count], atol=2e-4, rtol=0)
    assert not reference["input_features"][0, :, count:].any()


@pytest.mark.parametrize("samples", [30, 3000, 15_999, 16_000, 47_801, 48_000])
def test_features_of_padded_audio_equal_transformers(samples: int) -> None:
    """Silence is computed as far as it is heard alone; a recording that a processor would cut is refused."""
    extractor = EXTRACTORS["qwen2_5_omni"]
    audio = find_recipe("qwen2_5_omni").audio
    processor = AudioProcessor(find(extractor.to_dict()), (8, 20), audio)
    given = recording(samples, samples / RATE)
    reference = extractor(
        given, sampling_rate=RATE, return_attention_mask=True, return_tensors="np"
    )
    ours, count = processor(given), int(reference["attention_mask"].sum())
    assert ours["feature_attention_mask"].tolist() == [[1] * count]
    right = reference["input_features"][:, :, :count]
    np.testing.assert_allclose(ours["input_features"], right, atol=2e-4, rtol=0)
    with pytest.raises(MediaError, match=r"has 3\.1 seconds; expected at most 3, the model's"):
        processor(recording(0, 3.1))
