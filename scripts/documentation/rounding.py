# SPDX-License-Identifier: Apache-2.0
"""The table and the plot of what rounding costs by bits a weight, from benchmarks/results/rounding_compare.json."""

import json
import math
from pathlib import Path
from typing import Any

from documentation.tables import table

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "rounding_compare.json"
_NAMES = {
    "float": "float (bfloat16)",
    "until-november": "`--weights int4` until November 2026",
    "until-december": "`--weights int4` until December 2026",
    "int4": "`--weights int4`",
    "int8": "`--weights int8`",
}
_PEER = "llama.cpp "
#: Rows on no line, of another kind than those beside them, and where their labels lie.
_APART = {"until-november": 8, "until-december": -8}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 380, 70, 330, 20
_BITS = (4.5, 9.0)  # of the plot's axis
_KL = (-3.0, 0.0)  # exponents of ten
_COLORS = {"--bits": "#3f8f5f", "llama.cpp": "#b5793a"}


def losses() -> str:
    """Return the table, by bits a weight."""
    rows = [
        [
            name_of(name),
            f"{row['bits']:.2f}",
            f"{row['kl']:.4f} ± {row['kl_error']:.4f}" if row["kl"] else "0",
            f"{row['perplexity']:.2f}",
        ]
        for name, row in sorted(_rows().items(), key=lambda item: item[1]["bits"])
    ]
    return table(["weights", "bits a weight", "mean KL", "perplexity"], rows)


def name_of(row: str) -> str:
    """Return the name of a row for people; `bits-6` is `--bits 6`."""
    if row.startswith("bits-"):
        return f"`--bits {row.removeprefix('bits-')}`"
    return _NAMES.get(row, row)


def curve() -> str:
    """Return the plot as SVG: the mean KL by bits a weight, on a logarithmic axis."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        *_axes(),
    ]
    for number, (title, color) in enumerate(_COLORS.items()):
        points = sorted(
            (row["bits"], row["kl"], name)
            for name, row in _rows().items()
            if row["kl"] and name.startswith(_PEER) == (title == "llama.cpp")
        )
        whole = [point for point in points if point[2] not in _APART]
        path = " ".join(f"{_x(bits):.0f},{_y(kl):.0f}" for bits, kl, _ in whole)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        for bits, kl, name in points:
            label = (
                name_of(name)
                .replace("`", "")
                .removeprefix(_PEER)
                .removeprefix("--")
                .removeprefix("bits ")
            )
            x, y = _x(bits), _y(kl)
            # Labels of one line lie below it, those of the other above it.
            right, down = (6, -6) if number else (-6, 16)
            if name in _APART:
                right, down = _APART[name], 4
            anchor = "start" if right > 0 else "end"
            lines += [
                f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{color}"/>',
                f'<text x="{x + right:.0f}" y="{y + down:.0f}" text-anchor="{anchor}" fill="{color}" '
                f'font-size="11">{label}</text>',
            ]
        lines.append(
            f'<text x="{_WIDTH - 110}" y="{_TOP + 20 + 18 * number}" fill="{color}">{title}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _axes() -> list[str]:
    lines = [
        f'<text x="{_LEFT}" y="14" fill="#777">SmolLM2 135M: mean KL to the float model, by bits a weight</text>'
    ]
    for exponent in range(int(_KL[0]), int(_KL[1]) + 1):
        y = _y(10.0**exponent)
        lines += [
            f'<path d="M{_LEFT} {y:.0f}H{_WIDTH - 20}" stroke="#777" stroke-opacity="0.3"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end" fill="#777">{10.0**exponent:g}</text>',
        ]
    for bits in range(5, int(_BITS[1]) + 1):
        lines.append(
            f'<text x="{_x(bits):.0f}" y="{_BOTTOM + 22}" text-anchor="middle" fill="#777">{bits}</text>'
        )
    return lines


def _x(bits: float) -> float:
    low, high = _BITS
    return _LEFT + (bits - low) / (high - low) * (_WIDTH - 20 - _LEFT)


def _y(kl: float) -> float:
    low, high = _KL
    return _BOTTOM - (math.log10(kl) - low) / (high - low) * (_BOTTOM - _TOP)


def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(_RESULTS.read_bytes())["rows"]
    return rows
