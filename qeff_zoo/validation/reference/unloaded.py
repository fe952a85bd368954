# SPDX-License-Identifier: Apache-2.0
"""Model without weights, whose parts are read from the checkpoint one at a time: a layer, the embedding, the head.

Only the reference process imports this. transformers' own code converts tensors to parameters, as when it loads the
whole model.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from qeff_zoo.validation.reference.formats.files import Decoded
from qeff_zoo.validation.reference.formats.orders import targets_of

#: The part of all that is in no other, which stays in memory.
REST = ""


class Unloaded:
    """Model without weights, and the checkpoint that they are read from.

    Args:
        model: transformers' own, in float32, parameters on the meta device.
        tensors: Tensors of the checkpoint, by name, decoded on demand.
    """

    def __init__(self, model: Any, tensors: Mapping[str, Decoded]) -> None:
        self.model, self._tensors = model, tensors
        self._rules: list[Any] = [*get_model_conversion_mapping(model)]
        self._sources: dict[str, list[str]] = defaultdict(list)
        known = model.state_dict()
        unexpected = set()
        for name, (_, parameters) in targets_of(model, tensors, self._rules).items():
            for parameter in parameters:
                if parameter in known:
                    self._sources[parameter].append(name)
                else:
                    unexpected.add(parameter)
        self._tie()
        state = model.state_dict(keep_vars=True)
        by_tensor: dict[int, list[str]] = defaultdict(list)
        for name, tensor in state.items():
            by_tensor[id(tensor)].append(name)
        self._tied = {name: names for names in by_tensor.values() for name in names}
        self._blank: Mapping[str, Tensor] = state
        missing = {name for name in state if not self._sources_of([name])}
        #: What the checkpoint lacks, and what the model lacks, as transformers reports it.
        self.report = SimpleNamespace(missing_keys=missing, unexpected_keys=unexpected)
        model._adjust_missing_and_unexpected_keys(self.report)
        #: By path of a module, in order, the names of its parameters.
        self.parts = _parts(model, state)

    def _tie(self) -> None:
        """Tie parameters as transformers does once it has loaded them: those that are missing, or equal."""
        for target, source in self.model.all_tied_weights_keys.items():
            both = [self._sources[name] for name in (target, source)]
            if all(len(names) == 1 for names in both):
                one, other = (self._tensors[names[0]][...] for names in both)
                if torch.equal(one, other):
                    del self._sources[target]
        known = {name for name, sources in self._sources.items() if sources}
        missing = {*self.model.state_dict()} - known
        self.model.tie_weights(missing_keys=missing, recompute_mapping=False)

    def parts_with(self, name: str) -> list[str]:
        """Return the paths of the parts that have a parameter, or one that is tied to it."""
        tied = {*self._tied[name]}
        return [path for path, names in self.parts.items() if tied & {*names}]

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Have the weights of a part in the model, for a while.

        Args:
            path: One of `parts`.
        """
        self.read(path)
        try:
            yield
        finally:
            put(self.model, {name: self._blank[name] for name in self._with_tied(path)})

    def read(self, path: str) -> None:
        """Read the weights of a part into the model.

        Args:
            path: One of `parts`.

        Raises:
            ValueError: A tensor has another shape than the model's parameter.
        """
        names = self._with_tied(path)
        tensors = {source: self._tensors[source] for source in self._sources_of(names)}
        config = LoadStateDictConfig(dtype=torch.float32, weight_mapping=self._rules)
        report, _ = convert_and_load_state_dict_in_model(self.model, tensors, config)
        if wrong := [*report.mismatched_keys, *report.conversion_errors, *report.error_msgs]:
            raise ValueError(f"The checkpoint does not fit the model: {wrong[:3]}.")
        state = self.model.state_dict(keep_vars=True)
        for name in names:
            if state[name] is self._blank[name]:
                others = (state[other] for other in self._tied[name])
                read = next((other for other in others if other is not self._blank[name]), None)
                if read is not None:
                    put(self.model, {name: read})

    def state(self, path: str) -> dict[str, Tensor]:
        """Return the weights of a part as the model has them now.

        Args:
            path: One of `parts`.
        """
        return {
            name: _holder(self.model, name)[name.rpartition(".")[2]] for name in self.parts[path]
        }

    def _with_tied(self, path: str) -> list[str]:
        return [*dict.fromkeys(tied for name in self.parts[path] for tied in self._tied[name])]

    def _sources_of(self, names: Iterable[str]) -> list[str]:
        tied = (other for name in names for other in self._tied[name])
        return [*dict.fromkeys(source for name in tied for source in self._sources.get(name, ()))]


def put(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make tensors the parameters and buffers of a model.

    Args:
        model: Any.
        tensors: Tensors by name.
    """
    for name, tensor in tensors.items():
        _holder(model, name)[name.rpartition(".")[2]] = tensor


def _holder(model: nn.Module, name: str) -> dict[str, Any]:
    path, _, key = name.rpartition(".")
    module = model.get_submodule(path)
    holder: dict[str, Any] = module._parameters if key in module._parameters else module._buffers
    return holder


def _parts(model: Any, state: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the parts of a model, in order: by path of a module, its parameters, and what is in no such module.

    They are the members of its lists of modules, and what reads and writes tokens.
    """
    whole = {model.get_input_embeddings(), model.get_output_embeddings()}
    paths: list[str] = []
    for path, module in model.named_modules(remove_duplicate=False):
        if any(path.startswith(f"{other}.") for other in paths):
            continue
        parent = model.get_submodule(path.rpartition(".")[0])
        if module in whole or isinstance(parent, nn.ModuleList):
            paths.append(path)
    parts: dict[str, list[str]] = {path: [] for path in (*paths, REST)}
    for name in state:
        parts[next((path for path in paths if name.startswith(f"{path}.")), REST)].append(name)
    return {path: names for path, names in parts.items() if names or path == REST}
