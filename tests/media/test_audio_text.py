# SPDX-License-Identifier: Apache-2.0
"""A package that hears, from recordings to answers, against transformers' own processor and `generate`.

`test_media_recipes` compares the programs of every recipe; what is here is of one.
"""

import base64
import json
import re
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from checkout import ROOT
from compressed import recording_in
from fixtures_audio_text import RATE, Array, recorded, recording
from fixtures_builds import Models
from fixtures_serving import MODEL, connect, figures, running
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoModelForMultimodalLM, WhisperFeatureExtractor

from qeff_zoo import bench
from qeff_zoo.bench import case
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.audio_processor import AudioProcessor
from qeff_zoo.media.features import find
from qeff_zoo.multimodal.families.audio_windows import AudioWindows
from qeff_zoo.multimodal.families.voxtral import VoxtralAudio
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.prompts import chat_requests
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.sessions import open_session
from qeff_zoo.tasks.multimodal.audio_text_session import AudioTextToTextSession

#: A window of one second, in as many frames as the tiny encoder takes.
EXTRACTOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 8,
    "chunk_length": 1,
    "hop_length": 400,
    "n_fft": 400,
}
SIZES = {"ctx_len": 64, "prefill_seq_len": 8, "batch_size": 2}
pytestmark = pytest.mark.together("audio_text")


@pytest.fixture(scope="module")
def checkpoint(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a Qwen2-Audio with a tokenizer, a chat template and settings of features."""
    folder: Path = tmp_path_factory.mktemp("audio") / "tiny-audio"
    shutil.copytree(models.checkpoint("audio", "qwen2_audio"), folder)
    words = {f"w{number}": number for number in range(257)}
    words["<|AUDIO|>"] = words.pop("w200")
    tokenizer = Tokenizer(tokenizer_models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for part in messages[0].content %}"
        "{{ '<|AUDIO|> ' if part.type == 'audio' else part.text }}{% endfor %}"
    )
    (folder / "preprocessor_config.json").write_text(json.dumps(EXTRACTOR))
    return folder


@pytest.fixture(scope="module")
def package(models: Models, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return models.build(checkpoint, tmp_path_factory.mktemp("home"), **SIZES)


@pytest.fixture
def session(package: Package) -> AudioTextToTextSession:
    found = open_session(package, threads=1)
    assert isinstance(found, AudioTextToTextSession)
    return found


def reference_output(
    checkpoint: Path, prompt: list[int], recordings: list[Array], length: int
) -> list[int]:
    """Answer by transformers' feature extractor, model and `generate`."""
    made = WhisperFeatureExtractor(**{k: v for k, v in EXTRACTOR.items() if "type" not in k})(
        recordings, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt"
    )
    model = AutoModelForMultimodalLM.from_pretrained(checkpoint)
    frames = made["attention_mask"].sum(1).tolist()
    rows = iter([(((frame - 1) // 2 + 1) - 2) // 2 + 1 for frame in frames])  # Qwen2AudioProcessor
    tokens = [new for one in prompt for new in ([200] * next(rows) if one == 200 else [one])]
    found = model.generate(
        input_ids=torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        input_features=made["input_features"],
        feature_attention_mask=made["attention_mask"],
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=None,
    )
    answer: list[int] = found[0, len(tokens) :].tolist()
    return answer


def test_answers_are_those_of_transformers_generate(
    session: AudioTextToTextSession, checkpoint: Path
) -> None:
    """Of two recordings, one, and none, in one batch; in chunks that cut them."""
    first, second, third = recording(1, 0.7), recording(2, 1.0), recording(3, 0.31)
    prompts = [[3, 200, 4, 200, 5, 6], [7, 8, 200, 9], [10, 11, 12]]
    shown = [[first, second], [third], []]
    answers = session.generate(prompts, audio=shown, generation_len=8, ignore_eos=True)
    for prompt, recordings, answer in zip(prompts[:2], shown[:2], answers[:2], strict=True):
        assert answer.token_ids == reference_output(checkpoint, prompt, recordings, 8)
    model = AutoModelForMultimodalLM.from_pretrained(checkpoint)
    alone = model.generate(
        input_ids=torch.tensor([prompts[2]]), max_new_tokens=8, do_sample=False, eos_token_id=None
    )
    assert answers[2].token_ids == alone[0, 3:].tolist()


def test_a_second_question_encodes_nothing_and_requests_do_not_share_audio(
    session: AudioTextToTextSession, package: Package
) -> None:
    prompt = [200, *range(10, 30)]
    answers, counts = [], []
    for number in (1, 1, 2):
        answers += session.generate([prompt], audio=[[recording(number)]], generation_len=8)
        assert session.metrics is not None
        counts.append((session.metrics.encoded_audio, session.metrics.reused_tokens > 0))
    assert counts == [(1, False), (0, True), (1, False)]
    assert answers[0].token_ids == answers[1].token_ids
    fresh: Any = open_session(package, threads=1)
    (alone,) = fresh.generate([prompt], audio=[[recording(2)]], generation_len=8)
    assert answers[2].token_ids == alone.token_ids


def test_run_answers_about_a_recording(
    package: Package,
    session: AudioTextToTextSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = recorded(tmp_path / "speech.wav", recording(4))
    command = ["run", str(package.path), str(path), "--generation-len", "4", "--json"]
    assert main([*command, "--chat", "--prompt", "w3 w4"]) == 0
    shown = json.loads(capsys.readouterr().out)["outputs"][0]
    (expected,) = session.generate("<|AUDIO|> w3 w4", audio=[path], generation_len=4)
    assert shown["token_ids"] == expected.token_ids
    for wrong, message in (
        ([], "No text is given for"),
        (["--prompt", "w3", "--prompt", "w4"], "There are 2 prompts"),
        (["--prompt", "w3", "--timestamps"], "--timestamps does not apply"),
        (["--prompt", "w3", "--word-timestamps"], "--word-timestamps does not apply"),
        (["--prompt", "w3", "--temperature-fallback"], "--temperature-fallback does not apply"),
        (["--prompt", "w3", "--image", "a.png"], "--image does not apply"),
        (["--prompt", "w3"], r"places for recordings, and there are 1 recordings"),
    ):
        assert main([*command, *wrong]) == 1
        assert message in capsys.readouterr().err


def test_bench_counts_audio_inputs(
    package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A window of noise where none is named; a recording of another length has other tokens."""
    (noise, _) = bench.plan(package, prompt_lens=[10], generation_len=4, threads=1)
    path = recorded(tmp_path / "speech.wav", recording(5)[: RATE // 2])
    named = bench.Case(**{**asdict(noise), "audio": (str(path),)})
    whole, half = (case.measure(package, one, 1) for one in (noise, named))
    assert whole.audio_tokens > half.audio_tokens > whole.audio_tokens // 3
    assert whole.image_tokens == 0
    assert whole.encode_s
    assert whole.ttft_s > whole.encode_s
    assert main(["bench", str(package.path), "--image", "a.png"]) == 1
    assert "--image does not apply to audio-text-to-text" in capsys.readouterr().err
    with pytest.raises(
        GenerationError, match=r"audio of \d+ and 60 new tokens .* --audio, or build"
    ):
        case.measure(package, bench.Case(**{**asdict(named), "generation_len": 60}), 1)


def test_a_server_takes_audio_content_parts(
    package: Package, session: AudioTextToTextSession, tmp_path: Path
) -> None:
    path = recorded(tmp_path / "speech.wav", recording(5))
    samples, _ = soundfile.read(path, dtype="int16")
    phone = recording_in(samples, RATE, "ipod", "alac")
    files = {"wav": path.read_bytes(), "m4a": phone}
    (expected,) = session.generate("<|AUDIO|> w3 w4", audio=[path], generation_len=4)
    opened: Any = open_session(package, threads=1)
    with Engine(opened) as engine, running(engine) as url, connect(url) as client:
        for form, file in files.items():
            data = base64.b64encode(file).decode()
            parts = [
                {"type": "input_audio", "input_audio": {"data": data, "format": form}},
                {"type": "text", "text": "w3 w4"},
            ]
            answer = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": parts}],  # type: ignore[list-item, misc]
                max_tokens=4,
                temperature=0,
            )
            assert answer.choices[0].message.content == expected.text
        counted = figures(url)
    assert (counted["audio_total"], counted["encoded_audio_total"]) == (2, 1)


def test_the_guide_runs(
    package: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its `run` commands and its session, on this package, whose tokenizer knows few words."""
    guide = (ROOT / "docs" / "audio.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("my-listener").symlink_to(package.path)
    for seed, name in enumerate(("a.wav", "b.wav", "speech.wav")):
        recorded(Path(name), recording(seed))
    commands = re.findall(r"^\$ qeff-zoo (run my-listener .*)$", guide, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main([*shlex.split(command), "--generation-len", "2"]) == 0
    assert "2 of 2 recordings encoded" in capsys.readouterr().err
    code = re.findall(r"```python\n(import.*?)```", guide, re.DOTALL)
    exec(code[0], {})
    assert "1 of 1 recordings encoded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_audio", "input_audio": {"data": "!!"}}, "Expected base64"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "recording"),
        ({"type": "image_url", "image_url": {"url": "data:x"}}, "reads no images"),
    ],
)
def test_a_server_refuses_unreadable_audio(
    session: AudioTextToTextSession, part: dict[str, Any], message: str
) -> None:
    body = ChatRequest(model="m", messages=[{"role": "user", "content": [part]}])  # type: ignore[list-item]
    with pytest.raises(ApiError, match=message):
        chat_requests(session, body)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(0, np.float32), "0 samples"),
        (np.zeros(RATE + 1, np.float32), r"1\.0 seconds; expected at most 1"),
        (np.zeros(300, np.float32), "too short"),
        (np.full(9000, np.nan, np.float32), "no numbers"),
        ({"input_features": np.zeros((1, 8, 39))}, "expected windows of"),
    ],
)
def test_unreadable_audio_is_refused(
    session: AudioTextToTextSession, given: Any, message: str
) -> None:
    with pytest.raises(GenerationError, match=message):
        session.request([200, 3], audio=[given])


def test_silence_and_two_channels_are_encoded(session: AudioTextToTextSession) -> None:
    silent, stereo = np.zeros(9000, np.float32), np.stack([recording(1), recording(1)], 1)
    assert session.generate([[200, 3]], audio=[[silent]], generation_len=2)
    one, other = (session.request([200, 3], audio=[given]) for given in (stereo, recording(1)))
    assert one.encoded[0].digest == other.encoded[0].digest


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seconds", [0.4, 1.0, 2.3])
def test_windows_are_prepared_as_transformers_processors_prepare_them(
    together: bool, seconds: float
) -> None:
    """As Voxtral's, of all windows at once, or as Audio Flamingo's, of each by itself."""
    samples = recording(6, seconds)
    audio = (VoxtralAudio if together else AudioWindows)(mask="real")
    made = AudioProcessor(find(EXTRACTOR), (8, 40), audio)(samples)
    extractor = WhisperFeatureExtractor(**{k: v for k, v in EXTRACTOR.items() if "type" not in k})
    common = {"sampling_rate": RATE, "return_tensors": "np", "return_attention_mask": True}
    if together:
        found = extractor(
            samples, truncation=False, padding=True, pad_to_multiple_of=RATE, **common
        )
        features = found["input_features"].reshape(8, -1, 40).transpose(1, 0, 2)
    else:
        parts = [samples[start : start + RATE] for start in range(0, len(samples), RATE)]
        found = extractor(parts, **common)
        features = found["input_features"]
    np.testing.assert_allclose(made["input_features"], features, atol=2e-4)
    np.testing.assert_array_equal(made["real"].reshape(-1), found["attention_mask"].reshape(-1))


def test_too_long_audio_is_refused_before_features_are_computed() -> None:
    processor = AudioProcessor(find(EXTRACTOR), (8, 40), AudioWindows(windows=2))
    with pytest.raises(MediaError, match=r"2\.5 seconds; expected at most 2"):
        processor(recording(1, 2.5))
