# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that somebody else made takes no file of this machine along into a package."""

from pathlib import Path

import pytest
from fixtures_builds import Models

from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError


@pytest.fixture
def cloned(models: Models, tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the key to the house")
    return models.copy(models.llama, tmp_path / "cloned")


DOCUMENTS = ("NOTICE", "LICENSE")


@pytest.mark.parametrize("name", ["chat_template.jinja", "1_Pooling/config.json"])
@pytest.mark.parametrize("relative", [False, True])
def test_a_link_that_leaves_the_folder_is_refused(cloned: Path, name: str, relative: bool) -> None:
    link, secret = cloned / name, cloned.parent / "secret"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    above = Path(*[".."] * (1 + name.count("/")))
    link.symlink_to(above / "secret" if relative else secret)
    with pytest.raises(CheckpointError, match=r"is a link to .* and would be copied"):
        open_checkpoint(str(cloned))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_is_a_link_is_left_out(cloned: Path, name: str) -> None:
    (cloned / name).unlink(missing_ok=True)
    (cloned / name).symlink_to(cloned.parent / "secret")
    with pytest.warns(UserWarning, match=f"{name} is left out"):
        checkpoint = open_checkpoint(str(cloned))
    assert name not in checkpoint.companions


def test_a_folder_that_is_a_link_is_refused(cloned: Path) -> None:
    other = cloned.parent / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    (cloned / "1_Pooling").symlink_to(other)
    with pytest.raises(CheckpointError, match=r"is a link to .* and would be copied"):
        open_checkpoint(str(cloned))


def test_links_within_it_and_those_of_the_hubs_cache_are_followed(
    cloned: Path, tmp_path: Path
) -> None:
    (cloned / "NOTICE").symlink_to("config.json")
    assert open_checkpoint(str(cloned)).companions["NOTICE"].is_file()
    cache = tmp_path / "hub" / "models--org--name"
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    (cloned / "NOTICE").unlink()
    cloned.rename(snapshot)
    (cache / "blobs").mkdir()
    (snapshot / "config.json").rename(cache / "blobs" / "1234")
    (snapshot / "config.json").symlink_to("../../blobs/1234")
    assert open_checkpoint(str(snapshot)).config["model_type"] == "llama"
    (snapshot / "NOTICE").symlink_to("../../../../secret")
    with pytest.warns(UserWarning, match="NOTICE is left out"):
        assert "NOTICE" not in open_checkpoint(str(snapshot)).companions


def test_the_folder_itself_may_be_a_link(cloned: Path, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(cloned)
    assert open_checkpoint(str(tmp_path / "named")).companions
