# SPDX-License-Identifier: Apache-2.0
"""The reference: transformers' own model, unpatched, in a process of its own.

    python -m qeff_zoo.validation.reference request.json answer.npz

In: a checkpoint's folder, token sequences, and the positions whose answers matter. Out, per variant
and sequence, an array of logits, one embedding, or labels' logits. The weights are loaded once. Variants:

    reference   float32, eager attention, each sequence alone and whole
    rounded     of quantized packages: the same with the weights that the package rounds rounded, and
                the left sides of products where it rounds those
    noise       as right, but not the same: every sum in another order, sequences in padded batches;
                of quantized packages with rounded weights
    double      as right, in float64; of small models that are not quantized
    canary      wrong on purpose: two heads of the first layer swapped, else as the package computes
"""

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from qeff_zoo import tasks
from qeff_zoo.numerics import Numerics
from qeff_zoo.validation.reference_numerics import Arithmetic, round_weights, swapped_heads

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_SMALL = 50_000_000  # parameters: float64 fits easily, and takes no time
_TOGETHER = 4  # sequences of a padded batch
_OURS = (
    "qeff_zoo.transforms",
    "qeff_zoo.export.ops",
    "qeff_zoo.export.loader",
    "qeff_zoo.export.exporter",
)


def main(arguments: Sequence[str]) -> None:
    """Answer one request.

    Args:
        arguments: The request's file, and the answer's.
    """
    request = json.loads(Path(arguments[0]).read_bytes())
    torch.set_grad_enabled(False)
    model = load_model(Path(request["checkpoint"]), request["task"], request["ctx_len"])
    kind = _Logits if tasks.find(request["task"]).answers == "logits" else _Whole
    answers = kind(model, request)
    greedy = _greedy(model, request["greedy"]) if request.get("greedy") else []
    arrays, mutation = _run_variants(model, request, answers)
    about = {
        "class": type(model).__name__,
        "transformers": transformers.__version__,
        "torch": importlib.metadata.version("torch"),
        "mutation": mutation,
        "greedy": greedy,
    }
    assert_unpatched()
    np.savez(arguments[1], allow_pickle=False, about=np.array(json.dumps(about)), **arrays)


def load_model(folder: Path, task: str, ctx_len: int) -> Any:
    """Load a checkpoint in float32; every weight that answers depend on must be there."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    _scale_for(config.get_text_config(), ctx_len)
    auto = tasks.auto_class(task, config)
    loading: Any = auto.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    model, loaded = loading
    missing = [name for name in loaded["missing_keys"] if not name.startswith("pooler.")]
    if missing:
        raise ValueError(f"The checkpoint has no {sorted(missing)[:5]}.")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


def _scale_for(config: Any, ctx_len: int) -> None:
    """Let a short text be scaled as one that fills the context: longrope has two sets of factors, chosen by length."""
    scaling = getattr(config, "rope_parameters", None) or {}
    if (
        scaling.get("rope_type") == "longrope"
        and ctx_len > scaling["original_max_position_embeddings"]
    ):
        for name in ("factor", "mscale"):
            if f"long_{name}" in scaling:
                scaling[f"short_{name}"] = scaling[f"long_{name}"]


def _run_variants(
    model: Any, request: Mapping[str, Any], answers: "_Logits | _Whole"
) -> tuple[dict[str, Array], str]:
    """Run every variant; return `variant.sequence` arrays, and what the canary's damage was."""
    runs = {"reference": answers.alone()}
    numerics = Numerics.from_dict(request["numerics"])
    matrices = numerics.matrices
    multiplied = round_weights(model, matrices)
    as_the_package = Arithmetic(multiplied, numerics.activation_block, halved=False)
    if matrices:
        with as_the_package:
            runs["rounded"] = answers.alone()
    with Arithmetic(set(), None, halved=True):
        runs["noise"] = answers.together()
    with swapped_heads(model) as mutation, as_the_package:
        runs["canary"] = answers.alone()
    if not matrices and sum(weight.numel() for weight in model.parameters()) < _SMALL:
        model.double()
        runs["double"] = answers.alone()
    arrays = {
        f"{variant}.{number}": array
        for variant, found in runs.items()
        for number, array in enumerate(found)
    }
    return arrays, mutation


class _Logits:
    """Answers of a causal language model: logits at the positions that matter.

    Args:
        model: Hugging Face's.
        request: With `sequences` and `positions`.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        self._model = model
        self._sequences: list[list[int]] = request["sequences"]
        self._positions: list[list[int]] = request["positions"]

    def alone(self) -> list[Array]:
        """Run each sequence by itself, without padding; return (positions, vocab) each."""
        return [self._run([number])[0] for number in range(len(self._sequences))]

    def together(self) -> list[Array]:
        """Run sequences in padded batches."""
        numbers = list(range(len(self._sequences)))
        groups = [numbers[at : at + _TOGETHER] for at in range(0, len(numbers), _TOGETHER)]
        return [array for group in groups for array in self._run(group)]

    def _run(self, numbers: list[int]) -> list[Array]:
        inputs = _padded([self._sequences[number] for number in numbers])
        wanted = [self._positions[number] for number in numbers]
        rows = [row for row, positions in enumerate(wanted) for _ in positions]
        columns = [position for positions in wanted for position in positions]

        def keep(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (args[0][rows, columns][None],)  # (1, all positions, hidden)

        with hooked(self._model.get_output_embeddings(), keep):
            logits = self._model(**inputs, use_cache=False).logits[0].float().numpy()
        tick()
        ends = np.cumsum([len(positions) for positions in wanted])
        return list(np.split(logits, ends[:-1]))


class _Whole:
    """Answers about whole texts, each read in one call: an embedding, or a classifier's logits.

    Args:
        model: Hugging Face's.
        request: With `checkpoint`, `task`, `sequences`, their `types` if the package takes token types, and in
            `pooling` what to do otherwise than the checkpoint says.
    """

    def __init__(self, model: Any, request: Mapping[str, Any]) -> None:
        self._model = model
        self._embeds = tasks.find(request["task"]).answers == "embeddings"
        self._sequences: list[list[int]] = request["sequences"]
        self._types: list[list[int]] | None = request.get("types")
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        if self._embeds:
            told = {**_read_pooling(Path(request["checkpoint"])), **request["pooling"]}
            self._pooling, self._normalize = str(told["pooling"]), bool(told["normalize"])
            behind = _read_dense(Path(request["checkpoint"]))
            self._activations = [activation for _, activation in behind]
            if behind:  # part of the model, so that all variants are of them too
                model.dense = nn.ModuleList(layer for layer, _ in behind)

    def alone(self) -> list[Array]:
        """Run each sequence by itself, without padding; return (1 or tokens, values) each."""
        return [self._run([number])[0] for number in range(len(self._sequences))]

    def together(self) -> list[Array]:
        """Run sequences in padded batches."""
        numbers = list(range(len(self._sequences)))
        groups = [numbers[at : at + _TOGETHER] for at in range(0, len(numbers), _TOGETHER)]
        return [array for group in groups for array in self._run(group)]

    def _run(self, numbers: list[int]) -> list[Array]:
        sequences = [self._sequences[number] for number in numbers]
        inputs = _padded(sequences, self._padding)
        if self._types is not None:
            kinds = [self._types[number] for number in numbers]
            inputs["token_type_ids"] = _padded(kinds, 0)["input_ids"]
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


def _read_pooling(folder: Path) -> dict[str, Any]:
    """Read how sentence-transformers would pool, which takes the mean where nothing is said."""
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


def _padded(sequences: Sequence[Sequence[int]], padding: int = 0) -> dict[str, Tensor]:
    width = max(map(len, sequences))
    input_ids = torch.full((len(sequences), width), padding)
    attention_mask = torch.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence)] = torch.tensor(sequence)
        attention_mask[row, : len(sequence)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


@contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Let a hook change what a module is given, for a while."""
    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _greedy(model: Any, request: Mapping[str, Any]) -> list[int]:
    """Continue a prompt by the most likely token, with transformers' own cache where the model hands one out."""
    whole, generated = torch.tensor([request["prompt"]]), []
    given: dict[str, Any] = {"input_ids": whole}
    for _ in range(request["length"]):
        output = model(**given, use_cache=True)
        token = output.logits[:, -1:].argmax(-1)
        generated.append(int(token))
        whole = torch.cat([whole, token], 1)
        caches = {name: output.get(name) for name in ("past_key_values", "cache_params")}
        known = {name: cache for name, cache in caches.items() if cache is not None}
        given = {"input_ids": token, **known} if known else {"input_ids": whole}
        tick()
    return generated


def assert_unpatched() -> None:
    """Make sure that nothing of ours was there to change transformers."""
    ours = [name for name in sys.modules if name.startswith(_OURS)]
    assert not ours, f"The reference must be Hugging Face's own; it imported {ours}."


def tick() -> None:
    """Tell the process that waits for us that another call is done."""
    sys.stdout.write("\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
