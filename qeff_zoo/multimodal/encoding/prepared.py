# SPDX-License-Identifier: Apache-2.0
"""Prepared images, videos and audio: outputs of processors, and inputs of encoders."""

from collections.abc import Mapping
from typing import TypeAlias

from qeff_zoo.runtime.program import Array

#: Output of a processor for one image or audio input: arguments of the model's forward.
Prepared: TypeAlias = Mapping[str, Array]
