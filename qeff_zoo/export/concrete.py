# SPDX-License-Identifier: Apache-2.0
"""Evaluation of constants during the trace of a vision encoder, and replacement of some calls.

Vision encoders compute much from sizes alone: grids, window indices, tables of positions, with loops and `.tolist()`.
All of that is known during the trace, and only the results become part of the graph; those of more than a million
elements would enlarge the graph, and remain calls. A few calls of PyTorch are exported to ONNX incorrectly, or not at
all: they are replaced by equivalent ones.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

_LARGE = 1 << 20  # elements
_EMPTY = (torch.empty, torch.zeros, Tensor.new_empty, Tensor.new_zeros)  # to be written to


class Concrete(TorchFunctionMode):
    """Evaluates calls that depend on no input, and rewrites those that ONNX lacks."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        rule = _RULES.get(func)
        result = rule(func, args, kwargs) if rule else None
        if result is not None:
            return result
        if func in _EMPTY or any(map(_is_unknown, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        with _disable_current_modes():
            known = func(*args, **kwargs)
        large = isinstance(known, Tensor) and known.numel() > _LARGE
        return func(*args, **kwargs) if large else known


def _is_unknown(value: Any) -> bool:
    """Whether a value depends on an input or a weight."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(value, Tensor) and _is_traced(value)


def _is_traced(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor or torch._is_functional_tensor(tensor)


def _is_choice(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.bool


# --- replaced calls: each rule returns the result of a call, or None to keep it -----------------------------------


def _convolve(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace a convolution of one patch per row by a product; a `conv3d` without bias would get a wrong one."""
    x, weight, *others = args
    bias = others[0] if others else kwargs.get("bias")
    if x.shape[1:] != weight.shape[1:]:
        return None
    flat = F.linear(x.flatten(1), weight.flatten(1), bias)
    return flat.reshape(*flat.shape, *[1] * (x.ndim - 2))


def _set_chosen(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    values, where, new = args
    if not (_is_choice(where) and _is_traced(values)) or isinstance(new, Tensor):
        return None
    written: Tensor = values.copy_(torch.where(where, new, values))
    return written


def _get_chosen(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace a selection of rows by a constant mask by their indices."""
    values, where = args
    if not _is_choice(where) or _is_traced(where) or not _is_traced(values):
        return None
    with _disable_current_modes():
        indices = where.nonzero(as_tuple=True)
    rows: Tensor = values[indices]
    return rows


def _resize(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace antialiased interpolation, which ONNX lacks, by a matrix for each axis."""
    if not kwargs.get("antialias"):
        return None
    x, options = args[0], dict(kwargs)
    size = options.pop("size")
    with _disable_current_modes():
        down, right = (
            func(torch.eye(old)[None, :, :, None].repeat(1, 1, 1, 2), size=(new, 2), **options)[
                0, :, :, 0
            ]
            for old, new in zip(x.shape[2:], size, strict=True)
        )
    resized: Tensor = down.T @ x @ right
    return resized


class Unsqueezed(TorchFunctionMode):
    """Keeps axes of a size other than 1 in `squeeze`, like PyTorch itself."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kept = _squeeze(func, args, kwargs or {}) if func is Tensor.squeeze else None
        return func(*args, **(kwargs or {})) if kept is None else kept


def _squeeze(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Skip `squeeze` without an axis to remove, which fails in ONNX."""
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    x: Tensor = args[0]
    return x if isinstance(axis, int) and x.shape[axis] != 1 else None


def _unfold(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace `im2col` of adjacent patches, whose reshape is exported incorrectly."""
    size = kwargs.get("kernel_size", args[1] if len(args) > 1 else None)
    if kwargs.get("stride") != size or not isinstance(size, int):
        return None
    batch, channels, height, width = args[0].shape
    patches = args[0].reshape(batch, channels, height // size, size, width // size, size)
    unfolded: Tensor = patches.permute(0, 1, 3, 5, 2, 4)
    return unfolded.reshape(batch, channels * size * size, -1)


def _split(_: Any, args: Any, kwargs: Any) -> tuple[Tensor, ...] | None:
    """Replace a split by lengths by one slice per piece."""
    lengths = args[1] if len(args) > 1 else kwargs.get("split_size_or_sections")
    if not isinstance(lengths, list | tuple):
        return None
    if len(lengths) == 1:  # of any length, which may depend on the images
        return (args[0],)
    axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    ends = [0, *accumulate(lengths)]
    return tuple(args[0].narrow(axis, start, stop - start) for start, stop in pairwise(ends))


def _one_hot(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace `one_hot`, whose symbolic number of classes would become that of the example."""
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if not isinstance(classes, torch.SymInt):
        return None
    every: Any = torch.arange(classes)  # type: ignore[call-overload]  # of a size that is not known yet
    hot: Tensor = (args[0][..., None] == every).long()
    return hot


def _bucketize(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace `bucketize` by the number of boundaries below a value; an equal one counts if `right`."""
    values, boundaries = args
    if not (_is_traced(values) or _is_traced(boundaries)):
        return None
    above = torch.ge if kwargs.get("right") else torch.gt
    counts: Tensor = above(values[..., None], boundaries).sum(-1)
    return counts


def _windows(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace `unfold` of adjacent windows by a reshape."""
    given = {**dict(zip(("dimension", "size", "step"), args[1:], strict=False)), **kwargs}
    axis, size, step = (given[name] for name in ("dimension", "size", "step"))
    if size != step:
        return None
    count = args[0].shape[axis] // size
    whole: Tensor = args[0].narrow(axis, 0, count * size).unflatten(axis, (count, size))
    return whole.movedim(axis + 1, -1)


def _lengths(_: Any, args: Any, kwargs: Any) -> list[None] | None:
    """Return the number of rows of the only image as None: `_split` needs no value for it."""
    return [None] if _is_traced(args[0]) and args[0].shape == (1,) else None


def _numbers(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Keep symbolic sizes in a new tensor, which would get those of the example."""
    values = args[0]
    if not isinstance(values, list) or not any(isinstance(value, torch.SymInt) for value in values):
        return None
    dtype = kwargs.get("dtype", torch.int64)
    return torch.stack([torch.full((), value, dtype=dtype) for value in values])


def _bag(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Replace `embedding_bag`, which would become a loop, by a weighted sum of rows."""
    given = {**dict(zip(("input", "weight"), args, strict=False)), **kwargs}
    index, shares = given["input"], given.get("per_sample_weights")
    if index.ndim != 2 or shares is None or given.get("mode") != "sum":
        return None
    added: Tensor = (given["weight"][index] * shares[..., None]).sum(1)
    return added


_RULES: dict[Any, Callable[[Any, Any, Any], Any]] = {
    torch.conv2d: _convolve,
    torch.conv3d: _convolve,
    Tensor.__setitem__: _set_chosen,
    Tensor.__getitem__: _get_chosen,
    F.interpolate: _resize,
    torch.squeeze: _squeeze,
    Tensor.squeeze: _squeeze,
    F.one_hot: _one_hot,
    F.embedding_bag: _bag,
    F.unfold: _unfold,
    torch.split: _split,
    torch.tensor: _numbers,
    Tensor.split: _split,
    Tensor.tolist: _lengths,
    Tensor.unfold: _windows,
    torch.bucketize: _bucketize,
}
