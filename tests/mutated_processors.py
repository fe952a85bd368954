# SPDX-License-Identifier: Apache-2.0
"""Published processors with one field changed: arrays as transformers makes them, or a refusal by name.

As a script it draws so many, or some of them, and prints what differs: `python tests/mutated_processors.py 24 1000`.
"""

import json
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import published_processors as published
from PIL import Image

from qeff_zoo.checkpoint import processors
from qeff_zoo.errors import ZooError
from qeff_zoo.media.image_processor import HELD, load_image_processor
from qeff_zoo.validation.image_arrays import difference

SIZES = (37, 61), (64, 20), (30, 30), (5, 90)
MODES = "RGB", "RGB", "RGBA", "L", "LA", "P"
#: Fields of a file that say nothing of arrays, or name a class.
_NAMES = {"image_processor_type", "processor_class"}


def changed(value: Any, draw: random.Random) -> Any:
    """Return another value of a field."""
    if isinstance(value, bool):
        return draw.choice([not value, None])
    if isinstance(value, int):
        return draw.choice([0, 1, value // 2, value + 1, 2 * value, None])
    if isinstance(value, float):
        return draw.choice([value / 2, 1.0, None])
    if isinstance(value, Mapping) and draw.random() < 0.5:
        return {name: changed(one, draw) or one for name, one in value.items()}
    if isinstance(value, Mapping):
        forms = 40, {"height": 48, "width": 32}, {"shortest_edge": 40}, {"longest_edge": 44}
        return draw.choice([*forms, {"shortest_edge": 30, "longest_edge": 50}, [32, 48]])
    if isinstance(value, list) and value and isinstance(value[0], float):
        return draw.choice([value[::-1], value[0], [0.5, 0.5, 0.5], None])
    return draw.choice([True, False, None])


def outcome(seed: int) -> tuple[str, str]:
    """Return what one draw came to, "same", "refused", "theirs" or "differs", and of what it was."""
    draw = random.Random(seed)
    name = draw.choice([one for one in published.names() if one not in ("llama4", "lfm2_vl")])
    facts = published.read(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.json").write_text(json.dumps(published.scaled(facts)))
        known = settings_of(name)
        field = draw.choice(sorted(known.keys() - _NAMES))
        value = changed(facts["preprocessor_config"].get(field, known[field]), draw)
        settings = {**facts["preprocessor_config"], field: value}
        size, mode = draw.choice(SIZES), draw.choice(MODES)
        what = f"{name}: {field} = {value!r}, {size} {mode}, seed {seed}"
        theirs = _loaded({**facts, "preprocessor_config": settings}, folder)
        images = getattr(theirs, "image_processor", theirs)
        if images is None:
            return "theirs", what
        (folder / HELD).write_text(json.dumps(processors.held(theirs)))
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 4), np.uint8)
        shown = Image.fromarray(pixels).convert(mode)
        options = processors.options_of(theirs)
        options.pop("return_tensors", None)
        try:
            made = images([shown], **options)
            if any(np.isnan(one).any() for one in map(np.asarray, made.values())):
                return "theirs", f"{what}: no numbers"
        except Exception as error:
            return "theirs", f"{what}: {error}"
        try:
            ours = load_image_processor(folder)
            ours([shown])
        except ZooError as error:
            return "refused", f"{what}: {error}"
        found = difference(ours, images, shown, options)
        return ("differs", f"{what}: {found}") if found else ("same", what)


@cache
def settings_of(name: str) -> dict[str, Any]:
    """Return the settings that a published processor holds."""
    with tempfile.TemporaryDirectory() as place:
        facts, folder = published.read(name), Path(place)
        (folder / "config.json").write_text(json.dumps(published.scaled(facts)))
        found: dict[str, Any] = processors.held(_loaded(facts, folder))["image_processor"]
        return found


def _loaded(facts: Mapping[str, Any], folder: Path) -> Any:
    published.write(facts, folder)
    return processors.load(folder)


if __name__ == "__main__":
    resource.setrlimit(
        resource.RLIMIT_AS, (6 << 30, 6 << 30)
    )  # some sizes make transformers ask for more
    *before, last = map(int, sys.argv[1:])
    counts = Counter[str]()
    for seed in range(*before, last):
        try:
            kind, what = outcome(seed)
        except Exception as error:
            kind, what = "crash", f"seed {seed}: {type(error).__name__} {error}"
        counts[kind] += 1
        if kind in ("differs", "crash", "refused"):
            print(kind, what[:300], flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201
