# SPDX-License-Identifier: Apache-2.0
"""QEfficient's folders of compiled models, whose names have the sizes: `qeff_models/MODEL/qpc_…/qpcs`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from qeff_zoo.package.manifest import MANIFEST_NAME

#: SDK, cores, batch, sizes, then batch slots (in older names an F before BS), devices, formats.
_NAMED = re.compile(
    r"qpc_(?:qnn_)?\d+cores_(?P<batch>\d+)(?P<continuous>F?)bs_(?P<prompt_len>\d+)pl_(?P<ctx_len>\d+)cl_"
    r"(?:-?\d+mos_(?:(?P<slots>\d+)fbs_)?)?",
    re.IGNORECASE,
)
_QPC = "programqpc.bin"


def get_qpc_dir_path(
    model_card_name: str,
    num_cores: int,
    mos: int,
    batch_size: int,
    prompt_len: int,
    ctx_len: int,
    mxfp6: bool,
    mxint8: bool,
    device_group: Sequence[int] | None,
    full_batch_size: int | None,
    num_speculative_tokens: int | None = None,
    enable_qnn: bool | None = False,
) -> str:
    """Return the folder in which `compile(…, qpc_path=os.path.dirname(FOLDER))` puts a package.

    Args:
        model_card_name: Hub id of the model.
        num_cores: Number of cores of each card.
        mos: Degree to which weights are split over the cores.
        batch_size: Batch size without continuous batching.
        prompt_len: Length of a prefill call.
        ctx_len: Length of the context.
        mxfp6: Whether matrices are in MXFP6.
        mxint8: Whether KV states are in MXINT8.
        device_group: Cards that the model is sliced over.
        full_batch_size: Batch slots of continuous batching; None without.
        num_speculative_tokens: Drafted tokens that one decode call checks.
        enable_qnn: Whether the QNN SDK compiles.
    """
    parts = [
        "qpc_qnn" if enable_qnn else "qpc",
        f"{num_cores}cores_{batch_size}bs_{prompt_len}pl_{ctx_len}cl_{mos}mos",
        "" if full_batch_size is None else f"{full_batch_size}fbs",
        "" if num_speculative_tokens is None else f"{num_speculative_tokens}nst",
        f"{1 if device_group is None else len(device_group)}devices",
        "mxfp6" if mxfp6 else "fp16",
        "mxint8" if mxint8 else "",
    ]
    return os.fspath(Path("qeff_models") / model_card_name / "_".join(filter(None, parts)) / "qpcs")


def sizes_of(path: str) -> Mapping[str, int] | None:
    """Return the sizes in a path of QEfficient's, as arguments of `find_built`; None if the path has none.

    Args:
        path: The path.
    """
    match = _NAMED.search(path)
    if match is None:
        return None
    slots = match["slots"] or (match["batch"] if match["continuous"] else None)
    batch = ("full_batch_size", slots) if slots else ("batch_size", match["batch"])
    sizes = {
        "prefill_seq_len": match["prompt_len"],
        "ctx_len": match["ctx_len"],
        batch[0]: batch[1],
    }
    return {name: int(size) for name, size in sizes.items()}


def qpc_exists(qpc_dir_path: str) -> bool:
    """Return whether a folder has a package, or a program that QEfficient compiled.

    Args:
        qpc_dir_path: The folder.
    """
    return any(Path(qpc_dir_path, name).is_file() for name in (MANIFEST_NAME, _QPC))


def check_and_assign_cache_dir(local_model_dir: str | None, cache_dir: str | None) -> str | None:
    """Return the cache of downloads; None for the Hub's own, and for a model that is in a folder.

    Args:
        local_model_dir: Folder of the model.
        cache_dir: Cache of downloads.
    """
    return None if local_model_dir is not None else cache_dir or None
