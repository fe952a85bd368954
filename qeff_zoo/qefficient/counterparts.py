# SPDX-License-Identifier: Apache-2.0
"""Modules of QEfficient below the top: an import finds our counterpart, or an error that names the replacement.

`qeff_zoo.qefficient` adds `Finder` to Python's finders, after all others, which find modules that are files here.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

from qeff_zoo.errors import MissingNameError

_HERE = __name__.rpartition(".")[0]
_CLASSES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            "QEFFAutoModel",
            "QEFFAutoModelForCTC",
            "QEFFAutoModelForCausalLM",
            "QEFFAutoModelForImageTextToText",
            "QEFFAutoModelForSequenceClassification",
            "QEFFAutoModelForSpeechSeq2Seq",
            "QEFFCommonLoader",
        ),
        "",
    )
)
_LOADERS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("load_hf_processor", "load_hf_tokenizer", "login_and_download_hf_lm"), "loading")
)
_OF_UTILS: Mapping[str, str] = MappingProxyType(
    {
        **_LOADERS,
        **dict.fromkeys(
            ("check_and_assign_cache_dir", "get_qpc_dir_path", "qpc_exists"), "qpc_folders"
        ),
        "get_padding_shape_from_config": "generation.inputs",
    }
)
_OF_EMBEDDING = (
    *("DEFAULT_INSTRUCTION", "MAX_LENGTH", "MAX_PIXELS", "MIN_PIXELS"),
    *("configure_embedding_model_config", "format_model_input", "normalize_instruction"),
    *("resolve_model_source", "tokenize_conversation"),
)
_OF_RERANKING = (
    *("format_mm_content", "format_mm_instruction", "get_yes_no_token_ids", "resolve_model_source"),
    *("score_from_logits", "tokenize_pair", "truncate_tokens_optimized"),
)
#: Names of QEfficient's modules that are another module's here: "" is `qeff_zoo.qefficient`.
NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "base": _CLASSES,
        "base.common": _CLASSES,
        "base.onnx_transforms": {"FP16ClipTransform": "constants"},
        "compile": {},
        "compile.compile_helper": {"compile": ""},
        "finetune": {},
        "finetune.configs": {},
        "finetune.configs.training": {"TrainConfig": "cloud.finetune"},
        "finetune.utils": {},
        "finetune.utils.logging_utils": {"logger": "constants"},
        "peft": {"QEffAutoPeftModelForCausalLM": ""},
        "peft.auto": {"QEffAutoPeftModelForCausalLM": ""},
        "peft.lora": {"QEffAutoLoraModelForCausalLM": ""},
        "peft.lora.auto": {"QEffAutoLoraModelForCausalLM": ""},
        "transformers": {},
        "transformers.models": {},
        "transformers.models.modeling_auto": _CLASSES,
        "transformers.models.qwen3_vl": {},
        "transformers.models.qwen3_vl._embedding_utils": {
            **dict.fromkeys(_OF_EMBEDDING, "generation.retrieval"),
            "QEffQwen3VLEmbedder": "generation.embedder",
        },
        "transformers.models.qwen3_vl._reranker_utils": dict.fromkeys(_OF_RERANKING, "generation.retrieval"),
        "transformers.quantizers": {},
        "transformers.quantizers.auto": {
            "replace_transformers_quantizers": "constants", "undo_transformers_quantizers": "constants",
        },
        "transformers.quantizers.awq": {"WQLinear_GEMM": "constants"},
        "transformers.quantizers.gptq": {"QuantLinearGPTQ": "constants"},
        "transformers.quantizers.quantizer_compressed_tensors": {"FP8DeQuantLinear": "constants"},
        "transformers.transform": {"transform": ""},
        "utils": _OF_UTILS,
        "utils._utils": _OF_UTILS,
        "utils.constants": {"Constants": "constants", "ONNX_EXPORT_OPSET": "constants"},
        "utils.generate_inputs": {"InputHandler": "generation.inputs"},
        "utils.logging_utils": {"logger": "constants"},
        "utils.test_utils": {"InternProcessor": "generation.internvl"},
    }
)  # fmt: skip
_CUSTOM_OPS = (
    "Nothing replaces it: transformers' own code is traced, and a target lowers its ops. `qeff-zoo new MODEL` drafts a "
    "recipe for a model that has none; see CONTRIBUTING.md."
)
_DIFFUSERS = (
    "Of diffusion models there is `QEffFluxPipeline`, and of videos `QEffWanPipeline` and "
    "`QEffWanImageToVideoPipeline`. Use these, or keep QEfficient."
)
#: What to use in place of a module or a name, by its path or the longest beginning of it.
INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "": "See docs/from-qefficient.md for what there is.",
        "base": _CUSTOM_OPS,
        "customop": _CUSTOM_OPS,
        "diffusers": _DIFFUSERS,
        "exporter": "Use `qeff_zoo.qefficient.export`, which returns the folder and the graph's path.",
        "finetune": "Use `qeff-zoo finetune`, or `qeff_zoo.qefficient.cloud.finetune.main(model_name=…)`.",
        "generation": "Use `generate` of the classes, or `QAICInferenceSession` of `generation.cloud_infer`.",
        "generation.text_generation_inference": (
            "Use `generate` of the classes, or `cloud_ai_100_exec_kv(tokenizer, qpc_path, prompt)`, for any number of "
            "prompts."
        ),
        "peft": "Use `QEffAutoLoraModelForCausalLM` or `QEffAutoPeftModelForCausalLM`.",
        "transformers": _CUSTOM_OPS,
        "transformers.embeddings": "Give `QEFFAutoModel.from_pretrained` pooling='mean', 'max', 'cls' or 'lasttoken'.",
        "transformers.post_processing": "Give `from_pretrained` qaic_config={'speculative_model_type': 'turbo', …}.",
        "transformers.quantizers": (
            "Leave it out: quantized checkpoints are read as they are, also by scripts/replicate_kv_heads.py."
        ),
        "transformers.sampler": "Give `from_pretrained` qaic_config={'include_sampler': True}.",
        "transformers.spd": "Give `from_pretrained` qaic_config={'speculative_model_type': 'target'}.",
        "utils": "Leave it out: a package is found by its key, see `qeff-zoo cache ls`.",
        "utils.constants": _CUSTOM_OPS,
        "utils.generate_inputs": "Use `generate` of the classes; a build has compared the package with transformers.",
        "utils.run_utils": "Use `qeff-zoo validate`, which compares a package with transformers' model.",
        "utils.test_utils": "Use `from_pretrained` of the classes, which loads and cuts a model.",
    }
)


def names_of(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module with QEfficient's name: our counterpart, or an error with the replacement.

    Args:
        module: Full name of the module.
    """
    path = module.removeprefix(_HERE).removeprefix(".")

    def find(name: str) -> Any:
        target = NAMES.get(path, {}).get(name)
        if target is not None:
            return getattr(import_module(f"{_HERE}.{target}".rstrip(".")), name)
        below = f"{path}.{name}".lstrip(".")
        if below in NAMES:
            return import_module(f"{_HERE}.{below}")
        is_ours = not path and (name.islower() or name not in INSTEAD)
        if is_ours or name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise missing(below)

    return find


def missing(path: str) -> MissingNameError:
    """Return the error for a module or a name that has no counterpart.

    Args:
        path: Dotted path below the top of QEfficient.
    """
    parts = path.split(".")
    beginnings = (".".join(parts[:count]) for count in range(len(parts), -1, -1))
    instead = next(INSTEAD[beginning] for beginning in beginnings if beginning in INSTEAD)
    return MissingNameError(f"QEfficient's {path!r} has no counterpart in {_HERE}. {instead}")


class _FunctionModule(ModuleType):
    """Module with the name of a function at the top, whose place it takes there once it is imported."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function."""
        functions = import_module(f"{_HERE}.functions")
        return getattr(functions, self.__name__.rpartition(".")[2])(*given, **named)


class Finder:
    """Python finder of QEfficient's modules that are no files here."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module of `NAMES`.

        Raises:
            MissingNameError: The module is below `qeff_zoo.qefficient`, and has no counterpart.
        """
        if not fullname.startswith(f"{_HERE}."):
            return None
        below = fullname.removeprefix(f"{_HERE}.")
        if below not in NAMES and not any(one.startswith(f"{below}.") for one in INSTEAD):
            raise missing(below)
        return importlib.util.spec_from_loader(fullname, cls, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType | None:
        """Return a module that can be called, if its name is a function's too; None for an ordinary one."""
        return _FunctionModule(spec.name) if spec.name == f"{_HERE}.compile" else None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Give a module its names."""
        module.__doc__ = (
            f"Names of QEfficient's module {module.__name__.removeprefix(f'{_HERE}.')!r}."
        )
        module.__getattr__ = names_of(module.__name__)  # type: ignore[method-assign]


def install() -> None:
    """Add the finder, once."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
