# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's model run layer by layer on a few texts, with the weights of one layer in memory at a time.

The model is made without weights. Run once with its layers cut out, it says what each layer is called with; after that
a layer is loaded from the checkpoint, run on the hidden states of every text, and emptied again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qeff_zoo.checkpoint.expressions import rows, sources_of
from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.export.loader import build_meta
from qeff_zoo.quantizer.unstacking import unstack
from qeff_zoo.weights.bindings import Binding, bind, broken_ties


@dataclass(frozen=True)
class Call:
    """What a layer is called with beside the hidden states of a text.

    Args:
        arguments: Behind the hidden states.
        options: By name.
    """

    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


class Streamed:
    """A model whose layers are loaded one at a time.

    Args:
        checkpoint: Float checkpoint; its weights are local.
        task: Task, which determines the class of the model.

    Raises:
        CheckpointError: The weights are not those of the config.
        UnsupportedModelError: The model is not a chain of layers.
    """

    def __init__(self, checkpoint: Checkpoint, task: str) -> None:
        self._checkpoint = checkpoint
        bound = self._bind(task)
        if broken := broken_ties(bound, checkpoint):
            bound = self._bind(task, broken)
        self.expressions = dict(bound.expressions)
        #: What the checkpoint stores again although it is tied.
        self.doubled = list(bound.doubled.values())
        self.path, self.layers = self._chain()
        if hasattr(self.model, "set_experts_implementation"):
            self.model.set_experts_implementation("eager")  # an expert after the other
        #: The linear layers that experts were taken apart into, by name.
        self.unstacked = unstack(self.model, self.expressions, checkpoint.tensors, f"{self.path}.")
        self._values: dict[str, Tensor] = {}
        #: By layer and text.
        self._calls: list[list[Call]] = []
        self._as_tuples = False

    def _bind(self, task: str, untied: Collection[str] = ()) -> Binding:
        self.model = build_meta(self._checkpoint.config, task, untied)
        if not any(".pooler." in f".{name}" for name in self._checkpoint.logical):
            self.model.pooler = None  # embedders leave it out
        return bind(self.model, self._checkpoint.logical, untied=untied)

    def _chain(self) -> tuple[str, nn.ModuleList]:
        """Find the list of layers: the one that holds most of the weights."""
        lists = {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, nn.ModuleList) and len({type(one) for one in module}) == 1
        }
        if not lists:
            raise self._unsupported("has no list of layers")
        size = {
            name: sum(parameter.numel() for parameter in module.parameters())
            for name, module in lists.items()
        }
        path = max(size, key=lambda name: size[name])
        return path, lists[path]

    def _unsupported(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self._checkpoint.name!r} is a {type(self.model).__name__}, which {what}. Expected layers called one "
            "after the other, each with what the one before it returns. Build with `--weights int4` or `int8` instead."
        )

    def layer_names(self) -> list[str]:
        """Return the names of the layers."""
        return [f"{self.path}.{number}" for number in range(len(self.layers))]

    def use(self, name: str, value: Tensor) -> None:
        """Load another value from now on in place of a parameter's own; of all that are tied to it likewise.

        Args:
            name: In the state_dict.
            value: Float32.
        """
        same = self.expressions[name]
        self._values |= {one: value for one, other in self.expressions.items() if other == same}

    @contextmanager
    def using(self, name: str, value: Tensor) -> Iterator[None]:
        """Load another value for a while in place of a parameter's own, as `use` does for good."""
        before = dict(self._values)
        self.use(name, value)
        try:
            yield
        finally:
            self._values = before

    @property
    def replaced(self) -> Collection[str]:
        """Names of parameters that others are used in place of."""
        return self._values.keys()

    def value(self, name: str) -> Tensor:
        """Return a parameter in float32, or what is used in its place.

        Args:
            name: In the state_dict.
        """
        if name in self._values:
            return self._values[name]
        expression, source = self.expressions[name], self._checkpoint
        read = rows(expression, source.read, source.tensors)
        dtype = source.tensors[sources_of(expression)[0]].dtype
        found = torch.from_numpy(to_float32(np.asarray(read), dtype))
        for one in sources_of(expression):
            source.release(one)
        return found

    @contextmanager
    def loaded(self, *prefixes: str) -> Iterator[None]:
        """Load the parameters below modules, and empty them at the end; those of one layer, unless others are named.

        Args:
            prefixes: Names of modules; none for all that are in no layer.
        """
        within = tuple(f"{prefix}." for prefix in prefixes)
        inside = f"{self.path}."
        places = [
            (name, *self._place(name))
            for name, _ in self.model.named_parameters(remove_duplicate=False)
            if (name.startswith(within) if within else not name.startswith(inside))
        ]
        empty = {name: module._parameters[last] for name, module, last in places}
        made: dict[int, nn.Parameter] = {}
        try:
            for name, module, last in places:
                hollow = empty[name]
                if id(hollow) not in made:
                    made[id(hollow)] = nn.Parameter(self.value(name), requires_grad=False)
                module._parameters[last] = made[id(hollow)]
            yield
        finally:
            for name, module, last in places:
                module._parameters[last] = empty[name]

    def _place(self, name: str) -> tuple[nn.Module, str]:
        path, _, last = name.rpartition(".")
        return self.model.get_submodule(path), last

    def begin(self, inputs: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """Return what the first layer is given for each text; remembers what all are called with.

        Args:
            inputs: Inputs of the model, one text each.
        """
        self._calls = [[] for _ in self.layers]
        firsts = []
        with self.loaded():
            for one in inputs:
                problem: Exception | None = None
                for self._as_tuples in (False, True):
                    recorded: list[Tensor] = []
                    calls: list[Call] = []
                    with self._cut_out(self._recorder(recorded, calls)):
                        try:
                            self._run(one)
                        except (
                            AttributeError,
                            IndexError,
                            TypeError,
                            ValueError,
                            RuntimeError,
                        ) as e:
                            problem = problem or e
                            continue
                    if len(recorded) == len(self.layers) and all(
                        h is recorded[0] for h in recorded
                    ):
                        break
                else:
                    what = "does more between two layers than to call them"
                    raise self._unsupported(what) from problem
                firsts.append(recorded[0])
                for every, call in zip(self._calls, calls, strict=True):
                    every.append(call)
        return firsts

    def _run(self, inputs: Mapping[str, Tensor]) -> Any:
        # Models without states do not know of caches.
        return self.model(**inputs, **({"use_cache": False} if self.is_decoder else {}))

    @property
    def is_decoder(self) -> bool:
        """Whether the model predicts the tokens that follow."""
        return self.model.get_output_embeddings() is not None and self.model.can_generate()

    def _recorder(self, recorded: list[Tensor], calls: list[Call]) -> Callable[..., Any]:
        def record(*arguments: Any, **options: Any) -> Any:
            if arguments:
                hidden, arguments = arguments[0], arguments[1:]
            else:
                hidden = options.pop("hidden_states")
            recorded.append(hidden)
            calls.append(Call(arguments, options))
            return (hidden,) if self._as_tuples else hidden

        return record

    @contextmanager
    def _cut_out(self, instead: Callable[..., Any]) -> Iterator[None]:
        """Call a function in place of every layer."""
        with ExitStack() as stack:
            for layer in self.layers:
                layer.forward = instead
                stack.callback(delattr, layer, "forward")
            yield

    def run(self, number: int, text: int, hidden: Tensor) -> Tensor:
        """Run a layer that is loaded.

        Args:
            number: Number of the layer.
            text: Number of the text.
            hidden: States that it is given, (1, tokens, hidden).
        """
        call = self._calls[number][text]
        found = self.layers[number](hidden, *call.arguments, **call.options)
        result: Tensor = found[0] if isinstance(found, tuple) else found
        return result

    def finish(self, inputs: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
        """Return the model's answer to a text, once all but the layers is loaded.

        Args:
            inputs: Inputs of the model.
            hidden: Output of the last layer.

        Returns:
            Logits (tokens, vocabulary) of a decoder, hidden states (tokens, hidden) of an encoder, logits of a
            classifier.
        """

        def replay(*_: Any, **__: Any) -> Any:
            return (hidden,) if self._as_tuples else hidden

        with self._cut_out(replay):
            answer = self._run(inputs)
        found: Tensor = answer.logits if "logits" in answer else answer.last_hidden_state
        return found.flatten(0, -2)
