# SPDX-License-Identifier: Apache-2.0
"""The float model's answers to the texts, and with a budget what each group of matrices costs in the fewest bits."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from qeff_zoo.export.linears import linear_of, set_weights, stages_of, weights_of
from qeff_zoo.quantizer.budget import Unit, cheapest, choose, squared_errors
from qeff_zoo.quantizer.grids import Scheme
from qeff_zoo.quantizer.inputs import moments
from qeff_zoo.quantizer.subject import Subject


@dataclass
class _Varied:
    """What the model computes with a group of matrices in the fewest bits.

    Args:
        unit: The group.
        hidden: Hidden states of each measured text after the layers so far.
        head: The output matrix, where it is that group's.
    """

    unit: Unit
    hidden: list[Tensor]
    head: str | None = None


@dataclass
class Measured:
    """Outputs of the float model.

    Args:
        subject: Subject of the measurement.
        expected: Logits of the original model for the measured texts.
        schemes: Scheme of each module, in the order of the model.
        head_moments: Second moments of what the output matrix is given, where the embedding is tied to it.
    """

    subject: Subject
    expected: list[Tensor] = field(default_factory=list)
    schemes: dict[str, Scheme] = field(default_factory=dict)
    head_moments: Tensor | None = None

    def __post_init__(self) -> None:
        self._called: set[str | None] = set()
        self._fewest: dict[str, Tensor] = {}

    def measure(self, step: Callable[[int], None]) -> None:
        """Run the float model; choose schemes.

        Args:
            step: Callback for every layer.
        """
        streamed = self.subject.streamed
        varied: list[_Varied] = []
        if (
            self.subject.options.budget is not None
            and self.subject.embedding in self.subject.sources
        ):
            varied.append(self._varied_embedding())
        firsts = streamed.begin(self.subject.inputs)
        hidden = [firsts[text] for text in self.subject.measured]
        for number, prefix in enumerate(streamed.layer_names()):
            with streamed.loaded(prefix):
                for one in varied:
                    one.hidden = self._passed(number, one.hidden)
                run = partial(streamed.run, number, self.subject.measured[0], hidden[0])
                for stage in stages_of(streamed.layers[number], run):
                    names = [f"{prefix}.{name}" for name in stage.linears]
                    names = [name for name in names if name in self.subject.sources]
                    self._called.update(names)
                    if self.subject.options.budget is not None and names:
                        unit = self._unit(names)
                        varied.append(self._varied(number, prefix, unit, hidden))
                hidden = self._passed(number, hidden)
            step(1)
        self._run(hidden)
        if self.subject.options.budget is not None and self.subject.head in self.subject.sources:
            last = self._unit([self.subject.head])
            varied.append(_Varied(last, hidden, self.subject.head))
        for one in varied:
            one.unit = replace(one.unit, cost=self._cost(one))
        self._choose([one.unit for one in varied])

    def _choose(self, units: Sequence[Unit]) -> None:
        # Linear layers that no text reached say nothing of what they are given.
        self._called |= {self.subject.embedding, self.subject.head}
        self.subject.sources = {
            name: source for name, source in self.subject.sources.items() if name in self._called
        }
        self.subject.check()
        schemes = {
            name: cheapest(self.subject.schemes_for([name])) for name in self.subject.sources
        }
        if self.subject.options.budget is not None:
            floats = self.subject.total(schemes) - sum(
                scheme.bits_per_weight * self.subject.weights(name)
                for name, scheme in schemes.items()
            )
            bits = self.subject.options.budget * sum(self.subject.matrices().values()) - floats
            schemes = choose(units, bits)
        # In the order of the model, whatever that of the calls.
        self.schemes = {name: schemes[name] for name in self.subject.names if name in schemes}

    def _passed(self, number: int, hidden: Sequence[Tensor]) -> list[Tensor]:
        """Run a layer that is loaded on the measured texts."""
        pairs = zip(self.subject.measured, hidden, strict=True)
        return [self.subject.streamed.run(number, text, one) for text, one in pairs]

    def _unit(self, names: Sequence[str]) -> Unit:
        """Return a group of modules whose cost is not known yet, and remember its values in the fewest bits."""
        errors: dict[Scheme, float] = {}
        self._fewest = {}
        for name in names:
            options = self.subject.schemes_for(names)
            costs = squared_errors(
                self.subject.streamed.value(f"{name}.weight"), options, self.subject.dtype(name)
            )
            for scheme, (error, _) in costs.items():
                errors[scheme] = errors.get(scheme, 0.0) + error
            self._fewest[name] = costs[cheapest(options)][1]
        return Unit(tuple(names), sum(map(self.subject.weights, names)), errors, 0.0)

    def _varied(self, number: int, prefix: str, unit: Unit, hidden: Sequence[Tensor]) -> "_Varied":
        """Run a layer that is loaded with a group in the fewest bits."""
        layer = self.subject.streamed.layers[number]
        inside = {name: name.removeprefix(f"{prefix}.") for name in unit.modules}
        was = weights_of(layer, inside.values())
        set_weights(layer, {value: self._fewest[name] for name, value in inside.items()})
        outputs = self._passed(number, hidden)
        set_weights(layer, was)
        return _Varied(unit, outputs)

    def _varied_embedding(self) -> "_Varied":
        unit = self._unit([self.subject.embedding])
        with self.subject.streamed.using(
            f"{self.subject.embedding}.weight", self._fewest[self.subject.embedding]
        ):
            hidden = self.subject.streamed.begin(self.subject.inputs)
        states = [hidden[text] for text in self.subject.measured]
        return _Varied(unit, states, self.subject.head if self.subject.tied else None)

    def _run(self, hidden: Sequence[Tensor]) -> None:
        """Keep the float model's answers, and what the output matrix is given if the embedding is tied to it."""
        streamed = self.subject.streamed
        with streamed.loaded(), ExitStack() as stack:
            if self.subject.tied and self.subject.embedding in self.subject.sources:
                linear = linear_of(streamed.model, str(self.subject.head))
                self.head_moments = stack.enter_context(moments(linear))
            self.expected = [
                streamed.finish(self.subject.inputs[text], states)
                for text, states in zip(self.subject.measured, hidden, strict=True)
            ]

    def _cost(self, varied: "_Varied") -> float:
        streamed = self.subject.streamed
        with ExitStack() as stack:
            if varied.head is not None:
                (name,) = varied.unit.modules
                scheme = cheapest(varied.unit.errors)
                weights = streamed.value(f"{name}.weight")
                values = squared_errors(weights, [scheme], self.subject.dtype(name))[scheme][1]
                stack.enter_context(streamed.using(f"{name}.weight", values))
            stack.enter_context(streamed.loaded())
            return self.subject.distance(self.expected, varied.hidden)
