# SPDX-License-Identifier: Apache-2.0
"""What a package chooses: the experts of a token, the keys that an indexer keeps.

A correct router may choose differently from the reference if two scores differ by less than the noise, and all later
values then differ. So programs return their choices as well, token by token, and the reference, which compares its own
scores, follows those that noise can explain (see `qeff_zoo.validation.reference.routing`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qeff_zoo.runtime.decoding.token_axis import by_token
from qeff_zoo.runtime.program import Array

#: What outputs are named after that are choices.
_KINDS = ("topk.", "max.")


@dataclass
class Run:
    """A sequence that a row began, and what was chosen for its tokens.

    Args:
        sequence: Number of the sequence.
        chosen: Indices by choice, of every call (tokens, slots, k); a slot is a head or a group.
    """

    sequence: int
    chosen: dict[str, list[Array]] = field(default_factory=dict)

    def note(self, chosen: Mapping[str, Array]) -> None:
        """Add the choices for the next tokens."""
        for name, indices in chosen.items():
            self.chosen.setdefault(name, []).append(indices)

    def all(self) -> dict[str, Array]:
        """Return by choice (tokens, slots, k)."""
        return {name: np.concatenate(found) for name, found in self.chosen.items()}


def read_choices(outputs: Mapping[str, Array], batch: int, width: int) -> dict[str, Array]:
    """Return by choice (batch, width, slots, k), of those that are made for every token of a call.

    Args:
        outputs: Outputs of a program that returns its routing, see `qeff_zoo.targets.base.Target.open`.
        batch: Rows of the call.
        width: Tokens of each.
    """
    choices = {}
    for name in (name for name in outputs if name.startswith(_KINDS)):
        indices = outputs[name].astype(np.int32)
        if name.startswith("max.") and indices.shape[-1:] != (1,):
            indices = indices[..., None]
        by_tokens = by_token(indices, batch, width)
        if by_tokens is not None:
            choices[name] = by_tokens
    return choices


def members(indices: Array, options: int) -> Array:
    """Return a mask of the chosen options.

    Args:
        indices: (…, k); those that are not options count for nothing.
        options: n.

    Returns:
        (…, n), bool.
    """
    kept = np.where((indices >= 0) & (indices < options), indices, options)
    mask = np.zeros((*indices.shape[:-1], options + 1), bool)
    np.put_along_axis(mask, kept, True, axis=-1)
    return mask[..., :-1]
