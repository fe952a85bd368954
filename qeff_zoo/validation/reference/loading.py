# SPDX-License-Identifier: Apache-2.0
"""Loading the reference: transformers' own model in float32, of floats or of a quantized checkpoint.

Only the reference process imports this.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn

from qeff_zoo import contract
from qeff_zoo.checkpoint.config import parsed_model_config
from qeff_zoo.checkpoint.files import read_config
from qeff_zoo.export import architectures
from qeff_zoo.validation.reference.adapters import merge
from qeff_zoo.validation.reference.formats import Weights, left_out, open_weights, plain_tensors
from qeff_zoo.validation.reference.formats.arranged import arranged
from qeff_zoo.validation.reference.unloaded import Unloaded

_ENDLESS = 1 << 40  # tokens


def load_model(request: Mapping[str, Any], task: str, rope_factors: str | None) -> Any:
    """Load a checkpoint in float32; every weight that answers depend on must be there.

    A quantized one is decoded by code of the reference's own: transformers rounds what it decodes, or cannot without a
    GPU.

    Args:
        request: With `checkpoint`, `gguf` and `adapters`, as `Checkpoint.located` returns them.
        task: Hub pipeline tag.
        rope_factors: Set of longrope factors for every text: "short" or "long"; None for other models.
    """
    folder = Path(request["checkpoint"])
    if is_pipeline(folder):
        from qeff_zoo.validation.reference.pipelines import load_pipeline

        return load_pipeline(folder)
    auto, config, weights = _open(request, task)
    source: dict[str, Any] = {"pretrained_model_name_or_path": folder, "config": config}
    if weights is not None:
        with torch.device("meta"):  # an automatic class takes no weights without a name
            empty = auto.from_config(config)
        auto = type(empty)
        source = {
            "pretrained_model_name_or_path": None,
            "config": empty.config,
            "state_dict": weights(empty),
        }
    loading: Any = auto.from_pretrained(
        **source,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    model, loaded = loading
    _check(model, loaded["missing_keys"], loaded["unexpected_keys"], decoded=_decodes(request))
    adapters = request.get("adapters", ())
    if getattr(model, "_hf_peft_config_loaded", False):  # one that lies beside it is on already
        adapters = [adapter for adapter in adapters if not Path(adapter["folder"]).samefile(folder)]
    merge(model, adapters)
    return _set(model, rope_factors)


def count_parameters(request: Mapping[str, Any], task: str) -> int:
    """Return the number of parameters of a checkpoint's model.

    Args:
        request: See `load_model`.
        task: Hub pipeline tag.
    """
    auto, config, _ = _open(request, task)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in auto.from_config(config).parameters())


def load_unloaded(request: Mapping[str, Any], task: str, rope_factors: str | None) -> Unloaded:
    """Build a model without weights, which are read from the checkpoint part by part.

    Args:
        request: See `load_model`.
        task: Hub pipeline tag.
        rope_factors: See `load_model`.
    """
    auto, config, weights = _open(request, task)
    with init_empty_weights(include_buffers=False):
        model = auto.from_config(config, attn_implementation="eager", dtype=torch.float32)
    tensors = weights(model) if weights else plain_tensors(Path(request["checkpoint"]))
    unloaded = Unloaded(model, tensors)
    report = unloaded.report
    _check(model, report.missing_keys, report.unexpected_keys, decoded=_decodes(request))
    _set(model, rope_factors)
    return unloaded


def _open(
    request: Mapping[str, Any], task: str
) -> tuple[Any, Any, Callable[[Any], Mapping[str, Any]] | None]:
    """Return the class of a checkpoint's model, its configuration, and what opens tensors that are decoded here."""
    folder, gguf = Path(request["checkpoint"]), request.get("gguf", ())
    config = parsed_model_config(_parsed(folder))
    auto = contract.auto_class(task, config)
    weights = None if gguf else decoded_weights(folder)
    if not (gguf or weights):
        return auto, config, None
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return (
        auto,
        config,
        lambda model: (
            arranged(weights.tensors, model, halved=weights.halved)
            if weights
            else _gguf_tensors(gguf, model)
        ),
    )


def _parsed(folder: Path) -> Any:
    """Return a checkpoint's configuration, parsed by transformers or by our class of its code."""
    written, read = _config(folder), read_config(folder / "config.json")
    architectures.register(read["model_type"])
    if read == written or not written.get("auto_map"):
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    return transformers.CONFIG_MAPPING[read["model_type"]].from_dict(read)


def _decodes(request: Mapping[str, Any]) -> bool:
    """Whether weights are those of a quantized checkpoint that is not GGUF."""
    return not request.get("gguf") and bool(_quantization(Path(request["checkpoint"])))


def _check(model: Any, missing: Iterable[str], unexpected: Iterable[str], *, decoded: bool) -> None:
    """Raise ValueError if a checkpoint lacks needed weights, or has unexpected ones."""
    unread = ("pooler.", "encoder.pooler.")
    lacking = [name for name in missing if not name.startswith(unread)]
    if lacking:
        raise ValueError(f"The checkpoint has no {sorted(lacking)[:5]}.")
    if decoded and (strange := _strange(model, unexpected)):
        raise ValueError(f"The reference does not know what these are for: {strange[:5]}.")


def _set(model: Any, rope_factors: str | None) -> Any:
    """Set how a model computes."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    if rope_factors is not None:
        _fix_factors(model.config.get_text_config(), rope_factors)
    return model.eval()


def _gguf_tensors(paths: Sequence[str], empty: Any) -> Mapping[str, Any]:
    from qeff_zoo.validation.reference.formats.gguf_files import open_tensors

    names = list(empty.state_dict())
    return open_tensors([Path(path) for path in paths], empty.config.get_text_config(), names)


def _quantization(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint's config.json, or ModelOpt's file beside it, sets about its quantization."""
    config = _config(folder)
    settings = dict(config.get("quantization_config") or {})
    if "bits" in (config.get("quantization") or {}):
        return {
            **config["quantization"],
            "quant_method": "mlx",
            "model_type": config["model_type"],
        }
    beside = folder / "hf_quant_config.json"
    if not settings and beside.is_file():
        settings = dict(json.loads(beside.read_bytes())["quantization"])
    return {"quant_method": "modelopt", **settings} if "quant_algo" in settings else settings


def is_pipeline(folder: Path) -> bool:
    """Return whether a checkpoint is a pipeline of diffusers, whose components have a folder each."""
    return not (folder / "config.json").is_file() and (folder / "model_index.json").is_file()


def _config(folder: Path) -> dict[str, Any]:
    if is_pipeline(folder):
        return {}
    config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    return config


def decoded_weights(folder: Path) -> Weights | None:
    """Open the weights of a quantized checkpoint; None of one of floats.

    Args:
        folder: Folder of the checkpoint.
    """
    quantization = _quantization(folder)
    return open_weights(folder, quantization) if quantization else None


def _strange(model: nn.Module, unexpected: Iterable[str]) -> list[str]:
    """Return tensors of modules that the model has, which must belong to a format; a bias that is 0 may be there."""
    paths = {path for path, _ in model.named_modules() if path}
    return sorted(
        name
        for name in unexpected
        if name.rpartition(".")[0] in paths and not name.endswith(("bias", "inv_freq"))
    )


def about_quantization(request: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a quantized checkpoint's format, and the parts of it that are not applied.

    Args:
        request: With `checkpoint`, and `gguf` where the weights are in such files.
    """
    if request.get("gguf"):
        return {"quantization": "gguf", "left_out": []}
    quantization = _quantization(Path(request["checkpoint"]))
    if not quantization:
        return {}
    return {"quantization": quantization["quant_method"], "left_out": left_out(quantization)}


def _fix_factors(config: Any, chosen: str) -> None:
    """Let texts of all lengths be longer than the original context, or none: longrope has two sets of factors.

    The model is there already, with the scale that its own original context gives it; what is set here is only where
    Hugging Face's code goes over from the short factors to the long ones.
    """
    changes_at = 0 if chosen == "long" else _ENDLESS
    config.rope_parameters |= {"original_max_position_embeddings": changes_at, "factor": 1.0}
    if hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = changes_at
