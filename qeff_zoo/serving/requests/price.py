# SPDX-License-Identifier: Apache-2.0
"""Cost of a request by its body and the headers of its files, computed before any decoding.

Requests beyond the limits of the server, or beyond the context of the package, are refused at this cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter

from qeff_zoo.media.audio import AudioLimits, OpenedAudio, open_audio
from qeff_zoo.media.image_options import media_options, source_of
from qeff_zoo.media.images import ImageLimits, decoded_bytes_of, size_of
from qeff_zoo.media.videos import open_video
from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.media_sessions import ImageSession
from qeff_zoo.serving.requests.schemas import ChatRequest, CompletionRequest, listed

#: Memory per sample, at the model's rate, during feature extraction.
BYTES_OF_SAMPLE = 7
#: Minimum number of tokens per second of a recording in a prompt; published models have from 6 to 50.
_TOKENS_OF_SECOND = 1
_RATE = 48_000  # samples a second, more than any model takes
_FORMS = ("response_format", "structured_outputs", "json_schema")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of one request.

    Args:
        choices: Number of prompts times `n`.
        grammar: Characters of a schema, a regular expression, a grammar, or a list of texts to choose from.
        files: Number of images, videos and recordings of a request.
        pixels: Pixels of one image: a camera of 50 megapixels. No published processor keeps more than 17 million.
        all_pixels: Pixels of all images of a request.
        video_pixels: Pixels of all frames of all videos of a request, before they are resized.
        seconds: Duration of a recording.
        values: Samples of all recordings of a request in all their channels.
        decoded_bytes: Memory of all decoded files of all clients.
    """

    choices: int = 1 << 16
    grammar: int = 1 << 20
    files: int = 1000
    pixels: int = 8192 * 6144
    all_pixels: int = 10 * 8192 * 6144
    video_pixels: int = 40_000_000_000
    seconds: float = 2 * 3600.0
    values: int = 1_000_000_000
    decoded_bytes: int = 768 << 20

    @property
    def images(self) -> ImageLimits:
        """Limits of one image."""
        return ImageLimits(pixels=self.pixels)

    @property
    def recordings(self) -> AudioLimits:
        """Limits of one recording."""
        return AudioLimits(seconds=self.seconds, values=self.values)


BOUNDS = Bounds()
_JSON = TypeAdapter[Any](Any)
_NOTHING: Mapping[str, Sequence[Any]] = {}


@dataclass(frozen=True, kw_only=True)
class Price:
    """Cost of a request.

    Args:
        choices: Number of prompts times `n`.
        grammar: Characters of the grammar.
        nbytes: Memory of each file during its decoding, by argument of the session's `request`.
        tokens: Minimum number of tokens in place of each file in the prompt, by the same argument.
    """

    choices: int
    grammar: int
    nbytes: Mapping[str, Sequence[int]]
    tokens: Mapping[str, Sequence[int]]

    @property
    def placeholders(self) -> int:
        """Tokens of all files, less the one placeholder that each has in an unexpanded prompt."""
        return sum(count - 1 for counts in self.tokens.values() for count in counts)


def price(
    session: TextGenerationSession | None,
    body: ChatRequest | CompletionRequest,
    brought: Mapping[str, Sequence[Any]] = _NOTHING,
    bounds: Bounds = BOUNDS,
) -> Price:
    """Compute the cost of a request.

    Args:
        session: Session for the request.
        body: Body of the request.
        brought: Files, by argument of the session's `request`: `images`, `videos` and `audio`.
        bounds: Bounds of the server.

    Raises:
        ApiError: The request exceeds a limit.
        MediaError: A header is damaged, or its file exceeds a limit.
    """
    prompts = len(listed(body.prompt)) if isinstance(body, CompletionRequest) else 1
    choices = prompts * body.n
    _check("n", choices, bounds.choices, "choices", "Ask for fewer")
    grammar = 0
    for name in _FORMS:
        if (form := getattr(body, name)) is not None:
            grammar = len(_JSON.dump_json(form, by_alias=True))
            _check(name, grammar, bounds.grammar, "characters of a grammar", "Make it simpler")
    if isinstance(body, ChatRequest) and body.tools:
        tools = sum(len(one.model_dump_json()) for one in body.tools)
        _check("tools", tools, bounds.grammar, "characters of tools", "Send fewer")
    files = sum(map(len, brought.values()))
    _check("messages", files, bounds.files, "images, videos and recordings", "Send fewer")
    images = brought.get("images", ())
    sources = [*map(source_of, images)]
    sizes = [size_of(one, bounds.images) for one in sources]
    pixels = sum(width * height for width, height in sizes)
    _check("messages", pixels, bounds.all_pixels, "pixels in its images", "Send fewer")
    videos = brought.get("videos", ())
    opened = [open_video(source_of(one)) for one in videos]
    frames = sum(one.pixels for one in opened)
    _check("messages", frames, bounds.video_pixels, "pixels in its videos", "Send fewer")
    recordings = [
        open_audio(one, _RATE, limits=bounds.recordings) for one in brought.get("audio", ())
    ]
    values = sum(one.samples * one.channels for one in recordings)
    _check("messages", values, bounds.values, "samples in its recordings", "Send fewer")
    shown = [1] * len(sizes)
    if session is not None and "images" in session.takes:
        reader = cast("ImageSession", session)
        shown = reader.tokens_of(sizes, [*map(media_options, images)])
    played = [1] * len(videos)
    if session is not None and videos:
        played = cast("ImageSession", session).video_tokens_of(videos, opened)
    return Price(
        choices=choices,
        grammar=grammar,
        nbytes={
            "images": [*map(decoded_bytes_of, sources, sizes)],
            "videos": [one.nbytes for one in opened],
            "audio": [bytes_of_audio(one, _RATE) for one in recordings],
        },
        tokens={
            "images": shown,
            "videos": played,
            "audio": [1 + int(one.seconds * _TOKENS_OF_SECOND) for one in recordings],
        },
    )


def bytes_of_audio(audio: OpenedAudio, rate: int) -> int:
    """Return the memory of a recording during its decoding to a rate and its feature extraction."""
    return int(audio.seconds * rate) * BYTES_OF_SAMPLE


def check_context(
    session: TextGenerationSession, tokens: int, limit: int | None, param: str
) -> None:
    """Refuse a prompt, or a prompt with its requested tokens, that exceeds the context.

    Args:
        session: Session of the model.
        tokens: Number of prompt tokens, with those in place of its files.
        limit: Maximum number of generated tokens; None for the rest of the context.
        param: Parameter of the request that the error names.
    """
    ctx_len = session.decoder.sizes.ctx_len
    if tokens + (limit or 1) > ctx_len:
        generated = f"{limit:,} are to be generated" if limit else "at least one is to be generated"
        raise ApiError(
            400,
            f"The prompt has {tokens:,} tokens, and {generated}; expected at most {ctx_len:,} together. Shorten it, or "
            "ask for fewer.",
            param=param,
            code="context_length_exceeded",
        )


def _check(param: str, count: int, most: int, nouns: str, advice: str) -> None:
    if count > most:
        raise ApiError(
            400,
            f"The request has {count:,} {nouns}; expected at most {most:,}. {advice}.",
            param=param,
            code="invalid_value",
        )
