# SPDX-License-Identifier: Apache-2.0
"""Stands in for the SDK's protobuf module in tests: the names that drivers use, with bytes of its own."""

import json
from types import SimpleNamespace

FLOAT_TYPE, FLOAT_16_TYPE, INT8_Q_TYPE, UINT8_Q_TYPE, INT16_Q_TYPE = range(5)
INT32_Q_TYPE, INT32_I_TYPE, INT64_I_TYPE, INT8_TYPE = range(5, 9)
BFLOAT16_TYPE = 11
BUFFER_IO_TYPE_INPUT, BUFFER_IO_TYPE_OUTPUT = 0, 1
IoBinding = SimpleNamespace


class IoDesc:
    def ParseFromString(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        read = json.loads(data, object_hook=lambda found: SimpleNamespace(**found))
        self.selected_set, self.allowed_shapes = read.selected_set, read.allowed_shapes
