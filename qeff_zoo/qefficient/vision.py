# SPDX-License-Identifier: Apache-2.0
"""QEfficient's class of vision-language models."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qeff_zoo import targets
from qeff_zoo.contract import IMAGE_TEXT_EMBEDDING, IMAGE_TEXT_TO_TEXT
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.plan.request import OPTIONS, Request
from qeff_zoo.plan.task import recipe_of
from qeff_zoo.qefficient.causal import QEFFAutoModelForCausalLM
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, execute
from qeff_zoo.qefficient.models import outside
from qeff_zoo.qefficient.program_paths import ProgramPaths
from qeff_zoo.qefficient.recording import records_calls

from . import image_sizes, processor_outputs, translation


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
            qaic_config: See `QEFFAutoModelForCausalLM`; with `export_embedding`, the model embeds prompts.
            **loaded: See `QEFFAutoModelForCausalLM`.

        Raises:
            ZooError: See `QEFFAutoModelForCausalLM`.
        """
        config = dict(qaic_config or {})
        embeds = config.pop("export_embedding", False)
        model = super().from_pretrained(
            pretrained_model_name_or_path, continuous_batching, config, **loaded
        )
        assert isinstance(model, cls)
        if embeds:
            model._loaded["task"] = IMAGE_TEXT_EMBEDDING
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

    @records_calls
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
    ) -> CloudAI100ExecInfo | Path | dict[str, Any]:
        """Answer prompts with images; of a model that embeds, return `embedding_output`, (prompts, hidden).

        Args:
            inputs: Output of transformers' processor of the checkpoint, all of it: `input_ids`, (prompts, tokens),
                with `attention_mask`, `pixel_values`, and whatever else it returns for images.
            streamer: A streamer of transformers, which gets the tokens of the answers; any other value to print
                prompts and answers as they grow.
            device_ids: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            generation_len: Tokens for each at most; None for as many as the context holds.
            tokenizer: QEfficient's argument; the package has the checkpoint's own.
            processor: transformers' processor of the checkpoint; used if the package cannot process `images` itself.
            prompts: Messages in place of `inputs`: users' messages, to which the chat template is applied.
            images: One image for each of `prompts`: a path, a URL, bytes, a Pillow image or an array; one prompt needs
                no list.
            image_height: Height in pixels to which each of `images` is resized before the processor; None for none.
            image_width: Width in pixels; required with `image_height`.
            multi_specs: QEfficient's argument; a program is chosen by the images' sizes.
            num_frames: The same: the inputs have the images.
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
        if image_height and image_width:
            images = [_resized(image, image_height, image_width) for image in images]
        images = [fetched(image) for image in images]
        choices = {"generation_len": generation_len}
        choices |= {} if sampling is None else {"sampling": sampling}
        if inputs is not None:
            requests = [
                session.request_written_out(tokens, parts, **choices)
                for tokens, parts in processor_outputs.prompts_of(session, inputs)
            ]
        else:
            shown = [[image] for image in images] or [[]] * len(given)
            requests = [
                request
                for prompt, parts in zip(given, shown, strict=True)
                for request in _requests(session, prompt, parts, processor, choices)
            ]
        if session.task == IMAGE_TEXT_EMBEDDING:
            return {session.output: session.embed(requests)}
        return execute(session, requests, stream=streamer or False)


def _requests(
    session: Any, prompt: str, images: Sequence[Any], processor: Any, choices: Mapping[str, Any]
) -> list[Any]:
    """Return the request of a message with images, which transformers' processor encodes if the package cannot."""
    try:
        return [session.request(prompt, images=images, chat=True, **choices)]
    except UnsupportedModelError:
        if not images or processor is None:
            raise
    content = [{"type": "image", "image": pillow(image)} for image in images]
    outputs = processor.apply_chat_template(
        [{"role": "user", "content": [*content, {"type": "text", "text": prompt}]}],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    return [
        session.request_written_out(tokens, parts, **choices)
        for tokens, parts in processor_outputs.prompts_of(session, outputs)
    ]


def fetched(image: Any) -> Any:
    """Return an image, downloaded if it is a URL."""
    from qeff_zoo.media.fetching import fetch_media, is_url

    return fetch_media(image) if isinstance(image, str) and is_url(image) else image


def _resized(image: Any, height: int, width: int) -> Any:
    """Return an image of a size, as Pillow resizes it."""
    return pillow(fetched(image)).resize((width, height))


def pillow(image: Any) -> Any:
    """Return a Pillow image."""
    from PIL import Image

    from qeff_zoo.media.images import read_image

    return Image.fromarray(read_image(image))
