# SPDX-License-Identifier: Apache-2.0
"""Half of 64 clients attack a server: the others' answers are right, none is left out, and memory is given back.

`benchmarks/load.py` is the load. QEFF_ZOO_TEST_SECONDS=3600 attacks for an hour, as a release asks for; a minute at
least judges times, too, if nothing else runs on the machine.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from qeff_zoo.package import Package

SECONDS = float(os.environ.get("QEFF_ZOO_TEST_SECONDS", 5))
#: What becomes of each attack; those that are read to the end are answered or refused, and never fail.
EXPECTED = {
    "forty large images": {"400"},
    "five large images": {"200"},
    "narrow image": {"400"},
    "long text": {"400"},
    "choices": {"400"},
    "lists": {"413"},
    "expression": {"200", "400"},
    "recording in a chat": {"400"},
    "claimed recording": {"400"},
    "recording of 44 GB": {"400"},
    "40 minutes in eight channels": {"200"},
    "50 minutes": {"200"},
    "lines of a grammar": {"400"},
    "rules of a grammar": {"400"},
    "chunks of an image": {"400"},
    "fill bytes of images": {"400"},
    "long role": {"400"},
    "pieces of a byte": {"0", "400"},
}


@pytest.fixture
def found(seeing: Package, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the figures of a load."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import load

    speech = load.build_speech(tmp_path / "tiny-whisper")
    return load.measure(seeing.path, speech, SECONDS, 64)


def test_half_of_the_clients_are_hostile(found: Any) -> None:
    assert (found["wrong_answers"], found["clients"]) == (0, 64)
    assert found["fewest_answers_of_a_client"] >= 1
    for attack in found["attacks"]:
        name, _, ended = attack.partition(": ")
        assert ended in {"left", *EXPECTED.get(name, ())}, attack
    assert len({attack.partition(": ")[0] for attack in found["attacks"]}) > 6
    if SECONDS >= 60:
        for times in (found["first_token_s"], found["transcription_s"]):
            for which in ("median", "p95"):
                assert times["during the attack"][which] <= 2 * times["without attack"][which]
    memory = found["resident_bytes"]
    assert memory["peak"] - memory["before"] < 600 << 20
    assert memory["after"] - memory["before"] < 64 << 20
