# SPDX-License-Identifier: Apache-2.0
"""Fixed prompts of validation that show objects in images: points and boxes."""

#: Labels of points outside and inside of an object.
OUTSIDE, INSIDE = 0, 1

#: Shares of the width and of the height of an image, and the label, of each point.
Points = tuple[tuple[float, float, int], ...]
#: Left, upper, right and lower edge in shares of an image.
Edges = tuple[float, float, float, float]

#: Points of each prompt, and a box.
SAMPLES: tuple[tuple[Points, Edges | None], ...] = (
    (((0.4, 0.3, INSIDE),), None),
    (((0.2, 0.6, INSIDE), (0.7, 0.1, OUTSIDE)), None),
    ((), (0.1, 0.2, 0.6, 0.5)),
    (((0.3, 0.3, INSIDE),), (0.05, 0.1, 0.8, 0.4)),
)
