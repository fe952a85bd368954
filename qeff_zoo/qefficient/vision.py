# SPDX-License-Identifier: Apache-2.0
"""QEfficient's class of vision-language models."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo import targets
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.plan.task import recipe_of
from qeff_zoo.qefficient.causal import QEFFAutoModelForCausalLM
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, execute
from qeff_zoo.qefficient.models import outside
from qeff_zoo.qefficient.program_paths import ProgramPaths
from qeff_zoo.tasks import IMAGE_TEXT_TO_TEXT

from . import image_sizes, translation

if TYPE_CHECKING:
    from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
    from qeff_zoo.tasks.multimodal.session import Prepared

_GRID, _RATIOS = "image_grid_thw", "aspect_ratio_ids"
_SHAPES = ("spatial_shapes", "pixel_attention_mask")
_SIZES = "target_sizes"
_COUNTS = "num_local_patches"
_CROPS, _GRIDS, _POOLED = "image_num_crops", "image_grids", "image_token_pooling"
#: What processors make of sounds and videos.
_UNREAD = ("input_features", "audio_input_features", "pixel_values_videos")


class QEFFAutoModelForImageTextToText(QEFFAutoModelForCausalLM):
    """A vision-language model.

    Example:
        >>> model = QEFFAutoModelForImageTextToText.from_pretrained(
        ...     "llava-hf/llava-1.5-7b-hf"
        ... )  # doctest: +SKIP
        >>> model.compile(prefill_seq_len=128, ctx_len=1024)  # doctest: +SKIP
        >>> inputs = processor(images=image, text=prompt, return_tensors="pt")  # doctest: +SKIP
        >>> model.generate(inputs=inputs, generation_len=64)  # doctest: +SKIP
    """

    _task = IMAGE_TEXT_TO_TEXT
    _single_program = False

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        kv_offload: bool | None = None,
        continuous_batching: bool = False,
        qaic_config: Mapping[str, Any] | None = None,
        **loaded: Any,
    ) -> "QEFFAutoModelForImageTextToText":
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            kv_offload: False for one program on a card, which encodes images itself; else there are two.
            continuous_batching: See `QEFFAutoModelForCausalLM`.
            qaic_config: See `QEFFAutoModelForCausalLM`.
            **loaded: See `QEFFAutoModelForCausalLM`.

        Raises:
            ZooError: See `QEFFAutoModelForCausalLM`.
        """
        model = super().from_pretrained(
            pretrained_model_name_or_path, continuous_batching, qaic_config, **loaded
        )
        assert isinstance(model, cls)
        model._single_program = kv_offload is False
        return model

    def compile(
        self,
        *,
        img_size: int | None = None,
        height: int | Sequence[int] | None = None,
        width: int | Sequence[int] | None = None,
        num_frames: int | Sequence[int] | None = 1,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        max_num_images: int | None = None,
        **choices: Any,
    ) -> str:
        """Build a package, or find it in the store.

        Args:
            img_size: QEfficient's; without effect, since the checkpoint's processor determines the size of images.
            height: Height of the largest image, or of several, on a card, for models that take any size; each is a
                specialization.
            width: Width of each.
            num_frames: Frames of a video of each size: any number without a card, 1 with one.
            mm_processor_kwargs: `min_pixels` and `max_pixels`, to which each size is scaled.
            max_num_images: Images of a prompt, for models with cross-attention; others take any number.
            **choices: See `QEFFAutoModelForCausalLM.compile`.

        Returns:
            The package's folder, with the paths of its programs: `["vision_qpc_path"]`, `["lang_qpc_path"]`. With
            `skip_lang=True`, the path of the vision encoder.

        Raises:
            ZooError: See `QEFFAutoModelForCausalLM.compile`; or heights, widths and frames differ in number, or a card
                is to read videos.
        """
        sizes = image_sizes.read(height, width, num_frames, mm_processor_kwargs)
        if sizes:
            choices["image_size"] = sizes
        recipe = recipe_of(self._opened_checkpoint())
        if recipe.images and recipe.images.by_cross_attention:
            choices["max_num_images"] = max_num_images
        frames = [num_frames] if isinstance(num_frames, int) else num_frames or [1]
        choices["single_program"] = self._single_program or choices.get("single_program")
        return super().compile(num_frames=max(frames), **choices)

    def _request(self, target: str | None, given: dict[str, Any]) -> Request:
        """Convert the arguments of `compile`, and refuse videos for a card."""
        frames = given.pop("num_frames", 1)
        if target not in (None, *OPTIONS["single_program"].targets) and given["single_program"]:
            del given["single_program"]
            warnings.warn(
                f"kv_offload=False is left out: a package for target {target!r} has a program for images and one for "
                "text. Outputs are the same.",
                stacklevel=outside(),
            )
        request = super()._request(target, given)
        if frames > 1 and targets.find(str(request.target)).static_shapes:
            raise PlanError(
                [
                    f"`compile`: num_frames is {frames}, and target {request.target!r} reads no videos; expected 1. "
                    f"Leave it out, or choose target={targets.NAMES[0]!r}."
                ]
            )
        return request

    def _compile(
        self,
        target: str | None,
        compile_dir: str | os.PathLike[str] | None,
        given: Mapping[str, Any],
    ) -> str:
        path = super()._compile(target, compile_dir, given)
        return ProgramPaths.of(
            path,
            self.package,
            vision_alone=bool(given.get("skip_lang")),
            image_sizes=given.get("image_size") or (),
        )

    def generate(  # type: ignore[override]
        self,
        inputs: Mapping[str, Any] | None = None,
        streamer: Any = None,
        device_ids: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        generation_len: int | None = None,
        *,
        tokenizer: Any = None,
        processor: Any = None,
        prompts: str | Sequence[str] = (),
        images: Sequence[Any] = (),
        sampling: Any = None,
        **others: Any,
    ) -> CloudAI100ExecInfo | Path:
        """Answer prompts with images.

        Args:
            inputs: Output of transformers' processor of the checkpoint: `input_ids`, (prompts, tokens), with
                `attention_mask`, `pixel_values` and, for patches, `image_grid_thw`.
            streamer: Any, to print prompts and answers as they grow.
            device_ids: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            generation_len: Tokens for each at most; None for as many as the context holds.
            tokenizer: QEfficient's argument; the package has the checkpoint's own.
            processor: The same.
            prompts: In place of `inputs`: users' messages, to which the chat template is applied.
            images: One image for each of `prompts`: a path, bytes, a Pillow image or an array; one prompt needs no
                list.
            sampling: A `qeff_zoo.runtime.Sampling`; None to take the most likely token each time.
            **others: `artifact_only` (or `artifacts`) writes the first call's inputs as files for qaic-runner, and
                returns their folder: those of the vision encoder with `skip_lang`, else those of the language model.
                QEfficient's others change nothing here or are refused.

        Raises:
            ZooError: The model is not compiled, or a prompt cannot be answered.
        """
        from qeff_zoo.tasks.multimodal.session import listed

        if translation.pop_only_files(others):
            role = "vision" if others.pop("skip_lang", False) else "language"
            others.pop("skip_vision", None)
            choices = {"prompts": prompts, "images": images, "sampling": sampling, **others}
            return self._write_inputs(
                lambda: self.generate(inputs, generation_len=1, **choices), role=role
            )

        translation.refuse("generate", others, translation.GENERATING)
        given, images = listed(prompts), listed(images)
        if bool(given) == (inputs is not None) or len(images) not in (0, len(given)):
            raise GenerationError(
                f"There are {'no ' if inputs is None else ''}inputs, {len(given)} prompts and {len(images)} images; "
                "expected inputs alone, or prompts with an image each. Give one of the two."
            )
        session = self._opened(device_ids, runtime_ai100)
        choices = {"generation_len": generation_len}
        choices |= {} if sampling is None else {"sampling": sampling}
        if inputs is not None:
            requests = [
                session.request_written_out(tokens, pictures, **choices)
                for tokens, pictures in _of_processor(session, inputs)
            ]
        else:
            shown = [[one] for one in images] or [[]] * len(given)
            requests = [
                session.request(prompt, images=pictures, chat=True, **choices)
                for prompt, pictures in zip(given, shown, strict=True)
            ]
        return execute(session, requests, stream=streamer is not None)


def _of_processor(
    session: "ImageTextToTextSession", inputs: Mapping[str, Any]
) -> "Iterator[tuple[list[int], list[Prepared]]]":
    """Yield the token ids of each prompt, and its images, in the order of both."""
    import numpy as np

    if "input_ids" not in inputs:
        raise GenerationError(
            f"The inputs are {sorted(inputs)!r}; expected input_ids, as a processor returns them. Call it on the text."
        )
    if unread := [name for name in _UNREAD if name in inputs]:
        raise GenerationError(
            f"The inputs have {' and '.join(unread)}; expected text and pictures, which this package reads. Call the "
            "processor without sounds and videos."
        )
    ids = np.atleast_2d(np.asarray(inputs["input_ids"]))
    mask = np.atleast_2d(np.asarray(inputs.get("attention_mask", np.ones_like(ids)))).astype(bool)
    arrays = {name: np.asarray(inputs[name]) for name in inputs}
    images = session.media
    pictures = iter(_pictures(arrays, images.pixels, images.arrays))
    for row, seen in zip(ids, mask, strict=True):
        tokens = row[seen].tolist()
        left, shown = sum(one in session.placeholders for one in tokens), list["Prepared"]()
        while left > 0 and (picture := next(pictures, None)) is not None:
            shown.append(picture)
            left -= session.reader.look(picture).rows
        yield tokens, shown
    if unshown := sum(1 for _ in pictures):
        raise GenerationError(
            f"The inputs have {unshown} more pictures than its prompts have places for; expected as many of both. Call "
            "the processor on texts that have the model's token for each picture, or leave pictures out."
        )


def _pictures(
    inputs: Mapping[str, Any], pixels_name: str = "pixel_values", more: Sequence[str] = ()
) -> "list[Prepared]":
    """Split a processor's output for several images, with further values of each."""
    import numpy as np

    if pixels_name not in inputs:
        return []
    pixels, grids = inputs[pixels_name], inputs.get(_GRID)
    if pixels_name != "pixel_values":  # which has more to say of each
        names = [name for name in inputs if name.startswith("image_")]
        return [{name: inputs[name][at : at + 1] for name in names} for at in range(len(pixels))]
    if _RATIOS in inputs:  # of each prompt as many pictures; those that fill up have none
        names = [name for name in inputs if name == "pixel_values" or name.startswith("aspect_")]
        return [
            {name: inputs[name][row : row + 1, place : place + 1] for name in names}
            for row, place in np.argwhere(inputs[_RATIOS] > 0)
        ]
    if _SHAPES[0] in inputs:  # a tile each, since their tokens are written out
        names = ["pixel_values", *_SHAPES]
        return [{name: inputs[name][at : at + 1] for name in names} for at in range(len(pixels))]
    if _SIZES in inputs:  # a tile each, too
        ends = inputs[_SIZES].prod(axis=1).cumsum() * pixels.shape[2]
        parts = np.split(pixels, ends[:-1], axis=-1)
        return [
            {"pixel_values": part, _SIZES: size[None]}
            for part, size in zip(parts, inputs[_SIZES], strict=True)
        ]
    if _CROPS in inputs:
        return [*_of_crops(inputs)]
    if _COUNTS in inputs:
        return [*_with_tiles(inputs, more)]
    if pixels.ndim == 2 and grids is None:  # patches of one picture, each of which is a row
        return [{"pixel_values": pixels}]
    if grids is None:
        names = ["pixel_values", *({*more} & inputs.keys())]
        return [{name: inputs[name][at : at + 1] for name in names} for at in range(len(pixels))]
    ends = grids.prod(axis=1).cumsum()
    return [
        {"pixel_values": pixels[stop - grid.prod() : stop], _GRID: grid[None]}
        for grid, stop in zip(grids, ends, strict=True)
    ]


def _with_tiles(inputs: Mapping[str, Any], more: Sequence[str]) -> "Iterator[Prepared]":
    """Assign tiles to several images, which lie in an array of their own."""
    import numpy as np

    names, begun = {*more} & inputs.keys(), 0
    for at, count in enumerate(inputs[_COUNTS].tolist()):
        of_tiles = {name: inputs[name][begun : begun + count] for name in names if count}
        begun += count
        yield {"pixel_values": inputs["pixel_values"][[at]], _COUNTS: np.array([count]), **of_tiles}


def _of_crops(inputs: Mapping[str, Any]) -> "Iterator[Prepared]":
    """Split crops of several images, and their rows, which count the patches of all."""
    import numpy as np

    crop = row = 0
    for count, grid in zip(inputs[_CROPS].tolist(), inputs[_GRIDS], strict=True):
        rows = int(grid[0] * grid[1] + grid[2] * grid[3])
        pixels, pooled = inputs["pixel_values"], inputs[_POOLED][row : row + rows]
        before = crop * pixels.shape[1]
        yield {
            "pixel_values": pixels[crop : crop + count],
            _POOLED: np.where(pooled < 0, -1, pooled - before),
            _GRIDS: grid[None],
        }
        crop, row = crop + count, row + rows
