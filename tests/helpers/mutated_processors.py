# SPDX-License-Identifier: Apache-2.0
"""Published processors with one field changed: arrays and prompts as transformers makes them, or a refusal by name.

As a script it draws so many of each, or some of them, and prints differences:
`python tests/helpers/mutated_processors.py 24 1000`.
"""

import inspect
import json
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import published_processors as published
import torch
from PIL import Image

from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import ZooError
from qeff_zoo.media.image_processor import load_image_processor
from qeff_zoo.tasks.multimodal import image_text_to_text
from qeff_zoo.validation.content.image_arrays import difference

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
        return {name: changed(entry, draw) or entry for name, entry in value.items()}
    if isinstance(value, Mapping):
        forms = 40, {"height": 48, "width": 32}, {"shortest_edge": 40}, {"longest_edge": 44}
        return draw.choice([*forms, {"shortest_edge": 30, "longest_edge": 50}, [32, 48]])
    if isinstance(value, list) and value and isinstance(value[0], float):
        return draw.choice([value[::-1], value[0], [0.5, 0.5, 0.5], None])
    return draw.choice([True, False, None])


def outcome(seed: int) -> tuple[str, str]:
    """Return what one draw came to, "same", "refused", "theirs" or "differs", and of what it was."""
    draw = random.Random(seed)
    name = draw.choice(published.names())
    facts = published.read(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.json").write_text(json.dumps(published.scaled(facts)))
        known = settings_of(name)
        field = draw.choice(sorted(known.keys() - _NAMES))
        saved = _settings_in(facts)
        value = changed(saved.get(field, known[field]), draw)
        settings = {**saved, field: value}
        size, mode = draw.choice(SIZES), draw.choice(MODES)
        what = f"{name}: {field} = {value!r}, {size} {mode}, seed {seed}"
        reference = _loaded({**facts, **_placed(facts, settings, draw)}, folder)
        images = getattr(reference, "image_processor", reference)
        if images is None:
            return "theirs", what
        (folder / PROCESSOR_SETTINGS).write_text(json.dumps(processors.held(reference)))
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 4), np.uint8)
        shown = Image.fromarray(pixels).convert(mode)
        options = processors.options_of(reference)
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
        # Of Nemotron, whose images are resized in float32, before values are rescaled.
        scale = 1 if ours.settings["do_rescale"] else 255
        within = 1e-5 * scale if name == "nemotron_h_omni" else 0
        found = difference(ours, images, shown, options, within)
        return ("differs", f"{what}: {found}") if found else ("same", what)


def _settings_in(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the published settings of an image processor, in a file of their own or in the processor's."""
    found: Mapping[str, Any] = (
        facts["preprocessor_config"] or facts["processor_config"]["image_processor"]
    )
    return found


def _placed(
    facts: Mapping[str, Any], settings: Mapping[str, Any], draw: random.Random
) -> dict[str, Any]:
    """Return the files with settings of an image processor, as either generation of transformers saves them."""
    if facts["preprocessor_config"] is not None and draw.random() < 0.5:
        return {"preprocessor_config": settings}
    whole = {**(facts.get("processor_config") or {}), "image_processor": settings}
    return {"preprocessor_config": None, "processor_config": whole}


def prompt_outcome(seed: int) -> tuple[str, str]:
    """Return the outcome of one draw among fields of processor_config.json, by the tokens of a prompt with images."""
    draw = random.Random(seed)
    name = draw.choice(published.names())
    while not fields_of(name):
        name = draw.choice(published.names())
    facts = published.read(name)
    field = draw.choice(sorted(fields_of(name)))
    saved = facts.get("processor_config") or {}
    value = _changed_field(saved.get(field, fields_of(name)[field]), facts, draw)
    prompt = draw.choice(facts["prompts"])
    kind, what = prompt_with(name, field, value, prompt)
    return kind, f"seed {seed}, {what}"


def prompt_with(name: str, field: str, value: Any, prompt: str) -> tuple[str, str]:
    """Return the outcome of a prompt with a field of a published processor_config.json set to a value."""
    import fixtures_published
    import parity
    from fixtures_media_recipes import session_of

    facts = published.read(name)
    saved = facts.get("processor_config") or {}
    what = f"{name}: {field} = {value!r}, {prompt!r}"
    right = fixtures_published.opened(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkpoint"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(published.scaled(facts)))
        try:
            theirs = _loaded({**facts, "processor_config": {**saved, field: value}}, folder)
            one = replace(right, processor=theirs)
            shown = one.shown(prompt)
            expected = one.process(prompt, shown)
        except Exception as error:
            return "theirs", f"{what}: {error}"
        try:
            processors.write(folder, folder)
            case = parity.Case(recipe=right.subject.recipe, tiny=fixtures_published.tiny_of(name))
            subject: Any = SimpleNamespace(
                folder=Path(place), transformed=right.subject.transformed
            )
            session: Any = session_of(case, subject)
            session._processor, session.prepare = right.session._processor, right.session.prepare
            made = session.request(prompt, images=shown, generation_len=1)
        except ZooError as error:
            return "refused", f"{what}: {error}"
        ids = expected["input_ids"][0].tolist()
        checkpoint = open_checkpoint(str(folder), need_weights=False)
        if wrong := [*image_text_to_text._of_processor(checkpoint)]:
            return "refused", f"{what}: {wrong}"
        if list(made.prompt) == ids:
            return "same", what
        try:
            with torch.no_grad():
                right.subject.hf(**expected, use_cache=False)
        except Exception as error:
            return "theirs", f"{what}: {error}"
        return "differs", f"{what}: {list(made.prompt)[:12]}, and transformers' {ids[:12]}"


def _changed_field(value: Any, facts: Mapping[str, Any], draw: random.Random) -> Any:
    """Return another value of a field of a processor: of a token, another token."""
    if isinstance(value, str) and value in facts["tokens"]:
        return draw.choice([*sorted(facts["tokens"]), "", None])
    if isinstance(value, str):
        return draw.choice(["default", "full", value.upper(), None])
    return changed(value, draw)


@cache
def fields_of(name: str) -> dict[str, Any]:
    """Return the fields that the class of a published processor takes, its parts aside, with their defaults."""
    with tempfile.TemporaryDirectory() as place:
        facts, folder = published.read(name), Path(place)
        (folder / "config.json").write_text(json.dumps(published.scaled(facts)))
        reference = _loaded(facts, folder)
    if not hasattr(reference, "get_attributes"):
        return {}
    taken = inspect.signature(type(reference).__init__).parameters.values()
    named = [one for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD][1:]
    parts = {*reference.get_attributes(), "chat_template"}
    found = {entry.name: entry.default for entry in named if entry.name not in parts}
    return {key: None if of is inspect.Parameter.empty else of for key, of in found.items()}


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
    from spelled_torchvision import spelled_out

    *before, last = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as cached, spelled_out():
        os.environ.setdefault("QEFF_ZOO_TEST_CACHE", cached)
        for drawn in (prompt_outcome, outcome):
            counts = Counter[str]()
            for seed in range(*before, last):
                try:
                    kind, what = drawn(seed)
                except Exception as error:
                    kind, what = "crash", f"seed {seed}: {type(error).__name__} {error}"
                counts[kind] += 1
                if kind in ("differs", "crash", "refused"):
                    print(kind, what[:300], flush=True)  # noqa: T201
            print(drawn.__name__, dict(counts))  # noqa: T201
