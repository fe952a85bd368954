# SPDX-License-Identifier: Apache-2.0
"""Components of a diffusers pipeline as one module without weights: diffusers' and transformers' own classes."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig

from qeff_zoo.checkpoint.config_faults import refusals_of
from qeff_zoo.checkpoint.files import COMPONENTS
from qeff_zoo.checkpoint.pipeline_files import folders_of
from qeff_zoo.errors import ExportError, Translating, ZooError


class Pipeline(nn.Module):
    """Components of a pipeline by folder, so that names of parameters begin with it.

    Args:
        components: Modules by folder.
    """

    def __init__(self, components: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for folder, module in components.items():
            self.add_module(folder, module)
        self.config = PreTrainedConfig()

    @property
    def components(self) -> Mapping[str, nn.Module]:
        """Modules by folder."""
        return dict(self.named_children())


def build(config: Mapping[str, Any]) -> Pipeline:
    """Build the components of a pipeline; the caller prevents that weights take memory.

    Args:
        config: Configuration of a checkpoint, see `qeff_zoo.checkpoint.pipeline_files`.

    Raises:
        CheckpointError: A class rejects its configuration.
        ExportError: diffusers is not installed.
    """
    described = config[COMPONENTS]
    folders = [one for one in folders_of(config) if one in described]
    return Pipeline({folder: _component(described[folder]) for folder in folders}).eval()


def _component(config: Mapping[str, Any]) -> nn.Module:
    own = {name: value for name, value in config.items() if name not in ("_library", "auto_map")}
    kind = own.pop("_class_name")
    with Translating(_without_diffusers), refusals_of({**own, "model_type": kind}):
        if config["_library"] == "transformers":
            class_ = getattr(transformers, kind)
            parsed = class_.config_class.from_dict(own)
            parsed._attn_implementation = "eager"
            module: Any = class_._from_config(parsed, dtype=torch.float32)
            module.tie_weights()
            return module  # type: ignore[no-any-return]
        import diffusers

        return getattr(diffusers, kind).from_config(own)  # type: ignore[no-any-return]


def _without_diffusers(error: BaseException) -> ZooError | None:
    if not isinstance(error, ImportError):
        return None
    return ExportError(
        f"Pipelines are built with diffusers, which cannot be imported: {error}. Expected the extra `diffusion`. Run "
        "`pip install 'qeff-zoo[diffusion]'`."
    )
