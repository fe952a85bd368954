# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's C API by ctypes: a component of a model package and its inputs in, the values of its logits out.

    python model_package_by_c.py LIBRARY FOLDER COMPONENT FEEDS.npz

Numbers are places in the tables of the API, which only grow.
"""

import ctypes
import json
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

LIBRARY, FOLDER, COMPONENT, FEEDS = sys.argv[1:]
VERSION = 31


def call(table: Any, place: int, *given: Any, returns: Any = c_void_p) -> Any:
    """Call a function of a table; fail with its message where it returns a status."""
    found = ctypes.CFUNCTYPE(returns)(table[place])(*given)
    if returns is c_void_p and found:
        raise SystemExit(call(api, 2, c_void_p(found), returns=c_char_p).decode())
    return found


library = ctypes.CDLL(LIBRARY)
library.OrtGetApiBase.restype = POINTER(c_void_p)
get_api = ctypes.CFUNCTYPE(POINTER(c_void_p), ctypes.c_uint32)(library.OrtGetApiBase()[0])
api = get_api(VERSION)
packages = call(api, 427, returns=POINTER(c_void_p))

env, options, chosen, context, component, session, memory, answer = (c_void_p() for _ in range(8))
call(api, 3, c_int(3), c_char_p(b"test"), byref(env))
call(api, 10, byref(options))
library.OrtSessionOptionsAppendExecutionProvider_CPU(options, c_int(1))
call(packages, 0, env, options, byref(chosen))
call(packages, 2, c_char_p(FOLDER.encode()), byref(context))
call(packages, 11, context, c_char_p(COMPONENT.encode()), chosen, byref(component))
call(packages, 15, env, component, None, byref(session))

call(api, 69, c_int(0), c_int(0), byref(memory))
feeds = dict(np.load(FEEDS))
values = (c_void_p * len(feeds))()
for number, array in enumerate(feeds.values()):
    shape = (c_int64 * array.ndim)(*array.shape)
    kind = {"float32": 1, "int64": 7}[array.dtype.name]
    value = c_void_p()
    data, size = c_void_p(array.ctypes.data), c_size_t(array.nbytes)
    call(api, 49, memory, data, size, shape, c_size_t(array.ndim), c_int(kind), byref(value))
    values[number] = value
names = (c_char_p * len(feeds))(*(name.encode() for name in feeds))
wanted = (c_char_p * 1)(b"logits")
call(api, 9, session, None, names, values, c_size_t(len(feeds)), wanted, c_size_t(1), byref(answer))
facts, count, found = c_void_p(), c_size_t(), POINTER(ctypes.c_float)()
call(api, 65, answer, byref(facts))
call(api, 64, facts, byref(count))
call(api, 51, answer, byref(found))
sys.stdout.write(json.dumps(found[: count.value]))
