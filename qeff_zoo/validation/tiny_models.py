# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a recipe's tiny models, with random weights that are large enough for a dropped fact to show."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from qeff_zoo.errors import ExportError
from qeff_zoo.recipe import Recipe, Tiny
from qeff_zoo.tasks import find

# Runs in a process of its own: transformers there is not ours to change.
_MAKE = """
import json, sys, torch, transformers
from qeff_zoo import tasks
from qeff_zoo.checkpoint.config import parsed_model_config
from qeff_zoo.export import architectures
transformers.logging.disable_progress_bar()
config, task, folder = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
architectures.register(config["model_type"])
config = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
torch.manual_seed(0)
sees = tasks.find(task).reads == "image" or {"vision", "audio"} & tasks.find(task).parts.keys()
own = parsed_model_config(config)
model = tasks.auto_class(task, own).from_config(own, dtype=torch.float32)
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
    if task.answers == "scores" and labelled:
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
    config = json.dumps(config_of(recipe, tiny))
    code = _MAKE.replace("manual_seed(0)", f"manual_seed({seed})")
    command = [sys.executable, "-W", "ignore", "-c", code, config, recipe.task, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExportError(
            f"transformers does not make the tiny model {tiny.name!r} of recipe {recipe.model_type!r}: "
            f"{done.stderr.strip().splitlines()[-1]} Expected arguments of its config class; correct the recipe."
        )
    if tiny.image_processor:
        text = json.dumps(dict(tiny.image_processor))
        (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
    return folder
