# SPDX-License-Identifier: Apache-2.0
"""Faults that single stages of the ladder are there for, as the reference makes them on purpose.

A stage of several calls must notice a position that is off by one, one of padded or reused rows a row of the cache too
many, and one beyond the window a window of another size. Each fault changes the inputs, or one setting, of an
unpatched Hugging Face model; the record quotes the error that it causes beside the error that is allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from qeff_zoo.validation.trial.cases import Stage

#: Stages whose rows are padded or used again.
_ROWS = ("padded_batch", "continuous_batching")
_WINDOW = "window"
#: Stages whose faults others are there for, which read fewer tokens.
_REPEATED = ("comp_ctx_lengths_", "num_speculative_tokens_", "ctx_len", "first_")


#: Kinds of faults, see `Fault`.
FaultKind: TypeAlias = Literal[
    "position", "extra", "window", "timestep", "guidance", "prompts", "scale", "strength", "mask", "features",
    "boundary", "second_guidance", "image",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fault of one stage.

    Args:
        stage: Name of the stage.
        kind: "position": positions are one too high from some token on; "extra": one more token is visible before all
            others; "window": sliding windows have one token less. Of images: "timestep": timesteps are one too high;
            "guidance": there is none; "prompts": prompt and negative prompt are exchanged; "scale": that of the VAE is
            1; "strength": an initial image is changed by one step more; "mask": it is inverted. Of videos: "features":
            frames are decoded without those before; "boundary": the second transformer has all steps;
            "second_guidance": its guidance is that of the first; "image": the first one is inverted.
        words: The fault, for people.
        starts: First moved position of each sequence.
        stops: End of each sequence in the stage.
        token: The one that is visible.
    """

    stage: str
    kind: FaultKind
    words: str
    starts: Mapping[int, int] = field(default_factory=dict)
    stops: Mapping[int, int] = field(default_factory=dict)
    token: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Fault":
        """Read JSON, whose keys are text."""
        numbers = {
            name: {int(number): place for number, place in entry[name].items()}
            for name in ("starts", "stops")
        }
        return cls(**{**entry, **numbers})


def of_stages(stages: Sequence[Stage]) -> list[Fault]:
    """Return the faults that a decoder's stages are there for."""
    return [
        fault
        for stage in stages
        if not stage.name.startswith(_REPEATED)
        for fault in _of_stage(stage)
    ]


def _of_stage(stage: Stage) -> list[Fault]:
    starts: dict[int, int] = {}
    stops: dict[int, int] = {}
    for span in (span for call in stage.calls for span in call.spans):
        stops[span.sequence] = max(stops.get(span.sequence, 0), span.stop)
        if span.start:
            starts[span.sequence] = min(starts.get(span.sequence, span.start), span.start)
    if stage.name == _WINDOW:
        return [
            Fault(stage=stage.name, kind="window", words="a window of one token less", stops=stops)
        ]
    if stage.name in _ROWS:
        words = "a stale row seen" if stage.name == _ROWS[1] else "a padded row seen"
        return [Fault(stage=stage.name, kind="extra", words=words, stops=stops)]
    if not starts:
        return []
    stops = {number: stop for number, stop in stops.items() if number in starts}
    return [
        Fault(
            stage=stage.name,
            kind="position",
            words="positions off by one",
            starts=starts,
            stops=stops,
        )
    ]
