# SPDX-License-Identifier: Apache-2.0
"""A model on its way to integers: for each layer scales are folded, and each group of matrices is rounded.

A group is rounded for the inputs that the layers before it, rounded, now give it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.checkpoint.floats import FLOATS
from qeff_zoo.export.linears import (
    Recorded,
    Stage,
    linear_of,
    recorded_inputs,
    set_weights,
    stages_of,
    weights_of,
)
from qeff_zoo.quantizer.inputs import moments
from qeff_zoo.quantizer.measuring import Measured
from qeff_zoo.quantizer.options import FOLDING, NEAREST, VERSION, Matrix, Quantized
from qeff_zoo.quantizer.rounding import compensating, error_of, gptq, nearest
from qeff_zoo.quantizer.writing import (
    Planned,
    Writer,
    planned_matrix,
    quantization_config,
    to_bytes,
    torch_dtype,
)

from . import folding

_REMEMBERED = 512 << 20  # bytes of second moments at a time
_INPUTS = 1 << 30  # bytes of the inputs of a layer's matrices


@dataclass
class Work:
    """A model whose schemes are chosen.

    Args:
        measured: Outputs of the float model.
    """

    measured: Measured
    matrices: list[Matrix] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    distance: float = 0.0

    def __post_init__(self) -> None:
        self.subject, self.schemes = self.measured.subject, self.measured.schemes

    def write(self, folder: Path, step: Callable[[int], None]) -> None:
        """Quantize, and write the weights.

        Args:
            folder: Folder for them.
            step: Callback for every layer.
        """
        streamed = self.subject.streamed
        self.writer = Writer(
            folder, self._planned(), {"quantization": json.dumps(self.calibration)}
        )
        if self.subject.embedding in self.schemes:
            name = f"{self.subject.embedding}.weight"
            weights = streamed.value(name)
            streamed.use(
                name, self._round(self.subject.embedding, weights, self._of_embedding(weights))
            )
        floats = hidden = streamed.begin(self.subject.inputs)
        for number, prefix in enumerate(streamed.layer_names()):
            with streamed.loaded(prefix):
                hidden, floats = self._layer(number, prefix, hidden, floats)
            step(1)
        if self.subject.head in self.schemes:
            name = f"{self.subject.head}.weight"
            with (
                streamed.loaded(),
                moments(linear_of(streamed.model, self.subject.head)) as measured,
            ):
                for inputs, one in zip(self.subject.inputs, hidden, strict=True):
                    streamed.finish(inputs, one)
            streamed.use(name, self._round(self.subject.head, streamed.value(name), measured))
        with streamed.loaded():
            self.distance = self.subject.distance(
                self.measured.expected, [hidden[text] for text in self.subject.measured]
            )
        self._copy_rest()
        self.writer.finish()

    def _of_embedding(self, weights: Tensor) -> Tensor:
        """Return second moments for an embedding: every row is looked up whole, and may be multiplied by as well."""
        even = torch.eye(weights.shape[1])
        if self.measured.head_moments is None:
            return even
        return self.measured.head_moments / self.measured.head_moments.diagonal().mean() + even

    def _layer(
        self, number: int, prefix: str, hidden: Sequence[Tensor], floats: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Quantize the matrices of a layer that is loaded.

        Returns:
            What it makes of the states of each text: as it is now of `hidden`, as it was of `floats`.
        """
        layer, run = (
            self.subject.streamed.layers[number],
            partial(self.subject.streamed.run, number),
        )
        stages = stages_of(layer, partial(run, 0, hidden[0]))
        if self.subject.options.method == FOLDING:
            self._fold(layer, prefix, stages, run, hidden)
        was = weights_of(layer, (name for stage in stages for name in stage.linears))
        columns = {name: value.shape[1] for name, value in was.items()}
        now = dict(was)
        before, plain = self._run_plain(layer, stages, was, run, floats)
        for stage in stages:
            for part in _parts(stage, columns):
                self._stage(layer, prefix, part, run, (now, hidden), (was, plain))
        set_weights(layer, now)
        return [run(text, one) for text, one in enumerate(hidden)], before

    def _run_plain(
        self,
        layer: nn.Module,
        stages: Sequence[Stage],
        was: Mapping[str, Tensor],
        run: Callable[[int, Tensor], Tensor],
        floats: Sequence[Tensor],
    ) -> tuple[list[Tensor], Callable[[Stage, int], list[Tensor]]]:
        """Run a layer that is loaded with its original weights.

        Args:
            layer: Loaded.
            stages: Stages of the layer.
            was: Weights of the layer.
            run: Runs it on the states of a text.
            floats: States of each text.

        Returns:
            Its outputs, and what returns the input of a stage for a text: of memory, if all inputs have room there.
        """
        firsts = [stage.linears[0] for stage in stages if not stage.routed]
        nbytes = (
            4 * sum(one.shape[1] for one in floats) * sum(was[name].shape[1] for name in firsts)
        )
        kept: dict[str, list[Tensor]] = {name: [] for name in firsts}
        outputs = []
        with recorded_inputs(layer, firsts if nbytes <= _INPUTS else ()) as inputs:
            for text, states in enumerate(floats):
                outputs.append(run(text, states))
                for name, calls in inputs.items():
                    kept[name].append(torch.cat(calls))
                    calls.clear()

        def of_stage(stage: Stage, text: int) -> list[Tensor]:
            name = stage.linears[0]
            if kept[name]:
                return [kept[name][text]]
            set_weights(layer, was)
            return _inputs(layer, stage, [name], partial(run, text, floats[text]))

        return outputs, of_stage

    def _stage(
        self,
        layer: nn.Module,
        prefix: str,
        stage: Stage,
        run: Callable[[int, Tensor], Tensor],
        rounded: tuple[dict[str, Tensor], Sequence[Tensor]],
        plain: tuple[dict[str, Tensor], Callable[[Stage, int], list[Tensor]]],
    ) -> None:
        """Quantize groups of a layer.

        Args:
            layer: Loaded.
            prefix: Name of the layer.
            stage: The groups.
            run: Runs it on the states of a text.
            rounded: Current weights and states of each text; the weights are changed.
            plain: Original weights, and what returns the inputs that they get.
        """
        (now, hidden), (was, inputs_before) = rounded, plain
        chosen = [
            [name for name in group.linears if f"{prefix}.{name}" in self.schemes]
            for group in stage.groups
        ]
        chosen = [names for names in chosen if names]
        sizes = [was[names[0]].shape[1] for names in chosen]
        compensates = self.subject.options.method != NEAREST and not stage.routed
        hessians, crossed = ([torch.zeros(size, size) for size in sizes] for _ in range(2))
        firsts = [names[0] for names in chosen]
        for text, states in enumerate(hidden if chosen else ()):
            before = inputs_before(stage, text) if compensates else []
            set_weights(layer, now)  # it may have set others
            recorded = _inputs(layer, stage, firsts, partial(run, text, states))
            for number, inputs in enumerate(recorded):
                hessians[number].addmm_(inputs.T, inputs)
                if compensates:
                    # Tokens that a router sends elsewhere once it is given other states are not compared.
                    same = before[number].shape == inputs.shape
                    crossed[number].addmm_((before[number] if same else inputs).T, inputs)
        for names, hessian, cross in zip(chosen, hessians, crossed, strict=True):
            for name in names:
                wanted = was[name]
                if compensates:
                    wanted = compensating(wanted, hessian, cross)
                now[name] = self._round(f"{prefix}.{name}", wanted, hessian)

    def _fold(
        self,
        layer: nn.Module,
        prefix: str,
        stages: Sequence[Stage],
        run: Callable[[int, Tensor], Tensor],
        hidden: Sequence[Tensor],
    ) -> None:
        """Fold scales into what makes the inputs of groups, where that helps."""
        earlier: list[str] = []
        for group in (stage.groups[0] for stage in stages if not stage.routed):
            schemes = [self.schemes.get(f"{prefix}.{name}") for name in group.linears]
            scheme = schemes[0]
            if scheme is not None and scheme.bits == 4 and None not in schemes:
                with moments(linear_of(layer, group.linears[0])) as hessian:
                    for text, one in enumerate(hidden):
                        run(text, one)
                folded = folding.fold(
                    layer,
                    group,
                    earlier,
                    hessian,
                    scheme,
                    lambda name: self._stored_dtype(f"{prefix}.{name}"),
                    self.subject.head_dim,
                    partial(run, 0, hidden[0]),
                )
                if folded is not None:
                    self.folded.append(f"{prefix}.{folded.name}")
                    for name, value in folded.values.items():
                        if name == "bias" or f"{prefix}.{folded.name}" not in self.schemes:
                            self.subject.streamed.use(f"{prefix}.{folded.name}.{name}", value)
            earlier += [name for name in group.linears if f"{prefix}.{name}" in self.schemes]

    def _round(self, name: str, weights: Tensor, hessian: Tensor) -> Tensor:
        """Quantize a matrix, write it, and return its values."""
        scheme, dtype = self.schemes[name], self.subject.dtype(name)
        plain = nearest(weights, torch.ones(weights.shape[1]), scheme, dtype)
        is_reached = bool(hessian.any())
        rounded = (
            plain
            if self.subject.options.method == NEAREST or not is_reached
            else gptq(weights, hessian, scheme, dtype)
        )
        source = self.subject.sources[name]
        self.writer.put_matrix(source.path, rounded, source.expert or 0)
        whole = error_of(weights, torch.zeros(()), hessian) or 1.0
        errors = [error_of(weights, one.values, hessian) / whole for one in (rounded, plain)]
        self.matrices.append(
            Matrix(
                name=self.subject.called(name),
                bits=scheme.bits,
                group=scheme.group,
                zero_points=scheme.zero_points,
                error=errors[0],
                nearest_error=errors[1],
                expert=source.expert,
                is_reached=is_reached,
            )
        )
        return rounded.values

    def _stored_dtype(self, module: str) -> torch.dtype | None:
        """Return the type that the floats of a module are stored in; None where they are not stored one by one."""
        dtypes = set()
        for part in ("weight", "bias"):
            name = self.subject.streamed.expressions.get(f"{module}.{part}")
            if name is None or (part == "weight" and module in self.schemes):
                continue
            if (
                not isinstance(name, str)
                or self.subject.checkpoint.stored[name].dtype not in FLOATS
            ):
                return None
            dtypes.add(torch_dtype(self.subject.checkpoint.stored[name].dtype))
        return min(dtypes, key=lambda one: one.itemsize, default=torch.float32)

    @property
    def calibration(self) -> dict[str, Any]:
        """What decided the integers beside the weights."""
        return {
            "by": "qeff-zoo quantize",
            "version": VERSION,
            "method": self.subject.options.method,
            "budget": self.subject.options.budget,
            "texts": self.subject.read.digest,
            "tokens": self.subject.read.tokens,
        }

    def _plain(self) -> dict[str, str]:
        """Return the stored tensors that stay floats, and their names in the state_dict where they have one."""
        names = {
            e: name for name, e in self.subject.streamed.expressions.items() if isinstance(e, str)
        }
        gone = {self.subject.sources[name].tensor for name in self.schemes}
        if self.subject.embedding in self.schemes:  # tied to it, and stored again
            gone |= {one for one in self.subject.streamed.doubled if isinstance(one, str)}
        here = self.subject.checkpoint.folder
        return {
            name: names.get(name, "")
            for name, info in self.subject.checkpoint.stored.items()
            if name not in gone and info.path.parent == here
        }

    def _planned(self) -> dict[str, Planned]:
        stored = self.subject.checkpoint.stored
        planned = {name: Planned(stored[name].dtype, stored[name].shape) for name in self._plain()}
        for name, scheme in self.schemes.items():
            source = self.subject.sources[name]
            planned |= planned_matrix(source, stored[source.tensor], scheme)
        return planned

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that will be written."""
        return sum(value.nbytes for value in self._planned().values())

    def _copy_rest(self) -> None:
        """Write what stays floats, and what scales were folded into."""
        for name, source in self._plain().items():
            if source in self.subject.streamed.replaced:
                value = self.subject.streamed.value(source)
                self.writer.put(name, to_bytes(value, self.subject.checkpoint.stored[name].dtype))
            else:
                self.writer.put(name, self.subject.checkpoint.read_stored(name))
                self.subject.checkpoint.release(name)

    def config(self) -> dict[str, Any]:
        """Return `quantization_config`."""
        schemes = {self.subject.called(name): scheme for name, scheme in self.schemes.items()}
        return quantization_config(schemes, self._floats())

    def _floats(self) -> list[str]:
        """Return the linear layers that stay floats."""
        modules = self.subject.streamed.model.named_modules()
        return [
            self.subject.called(name)
            for name, module in modules
            if isinstance(module, nn.Linear) and name not in self.schemes
        ]

    def answer(self, path: Path) -> Quantized:
        """Return the result.

        Args:
            path: The folder, in its place.
        """
        return Quantized(
            path=path,
            bits_per_weight=self.subject.bits(self.schemes),
            distance=self.distance,
            measure="mean KL" if self.subject.streamed.is_decoder else "mean squared difference",
            calibration=self.calibration,
            matrices=self.matrices,
            folded=self.folded,
            floats=self._floats(),
        )


def _inputs(
    layer: nn.Module, stage: Stage, names: Sequence[str], run: Callable[[], Tensor]
) -> list[Tensor]:
    """Return the inputs (tokens, columns) of linear layers of a stage in a run, which ends with them."""
    columns = [linear_of(layer, name).in_features for name in names]
    with recorded_inputs(layer, names, stage.calls) as inputs, suppress(Recorded):
        run()
    return [
        torch.cat(calls) if calls else torch.zeros(0, size)
        for calls, size in zip(inputs.values(), columns, strict=True)
    ]


def _parts(stage: Stage, columns: Mapping[str, int]) -> Iterator[Stage]:
    """Cut a stage so that what is remembered of the inputs of each part fits in little memory.

    Args:
        stage: Stage of a layer.
        columns: Number of columns of each matrix.
    """
    size = columns[stage.linears[0]] ** 2 * 8  # two matrices of float32
    step = max(1, _REMEMBERED // size)
    for first in range(0, len(stage.groups), step):
        yield replace(stage, groups=stage.groups[first : first + step])
