# SPDX-License-Identifier: Apache-2.0
"""Session of an image-text-to-text package: images, videos and prompts in, generated text and metrics out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT
from qeff_zoo.errors import GenerationError
from qeff_zoo.graph.states import VISION_SIZE
from qeff_zoo.media.image_options import media_options, source_of, with_options, with_sampling
from qeff_zoo.media.image_processor import ImageProcessor
from qeff_zoo.media.images import blank
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.media.videos import OpenedVideo
from qeff_zoo.multimodal.encoding.prepared import Prepared
from qeff_zoo.multimodal.encoding.video_steps import (
    TIMES,
    PreparedVideo,
    Stamps,
    check_times,
    of_processor,
    required,
    rows_of,
    steps_of,
)
from qeff_zoo.multimodal.encoding.vision_encoder import PassThroughEncoder, Vision
from qeff_zoo.multimodal.images import Images
from qeff_zoo.multimodal.manifest import entry_of, images_of
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.caches.feature_cache import RemoteEncoder
from qeff_zoo.runtime.caches.prefix_cache import PrefixCacheOptions
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.engine.prompts import Prompt, options_of
from qeff_zoo.runtime.program import Array, HasMaxPatches, Program
from qeff_zoo.runtime.text.chat_template import USUAL_CHAT, ChatOptions, ChatTemplate, Message
from qeff_zoo.tasks.multimodal.session import FEATURE_CACHE_BYTES, USUAL, MediaTextSession, listed

if TYPE_CHECKING:
    from qeff_zoo.media.video_processor import VideoProcessor

#: Number of texts of a recipe's `stamp` around steps of a video; further texts are around the whole video.
_AROUND_STEPS = 3


class ImageTextToTextSession(MediaTextSession):
    """Open package of the task `image-text-to-text`.

    Args:
        folder: Folder of the package.
        program: Language model, opened.
        vision: Vision encoder, opened; None for a package of --decode-only, or with a single program that takes
            images.
        chosen: Recipe settings of images: `images` of the manifest's `spec.task`; for a single program that takes
            images, `vision_size`, too.
        tiles: Vision encoder of tiles, if these have another size than the whole image; opened.
        frames: A function that opens the encoder of video frames, if these need other operators than images.
        prefixes: Options of the prefix cache, as in `TextGenerationSession`.
        feature_cache_bytes: Memory for image features, so that a second question needs no encoding.

    Raises:
        GenerationError: If the package is of another task, or the KV cache does not fit into memory.
    """

    task = IMAGE_TEXT_TO_TEXT
    part, argument, more = "image", "images", ("videos",)
    reader: Vision | PassThroughEncoder | RemoteEncoder
    media: Images

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        vision: Program | None = None,
        tiles: Program | None = None,
        frames: Callable[[], Program] | None = None,
        chosen: Mapping[str, Any],
        prefixes: PrefixCacheOptions = USUAL,
        feature_cache_bytes: int = FEATURE_CACHE_BYTES,
    ) -> None:
        images = images_of(chosen["images"])
        config = model_config(read_json(folder / "config.json"))
        if feature_cache_bytes:  # at least those of a prompt, if features are a state
            memory: Mapping[str, Array] = program.memory or {}
            read = {state.name for state in program.states if not state.written} & memory.keys()
            of_row = sum(memory[name][0].nbytes for name in read)
            feature_cache_bytes = max(feature_cache_bytes, of_row)
        layout = images.prompt_layout
        reader: Vision | PassThroughEncoder | RemoteEncoder = RemoteEncoder(
            None, config, feature_cache_bytes, layout
        )
        if vision is not None:
            reader = Vision(vision, config, feature_cache_bytes, images, tiles=tiles, frames=frames)
        elif size := chosen.get(VISION_SIZE):
            reader = PassThroughEncoder(program, config, feature_cache_bytes, layout)
            reader.size = size
        super().__init__(folder, program, reader=reader, media=images, prefixes=prefixes)
        if images.has_frame_program:
            self.media_tokens.placeholders |= {self._video_token()}
        self._processor: Any = None
        self._video_processor: Any = None

    @property
    def most_parts(self) -> int:
        """Maximum number of images in a prompt; 0 if only the context limits it."""
        one = isinstance(self.reader, PassThroughEncoder)
        return 1 if one else self.decoder.sizes.max_num_images

    def _entry(self) -> dict[str, Any]:
        return entry_of(self.media)

    def prepare(self, given: Any, *, uncut: bool = False) -> Any:
        """Return the encoder inputs of an image.

        Args:
            given: A path, the bytes of a file, a Pillow image, an array, or an `ImageInput` of one of these and of
                options; or the output of a processor.
            uncut: Whether the image is processed without tiles.

        Raises:
            MediaError: If the image cannot be read.
            CheckpointError: If the package has no settings for image processing.
        """
        if isinstance(given, Mapping | Encoded):
            return given
        process = self._process(uncut=uncut, options=media_options(given))
        inputs: Prepared = process([source_of(given)])
        return inputs

    def preparation(self, given: Any, count: int) -> "partial[dict[str, Any]]":
        """Return a call that prepares an image, see `prepare`, and that another process can make.

        Args:
            given: An image file, or an `ImageInput` of one.
            count: Number of images in the prompt.
        """
        process = self._process(uncut=self._is_uncut(count), options=media_options(given))
        return partial(process, [source_of(given)])

    def prepare_all(self, given: Sequence[Any]) -> list[Any]:
        """Return the encoder inputs of all images, see `prepare`; some models process a single image differently."""
        return [self.prepare(one, uncut=self._is_uncut(len(given))) for one in given]

    def encoding(self, argument: str, given: Sequence[Any]) -> list[Steps[Encoded]]:
        """See `MediaTextSession`."""
        return [self._encoding(one, uncut=self._is_uncut(len(given))) for one in given]

    def _encoding(self, given: Any, *, uncut: bool) -> Steps[Encoded]:
        prepared = self.prepare(given, uncut=uncut)
        yield
        return self.reader.look(prepared)

    def tokens_of(
        self, sizes: Sequence[tuple[int, int]], options: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the minimum number of tokens that each image of a prompt takes, before any is decoded.

        Args:
            sizes: Width and height of each image.
            options: Options of each image, see `ImageInput`; empty for none.

        Raises:
            MediaError: If the model does not support such a size, or such an option.
        """
        uncut, known = self._is_uncut(len(sizes)), dict[Any, int]()
        keys = [*zip(sizes, map(repr, options or ({},) * len(sizes)), strict=True)]
        for number, key in enumerate(keys):
            if key not in known:
                (width, height), _ = key
                process = self._process(uncut=uncut, options=options[number] if options else {})
                encoded = self.reader.measure(process.arrays([blank(height, width)]))
                known[key] = len(self.run_of(encoded)) if encoded else 1
        return [known[key] for key in keys]

    def _is_uncut(self, count: int) -> bool:
        return self.media.is_uncut(count)

    def _process(self, *, uncut: bool, options: Mapping[str, Any]) -> ImageProcessor:
        from qeff_zoo.media.image_bounds import bounded
        from qeff_zoo.media.image_processor import load_image_processor

        if self._processor is None:
            self._processor = load_image_processor(self.folder)
        processor: ImageProcessor = self._processor
        if options:
            processor = with_options(processor, options)
        if most := self._most_patches():
            processor = bounded(processor, most)
        if uncut:
            return replace(processor, settings={**processor.settings, "image_grid_pinpoints": ()})
        return processor

    def prepare_video(self, given: Any) -> Prepared:
        """Return the encoder inputs of a video at once, see `preparing_video`."""
        return finished(self.preparing_video(given))

    def video_preparation(self, given: Any) -> "partial[dict[str, Any]]":
        """Return a call that decodes and processes a video, and that another process can make.

        Args:
            given: A video file, a list of image files, or a `VideoInput` of one of these; see `preparing_video`.
        """
        return partial(self._process_video(given), source_of(given))

    def video_tokens_of(self, videos: Sequence[Any], opened: Sequence[OpenedVideo]) -> list[int]:
        """Return the minimum number of tokens that each video of a prompt takes, before any is decoded.

        Counting ends at the first video beyond the context: the others have one token each.

        Args:
            videos: Video files, lists of image files, or `VideoInput` of these.
            opened: Their headers.

        Raises:
            MediaError: If a video cannot be sampled by the checkpoint's settings, or has too many pixels.
        """
        counts = [1] * len(videos)
        for number, (given, header) in enumerate(zip(videos, opened, strict=True)):
            if sum(counts) > self.decoder.sizes.ctx_len:
                break
            if header.is_timed and header.shown.frames:
                steps, *arrays = self._process_video(given).beginnings(header.shown)
                one, two = map(self.video_rows, arrays)
                counts[number] = max(1, one + (steps - 1) * (two - one))
        return counts

    def video_rows(self, prepared: Prepared) -> int:
        """Return the minimum number of placeholder tokens of a prepared video."""
        return rows_of(prepared, self.media, self.config)

    def _process_video(self, given: Any) -> "VideoProcessor":
        from qeff_zoo.media.video_processor import load_video_processor

        if self._video_processor is None:
            usual = self.media.video_processor
            self._video_processor = load_video_processor(self.folder, usual)
        return with_sampling(self._video_processor, media_options(given))

    def preparing_video(
        self, given: Any, arrays: Mapping[str, Any] | None = None
    ) -> Steps[Prepared]:
        """Prepare a video, and pause after each of its frames.

        Args:
            given: A video in any form that `media.videos.read_video` accepts, or a `VideoInput` of one and of options;
                or the output of a processor: see `video_steps.of_processor`; or of this function.
            arrays: Result of `video_preparation`; None for a video that is decoded here.

        Returns:
            The encoder inputs of the video.

        Raises:
            MediaError: If the video cannot be read.
            CheckpointError: If the package has no settings for video processing.
            GenerationError: If the package does not support videos, or the video does not fit the context.
        """
        self.check_reads_videos()
        if isinstance(given, PreparedVideo) and given.is_whole:
            return given
        if isinstance(given, Mapping):
            inputs: Prepared = of_processor(given, self.media)
        elif arrays is not None:
            inputs = arrays
        else:
            inputs = yield from self._process_video(given).processing(source_of(given))
        if self._stamp():
            inputs = {**inputs, TIMES: check_times(inputs)}
        if (rows := self.video_rows(inputs)) >= (room := self.decoder.sizes.ctx_len):
            raise GenerationError(
                f"A video takes {rows:,} tokens of a prompt; expected fewer than {room:,}, the package's context. Give "
                "fewer or smaller frames, or build it with a larger --ctx-len."
            )
        return PreparedVideo(inputs)

    def request(
        self,
        prompt: Prompt,
        *,
        chat: bool | ChatOptions = False,
        videos: Sequence[Any] = (),
        **choices: Any,
    ) -> Request:
        """See `MediaTextSession`, with videos in the prompt's order.

        With `chat`, images come first, then videos, then the text.
        """
        videos, images = listed(videos), listed(choices.pop(self.argument, ()))
        if not videos:
            return super().request(prompt, chat=chat, **{**choices, self.argument: images})
        self.media.check_prompt(len(images), len(videos))
        prepared_videos = [self.prepare_video(video) for video in videos]
        text = prompt if isinstance(prompt, str) else None
        if chat and text is not None:
            kinds = [*["image"] * len(images), *["video"] * len(prepared_videos)]
            tokens = self._message(kinds, text, options_of(chat))
        else:
            tokens = [*self._read(prompt)]
        read = self._read_in_text if len(self._stamp()) > _AROUND_STEPS else self._read_in_tokens
        same, prepared = read(tokens, None if chat else text, images, prepared_videos)
        created = self.request_of(same, prepared, **choices)
        self._check_time(created)
        return created if text is None else replace(created, text=text)

    def _read_in_tokens(
        self,
        tokens: Sequence[int],
        text: str | None,
        images: Sequence[Any],
        videos: Sequence[Prepared],
    ) -> tuple[list[int], list[Prepared]]:
        """Return a prompt whose videos are marked by tokens, and the encoder inputs in its order.

        Args:
            tokens: Token ids of the prompt.
            text: Text of the tokens; None for a rendered chat template, or for token ids of the user.
            images: Images of the prompt.
            videos: Prepared videos of the prompt.
        """
        video = self._video_token()
        marker = self.media_tokens.marker
        self.media_tokens.check_count(tokens, marker, len(images))
        self.media_tokens.check_count(tokens, video, len(videos), "videos")
        if texts := self._stamp():
            around = [self.names.special_token(name) for name in self.names.settings.numbered]
            tokenizer = required(self.tokenizer)
            stamps = Stamps(texts, tokenizer, tokenizer.piece(video).strip(), around=around)
            if text is None:
                tokens = stamps.in_tokens(tokens, video, videos)
            else:
                tokens = [*self._read(stamps.in_text(text, videos))]
            videos = [step for one in videos for step in steps_of(one)]
        left = {marker: iter(self.prepare_all(images)), video: iter(videos)}
        prepared = [next(left[token]) for token in tokens if token in left]
        # The token at a feature's position is ignored: one placeholder serves both.
        return [marker if token == video else token for token in tokens], prepared

    def _read_in_text(
        self,
        tokens: Sequence[int],
        text: str | None,
        images: Sequence[Any],
        videos: Sequence[Prepared],
    ) -> tuple[list[int], list[Prepared]]:
        """As `_read_in_tokens`, for a prompt whose videos are marked by text that spans several tokens."""
        tokenizer = required(self.tokenizer)
        image, video = tokenizer.name(self.media_tokens.marker), self.media.video
        if video.endswith("_id"):
            video = tokenizer.name(self._video_token())
        whole = tokenizer.spelled(tokens) if text is None else text
        matches = re.findall(f"{re.escape(image)}|{re.escape(video)}", whole)
        self.media_tokens.check_places(matches.count(image), image, len(images))
        self.media_tokens.check_places(matches.count(video), video, len(videos), "videos")
        stamps = Stamps(self._stamp(), tokenizer, video, image)
        left = {
            image: iter([one] for one in self.prepare_all(images)), video: map(steps_of, videos)
        }  # fmt: skip
        written = stamps.in_text(whole, videos)
        read = self._encode(written, special_tokens=False) if text is None else self._read(written)
        return [*read], [step for match in matches for step in next(left[match])]

    def _rendered(self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT) -> str:
        if self._of_videos is None:
            return super()._rendered(messages, options)
        parts = [part for message in messages for part in message.get("content") or ()]
        shown = any(isinstance(part, Mapping) and part.get("type") == "video" for part in parts)
        if shown:
            return self._of_videos.render(messages, options)
        return super()._rendered(messages, options)

    @cached_property
    def _of_videos(self) -> ChatTemplate | None:
        """Chat template for messages with videos, if it is a separate one."""
        source = self.media.video_template
        return ChatTemplate(source, self.names.settings.special) if source else None

    def run_of(self, encoded: Encoded) -> list[int]:
        """Return the placeholder tokens of an image or video in a prompt."""
        return [self._video_token()] * encoded.rows if encoded.of_video else super().run_of(encoded)

    def _check_time(self, request: Request) -> None:
        """Check that rotary positions fit the context: time may count faster than tokens."""
        if request.spans is None or request.spans.axes is None:
            return
        reached, room = int(request.spans.axes.max()) + 1, self.decoder.sizes.ctx_len
        if reached > room:
            raise GenerationError(
                f"The videos of the prompt last up to rotary position {reached:,}; expected at "
                f"most {room:,}, the package's context. Give shorter ones, or build it with a larger --ctx-len."
            )

    def _stamp(self) -> Sequence[str]:
        """Return the texts around each step of a video if steps are encoded as images; empty for a whole video.

        Checkpoints of one type may have processors with different timestamp texts.
        """
        from qeff_zoo.media.video_processor import stamp_of

        default: Sequence[str] = self.media.stamp
        return stamp_of(self.folder, self.media.video_processor) or default

    def _video_token(self) -> int:
        """Return the placeholder token of a video."""
        named = self.names.tokens_of(self.media.video)
        if len(named) != 1:
            raise GenerationError(
                f"The tokenizer of the package makes {len(named)} tokens of {self.media.video!r}; expected one, "
                "which stands for a video. Build it of a checkpoint whose tokenizer has that token."
            )
        return named[0]

    def check_reads_videos(self) -> None:
        """Raise `GenerationError` if the package does not support videos."""
        if not self.media.video:
            raise GenerationError(
                f"The prompt has videos, and this package of {self.config.get('model_type')!r} reads images alone; "
                "expected one of a model whose videos are read, which docs/vision-language.md lists. Give it single "
                "frames as images (--image)."
            )
        if (
            not isinstance(self.reader, Vision)
            or isinstance(self.reader.program, HasMaxPatches)
            or (self.media.has_frame_program and not self.reader.has_frames)
        ):
            raise GenerationError(
                "The prompt has videos, and this package has no vision program, or one of fixed sizes, those of a "
                "image; expected one for images of any size. Build it for --target ort, without --decode-only."
            )

    def _most_patches(self) -> int:
        """Return the maximum number of patches in an image for programs of fixed sizes; else 0."""
        if isinstance(self.reader, RemoteEncoder):
            shape = read_json(self.folder / "manifest.json")["spec"]["shape"]
            return max(shape.get("patches", ()), default=0)
        program = self.reader.program
        return program.most_patches if isinstance(program, HasMaxPatches) else 0
