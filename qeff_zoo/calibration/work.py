# SPDX-License-Identifier: Apache-2.0
"""A model on its way to integers.

1  the float model's answers to the texts; with a budget also what each group of matrices costs in the fewest bits
2  for each layer: scales folded, each group of matrices rounded for the inputs that the layers before now give it
3  the quantized model's answers, compared
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.calibration import folding, texts
from qeff_zoo.calibration.asked import (
    FOLDING,
    MEASURED,
    NEAREST,
    VERSION,
    Matrix,
    Quantized,
    Wishes,
)
from qeff_zoo.calibration.budget import Unit, cheapest, choose, distance, squared_errors
from qeff_zoo.calibration.grids import Scheme
from qeff_zoo.calibration.inputs import (
    Group,
    groups_of,
    inputs_of,
    linear_of,
    moments,
    set_weights,
    weights_of,
)
from qeff_zoo.calibration.rounding import compensating, error_of, gptq, nearest
from qeff_zoo.calibration.streaming import Streamed
from qeff_zoo.calibration.writing import (
    Planned,
    Writer,
    planned_matrix,
    quantization_config,
    scale_dtype,
    to_bytes,
    torch_dtype,
)
from qeff_zoo.checkpoint import Checkpoint
from qeff_zoo.errors import PlanError, UnsupportedModelError
from qeff_zoo.weights.quantization import FLOATS


@dataclass
class _Varied:
    """What the model computes with a group of matrices in the fewest bits.

    Args:
        unit: The group.
        hidden: What the layers so far make of each measured text.
        head: The output matrix, where it is that group's.
    """

    unit: Unit
    hidden: list[Tensor]
    head: str | None = None


@dataclass
class Work:
    """A model on its way to integers.

    Args:
        checkpoint: Of floats.
        streamed: Its model.
        read: The texts.
        wishes: What was chosen.
    """

    checkpoint: Checkpoint
    streamed: Streamed
    read: texts.Texts
    wishes: Wishes
    schemes: dict[str, Scheme] = field(default_factory=dict)
    matrices: list[Matrix] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    expected: list[Tensor] = field(default_factory=list)
    distance: float = 0.0

    def __post_init__(self) -> None:
        model, expressions = self.streamed.model, self.streamed.expressions
        modules = dict(model.named_modules())
        names = {id(module): name for name, module in modules.items()}
        self.inputs = self.read.inputs()
        self.embedding = names[id(model.get_input_embeddings())]
        head = model.get_output_embeddings()
        self.head = None if head is None else names[id(head)]
        self.tied = self.head is not None and (
            expressions.get(f"{self.head}.weight") == expressions[f"{self.embedding}.weight"]
        )
        inside = f"{self.streamed.path}."
        asked = {
            name
            for name, module in modules.items()
            if type(module) is nn.Linear and name.startswith(inside)
        }
        if self.wishes.embeddings:
            asked |= {self.embedding} | ({self.head} if self.head and not self.tied else set())
        #: Modules whose matrix can be stored in integers, and the checkpoint's name of that.
        self.sources: dict[str, str] = {}
        for name in asked:
            source = expressions.get(f"{name}.weight")
            if isinstance(source, str) and self._fits(source):
                self.sources[name] = source
        self.names = list(modules)
        text_config = model.config.get_text_config()
        heads = getattr(text_config, "num_attention_heads", 1)
        self.head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // heads
        self.measured = self._measured()
        self.called: set[str | None] = set()
        self.head_moments: Tensor | None = None

    def _fits(self, source: str) -> bool:
        info = self.checkpoint.stored[source]
        whole = info.shape[-1] % self.wishes.group_size == 0
        return (
            len(info.shape) == 2 and whole and info.dtype in FLOATS and source.endswith(".weight")
        )

    def _measured(self) -> list[int]:
        """Return the numbers of the first texts, whose answers are compared."""
        tokens, found = 0, list[int]()
        for number, sequence in enumerate(self.read.sequences):
            if not found or tokens + len(sequence) <= MEASURED:
                found.append(number)
                tokens += len(sequence)
        return found

    def options(self, names: Sequence[str]) -> list[Scheme]:
        """Return the schemes that matrices may have; 8 bits need few scales."""
        size = self.wishes.group_size
        if self.wishes.budget is None:
            return [Scheme(self.wishes.bits, size)]
        columns = [self.checkpoint.stored[self.sources[name]].shape[1] for name in names]
        wide = (one for one in (128, 64, 32) if one >= size and not any(n % one for n in columns))
        return [Scheme(4, size), Scheme(8, next(wide, size))]

    def check(self) -> None:
        """Refuse what cannot work, before anything is computed."""
        if not self.sources:
            raise UnsupportedModelError(
                f"{self.checkpoint.name!r} has no matrix in its layers that can be quantized in groups of "
                f"{self.wishes.group_size}. Expected linear layers whose columns that divides. Change --group-size, or "
                "build with `--weights int4` or `int8`."
            )
        if self.wishes.budget is not None:
            least = self._bits({name: cheapest(self.options([name])) for name in self.sources})
            if least > self.wishes.budget:
                more = (
                    "" if self.wishes.embeddings else ", or quantize embeddings too (--embeddings)"
                )
                raise PlanError(
                    [
                        f"{self.checkpoint.name!r} takes {least:.3f} bits per weight in the fewest bits, more than "
                        f"{self.wishes.budget:g}. Expected a budget of at least that; matrices that stay floats count. "
                        f"Raise --budget, or --group-size{more}."
                    ]
                )

    def _matrices(self) -> dict[str, int]:
        """Return the number of weights of every matrix of the checkpoint."""
        return {
            name: info.shape[0] * info.shape[1]
            for name, info in self.checkpoint.stored.items()
            if len(info.shape) == 2 and info.dtype in FLOATS
        }

    def _bits(self, schemes: Mapping[str, Scheme]) -> float:
        """Return bits per weight of all matrices."""
        return self._total(schemes) / sum(self._matrices().values())

    def _total(self, schemes: Mapping[str, Scheme]) -> float:
        by_source = {self.sources[name]: scheme for name, scheme in schemes.items()}
        return sum(
            by_source[name].bits_per_weight * weights
            if name in by_source
            else 8 * self.checkpoint.stored[name].nbytes
            for name, weights in self._matrices().items()
        )

    def _dtype(self, name: str) -> torch.dtype:
        """Return the type of a module's scales."""
        return torch_dtype(scale_dtype(self.checkpoint.stored[self.sources[name]]))

    def measure(self, step: Callable[[int], None]) -> None:
        """Ask the float model; choose schemes.

        Args:
            step: Told of every layer.
        """
        streamed = self.streamed
        varied: list[_Varied] = []
        if self.wishes.budget is not None and self.embedding in self.sources:
            varied.append(self._varied_embedding())
        hidden = streamed.begin(self.inputs)
        for number, prefix in enumerate(streamed.layer_names()):
            with streamed.loaded(prefix):
                for one in varied:
                    one.hidden = self._passed(number, one.hidden)
                run = partial(streamed.run, number, 0, hidden[0])
                for group in groups_of(streamed.layers[number], run):
                    names = [f"{prefix}.{name}" for name in group.linears]
                    names = [name for name in names if name in self.sources]
                    self.called.update(names)
                    if self.wishes.budget is not None and names:
                        unit = self._unit(names)
                        varied.append(self._varied(number, prefix, unit, hidden))
                hidden = [streamed.run(number, text, one) for text, one in enumerate(hidden)]
            step(1)
        self._ask(hidden)
        if self.wishes.budget is not None and self.head in self.sources:
            last = self._unit([self.head])
            varied.append(_Varied(last, [hidden[text] for text in self.measured], self.head))
        for one in varied:
            one.unit = replace(one.unit, cost=self._cost(one))
        self._choose([one.unit for one in varied])

    def _choose(self, units: Sequence[Unit]) -> None:
        # Linear layers that no text reached say nothing of what they are given.
        self.called |= {self.embedding, self.head}
        self.sources = {name: one for name, one in self.sources.items() if name in self.called}
        schemes = {name: cheapest(self.options([name])) for name in self.sources}
        if self.wishes.budget is not None:
            floats = self._total(schemes) - sum(
                scheme.bits_per_weight * self._weights(name) for name, scheme in schemes.items()
            )
            bits = self.wishes.budget * sum(self._matrices().values()) - floats
            schemes = choose(units, bits)
        # In the order of the model, whatever that of the calls.
        self.schemes = {name: schemes[name] for name in self.names if name in schemes}

    def _passed(self, number: int, hidden: Sequence[Tensor]) -> list[Tensor]:
        """Run a layer that is loaded on the measured texts."""
        pairs = zip(self.measured, hidden, strict=True)
        return [self.streamed.run(number, text, one) for text, one in pairs]

    def _unit(self, names: Sequence[str]) -> Unit:
        """Return a group of modules whose cost is not known yet, and remember its values in the fewest bits."""
        errors: dict[Scheme, float] = {}
        self._fewest = {}
        for name in names:
            options = self.options(names)
            found = squared_errors(
                self.streamed.value(f"{name}.weight"), options, self._dtype(name)
            )
            for scheme, (error, _) in found.items():
                errors[scheme] = errors.get(scheme, 0.0) + error
            self._fewest[name] = found[cheapest(options)][1]
        return Unit(tuple(names), sum(map(self._weights, names)), errors, 0.0)

    def _varied(self, number: int, prefix: str, unit: Unit, hidden: Sequence[Tensor]) -> "_Varied":
        """Run a layer that is loaded with a group in the fewest bits."""
        layer = self.streamed.layers[number]
        inside = {name: name.removeprefix(f"{prefix}.") for name in unit.modules}
        was = weights_of(layer, inside.values())
        set_weights(layer, {one: self._fewest[name] for name, one in inside.items()})
        found = self._passed(number, [hidden[text] for text in self.measured])
        set_weights(layer, was)
        return _Varied(unit, found)

    def _varied_embedding(self) -> "_Varied":
        unit = self._unit([self.embedding])
        with self.streamed.using(f"{self.embedding}.weight", self._fewest[self.embedding]):
            hidden = self.streamed.begin(self.inputs)
        found = [hidden[text] for text in self.measured]
        return _Varied(unit, found, self.head if self.tied else None)

    def _ask(self, hidden: Sequence[Tensor]) -> None:
        """Keep the float model's answers, and what the output matrix is given if the embedding is tied to it."""
        streamed = self.streamed
        with streamed.loaded(), ExitStack() as stack:
            if self.tied and self.embedding in self.sources:
                linear = linear_of(streamed.model, str(self.head))
                self.head_moments = stack.enter_context(moments(linear))
            self.expected = [streamed.finish(self.inputs[t], hidden[t]) for t in self.measured]

    def _cost(self, varied: "_Varied") -> float:
        streamed = self.streamed
        with ExitStack() as stack:
            if varied.head is not None:
                (name,) = varied.unit.modules
                scheme = cheapest(varied.unit.errors)
                weights = streamed.value(f"{name}.weight")
                values = squared_errors(weights, [scheme], self._dtype(name))[scheme][1]
                stack.enter_context(streamed.using(f"{name}.weight", values))
            stack.enter_context(streamed.loaded())
            return self._distance(varied.hidden)

    def _weights(self, name: str) -> int:
        rows, columns = self.checkpoint.stored[self.sources[name]].shape
        return rows * columns

    def _distance(self, hidden: Sequence[Tensor]) -> float:
        """Compare answers to the measured texts; all but the layers is loaded."""
        streamed, total, tokens = self.streamed, 0.0, 0
        for expected, text, one in zip(self.expected, self.measured, hidden, strict=True):
            answer = streamed.finish(self.inputs[text], one)
            total += len(expected) * distance(expected, answer, is_decoder=streamed.is_decoder)
            tokens += len(expected)
        return total / tokens

    def write(self, folder: Path, step: Callable[[int], None]) -> None:
        """Quantize, and write the weights.

        Args:
            folder: For them.
            step: Told of every layer.
        """
        streamed = self.streamed
        self.writer = Writer(
            folder, self._planned(), {"quantization": json.dumps(self.calibration)}
        )
        if self.embedding in self.schemes:
            name = f"{self.embedding}.weight"
            weights = streamed.value(name)
            streamed.use(name, self._round(self.embedding, weights, self._of_embedding(weights)))
        floats = hidden = streamed.begin(self.inputs)
        for number, prefix in enumerate(streamed.layer_names()):
            with streamed.loaded(prefix):
                hidden, floats = self._layer(number, prefix, hidden, floats)
            step(1)
        if self.head in self.schemes:
            name = f"{self.head}.weight"
            with streamed.loaded(), moments(linear_of(streamed.model, self.head)) as found:
                for inputs, one in zip(self.inputs, hidden, strict=True):
                    streamed.finish(inputs, one)
            streamed.use(name, self._round(self.head, streamed.value(name), found))
        with streamed.loaded():
            self.distance = self._distance([hidden[text] for text in self.measured])
        self._copy_rest()
        self.writer.finish()

    def _of_embedding(self, weights: Tensor) -> Tensor:
        """Return second moments for an embedding: every row is looked up whole, and may be multiplied by as well."""
        even = torch.eye(weights.shape[1])
        if self.head_moments is None:
            return even
        return self.head_moments / self.head_moments.diagonal().mean() + even

    def _layer(
        self, number: int, prefix: str, hidden: Sequence[Tensor], floats: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Quantize the matrices of a layer that is loaded.

        Returns:
            What it makes of the states of each text: as it is now of `hidden`, as it was of `floats`.
        """
        layer, run = self.streamed.layers[number], partial(self.streamed.run, number)
        groups = groups_of(layer, partial(run, 0, hidden[0]))
        if self.wishes.method == FOLDING:
            self._fold(layer, prefix, groups, run, hidden)
        was = weights_of(layer, (name for group in groups for name in group.linears))
        now = dict(was)
        for group in groups:
            names = [name for name in group.linears if f"{prefix}.{name}" in self.schemes]
            if not names:
                continue
            hessian, crossed = torch.zeros(2, *[was[names[0]].shape[1]] * 2)
            with inputs_of(linear_of(layer, names[0])) as inputs:
                for text in range(len(hidden)):
                    seen = []
                    for weights, states in ((now, hidden), (was, floats)):
                        set_weights(layer, weights)
                        run(text, states[text])
                        seen.append(torch.cat([hessian[:0], *inputs]))
                        inputs.clear()
                    rounded, plain = seen
                    hessian.addmm_(rounded.T, rounded)
                    # Tokens that a router sends elsewhere once it is given other states are not compared.
                    same = plain.shape == rounded.shape
                    crossed.addmm_((plain if same else rounded).T, rounded)
            for name in names:
                wanted = was[name]
                if self.wishes.method != NEAREST:
                    wanted = compensating(wanted, hessian, crossed)
                now[name] = self._round(f"{prefix}.{name}", wanted, hessian)
        set_weights(layer, was)
        before = [run(text, one) for text, one in enumerate(floats)]
        set_weights(layer, now)
        return [run(text, one) for text, one in enumerate(hidden)], before

    def _fold(
        self,
        layer: nn.Module,
        prefix: str,
        groups: Sequence[Group],
        run: Callable[[int, Tensor], Tensor],
        hidden: Sequence[Tensor],
    ) -> None:
        """Fold scales into what makes the inputs of groups, where that helps."""
        earlier: list[str] = []
        for group in groups:
            schemes = [self.schemes.get(f"{prefix}.{name}") for name in group.linears]
            scheme = schemes[0]
            if scheme is not None and scheme.bits == 4 and None not in schemes:
                with moments(linear_of(layer, group.linears[0])) as hessian:
                    for text, one in enumerate(hidden):
                        run(text, one)
                found = folding.fold(
                    layer,
                    group,
                    earlier,
                    hessian,
                    scheme,
                    lambda name: self._stored_dtype(f"{prefix}.{name}"),
                    self.head_dim,
                    partial(run, 0, hidden[0]),
                )
                if found is not None:
                    self.folded.append(f"{prefix}.{found.name}")
                    for name, value in found.values.items():
                        if name == "bias" or f"{prefix}.{found.name}" not in self.schemes:
                            self.streamed.use(f"{prefix}.{found.name}.{name}", value)
            earlier += [name for name in group.linears if f"{prefix}.{name}" in self.schemes]

    def _round(self, name: str, weights: Tensor, hessian: Tensor) -> Tensor:
        """Quantize a matrix, write it, and return its values."""
        scheme, dtype = self.schemes[name], self._dtype(name)
        plain = nearest(weights, torch.ones(weights.shape[1]), scheme, dtype)
        found = plain if self.wishes.method == NEAREST else gptq(weights, hessian, scheme, dtype)
        self.writer.put_matrix(self.sources[name].removesuffix(".weight"), found)
        whole = error_of(weights, torch.zeros(()), hessian) or 1.0
        errors = [error_of(weights, one.values, hessian) / whole for one in (found, plain)]
        self.matrices.append(
            Matrix(
                name=name,
                bits=scheme.bits,
                group=scheme.group,
                error=errors[0],
                nearest_error=errors[1],
            )
        )
        return found.values

    def _stored_dtype(self, module: str) -> torch.dtype | None:
        """Return the type that the floats of a module are stored in; None where they are not stored one by one."""
        found = set()
        for part in ("weight", "bias"):
            name = self.streamed.expressions.get(f"{module}.{part}")
            if name is None or (part == "weight" and module in self.schemes):
                continue
            if not isinstance(name, str) or self.checkpoint.stored[name].dtype not in FLOATS:
                return None
            found.add(torch_dtype(self.checkpoint.stored[name].dtype))
        return min(found, key=lambda one: one.itemsize, default=torch.float32)

    @property
    def calibration(self) -> dict[str, Any]:
        """What decided the integers beside the weights."""
        return {
            "by": "qeff-zoo quantize",
            "version": VERSION,
            "method": self.wishes.method,
            "budget": self.wishes.budget,
            "texts": self.read.digest,
            "tokens": self.read.tokens,
        }

    def _plain(self) -> dict[str, str]:
        """Return the stored tensors that stay floats, and their names in the state_dict where they have one."""
        places = {e: name for name, e in self.streamed.expressions.items() if isinstance(e, str)}
        gone = {self.sources[name] for name in self.schemes}
        if self.embedding in self.schemes:  # tied to it, and stored again
            gone |= {one for one in self.streamed.doubled if isinstance(one, str)}
        here = self.checkpoint.folder
        return {
            name: places.get(name, "")
            for name, info in self.checkpoint.stored.items()
            if name not in gone and info.path.parent == here
        }

    def _planned(self) -> dict[str, Planned]:
        stored = self.checkpoint.stored
        planned = {name: Planned(stored[name].dtype, stored[name].shape) for name in self._plain()}
        for name, scheme in self.schemes.items():
            source = self.sources[name]
            planned |= planned_matrix(source.removesuffix(".weight"), stored[source], scheme)
        return planned

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that will be written."""
        return sum(one.nbytes for one in self._planned().values())

    def _copy_rest(self) -> None:
        """Write what stays floats, and what scales were folded into."""
        for name, place in self._plain().items():
            if place in self.streamed.replaced:
                value = self.streamed.value(place)
                self.writer.put(name, to_bytes(value, self.checkpoint.stored[name].dtype))
            else:
                self.writer.put(name, self.checkpoint.read_stored(name))
                self.checkpoint.release(name)

    def config(self) -> dict[str, Any]:
        """Return `quantization_config`."""
        return quantization_config(self.schemes, self._floats())

    def _floats(self) -> list[str]:
        """Return the linear layers that stay floats."""
        modules = self.streamed.model.named_modules()
        return [
            name
            for name, module in modules
            if isinstance(module, nn.Linear) and name not in self.schemes
        ]

    def answer(self, path: Path) -> Quantized:
        """Say what was done.

        Args:
            path: The folder, in its place.
        """
        return Quantized(
            path=path,
            bits_per_weight=self._bits(self.schemes),
            distance=self.distance,
            measure="mean KL" if self.streamed.is_decoder else "mean squared difference",
            calibration=self.calibration,
            matrices=self.matrices,
            folded=self.folded,
            floats=self._floats(),
        )
