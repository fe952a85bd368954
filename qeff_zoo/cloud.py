# SPDX-License-Identifier: Apache-2.0
"""QEfficient's place of its command lines: `python -m qeff_zoo.cloud.infer` is `qeff_zoo.qefficient.cloud.infer`."""

from qeff_zoo.qefficient import cloud

__path__ = cloud.__path__
