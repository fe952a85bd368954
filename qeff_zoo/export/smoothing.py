# SPDX-License-Identifier: Apache-2.0
"""Smoothing of a decoder for per-token int8 activations, measured on random tokens; see `qeff_zoo.weights.smoothing`.

transformers' model runs layer by layer, as in `qeff_zoo.export.importance`. A norm is smoothed if a layer's output
stays the same with other scales in the norm and the matrices after it, which is tried. Matrices whose input keeps
large values after that are named: they lose less in blocks.

In: a checkpoint. Out: exponents by parameter, and names of matrices.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.checkpoint.expressions import is_computed, shape_of, sources_of
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.export.column_scales import divide, is_same
from qeff_zoo.export.importance import FAILURES, inputs_of, tied
from qeff_zoo.export.linears import Group, linear_of, recorded_inputs, stages_of, weights_of
from qeff_zoo.export.streaming import Streamed
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.weights.smoothing import Smoothing
from qeff_zoo.weights.storage import moves_rows

#: Share of the size of activations, and not of weights, in a scale's exponent (0.5 in the paper). With powers of two
#: SmolLM2 135M loses 0.0098 nats by 0.6, 0.0095 by 0.65, 0.0090 by 0.7, and 0.0124 by 0.8.
_SHARE = 0.65
#: Least and largest exponents. Other texts may have large values in columns that are small in random tokens.
_LEAST, _MOST = -2, 12
#: Square of a token's largest value, relative to its mean square, from which on rows lose too much by one scale: the
#: error is a 2,000th of the input.
_UNEVEN = 100.0
_TRIED = 16  # tokens of a trial


@dataclass
class Smoothable:
    """What random tokens show about the inputs of matrices.

    Args:
        smoothing: Smoothing by parameter.
        sources: Tensor of the checkpoint for each smoothed parameter.
        uneven: Names of matrices whose inputs keep large values.
    """

    smoothing: Smoothing
    sources: dict[str, str] = field(default_factory=dict)
    uneven: list[str] = field(default_factory=list)


def measure(
    checkpoint: Checkpoint,
    task: str,
    tokenizer: Tokenizer | None,
    is_free: Callable[[str], bool],
) -> Smoothable:
    """Measure the inputs of a decoder's matrices on random tokens.

    Args:
        checkpoint: Checkpoint with local weights.
        task: Task, which determines the class of the model.
        tokenizer: Tokenizer of the model; None if all ids are ordinary tokens.
        is_free: Predicate: whether the values of a tensor of the checkpoint may change.

    Raises:
        UnsupportedModelError: The model is not a chain of layers, or its layers do not run one by one.
    """
    try:
        with torch.no_grad():
            return _Measuring(Streamed(checkpoint, task), checkpoint, tokenizer, is_free).run()
    except (*FAILURES, CheckpointError) as error:
        raise UnsupportedModelError(
            f"{checkpoint.name!r} does not run layer by layer ({type(error).__name__}: {error}). Expected layers "
            "that are called one after the other. Round without smoothing."
        ) from error


class _Measuring:
    """One pass over the layers of a model."""

    def __init__(
        self,
        streamed: Streamed,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer | None,
        is_free: Callable[[str], bool],
    ) -> None:
        self._streamed, self._checkpoint = streamed, checkpoint
        self._readers = Counter(
            tensor for value in streamed.expressions.values() for tensor in {*sources_of(value)}
        )
        self._texts = [inputs_of(checkpoint, streamed.model.config, tokenizer)]
        self._texts.append({name: value[:, :_TRIED] for name, value in self._texts[0].items()})
        self._is_free = is_free
        self._exponents: dict[str, Any] = {}
        self._shifted: list[str] = []
        self._found = Smoothable(Smoothing())

    def run(self) -> Smoothable:
        streamed = self._streamed
        hidden, short = streamed.begin(self._texts)
        for number, path in enumerate(streamed.layer_names()):
            with streamed.loaded(path):
                layer, run = streamed.layers[number], partial(streamed.run, number)
                groups = [
                    group
                    for stage in stages_of(layer, partial(run, 1, short))
                    for group in stage.groups
                    if not stage.routed
                ]
                with recorded_inputs(layer, [group.linears[0] for group in groups]) as inputs:
                    hidden = run(0, hidden)
                trial = partial(run, 1, short)
                short = trial()
                for group in groups:
                    for rows in inputs[group.linears[0]][-1:]:
                        self._group(
                            layer, path, group, rows, partial(_offset, layer, group, short, trial)
                        )
        head = streamed.model.get_output_embeddings()
        if isinstance(head, nn.Linear):
            name = next(name for name, module in streamed.model.named_modules() if module is head)
            with streamed.loaded(), recorded_inputs(streamed.model, [name]) as inputs:
                streamed.finish(self._texts[0], hidden)
            if _is_uneven(inputs[name][-1]):
                self._found.uneven += tied(streamed, f"{name}.weight")
        self._found.smoothing = Smoothing(exponents=self._exponents, shifted=self._shifted)
        return self._found

    def _group(
        self,
        layer: nn.Module,
        path: str,
        group: Group,
        rows: Tensor,
        offset_of: Callable[[], float | None],
    ) -> None:
        """Smooth the input of a group if its norm allows it; note its matrices if it stays uneven."""
        scales = None
        if group.norm is not None and self._are_free(layer, path, group):
            scales = _scales(rows, list(weights_of(layer, group.linears).values()))
            offset = offset_of()
            if offset is None or not scales.any():
                scales = None
            else:
                self._note(layer, path, group, scales, offset)
        even = rows if scales is None else rows * torch.exp2(-scales)
        if _is_uneven(even):
            self._found.uneven += [f"{path}.{name}.weight" for name in group.linears]

    def _are_free(self, layer: nn.Module, path: str, group: Group) -> bool:
        """Whether each parameter has the columns of one tensor that no other parameter reads and that may change."""
        return all(
            (tensor := self._tensor(name)) is not None
            and self._readers[tensor] == 1
            and self._is_free(tensor)
            for name in self._parameters(layer, path, group)
        )

    def _tensor(self, name: str) -> str | None:
        """Return the tensor of the checkpoint that has a parameter's columns; None for none, or several."""
        value = self._streamed.expressions.get(name)
        if value is None or isinstance(value, str):
            return value
        tensors = self._checkpoint.tensors
        whole = len(shape_of(value, tensors)) > 1 and not is_computed(value)
        sources = sources_of(value)
        return sources[0] if whole and len(sources) == 1 and moves_rows(value, tensors) else None

    def _parameters(self, layer: nn.Module, path: str, group: Group) -> list[str]:
        norm = layer.get_submodule(str(group.norm))
        own = [
            f"{path}.{group.norm}.{name}"
            for name in norm._parameters
            if norm._parameters[name] is not None
        ]
        return [*own, *(f"{path}.{name}.weight" for name in group.linears)]

    def _note(
        self, layer: nn.Module, path: str, group: Group, scales: Tensor, offset: float
    ) -> None:
        for name in self._parameters(layer, path, group):
            of_norm = name.startswith(f"{path}.{group.norm}.")
            self._exponents[name] = (-scales if of_norm else scales).to(torch.int8).numpy()
            self._found.sources[name] = str(self._tensor(name))
        if offset:
            self._shifted.append(f"{path}.{group.norm}.weight")


def _scales(rows: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the exponents of columns, so that both large activations and large weights become smaller.

    Args:
        rows: Inputs, (tokens, columns).
        weights: Matrices that read them, (rows, columns).
    """
    tiny = torch.finfo(torch.float32).tiny
    columns = (
        torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).clamp(min=tiny).log2()
    )
    sizes = rows.abs().amax(0).clamp(min=tiny).log2()
    exponents = _SHARE * sizes - (1 - _SHARE) * columns
    return (exponents - exponents.median()).round().clamp(_LEAST, _MOST)


def _offset(
    layer: nn.Module, group: Group, before: Tensor, run: Callable[[], Tensor]
) -> float | None:
    """Return what a norm adds to its weight; None if other scales change the layer's output.

    Args:
        layer: Loaded layer.
        group: Readers of the norm's output.
        before: Output of the layer.
        run: Function that computes it again.
    """
    norm = layer.get_submodule(str(group.norm))
    columns = torch.arange(linear_of(layer, group.linears[0]).in_features)
    scales = torch.exp2(columns % 3 - 1.0)
    for offset in (0.0, 1.0):
        undo, _ = divide(layer, group, norm, offset, columns, scales, torch.float32)
        same = is_same(before, run())
        undo()
        if same:
            return offset
    return None


def _is_uneven(rows: Tensor) -> bool:
    """Whether the largest value of a row is much larger than its root mean square, on average."""
    squares = rows.square()
    mean = squares.mean(-1).clamp(min=torch.finfo(torch.float32).tiny)
    return bool((squares.amax(-1) / mean).mean() > _UNEVEN)
