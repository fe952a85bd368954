# SPDX-License-Identifier: Apache-2.0
"""Files of docs/deployment.md: the server has the named flags, paths and times, and systemd reads its unit."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT

from qeff_zoo import cli
from qeff_zoo.serving.server.app import known_paths

PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL))


def file(name: str) -> str:
    return next(text for title, text in FILES.items() if title.endswith(name))


def options(*argv: str) -> Any:
    return cli.parser().parse_args(["serve", *argv])


def test_the_configuration_is_that_of_a_server(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(file("serve.toml"))
    found = options("--config", str(path))
    assert (found.package, found.shutdown_timeout) == ("/srv/qeff-zoo/my-package", 60)
    nginx = file("qeff-zoo.conf")
    assert found.keep_alive_timeout > int(re.findall(r"keepalive_timeout (\d+)s", nginx)[0])
    assert f"server 127.0.0.1:{found.port};" in nginx
    assert f"server_name {found.allowed_hosts[0]};" in nginx
    assert f'"127.0.0.1:{found.port}"' in file("prometheus.yml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    text = file("qeff-zoo.service")
    assert int(re.findall(r"TimeoutStopSec=(\d+)", text)[0]) > 60
    unit = tmp_path / "qeff-zoo.service"
    unit.write_text(text.replace("/opt/qeff-zoo/bin/qeff-zoo", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "qeff-zoo.service" not in ended.stderr


def test_containers_start_a_server() -> None:
    image = re.findall(r"ENTRYPOINT (\[.*\])", file("Containerfile"))[0]
    entry = yaml.safe_load(image)
    deployment, service = yaml.safe_load_all(file("qeff-zoo.yaml"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    found = options(*entry[2:], *container["args"])
    assert (found.host, found.port) == ("0.0.0.0", container["ports"][0]["containerPort"])
    assert found.shutdown_timeout < pod["terminationGracePeriodSeconds"]
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")]
    assert {*probes} <= {*known_paths()}
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    run = next(line for line in PAGE.splitlines() if line.startswith("podman run"))
    words = shlex.split(run)
    assert options(*entry[2:], *words[words.index("qeff-zoo") + 1 :]).allowed_hosts == (
        "localhost",
    )
