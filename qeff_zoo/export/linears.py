# SPDX-License-Identifier: Apache-2.0
"""Linear layers of a loaded layer of a model, grouped by their input."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qeff_zoo.export.unstacking import Stack


@dataclass(frozen=True)
class Group:
    """Linear layers that are given the same tensor; engines join such into one, so they share a format.

    Args:
        linears: Names within the layer, in the order of their calls.
        norm: Name of the module that returns the tensor, if it is a norm with a weight for each column.
    """

    linears: tuple[str, ...]
    norm: str | None = None


@dataclass(frozen=True)
class Stage:
    """Groups that do not read each other's answers.

    Args:
        groups: One, or those of all experts.
        routed: Whether a router chooses the tokens of each.
        calls: Calls of each linear layer of one group in a run; 0 where a router decides it.
    """

    groups: tuple[Group, ...]
    routed: bool = False
    calls: int = 0

    @property
    def linears(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(name for group in self.groups for name in group.linears)


def stages_of(layer: nn.Module, run: Callable[[], Any]) -> list[Stage]:
    """Find the linear layers of a layer, those with the same input together, in the order of their calls.

    Args:
        layer: Loaded.
        run: Runs it.
    """
    names = {id(module): name for name, module in layer.named_modules()}
    stacks = {
        id(linear): stack
        for module in layer.modules()
        for stack in vars(module).values()
        if isinstance(stack, Stack)
        for expert in stack.experts
        for linear in expert
    }
    by_input: dict[Any, list[str]] = {}
    counts = Counter[str]()
    producers: dict[Any, str] = {}
    kept: list[Tensor] = []  # so that no two have one address

    def identity(tensor: Tensor) -> Any:
        kept.append(tensor)
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()

    def note_input(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if id(module) in stacks:
            by_input.setdefault(stacks[id(module)], [])
            return
        counts[names[id(module)]] += 1
        called = by_input.setdefault(identity(arguments[0]), [])
        if not any(names[id(module)] in value for value in by_input.values()):
            called.append(names[id(module)])

    def note_output(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            producers[identity(output)] = names[id(module)]

    with ExitStack() as hooks:
        for module in layer.modules():
            if type(module) is nn.Linear:
                hooks.callback(module.register_forward_pre_hook(note_input).remove)
            elif _is_norm(module):
                hooks.callback(module.register_forward_hook(note_output).remove)
        run()
    stages: list[Stage] = []
    for place, called in by_input.items():
        if isinstance(place, Stack):
            experts = (tuple(names[id(one)] for one in expert) for expert in place.experts)
            stages.append(Stage(tuple(map(Group, experts)), routed=True))
        elif called:
            group = Group(tuple(called), producers.get(place))
            stages.append(Stage((group,), calls=counts[called[0]]))
    return stages


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return not list(module.children()) and isinstance(weight, Tensor) and weight.ndim == 1


def linear_of(layer: nn.Module, name: str) -> nn.Linear:
    """Return a linear layer.

    Args:
        layer: Layer of the module.
        name: Within that.
    """
    linear = layer.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return linear


def weights_of(layer: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """Return what linear layers compute with now, by name.

    Args:
        layer: Loaded.
        names: Within it.
    """
    return {name: linear_of(layer, name).weight.data for name in names}


class Recorded(Exception):  # noqa: N818 -- it ends a run, and is no error
    """All inputs of a run that are wanted are recorded, and the run ends."""


@contextmanager
def recorded_inputs(
    module: nn.Module, names: Iterable[str], calls: int = 0
) -> Iterator[dict[str, list[Tensor]]]:
    """Yield the inputs of linear layers, (tokens, columns) for each call.

    Args:
        module: Module with the linear layers, loaded.
        names: Their names in it.
        calls: A run ends with `Recorded` once so many calls of a linear layer are recorded; 0 for a whole run.
    """
    recorded: dict[str, list[Tensor]] = {name: [] for name in names}

    def recording(inputs: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def record(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs.append(arguments[0].flatten(0, -2))
            if len(inputs) == calls:
                raise Recorded

        return record

    with ExitStack() as hooks:
        for name, inputs in recorded.items():
            linear = linear_of(module, name)
            hooks.callback(linear.register_forward_pre_hook(recording(inputs)).remove)
        yield recorded


def set_weights(layer: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Compute with other weights until the layer is emptied.

    Args:
        layer: Loaded.
        values: Values by name of a module within it.
    """
    for name, value in values.items():
        weight = nn.Parameter(value, requires_grad=False)
        layer.get_submodule(name)._parameters["weight"] = weight
