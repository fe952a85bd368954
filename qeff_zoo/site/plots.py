# SPDX-License-Identifier: Apache-2.0
"""Plots of a page, as SVG without styles of its own: the page's style sheet sets the colours."""

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from qeff_zoo.site import words
from qeff_zoo.site.content import Check, Comparison, Speed
from qeff_zoo.terminal.sanitize import shown

_WIDTH, _LEFT, _ROW = 700, 270, 22
_LABEL = 40  # characters
_DECADES, _MOST_DECADES = 6, 9  # of a ratio, left and right of the threshold
_MOST_ROWS = 24
_MARKS = ("circle", "square", "diamond", "triangle")


def errors(comparison: Comparison) -> Markup:
    """Draw the largest figure of each stage against its threshold, on a logarithmic axis; empty without one.

    Args:
        comparison: Comparison with upper limits.
    """
    rows = [
        (check, _ratio(check.value, check.threshold))
        for check in comparison.checks
        if check.op == "<=" and check.threshold and check.value is not None
    ]
    rows = sorted(rows, key=lambda row: -row[1])[:_MOST_ROWS]
    if not rows:
        return Markup("")
    right, height = _WIDTH - 110, _ROW * len(rows) + 34
    most = max(1, math.ceil(math.log10(max(rows[0][1], 1))))

    def x(ratio: float) -> float:
        share = (math.log10(max(ratio, 10**-_DECADES)) + _DECADES) / (_DECADES + most)
        return _LEFT + share * (right - _LEFT)

    at = x(1)
    parts = [f'<line class="limit" x1="{at:.0f}" x2="{at:.0f}" y1="4" y2="{height - 26}"/>']
    labels = _labels([check for check, _ in rows])
    for number, (label, (check, ratio)) in enumerate(zip(labels, rows, strict=True)):
        parts.append(_bar(label, check, ratio, x, _ROW * number + 16))
    for power in range(-_DECADES, most + 1, 2):
        label = "threshold" if power == 0 else f"10{_raised(power)}"
        parts.append(_text(x(10**power), height - 6, label, "middle"))
    worst = rows[0]
    title = (
        f"Figures of {comparison.what} against their thresholds, logarithmic: the largest is "
        f"{worst[1]:.2g} times its threshold."
    )
    return _svg(title, height, parts)


def _ratio(value: float, threshold: float) -> float:
    """Return a figure in units of its threshold, between 0 and the end of the axis."""
    return min(max(value / threshold, 0.0), 10.0**_MOST_DECADES)


def _bar(label: str, check: Check, ratio: float, x: Callable[[float], float], y: int) -> str:
    label = label if len(label) <= _LABEL else f"…{label[1 - _LABEL :]}"
    name = _text(_LEFT - 8, y + 4, label, "end")
    kind = "good" if check.passed else "bad"
    bar = f'<line class="bar {kind}" x1="{_LEFT}" x2="{x(ratio):.1f}" y1="{y}" y2="{y}"/>'
    canary = ""
    if check.canary is not None and check.threshold:
        at = min(x(_ratio(check.canary, check.threshold)), _WIDTH - 100)
        canary = f'<path class="canary" d="M{at:.1f} {y + 3} l4 -6 h-8 z"/>'
    figure = _text(_WIDTH - 2, y + 4, words.figure(check.value, check.metric), "end")
    return f"{name}{bar}{canary}{figure}"


def _labels(checks: Sequence[Check]) -> list[str]:
    """Return the call and the metric of each check, without what all calls begin with."""
    begins = {check.stage.rpartition(": ")[0] for check in checks}
    stages = [
        check.stage.rpartition(": ")[2] if len(begins) == 1 else check.stage for check in checks
    ]
    return [
        f"{stage}: {_SHORT.get(check.metric, check.metric)}"
        for stage, check in zip(stages, checks, strict=True)
    ]


_SHORT = {
    "max_relative_error": "error",
    "max_kl_divergence": "KL",
    "max_cosine_distance": "cosine",
    "rounding_over_expected": "rounding",
}


def speed(speeds: Sequence[Speed]) -> Markup:
    """Draw generated tokens per second against the context, a line for each package and batch; empty without two.

    Args:
        speeds: Measured cases.
    """
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in speeds:
        if one.decode is not None and one.context is not None:
            name = f"{one.target} {one.weights}, batch {one.batch_size}"
            lines.setdefault(name, []).append((one.context, one.decode))
    if len({x for points in lines.values() for x, _ in points}) < 2:
        return Markup("")
    height, left, bottom, right = 260, 64, 216, _WIDTH - 20
    contexts = sorted({x for points in lines.values() for x, _ in points})
    low, high = math.log2(contexts[0]), math.log2(contexts[-1])
    top = max(y for points in lines.values() for _, y in points) * 1.1

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log2(x) - low) / (high - low) * (right - left),
            bottom - y / top * (bottom - 16),
        )

    parts = [f'<path class="axis" d="M{left} 16 V{bottom} H{right}"/>']
    parts += [_text(at(x, 0)[0], bottom + 16, f"{x:,}", "middle") for x in _few(contexts)]
    for share in (0, 0.5, 1):
        value = top / 1.1 * share
        parts.append(_text(left - 8, at(contexts[0], value)[1] + 4, f"{value:,.0f}", "end"))
    for number, (name, points) in enumerate(lines.items()):
        points.sort()
        path = " L".join("{:.1f} {:.1f}".format(*at(*point)) for point in points)
        mark = _MARKS[number % len(_MARKS)]
        parts.append(f'<path class="line l{number % 4}" d="M{path}"/>')
        parts += [_mark(mark, *at(*point), number % 4) for point in points]
        parts.append(_mark(mark, left + 14, 24 + 16 * number, number % 4))
        parts.append(_text(left + 26, 28 + 16 * number, name, "start"))
    parts.append(_text((left + right) / 2, height - 8, "tokens of context", "middle"))
    most = max(lines, key=lambda name: max(y for _, y in lines[name]))
    title = f"Generated tokens per second against tokens of context. The fastest is {most}."
    return _svg(title, height, parts)


def _few(values: Sequence[int]) -> list[int]:
    """Return at most six of some sorted values, the first and last among them."""
    step = max(1, math.ceil((len(values) - 1) / 5))
    return sorted({*values[::step], values[-1]})


def _mark(kind: str, x: float, y: float, colour: int) -> str:
    shapes = {
        "circle": "m-4 0 a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0",
        "square": "m-4 -4 h8 v8 h-8 z",
        "diamond": "m0 -5 l5 5 l-5 5 l-5 -5 z",
        "triangle": "m0 -5 l5 9 h-10 z",
    }
    return f'<path class="mark l{colour}" d="M{x:.1f} {y:.1f} {shapes[kind]}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown(text))}</text>'


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _svg(title: str, height: int, parts: Sequence[str]) -> Markup:
    name = escape(shown(title))
    return Markup(
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}"><title>{name}</title>'
        f"{''.join(parts)}</svg>"
    )
