# SPDX-License-Identifier: Apache-2.0
"""Modules of sentence-transformers after the encoder, as steps from token states to an embedding.

Input: modules.json and the configs that it lists. Output: one step for each module that computes anything, in their
order, with the names of its weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from qeff_zoo.checkpoint.sentence_transformers import files
from qeff_zoo.checkpoint.sentence_transformers.colbert import read_colbert
from qeff_zoo.checkpoint.sentence_transformers.files import STATIC, WEIGHTS, Module, reader_of
from qeff_zoo.checkpoint.sentence_transformers.steps import (
    ACTIVATIONS,
    AND,
    MODULES,
    POOLINGS,
    SCORES,
    SENTENCE,
    TOKENS,
    Dense,
    LayerNorm,
    MultiVectorMask,
    Normalize,
    Pooling,
    Step,
)
from qeff_zoo.errors import UnsupportedModelError

#: Fields of older poolings, in the order in which their results are concatenated.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_FEATURES = (TOKENS, SENTENCE, SCORES)
Reading: TypeAlias = Callable[[int, Module], Step | None]


def read_modules(companions: Mapping[str, Path]) -> list[Module]:
    """Return the modules of a model in order, for a ColBERT checkpoint those of a `MultiVectorEncoder`.

    Args:
        companions: Files beside the checkpoint, by relative path.
    """
    listed, colbert = files.read_modules(companions), read_colbert(reader_of(companions))
    return colbert.modules(listed) if colbert else listed


def read_pooling(companions: Mapping[str, Path]) -> tuple[str, bool] | None:
    """Return the published pooling and whether a normalization is last, supported or not; None without modules.

    Args:
        companions: Files beside the checkpoint, by relative path.
    """
    modules = read_modules(companions)
    if not modules:
        return None
    poolings = [AND.join(_modes(module)) for module in modules if module.kind == "Pooling"]
    pooling = "mean" if _is_static(modules) else next(iter(poolings), "none")
    last = [module for module in modules if module.kind != "Dropout"][-1]
    return pooling, last.kind == "Normalize" and _features(last)[1] == SENTENCE


def read_steps(
    companions: Mapping[str, Path], pooling: str | None = None, normalize: bool | None = None
) -> tuple[Step, ...]:
    """Return what follows the encoder; nothing for a checkpoint without modules, or without a pooling.

    Args:
        companions: Files beside the checkpoint, by relative path.
        pooling: Pooling instead of the published one; "none" for the states of tokens.
        normalize: Whether a normalization is last, instead of the published order.

    Raises:
        UnsupportedModelError: A module or one of its settings is not supported.
    """
    modules = read_modules(companions)
    require_encoder(modules)
    several = any(module.kind == "MultiVectorMask" for module in modules)
    if not modules or (pooling == "none" and not several):
        return ()
    published = read_pooling(companions)
    overrides = published is not None and pooling not in (None, published[0])
    steps: list[Step] = [Pooling(place=0, folder="", modes=("mean",))] * _is_static(modules)
    for number, module in enumerate(modules[1:], 1):
        module.require_own()
        if module.kind not in _READINGS:
            raise UnsupportedModelError(
                f"modules.json lists {module.kind}{_described(module.kind)} as module {number}; expected Transformer "
                f"and then {_SUPPORTED}. Without it the embeddings would be others: run the model with "
                "sentence-transformers itself."
            )
        if overrides and module.kind == "Pooling":
            module = replace(
                module, config={**_kept(module), "pooling_mode": str(pooling).split(AND)}
            )
        if step := _READINGS[module.kind](number, module):
            steps.append(step)
    width = reader_of(companions)("config.json").get("hidden_size")
    scores = bool(steps) and steps[-1].writes == SCORES
    connected = _connected(steps, width, SCORES if scores else SENTENCE)
    return tuple(connected) if scores else _ending(connected, len(modules), normalize)


def require_encoder(modules: Sequence[Module]) -> None:
    """Raise `UnsupportedModelError` if the first module is no encoder of transformers."""
    if not modules:
        return
    first = modules[0]
    first.require_own()
    if first.kind not in ("Transformer", STATIC):
        raise UnsupportedModelError(
            f"modules.json begins with {first.kind}{_described(first.kind)}; expected Transformer, an encoder of "
            "transformers with one embedding per text. Run the model with sentence-transformers itself."
        )
    if first.kind == "Transformer" and first.folder not in ("", "."):
        raise UnsupportedModelError(
            f"modules.json has the Transformer in the folder {first.folder!r}, as old releases of "
            "sentence-transformers save it; expected its files beside modules.json. Load the model with the current "
            "release and save it again."
        )


def _is_static(modules: Sequence[Module]) -> bool:
    return bool(modules) and modules[0].kind == STATIC


def _described(kind: str) -> str:
    """Return what an unsupported module is for, in parentheses."""
    purpose = next((words for words, kinds in _PURPOSES.items() if kind in kinds), "")
    return f" ({purpose})" if purpose else ""


def described(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return the steps of a program as JSON values; empty if a pooling and a normalization are all."""
    plain = [type(step) for step in steps] in ([Pooling], [Pooling, Normalize])
    first = steps[0] if steps else None
    if not steps or (plain and isinstance(first, Pooling) and first.include_prompt):
        return []
    return [step.described() for step in steps]


def weight_files(companions: Mapping[str, Path]) -> dict[str, str]:
    """Return the weight files of modules, which transformers does not read: folder -> relative path.

    Args:
        companions: Files beside the checkpoint, by relative path.
    """
    return {
        module.folder: f"{module.folder}/{WEIGHTS}"
        for module in read_modules(companions)
        # Below the checkpoint's folder, with a config, so that it cannot lie elsewhere.
        if module.kind in _WEIGHTED and module.folder and module.file in companions
    }


def bindings_of(steps: Sequence[Step]) -> dict[str, str]:
    """Return the checkpoint tensor of every parameter of the steps, by its name in the model."""
    return {
        f"{MODULES}.{step.place}.{name}": f"{step.folder}/{name}" if step.folder else name
        for step in steps
        for name in step.parameters
    }


_WEIGHTED = ("Dense", "LayerNorm")


def _modes(module: Module) -> tuple[str, ...]:
    """Return the methods of a pooling, known or not, in the order of their results."""
    newer = module.config.get("pooling_mode")
    if newer is not None:
        return tuple(newer) if isinstance(newer, list) else (str(newer),)
    chosen = [
        name for name, value in module.config.items() if name.startswith("pooling_mode_") and value
    ]
    unknown = [name for name in chosen if name not in _MODES]
    return tuple([mode for name, mode in _MODES.items() if name in chosen] + unknown) or ("mean",)


def _kept(module: Module) -> dict[str, Any]:
    return {
        name: value for name, value in module.config.items() if not name.startswith("pooling_mode_")
    }


def _read_pooling(number: int, module: Module) -> Step:
    modes = _modes(module)
    if not module.config:
        raise module.refuse("its pooling", None, "a config that names it, or --pooling")
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise module.refuse("pooling", unknown[0], f"one of {', '.join(POOLINGS)}, or --pooling")
    return Pooling(
        place=number,
        folder=module.folder,
        modes=modes,
        include_prompt=bool(module.config.get("include_prompt", True)),
    )


def _read_dense(number: int, module: Module) -> Step:
    config = module.config
    library, _, activation = str(
        config.get("activation_function", "torch.nn.modules.activation.Tanh")
    ).rpartition(".")
    if activation not in ACTIVATIONS or not library.startswith("torch.nn"):
        named = config.get("activation_function")
        raise module.refuse("activation_function", named, f"of torch.nn {', '.join(ACTIVATIONS)}")
    for size in ("in_features", "out_features"):
        if not isinstance(config.get(size), int) or config[size] < 1:
            raise module.refuse(size, config.get(size), "a number of features")
    reads, writes = _features(module)
    return Dense(
        place=number,
        folder=module.folder,
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=bool(config.get("bias", True)),
        activation=activation,
        residual=bool(config.get("use_residual", False)),
        reads=reads,
        writes=writes,
    )


def _read_layer_norm(number: int, module: Module) -> Step:
    size = module.config.get("dimension")
    if not isinstance(size, int) or size < 1:
        raise module.refuse("dimension", size, "a number of features")
    return LayerNorm(place=number, folder=module.folder, size=size)


def _read_mask(number: int, module: Module) -> Step:
    if kept := module.config.get("keep_only_token_ids"):
        raise module.refuse("keep_only_token_ids", kept, "none: all tokens of a text")
    kinds = module.config.get("skiplist_tasks") or ["document"]
    return MultiVectorMask(
        place=number,
        folder=module.folder,
        skipped=tuple(module.config.get("skiplist_words") or ()),
        kinds=tuple([kinds] if isinstance(kinds, str) else kinds),
    )


def _read_normalize(number: int, module: Module) -> Step:
    reads, writes = _features(module)
    return Normalize(place=number, folder=module.folder, reads=reads, writes=writes)


def _features(module: Module) -> tuple[str, str]:
    """Return the features that a module reads and writes."""
    reads = module.config.get("module_input_name") or SENTENCE
    writes = module.config.get("module_output_name") or reads
    for setting, value in (("module_input_name", reads), ("module_output_name", writes)):
        if value not in _FEATURES:
            raise module.refuse(setting, value, " or ".join(map(repr, _FEATURES)))
    return reads, writes


def _connected(steps: Sequence[Step], width: int | None, result: str) -> list[Step]:
    """Return steps; refuse those that read a feature which is not there, or of another width.

    Args:
        steps: The steps.
        width: Width of the token states; None if it is unknown.
        result: Feature that the steps make of a text, unless they make one of each token.
    """
    widths: dict[str, int | None] = {TOKENS: width}
    for step in steps:
        if step.reads not in widths:
            raise UnsupportedModelError(
                f"Module {step.place} of modules.json, {type(step).__name__}, reads {step.reads!r} before a pooling "
                "makes it; expected Pooling before. Correct modules.json: sentence-transformers does not run it either."
            )
        expected, available = (
            getattr(step, "in_features", getattr(step, "size", None)),
            widths[step.reads],
        )
        if None not in (expected, available) and expected != available:
            raise UnsupportedModelError(
                f"{step.folder}/config.json has {expected} inputs, and {step.reads!r} has {available} values; expected "
                "as many. Get the files again, or give another --pooling."
            )
        times = len(step.modes) if isinstance(step, Pooling) else 1
        after = step.out_features if isinstance(step, Dense) else available and available * times
        widths[step.writes] = after
    several = any(isinstance(step, MultiVectorMask) for step in steps)
    if several == (result in widths):
        raise UnsupportedModelError(
            f"modules.json makes {[*widths]}; expected {result!r} after a Pooling, or a MultiVectorMask without one. "
            "Run the model with sentence-transformers itself."
        )
    return _used(steps, TOKENS if several else result)


def _used(steps: Sequence[Step], result: str) -> list[Step]:
    """Return the steps on which a feature depends."""
    needed, kept = {result}, list[Step]()
    for step in reversed(steps):
        if step.writes in needed:
            needed = needed - {step.writes} | {step.reads}
            kept.append(step)
    return kept[::-1]


def _ending(steps: list[Step], number: int, normalize: bool | None) -> tuple[Step, ...]:
    """Return steps that end with a normalization of the embedding, or do not."""
    if any(isinstance(step, MultiVectorMask) for step in steps):
        return tuple(steps)
    ends = isinstance(steps[-1], Normalize) and steps[-1].writes == SENTENCE
    if normalize is None or normalize == ends:
        return tuple(steps)
    if ends:
        return tuple(steps[:-1])
    return (*steps, Normalize(place=number, folder=""))


_READINGS: Mapping[str, Reading] = MappingProxyType(
    {
        "Pooling": _read_pooling,
        "Dense": _read_dense,
        "LayerNorm": _read_layer_norm,
        "Normalize": _read_normalize,
        "MultiVectorMask": _read_mask,
        "Dropout": lambda place, module: None,
    }
)
#: Purposes of modules that are not supported.
_PURPOSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sparse embeddings, as of SPLADE": (
            *("SpladePooling", "MLMTransformer", "SparseAutoEncoder", "SparseStaticEmbedding"),
        ),
        "fewer embeddings of tokens": ("TokenPooling", "HierarchicalTokenPooling"),
        "a mean of the embeddings of words, without an encoder": (
            *("WordEmbeddings", "BoW", "WordWeights"),
        ),
        "modules by the kind of text": ("Router", "Asym"),
    }
)
_SUPPORTED = f"{', '.join(_READINGS)} in any order"
