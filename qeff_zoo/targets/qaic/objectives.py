# SPDX-License-Identifier: Apache-2.0
"""Settings that Qualcomm measured on a card, by model and objective, and those nearest to another model.

`objectives.csv` has the facts of two tables of github.com/quic/cloud-ai-sdk at e21e04a (June 2026), in float16:
`models/language_processing/encoder/lut_nlp_models.csv`, and `models/vision/classification/lut_cv_classifiers.csv`.
Family, width and depth are those of the models' configurations.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo import contract
from qeff_zoo.disk.regular import read_text
from qeff_zoo.targets.qaic.options import SPELLED

OBJECTIVES = ("best-throughput", "balanced", "best-latency")
#: What a difference counts, in doublings of width, depth or length. The output matrix of a masked language model takes
#: as long as its layers.
_OTHER_FAMILY, _OTHER_TASK, _OTHER_OUTPUTS = 3, 1, 6
#: Tasks without rows, and those whose programs are most alike.
_ALIKE = MappingProxyType(
    {
        contract.ENCODER_RANKING: contract.TEXT_CLASSIFICATION,
        contract.MULTIPLE_CHOICE: contract.TEXT_CLASSIFICATION,
        contract.SPARSE_EMBEDDING: contract.FILL_MASK,
        contract.IMAGE_FEATURE_EXTRACTION: contract.IMAGE_CLASSIFICATION,
    }
)
_FIELDS_OF_WIDTH = ("hidden_size", "dim", "d_model")
_FIELDS_OF_DEPTH = ("num_hidden_layers", "n_layers", "num_layers")
#: Layers with weights of a block of ResNet.
_OF_BLOCK = {"bottleneck": 3, "basic": 2}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured package.

    Args:
        model: Name of the model: a Hub id, or torchvision's.
        family: Model type, or the family of an image classifier.
        width: Hidden size; 0 if there is none.
        depth: Number of layers; 0 if unknown.
        patch: Side of a patch in pixels; 0 if there is none.
        task: Task of the zoo.
        objective: One of `OBJECTIVES`.
        batch_size: Inputs of a call.
        length: Tokens of an input, or the side of an image.
        cores: Cores of a program.
        instances: Programs that run at once on a card.
        options: Build options by name.
        left_out: Settings that no build option sets.
        throughput: Inputs a second of a card; 0 if it is not published.
        latency: Milliseconds; 0 if it is not published.
    """

    model: str
    family: str
    width: int
    depth: int
    patch: int
    task: str
    objective: str
    batch_size: int
    length: int
    cores: int
    instances: int
    options: Mapping[str, Any]
    left_out: tuple[str, ...]
    throughput: float
    latency: float

    @property
    def measured(self) -> str:
        """What Qualcomm measured, for people."""
        speed = f"{self.throughput:,.0f} inputs a second" if self.throughput else ""
        if self.latency:
            speed += f"{speed and ', '}{self.latency:g} ms"
        return speed or "its speed is not published"


@cache
def rows() -> tuple[Row, ...]:
    """Return all rows."""
    text = read_text(Path(__file__).with_name("objectives.csv"))
    return tuple(_row(line) for line in csv.DictReader(text.splitlines()))


def _row(line: Mapping[str, str]) -> Row:
    options: dict[str, Any] = {"num_cores": int(line["cores"])}
    left_out, others = [], []
    for name in ("ols", "mos"):
        if line[name].isdigit():
            options[name] = int(line[name])
        elif line[name]:  # one for each cluster of cores
            left_out.append(f"{name}={line[name]}")
    for flag in line["flags"].split():
        name, _, value = flag.partition("=")
        if name in SPELLED:
            options[SPELLED[name]] = int(value) if value else True
        else:
            others.append(flag)
    if others:
        options["compiler_flag"] = tuple(others)
    columns: dict[str, Any] = {
        **{name: line[name] for name in ("model", "family", "task", "objective")},
        **{name: int(line[name] or 0) for name in ("width", "depth", "patch")},
        **{name: int(line[name]) for name in ("batch_size", "length", "cores", "instances")},
        **{name: float(line[name] or 0) for name in ("throughput", "latency")},
    }
    return Row(**columns, options=options, left_out=tuple(left_out))


def nearest(
    task: str, config: Mapping[str, Any], name: str, length: int, objective: str
) -> Row | None:
    """Return the row of a model, or the best of those that are nearest by family, width, depth and length.

    None for a task that is not alike to one of the tables.

    Args:
        task: Task of the package.
        config: Config of the model.
        name: Name of the checkpoint.
        length: Longest text of the package in tokens; 0 for the side of images that the config has.
        objective: One of `OBJECTIVES`.
    """
    task = _ALIKE.get(task, task)
    of_images = task == contract.IMAGE_CLASSIFICATION
    if task not in {row.task for row in rows()}:
        return None
    candidates = [
        row
        for row in rows()
        if row.objective == objective and (row.task == contract.IMAGE_CLASSIFICATION) == of_images
    ]
    names = {name, str(config.get("architecture", ""))}
    plain = {_plain(key) for key in names}
    width = _first(config, _FIELDS_OF_WIDTH)
    depth = _first(config, _FIELDS_OF_DEPTH) or _depth_of_blocks(config)
    patch = _first(config, ("patch_size",))
    length = length or _first(config, ("image_size",))

    families = {*_families(config)}

    def distance(row: Row) -> tuple[float, float]:
        sizes = [(row.width, width), (row.depth, depth), (row.length, length), (row.patch, patch)]
        apart = sum(abs(math.log2(one / other)) for one, other in sizes if one and other)
        apart += _OTHER_FAMILY * (row.family not in families) + _OTHER_TASK * (row.task != task)
        apart += _OTHER_OUTPUTS * (contract.FILL_MASK in {row.task, task} and row.task != task)
        # Two rows of one model differ in how its name is written.
        apart -= 100 * (_plain(row.model) in plain) + (row.model in names)
        latency = row.latency or math.inf
        return apart, latency if objective == OBJECTIVES[-1] else -row.throughput

    return min(candidates, key=distance, default=None)


def _families(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the families of a model, whose names are the beginning of an architecture's in timm."""
    yield str(config.get("model_type", ""))
    name = _plain(str(config.get("architecture", "")))
    yield from (row.family for row in rows() if name and name.startswith(_plain(row.family)))


def _plain(name: str) -> str:
    """Return a model's name without organization, case and separators."""
    return re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), 0)


def _depth_of_blocks(config: Mapping[str, Any]) -> int:
    """Return the depth of a ResNet as its name counts it; 0 for other models."""
    depths = config.get("depths")
    blocks = _OF_BLOCK.get(str(config.get("layer_type")), 0)
    return 2 + blocks * sum(depths) if isinstance(depths, list) and blocks else 0
