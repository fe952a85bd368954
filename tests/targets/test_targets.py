# SPDX-License-Identifier: Apache-2.0
"""A new target is one folder and one row: it is planned, built, run, examined and explained."""

import json
import subprocess
from pathlib import Path

import pytest
import warm
from fixtures_builds import TIMEOUT, Models

from qeff_zoo import targets
from qeff_zoo.targets.base import Target

TOY = '''"""A target that no other file knows."""
from dataclasses import dataclass

from qeff_zoo.package.option import option
from qeff_zoo.targets import find
from qeff_zoo.targets.base import Finding, Resolved, Target


@dataclass(frozen=True, kw_only=True)
class ToyOptions:
    toy_speed: int | None = option("target.toy_speed", "speed of toys", targets=("toy",), default=3)


@dataclass(frozen=True)
class ToyTarget(Target):
    name: str = "toy"
    options: tuple[type, ...] = (ToyOptions,)

    def resolve(self, config, options):
        return Resolved(toolchain={"toy": "1"}, needs={})

    def lower(self, graph, program):
        return find("ort").lower(graph, program)

    def compile(self, lowered, layout, folder, name, program):
        return find("ort").compile(lowered, layout, folder, name, program)

    def open(self, package, role, options):
        return find("ort").open(package, role, options)

    def examine(self):
        return [Finding(name="toy", status="ok", detail="always here")]


TARGET = ToyTarget()
'''
RUN = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "qeff_zoo"]:
    del sys.modules[name]  # options are read from targets on import
from qeff_zoo import targets
folder, model, package = sys.argv[1:]
targets.__path__.append(folder)
targets.NAMES += ("toy",)
from qeff_zoo import cli, load
from qeff_zoo.cli.doctor import examine
cli.main(["build", model, "--target", "toy", "--toy-speed", "5", "--no-validate", "-o", package])
print(len(load(package).generate("the quick", generation_len=3)[0].token_ids))
print([finding.name for finding in examine()][-1])
cli.main(["plan", model, "--target", "ort", "--toy-speed", "5"])
"""


def test_a_new_target_is_one_folder_and_one_row(models: Models, home: Path, tmp_path: Path) -> None:
    models.trace(models.llama, home)
    folder, package = tmp_path / "targets", tmp_path / "package"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "__init__.py").write_text(TOY)
    done = subprocess.run(
        [warm.PYTHON.executable, "-c", RUN, str(folder), str(models.llama), str(package)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["3", "toy"], done.stderr
    manifest = json.loads((package / "manifest.json").read_text())
    assert manifest["spec"]["target"] == {"name": "toy", "revision": 1, "toy_speed": 5}
    assert "--toy-speed is for target toy, and --target is 'ort'" in done.stderr


@pytest.mark.parametrize("name", targets.NAMES)
def test_every_target_is_a_target_by_its_name(name: str) -> None:
    target = targets.find(name)
    assert isinstance(target, Target)
    assert target.name == name
    assert (type(target).prepare is not Target.prepare) is target.compiles_offline
