# SPDX-License-Identifier: Apache-2.0
"""What a graph retains from call to call: one `State` for each tensor, from the probe to the runtime.

The probe of a task finds states; the exporter marks each input of the graph that is a state with its kind and layer;
targets read these marks, and the manifest lists the states left after lowering. Nothing guesses a kind from a name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

#: growing    keys and values of every position: one axis is `ctx_len`
#: index      keys by which an indexer chooses, of every position
#: window     keys and values of the newest positions
#: recurrent  what a convolution or a recurrence needs for its next token
#: cross      keys and values of what an encoder has read, which no call writes
#: adapter    matrices of adapters by slot, which the host writes and every row of a call may read
#: features   encoded images or audio, which the host writes and every row of a call may read
#: penalty    which tokens a row's text has, for the penalties of a sampler that the graph has
StateKind: TypeAlias = Literal[
    "growing", "index", "window", "recurrent", "cross", "adapter", "features", "penalty"
]

#: Rows of features that an image becomes, of a program that retains the image itself: QEfficient's name.
VISION_SIZE = "vision_size"
_KIND, _LAYER = "qeff_zoo.state", "qeff_zoo.layer"
_TOKEN = "qeff_zoo.token"


@dataclass(frozen=True, kw_only=True)
class State:
    """One retained tensor.

    Args:
        name: Name of the graph's input.
        kind: Kind of content.
        layer: Index of the layer that it belongs to.
        axes: A size or a symbol each, the rows first: `("batch_size", 2, "ctx_len", 64)`.
    """

    name: str
    kind: StateKind
    layer: int
    axes: tuple[int | str, ...]

    @property
    def output(self) -> str:
        """Name of the graph's output that holds it after a call, of one that is written."""
        return f"{self.name}_RetainedState"

    @property
    def written(self) -> bool:
        """Whether calls write it; if not, the caller writes it when a row begins."""
        return self.kind != "cross"

    @property
    def grows(self) -> bool:
        """Whether it has a row for every position of the context."""
        return "ctx_len" in self.axes

    def of_layer(self, layer: int) -> "State":
        """Return the same state of another layer."""
        return replace(
            self, name=f"{self.name.removesuffix(f'.{self.layer}')}.{layer}", layer=layer
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        return {**asdict(self), "axes": list(self.axes)}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "State":
        """Read the entry of a manifest."""
        return cls(**{**entry, "axes": tuple(entry["axes"])})


def mark(value: Any, kind: StateKind, layer: int) -> None:
    """Write on an input of a graph which state it is.

    Args:
        value: An `onnx_ir.Value`.
        kind: Kind of content.
        layer: Index of its layer.
    """
    value.metadata_props.update({_KIND: kind, _LAYER: str(layer)})


def mark_layer(value: Any, layer: int) -> None:
    """Write on an input of a graph that is no state which layer it belongs to.

    Args:
        value: An `onnx_ir.Value`.
        layer: Index of its layer.
    """
    value.metadata_props[_LAYER] = str(layer)


def layer_of(value: Any) -> int | None:
    """Read which layer an `onnx_ir.Value` belongs to; None for one that belongs to none."""
    layer = value.metadata_props.get(_LAYER)
    return None if layer is None else int(layer)


def state_of(value: Any) -> State | None:
    """Read which state an `onnx_ir.Value` is; None for one that is none."""
    kind = value.metadata_props.get(_KIND)
    if kind is None:
        return None
    assert kind in get_args(StateKind), f"{value.name!r} is marked as {kind!r}."
    axes = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return State(name=value.name, kind=kind, layer=int(value.metadata_props[_LAYER]), axes=axes)


def mark_tokens(value: Any, tokens: Iterable[int]) -> None:
    """Mark the tokens that an input of a graph replaces.

    Args:
        value: An `onnx_ir.Value`.
        tokens: Ids.
    """
    value.metadata_props[_TOKEN] = " ".join(map(str, tokens))


def tokens_of(value: Any) -> list[int]:
    """Return the tokens that a marked `onnx_ir.Value` replaces."""
    return [int(token) for token in value.metadata_props.get(_TOKEN, "").split()]


def part_shared(states: Iterable[State]) -> tuple[list[State], list[State], list[State]]:
    """Part what the rows of calls have, which comes first, from what all share: matrices of adapters, and features."""
    per_row = [*states]
    matrices, features = (
        [state for state in per_row if state.kind == kind] for kind in ("adapter", "features")
    )
    return [state for state in per_row if state not in (*matrices, *features)], matrices, features


def states_of(inputs: Iterable[Any]) -> list[State]:
    """Return the states among the inputs of a graph, in their order."""
    return [state for value in inputs if (state := state_of(value)) is not None]
