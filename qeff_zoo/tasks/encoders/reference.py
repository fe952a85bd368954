# SPDX-License-Identifier: Apache-2.0
"""Reference for text encoders: embeddings and logits of labels from transformers' models.

Only the reference process imports this.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from qeff_zoo import tasks
from qeff_zoo.validation.reference.runs import Answers, padded, tick

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class TextReference(Answers):
    """Outputs for whole texts, one call each: an embedding, or a classifier's logits.

    Args:
        model: Hugging Face model.
        request: Request with `checkpoint`, `task`, `sequences`, their `types` if the package takes token types, and in
            `settings` the options that differ from the checkpoint's.
        arrays: Unused.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(request["sequences"], model)
        self._model = model
        self._embeds = tasks.find(request["task"]).answers == "embeddings"
        self._types: list[list[int]] | None = request.get("types")
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        if self._embeds:
            settings = {**read_pooling(Path(request["checkpoint"])), **request["settings"]}
            self._pooling, self._normalize = str(settings["pooling"]), bool(settings["normalize"])
            behind = [] if self._pooling == "none" else _read_dense(Path(request["checkpoint"]))
            self._activations = [activation for _, activation in behind]
            if behind:  # part of the model, so that all variants are of them too
                model.dense = nn.ModuleList(layer for layer, _ in behind)

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        sequences = [self._sequences[number][:length] for number in numbers]
        inputs = padded(sequences, self._padding)
        if self._types is not None:
            kinds = [self._types[number] for number in numbers]
            inputs["token_type_ids"] = padded(kinds, 0)["input_ids"]
        output = self._model(**inputs)
        tick()
        found = output.last_hidden_state if self._embeds else output.logits
        return [
            self._answer(one, len(sequence)).float().numpy()
            for one, sequence in zip(found, sequences, strict=True)
        ]

    def _answer(self, found: Tensor, length: int) -> Tensor:
        """Return the relevant part of a row: the pooled states, or the logits of the text or of each of its tokens."""
        if self._embeds and self._pooling == "none":
            states = found[:length]
            norms = torch.linalg.vector_norm(states, dim=1, keepdim=True)
            return states / norms if self._normalize else states
        if self._embeds:
            return self._pool(found[:length])[None]
        return found[None] if found.dim() == 1 else found[:length]

    def _pool(self, states: Tensor) -> Tensor:
        """Pool the states of the tokens alone, (tokens, hidden)."""
        by_mode: dict[str, Callable[[], Tensor]] = {
            "cls": lambda: states[0],
            "lasttoken": lambda: states[-1],
            "max": lambda: states.amax(0),
            "mean": lambda: states.sum(0) / len(states),
        }
        pooled = by_mode[self._pooling]()
        for number, activation in enumerate(self._activations):
            pooled = activation(self._model.dense[number](pooled[None])[0])
        return pooled / torch.linalg.vector_norm(pooled) if self._normalize else pooled


def read_pooling(folder: Path) -> dict[str, Any]:
    """Return the pooling of sentence-transformers, whose default is the mean."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return {"pooling": "mean", "normalize": False}
    modules = json.loads(listed.read_bytes())
    paths = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    settings = json.loads((folder / PurePosixPath(paths["Pooling"]) / "config.json").read_bytes())
    chosen = [name for name, value in settings.items() if "pooling_mode_" in name and value]
    mode = settings.get("pooling_mode") or chosen[0].split("_")[2]
    return {"pooling": mode, "normalize": "Normalize" in paths}


def _read_dense(folder: Path) -> list[tuple[nn.Linear, Callable[[Tensor], Tensor]]]:
    """Return the dense layers of sentence-transformers after the pooling, each with its activation."""
    listed = folder / "modules.json"
    modules = json.loads(listed.read_bytes()) if listed.is_file() else []
    found = []
    for module in modules:
        if not module["type"].endswith(".Dense"):
            continue
        place = folder / PurePosixPath(module["path"])
        settings = json.loads((place / "config.json").read_bytes())
        stored = load_file(place / "model.safetensors")
        layer = nn.Linear(settings["in_features"], settings["out_features"], settings["bias"])
        layer.load_state_dict({name.removeprefix("linear."): stored[name] for name in stored})
        name = settings["activation_function"].rpartition(".")[2]
        found.append((layer.float(), getattr(nn, name)()))
    return found
