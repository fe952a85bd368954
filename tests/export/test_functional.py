# SPDX-License-Identifier: Apache-2.0
"""A traced program in which nothing is written in place computes the same; what is not simple is left to PyTorch."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch.export import ExportedProgram

from qeff_zoo.export import exporter, promotion
from qeff_zoo.export.functional import simplify

pytestmark = pytest.mark.turns(2)

Tensor = torch.Tensor
ROWS, COLUMNS = 3, 6


def divides(x: Tensor) -> tuple[Tensor, ...]:
    shares = torch.exp(x)
    shares /= shares.sum(-1, keepdim=True)
    return shares, shares + 1


def divides_what_was_chosen(x: Tensor) -> tuple[Tensor, ...]:
    shares, chosen = x.topk(2)
    shares.div_(shares.sum(-1, keepdim=True))
    return shares, chosen


def answers_what_was_written(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y.add_(1).mul_(3).clamp_(-1, 1)
    return (y,)


def scatters(x: Tensor) -> tuple[Tensor, ...]:
    mask = torch.zeros_like(x)
    mask.scatter_(1, x.topk(2).indices, 1)
    return (x.masked_fill(mask.bool(), 0), mask)


def fills(x: Tensor) -> tuple[Tensor, ...]:
    return ((x + 1).masked_fill_(x > 0, -2.0),)


def fills_a_slice(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[..., 1:3] = 4.0
    return (y + 1,)


def writes_where(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[x > 0] = 4.0
    return y, y + 1


def convolves_without_padding(x: Tensor) -> tuple[Tensor, ...]:
    kernel = torch.ones(1, 1, 1, 3)
    return (torch.nn.functional.conv2d(x[:, None, None], kernel, stride=2, padding="valid"),)


def normalizes_weights(x: Tensor) -> tuple[Tensor, ...]:
    return (torch._weight_norm(x + 5, x[:, :1], 0),)


def names_places(x: Tensor) -> tuple[Tensor, ...]:
    rows, columns = torch.nonzero(x > 0, as_tuple=True)
    (all_places,) = torch.nonzero(x.flatten() > 0, as_tuple=True)
    return (rows * 10 + columns - all_places,)


def casts(x: Tensor) -> tuple[Tensor, ...]:
    same = x.to(torch.float32)
    return same, (same > 0).to(torch.float32), x.to(torch.int64)


def names_of_its_own(x: Tensor) -> tuple[Tensor, ...]:
    small, large = torch.min(x, -x), torch.max(x, -x)
    both = (x > 0) & (x < 1) | (x > 2)
    return small, large, both, x.T, x.mT


def slices_by_a_tensor(x: Tensor) -> tuple[Tensor, ...]:
    return (x[: torch.tensor(min(x.shape[0], 4))] * 2,)


def calls_what_is_unknown(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.nn.functional.softshrink(x * 2),)  # which ONNX knows decomposed only


def calls_what_is_unknown_on_a_slice(x: Tensor) -> tuple[Tensor, ...]:
    return calls_what_is_unknown(*slices_by_a_tensor(x))


def joins(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.new_empty(x.shape[0], 8)
    whole[..., 5:] = x[..., :3]
    whole[..., :5] = x[..., 1:]
    return whole, whole * 2


def joins_in_order(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.new_empty(x.shape[0], 8)
    whole[..., :5] = x[..., 1:]
    whole[..., 5:] = x[..., :3]
    return (whole,)


def writes_through_a_view(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[:, :2].mul_(5)
    return (y,)


def adds_to_a_slice(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).contiguous()
    first = y[..., :1].clone()
    y[..., 1:] += first
    y[..., 1:5:2] *= 3
    return y, first


def writes_to_a_row(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[0].mul_(5)
    return (y,)


def reads_a_slice_of_a_written_slice(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    recorded = y[..., 2:]
    y[..., 1:].mul_(5)
    return y, recorded


def writes_to_a_slice_of_its_input(x: Tensor) -> tuple[Tensor, ...]:
    x[..., 1:].mul_(5)
    return (x + 1,)


def writes_to_a_view(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).T.type_as(x)
    y += x.T
    y.view_as(y).contiguous().masked_fill_(y > 1, -2.0)
    return (y.contiguous().masked_fill_(y > 0, 3.0),)


def writes_to_what_is_its_argument(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    same = torch.nn.functional.dropout(y, training=False)
    same += 1
    return y, same * 2


def writes_what_is_another_s_argument(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    same = torch.nn.functional.dropout(y, training=False)
    y += 1
    return y, same * 2


def writes_what_a_view_shows(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    recorded = y.view(-1)
    y.mul_(5)
    return y, recorded


def overlaps(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.new_empty(x.shape[0], 6)
    whole[..., :4] = x[..., :4]
    whole[..., 3:] = x[..., 3:] * 2
    return (whole,)


def broadcasts(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.new_empty(x.shape[0], 6)
    whole[..., :4] = x[..., :4]
    whole[..., 4:] = x[..., :1]
    return (whole,)


def writes_between(x: Tensor) -> tuple[Tensor, ...]:
    whole, piece = x.new_empty(x.shape[0], 4), x[..., :2] * 2
    whole[..., :2] = piece
    piece.add_(1)
    whole[..., 2:] = piece
    return (whole,)


def reads_between(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.new_empty(x.shape[0], 6)
    whole[..., :6] = x
    first = whole + 1
    whole[..., :6] = x * 2
    return whole, first


def widens(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).to(torch.bfloat16)
    y.add_(x)
    return (y,)


def copies(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    apart = y.to(torch.float32, copy=True)
    apart.add_(1)
    return y, apart


SIMPLE = (
    divides,
    divides_what_was_chosen,
    answers_what_was_written,
    scatters,
    fills,
    fills_a_slice,
    writes_where,
    casts,
    names_of_its_own,
    slices_by_a_tensor,
    joins_in_order,
    copies,
    broadcasts,
    adds_to_a_slice,
    writes_to_a_view,
)
LEFT = (
    joins,
    writes_through_a_view,
    writes_to_a_slice_of_its_input,
    writes_to_a_row,
    reads_a_slice_of_a_written_slice,
    writes_to_what_is_its_argument,
    writes_what_is_another_s_argument,
    writes_what_a_view_shows,
    overlaps,
    reads_between,
    writes_between,
    widens,
)


def traced(
    compute: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor
) -> torch.export.ExportedProgram:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return compute(x)

    rows = {0: torch.export.Dim("rows")}
    return torch.export.export(Module(), (x,), dynamic_shapes=(rows,), strict=False)


@pytest.mark.parametrize("compute", [*SIMPLE, *LEFT], ids=lambda one: one.__name__)
def test_a_program_computes_the_same(compute: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    program = traced(compute, torch.randn(ROWS, COLUMNS, generator=generator))
    assert simplify(program) == (compute in SIMPLE)
    program.graph.lint()
    for size in (ROWS, ROWS + 2):
        x = torch.randn(size, COLUMNS, generator=generator)
        for expected, got in zip(compute(x.clone()), program.module()(x.clone()), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "compute",
    [
        slices_by_a_tensor,
        calls_what_is_unknown,
        calls_what_is_unknown_on_a_slice,
        writes_to_a_row,
        adds_to_a_slice,
        fills_a_slice,
        writes_where,
    ],
    ids=lambda one: one.__name__,
)
def test_programs_simple_or_not_are_translated(
    compute: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(translated(compute, x))
    got, *_ = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), compute(x)[0])


@pytest.mark.parametrize(
    "compute",
    [convolves_without_padding, normalizes_weights, names_places],
    ids=lambda one: one.__name__,
)
def test_undecomposed_operators_are_translated(
    compute: Callable[[Tensor], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExportedProgram, "run_decompositions", pytest.fail)
    test_programs_simple_or_not_are_translated(compute)


def translated(compute: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> bytes:
    names = SimpleNamespace(input_names=["x"], output_names=None)

    def export() -> torch.export.ExportedProgram:
        program = traced(compute, x.clone())
        program._example_inputs = None
        return program

    with exporter._quiet():
        model = exporter._translate(export, names)  # type: ignore[arg-type]
    content: bytes = ir.to_proto(model).SerializeToString()
    return content


def mixes_types(x: Tensor) -> tuple[Tensor, ...]:
    some = x.to(torch.float16) * (x > 0)  # a truth value becomes a half, a half becomes a float
    counts = torch.arange(x.shape[0])[:, None] + (x > 1)
    return (torch.where(x > 0, some, 2.0) + counts / 3 + x * counts**2 + x.shape[0] * 0.5,)


def test_operands_are_cast_as_by_an_exporter_that_runs_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    got = translated(mixes_types, x)
    (answer,) = onnxruntime.InferenceSession(got).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(answer), mixes_types(x)[0], rtol=1e-3, atol=1e-3)
    monkeypatch.setattr(promotion, "as_traced", nullcontext)
    assert got == translated(mixes_types, x)
