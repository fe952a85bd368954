# SPDX-License-Identifier: Apache-2.0
"""The reference's perplexity: transformers' own model, unpatched, in a process of its own.

    python -m qeff_zoo.validation.reference qeff_zoo.validation.reference.perplexity request.json answer.npz

In: a checkpoint's folder, `tokens`, `windows` (start, first, stop), a `batch_size`, and a file for `logits` or None.
Out: `losses`, in nats, one for each target of each window; in the file the logits that predict each. Windows run in
batches of one length, so that nothing is padded.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.validation.reference.loading import load_model
from qeff_zoo.validation.reference.media import of_tokens
from qeff_zoo.validation.reference.process import assert_unpatched
from qeff_zoo.validation.reference.runs import hooked, read_request, tick

_ROWS = 64  # positions whose logits are in float64 at a time


def main(arguments: Sequence[str]) -> None:
    """Answer one request.

    Args:
        arguments: The answer's file.
    """
    request = read_request()
    torch.set_grad_enabled(False)
    model = load_model(request, TEXT_GENERATION, request["rope_factors"])
    tokens = torch.tensor(request["tokens"])
    windows, rows = request["windows"], sum(stop - first for _, first, stop in request["windows"])
    losses: list[Any] = []
    file: Any = None
    for batch in _batches(windows, request["batch_size"]):
        for (_, first, stop), logits in zip(batch, _logits(model, tokens, batch), strict=True):
            if request["logits"]:
                file = _file(request["logits"], rows, logits) if file is None else file
                at = sum(map(len, losses))
                file[at : at + len(logits)] = logits.numpy()
            losses.append(_losses(logits, tokens[first:stop]))
    assert_unpatched()
    about = json.dumps({"class": type(model).__name__})
    np.savez(arguments[0], allow_pickle=False, about=np.array(about), losses=np.concatenate(losses))


def _batches(windows: list[list[int]], size: int) -> list[list[list[int]]]:
    """Cut windows into batches of one length and one number of targets."""
    alike = groupby(windows, lambda window: (window[2] - window[0], window[2] - window[1]))
    groups = [list(group) for _, group in alike]
    return [group[at : at + size] for group in groups for at in range(0, len(group), size)]


def _file(path: str, rows: int, logits: Tensor) -> Any:
    """Return an array in a file, for as many rows of logits."""
    shape = (rows, logits.shape[-1])
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)


def _losses(logits: Tensor, targets: Tensor) -> Any:
    """Return the loss of each target, (targets,) in float64."""
    return np.concatenate(
        [
            nn.functional.cross_entropy(rows.double(), part, reduction="none").numpy()
            for rows, part in zip(logits.split(_ROWS), targets.split(_ROWS), strict=True)
        ]
    )


def _logits(model: Any, tokens: Tensor, batch: list[list[int]]) -> Tensor:
    """Return the logits that predict the targets of windows, (windows, targets, vocabulary)."""
    start, first, _ = batch[0]
    input_ids = torch.stack([tokens[start : stop - 1] for start, _, stop in batch])

    def keep(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (args[0][:, first - start - 1 :],)  # (batch, targets, hidden)

    with hooked(model.get_output_embeddings(), keep):
        logits: Tensor = of_tokens(model)(input_ids=input_ids, use_cache=False).logits
    tick()
    return logits
