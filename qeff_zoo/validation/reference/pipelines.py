# SPDX-License-Identifier: Apache-2.0
"""diffusers' own pipeline of a checkpoint, unpatched, in float32, with its components as parts of one module.

Only the reference process imports this.
"""

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn
from transformers import PreTrainedConfig

from qeff_zoo.registry import find_recipe

#: Components that a package leaves out, unless its pipeline has their class.
_LEFT_OUT = ("safety_checker", "feature_extractor", "image_encoder")


class Component(nn.Module):
    """A component under a configuration of transformers' kind, for the code that damages models.

    Args:
        folder: Folder of the component.
        module: The component.
    """

    def __init__(self, folder: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(folder, module)
        self.config = PreTrainedConfig()


class LoadedPipeline(nn.Module):
    """Components of a pipeline by folder, so that names of parameters begin with it.

    Args:
        pipeline: diffusers' pipeline.
    """

    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        for folder, part in pipeline.components.items():
            if isinstance(part, nn.Module):
                self.add_module(folder, part)
        self.pipeline = pipeline
        self.config = PreTrainedConfig()

    @property
    def halves(self) -> list[Component]:
        """Components, each with a configuration."""
        return [Component(*named) for named in self.named_children()]

    def can_generate(self) -> bool:
        """Return whether it generates tokens."""
        return False


def with_image(pipeline: Any, *, masked: bool) -> Any:
    """Return diffusers' pipeline of image to image, or of inpainting, with the components and settings of a pipeline.

    The name of its class follows from that: diffusers' automatic classes import every pipeline.

    Args:
        pipeline: Pipeline of text to image, or of the returned class.
        masked: Whether a part of the image is drawn anew.
    """
    suffix = ("Inpaint" if masked else "Img2Img") + "Pipeline"
    name = type(pipeline).__name__
    if name.endswith(suffix):
        return pipeline
    return _with_components(pipeline, name.removesuffix("Pipeline") + suffix)


def embeds_of(pipeline: Any, prompt: str, negative_prompt: str | None) -> dict[str, Any]:
    """Return the states of prompts as arguments of diffusers' pipeline of image to video.

    They are those of the pipeline of text to video with the same components: the other one requires ftfy to read texts.

    Args:
        pipeline: Pipeline of image to video.
        prompt: The text.
        negative_prompt: Text that the video is guided away from.
    """
    name = type(pipeline).__name__.removesuffix("ImageToVideoPipeline") + "Pipeline"
    found = _with_components(pipeline, name).encode_prompt(
        prompt, negative_prompt, max_sequence_length=512
    )
    return dict(zip(("prompt_embeds", "negative_prompt_embeds"), found, strict=True))


def _with_components(pipeline: Any, name: str) -> Any:
    """Return diffusers' pipeline of a class with the components and settings of another one."""
    kind = getattr(diffusers, name)
    known = inspect.signature(kind.__init__).parameters
    given = {**pipeline.config, **pipeline.components}
    converted = kind(**{key: value for key, value in given.items() if key in known})
    converted.set_progress_bar_config(disable=True)
    return converted


def load_pipeline(folder: Path) -> LoadedPipeline:
    """Load the pipeline of a checkpoint; the class is named as the pipeline's.

    Args:
        folder: Folder of the checkpoint.
    """
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    index = json.loads((folder / "model_index.json").read_bytes())
    recipe = find_recipe(index["_class_name"])
    known = recipe.pipeline.components if recipe.pipeline else {}
    left_out = {name: None for name in _LEFT_OUT if name in index and name not in known}
    pipeline = diffusers.DiffusionPipeline.from_pretrained(
        folder, torch_dtype=torch.float32, local_files_only=True, use_safetensors=True, **left_out
    )
    pipeline.set_progress_bar_config(disable=True)
    kind: Any = type(type(pipeline).__name__, (LoadedPipeline,), {})
    loaded: LoadedPipeline = kind(pipeline).eval()
    return loaded
