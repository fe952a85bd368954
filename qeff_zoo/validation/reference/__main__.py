# SPDX-License-Identifier: Apache-2.0
"""Start of a process of Hugging Face's libraries: `python -m qeff_zoo.validation.reference MODULE ARGUMENTS`.

Garbage collection pauses during the imports, whose objects stay: each collection would visit all of them.
"""

import gc
import importlib
import sys

if __name__ == "__main__":
    gc.disable()
    module = importlib.import_module(sys.argv[1])
    gc.freeze()
    gc.enable()
    module.main(sys.argv[2:])
