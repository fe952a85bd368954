# SPDX-License-Identifier: Apache-2.0
"""Speech recognition by labels of frames: logits and text are Hugging Face's, whatever a recording is padded with."""

import json
import re
import runpy
import warnings
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import pytest
import selection
import soundfile
import tokenizers
import torch
import transformers
from checkout import ROOT
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled, emulated
from fixtures_speech import (
    FACTS,
    RATE,
    VOCAB,
    alone,
    checkpoint,
    distance,
    model,
    noise_of,
    package,
    padded,
    recordings_for,
    session,
)
from parity import Array, Subject
from tiny_checkpoint import plain_class
from torch import nn

import qeff_zoo
from qeff_zoo import bench, pipeline
from qeff_zoo.bench import case as bench_case
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, MediaError, PackageError, PlanError
from qeff_zoo.export.tracing.ctc_tracing import Listen
from qeff_zoo.export.transforms import frames
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe, list_recipes
from qeff_zoo.sessions import CtcSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.tasks.speech.ctc_decoding import CharacterLabels
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial.sample_audio import voice

pytestmark = pytest.mark.turns(2)

__all__ = ["checkpoint", "model", "package", "rt", "session"]
RECIPES = [recipe for recipe in list_recipes() if recipe.task == "automatic-speech-recognition"]
CASES = {
    f"{recipe.model_type}-{tiny.name}": (recipe, tiny) for recipe in RECIPES for tiny in recipe.tiny
}
#: Recipes whose graphs are compared in any case; those of all were when their evidence was recorded.
TRACED = ["wav2vec2-base", "sew-three"]


@cache
def subject(name: str) -> Subject:
    recipe, tiny = CASES[name]
    return Subject(tiny_models.config_of(recipe, tiny), recipe)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4, kept=selection.first_tinies())
def test_logits_are_hugging_faces_whatever_stands_behind_the_end(name: str) -> None:
    """QEfficient pads with zeros and has no mask, so that most labels of a short recording are others."""
    of = subject(name)
    recordings = recordings_for(of)
    wanted, noise = alone(of.hf, recordings), noise_of(of, recordings)
    traced = name in TRACED or parity.EVERY
    for how in ("torch", "portable", "fp32") if traced else ("torch",):
        for more, filling in ((0, 0.0), (77, 0.0), (160, 3.0)):
            feeds = padded(recordings, more, filling)
            assert distance(of, how, feeds, wanted) <= parity.TOLERANCE[how] * noise, (how, more)


def test_zeros_without_a_mask_give_other_labels() -> None:
    """What is avoided matters: the same recording, padded and unmasked, is another to the model."""
    of = subject("wav2vec2-base")
    (_, short), (_, wanted) = recordings_for(of), alone(of.hf, recordings_for(of))
    (got,) = alone(of.hf, [np.pad(short, (0, 20_000))])
    changed = got[: len(wanted)].argmax(-1) != wanted.argmax(-1)
    assert changed.mean() > 0.2


# --- facts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", FACTS)
def test_dropped_fact_of_a_speech_model_shows(fact: str) -> None:
    import copy

    name, change = FACTS[fact]
    of = subject(name)
    recordings = recordings_for(of)
    other = copy.deepcopy(of.hf)
    with torch.no_grad():
        change(other)
    tolerance = parity.TOLERANCE["torch"] * noise_of(of, recordings)
    feeds = padded(recordings, 20)
    assert distance(of, "torch", feeds, alone(other, recordings)) > parity.DROPPED * tolerance


@pytest.mark.parametrize("groups", [4, 1], ids=["of each channel", "of all"])
@pytest.mark.parametrize("length", [400_009, 1000, 9])
def test_a_norm_over_long_audio_stays_within_float16(groups: int, length: int) -> None:
    torch.manual_seed(0)
    model = nn.Module()
    model.conv, model.norm = nn.Conv1d(1, 4, 1, 5), nn.GroupNorm(groups, 4)
    expected_frames = (length - 1) // 5 + 1
    states = 3 * torch.randn(1, 4, expected_frames) + 2
    expected = model.norm(states)
    frames._limit(model.norm, model.conv, frames.AudioLengths(lengths=torch.tensor([length])))
    padded = torch.cat([states, torch.full((1, 4, 7), 900.0)], 2)
    torch.testing.assert_close(model.norm(padded)[..., :-7], expected, rtol=1e-4, atol=1e-5)
    narrow = model.half().norm(padded.half())[..., :-7]
    torch.testing.assert_close(narrow.float(), expected, rtol=0.01, atol=0.01)


# --- a package, from the checkpoint to the text --------------------------------------------------


@pytest.fixture(scope="module")
def reference_output(checkpoint: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.pipeline(
            "automatic-speech-recognition",
            model=transformers.AutoModelForCTC.from_pretrained(
                checkpoint, attn_implementation="eager"
            ),
            tokenizer=transformers.AutoTokenizer.from_pretrained(checkpoint),
            feature_extractor=transformers.AutoFeatureExtractor.from_pretrained(checkpoint),
        )


def as_pipeline(found: Any) -> list[tuple[str, float, float]]:
    return [(word.text, round(word.start, 6), round(word.end, 6)) for word in found.words]


def of_pipeline(answer: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    return [
        (chunk["text"], *(round(float(at), 6) for at in chunk["timestamp"]))
        for chunk in answer["chunks"]
    ]


@pytest.mark.parametrize("samples", [900, 4000, 4001, 15_999])
@pytest.mark.sampled(2)
def test_text_and_times_of_words_are_the_pipelines(
    samples: int, session: CtcSession, reference_output: Any
) -> None:
    recording = voice(samples, RATE, samples)
    wanted = reference_output(recording.copy(), return_timestamps="word")
    (found,) = session.transcribe(recording)
    assert found.text == wanted["text"]
    assert as_pipeline(found) == of_pipeline(wanted)
    assert found.seconds == samples / RATE


def test_a_long_recording_is_read_to_its_end_as_the_pipeline_reads_windows(
    session: CtcSession, reference_output: Any
) -> None:
    """QEfficient cuts what is longer than its graph, and says nothing."""
    recording = voice(50_000, RATE, 7)
    width = 16_000 // session.step
    overlap = (width // 6) * session.step / RATE
    wanted = reference_output(
        recording.copy(),
        return_timestamps="word",
        chunk_length_s=width * session.step / RATE,
        stride_length_s=overlap,
    )
    (found,) = session.transcribe(recording)
    assert found.text == wanted["text"]
    assert as_pipeline(found) == of_pipeline(wanted)
    assert found.words[-1].end > 45_000 / RATE


def test_cards_label_frames_as_hugging_face_does(
    package: Any,
    checkpoint: Path,
    reference_output: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(package.path.parents[3]))
    request = Request(target="qaic", seq_lens=(4000, 16_000), batch_size=2)
    folder = pipeline.prepare(str(checkpoint), tmp_path / "prepared", request=request)
    emulated(folder)
    on_cards = open_session(adopt(folder, compiled(folder, tmp_path), Store(tmp_path)))
    assert isinstance(on_cards, CtcSession)
    recordings = [voice(length, RATE, length) for length in (900, 15_999, 4000)]
    for recording, found in zip(recordings, on_cards.transcribe(recordings), strict=True):
        wanted = reference_output(recording.copy(), return_timestamps="word")
        assert (found.text, as_pipeline(found)) == (wanted["text"], of_pipeline(wanted))


def test_several_of_different_lengths_are_each_as_alone(session: CtcSession) -> None:
    recordings = [voice(length, RATE, length) for length in (3000, 20_000, 1200)]
    together = session.transcribe(recordings)
    assert together == [session.transcribe(recording)[0] for recording in recordings]


def test_silence_and_a_click_are_text_without_words(session: CtcSession) -> None:
    silence, click = session.transcribe([np.zeros(8000, np.float32), np.ones(5, np.float32)])
    assert np.isfinite(silence.seconds)
    assert (click.text, click.words) == ("", ())


def test_bad_recordings_are_refused(session: CtcSession) -> None:
    with pytest.raises(MediaError, match="0 samples"):
        session.transcribe(np.zeros(0, np.float32))
    with pytest.raises(MediaError, match="cannot be read"):
        session.transcribe(b"no sound")


def test_the_command_writes_text_times_and_json(
    package: Any, tmp_path: Path, session: CtcSession, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "speech.wav"
    both = np.stack([voice(9000, 32_000, 3)] * 2, 1)
    soundfile.write(path, both, 32_000)
    (wanted,) = session.transcribe(path)
    assert main(["run", str(package.path), str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], len(found["words"])) == (wanted.text, len(wanted.words))
    assert main(["run", str(package.path), str(path), "--timestamps"]) == 0
    assert "from s" in capsys.readouterr().out
    assert main(["run", str(package.path), str(path)]) == 0
    assert capsys.readouterr().out.strip() == wanted.text
    (tmp_path / "damaged.wav").write_bytes(path.read_bytes()[:50])
    assert main(["run", str(package.path), str(path), str(tmp_path / "damaged.wav")]) == 1
    printed_text = capsys.readouterr()
    assert (printed_text.out, "damaged.wav" in printed_text.err) == ("", True)
    assert main(["run", str(package.path), "--prompt", "hello"]) == 1
    assert "expected audio: RECORDING. Leave" in capsys.readouterr().err
    for idle in (["--chat"], ["--image", "a.png"], ["--stop", "a"]):
        assert main(["run", str(package.path), str(path), *idle]) == 1
        assert f"{idle[0]} does not apply to automatic-speech" in capsys.readouterr().err


def test_bench_measures_a_recording_or_noise(
    package: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "speech.wav"
    soundfile.write(path, voice(24_000, RATE, 1), RATE)
    (_, noise), (_, named) = (
        bench.plan_speech(package, threads=1, audio=given) for given in ((), [str(path)])
    )
    for case, seconds in ((noise, 1.0), (named, 1.5)):
        found = bench_case.measure_speech(package, case, 1)
        assert (found.batch_size, found.audio_s, found.audio) == (2, seconds, case.audio)
        assert found.total_s == pytest.approx(2 * seconds * found.real_time_factor)
        assert (found.ttft_s, found.generated_tokens, found.decode_tokens_per_s) == (None,) * 3
    for idle in ("--generation-len", "--prompt-len"):
        assert main(["bench", str(package.path), idle, "4"]) == 1
        assert f"{idle} does not apply to automatic-speech" in capsys.readouterr().err


def test_a_package_without_a_vocabulary_is_refused(session: CtcSession) -> None:
    bare = CtcSession(session.folder, session._program)
    bare.labels = None
    with pytest.raises(GenerationError, match="no vocabulary"):
        bare.transcribe(voice(2000, RATE, 0))


def test_an_adapter_is_refused_before_anything_is_built(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_bytes())
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, "add_adapter": True}))
    with pytest.raises(PlanError, match="add_adapter"):
        pipeline.make_plan(str(tmp_path), Request())


def test_lengths_without_a_frame_are_refused_before_anything_is_built(checkpoint: Path) -> None:
    with pytest.raises(PlanError, match=r"--seq-lens has 300, but .* takes at least 1,600"):
        pipeline.make_plan(str(checkpoint), Request(seq_lens=(16_000, 300)))


def test_qefficients_class_answers_with_texts(
    model: qeff_zoo.QEFFAutoModelForCTC, session: CtcSession, tmp_path: Path
) -> None:
    recordings = [voice(3000, RATE, 1), voice(30_000, RATE, 2)]
    wanted = [found.text for found in session.transcribe(recordings)]
    assert model.generate(None, recordings) == wanted
    assert model.generate(None, torch.from_numpy(recordings[1])) == wanted[1:]
    assert (
        model.generate(None, torch.from_numpy(recordings[1])[None]) == wanted[1:]
    )  # by torchaudio
    assert model.generate(None, [recordings[0][None], recordings[1]]) == wanted
    assert model.generate(None, recordings[1].tolist()) == wanted[1:]
    soundfile.write(tmp_path / "a.wav", recordings[0], RATE, subtype="FLOAT")
    path = tmp_path / "a.wav"
    assert model.generate(None, str(path)) == model.generate(None, [path.read_bytes()])
    assert model.generate(None, [path, recordings[1]]) == wanted
    assert model.generate(None, []) == []
    with pytest.raises(GenerationError, match=r"The inputs are \['input_values'\]; expected samp"):
        model.generate(None, {"input_values": recordings[0][None]})  # type: ignore[arg-type]


def test_the_guides_snippet_runs_with_one_changed_line(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs" / "from-qefficient.md").read_text(encoding="utf-8")
    snippet = guide.partition("### Speech by CTC\n\n```diff\n")[2].partition("```")[0]
    code = "\n".join(line[1:] for line in snippet.splitlines() if line[0] != "-")
    (name,) = set(re.findall(r'from_pretrained\("([^"]+)"', code))
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "store"))
    monkeypatch.setattr(pipeline, "build", partial(pipeline.build, validate=False))
    lines: list[Any] = []
    with pytest.warns(UserWarning, match="There is no Cloud AI SDK here"):
        exec(code, {"samples": voice(16_000, RATE, 1), "print": lines.append})
    ((text,),) = lines
    assert isinstance(text, str)


# --- labels that are pieces ----------------------------------------------------------------------


class _Direct:
    """A program that is Hugging Face's model itself."""

    def __init__(self, model: Any) -> None:
        self._model = model
        bins = model.config.encoder_config.num_mel_bins
        shape = SimpleNamespace(shape=("batch_size", "seq_len", bins))
        self.inputs = {"input_features": shape, "attention_mask": shape}
        self.outputs = {"logits": shape, "lengths": shape}
        self.specializations = [{"name": "Audio", "symbols": {"batch_size": "1", "seq_len": "200"}}]

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        given = {name: torch.from_numpy(value) for name, value in inputs.items()}
        with torch.no_grad():
            logits, lengths = Listen(self._model)(*given.values())
        return {"logits": logits.numpy(), "lengths": lengths.numpy()}


@pytest.mark.parametrize(
    ("model_type", "name", "blank", "frame"),
    [("parakeet_ctc", "Parakeet", 36, 0.08), ("lasr_ctc", "Lasr", 0, 0.04)],
)
def test_text_and_times_of_pieces_are_of_the_models_labels(
    tmp_path: Path, model_type: str, name: str, blank: int, frame: float
) -> None:
    """Frames are some times 10 ms long, and labels pieces of words, of which the last or the first is the blank."""
    recipe = find_recipe(model_type)
    folder = tiny_models.make(recipe, recipe.tiny[0], tmp_path / name)
    pieces = [f"\u2581w{at}" if at % 2 else f"x{at}" for at in range(37)]
    pieces[blank] = "<pad>"
    vocab = {piece: at for at, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="x2"))
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    extract = getattr(transformers, f"{name}FeatureExtractor")(feature_size=16)
    extract.save_pretrained(folder)
    reference = getattr(transformers, f"{name}ForCTC").from_pretrained(folder).eval()
    session = CtcSession(folder, _Direct(reference))
    recording = voice(31_000, RATE, 1)
    audio = extract(recording, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt")
    (bias,) = (value for of, value in reference.ctc_head.named_parameters() if "bias" in of)
    with torch.no_grad():
        bias -= reference(**audio).logits.mean(
            (0, 1)
        )  # else one label is the likeliest of all frames
        labels = reference(**audio).logits[0].argmax(-1).tolist()
    begun = [at for at, label in enumerate(labels) if [label] != labels[at - 1 : at]]
    kept = [labels[at] for at in begun if labels[at] != blank]
    (found,) = session.transcribe(recording)
    assert found.text == tokenizer.decode(kept).strip()
    words = [at for at in begun if labels[at] != blank and labels[at] % 2]
    assert [word.start for word in found.words if word.text[0] == "w"] == pytest.approx(
        [at * frame for at in words]
    )
    assert len(words) > 2
    (long,) = session.transcribe(voice(50_000, RATE, 2))  # in windows
    assert long.words[-1].end > 2.5


# --- labels --------------------------------------------------------------------------------------


def test_labels_are_read_as_the_tokenizer_reads_them(checkpoint: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    ours = CharacterLabels(VOCAB, json.loads((checkpoint / "tokenizer_config.json").read_bytes()))
    random = np.random.default_rng(0)
    for _ in range(50):
        labels = random.choice([0, 0, 4, 4, 5, 6, 7, 3], 40).tolist()
        wanted = tokenizer.decode(labels, output_word_offsets=True)
        text, words = ours.read(labels)
        assert text == wanted.text
        assert [(w.text, w.start, w.end) for w in words] == [
            (o["word"], o["start_offset"], o["end_offset"]) for o in wanted.word_offsets
        ]


def test_a_vocabulary_without_a_blank_is_refused() -> None:
    with pytest.raises(PackageError, match="'<pad>'"):
        CharacterLabels({"a": 0}, {})


def test_the_example_prints_its_input(
    package: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / "examples" / "speech.py"
    monkeypatch.setattr(qeff_zoo, "build", lambda _: package)
    monkeypatch.setattr("sys.argv", [str(path), "a checkpoint"])
    runpy.run_path(str(path), run_name="__main__")
    assert "speech.wav, 7.0 s:" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [str(path)])
    with pytest.raises(SystemExit, match=r"python examples/speech.py CHECKPOINT"):
        runpy.run_path(str(path), run_name="__main__")
