# SPDX-License-Identifier: Apache-2.0
"""What the reference runs of models that read a whole text, recording or image in one call: embeddings, labels' logits.

Only the reference process imports this.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from qeff_zoo import tasks
from qeff_zoo.validation.reference.runs import Answers, padded, tick
from qeff_zoo.validation.sample_images import draw

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class OfWholeTexts(Answers):
    """Answers about whole texts, each read in one call: an embedding, or a classifier's logits.

    Args:
        model: Hugging Face's.
        request: With `checkpoint`, `task`, `sequences`, their `types` if the package takes token types, and in
            `told` what to do otherwise than the checkpoint says.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        super().__init__(request["sequences"], model)
        self._model = model
        self._embeds = tasks.find(request["task"]).answers == "embeddings"
        self._types: list[list[int]] | None = request.get("types")
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        if self._embeds:
            told = {**_read_pooling(Path(request["checkpoint"])), **request["told"]}
            self._pooling, self._normalize = str(told["pooling"]), bool(told["normalize"])
            behind = _read_dense(Path(request["checkpoint"]))
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
        """Return what matters of a row: the pooled states, or the logits of the text or of each of its tokens."""
        if self._embeds:
            return self._pool(found[:length])[None]
        return found[None] if found.dim() == 1 else found[:length]

    def _pool(self, states: Tensor) -> Tensor:
        """Reduce the states of the tokens alone, (tokens, hidden)."""
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


class OfFrames(Answers):
    """Answers about sounds: labels' logits of every frame.

    Args:
        model: Hugging Face's.
        sounds: (samples,) or (frames, bins) of features.
    """

    def __init__(self, model: Any, sounds: list[Array]) -> None:
        super().__init__(sounds, model)
        self._model = model

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        # Each alone: in a batch, Hugging Face's models mix the end of a sound with its padding.
        return [self._read(self._sequences[number]) for number in numbers]

    def _read(self, sound: Array) -> Array:
        given = torch.from_numpy(sound)[None].to(self._model.dtype)
        logits = self._model(**{self._model.main_input_name: given}).logits[0]
        tick()
        found: Array = logits.float().numpy()
        return found


class OfImages(Answers):
    """Answers about pictures, which transformers' own processor makes into arrays.

    Args:
        model: Hugging Face's.
        request: With `checkpoint`, `task`, `sequences` as `drawings.draw` takes them, and in `told` what to do
            otherwise than the model does; and `texts` that pictures are matched with.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        self._texts, halves = request.get("texts") or [], [getattr(model, "vision_model", model)]
        halves += [model.text_model] if self._texts else []
        super().__init__([*request["sequences"], *self._texts], *halves)
        self._count = len(request["sequences"])
        self._model, self._told = model, request["told"]
        self._embeds = tasks.find(request["task"]).answers == "embeddings"
        self._process = processor_of(request)

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        found = {
            number: self._read(self._sequences[number])
            for number in numbers
            if number >= self._count
        }
        if shown := [number for number in numbers if number < self._count]:
            found.update(zip(shown, self._look(shown), strict=True))
        return [found[number] for number in numbers]

    def _read(self, text: Sequence[int]) -> Array:
        """Embed a text, as long as the model has positions for."""
        told = self._model.config.text_config
        tokens = torch.full((1, told.max_position_embeddings), told.pad_token_id or 0)
        tokens[0, : len(text)] = torch.tensor(text)
        found = nn.functional.normalize(
            self._model.get_text_features(input_ids=tokens).pooler_output
        )
        tick()
        return np.asarray(found.float().numpy())

    def _look(self, numbers: list[int]) -> list[Array]:
        pictures = [Image.fromarray(draw(*self._sequences[number])) for number in numbers]
        pixels = self._process(images=pictures, return_tensors="pt")["pixel_values"]
        pixels = pixels.to(next(self._model.parameters()).dtype)
        found = self._embed(pixels) if self._embeds else self._model(pixel_values=pixels).logits
        tick()
        return list(found.float().numpy()[:, None])

    def _embed(self, pixels: Tensor) -> Tensor:
        both = hasattr(self._model, "get_image_features")
        call = self._model.get_image_features if both else self._model
        output = call(pixel_values=pixels)
        states = output.last_hidden_state
        if states.dim() > 3:
            states = states.reshape(*states.shape[:2], -1).permute(0, 2, 1)
        by_mode: dict[str | None, Callable[[], Tensor]] = {
            None: lambda: output.pooler_output.reshape(len(pixels), -1),
            "cls": lambda: states[:, 0],
            "max": lambda: states.max(1).values,
            "mean": lambda: states.sum(1) / states.shape[1],
        }
        pooled = by_mode[self._told.get("pooling")]()
        length = torch.linalg.vector_norm(pooled, dim=1, keepdim=True)
        return pooled / length if self._texts or self._told.get("normalize") else pooled


def processor_of(request: Mapping[str, Any]) -> Any:
    """Return transformers' image processor."""
    return transformers.AutoImageProcessor.from_pretrained(
        request["checkpoint"], backend="pil", local_files_only=True
    )


def _read_pooling(folder: Path) -> dict[str, Any]:
    """Read the pooling of sentence-transformers, whose default is the mean."""
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
    """Read the dense layers that sentence-transformers would apply to what was pooled, each with its activation."""
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
