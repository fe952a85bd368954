# SPDX-License-Identifier: Apache-2.0
"""Sources of a package: a checkpoint, with adapters to merge into its weights and the draft heads beside it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from qeff_zoo.checkpoint.adapters.merged import open_merged
from qeff_zoo.checkpoint.draft_heads import Speculator, mtp, open_speculator
from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint


def open_sources(
    model: str,
    adapters: Sequence[str] | None = None,
    speculator: str | None = None,
    *,
    need_weights: bool = True,
    **place: Unpack[Place],
) -> Checkpoint:
    """Open a checkpoint with its adapters and draft heads; downloads their small files.

    Args:
        model: Hub id, folder or GGUF file.
        adapters: Adapters to merge, see `open_merged`.
        speculator: Draft heads, see `with_speculator`.
        need_weights: Whether a checkpoint without usable weights is refused.
        **place: See `open_checkpoint`.

    Raises:
        ZooError: A source is not available, or unusable.
    """
    checkpoint = with_adapters(open_checkpoint(model, need_weights=need_weights, **place), adapters)
    return with_speculator(checkpoint, speculator)


def with_adapters(checkpoint: Checkpoint, requested: Sequence[str] | None) -> Checkpoint:
    """Return a checkpoint with adapters to merge into its weights; see `open_merged`."""
    return replace(checkpoint, merged=open_merged(requested)) if requested else checkpoint


def with_speculator(checkpoint: Checkpoint, requested: str | None) -> Checkpoint:
    """Return a checkpoint with draft heads, see `open_speculator`; "mtp" for a layer of its own.

    Raises:
        SpeculatorError: There are no draft heads of a supported format, or they are damaged.
    """
    if requested is None:
        return checkpoint
    if requested != mtp.MTP:
        return replace(checkpoint, speculator=open_speculator(requested))
    layer = mtp.find(
        checkpoint.name, checkpoint.text_config, checkpoint.tensor_names, checkpoint.config
    )
    own = Speculator(
        name=requested,
        folder=checkpoint.folder,
        files=checkpoint.weight_files,
        settings=layer.settings,
        sources=layer.sources,
        layer=layer.layer,
    )
    return replace(checkpoint, speculator=own)
