# SPDX-License-Identifier: Apache-2.0
"""Last steps of a traced program before ONNX: removal of casts without effect, and of writes in place.

`torch.onnx.export` has PyTorch trace a program a second time for that, which takes as long as all the rest. Here the
few affected nodes are replaced in the graph; so is a write to a slice. A program with a more complex node is left to
PyTorch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.multiprocessing.reductions import StorageWeakRef

_ATEN = torch.ops.aten
_CASTS = {_ATEN.to.dtype, _ATEN.to.dtype_layout, _ATEN.to.device}
#: Ops with another name or meaning in the ONNX exporter.
_OTHER_NAMES = {
    _ATEN.__and__.Tensor: _ATEN.bitwise_and.Tensor,
    _ATEN.item.default: _ATEN._local_scalar_dense.default,
    _ATEN.__or__.Tensor: _ATEN.bitwise_or.Tensor,
    _ATEN.min.other: _ATEN.minimum.default,
    _ATEN.max.other: _ATEN.maximum.default,
}
_IN_PLACE = {
    _ATEN.add_.Tensor: _ATEN.add.Tensor,
    _ATEN.clamp_.default: _ATEN.clamp.default,
    _ATEN.div_.Tensor: _ATEN.div.Tensor,
    _ATEN.fill_.Tensor: _ATEN.fill.Tensor,
    _ATEN.index_put_.default: _ATEN.index_put.default,
    _ATEN.masked_fill_.Scalar: _ATEN.masked_fill.Scalar,
    _ATEN.mul_.Tensor: _ATEN.mul.Tensor,
    _ATEN.scatter_.src: _ATEN.scatter.src,
    _ATEN.scatter_.value: _ATEN.scatter.value,
}


def simplify(program: ExportedProgram) -> bool:
    """Make a program's graph functional if that is simple.

    Args:
        program: Traced program; its graph is changed, and computes the same.

    Returns:
        Whether there are no writes in place any more.
    """
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is _ATEN._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif node.target is _ATEN.detach_.default:
            _remove(program, node)
        elif node.target in _CASTS:
            _cast(program, node)
        elif node.target in _OTHER_NAMES:
            node.target = _OTHER_NAMES[node.target]
        elif _is_matrix_transpose(node):
            node.target, node.args = _ATEN.transpose.int, (_first(node), -2, -1)
        elif node.target is _ATEN.new_empty.default:
            _join(program, node)
        elif _has_no_padding(node):
            node.target = _ATEN.conv2d.default
        elif node.target in _IN_PLACE and _keeps_type(node):
            _write_apart(program, node)
        elif _changes_nothing(node):
            _remove(program, node)
    return not any(_writes(node) for node in graph.nodes)


def _cast(program: ExportedProgram, node: Node) -> None:
    """Remove a cast to the type of the value, or rename it to an op that casts."""
    before, dtype = _first(node), node.meta["val"].dtype
    copies = True in node.args or node.kwargs.get("copy")  # `non_blocking` is taken for that too
    if before.meta["val"].dtype == dtype and not copies:
        _remove(program, node)
    else:
        node.target, node.args, node.kwargs = _ATEN._to_copy.default, (before,), {"dtype": dtype}


def _is_matrix_transpose(node: Node) -> bool:
    if node.target is _ATEN.numpy_T.default:
        return bool(node.meta["val"].ndim == 2)
    return node.target is _ATEN.mT.default


def _has_no_padding(node: Node) -> bool:
    """Whether a convolution has the default padding of the overload by name, `valid`: 0."""
    is_by_name = node.target is _ATEN.conv2d.padding
    return is_by_name and len(node.args) < 5 and "padding" not in node.kwargs


def _join(program: ExportedProgram, empty: Node) -> None:
    """Concatenate values that are copied into adjacent slices of an empty tensor, before its first reader."""
    slices = [user for user in empty.users if user.target is _ATEN.slice.Tensor]
    copies = [user for piece in slices for user in piece.users]
    readers = [user for user in empty.users if user not in slices]
    if not copies or not _are_adjacent(slices, copies):
        return
    # Before the last copy nothing may read the tensor, nor write to the copied values.
    first, last = min(copies), max(copies)
    written = [node for node in empty.graph.nodes if _writes(node) and node not in copies]
    if any(node < last for node in readers) or any(first < node < last for node in written):
        return
    pieces, axis = [node.args[1] for node in copies], slices[0].args[1]
    with empty.graph.inserting_after(last):
        joined = empty.graph.call_function(_ATEN.cat.default, (pieces, axis))
    joined.meta = dict(empty.meta)
    _replace(program, empty, joined, readers)
    for node in [*copies, *slices, empty]:
        empty.graph.erase_node(node)


def _are_adjacent(slices: Sequence[Node], copies: Sequence[Node]) -> bool:
    """Whether slices are whole copies of values of their shape and type, in order, from the start to the end."""
    if len(slices) != len(copies):
        return False
    axis: Any = slices[0].args[1]
    end: Any = 0
    for piece, copy in zip(slices, copies, strict=True):
        along, start, stop, *step = piece.args[1:]
        into, value = copy.args[:2]
        whole = copy.target is _ATEN.copy_.default and into is piece and isinstance(value, Node)
        if not whole or not _alike(piece, value) or step or (along, start) != (axis, end):
            return False
        end = stop
    size = _first(slices[0]).meta["val"].shape[axis]
    return isinstance(end, int) and isinstance(size, int) and end >= size


def _alike(one: Node, other: Any) -> bool:
    first, second = one.meta["val"], other.meta["val"]
    return first.dtype == second.dtype and str(first.shape) == str(second.shape)


def _keeps_type(node: Node) -> bool:
    """Whether a new value would have the type of the one that a node writes to."""
    values = [value.meta.get("val") for value in node.all_input_nodes]
    types = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return types <= {_first(node).meta["val"].dtype, torch.int64, torch.bool}


def _write_apart(program: ExportedProgram, node: Node) -> None:
    """Let a node that wrote in place return a new value for all later nodes, unless these read it by other names."""
    before = _first(node)
    whole = _first(before) if before.target is _ATEN.slice.Tensor and not before.kwargs else before
    names = {whole, *(one for one in _sharing_memory(before) if one < node)}
    later = {name: [user for user in name.users if user > node] for name in names}
    if any(name.op != "call_function" for name in names):
        return
    if any(later[name] for name in names - {before, whole}):
        return
    node.target = _IN_PLACE[node.target]  # type: ignore[index]
    if later[whole] and whole is not before:
        with node.graph.inserting_after(node):
            arguments = (whole, node, *before.args[1:])
            written = node.graph.call_function(_ATEN.slice_scatter.default, arguments)
        written.meta = dict(whole.meta)
        _replace(program, whole, written, later[whole])
    _replace(program, before, node, later[before])


def _sharing_memory(node: Node) -> set[Node]:
    """Return a node and all whose results share memory with its result, as they did in the trace."""
    memory, sharing, left = _memory(node), {node}, [node]
    while left:
        one = left.pop()
        # Outside of training dropout returns its input, though not in a trace.
        if one.target is _ATEN.dropout.default:
            memory |= _memory(one) | _memory(_first(one))
        more = [near for near in one.users if near.target is _ATEN.dropout.default]
        more += [near for near in (*one.all_input_nodes, *one.users) if memory & _memory(near)]
        left += {*more} - sharing
        sharing.update(more)
    return {one for one in sharing if one.op != "output"}


def _memory(node: Node) -> set[int]:
    """Return the identities of the memory of a node's tensors: no schema has it that `type_as` may return its input."""
    result = node.meta.get("val")
    values = result if isinstance(result, list | tuple) else [result]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {StorageWeakRef(value.untyped_storage()).cdata for value in tensors}


def _changes_nothing(node: Node) -> bool:
    """Whether a node copies a value to where it was written already, as Python does after `x[1:] += y`."""
    into, value = node.args[:2] if node.target is _ATEN.copy_.default else (None, None)
    if not isinstance(into, Node) or into.target is not _ATEN.slice.Tensor or into.kwargs:
        return False
    whole, *where = into.args
    scatter = _ATEN.slice_scatter.default
    return isinstance(whole, Node) and whole.target is scatter and whole.args[1:] == (value, *where)


def _remove(program: ExportedProgram, node: Node) -> None:
    _replace(program, node, _first(node), list(node.users))
    node.graph.erase_node(node)


def _replace(program: ExportedProgram, old: Node, new: Node, users: list[Node]) -> None:
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user in users)
    if any(user.op == "output" for user in users):
        program.graph_signature.replace_all_uses(old.name, new.name)


def _first(node: Node) -> Node:
    first = node.args[0]
    assert isinstance(first, Node)
    return first


def _writes(node: Node) -> bool:
    schema = _schema(node)
    return schema is not None and bool(schema.is_mutable)


def _schema(node: Node) -> Any:
    """Return the schema of a PyTorch operator; None for an operator on numbers and for no operator."""
    return getattr(node.target, "_schema", None)
