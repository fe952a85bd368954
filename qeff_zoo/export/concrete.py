# SPDX-License-Identifier: Apache-2.0
"""While a vision tower is traced: what depends on no input is computed at once, and some calls are made otherwise.

Towers compute much from sizes alone: grids, window indices, tables of positions, with loops and `.tolist()`. All of
that is known while tracing, and only its results become part of the graph; those of more than a million elements would
make the graph large, and stay calls. And a few calls of PyTorch are exported to ONNX wrongly, or not at all: they
become others that compute the same.
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
    """Computes what depends on no input, and rewrites what ONNX does not have."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        rule = _RULES.get(func)
        made = rule(func, args, kwargs) if rule else None
        if made is not None:
            return made
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


# --- calls that are made otherwise: each rule returns what a call gives, or None where it may stay ----------------


def _convolve(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """A convolution of one patch a row is a product; `conv3d` without a bias would get one of a wrong shape."""
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
    """Rows chosen by what is known have known places."""
    values, where = args
    if not _is_choice(where) or _is_traced(where) or not _is_traced(values):
        return None
    with _disable_current_modes():
        places = where.nonzero(as_tuple=True)
    found: Tensor = values[places]
    return found


def _resize(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Antialiased interpolation has no op in ONNX: it is a matrix for each axis."""
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
    """Leaves an axis where there is more than one of it, which PyTorch does too."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kept = _squeeze(func, args, kwargs or {}) if func is Tensor.squeeze else None
        return func(*args, **(kwargs or {})) if kept is None else kept


def _squeeze(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """ONNX fails where there is nothing to squeeze."""
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    x: Tensor = args[0]
    return x if isinstance(axis, int) and x.shape[axis] != 1 else None


def _unfold(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Patches side by side need no `im2col`, whose reshape is exported wrongly."""
    size = kwargs.get("kernel_size", args[1] if len(args) > 1 else None)
    if kwargs.get("stride") != size or not isinstance(size, int):
        return None
    batch, channels, height, width = args[0].shape
    patches = args[0].reshape(batch, channels, height // size, size, width // size, size)
    unfolded: Tensor = patches.permute(0, 1, 3, 5, 2, 4)
    return unfolded.reshape(batch, channels * size * size, -1)


def _split(_: Any, args: Any, kwargs: Any) -> tuple[Tensor, ...] | None:
    """Pieces of given lengths are cut one by one."""
    lengths = args[1] if len(args) > 1 else kwargs.get("split_size_or_sections")
    if not isinstance(lengths, list | tuple):
        return None
    if len(lengths) == 1:  # whatever its length, which may depend on what the pictures are
        return (args[0],)
    axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    ends = [0, *accumulate(lengths)]
    return tuple(args[0].narrow(axis, start, stop - start) for start, stop in pairwise(ends))


def _one_hot(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The number of classes may be one that is not known yet, and would become that of the example."""
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if not isinstance(classes, torch.SymInt):
        return None
    every: Any = torch.arange(classes)  # type: ignore[call-overload]  # of a size that is not known yet
    hot: Tensor = (args[0][..., None] == every).long()
    return hot


def _bucketize(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The bucket of a value is the number of boundaries below it; where a value is one, that counts if `right`."""
    values, boundaries = args
    if not (_is_traced(values) or _is_traced(boundaries)):
        return None
    above = torch.ge if kwargs.get("right") else torch.gt
    found: Tensor = above(values[..., None], boundaries).sum(-1)
    return found


def _windows(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Windows side by side are a shape."""
    given = {**dict(zip(("dimension", "size", "step"), args[1:], strict=False)), **kwargs}
    axis, size, step = (given[name] for name in ("dimension", "size", "step"))
    if size != step:
        return None
    count = args[0].shape[axis] // size
    whole: Tensor = args[0].narrow(axis, 0, count * size).unflatten(axis, (count, size))
    return whole.movedim(axis + 1, -1)


def _lengths(_: Any, args: Any, kwargs: Any) -> list[None] | None:
    """Number of rows of the only image: `_split` needs no input for it."""
    return [None] if _is_traced(args[0]) and args[0].shape == (1,) else None


def _numbers(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """A tensor of sizes that are not known yet would take those of the example."""
    values = args[0]
    if not isinstance(values, list) or not any(isinstance(one, torch.SymInt) for one in values):
        return None
    dtype = kwargs.get("dtype", torch.int64)
    return torch.stack([torch.full((), one, dtype=dtype) for one in values])


def _bag(_: Any, args: Any, kwargs: Any) -> Tensor | None:
    """Rows of a table, weighed and added up, would be a loop."""
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
