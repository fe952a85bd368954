# SPDX-License-Identifier: Apache-2.0
"""Plots of a page, as SVG without styles of its own: the page's style sheet sets the colours."""

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from qeff_zoo.site import words
from qeff_zoo.site.content import Check, Comparison, Speed

_WIDTH, _LEFT, _ROW = 700, 270, 22
_LABEL = 40  # characters
_DECADES = 6  # of a ratio, left of the threshold
_MOST_ROWS = 24
_MARKS = ("circle", "square", "diamond", "triangle")


def errors(comparison: Comparison) -> Markup:
    """Draw the largest figure of each stage against its threshold, on a logarithmic axis; empty without one.

    Args:
        comparison: Comparison with upper limits.
    """
    rows = [
        (check, check.value / check.threshold)
        for check in comparison.checks
        if check.op == "<=" and check.threshold and check.value is not None
    ]
    rows = sorted(rows, key=lambda row: -row[1])[:_MOST_ROWS]
    if not rows:
        return Markup("")
    right, height = _WIDTH - 110, _ROW * len(rows) + 34
    most = max(1.0, math.ceil(math.log10(max(ratio for _, ratio in rows) + 1e-12)))

    def x(ratio: float) -> float:
        share = (math.log10(max(ratio, 10**-_DECADES)) + _DECADES) / (_DECADES + most)
        return _LEFT + share * (right - _LEFT)

    parts = [
        Markup('<line class="limit" x1="{0:.0f}" x2="{0:.0f}" y1="4" y2="{1}"/>').format(
            x(1), height - 26
        )
    ]
    labels = _labels([check for check, _ in rows])
    for number, (label, (check, ratio)) in enumerate(zip(labels, rows, strict=True)):
        parts.append(_bar(label, check, ratio, x, _ROW * number + 16))
    for power in range(-_DECADES, int(most) + 1, 2):
        label = "threshold" if power == 0 else f"× 10{_raised(power)}"
        parts.append(_text(x(10**power), height - 6, label, "middle"))
    worst = rows[0]
    title = (
        f"Figures of {comparison.what} against their thresholds, logarithmic: the largest is "
        f"{worst[1]:.2g} times its threshold."
    )
    return _svg(title, height, parts)


def _bar(label: str, check: Check, ratio: float, x: Callable[[float], float], y: int) -> Markup:
    canary = Markup("")
    if check.canary is not None and check.threshold:
        at = min(x(min(check.canary / check.threshold, 10.0**_DECADES)), _WIDTH - 100)
        canary = Markup('<path class="canary" d="M{0:.1f} {1} l4 -6 h-8 z"/>').format(at, y + 3)
    return Markup(
        '{0}<line class="bar {1}" x1="{2}" x2="{3:.1f}" y1="{4}" y2="{4}"/>{5}{6}'
    ).format(
        _text(
            _LEFT - 8, y + 4, label if len(label) <= _LABEL else f"…{label[1 - _LABEL :]}", "end"
        ),
        "good" if check.passed else "bad",
        _LEFT,
        x(ratio),
        y,
        canary,
        _text(_WIDTH - 2, y + 4, words.figure(check.value, check.metric), "end"),
    )


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
        if one.decode is not None:
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

    parts = [Markup('<path class="axis" d="M{0} 16 V{1} H{2}"/>').format(left, bottom, right)]
    parts += [_text(at(x, 0)[0], bottom + 16, f"{x:,}", "middle") for x in _few(contexts)]
    for share in (0, 0.5, 1):
        value = top / 1.1 * share
        parts.append(_text(left - 8, at(contexts[0], value)[1] + 4, f"{value:,.0f}", "end"))
    for number, (name, points) in enumerate(lines.items()):
        points.sort()
        path = " L".join("{:.1f} {:.1f}".format(*at(*point)) for point in points)
        mark = _MARKS[number % len(_MARKS)]
        parts.append(Markup('<path class="line l{0}" d="M{1}"/>').format(number % 4, path))
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


def _mark(kind: str, x: float, y: float, colour: int) -> Markup:
    shapes = {
        "circle": "m-4 0 a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0",
        "square": "m-4 -4 h8 v8 h-8 z",
        "diamond": "m0 -5 l5 5 l-5 5 l-5 -5 z",
        "triangle": "m0 -5 l5 9 h-10 z",
    }
    return Markup('<path class="mark l{0}" d="M{1:.1f} {2:.1f} {3}"/>').format(
        colour, x, y, shapes[kind]
    )


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{0:.1f}" y="{1:.1f}" text-anchor="{2}">{3}</text>').format(
        x, y, anchor, text
    )


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _svg(title: str, height: int, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="plot" viewBox="0 0 {0} {1}" role="img" aria-label="{2}"><title>{2}</title>{3}</svg>'
    ).format(_WIDTH, height, title, Markup("").join(parts))
