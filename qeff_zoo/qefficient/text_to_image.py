# SPDX-License-Identifier: Apache-2.0
"""QEfficient's pipeline of Flux: texts in, images and the seconds of each module out."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from qeff_zoo.errors import GenerationError
from qeff_zoo.qefficient.pipelines import (
    QEffPipeline,
    QEffPipelineOutput,
    away_of,
    listed,
    seeds_of,
)

_MOST_TOKENS = 512  # of T5


class QEffFluxPipeline(QEffPipeline):
    """Text to image by Flux 1, as `diffusers.FluxPipeline` computes it.

    Args:
        source: The checkpoint; `from_pretrained` takes its name.

    Example:
        >>> flux = QEffFluxPipeline.from_pretrained(
        ...     "black-forest-labs/FLUX.1-schnell"
        ... )  # doctest: +SKIP
        >>> output = flux("a cat", num_inference_steps=4, height=512, width=512)  # doctest: +SKIP
        >>> output.images[0].save("cat.png")  # doctest: +SKIP
    """

    roles: ClassVar[Mapping[str, tuple[str, ...]]] = {
        name: (name,) for name in ("text_encoder", "text_encoder_2", "transformer", "vae_decoder")
    }
    tokens_of = "text_encoder_2"

    def compile(
        self,
        compile_config: str | None = None,
        parallel: bool = False,
        height: int = 512,
        width: int = 512,
        use_onnx_subfunctions: bool = False,
    ) -> str:
        """Build a package, or find it in the store; it draws images of any size.

        Args:
            compile_config: QEfficient's JSON file, whose settings of cards have no effect on a CPU.
            parallel: Whether modules are compiled at the same time, which changes nothing.
            height: Without effect.
            width: Without effect.
            use_onnx_subfunctions: Without effect: equal blocks are functions in any case.

        Returns:
            The package's folder.

        Raises:
            FileNotFoundError: The file does not exist.
            ValueError: The file's path is no text, or names a module that Flux does not have.
            PlanError: The file has a `qpc_path`, which is a program of QEfficient's.
        """
        return self._build(compile_config)

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        height: int = 512,
        width: int = 512,
        prompt_2: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        true_cfg_scale: float = 1.0,
        num_inference_steps: int = 28,
        guidance_scale: float = 3.5,
        num_images_per_prompt: int = 1,
        generator: Any = None,
        output_type: str = "pil",
        max_sequence_length: int = _MOST_TOKENS,
        custom_config_path: str | None = None,
        parallel_compile: bool = False,
        use_onnx_subfunctions: bool = False,
        **others: Any,
    ) -> QEffPipelineOutput:
        """Draw an image of each prompt; the package is built first if `compile` did not.

        Args:
            prompt: One text or several.
            height: Height in pixels.
            width: Width in pixels.
            prompt_2: The same texts as `prompt`, or None.
            negative_prompt: Text that images are guided away from, with a `true_cfg_scale` above 1.
            true_cfg_scale: Scale of that guidance.
            num_inference_steps: Number of steps.
            guidance_scale: Scale of the model's own guidance.
            num_images_per_prompt: Number of images of each prompt.
            generator: torch's generators on the CPU, one for each image, of which nothing was drawn; None for random
                seeds.
            output_type: "pil", or "np".
            max_sequence_length: Tokens of T5, 1 to 512.
            custom_config_path: See `compile`.
            parallel_compile: See `compile`.
            use_onnx_subfunctions: See `compile`.
            **others: diffusers' other arguments, which are refused unless they are None.

        Raises:
            GenerationError: An argument is not supported, or out of its range.
        """
        self._refuse(others, output_type)
        prompts = listed(prompt)
        if prompt_2 is not None and listed(prompt_2) != prompts:
            raise GenerationError(
                "prompt_2 differs from prompt; expected the same text for both encoders. Leave prompt_2 out."
            )
        images = [one for one in prompts for _ in range(num_images_per_prompt)]
        seeds = seeds_of(generator, len(images))
        away = away_of(negative_prompt, prompts, len(images))
        if self.package is None:
            self.compile(custom_config_path, parallel_compile, height, width, use_onnx_subfunctions)
        session = self._opened()
        options = [
            session.options(
                negative_prompt=other,
                true_cfg_scale=true_cfg_scale,
                seed=seed,
                steps=num_inference_steps,
                guidance_scale=guidance_scale,
                height=height,
                width=width,
            )
            for other, seed in zip(away, seeds, strict=True)
        ]
        for module in self.modules.values():
            module.seconds.clear()
        with self._tokens(session, max_sequence_length):
            drawn = [
                session.draw_all([text], one)[0].pixels
                for text, one in zip(images, options, strict=True)
            ]
        return QEffPipelineOutput(self._report(), _converted(drawn, output_type))


def _converted(drawn: Sequence[Any], output_type: str) -> Any:
    """Return images in the form of diffusers' `output_type`."""
    if output_type == "np":
        import numpy as np

        return np.stack(drawn).astype(np.float32) / np.float32(255)
    from PIL import Image

    return [Image.fromarray(pixels) for pixels in drawn]
