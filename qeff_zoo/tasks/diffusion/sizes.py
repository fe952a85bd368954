# SPDX-License-Identifier: Apache-2.0
"""Sizes of a package's programs: latents and pixels of the pipeline's default image, and the tokens of a prompt."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.files import COMPONENTS
from qeff_zoo.recipe import Shape
from qeff_zoo.registry import find_recipe

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


@dataclass(frozen=True, kw_only=True)
class ImageShape(Shape):
    """Sizes of the programs of a pipeline.

    Args:
        latent_height: Rows of latents.
        latent_width: Columns of latents.
        vae_factor: Pixels on a side for each latent.
        tokens: Number of tokens of a prompt, by text encoder.
        step: Sizes of a step for one image, by symbol.
        decoder: Further sizes of the decoder of the VAE, by symbol.
        encoder: Further sizes of its encoder.
    """

    latent_height: int
    latent_width: int
    vae_factor: int
    tokens: Mapping[str, int]
    step: Mapping[str, int]
    decoder: Mapping[str, int]
    encoder: Mapping[str, int]

    def symbols(self, role: str) -> dict[str, int]:
        """Return the sizes of a program, by symbol.

        Args:
            role: Role of the program.
        """
        if role in self.tokens:
            return {"batch_size": self.batch_size, "seq_len": self.tokens[role]}
        sides = {"latent_height": self.latent_height, "latent_width": self.latent_width}
        if role.startswith("vae_decoder"):
            return {"batch_size": self.batch_size, **sides, **self.decoder}
        if role == "image_encoder":
            return {"batch_size": self.batch_size}
        if role.startswith("vae_encoder"):
            height, width = (side * self.vae_factor for side in sides.values())
            pixels = {"height": height, "width": width}
            return {"batch_size": self.batch_size, **pixels, **self.encoder}
        return {**self.step, "batch_size": self.step["batch_size"] * self.batch_size}


def sized(checkpoint: "Checkpoint", shape: Shape) -> ImageShape:
    """Return the sizes of the programs of a checkpoint.

    Args:
        checkpoint: Checkpoint of a pipeline.
        shape: Sizes of the package.
    """
    from qeff_zoo.tasks.diffusion.family import family_of

    pipeline = find_recipe(checkpoint.model_type).pipeline
    assert pipeline
    family = family_of(checkpoint.config, pipeline.family)
    height, width = (side // family.vae_factor for side in family.size)
    components: Mapping[str, Mapping[str, Any]] = checkpoint.config[COMPONENTS]
    tokens = {
        role: family.lengths.get(role) or int(components[role].get("max_position_embeddings") or 77)
        for role in pipeline.components
        if role.startswith("text_encoder")
    }
    own = {name: value for name, value in asdict(shape).items() if name in Shape.__annotations__}
    return ImageShape(
        **own,
        latent_height=height,
        latent_width=width,
        vae_factor=family.vae_factor,
        tokens=tokens,
        step=family.sizes(tokens),
        decoder=family.decoder_sizes(),
        encoder=family.encoder_sizes(),
    )
