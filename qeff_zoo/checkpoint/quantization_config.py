# SPDX-License-Identifier: Apache-2.0
"""The `quantization_config` of a checkpoint whose quantizer writes it elsewhere, or without a method."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: File of NVIDIA's ModelOpt beside config.json; its newer releases also write a `quantization_config`.
MODELOPT = "hf_quant_config.json"


def with_quantization(
    config: Mapping[str, Any], folder: Path, read_json: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Return a config with the `quantization_config` that transformers' quantizers would have written.

    Args:
        config: Content of config.json.
        folder: Folder of config.json.
        read_json: Reader of a small file.
    """
    settings = config.get("quantization_config")
    beside, of_mlx = folder / MODELOPT, config.get("quantization")
    if not settings and beside.is_file():
        content = read_json(beside)
        inner = content.get("quantization", content)
        settings = dict(inner) if isinstance(inner, Mapping) else None
        method = "modelopt"
    elif (
        isinstance(of_mlx, Mapping) and "bits" in of_mlx
    ):  # whose `quantization_config` may be older
        settings = {**of_mlx, "quant_method": "mlx", "model_type": config.get("model_type")}
        method = "mlx"
    elif settings and "quant_algo" in settings:
        method = "modelopt"
    else:
        return dict(config)
    return (
        {**config, "quantization_config": {"quant_method": method, **settings}}
        if settings
        else {**config}
    )
