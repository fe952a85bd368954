# SPDX-License-Identifier: Apache-2.0
"""The table and the plot of speed in the README, from benchmarks/results."""

import json
from pathlib import Path
from typing import Any

from documentation.tables import table

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SIZES = {"160m": "160 M", "1.2b": "1.2 B"}
_WIDTH, _ROW, _LEFT, _SCALE = 760, 22, 300, 220


def ratios() -> list[tuple[str, str, str, dict[str, float]]]:
    """Return size, weights, peer and the ratios of this project to the peer, for every comparison."""
    found = []
    run = _results("run")
    for size, title in SIZES.items():
        for weights in ("fp32", "int4"):
            case = run[f"{size}_{weights}"]["ratios"]
            found += [
                (title, weights, peer, value)
                for peer, value in case.items()
                if not peer.startswith("qeff-zoo")
            ]
    for size, case in _results("prompts").items():
        one = case["ratios"]["openvino-genai"]
        named = {"prefill": "prefill_cpu_ms", "decode": "decode_cpu_ms", "memory": "peak_rss_bytes"}
        measured = {name: one[key] for name, key in named.items()}
        found.append((SIZES[size], "int4", "OpenVINO GenAI (target `openvino`)", measured))
    return found


def speed() -> str:
    """Return the table."""
    rows = [
        [title, weights, peer, *(f"{one[name]:.2f}" for name in ("prefill", "decode", "memory"))]
        for title, weights, peer, one in ratios()
    ]
    return table(["Llama of", "weights", "compared with", "prompt", "decode", "memory"], rows)


def plot() -> str:
    """Return the plot as SVG: the ratios of the largest model at int4, with a line at 1."""
    bars = [
        (f"{name}, {peer.partition(' (')[0]}", one[name])
        for title, weights, peer, one in ratios()
        if (title, weights) == (SIZES["1.2b"], "int4")
        for name in ("prefill", "decode", "memory")
    ]
    height = _ROW * len(bars) + 50
    words = {"prefill": "prompt speed", "decode": "decode speed", "memory": "memory economy"}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<text x="{_LEFT}" y="16" fill="#777">Llama 1.2 B, int4, CPU: times as good as the peer (1 is equal)</text>',
    ]
    for number, (label, value) in enumerate(bars):
        name, _, peer = label.partition(", ")
        top, color = 28 + _ROW * number, "#3f8f5f" if value >= 1 else "#b5793a"
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end" fill="#777">{words[name]}, {peer}</text>',
            f'<rect x="{_LEFT}" y="{top + 2}" width="{value * _SCALE:.0f}" height="{_ROW - 6}" fill="{color}"/>',
            f'<text x="{_LEFT + value * _SCALE + 6:.0f}" y="{top + 14}" fill="#777">{value:.2f}</text>',
        ]
    one = _LEFT + _SCALE
    lines += [f'<path d="M{one} 24V{height - 18}" stroke="#777" stroke-dasharray="4 3"/>', "</svg>"]
    return "\n".join(lines) + "\n"


def _results(name: str) -> dict[str, Any]:
    cases: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_bytes())["cases"]
    return cases
