# SPDX-License-Identifier: Apache-2.0
"""Importance of the columns of matrices: the mean square of the inputs that a model multiplies them by.

transformers' model runs layer by layer on random tokens of its vocabulary, always the same ones: neither texts nor a
network are needed, and one layer is in memory at a time. Rounding that considers this costs a decoder about half as
much.

In: a checkpoint. Out: by the name of a matrix (columns), or of a stack of them (experts, columns), float16 around 1.

For a mixture of formats errors of matrices are compared, too. An error of a layer's matrix costs what it changes the
layer's output by, relative to that, for each token. One gradient shows this for all matrices of a layer: it is that of
the output, multiplied by random numbers over the output's length. Costs of single matrices in divergence (KL) of the
model's answers are three times that, within a factor of 2, from the second layer on.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.export.streaming import Streamed
from qeff_zoo.export.unstacking import Stack
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.weights.importance import Measured

_TOKENS = 512
#: Divergence of the answers, in nats, by a relative squared change of a layer's output.
_NATS = 3.0
#: Columns count at least this share of their mean: other inputs may be larger there.
_LEAST = 2.0**-10
_MOST = 60000.0  # below the largest float16
#: Errors of models' own code, whose layers may need more than `Streamed` provides.
FAILURES = (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError)


class _StopError(Exception):
    """The input of the output matrix is recorded: the product itself is not needed."""


def measure(
    checkpoint: Checkpoint, task: str, tokenizer: Tokenizer | None, *, costs: bool = False
) -> Measured:
    """Measure the importance of a decoder's matrices on random tokens.

    Args:
        checkpoint: Checkpoint with local weights.
        task: Task, which determines the class of the model.
        tokenizer: Tokenizer of the model; None if all ids are ordinary tokens.
        costs: Whether to measure costs of errors, too, which takes twice as long.

    Raises:
        UnsupportedModelError: The model is not a chain of layers, or its layers do not run one by one.
    """
    try:
        return _measure(checkpoint, task, tokenizer, costs)
    except (*FAILURES, CheckpointError) as error:
        raise UnsupportedModelError(
            f"{checkpoint.name!r} does not run layer by layer ({type(error).__name__}: {error}). Expected layers "
            "that are called one after the other. Round without importance."
        ) from error


def _measure(
    checkpoint: Checkpoint, task: str, tokenizer: Tokenizer | None, costs: bool
) -> Measured:
    streamed = Streamed(checkpoint, task)
    inputs = inputs_of(checkpoint, streamed.model.config, tokenizer)
    measured: dict[str, Any] = {}
    factors: dict[str, Any] = {}
    with torch.no_grad():
        (hidden,) = streamed.begin([inputs])
        for number, (path, layer) in enumerate(
            zip(streamed.layer_names(), streamed.layers, strict=True)
        ):
            slopes: dict[str, Tensor] = {}
            with (
                streamed.loaded(path),
                _squares(layer, f"{path}.") as squares,
                _slopes(layer, f"{path}.", slopes) if costs else nullcontext(),
            ):
                hidden = _run(streamed, number, hidden, costs=costs)
            measured |= _by_matrix(layer, f"{path}.", squares)
            each = _costs_of(squares, slopes, hidden.shape[1])
            factors |= _by_matrix(layer, f"{path}.", each, missing=0.0)
        head = streamed.model.get_output_embeddings()
        if isinstance(head, nn.Linear):
            name = next(name for name, module in streamed.model.named_modules() if module is head)
            with streamed.loaded(), _squares(head, name, done=True) as squares:
                try:
                    streamed.finish(inputs, hidden)
                except _StopError:
                    measured |= _of_output(streamed, f"{name}.weight", squares[name])
            if costs and name in squares:
                factor = squares[name] / (2 * head.out_features)
                factors |= dict.fromkeys(tied(streamed, f"{name}.weight"), factor)
    # Infinite inputs come of such weights, which rounding refuses by the name of their tensor.
    return Measured(
        importance={
            name: _normalized(value) for name, value in measured.items() if value.isfinite().all()
        },
        costs={name: value.numpy() for name, value in factors.items() if value.isfinite().all()},
    )


def _run(streamed: Streamed, number: int, hidden: Tensor, *, costs: bool) -> Tensor:
    """Run a layer; with `costs` also back, from random numbers over the length of each token's output."""
    if not costs:
        return streamed.run(number, 0, hidden)
    with torch.enable_grad():
        after = streamed.run(number, 0, hidden.detach().requires_grad_())
        length = after.detach().norm(dim=-1, keepdim=True).clamp(min=torch.finfo(after.dtype).tiny)
        chance = torch.randn(after.shape, generator=torch.Generator().manual_seed(number))
        after.backward(chance / length)
    return after.detach()


@contextmanager
def _slopes(layer: nn.Module, prefix: str, slopes: dict[str, Tensor]) -> Iterator[None]:
    """Add up the mean square of the gradients of each matrix's outputs, a sum over tokens.

    Args:
        layer: Module with the matrices.
        prefix: Prefix of the names of its modules.
        slopes: Sums so far.
    """

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def add(gradient: Tensor) -> None:
            slopes[name] = gradient.square().mean(-1).sum() + slopes.get(name, 0.0)

        def note(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> None:
            if outputs.requires_grad:
                outputs.register_hook(add)

        return note

    with ExitStack() as hooks:
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear | Conv1D):
                hooks.callback(module.register_forward_hook(noting(prefix + name)).remove)
        yield


def _costs_of(
    squares: Mapping[str, Tensor], slopes: Mapping[str, Tensor], tokens: int
) -> dict[str, Tensor]:
    """Return what a squared error costs, by matrix and column."""
    return {
        name: square * (_NATS / tokens * slopes[name])
        for name, square in squares.items()
        if name in slopes
    }


def inputs_of(
    checkpoint: Checkpoint, config: Any, tokenizer: Tokenizer | None
) -> dict[str, Tensor]:
    """Return random tokens, always the same ones, as inputs of the model.

    Args:
        checkpoint: Checkpoint whose positions limit the number of tokens.
        config: transformers' configuration.
        tokenizer: See `measure`.
    """
    size = int(config.get_text_config().vocab_size)
    known = set(tokenizer.vocabulary.values()) - tokenizer.added.keys() if tokenizer else set()
    ids = sorted(name for name in known if name < size) or range(size)
    length = min(_TOKENS, positions_of(checkpoint.config) or _TOKENS)
    tokens = torch.tensor([random.Random(0).choices(ids, k=length)])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


@contextmanager
def _squares(layer: nn.Module, prefix: str, *, done: bool = False) -> Iterator[dict[str, Tensor]]:
    """Yield the squares (columns) of the inputs of each matrix: sums within the context, means after it.

    Args:
        layer: Module with the matrices.
        prefix: Prefix of the names of its modules.
        done: Whether to stop the model at the first matrix, by `_StopError`.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            rows = arguments[0].detach().flatten(0, -2)
            sums[name] = rows.square().sum(0) + sums.get(name, 0.0)
            counts[name] = len(rows) + counts.get(name, 0)
            if done:
                raise _StopError

        return note

    with ExitStack() as hooks:
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear | Conv1D):
                hook = module.register_forward_pre_hook(noting(prefix + name))
                hooks.callback(hook.remove)
        yield sums
    for name, count in counts.items():
        sums[name] /= max(1, count)


def _of_output(streamed: Streamed, name: str, squares: Tensor) -> dict[str, Tensor]:
    """Return the squares of the output matrix; half of those of an embedding's, too, count all columns alike."""
    same = tied(streamed, name)
    both = squares + squares.mean() if len(same) > 1 else squares
    return dict.fromkeys(same, both)


def tied(streamed: Streamed, name: str) -> list[str]:
    """Return the names of all parameters with the value of one.

    Args:
        streamed: The model.
        name: Name of the parameter.
    """
    value = streamed.expressions[name]
    return [key for key, other in streamed.expressions.items() if other == value]


def _by_matrix(
    layer: nn.Module, prefix: str, squares: Mapping[str, Tensor], missing: float = 1.0
) -> dict[str, Tensor]:
    """Return mean squares by the names of parameters; `missing` for experts that no token reached."""
    importance = {f"{name}.weight": square for name, square in squares.items()}
    names = {id(module): prefix + name for name, module in layer.named_modules()}
    for module in layer.modules():
        for last, stack in vars(module).items():
            if not isinstance(stack, Stack):
                continue
            every = [squares.get(names[id(linears[0])]) for linears in stack.experts]
            known = [one for one in every if one is not None and one.any()]
            if known:
                other = torch.full_like(known[0], missing)
                rows = [one if one is not None and one.any() else other for one in every]
                importance[f"{names[id(module)]}.{last}"] = torch.stack(rows)
    return importance


def _normalized(squares: Tensor) -> Any:
    mean = squares.mean(-1, keepdim=True)
    shares = squares / torch.where(mean > 0, mean, 1.0)
    return shares.clamp(_LEAST, _MOST).half().numpy()
