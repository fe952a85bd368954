# SPDX-License-Identifier: Apache-2.0
"""Text to speech: samples are Hugging Face's for the same noise, tokens those of VitsTokenizer."""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import small_voice
import soundfile
import torch
from fixtures_serving import KEY, MODEL, connect, post, running
from transformers import VitsModel, VitsTokenizer

from qeff_zoo import cli
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import TextToSpeechSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.text_to_speech import passages
from qeff_zoo.tasks.text_to_speech.characters import Characters
from qeff_zoo.tasks.text_to_speech.endpoints import VoiceQueue
from qeff_zoo.tasks.text_to_speech.files import PCM_RATE, content_of
from qeff_zoo.tasks.text_to_speech.speech import Speech

pytestmark = pytest.mark.turns(2)

#: Vocabulary of a tiny model: the token of number 0 is a letter, as in MMS.
TEXTS = (
    *(
        "Hello world",
        "  Don't  ",
        "KAK ak",
        "\u021b \u0163 \u00c9\u00dc",
        "a\nb\tc",
        "7! (a) b\u2026",
    ),
    *("Stra\u00dfe \u0130\u03a3", "\U0001f600 ok", "<unk> <pad> k", "e\u0301", "", "!?"),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vits") / "checkpoint"
    small_voice.write(folder)
    return folder


@pytest.fixture(scope="module")
def package(checkpoint: Path) -> Package:
    requested = Request(seq_lens=(16, 48), batch_size=2)
    store = Store(checkpoint.parent / "store")
    return build(str(checkpoint), requested, validate=False, store=store).package


@pytest.fixture(scope="module")
def session(package: Package) -> TextToSpeechSession:
    opened = open_session(package, threads=1)
    assert isinstance(opened, TextToSpeechSession)
    return opened


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    return VitsModel.from_pretrained(checkpoint).eval()


@pytest.fixture(scope="module")
def url(package: Package) -> Iterator[str]:
    opened = open_session(package, threads=1)
    with closing(VoiceQueue(opened, max_waiting=4)) as queue, running(queue) as address:
        yield address


# --- samples -------------------------------------------------------------------------------------


def expected_of(model: Any, tokens: list[int], seed: int, **options: Any) -> tuple[Any, list[Any]]:
    """Return the waveform of the unpatched model, and the noise that PyTorch gave it."""
    with torch.no_grad():
        torch.manual_seed(seed)
        made = model(torch.tensor([tokens]), **options)
        torch.manual_seed(seed)
        durations = torch.randn(1, 2, len(tokens))
        frames = torch.empty(1, made.spectrogram.shape[2], made.spectrogram.shape[1])
        noise = torch.randn_like(frames.transpose(1, 2))
    return made, [durations[0].T.numpy(), noise[0].T.numpy()]


def spoken(session: TextToSpeechSession, tokens: list[int], noise: list[Any], **chosen: Any) -> Any:
    """Return the samples of a package for given noise."""
    options = session.options(seed=0, **chosen)
    (priors,) = session.encode([tokens], noise[:1], [options])
    frames = priors.frames(
        priors.durations(options.speaking_rate), lambda _: noise[1], options.noise_scale
    )
    return session.decode([frames], [options])[0]


def spectrogram(samples: Any) -> Any:
    """Return magnitudes by frame and frequency."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, 32)[::8]
    return np.abs(np.fft.rfft(frames * np.hanning(32)))


@pytest.mark.parametrize("speaker", [0, 2])
@pytest.mark.parametrize("rate", [None, 2.5])
def test_samples_are_those_of_the_model_for_equal_noise(
    speaker: int, rate: float | None, session: TextToSpeechSession, model: Any
) -> None:
    (tokens,) = session.read("the quick brown fox")
    made, noise = expected_of(model, tokens, 1 + speaker, speaker_id=speaker, speaking_rate=rate)
    got = spoken(session, tokens, noise, speaker=speaker, speaking_rate=rate)
    wanted = made.waveform[0].numpy()
    assert got.shape == wanted.shape
    assert len(got) == int(made.sequence_lengths[0]) > 150
    assert np.abs(got - wanted).max() <= 1e-4 * wanted.std()
    both = spectrogram(got), spectrogram(wanted)
    assert np.abs(both[0] - both[1]).max() <= 1e-4 * both[1].std()
    other = spoken(session, tokens, [noise[0], -noise[1]], speaker=speaker, speaking_rate=rate)
    assert np.abs(other - wanted).max() > 1e-2 * wanted.std()


def test_samples_without_noise_are_those_of_the_model(
    session: TextToSpeechSession, model: Any
) -> None:
    text = "a plain text"
    model.noise_scale = model.noise_scale_duration = 0.0
    try:
        made, _ = expected_of(model, session.read(text)[0], 0, speaker_id=1)
    finally:
        model.noise_scale = model.config.noise_scale
        model.noise_scale_duration = model.config.noise_scale_duration
    (got,) = session.synthesize(text, speaker=1, noise_scale=0, noise_scale_duration=0)
    wanted = made.waveform[0].numpy()
    assert got.sampling_rate == 16_000
    assert np.abs(got.audio - wanted).max() <= 1e-4 * wanted.std()


def test_a_call_of_two_texts_has_the_samples_of_each(session: TextToSpeechSession) -> None:
    texts = ["the first of them is longer", "second"]
    random = np.random.default_rng(0)
    rows = [session.read(text)[0] for text in texts]
    noise = [random.standard_normal((len(row), 2), np.float32) for row in rows]
    options = [session.options(seed=0, speaker=number) for number in range(2)]
    priors = session.encode(rows, noise, options)
    frames = [
        prior.frames(prior.durations(0.5), lambda shape: np.ones(shape, np.float32), 0.5)
        for prior in priors
    ]
    waves = session.decode(frames, options)
    for number in range(2):
        (alone,) = session.decode(frames[number : number + 1], options[number : number + 1])
        assert len(alone) == len(frames[number]) * session.hop
        assert np.abs(alone - waves[number]).max() <= 1e-5 * alone.std()


def test_a_seed_gives_equal_samples(session: TextToSpeechSession) -> None:
    first, again, other = (session.synthesize("hello", seed=seed)[0].audio for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert first.shape != other.shape or np.abs(first - other).max() > 1e-3
    random = [session.synthesize("hello")[0].audio for _ in range(2)]
    assert random[0].shape != random[1].shape or not np.array_equal(*random)
    slow, fast = (session.synthesize("hello", seed=1, speed=one)[0].audio for one in (0.5, 2))
    assert len(slow) > len(first) >= len(fast)


# --- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"add_blank": False}, {"language": "ron"}, {"is_uroman": True}),
        *({"pad_token": "<pad>"}, {"added": {"<unk>": 35}}, {"split_special_tokens": True}),
        {
            "added_tokens_decoder": {
                "2": {"content": "a", "lstrip": True, "rstrip": True, "special": True}
            }
        },
    ],
)
def test_tokens_are_those_of_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    small_voice.write_tokenizer(tmp_path, **settings)
    reference, ours = VitsTokenizer.from_pretrained(tmp_path), Characters.find(tmp_path)
    assert ours is not None
    texts = [text for text in TEXTS if text.isascii() or not settings.get("is_uroman")]
    if settings.get("split_special_tokens"):  # where transformers speaks a blank of nothing
        texts = [text for text in texts if ours.encode(text)]
    assert [ours.encode(text) for text in texts] == [reference(text).input_ids for text in texts]
    assert sum(bool(ours.encode(text)) for text in texts) >= 5


def test_a_text_that_needs_a_missing_package_is_refused(tmp_path: Path) -> None:
    small_voice.write_tokenizer(tmp_path, is_uroman=True)
    tokenizer = Characters.find(tmp_path)
    assert tokenizer is not None
    with pytest.raises(GenerationError, match=r"needs romanization .* 'uroman' is not installed"):
        tokenizer.encode("\u3053\u3093")
    small_voice.write_tokenizer(tmp_path, phonemize=True)
    tokenizer = Characters.find(tmp_path)
    assert tokenizer is not None
    with pytest.raises(GenerationError, match=r"needs phonemes .* 'phonemizer' is not installed"):
        tokenizer.encode("hello")


def test_an_unknown_character_is_refused_without_normalization(tmp_path: Path) -> None:
    small_voice.write_tokenizer(tmp_path, normalize=False)
    tokenizer = Characters.find(tmp_path)
    assert tokenizer is not None
    with pytest.raises(GenerationError, match="the character 'H', which the model has no token"):
        tokenizer.encode("Hello")


def test_a_long_text_is_spoken_in_parts(session: TextToSpeechSession) -> None:
    text = "one two three. four five six, seven eight nine ten. eleven"
    encode = session.characters.encode  # type: ignore[union-attr]
    parts = session.read(text)
    assert parts == [
        encode("one two three."),
        encode("four five six,"),
        encode("seven eight nine ten."),
        encode("eleven"),
    ] or all(len(part) <= 48 for part in parts)
    assert len(parts) > 1
    assert session.read(text, by_sentence=True)[0] == encode("one two three.")
    whole = session.synthesize(text, seed=3)[0].audio
    options = session.options(seed=3)
    each = [one.audio for one in session.speak(parts, options)]
    assert np.array_equal(whole, np.concatenate(each))


def test_parts_have_the_whole_text() -> None:
    text = "One two. Three, four!\nFive? \u3053\u3093\u3002\u306b\u3061\u306f six-seven"
    for longest in range(10, 60):
        parts = passages.parts_of(text, lambda one: [*map(ord, one)], longest)
        assert all(0 < len(part) <= longest for part in parts)
        joined = "".join("".join(map(chr, part)) for part in parts)
        assert joined.replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")


@pytest.mark.parametrize(
    ("text", "chosen", "found"),
    [
        ("", {}, "has nothing to speak"),
        ("!?\u3053", {}, "no character of it is in the model's vocabulary"),
        ("a" * 30, {}, "The word 'aaa.* has 61 tokens; expected at most 48"),
        ([], {}, "A text has 0 tokens"),
        ([99], {}, "Token id 99 is not of this model"),
        ("a", {"speaker": 3}, "The speaker is 3; expected a number from 0 to 2"),
        ("a", {"speaker": True}, "The speaker is True"),
        ("a", {"speed": 5}, "The speed is 5; expected a number from 0.25 to 4"),
        ("a", {"speaking_rate": 0}, "The speaking rate is 0"),
        ("a", {"noise_scale": float("nan")}, "The option noise_scale is nan"),
        ("a", {"noise_scale_duration": -1}, "The option noise_scale_duration is -1"),
        ("a", {"seed": -1}, "The seed is -1"),
        ("a" * 20, {"speaking_rate": 1e-6}, "frames of .* expected at most 65,536 in a call"),
    ],
)
def test_what_cannot_be_spoken_is_refused(
    text: Any, chosen: dict[str, Any], found: str, session: TextToSpeechSession
) -> None:
    with pytest.raises(GenerationError, match=found):
        session.synthesize(text if isinstance(text, str) else [text], **chosen)


def test_a_checkpoint_without_a_vocabulary_takes_token_ids(
    package: Package, session: TextToSpeechSession, tmp_path: Path
) -> None:
    copied = object.__new__(TextToSpeechSession)
    vars(copied).update({**vars(session), "characters": None, "folder": tmp_path})
    with pytest.raises(GenerationError, match=r"has no vocab.json .* Give a list of them"):
        copied.synthesize("hello")
    assert copied.synthesize([[1, 2, 3]])[0].seconds > 0


@pytest.mark.parametrize(
    ("config", "requested", "found"),
    [
        ({}, {"seq_lens": (4, 16)}, "--seq-lens has 4, but a text has at least 8 tokens"),
        ({"upsample_kernel_sizes": [7]}, {}, "an upsampling kernel of 7 for the rate 4"),
        ({"window_size": 9}, {}, "has the window_size 9; expected 1 to 6"),
    ],
)
def test_a_wrong_build_is_refused(
    config: dict[str, Any],
    requested: dict[str, Any],
    found: str,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in checkpoint.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    known = json.loads((checkpoint / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**known, **config}))
    with pytest.raises(PlanError, match=found):
        build(str(changed), Request(**requested), store=Store(tmp_path / "store"))


# --- commands ------------------------------------------------------------------------------------


def test_run_writes_files(
    package: Package,
    session: TextToSpeechSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wav, flac, folder = tmp_path / "a.wav", tmp_path / "b.FLAC", str(package.path)
    given = ["--prompt", "hello there", "--prompt", "bye", "--seed", "5", "--voice", "1"]
    outputs = ["--output", str(wav), "--output", str(flac)]
    assert cli.main(["run", folder, *given, *outputs, "--speed", "0.5"]) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "seconds", "samples/s", "times", "real", "time"]
    assert [row.split()[0] for row in rows] == ["hello", "bye"]
    expected = session.synthesize(["hello there", "bye"], seed=5, speaker=1, speed=0.5)
    for path, one in zip((wav, flac), expected, strict=True):
        samples, rate = soundfile.read(path, dtype="float32")
        assert rate == one.sampling_rate
        assert np.abs(samples - one.audio).max() <= 2 / 32_767
    assert f"{expected[0].seconds:.2f}" in rows[0]
    assert cli.main(["run", folder, "--prompt", "bye", "--seed", "5", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    assert found["text"] == "bye"
    assert found["sampling_rate"] == 16_000
    assert np.allclose(found["audio"], session.synthesize("bye", seed=5)[0].audio)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--prompt", "a", "--output", "a.png"], "ends with .wav or .flac or .mp3 or .opus"),
        (["--prompt", "a", "--output", "a.wav", "--output", "b.wav"], "--prompt 1 times"),
        (["--prompt", "a", "--voice", "7"], "The speaker is 7; expected a number from 0 to 2"),
        (["--prompt", "a", "--speed", "9"], "The speed is 9.0"),
        (["--prompt", "!"], "has nothing to speak"),
        (["--prompt", "a", "--temperature", "1"], "--temperature does not apply"),
    ],
)
def test_run_refuses(
    given: list[str], found: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(package.path), *given]) == 1
    assert found in capsys.readouterr().err


# --- server --------------------------------------------------------------------------------------


def test_the_server_speaks_to_clients_of_openai(url: str, session: TextToSpeechSession) -> None:
    (expected,) = session.synthesize("hello there", seed=4, speaker=2, speed=0.5)
    with closing(connect(url)) as client:
        create = partial(
            client.audio.speech.create,
            model=MODEL,
            input="hello there",
            voice="2",
            speed=0.5,
            extra_body={"seed": 4},
        )
        for name in ("wav", "flac", "mp3", "opus"):
            answer = create(response_format=name)
            samples, rate = soundfile.read(io.BytesIO(answer.read()), dtype="float32")
            assert rate == expected.sampling_rate
            if name in ("wav", "flac"):
                assert np.abs(samples - expected.audio).max() <= 2 / 32_767
        pcm = np.frombuffer(create(response_format="pcm").read(), "<i2")
        assert abs(len(pcm) / PCM_RATE - expected.seconds) < 0.01
        assert create(voice="alloy").read()[:3] != b"RIF"  # mp3 by default
        for name in ("aac", "speed"):
            chosen = {"response_format": name} if name == "aac" else {"speed": 9}
            with pytest.raises(openai.BadRequestError, match=r"expected|less than"):
                create(**chosen)
        with pytest.raises(
            openai.BadRequestError, match=r"the number of a speaker from '0' to '2'"
        ):
            create(voice="7")
        with pytest.raises(openai.BadRequestError, match="has nothing to speak"):
            create(input="\u3053")


def test_the_server_streams_sentences(url: str, session: TextToSpeechSession) -> None:
    text = "one two three. four five six. seven"
    parts = [one.audio for one in session.stream(text, seed=4)]
    assert len(parts) == 3
    whole = np.concatenate(parts)
    with closing(connect(url)) as client:
        create = partial(
            client.audio.speech.with_streaming_response.create,
            model=MODEL,
            input=text,
            voice="alloy",
            response_format="wav",
            extra_body={"seed": 4},
        )
        with create(stream_format="audio") as answer:
            got = np.frombuffer(b"".join(answer.iter_bytes())[44:], "<i2") / 32_767
        assert np.abs(got - whole).max() <= 1 / 32_767
        with create(stream_format="sse") as answer:
            lines = [line for line in answer.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 3 + ["speech.audio.done"]
    data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert np.array_equal(np.frombuffer(data[44:], "<i2") / 32_767, got)
    body = {"model": MODEL, "input": text, "response_format": "flac", "stream_format": "sse"}
    status, answer = post(
        url, "audio/speech", json.dumps(body).encode(), authorization=f"Bearer {KEY}"
    )
    assert status == 400
    assert "wav or pcm or mp3 with 'stream_format'" in answer["error"]["message"]


def test_files_have_the_samples() -> None:
    time = np.arange(22_050) / 22_050
    speech = Speech(audio=np.sin(2 * np.pi * 440 * time).astype(np.float32), sampling_rate=22_050)
    wav, rate = soundfile.read(io.BytesIO(content_of(speech, "wav")), dtype="float32")
    assert rate == 22_050
    assert np.abs(wav - speech.audio).max() <= 2 / 32_767
    _, rate = soundfile.read(io.BytesIO(content_of(speech, "opus")))
    assert rate == 24_000  # Opus has no 22,050
    assert len(content_of(speech, "pcm")) == 2 * PCM_RATE
