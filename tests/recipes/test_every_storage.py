# SPDX-License-Identifier: Apache-2.0
"""No right package is refused: every recipe's tiny models, in every storage, with weights of three seeds."""

from itertools import product
from pathlib import Path

import pytest

from qeff_zoo.errors import ExportError
from qeff_zoo.graph.numerics import STORED
from qeff_zoo.pipeline import checks
from qeff_zoo.registry import find_recipe, list_model_types, require_packages
from qeff_zoo.store import Store
from qeff_zoo.targets import NAMES, find
from qeff_zoo.validation import ladder

STORAGES = [
    weight for weight in find(NAMES[0]).weights if weight != STORED
]  # that is for quantized models
SEEDS = range(3)


@pytest.mark.filterwarnings("ignore:.* sets no max_length")  # of a tiny Whisper
@pytest.mark.full
@pytest.mark.parametrize("name", list_model_types())
def test_no_right_package_is_refused(name: str, tmp_path: Path) -> None:
    """Each model is traced once: packages of one architecture share its graphs in the store."""
    recipe, refused = find_recipe(name), []
    try:
        require_packages(recipe)
    except ExportError as error:
        pytest.skip(str(error))
    for tiny, storage, seed in product(recipe.tiny, STORAGES, SEEDS):
        folder = tmp_path / f"{tiny.name}-{storage}-{seed}"
        folder.mkdir()
        store = Store(tmp_path / "store")
        built = checks.tiny_package(recipe, tiny, folder, weights=storage, seed=seed, store=store)
        record = ladder.validate(*built, level="tiny", threads=1)
        refused += [(tiny.name, storage, seed, failure) for failure in record.failures]
    assert refused == []
