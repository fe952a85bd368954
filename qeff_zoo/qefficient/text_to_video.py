# SPDX-License-Identifier: Apache-2.0
"""QEfficient's pipelines of Wan: texts, and an image for one of them, in; videos and the seconds of each module out."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qeff_zoo.errors import GenerationError
from qeff_zoo.qefficient.pipelines import (
    Module,
    QEffPipeline,
    QEffPipelineOutput,
    away_of,
    listed,
    seeds_of,
)

_MOST_TOKENS = 512  # of UMT5
_DECODER = ("vae_decoder", "vae_decoder_next")
_ENCODER = ("vae_encoder", "vae_encoder_next")
_UNIFIED = {"transformer": ("transformer", "transformer_2"), "vae_decoder": _DECODER}
_APART = {
    "transformer_high": ("transformer",),
    "transformer_low": ("transformer_2",),
    "vae_decoder": _DECODER,
}


class QEffWanPipeline(QEffPipeline):
    """Text to video by Wan 2.1 and 2.2, as `diffusers.WanPipeline` computes it.

    Args:
        source: The checkpoint; `from_pretrained` takes its name.

    Example:
        >>> wan = QEffWanPipeline.from_pretrained(
        ...     "Wan-AI/Wan2.2-T2V-A14B-Diffusers"
        ... )  # doctest: +SKIP
        >>> frames = wan("a cat", num_frames=33).images[0]  # doctest: +SKIP
        >>> export_to_video(frames, "cat.mp4", fps=16)  # doctest: +SKIP
    """

    roles: ClassVar[Mapping[str, tuple[str, ...]]] = _UNIFIED
    tokens_of = "text_encoder"

    @classmethod
    def from_pretrained(  # type: ignore[override]  # QEfficient's order
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        use_unified: bool = True,
        enable_first_block_cache: bool = False,
        first_block_cache_downsample_factor: int = 4,
        **others: Any,
    ) -> "QEffWanPipeline":
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            use_unified: Whether `modules` and reports name one transformer, or `transformer_high` and
                `transformer_low`; a package has a program for each in any case.
            enable_first_block_cache: Refused if True: steps are never skipped here.
            first_block_cache_downsample_factor: Without that cache, it has no effect.
            **others: See `QEffPipeline.from_pretrained`.

        Raises:
            PlanError: An argument is not supported.
            UnsupportedModelError: The checkpoint is of another pipeline.
        """
        found = super().from_pretrained(
            pretrained_model_name_or_path,
            enable_first_block_cache,
            first_block_cache_downsample_factor,
            **others,
        )
        if not use_unified:
            found.modules = {name: Module(roles=roles) for name, roles in _APART.items()}
        return found

    def compile(
        self,
        compile_config: str | None = None,
        parallel: bool = False,
        height: int = 48,
        width: int = 64,
        num_frames: int = 81,
        use_onnx_subfunctions: bool = False,
    ) -> str:
        """Build a package, or find it in the store; it draws videos of any size.

        Args:
            compile_config: QEfficient's JSON file, whose settings of cards have no effect on a CPU.
            parallel: Whether modules are compiled at the same time, which changes nothing.
            height: Without effect.
            width: Without effect.
            num_frames: Without effect.
            use_onnx_subfunctions: Without effect: equal blocks are functions in any case.

        Returns:
            The package's folder.

        Raises:
            FileNotFoundError: The file does not exist.
            ValueError: The file's path is no text, or names a module that Wan does not have.
            PlanError: The file has a `qpc_path`, which is a program of QEfficient's.
        """
        return self._build(compile_config)

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int = 480,
        width: int = 832,
        num_frames: int = 81,
        num_inference_steps: int = 50,
        guidance_scale: float = 3.0,
        guidance_scale_2: float | None = None,
        num_videos_per_prompt: int = 1,
        generator: Any = None,
        output_type: str = "np",
        return_dict: bool = True,
        max_sequence_length: int = _MOST_TOKENS,
        custom_config_path: str | None = None,
        use_onnx_subfunctions: bool = False,
        parallel_compile: bool = True,
        **others: Any,
    ) -> QEffPipelineOutput:
        """Draw a video of each prompt; the package is built first if `compile` did not.

        Args:
            prompt: One text or several.
            negative_prompt: Text that videos are guided away from.
            height: Height in pixels.
            width: Width in pixels.
            num_frames: Number of frames, 1 more than a multiple of 4.
            num_inference_steps: Number of steps.
            guidance_scale: Scale of guidance; none at 1 or less.
            guidance_scale_2: Scale of guidance in the steps of the second transformer; None for `guidance_scale`.
            num_videos_per_prompt: Number of videos of each prompt.
            generator: torch's generators on the CPU, one for each video, of which nothing was drawn; None for random
                seeds.
            output_type: "np", or "pil".
            return_dict: True.
            max_sequence_length: Tokens of UMT5, 1 to 512.
            custom_config_path: See `compile`.
            use_onnx_subfunctions: See `compile`.
            parallel_compile: See `compile`.
            **others: diffusers' other arguments, which are refused unless they are None.

        Raises:
            GenerationError: An argument is not supported, or out of its range.
        """
        further = self._further(others)
        self._refuse(others, output_type)
        if not return_dict:
            raise GenerationError(
                "return_dict is False; expected True, since the result has a report. Leave it out."
            )
        prompts = listed(prompt)
        videos = [one for one in prompts for _ in range(num_videos_per_prompt)]
        seeds = seeds_of(generator, len(videos))
        away = away_of(negative_prompt, prompts, len(videos))
        if self.package is None:
            self._build(custom_config_path)
        session = self._opened()
        options = [
            session.options(
                negative_prompt=other,
                seed=seed,
                steps=num_inference_steps,
                guidance_scale=guidance_scale,
                guidance_scale_2=guidance_scale_2,
                height=height,
                width=width,
                frames=num_frames,
            )
            for other, seed in zip(away, seeds, strict=True)
        ]
        if "image" in further:
            further = {"initial": session.read(further["image"])}
        for module in self.modules.values():
            module.seconds.clear()
        with self._tokens(session, max_sequence_length):
            drawn = [
                session.draw_with(text, one, **further).pixels
                for text, one in zip(videos, options, strict=True)
            ]
        return QEffPipelineOutput(self._report(), _converted(drawn, output_type))

    def _further(self, others: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the pipeline takes besides, and remove them from the others."""
        return {}


class QEffWanImageToVideoPipeline(QEffWanPipeline):
    """Image to video by Wan 2.1 and 2.2, as `diffusers.WanImageToVideoPipeline` computes it.

    Args:
        source: The checkpoint; `from_pretrained` takes its name.

    Example:
        >>> wan = QEffWanImageToVideoPipeline.from_pretrained(
        ...     "Wan-AI/Wan2.2-I2V-A14B-Diffusers"
        ... )  # doctest: +SKIP
        >>> frames = wan(Image.open("cat.png"), "the cat runs").images[0]  # doctest: +SKIP
    """

    roles: ClassVar[Mapping[str, tuple[str, ...]]] = {"vae_encoder": _ENCODER, **_UNIFIED}

    def __call__(  # type: ignore[override]  # QEfficient's order
        self,
        image: Any,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int = 544,
        width: int = 720,
        num_frames: int = 81,
        num_inference_steps: int = 50,
        guidance_scale: float = 1.0,
        guidance_scale_2: float | None = None,
        **others: Any,
    ) -> QEffPipelineOutput:
        """Draw a video of each prompt that begins with an image; see `QEffWanPipeline`.

        Args:
            image: The image: a Pillow image, an array or a path.
            prompt: One text or several.
            negative_prompt: Text that videos are guided away from.
            height: Height in pixels.
            width: Width in pixels.
            num_frames: Number of frames.
            num_inference_steps: Number of steps.
            guidance_scale: Scale of guidance.
            guidance_scale_2: Scale of guidance in the steps of the second transformer.
            **others: Other arguments of `QEffWanPipeline`.

        Raises:
            GenerationError: An argument is not supported, or out of its range.
        """
        return super().__call__(
            prompt,
            negative_prompt,
            height,
            width,
            num_frames,
            num_inference_steps,
            guidance_scale,
            guidance_scale_2,
            image=image,
            **others,
        )

    def _further(self, others: dict[str, Any]) -> dict[str, Any]:
        """Return the image."""
        return {"image": others.pop("image")}


def _converted(drawn: list[Any], output_type: str) -> Any:
    """Return videos in the form of diffusers' `output_type`."""
    if output_type == "np":
        import numpy as np

        return np.stack(drawn).astype(np.float32) / np.float32(255)
    from PIL import Image

    return [[Image.fromarray(one) for one in pixels] for pixels in drawn]
