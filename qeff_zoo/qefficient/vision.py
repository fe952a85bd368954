# SPDX-License-Identifier: Apache-2.0
"""QEfficient's class of vision-language models."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.qefficient.causal import QEFFAutoModelForCausalLM
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, execute
from qeff_zoo.tasks import IMAGE_TEXT_TO_TEXT

from . import processor_outputs, translation


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
            kv_offload: False for one program on a card, which reads pictures itself; else there are two.
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
        num_frames: int = 1,
        **choices: Any,
    ) -> str:
        """Build a package, or find it in the store.

        Args:
            img_size: QEfficient's; of no use here, as the checkpoint's processor says how large pictures become.
            height: Height of the largest image, or of several, on a card, for models that take any size.
            width: Width of each.
            num_frames: Frames of QEfficient's videos; 1 for an image.
            **choices: See `QEFFAutoModelForCausalLM.compile`.

        Returns:
            The package's folder.

        Raises:
            ZooError: See `QEFFAutoModelForCausalLM.compile`; or heights and widths differ in number, or the input is
                a video.
        """
        heights, widths = ([one] if isinstance(one, int) else one or () for one in (height, width))
        if len(heights) != len(widths) or num_frames != 1:
            raise PlanError(
                [
                    f"`compile`: height is {height!r}, width {width!r} and num_frames {num_frames!r}; expected as many "
                    "heights as widths, and 1 frame. Give both, or neither."
                ]
            )
        if heights:
            sizes = zip(heights, widths, strict=True)
            choices["image_size"] = tuple(f"{tall}x{wide}" for tall, wide in sizes)
        if self._single_program and choices.get("target") in (None, "qaic"):
            choices.setdefault("single_program", True)
        return super().compile(**choices)

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
        image_height: int | None = None,
        image_width: int | None = None,
        multi_specs: bool | None = None,
        num_frames: int | None = None,
        sampling: Any = None,
        **others: Any,
    ) -> CloudAI100ExecInfo:
        """Answer prompts with images.

        Args:
            inputs: Output of transformers' processor of the checkpoint, all of it: `input_ids`, (prompts, tokens),
                with `attention_mask`, `pixel_values`, and whatever else it returns for images.
            streamer: A streamer of transformers, which gets the tokens of the answers; any other value to print
                prompts and answers as they grow.
            device_ids: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            generation_len: Tokens for each at most; None for as many as the context holds.
            tokenizer: QEfficient's argument; the package has the checkpoint's own.
            processor: The same.
            prompts: In place of `inputs`: users' messages, to which the chat template is applied.
            images: One image for each of `prompts`: a path, a URL, bytes, a Pillow image or an array; one prompt needs
                no list.
            image_height: Height in pixels to which each of `images` is resized before the processor; None for none.
            image_width: Width in pixels; required with `image_height`.
            multi_specs: QEfficient's argument; a program is chosen by the images' sizes.
            num_frames: The same: the inputs have the images.
            sampling: A `qeff_zoo.runtime.Sampling`; None to take the most likely token each time.
            **others: QEfficient's other arguments, which change nothing here or are refused.

        Raises:
            ZooError: The model is not compiled, or a prompt cannot be answered.
        """
        from qeff_zoo.runtime.media_text import listed

        translation.refuse("generate", others, translation.GENERATING)
        given, images = listed(prompts), listed(images)
        if bool(given) == (inputs is not None) or len(images) not in (0, len(given)):
            raise GenerationError(
                f"There are {'no ' if inputs is None else ''}inputs, {len(given)} prompts and {len(images)} images; "
                "expected inputs alone, or prompts with an image each. Give one of the two."
            )
        session = self._opened(device_ids, runtime_ai100)
        if image_height and image_width:
            images = [_resized(one, image_height, image_width) for one in images]
        images = [_fetched(one) for one in images]
        choices = {"generation_len": generation_len}
        choices |= {} if sampling is None else {"sampling": sampling}
        if inputs is not None:
            requests = [
                session.request_written_out(tokens, pictures, **choices)
                for tokens, pictures in processor_outputs.prompts_of(session, inputs)
            ]
        else:
            shown = [[one] for one in images] or [[]] * len(given)
            requests = [
                session.request(prompt, images=pictures, chat=True, **choices)
                for prompt, pictures in zip(given, shown, strict=True)
            ]
        return execute(session, requests, stream=streamer or False)


def _fetched(image: Any) -> Any:
    """Return an image, downloaded if it is a URL."""
    from qeff_zoo.media.fetching import fetch_media, is_url

    return fetch_media(image) if isinstance(image, str) and is_url(image) else image


def _resized(image: Any, height: int, width: int) -> Any:
    """Return an image of a size, as Pillow resizes it."""
    from PIL import Image

    from qeff_zoo.media.images import read_image

    return Image.fromarray(read_image(_fetched(image))).resize((width, height))
