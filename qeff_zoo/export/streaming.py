# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's model run layer by layer on a few texts, with the weights of one layer in memory at a time.

The model is built without weights. One run without its layers records the arguments of each layer. Then each layer is
loaded from the checkpoint, run on the hidden states of every text, and emptied again.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qeff_zoo.checkpoint.expressions import rows, sources_of, substitute
from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.export.loader import build_meta
from qeff_zoo.export.unstacking import unstack
from qeff_zoo.terminal.progress import out_of_memory
from qeff_zoo.weights.bindings import Binding, bind, broken_ties


@dataclass(frozen=True)
class Call:
    """Arguments of a layer beside the hidden states of a text.

    Args:
        arguments: Positional arguments after the hidden states.
        options: Keyword arguments.
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
        values = checkpoint.values  # of GGUF files, in another arrangement
        self.expressions = {
            name: substitute(expression, values) for name, expression in bound.expressions.items()
        }
        #: Tensors of tied parameters that the checkpoint stores a second time.
        self.doubled = list(bound.doubled.values())
        self.path, self.layers = self._chain()
        if hasattr(self.model, "set_experts_implementation"):
            self.model.set_experts_implementation("eager")  # experts one after the other
        #: Linear layers of unstacked experts, by name, with their tensors in the checkpoint.
        self.unstacked = unstack(self.model, self.expressions, checkpoint.tensors, f"{self.path}.")
        self._values: dict[str, Tensor] = {}
        #: Calls by layer and text.
        self._calls: list[list[Call]] = []
        self._as_tuples = False

    def _bind(self, task: str, untied: Collection[str] = ()) -> Binding:
        self.model = build_meta(self._checkpoint.config, task, untied)
        if not any(".pooler." in f".{name}" for name in self._checkpoint.logical):
            self.model.pooler = None  # embedders leave it out
        return bind(self.model, self._checkpoint.logical, untied=untied)

    def _chain(self) -> tuple[str, nn.ModuleList]:
        """Return the name and the list of layers: the list with most of the weights."""
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
        """Replace the value of a parameter, and of all that are tied to it, in later loads.

        Args:
            name: Name in the state_dict.
            value: New value in float32.
        """
        same = self.expressions[name]
        self._values |= {key: value for key, other in self.expressions.items() if other == same}

    @contextmanager
    def using(self, name: str, value: Tensor) -> Iterator[None]:
        """Replace the value of a parameter within the context, as `use` does for good."""
        before = dict(self._values)
        self.use(name, value)
        try:
            yield
        finally:
            self._values = before

    @property
    def replaced(self) -> Collection[str]:
        """Names of parameters whose values are replaced."""
        return self._values.keys()

    def value(self, name: str) -> Tensor:
        """Return the value of a parameter, replaced or from the checkpoint, in float32.

        Args:
            name: Name in the state_dict.
        """
        if name in self._values:
            return self._values[name]
        expression, source = self.expressions[name], self._checkpoint
        read = rows(expression, source.read, source.tensors)
        dtype = source.tensors[sources_of(expression)[0]].dtype
        tensor = torch.from_numpy(to_float32(np.asarray(read), dtype))
        for one in sources_of(expression):
            source.release(one)
        return tensor

    @contextmanager
    def loaded(self, *prefixes: str) -> Iterator[None]:
        """Load the parameters and stored buffers of modules, and restore what was there at the end.

        Args:
            prefixes: Names of modules; none for all outside the layers.
        """
        within = tuple(f"{prefix}." for prefix in prefixes)
        inside = f"{self.path}."
        named = (
            *self.model.named_parameters(remove_duplicate=False),
            *self._stored_buffers(),
        )
        held = [
            (name, hollow, *self._place(name))
            for name, hollow in named
            if (name.startswith(within) if within else not name.startswith(inside))
        ]
        materialized: dict[int, Tensor] = {}
        try:
            for name, hollow, tensors, last in held:
                if id(hollow) not in materialized:
                    value = self.value(name)
                    is_buffer = not isinstance(hollow, nn.Parameter)
                    materialized[id(hollow)] = (
                        value.to(hollow.dtype)
                        if is_buffer
                        else nn.Parameter(value, requires_grad=False)
                    )
                tensors[last] = materialized[id(hollow)]
            yield
        finally:
            for _, hollow, tensors, last in held:
                tensors[last] = hollow

    def _stored_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers that the checkpoint has, such as biases of a router."""
        for name, buffer in self.model.named_buffers(remove_duplicate=False):
            if name in self.expressions:
                yield name, buffer

    def _place(self, name: str) -> tuple[dict[str, Any], str]:
        """Return the parameters or the buffers of a module, and the name of one of them there."""
        path, _, last = name.rpartition(".")
        module = self.model.get_submodule(path)
        return (module._parameters if last in module._parameters else module._buffers), last

    def begin(self, inputs: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """Return the input of the first layer for each text, (1, tokens, hidden); record the arguments of all layers.

        Args:
            inputs: Inputs of the model for each text.

        Raises:
            UnsupportedModelError: The model computes between two layers.
        """
        self._calls = [[] for _ in self.layers]
        firsts = []
        # What the output matrix would make of all tokens is not read here.
        takes = inspect.signature(self.model.forward).parameters
        fewest = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        with self.loaded():
            for one in inputs:
                problem: Exception | None = None
                for self._as_tuples in (False, True):
                    recorded: list[Tensor] = []
                    calls: list[Call] = []
                    with self._cut_out(self._recorder(recorded, calls)):
                        try:
                            self._run(one, **fewest)
                        except (
                            AttributeError,
                            IndexError,
                            KeyError,  # a layer that is called with keywords alone, under other names
                            TypeError,
                            ValueError,
                            RuntimeError,
                        ) as e:
                            if short := out_of_memory(e, "in a call of the model"):
                                raise short from e
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

    def _run(self, inputs: Mapping[str, Tensor], **more: Any) -> Any:
        # Models without states do not know of caches.
        return self.model(**inputs, **({"use_cache": False} if self.is_decoder else {}), **more)

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
        """Run a loaded layer; return its hidden states, (1, tokens, hidden).

        Args:
            number: Number of the layer.
            text: Number of the text.
            hidden: Input of the layer, (1, tokens, hidden).
        """
        call = self._calls[number][text]
        states = self.layers[number](hidden, *call.arguments, **call.options)
        result: Tensor = states[0] if isinstance(states, tuple) else states
        return result

    def finish(self, inputs: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
        """Return the output of the model for a text; parameters outside the layers must be loaded.

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
        output: Tensor = answer.logits if "logits" in answer else answer.last_hidden_state
        return output.flatten(0, -2)
