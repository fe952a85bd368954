# SPDX-License-Identifier: Apache-2.0
"""Histogram of a server's metrics; prometheus_client's own costs ten times as much for each token."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Histogram(Collector):
    """Histogram without labels.

    Args:
        name: Name of the metric.
        text: Description of the metric.
        buckets: Upper bounds, ascending.
    """

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, [*buckets, math.inf]
        self._counts, self._sum = [0] * len(self._bounds), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, which occurred once or several times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        bounds = map(floatToGoString, self._bounds)
        buckets = [*zip(bounds, accumulate(self._counts), strict=True)]
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)
