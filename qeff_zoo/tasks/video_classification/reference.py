# SPDX-License-Identifier: Apache-2.0
"""transformers' models that classify videos: logits of labels.

Only the reference process imports this. transformers' video processors need torchvision; its image processors that
compute the same with Pillow read the same settings.
"""

import importlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from transformers.models.videomae.image_processing_pil_videomae import VideoMAEImageProcessorPil
from transformers.models.vivit.image_processing_vivit import VivitImageProcessor

from qeff_zoo.validation.reference.runs import Answers, tick
from qeff_zoo.validation.trial.sample_images import draw_video

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_SETTINGS = (
    *("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor"),
    *("do_resize", "do_center_crop", "do_rescale", "do_normalize"),
)


class VideoReference(Answers):
    """Outputs for videos, whose frames transformers' own processor converts to arrays; each video alone.

    Args:
        model: Hugging Face model.
        request: Request with `checkpoint`, and `sequences` as in `sample_images.draw_video`.
        arrays: Unused.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(request["sequences"], model)
        self._model = model
        self._process = processor_of(request["checkpoint"], model.config.model_type)

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        return [self._look(*self._sequences[number]) for number in numbers]

    def _look(self, *video: int) -> Array:
        """Return the logits of a video, (1, labels)."""
        frames = draw_video(*video)
        config = self._model.config
        count = getattr(config, "num_frames", None) or config.frames_per_clip
        # transformers' own rule, of BaseVideoProcessor.sample_frames.
        chosen = torch.arange(0, len(frames), len(frames) / count).int()[:count]
        pixels = self._process(
            [Image.fromarray(frames[one]) for one in chosen], return_tensors="pt"
        )
        given = pixels["pixel_values"].to(next(self._model.parameters()).dtype)
        logits = self._model(**{self._model.main_input_name: given}).logits
        tick()
        return np.asarray(logits.float().numpy())


def processor_of(folder: str, model_type: str) -> Any:
    """Return transformers' image processor with the settings of a checkpoint's video processor.

    Args:
        folder: The checkpoint.
        model_type: Type of its model, which has the class of the video processor.
    """
    module = importlib.import_module(
        f"transformers.models.{model_type}.video_processing_{model_type}"
    )
    kind = getattr(module, module.__all__[0])
    defaults = {name: getattr(kind, name) for name in _SETTINGS}
    settings, _ = kind.get_video_processor_dict(folder, local_files_only=True)
    chosen = {name: settings.get(name, default) for name, default in defaults.items()}
    if kind.__name__ == "VivitVideoProcessor":
        return VivitImageProcessor(**chosen, offset=True)
    if kind.__name__ == "VJEPA2VideoProcessor":  # its constructor sets the size
        crop = chosen["crop_size"]
        crop = crop if isinstance(crop, int) else crop["height"]
        chosen["size"] = {"shortest_edge": int(crop * 256 / 224)}
    return VideoMAEImageProcessorPil(**chosen)
