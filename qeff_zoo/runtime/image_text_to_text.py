# SPDX-License-Identifier: Apache-2.0
"""An image-text-to-text package as a session: pictures and prompts in, generated text and metrics out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.answers import Request
from qeff_zoo.runtime.prefix_cache import PrefixChoices
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sights import Picture, Sights, arrange
from qeff_zoo.runtime.text_generation import (
    Generation,
    Prompt,
    Stream,
    TextGenerationSession,
)
from qeff_zoo.runtime.tokenizer import read_json
from qeff_zoo.runtime.vision import Vision

#: One picture as a processor prepares it: `pixel_values`, and what else the model's forward takes of it.
Prepared: TypeAlias = Mapping[str, Array]
#: A path, the bytes of a file, a Pillow image, an array, or what a processor has prepared.
Image: TypeAlias = Any
_USUAL = PrefixChoices()
#: Bytes that the features of pictures may take, unless it is told otherwise.
FEATURE_CACHE_BYTES = 64 << 20


class ImageTextToTextSession(TextGenerationSession):
    """An opened package of the task `image-text-to-text`.

    Args:
        folder: The package.
        program: Its language model, opened.
        vision: Its vision tower, opened.
        chosen: What the package's recipe says of pictures: `images` of the manifest's `spec.task`.
        prefixes: As of `TextGenerationSession`.
        feature_cache_bytes: Memory for what was read of pictures, so that a second question costs no reading.

    Raises:
        GenerationError: Another task's package, or the KV cache does not fit into memory.
    """

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        vision: Program,
        chosen: Mapping[str, Any],
        prefixes: PrefixChoices = _USUAL,
        feature_cache_bytes: int = FEATURE_CACHE_BYTES,
    ) -> None:
        super().__init__(folder, program, prefixes=prefixes)
        self.config = read_json(folder / "config.json")
        self.images = chosen["images"]
        self.vision: Vision = Vision(vision, self.config, feature_cache_bytes, self.images)
        self._processor: Any = None
        #: The token that stands for a row of a picture's features.
        self.placeholder = _id(self.config, self.images["token"])
        #: The token that stands for a picture in a prompt that is not written out.
        self.marker = _id(self.config, self.images.get("marker") or self.images["token"])

    def request(
        self, prompt: Prompt, *, images: Sequence[Image] = (), chat: bool = False, **choices: Any
    ) -> Request:
        """Check what is asked, and put it into one value. Any thread may do this at any time.

        Args:
            prompt: As for `generate`; its token for pictures stands where each of them belongs.
            images: Paths, bytes of files, Pillow images or arrays, in the order of the prompt.
            chat: The prompt is a user's message: pictures come before its text, as the chat template writes them.
            **choices: As of `TextGenerationSession.request`.

        Raises:
            GenerationError: It cannot be served.
            MediaError: A picture cannot be read.
        """
        if chat and isinstance(prompt, str):
            content = [*[{"type": "image"}] * len(images), {"type": "text", "text": prompt}]
            message = {"role": "user", "content": content if images else prompt}
            made = self.request(self.encode_chat([message]), images=images, **choices)
            return replace(made, text=prompt)
        made = self.request_of(self._read(prompt), [self.prepare(one) for one in images], **choices)
        return replace(made, text=prompt) if isinstance(prompt, str) else made

    def _read(self, prompt: Prompt) -> Sequence[int]:
        """Encode a prompt, whose text may have to be written otherwise than its user does."""
        form = self.images.get("text")
        if not form or not isinstance(prompt, str) or self.tokenizer is None:
            return self.encode(prompt)
        before, marker, text = prompt.rpartition(self.tokenizer.piece(self.placeholder).strip())
        written = before + marker + form.format(text)
        return self.tokenizer.encode(written, special_tokens=False)

    def request_of(
        self, tokens: Sequence[int], pictures: Sequence[Prepared], **choices: Any
    ) -> Request:
        """Return a request of token ids with one token for each picture, and of pictures that are prepared."""
        seen = [self.vision.look(picture) for picture in pictures]
        if not seen and self.images.get("whole") == "prompt":
            raise GenerationError(
                "The prompt has no picture; expected one at least, since this model answers about pictures alone. Give "
                "one (--image)."
            )
        if not seen:  # which may be a request that was written out before
            self._check_count(tokens, self.placeholder, 0)
            return super().request(tokens, **choices)
        whole = self._written_out(tokens, seen)
        return replace(
            super().request(whole, **choices), sights=self._arranged(whole, seen, len(whole))
        )

    def request_written_out(
        self, tokens: Sequence[int], pictures: Sequence[Prepared], **choices: Any
    ) -> Request:
        """Return a request of token ids with one for each row of each picture, as processors write them."""
        seen = [self.vision.look(picture) for picture in pictures]
        rows = sum(picture.rows for picture in seen)
        found = sum(token == self.placeholder for token in tokens)
        if found != rows:
            raise GenerationError(
                f"The prompt has {found} tokens for pictures, and its {len(seen)} pictures have {rows} rows; "
                "expected as many of both. Call the checkpoint's own processor with all pictures of the prompt."
            )
        made = super().request(tokens, **choices)
        made = replace(made, text=self.tokenizer.decode(tokens)) if self.tokenizer else made
        return replace(made, sights=self._arranged(tokens, seen, len(tokens))) if seen else made

    def generate(
        self,
        prompts: str | Sequence[Prompt | Request],
        *,
        images: Sequence[Any] = (),
        stream: Stream | None = None,
        **choices: Any,
    ) -> list[Generation]:
        """Generate for prompts with pictures.

        Args:
            prompts: As for `TextGenerationSession.generate`.
            images: The pictures of the prompt; of several prompts, a list of pictures for each.
            stream: Told of text as it comes.
            **choices: As of `TextGenerationSession.generate`.
        """
        every = [prompts] if isinstance(prompts, str) else [*prompts]
        shown = [images] if isinstance(prompts, str) else images or [()] * len(every)
        if len(shown) != len(every):
            raise GenerationError(
                f"There are pictures for {len(shown)} prompts, and {len(every)} prompts; expected a list of pictures "
                "for each. Give an empty list where a prompt has none."
            )
        requests = [
            one if isinstance(one, Request) else self.request(one, images=pictures, **choices)
            for one, pictures in zip(every, shown, strict=True)
        ]
        return super().generate(requests, stream=stream)

    def prepare(self, picture: Image) -> Prepared:
        """Make the arrays of a picture that the vision program takes.

        Raises:
            MediaError: It cannot be read.
            CheckpointError: The package does not say how pictures are prepared.
        """
        from qeff_zoo.media.image_processor import load_image_processor

        if isinstance(picture, Mapping):
            return picture
        if self._processor is None:
            self._processor = load_image_processor(self.folder)
        made: Prepared = self._processor([picture])
        return made

    def _written_out(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """Replace the token of each picture by those of its rows, and what stands around them."""
        self._check_count(tokens, self.marker, len(pictures))
        left, whole = iter(pictures), list[int]()
        for token in tokens:
            whole += self.run_of(next(left)) if token == self.marker else [token]
        return whole

    def _check_count(self, tokens: Sequence[int], marker: int, pictures: int) -> None:
        count = sum(token == marker for token in tokens)
        if count != pictures:
            shown = self.tokenizer.piece(marker).strip() if self.tokenizer else marker
            raise GenerationError(
                f"The prompt has {count} places for pictures, and there are {pictures} pictures; expected as many of "
                f"both. Write {shown!r} where each picture belongs, or use the chat template (--chat), which does."
            )

    def run_of(self, picture: Picture) -> list[int]:
        """Return the tokens that a picture takes in a prompt; without a tokenizer, those of its rows alone."""
        whole = [token for one in self.images.get("before", ()) for token in self._named(one)]
        for part in self.vision.layout.write(picture.grid, picture.rows):
            whole += [self.placeholder] * part if isinstance(part, int) else self._named(part)
        return whole + [token for one in self.images.get("after", ()) for token in self._named(one)]

    def _named(self, one: int | str) -> list[int]:
        """Return what a recipe names: an id, a field of the config, or a text."""
        if isinstance(one, int):
            return [one]
        if one.endswith(("_id", "_index")):
            return [_id(self.config, one)]
        return self.tokenizer.encode(one, special_tokens=False) if self.tokenizer else []

    def sights(self, tokens: Sequence[int], pictures: Sequence[Prepared]) -> Sights | None:
        """Read the pictures of a prompt.

        Args:
            tokens: With one placeholder for each row of the pictures' features; where a prompt is to be whole, it ends
                with the last of them.
            pictures: In the order of the prompt.
        """
        seen = [self.vision.look(picture) for picture in pictures]
        return self._arranged(tokens, seen)

    def _arranged(
        self, tokens: Sequence[int], seen: Sequence[Picture], prompt: int | None = None
    ) -> Sights | None:
        axes, whole = int(self.images.get("axes", 1)), self.images.get("whole", "")
        return arrange(tokens, self.placeholder, seen, axes=axes, whole=whole, prompt=prompt)


def _id(config: Mapping[str, Any], name: str) -> int:
    """Return a token that a config names; older ones call it an index."""
    older = name.replace("_id", "_index")
    found = config.get(name, config.get(older))
    if found is None:
        raise GenerationError(
            f"config.json of the package has no {name!r}; expected the id of the token that stands for pictures. Add "
            "it to the checkpoint's config.json, and build again."
        )
    return int(found)
