# SPDX-License-Identifier: Apache-2.0
"""Compressed videos and recordings: what PyAV and transformers decode, within limits; and what is refused."""

import io
import json
import struct
from pathlib import Path
from typing import Any, cast
from unittest import mock

import av
import numpy as np
import pytest
import soundfile
from compressed import AUDIO_FORMATS, LOSSLESS, VIDEO, clip, recording_in
from PIL import Image
from transformers.video_utils import load_video

from qeff_zoo.errors import MediaError
from qeff_zoo.media import containers
from qeff_zoo.media.audio import AudioLimits, open_audio, read_audio
from qeff_zoo.media.images import ImageLimits, read_image
from qeff_zoo.media.video_processor import load_video_processor
from qeff_zoo.media.videos import Frames, open_video, read_video
from qeff_zoo.validation.trial.sample_audio import voice

RATE = 16_000
AUDIO = voice(20_000, RATE, 1)


def shots(count: int = 9, height: int = 48, width: int = 64) -> list[Any]:
    """Frames that a codec keeps apart: a bar that moves over changing colors."""
    made = np.zeros((count, height, width, 3), np.uint8)
    for place in range(count):
        made[place, ..., 0] = 250 * place // count
        made[place, :, 4 * place : 4 * place + 12, 1] = 220
    return [*made]


@pytest.mark.parametrize(("form", "codec"), VIDEO)
def test_frames_are_those_of_transformers(form: str, codec: str, tmp_path: Path) -> None:
    data = clip(shots(), form, codec)
    found = read_video(data)
    with av.open(io.BytesIO(data), "r") as container:
        wanted = [one.to_ndarray(format="rgb24") for one in container.decode(video=0)]
    np.testing.assert_array_equal(np.stack([*found.frames]), wanted)
    assert found.fps == pytest.approx(10, rel=1e-3)
    np.testing.assert_array_equal(found.frames[2], wanted[2])  # backwards
    np.testing.assert_array_equal(found.frames[-1], wanted[-1])
    path = tmp_path / "clip"
    path.write_bytes(data)
    if form in ("mp4", "mov", "avi"):  # of others transformers' reader by PyAV finds no frames
        by_transformers, about = load_video(cast("Any", str(path)))
        np.testing.assert_array_equal(np.stack([*read_video(path).frames]), by_transformers)
        assert (found.fps, len(found.frames)) == (about.fps, about.total_num_frames)


@pytest.mark.parametrize("kind", ["Qwen2VL", "Qwen3VL", "LlavaOnevision", "InternVL"])
def test_sampled_frames_are_processed_one_by_one(kind: str, tmp_path: Path) -> None:
    """As those of a video that is decoded whole, of which transformers' rules take some."""
    settings = {
        "video_processor_type": f"{kind}VideoProcessor", "do_sample_frames": True,
        "num_frames": None if kind == "Qwen3VL" else 4,
        "size": {"height": 28, "width": 28},
        **({"size": {"shortest_edge": 1000, "longest_edge": 60_000}} if kind.startswith("Qwen") else {}),
        **({"patch_size": 14} if kind == "LlavaOnevision" else {}),
    }  # fmt: skip
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    data, process = clip(shots(11)), load_video_processor(tmp_path)
    whole = [*read_video(data).frames]
    found, wanted = process(data), process(Frames(whole, 10.0, "a video"))
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        np.testing.assert_array_equal(found[name], one)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_video_of_a_phone_is_upright(turns: int) -> None:
    """A phone stores frames as its sensor lies, and a matrix by which players rotate them, here counter-clockwise."""
    data = bytearray(clip(shots()))
    at = data.index(b"tkhd") + 4 + 40  # behind version, flags, times, track, layer and volume
    cos, sin = ((0, -1), (-1, 0), (0, 1))[turns - 1]
    data[at : at + 36] = struct.pack(
        ">9i", cos << 16, sin << 16, 0, -sin << 16, cos << 16, 0, 0, 0, 1 << 30
    )
    found, plain = read_video(bytes(data)), read_video(clip(shots()))
    np.testing.assert_array_equal(found.frames[4], np.rot90(plain.frames[4], turns))


@pytest.mark.parametrize(("form", "codec"), AUDIO_FORMATS)
def test_samples_are_those_that_were_recorded(form: str, codec: str) -> None:
    """Bit for bit those of a codec without loss; else PyAV's own, and nearly the recorded ones."""
    rate = 48_000 if codec == "libopus" else RATE
    samples = voice(20_000, rate, 1)
    data = recording_in(samples, rate, form, codec)
    found = read_audio(data, rate)
    if codec in LOSSLESS:
        written = io.BytesIO()
        soundfile.write(written, np.round(samples * 32767).astype(np.int16), rate, format="WAV")
        np.testing.assert_array_equal(found, read_audio(written.getvalue(), rate))
        return
    with av.open(io.BytesIO(data), "r") as container:
        frames = [one.to_ndarray().reshape(-1) for one in container.decode(audio=0)]
    np.testing.assert_array_equal(found, np.concatenate(frames))
    if form != "adts":  # which has no place for the length of the encoder's silence
        assert np.corrcoef(found[: len(samples)], samples)[0, 1] > 0.99
    assert 0 <= len(found) - len(samples) <= 2048
    assert abs(open_audio(data, rate).samples - len(samples)) <= 2048


def test_stereo_is_averaged_and_a_video_has_an_audio_track() -> None:
    both = np.stack([AUDIO, 0.5 * AUDIO], 1)
    np.testing.assert_allclose(
        read_audio(recording_in(both, RATE, "ipod", "alac"), RATE), 0.75 * AUDIO, atol=1e-4
    )
    found = read_audio(clip(shots(), samples=AUDIO), RATE)
    assert np.corrcoef(found[: len(AUDIO)], AUDIO)[0, 1] > 0.99
    assert len(read_audio(recording_in(AUDIO, RATE, "ipod", "alac"), 8000)) == pytest.approx(
        10_000, abs=2
    )


def test_a_recording_of_a_browser_has_no_length_in_its_header() -> None:
    """It is streamed: neither its length nor its end is known at its beginning."""
    data = recording_in(voice(48_000, 48_000, 1), 48_000, "webm", "libopus")
    with av.open(io.BytesIO(data), "r") as container:
        file = io.BytesIO()
        with av.open(file, "w", format="webm", options={"live": "1"}) as streamed:
            stream = streamed.add_stream_from_template(container.streams.audio[0])
            for packet in container.demux(audio=0):
                if packet.size:
                    packet.stream = stream
                    streamed.mux(packet)
    with av.open(io.BytesIO(file.getvalue()), "r") as container:
        assert container.duration is None
    opened = open_audio(file.getvalue(), 48_000)
    assert opened.seconds == pytest.approx(1, abs=0.05)
    np.testing.assert_array_equal(read_audio(file.getvalue(), 48_000), read_audio(data, 48_000))


def test_limits_are_checked_before_decoding_and_while_it() -> None:
    data, aac = clip(shots(30)), recording_in(voice(48_000, RATE, 1), RATE, "ipod", "aac")
    with mock.patch.object(containers, "_frames", side_effect=AssertionError):
        for limits, message in (
            (ImageLimits(frames=29), r"it has 30 frames\. Expected at most 29"),
            (ImageLimits(pixels=48 * 64 - 1), r"64 x 48 = 3,072 pixels\. Expected at most 3,071"),
            (
                ImageLimits(decoded_pixels=48 * 64 * 30 - 1),
                "30 frames of 64 x 48 have 92,160 pixels",
            ),
            (ImageLimits(file_bytes=100), "Expected at most 100"),
        ):
            for read in (read_video, open_video):
                with pytest.raises(MediaError, match=message):
                    read(data, limits)
    with pytest.raises(MediaError, match="3 seconds of audio, expected at most 2"):
        open_audio(aac, RATE, limits=AudioLimits(seconds=2))
    lying = bytearray(recording_in(voice(8 * RATE, RATE, 1), RATE, "ipod", "aac"))
    for name in (b"mvhd", b"mdhd", b"tkhd", b"elst"):
        at = lying.index(name)
        assert at > 0
    at = lying.index(b"mdhd") + 4 + 16
    lying[at : at + 4] = struct.pack(">I", RATE)  # one second
    with pytest.raises(MediaError, match=r"says that it has .* samples, and has more than"):
        read_audio(bytes(lying), RATE)


def test_the_checkpoints_frames_have_a_limit_of_pixels(tmp_path: Path) -> None:
    """Those that would be resized to too many pixels are not decoded first."""
    settings = {"size": {"shortest_edge": 300_000, "longest_edge": 400_000}}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    process = load_video_processor(tmp_path)
    with pytest.raises(MediaError, match="its 30 frames have too many pixels"):
        process(clip(shots(30)), ImageLimits(pixels=5_000_000))


H264 = clip(shots())
M4A = recording_in(AUDIO, RATE, "ipod", "aac")
WRONG: dict[str, tuple[Any, Any, str]] = {
    "a cut video": (read_video, H264[: len(H264) // 2], "damaged or cut off"),
    "a cut recording": (read_audio, M4A[: len(M4A) // 2], "^The recording is damaged or cut off"),
    "no video": (read_video, M4A, "it has no video, only audio"),
    "no sound": (read_audio, H264, "^The recording has no audio, only video"),
    "a playlist": (read_audio, b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", "it is a playlist"),
    "a playlist as video": (read_video, b"#EXTM3U\n/etc/passwd\n", r"it is a playlist\. Expected a video"),
    "a page": (read_video, b"<!DOCTYPE html><html></html>", r"it is a web page\. Expected a video \(MP4, MOV"),
    "text as sound": (read_audio, b"hello, this is no sound", r"it is text\. Expected WAV, FLAC, MP3, Ogg, M4A"),
    "a picture as sound": (read_audio, b"\x89PNG\r\n\x1a\n" + bytes(50), "it is a PNG image"),
    "nothing": (read_video, b"", "it is empty"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_errors_name_what_was_given(what: str) -> None:
    read, data, message = WRONG[what]
    with pytest.raises(MediaError, match=message):
        read(*((data,) if read is read_video else (data, RATE)))


def test_an_image_that_is_a_video_is_named() -> None:
    with pytest.raises(MediaError, match=r"it is an MP4 file\. Expected one of PNG, JPEG"):
        read_image(H264)


def test_frames_of_a_folder_are_in_natural_order(tmp_path: Path) -> None:
    names = ["1.png", "2.png", "10.png", "1²2.png", "٣.png", "²3.png"]
    for number, name in enumerate(names):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / name)
    found = [int(np.asarray(frame)[0, 0, 0]) for frame in read_video(tmp_path).frames]
    assert [names[number] for number in found] == [
        "1.png",
        "1²2.png",
        "2.png",
        "10.png",
        "²3.png",
        "٣.png",
    ]


def test_frames_that_are_missing_are_reported() -> None:
    """A file with its index at the front, or in fragments, as it is streamed, lacks its end."""
    for flags in ("faststart", "frag_keyframe+empty_moov"):
        data = clip(shots(60), options={"crf": "1", "g": "10"}, flags=flags)
        assert len([*read_video(data).frames]) == 60
        with pytest.raises(MediaError, match="cut off"):
            read_video(data[: len(data) * 2 // 3])


def test_an_unlisted_codec_is_refused_by_name() -> None:
    data = clip(shots(), "avi", "ffv1") if "ffv1" in av.codecs_available else b""
    with pytest.raises(MediaError, match="codec 'ffv1', which is not decoded"):
        read_video(data)


def test_without_pyav_the_extra_is_named() -> None:
    for read in (lambda: read_video(H264), lambda: read_audio(M4A, RATE)):
        with (
            mock.patch.dict("sys.modules", {"av": None}),
            pytest.raises(
                MediaError, match=r"PyAV.*is not installed.*pip install 'qeff-zoo\[media\]'"
            ),
        ):
            read()
    with mock.patch.dict("sys.modules", {"av": None}):  # which needs none
        file = io.BytesIO()
        Image.fromarray(shots()[0]).save(
            file, "gif", save_all=True, append_images=[Image.fromarray(shots()[1])]
        )
        assert len(read_video(file.getvalue()).frames) == 2
