# SPDX-License-Identifier: Apache-2.0
"""Rotation of a model's keys by position, measured by running a token at several positions, without its config.

A token at position 0 attends only to itself. At position p it attends to the same values if all positions before it
hold its own value, so that every layer has the same inputs as at position 0, and its keys are those of position 0,
rotated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoding.call_inputs import AXES, Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.program import Array

_KEY, _VALUE = "past_key.", "past_value."
_TOKENS = 4
_FARTHEST = 512  # largest measured position: rounding of its angle is small beside the angle
_CLOSE = 0.02  # tolerance, as a share of a key's length: int8 and int4 activations are rounded
#: Config fields that scale queries by position: documents then differ by position.
_SCALED = ("attn_temperature_tuning", "llama_4_scaling_beta", "attn_scale")


@dataclass(frozen=True)
class Turn:
    """Rotary embedding.

    Args:
        interleaved: Whether pairs are neighbors; else a pair has one number of each half of the rotated ones.
        frequencies: Angle from one position to the next, for each pair (pairs,); empty if keys do not rotate.
    """

    interleaved: bool
    frequencies: Array

    def pairs(self, keys: Array) -> Array:
        """Return the rotated numbers as complex ones, (…, pairs)."""
        count = len(self.frequencies)
        turning = keys[..., : 2 * count].astype(np.float64)
        if self.interleaved:
            return turning[..., 0::2] + 1j * turning[..., 1::2]
        return turning[..., :count] + 1j * turning[..., count:]

    def __call__(self, keys: Array, by: int) -> Array:
        """Rotate keys (…, head size) by a number of positions."""
        count = len(self.frequencies)
        turned = self.pairs(keys) * np.exp(1j * by * self.frequencies)
        rotated = keys.copy()
        if self.interleaved:
            rotated[..., 0 : 2 * count : 2], rotated[..., 1 : 2 * count : 2] = (
                turned.real,
                turned.imag,
            )
        else:
            rotated[..., :count], rotated[..., count : 2 * count] = turned.real, turned.imag
        return rotated

    def explains(self, keys: Mapping[int, Array]) -> bool:
        """Whether keys by position are those of position 0, rotated."""
        return all(_off(self(keys[0], at), key) <= _CLOSE for at, key in keys.items())


def turns_of(decoder: Decoder, folder: Path) -> dict[str, Turn]:
    """Return the rotation of each state's keys by name; batch slot 0 must be free.

    Args:
        decoder: Decoder of the package.
        folder: Folder of the package.

    Raises:
        GenerationError: If keys do not rotate, or states are not keys and values of every position.
    """
    if reason := _obstacle(decoder, folder):
        raise _refusal(folder, reason)
    states = _run(decoder)
    known: list[Turn] = []
    turns: dict[str, Turn] = {}
    for name, keys in states.items():
        if not name.startswith(_KEY):
            if any(_off(keys[0], value) > _CLOSE for value in keys.values()):
                raise _refusal(
                    folder, f"its {name!r} depends on more than a token and those before it"
                )
            continue
        turn = next((turn for turn in known if turn.explains(keys)), None)
        if turn is None:
            turn = _learn(keys)
            known.append(turn)
        if not turn.explains(keys):
            raise _refusal(folder, f"its {name!r} does not turn with the position by plain RoPE")
        turns[name] = turn
    if not any(len(turn.frequencies) for turn in known):
        raise _refusal(folder, "its keys do not turn with the position (ALiBi, or none)")
    return turns


def _refusal(folder: Path, reason: str) -> GenerationError:
    return GenerationError(
        f"Package {str(folder)!r} cannot combine documents: {reason}. Expected keys and values of all positions in "
        "float32, with plain RoPE. Run it without blocks."
    )


def _obstacle(decoder: Decoder, folder: Path) -> str | None:
    """Return an obstacle that is known without running anything."""
    states = decoder.program.states
    if not decoder.movable:
        return "its device keeps the states"
    if kinds := sorted(
        {state.kind for state in states if state.kind != "growing" or not state.grows}
    ):
        return f"it has {' and '.join(kinds)} states"
    if types := {str(state.dtype) for state in decoder.states.values()} - {"float32"}:
        return f"it retains keys and values in {', '.join(sorted(types))}, which turning would round again"
    if AXES in decoder.program.inputs:
        return "a token has several positions (M-RoPE)"
    config = read_json(folder / "config.json")
    for part in (config, *(part for part in config.values() if isinstance(part, dict))):
        if scaled := next((name for name in _SCALED if part.get(name)), None):
            return f"its queries are scaled by their position ({scaled})"
        if window := _window(part):
            return f"some of its layers see a window of the text alone ({window})"
    if decoder.sizes.ctx_len < 4:
        return f"its context has {decoder.sizes.ctx_len} positions"
    return None


def _window(config: Mapping[str, Any]) -> str | None:
    """Return the sliding window of a config, which only masks apply if the cache has the whole context."""
    if kinds := config.get("layer_types"):
        return next((kind for kind in kinds if kind != "full_attention"), None)
    slides = config.get("sliding_window") and config.get("use_sliding_window", True)
    return "sliding_window" if slides else None


def _run(decoder: Decoder) -> dict[str, dict[int, Array]]:
    """Return the values of every state for tokens at each position, (tokens, heads, size)."""
    most = min(_FARTHEST, decoder.sizes.ctx_len - 1)
    positions = sorted({0, most, *(1 << power for power in range(most.bit_length()))})
    values: dict[str, dict[int, list[Array]]] = {name: {} for name in decoder.states}
    for number in range(1, _TOKENS + 1):
        token = [number * decoder.vocab_size // (_TOKENS + 1)]
        first: Mapping[str, Array] = {}
        for at in positions:
            if at:
                before = {name: _before(name, first[name], at) for name in first}
                decoder.restore(0, 0, before, latest=True)
            decoder.prefill({0: Piece(token, at)})
            saved = decoder.save(0, at, at + 1)
            first = first or saved
            for name, state in saved.items():
                values[name].setdefault(at, []).append(state[:, 0])
    return {
        name: {at: np.stack(some) for at, some in by_place.items()}
        for name, by_place in values.items()
    }


def _before(name: str, first: Array, rows: int) -> Array:
    """Return positions filled with a token's value, and with keys that no token attends to."""
    filled = np.repeat(first, rows, axis=1)
    return filled if name.startswith(_VALUE) else np.zeros_like(filled)


def _learn(keys: Mapping[int, Array]) -> Turn:
    """Return the rotated pairs, from one step, and their frequencies, from steps that double."""
    best = min(_candidates(keys), key=lambda one: _off(one(keys[0], 1), keys[1]))
    angles = best.frequencies
    zero, at = best.pairs(keys[0]), 1
    for farther in sorted(place for place in keys if place > 1):
        expected = angles * (farther / at)
        measured = _angles(zero, best.pairs(keys[farther]))
        angles = expected + np.angle(np.exp(1j * (measured - expected)))
        at = farther
    return Turn(best.interleaved, angles / at)


def _candidates(keys: Mapping[int, Array]) -> Iterator[Turn]:
    for size in range(0, keys[0].shape[-1] + 1, 2):
        for interleaved in (False, True):
            shape = Turn(interleaved, np.zeros(size // 2))
            yield Turn(interleaved, _angles(shape.pairs(keys[0]), shape.pairs(keys[1])))


def _angles(before: Array, after: Array) -> Array:
    """Return the angle of rotation of each pair, over all tokens and heads."""
    return np.asarray(np.angle((after * before.conj()).sum(axis=(0, 1))))


def _off(one: Array, other: Array) -> float:
    """Return the distance between keys, as a share of their length."""
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(other)), 1e-30))
