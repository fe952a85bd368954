# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a recipe's tiny models, with random weights that are large enough for a dropped fact to show."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from qeff_zoo.contract import find
from qeff_zoo.errors import ExportError
from qeff_zoo.recipe import Recipe, Tiny

# Runs in a process of its own: transformers there is not ours to change.
_MAKE = """
import json, sys, torch, transformers
from qeff_zoo import contract
from qeff_zoo.checkpoint.config import parsed_model_config
from qeff_zoo.export import architectures
transformers.logging.disable_progress_bar()
config, task, folder = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
architectures.register(config["model_type"])
config = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
torch.manual_seed(0)
task_of = contract.find(task)
sees = task_of.reads in ("image", "video") or {"vision", "audio"} & task_of.parts.keys()
own = parsed_model_config(config)
model = contract.auto_class(task, own).from_config(own, dtype=torch.float32)
for parameter in model.parameters():
    # Norms and biases: away from their ones and zeros; so is all that is nothing in encoders of images or audio.
    if parameter.dim() == 1 or (sees and not parameter.any()):
        parameter.data += 0.1 * torch.randn_like(parameter)
model.save_pretrained(folder)
if own is not config:
    config.save_pretrained(folder)
"""


_LABELS, _PADDING = 3, 5


def config_of(recipe: Recipe, tiny: Tiny) -> dict[str, Any]:
    """Return a tiny model's config.json as it is for the recipe's task.

    Args:
        recipe: Recipe of the model, for one of its tasks.
        tiny: Which of its tiny models.
    """
    config = {"model_type": recipe.model_type, **tiny.config}
    task = find(recipe.task)
    labelled = task.reads == "text" or (task.reads == "audio" and not task.by_token)
    if task.scores and labelled:
        # Decoders find a text's last token by the id of padding.
        return {"pad_token_id": _PADDING, **config, "num_labels": _LABELS}
    return config


def make(recipe: Recipe, tiny: Tiny, folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny model's checkpoint, unpatched and seeded.

    Args:
        recipe: Recipe of the model.
        tiny: Which of its tiny models.
        folder: A folder that does not exist yet.
        seed: Seed of the weights.

    Raises:
        ExportError: transformers does not make a model of the configuration.
    """
    if recipe.pipeline:
        return _make_pipeline(recipe, tiny, folder, seed)
    config = json.dumps(config_of(recipe, tiny))
    code = _MAKE.replace("manual_seed(0)", f"manual_seed({seed})")
    command = [sys.executable, "-W", "ignore", "-c", code, config, recipe.task, str(folder)]
    _run(command, recipe, tiny)
    if tiny.image_processor:
        text = json.dumps(dict(tiny.image_processor))
        (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
    return folder


def _run(command: list[str], recipe: Recipe, tiny: Tiny, text: str | None = None) -> None:
    """Run the process that makes a tiny model; its error becomes ours."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExportError(
            f"transformers does not make the tiny model {tiny.name!r} of recipe {recipe.model_type!r}: "
            f"{done.stderr.strip().splitlines()[-1]} Expected arguments of its config class; correct the recipe."
        )


def request_of(recipe: Recipe, tiny: Tiny, seed: int = 0) -> dict[str, Any]:
    """Return the request for a tiny pipeline's checkpoint, see `qeff_zoo.validation.reference.tiny_pipelines`.

    Args:
        recipe: Recipe of the pipeline.
        tiny: One of its tiny models.
        seed: Seed of the weights.
    """
    assert recipe.pipeline, f"{recipe.model_type} is no pipeline"
    return {
        "name": recipe.model_type,
        "classes": {
            folder: kind
            for folder, kind in recipe.pipeline.components.items()
            if folder in tiny.config
        },
        "config": dict(tiny.config),
        "seed": seed,
    }


def _make_pipeline(recipe: Recipe, tiny: Tiny, folder: Path, seed: int) -> Path:
    """Write the checkpoint of a tiny pipeline, by diffusers in a process of its own."""
    module = "qeff_zoo.validation.reference.tiny_pipelines"
    command = [sys.executable, "-W", "ignore", "-m", module, str(folder)]
    _run(command, recipe, tiny, json.dumps(request_of(recipe, tiny, seed)))
    return folder
