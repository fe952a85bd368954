# SPDX-License-Identifier: Apache-2.0
"""A farm on this machine: no other machine reaches its processes, and none of another user without the farm's token."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("ray")

#: Starts Ray as `farm run` does; prints the addresses at which its processes listen, and what a stranger is told.
SCRIPT = """
import json, os, subprocess, sys
from contextlib import suppress
from pathlib import Path
from qeff_zoo.farm.reach import keep_local
keep_local()
import ray
ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
listening = {}
for name in ("tcp", "tcp6"):
    for line in Path("/proc/net", name).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            listening[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
found = set()
for process in Path("/proc").glob("[0-9]*"):
    with suppress(OSError):  # it has ended, or is another user's
        if os.getsid(int(process.name)) == os.getsid(0):
            links = map(os.readlink, (process / "fd").iterdir())
            found |= {listening[link] for link in links if link in listening}
asked = "import ray._raylet, sys; ray._raylet.GcsClient(address=sys.argv[1]).get_all_node_info(timeout=9)"
address = ray.get_runtime_context().gcs_address
told = []
for token in (os.environ.pop("RAY_AUTH_TOKEN"), "0" * 64):
    command = [sys.executable, "-W", "ignore", "-c", asked, address]
    told.append(subprocess.run(command, env={**os.environ, "RAY_AUTH_TOKEN": token}, capture_output=True, text=True))
print(json.dumps([sorted(found), *(one.stderr for one in told)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_farm_listens_to_this_machine_alone_and_requires_a_token() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    ended = subprocess.run(
        command, env=environment, start_new_session=True, check=True, capture_output=True, text=True
    )
    addresses, with_token, without = json.loads(ended.stdout)
    assert addresses
    assert {*addresses} <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1
    assert "AuthenticationError" not in with_token
    assert "AuthenticationError" in without
