# SPDX-License-Identifier: Apache-2.0
"""Modules after an encoder for the reference: those of sentence-transformers itself where it is installed.

In: a checkpoint's folder. Out: modules that turn features of texts into features, one after another, and the name of
who computes them. Without the library, a second reading of the same files in plain torch.

Only the reference process imports this.
"""

import importlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from qeff_zoo.checkpoint.sentence_transformers.colbert import Colbert, read_colbert
from qeff_zoo.checkpoint.sentence_transformers.files import files_of, read_modules, reader_of
from qeff_zoo.validation.reference import sentences

Features: TypeAlias = dict[str, Any]

_LIBRARY = "sentence_transformers"
_SPARSE = f"{_LIBRARY}.sparse_encoder.modules"
_OWN = "a reading of their files by qeff-zoo, since sentence-transformers is not installed"
_TOKENS, _SENTENCE = "token_embeddings", "sentence_embedding"
#: Features that models return, the last that modules make first.
_RESULTS = ("scores", _SENTENCE, _TOKENS)
#: Older fields of a pooling, in the order of its results.
_FIELDS = (
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


def witness(modules: nn.ModuleDict) -> str | None:
    """Return who computes modules after an encoder, for a record; None if there are none of a checkpoint's."""
    classes = [type(getattr(module, "library", None) or module) for module in modules.values()]
    if any(class_.__module__.partition(".")[0] == _LIBRARY for class_ in classes):
        return f"sentence-transformers {importlib.metadata.version('sentence-transformers')}"
    return _OWN if classes else None


def load_modules(
    folder: Path, settings: Mapping[str, Any], model: Any = None, *, sparse: bool = False
) -> nn.ModuleDict:
    """Return the modules after the encoder by their numbers; without modules.json the library's default.

    Args:
        folder: Folder of the checkpoint.
        settings: `pooling` and `normalize`, where a user chose others than the checkpoint's.
        model: transformers' model of the checkpoint, for a ColBERT checkpoint.
        sparse: Whether the embeddings are sparse.
    """
    if (colbert := read_colbert(reader_of(files_of(folder)))) and model is not None:
        return nn.ModuleDict(_of_colbert(folder, colbert, model)).eval()
    listed = folder / "modules.json"
    entries = json.loads(listed.read_bytes()) if listed.is_file() else []
    static = bool(entries) and str(entries[0]["type"]).endswith(".StaticEmbedding")
    entries = entries[1:]
    if settings.get("pooling") == "none":
        entries = []
    own = importlib.util.find_spec(_LIBRARY) is None
    read = _read_own if own else _load_of_library
    chosen = settings.get("pooling")
    modes = chosen.split("+") if chosen else None
    modules = {str(place): read(folder, entry, modes) for place, entry in enumerate(entries, 1)}
    if static:
        modules = {"0": StaticMean(folder, model), **modules}
    elif not entries and sparse:
        kind = SpladePool if own else importlib.import_module(_SPARSE).SpladePooling
        modules["1"] = kind()
    elif not entries and chosen != "none":
        modules["1"] = Pool({"pooling_mode": modes or "mean"})
    return nn.ModuleDict(_ending(modules, settings.get("normalize"))).eval()


def _of_colbert(folder: Path, colbert: Colbert, model: Any) -> dict[str, nn.Module]:
    """Return the modules that the library adds to a ColBERT checkpoint, by their numbers; else those of its files."""
    if importlib.util.find_spec(_LIBRARY) is not None:
        opened = sentences.open_around(folder, model, "MultiVectorEncoder")
        return {str(place): one.float() for place, one in enumerate([*opened][1:], 1)}
    modules = {}
    for number, module in enumerate(colbert.modules(read_modules(files_of(folder)))[1:], 1):
        own: nn.Module = _OWN_MODULES[module.kind](module.config)
        if module.kind == "Dense":
            weights = load_file(folder / module.folder / "model.safetensors")
            own.load_state_dict({name: weights[name] for name in own.state_dict()})
        modules[str(number)] = own.float()
    return modules


def normalizes(folder: Path) -> bool:
    """Return whether a checkpoint's embeddings are normalized; those without modules.json are."""
    listed = folder / "modules.json"
    entries = json.loads(listed.read_bytes()) if listed.is_file() else [{"type": ".Normalize"}]
    return any(str(entry["type"]).endswith(".Normalize") for entry in entries)


def run(modules: nn.ModuleDict, features: Features) -> Tensor:
    """Return the embeddings of texts; the states of their tokens if there is no pooling.

    Args:
        modules: Modules after the encoder.
        features: `token_embeddings`, `attention_mask`, and `prompt_length` if the texts have a prompt.
    """
    for module in modules.values():
        features = module(features)
    embeddings: Tensor = next(features[name] for name in _RESULTS if name in features)
    return embeddings


def _load_of_library(folder: Path, entry: Mapping[str, Any], modes: list[str] | None) -> nn.Module:
    """Return a module of sentence-transformers, loaded by its own code.

    Args:
        folder: Folder of the checkpoint.
        entry: Entry of modules.json.
        modes: Poolings instead of the checkpoint's, if any.
    """
    path, _, name = str(entry["type"]).rpartition(".")
    assert path.partition(".")[0] == _LIBRARY, f"{path}.{name} is not of {_LIBRARY}."
    kind, location = getattr(importlib.import_module(path), name), {"subfolder": entry["path"]}
    if name == "Pooling":  # its file may lack the size, which it does not compute with
        config = kind.load_config(str(folder), **location)
        kept = {name: config[name] for name in ("pooling_mode", "include_prompt") if name in config}
        module = kind(
            embedding_dimension=1, **{**kept, **({"pooling_mode": modes} if modes else {})}
        )
    else:
        module = kind.load(str(folder), **location, local_files_only=True)
    loaded: nn.Module = module.float()
    return loaded


def _ending(modules: dict[str, nn.Module], normalize: bool | None) -> dict[str, nn.Module]:
    """Let the modules end with a normalization, or not."""
    computing = [
        name
        for name, module in modules.items()
        if type(module).__name__ not in ("Dropout", "Unchanged")
    ]
    last = modules[computing[-1]] if computing else None
    ends = type(last).__name__ == "Normalize"
    if ends and normalize is False:
        return {name: module for name, module in modules.items() if module is not last}
    if normalize and not ends:
        modules = {
            **modules,
            "last": Normalize({"module_input_name": _SENTENCE if modules else _TOKENS}),
        }
    return modules


# --- the same by ourselves, without the library ------------------------------------------------------------------


def _read_own(folder: Path, entry: Mapping[str, Any], modes: list[str] | None) -> nn.Module:
    file = folder / PurePosixPath(entry["path"])
    described, weights = file / "config.json", file / "model.safetensors"
    config = json.loads(described.read_bytes()) if described.is_file() else {}
    config |= {"pooling_mode": modes} if modes else {}
    module: nn.Module = _OWN_MODULES[str(entry["type"]).rpartition(".")[2]](config)
    if weights.is_file():
        module.load_state_dict(load_file(weights))
    return module.float()


class Pool(nn.Module):
    """Pooling of each text by itself.

    Args:
        config: Content of its config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        chosen = [name for name in _FIELDS if config.get(f"pooling_mode_{name}")]
        named = [name.removesuffix("_tokens") if "sqrt" not in name else name for name in chosen]
        named = ["cls" if name == "cls_token" else name for name in named]
        self.pooling_mode = config.get("pooling_mode") or named or "mean"
        self.include_prompt = config.get("include_prompt", True)

    def forward(self, features: Features) -> Features:
        """Add the embedding."""
        modes = [self.pooling_mode] if isinstance(self.pooling_mode, str) else self.pooling_mode
        skipped = 0 if self.include_prompt else int(features.get("prompt_length", 0))
        rows = []
        for states, mask in zip(features[_TOKENS], features["attention_mask"], strict=True):
            text = states[: int(mask.sum())]
            rows.append(torch.cat([self._pooled(text, skipped, mode) for mode in modes]))
        return {**features, _SENTENCE: torch.stack(rows)}

    @staticmethod
    def _pooled(text: Tensor, skipped: int, mode: str) -> Tensor:
        rest = text[skipped:]
        if mode == "weightedmean":
            positions = torch.arange(skipped + 1, len(text) + 1).to(text.dtype)
            return (rest * positions[:, None]).sum(0) / positions.sum()
        by_mode: Mapping[str, Callable[[], Tensor]] = {
            "cls": lambda: rest[0],
            "lasttoken": lambda: rest[-1],
            "max": lambda: rest.amax(0),
            "mean": lambda: rest.sum(0) / len(rest),
            "mean_sqrt_len_tokens": lambda: rest.sum(0) / len(rest) ** 0.5,
        }
        pooled: Tensor = by_mode[mode]()
        return pooled


class StaticMean(nn.Module):
    """Mean of the vectors of each text's tokens: by the library's StaticEmbedding where it is installed.

    Args:
        folder: Folder of the checkpoint.
        model: Model with the vectors.
    """

    def __init__(self, folder: Path, model: Any) -> None:
        super().__init__()
        self.library: nn.Module | None = None
        if importlib.util.find_spec(_LIBRARY) is not None:
            kind = importlib.import_module(f"{_LIBRARY}.sentence_transformer.modules")
            self.library = kind.StaticEmbedding.load(str(folder), local_files_only=True)
            if model is not None:  # the same weights, which a validation may round
                self.library.get_submodule("embedding").weight = model.embedding.weight

    def forward(self, features: Features) -> Features:
        """Add the embedding."""
        if self.library is None:
            return {**features, _SENTENCE: features[_TOKENS].mean(1)}
        ids = features["input_ids"]
        starts = torch.arange(0, ids.numel(), ids.shape[1])
        embedding = self.library({"input_ids": ids.flatten(), "offsets": starts})
        return {**features, _SENTENCE: embedding[_SENTENCE]}


class SpladePool(nn.Module):
    """Pooling of the logits of each text by itself to weights of the vocabulary.

    Args:
        config: Content of its config.json; None for the default.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        config = config or {}
        self.sums = config.get("pooling_strategy") == "sum"
        self.logarithms = 2 if config.get("activation_function") == "log1p_relu" else 1

    def forward(self, features: Features) -> Features:
        """Add the embedding."""
        rows = []
        for logits, mask in zip(features[_TOKENS], features["attention_mask"], strict=True):
            weights = logits[: int(mask.sum())].clamp(min=0)
            for _ in range(self.logarithms):
                weights = torch.log(1 + weights)
            rows.append(weights.sum(0) if self.sums else weights.amax(0))
        return {**features, _SENTENCE: torch.stack(rows)}


class Dense(nn.Module):
    """A dense layer.

    Args:
        config: Content of its config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = config["in_features"], config["out_features"]
        self.linear = nn.Linear(*sizes, bias=config.get("bias", True))
        name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        self.activation = getattr(nn, name)()
        self.adds = config.get("use_residual", False)
        if self.adds and sizes[0] != sizes[1]:
            self.residual = nn.Linear(*sizes, bias=False)
        self.reads = config.get("module_input_name") or _SENTENCE
        self.writes = config.get("module_output_name") or self.reads

    def forward(self, features: Features) -> Features:
        """Add the layer's output."""
        value = features[self.reads]
        output = self.activation(self.linear(value))
        if self.adds:
            output = output + (self.residual(value) if hasattr(self, "residual") else value)
        return {**features, self.writes: output}


class LayerNorm(nn.Module):
    """A layer norm of the embedding.

    Args:
        config: Content of its config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config["dimension"])

    def forward(self, features: Features) -> Features:
        """Norm the embedding."""
        return {**features, _SENTENCE: self.norm(features[_SENTENCE])}


class Normalize(nn.Module):
    """Normalization to length 1.

    Args:
        config: Content of its config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.reads = config.get("module_input_name") or _SENTENCE
        self.writes = config.get("module_output_name") or self.reads

    def forward(self, features: Features) -> Features:
        """Scale the feature."""
        value = features[self.reads]
        norms = torch.linalg.vector_norm(value, dim=-1, keepdim=True)
        return {**features, self.writes: value / norms}


class Unchanged(nn.Module):
    """Module that changes no embedding: dropout outside training, and the choice of tokens that are compared.

    Args:
        config: Unused.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()

    def forward(self, features: Features) -> Features:
        """Return the features."""
        return features


_OWN_MODULES = {
    "Pooling": Pool,
    "SpladePooling": SpladePool,
    "Dense": Dense,
    "LayerNorm": LayerNorm,
    "Normalize": Normalize,
    "Dropout": Unchanged,
    "MultiVectorMask": Unchanged,
}
