# SPDX-License-Identifier: Apache-2.0
"""QEfficient's parameters of a sampler -> the `Sampling` of each prompt.

In: arrays with a row for each prompt, under QEfficient's names. Out: values of `qeff_zoo.runtime`, which draws on the
host.
"""

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import PlanError

#: QEfficient's names of what is the same here.
_SAME: Mapping[str, tuple[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "repetition_penalties": ("repetition_penalty", float),
        "presence_penalties": ("presence_penalty", float),
        "temperatures": ("temperature", float),
        "top_ps": ("top_p", float),
        "min_ps": ("min_p", float),
    }
)
_MASKS = "token_bitmasks"
_NAMES = (*_SAME, "top_ks", "random_numbers", _MASKS)


def samplings(given: Mapping[str, Any], prompts: int, most_top_k: int | None = None) -> list[Any]:
    """Read the parameters of a sampler.

    Args:
        given: Arrays, (prompts, 1) or one value for all: `repetition_penalties`, `presence_penalties`, `temperatures`
            (1 if not given), `top_ks`, `top_ps`, `min_ps`; `random_numbers`, (prompts, any), which choose the
            seed: the same numbers give the same answer; and `token_bitmasks`, (prompts, vocabulary), the tokens that
            an answer may have.
        prompts: Number of prompts.
        most_top_k: `max_top_k_ids`: at most that many tokens are drawn from.

    Raises:
        PlanError: One has another name, or another number of rows.
        GenerationError: A value is out of its range.
    """
    import numpy as np

    from qeff_zoo.runtime import Sampling

    rows = {name: np.asarray(value) for name, value in given.items() if value is not None}
    rows = {name: np.atleast_1d(value) for name, value in rows.items()}
    problems = [
        f"`generate`: sampling_params has {name!r}, which means nothing here. Use {', '.join(_NAMES)}."
        for name in rows
        if name not in _NAMES
    ]
    problems += [
        f"`generate`: sampling_params has a {_MASKS!r} that allows no token in row {row}; expected one at least. "
        "Correct it."
        for row, mask in enumerate(rows.get(_MASKS, ()))
        if not np.any(mask)
    ]
    problems += [
        f"`generate`: sampling_params has {len(value)} rows of {name!r} for {prompts} prompts; expected one for each, "
        "or one for all. Correct it."
        for name, value in rows.items()
        if len(value) not in (1, prompts)
    ]
    if problems:
        raise PlanError(problems)
    parameters = []
    for number in range(prompts):
        mine = {name: value[number if len(value) > 1 else 0] for name, value in rows.items()}
        chosen: dict[str, Any] = {"temperature": 1.0}
        chosen |= {
            _SAME[name][0]: _SAME[name][1](np.ravel(value)[0])
            for name, value in mine.items()
            if name in _SAME
        }
        requested = int(np.ravel(mine["top_ks"])[0]) if "top_ks" in mine else 0
        limits = [limit for limit in (requested, most_top_k or 0) if limit > 0]
        chosen["top_k"] = min(limits, default=0)
        if _MASKS in mine and not np.all(mine[_MASKS]):
            chosen["allowed_token_ids"] = tuple(np.flatnonzero(mine[_MASKS]).tolist())
        if "random_numbers" in mine:
            chosen["seed"] = zlib.crc32(np.asarray(mine["random_numbers"], np.float32).tobytes())
        parameters.append(Sampling(**chosen))
    return parameters
