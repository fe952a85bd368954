# SPDX-License-Identifier: Apache-2.0
"""Recordings of any length, encoded in blocks, with an adapter that is on where a prompt has recordings."""

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_audio_text import RATE, recorded, recording
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoModelForMultimodalLM, GraniteSpeechProcessor, PreTrainedTokenizerFast
from transformers.audio_utils import mel_filter_bank
from transformers.models.granite_speech import feature_extraction_granite_speech as reference_output

from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import PlanError
from qeff_zoo.media.features import find
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.program import Array
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.reference.loading import load_model

GRANITE_5 = "transformers.models.granite_speech5"
pytestmark = pytest.mark.together("block_sounds")


class MelSpectrogram(torch.nn.Module):
    """What torchaudio's class of that name computes, which is not installed here."""

    def __init__(
        self, sample_rate: int, n_fft: int, win_length: int, hop_length: int, n_mels: int
    ) -> None:
        super().__init__()
        bank = mel_filter_bank(n_fft // 2 + 1, n_mels, 0, sample_rate / 2, sample_rate)
        self.filters = torch.from_numpy(bank).float()
        self.window, self.sizes = torch.hann_window(win_length), (n_fft, hop_length, win_length)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        found = torch.stft(samples, *self.sizes, self.window, return_complex=True)
        return (found.abs().square().mT @ self.filters).mT


@pytest.fixture(autouse=True)
def torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    transforms = SimpleNamespace(MelSpectrogram=MelSpectrogram)
    monkeypatch.setattr(
        reference_output, "torchaudio", SimpleNamespace(transforms=transforms), raising=False
    )
    monkeypatch.setattr(reference_output, "requires_backends", lambda *_: None)


@pytest.mark.parametrize("samples", [257, 479, 480, 16_159, 16_160, 50_001])
def test_features_are_those_of_transformers(samples: int) -> None:
    """To 2e-5, of which float32 in torch has about half itself, against float64."""
    given = recording(samples, samples / RATE)
    extractor = reference_output.GraniteSpeechFeatureExtractor()
    made = find(extractor.to_dict()).compute(given)
    right = extractor(given)["input_features"][0].numpy()
    np.testing.assert_allclose(made, right, atol=2e-5, rtol=0)


def deltas(logs: torch.Tensor, win_length: int) -> torch.Tensor:
    """Compute what torchaudio's `compute_deltas` does of three frames."""
    assert win_length == 3
    near = torch.nn.functional.pad(logs, (1, 1), mode="replicate")
    return (near[..., 2:] - near[..., :-2]) / 2


@pytest.mark.parametrize("samples", [300, 479, 480, 16_161, 50_123])
def test_features_of_granite_speech_5_are_those_of_transformers(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-5; they were 3e-6 from those by torchaudio 2.11 itself, which is not installed here."""
    # By its full name: the package has a placeholder where torchaudio is not there.
    fifth = importlib.import_module(f"{GRANITE_5}.feature_extraction_granite_speech5")
    transforms = SimpleNamespace(MelSpectrogram=MelSpectrogram)
    functional = SimpleNamespace(compute_deltas=deltas)
    audio = SimpleNamespace(transforms=transforms, functional=functional)
    monkeypatch.setattr(fifth, "torchaudio", audio, raising=False)
    extractor = fifth.GraniteSpeech5FeatureExtractor()
    given = recording(samples, samples / RATE)
    right = extractor(given, sampling_rate=RATE, return_tensors="np")
    ours = find(extractor.to_dict())
    made = ours.compute(given)
    assert len(made) == ours.count(samples) == right["attention_mask"].sum()
    np.testing.assert_allclose(made, right["input_features"][0], atol=1e-5, rtol=0)


def saved(folder: Path) -> tuple[Path, GraniteSpeechProcessor]:
    """Save a tiny Granite Speech as published: an adapter beside it, all by the names of its time."""
    recipe: Recipe = find_recipe("granite_speech")
    config: dict[str, Any] = dict(recipe.tiny[0].config)
    config["encoder_config"] = {**config["encoder_config"], "input_dim": 160, "num_layers": 2}
    tiny = replace(recipe.tiny[0], config=config)
    checkpoint = tiny_models.make(recipe, tiny, folder / "tiny-listener")
    words = {f"w{number}": number for number in range(257)}
    words["<|audio|>"] = words.pop("w200")
    tokenizer = Tokenizer(tokenizer_models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    processor = GraniteSpeechProcessor(
        reference_output.GraniteSpeechFeatureExtractor(
            projector_window_size=6, projector_downsample_rate=3
        ),
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="w0", additional_special_tokens=["<|audio|>"]
        ),
        chat_template="{% for one in messages %}{{ 'w7 ' + one.content + ' w8' }}{% endfor %}",
    )
    processor.save_pretrained(checkpoint)
    weights = checkpoint / "model.safetensors"
    base = load_file(weights)
    model = AutoModelForMultimodalLM.from_pretrained(checkpoint)
    model.add_adapter(LoraConfig(r=3, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(str(checkpoint))
    save_file(base, weights, metadata={"format": "pt"})  # which that has overwritten
    adapter = checkpoint / "adapter_model.safetensors"
    inner = "language_model."
    old = {
        name.replace(f"model.{inner}", f"{inner}model."): value
        for name, value in load_file(adapter).items()
    }
    save_file(old, adapter, metadata={"format": "pt"})
    return checkpoint, processor


def answer(checkpoint: Path, processor: GraniteSpeechProcessor, given: Array) -> list[int]:
    """Answer by transformers' processor, model, adapter and `generate`."""
    model = AutoModelForMultimodalLM.from_pretrained(checkpoint)
    prepared = processor(text="w7 <|audio|> w3 w4 w8", audio=given, return_tensors="pt")
    found = model.generate(**prepared, max_new_tokens=6, do_sample=False, eos_token_id=None)
    return found[0, prepared["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]


@pytest.mark.full
def test_a_package_with_the_adapter_answers_as_generate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, processor = saved(tmp_path)
    with pytest.raises(PlanError, match=r"expected it to be merged. Give --adapter"):
        pipeline.build(str(checkpoint), store=Store(tmp_path / "store"))
    request = Request(adapter=(str(checkpoint),), ctx_len=96)
    package = tmp_path / "package"
    pipeline.build(
        str(checkpoint), request, validate=False, output=package, store=Store(tmp_path / "store")
    )
    path = tmp_path / "speech.wav"
    command = ["--prompt", " w3 w4", "--chat", "--generation-len", "6"]
    for number, samples in enumerate((1234, 5003, 16_161)):
        given = recording(number, samples / RATE)
        recorded(path, given)
        capsys.readouterr()
        assert main(["run", str(package), str(path), *command, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["outputs"]
        audio = (given * 32767).astype("<i2").astype(np.float32) / 32768
        assert found["token_ids"] == answer(checkpoint, processor, audio)
    assert main(["run", str(package), *command]) == 1
    assert "has no audio; expected one at least" in capsys.readouterr().err


def test_the_reference_has_the_adapter_once(tmp_path: Path) -> None:
    """Whether transformers has loaded it, where peft is installed, or not."""
    checkpoint, _ = saved(tmp_path)
    settings = {
        "checkpoint": str(checkpoint),
        "adapters": [{"folder": str(checkpoint), "weight": 1.0}],
    }
    tokens = torch.arange(3, 9)[None]
    logits = [
        load_model(settings, "audio-text-to-text", None)(input_ids=tokens).logits,
        AutoModelForMultimodalLM.from_pretrained(checkpoint)(input_ids=tokens).logits,
    ]
    shutil.move(checkpoint / "adapter_config.json", tmp_path / "adapter_config.json")
    shutil.copy(checkpoint / "adapter_model.safetensors", tmp_path)
    apart = {**settings, "adapters": [{"folder": str(tmp_path), "weight": 1.0}]}
    logits.append(load_model(apart, "audio-text-to-text", None)(input_ids=tokens).logits)
    for logit in logits[1:]:
        torch.testing.assert_close(logit, logits[0], atol=1e-4, rtol=1e-4)
