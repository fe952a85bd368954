# SPDX-License-Identifier: Apache-2.0
"""The price of a request: what it asks for, by its body and the headers of its files, before anything is decoded.

What exceeds the bounds of the server, or the context of the package, is refused at this price.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from qeff_zoo.media.images import ImageLimits, size_of
from qeff_zoo.media.sound import OpenedSound, SoundLimits, open_sound
from qeff_zoo.media.videos import pixels_of
from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.image_text_to_text import ImageTextToTextSession
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.schemas import ChatRequest, CompletionRequest, listed

#: Memory of a pixel while an image is decoded, by the hungriest of the decoders.
BYTES_OF_PIXEL = 12
#: Memory of a sample at the model's rate while features are computed.
BYTES_OF_SAMPLE = 7
#: Tokens that a second of a recording takes in a prompt at least; published models make from 6 to 50.
_TOKENS_OF_SECOND = 1
_RATE = 48_000  # samples a second, more than any model takes
_FORMS = ("response_format", "structured_outputs")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a server takes of one request at most.

    Args:
        choices: Prompts times `n`.
        grammar: Characters of a schema, an expression, a grammar, or texts to choose from.
        files: Images, videos and recordings of a request.
        pixels: Of one image: a camera of 50 megapixels. No published processor keeps more than 17 million.
        all_pixels: Of all images of a request.
        seconds: Of a recording.
        values: Samples of a recording in all its channels.
        decoded_bytes: Memory of all that is decoded at a time, for all clients.
    """

    choices: int = 1 << 16
    grammar: int = 1 << 20
    files: int = 1000
    pixels: int = 8192 * 6144
    all_pixels: int = 10 * 8192 * 6144
    seconds: float = 2 * 3600.0
    values: int = 1_000_000_000
    decoded_bytes: int = 768 << 20

    @property
    def images(self) -> ImageLimits:
        """Limits of one image."""
        return ImageLimits(pixels=self.pixels)

    @property
    def sounds(self) -> SoundLimits:
        """Limits of one recording."""
        return SoundLimits(seconds=self.seconds, values=self.values)


BOUNDS = Bounds()
_NOTHING: Mapping[str, Sequence[Any]] = {}


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a request asks for.

    Args:
        choices: Prompts times `n`.
        grammar: Characters of the form of its answer.
        nbytes: By argument of the session's `request`, memory that each file takes while it is decoded.
        tokens: By the same, tokens in place of each file in the prompt; as many as there are at least.
    """

    choices: int
    grammar: int
    nbytes: Mapping[str, Sequence[int]]
    tokens: Mapping[str, Sequence[int]]

    @property
    def placeholders(self) -> int:
        """Tokens of all files, less the one that stands for each in a prompt that is not written out."""
        return sum(count - 1 for counts in self.tokens.values() for count in counts)


def price(
    session: TextGenerationSession | None,
    body: ChatRequest | CompletionRequest,
    brought: Mapping[str, Sequence[Any]] = _NOTHING,
    bounds: Bounds = BOUNDS,
) -> Price:
    """Price a request.

    Args:
        session: That is to answer.
        body: Of the request.
        brought: Its files, by argument of the session's `request`: `images`, `videos` and `audio`.
        bounds: Of the server.

    Raises:
        ApiError: It asks for too much.
        MediaError: A header is damaged, or says that a file is too large.
    """
    prompts = len(listed(body.prompt)) if isinstance(body, CompletionRequest) else 1
    choices = prompts * body.n
    _check("n", choices, bounds.choices, "choices", "Ask for fewer")
    grammar = 0
    for name in _FORMS:
        if (form := getattr(body, name)) is not None:
            grammar = len(form.model_dump_json(by_alias=True))
            _check(name, grammar, bounds.grammar, "characters of a grammar", "Make it simpler")
    files = sum(map(len, brought.values()))
    _check("messages", files, bounds.files, "images, videos and recordings", "Send fewer")
    sizes = [size_of(one, bounds.images) for one in brought.get("images", ())]
    pixels = [width * height for width, height in sizes]
    _check("messages", sum(pixels), bounds.all_pixels, "pixels in its images", "Send fewer")
    films = [pixels_of(one) for one in brought.get("videos", ())]
    sounds = [open_sound(one, _RATE, limits=bounds.sounds) for one in brought.get("audio", ())]
    shown = [1] * len(sizes)
    if session is not None and "images" in session.takes:
        shown = cast("ImageTextToTextSession", session).tokens_of(sizes)
    return Price(
        choices=choices,
        grammar=grammar,
        nbytes={
            "images": [BYTES_OF_PIXEL * count for count in pixels],
            "videos": [BYTES_OF_PIXEL * count for count in films],
            "audio": [bytes_of_sound(one, _RATE) for one in sounds],
        },
        tokens={
            "images": shown,
            "audio": [1 + int(one.seconds * _TOKENS_OF_SECOND) for one in sounds],
        },
    )


def bytes_of_sound(sound: OpenedSound, rate: int) -> int:
    """Return the memory that a recording takes while it is decoded to a rate, and features are computed."""
    return int(sound.seconds * rate) * BYTES_OF_SAMPLE


def check_context(
    session: TextGenerationSession, tokens: int, limit: int | None, param: str
) -> None:
    """Refuse what the context cannot hold: a prompt, or a prompt with as many tokens as are asked for.

    Args:
        session: That is to answer.
        tokens: Of the prompt, with those in place of its files.
        limit: Tokens of the answer at most; None for as many as there is room for.
        param: Of the request, which is to blame.
    """
    ctx_len = session.decoder.sizes.ctx_len
    if tokens + (limit or 1) > ctx_len:
        asked = f"{limit:,} are to be generated" if limit else "at least one is to be generated"
        raise ApiError(
            400,
            f"The prompt has {tokens:,} tokens, and {asked}; expected at most {ctx_len:,} together. Shorten it, or ask "
            "for fewer.",
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
