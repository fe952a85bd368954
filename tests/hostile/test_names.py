# SPDX-License-Identifier: Apache-2.0
"""What is nearly a name, a key or a number is refused, and never stands for something that begins like it."""

import shutil
from pathlib import Path

import pytest
from fixtures_builds import Models
from remote_builder import make, write_remote

from qeff_zoo import cli
from qeff_zoo.api import find_here
from qeff_zoo.package import Package
from qeff_zoo.store import Store


@pytest.mark.parametrize("days", ["-1", "nan", "inf", "1e9", "-0.5"])
def test_days_are_a_number_of_days(
    home: Path, models: Models, days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    package = models.build(models.llama, home)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["cache", "gc", f"--older-than={days}"])
    assert "expected 0 or more" in capsys.readouterr().err
    assert Store().lookup(package.build_key) == package


@pytest.mark.parametrize("reference", ["q", "qz1-", "", " ", "l", "LLAMA"])
def test_what_a_key_or_a_name_begins_with_opens_nothing(
    home: Path, models: Models, reference: str
) -> None:
    package = models.build(models.llama, home)
    assert find_here(reference) is None
    assert find_here(package.build_key[:12]) == package


@pytest.mark.parametrize(
    "reference", ["", " ", ".", "..", "/", "~", "STORE", "STORE/packages", "COPY", "*", "q", "l", "qz1-",
                  "packages", "packages/", "STORE/packages/../packages/nothing", "· ", "/{key}", "x/{key}"],
)  # fmt: skip
def test_what_is_removed_is_a_package_of_the_store_by_its_own_name(
    home: Path, models: Models, tmp_path: Path, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    package = models.build(models.llama, home)
    copy = shutil.copytree(package.path, tmp_path / "copy")
    named = reference.replace("STORE", str(home)).replace("COPY", str(copy))
    assert cli.main(["cache", "rm", named.format(key=package.build_key[4:12])]) == 1
    assert "in the store. Expected a folder, model, key" in capsys.readouterr().err
    assert Package.open(package.path) == package
    assert Package.open(copy).verify() == []


@pytest.mark.parametrize("reference", ["", "  "])
@pytest.mark.parametrize("command", ["pull", "resolve", "lock"])
def test_nothing_is_no_model(
    home: Path, command: str, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, reference]) != 0
    assert "No model is named" in capsys.readouterr().err
    assert not home.exists()


def test_an_empty_key_or_remote_is_not_any(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a variable of a script that was never set."""
    url = write_remote(tmp_path / "zoo", make(tmp_path / "package"))
    assert cli.main(["pull", url, "--key", ""]) == 20
    assert "No package has the key ''" in capsys.readouterr().err
    assert cli.main(["pull", "org/tiny", "--from", ""]) == 1
    assert "'' names no remote" in capsys.readouterr().err
    assert not Store().entries()
