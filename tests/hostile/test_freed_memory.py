# SPDX-License-Identifier: Apache-2.0
"""Memory of requests is given back: a server's threads keep little of what they have freed, and caches are counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_THREADS, _MIB = 6, 1 << 20
#: A large allocation is freed, as of an image, and then many small ones in several threads at a time.
_PROGRAM = f"""
import json, sys, threading
from pathlib import Path
from qeff_zoo.serving.server.interpreter import tune

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10

def work():
    for _ in range(3):
        meet.wait()
        held = [b"a" * {_MIB // 2} for _ in range(40)]
        meet.wait()
        del held
        meet.wait()
    meet.wait()
    meet.wait()

if sys.argv[1] == "tuned":
    tune()
b"a" * (24 * {_MIB})
before, meet = resident(), threading.Barrier({_THREADS} + 1)
for _ in range({_THREADS}):
    threading.Thread(target=work, daemon=True).start()
for step in range(10):
    meet.wait()
after = resident()
meet.wait()
print(json.dumps(after - before))
"""


def kept(how: str) -> int:
    """Return the bytes that a process keeps of 120 MiB that its threads have freed."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(json.loads(ran.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="an allocator of Linux")
def test_threads_of_a_server_keep_little_freed_memory() -> None:
    assert kept("usual") > 60 * _MIB  # else this test shows nothing
    assert kept("tuned") < (_THREADS + 1) * 8 * _MIB


_OPENED = """
import sys
from pathlib import Path
import tokenizers
from qeff_zoo.runtime.text.tokenizer import Tokenizer

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10

before, folder = resident(), Path(sys.argv[2])
if sys.argv[1] == "library":
    opened = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
else:
    opened = Tokenizer(folder)
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an allocator of Linux")
def test_a_tokenizer_returns_what_its_parser_freed(tmp_path: Path) -> None:
    letters = [chr(0x4E00 + number) for number in range(250)]
    pairs = [(letter, other) for letter in letters for other in letters]
    vocabulary = [*letters, *("".join(pair) for pair in pairs)]
    model = {
        "type": "BPE",
        "vocab": {token: number for number, token in enumerate(vocabulary)},
        "merges": pairs,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": model}))

    def taken(how: str) -> int:
        command = [sys.executable, "-c", _OPENED, how, str(tmp_path)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert taken("ours") < 0.6 * taken("library")
