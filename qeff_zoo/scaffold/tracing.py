# SPDX-License-Identifier: Apache-2.0
"""Trial of a drafted recipe in this process: the text is executed, and each program traced without any computation."""

from types import ModuleType

from qeff_zoo import registry
from qeff_zoo.contract import find
from qeff_zoo.errors import ZooError
from qeff_zoo.recipe import Recipe

#: Errors of foreign modelling code on a configuration that it does not accept.
FAILURES: tuple[type[Exception], ...] = (
    *(ZooError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(RuntimeError, StopIteration, TypeError, ValueError),
)
#: Programs of parts of an image, which are traced like that of the whole.
_ALIKE = ("tiles", "frames")


def execute(text: str, model_type: str) -> Recipe:
    """Return the recipe that a draft defines.

    Args:
        text: Content of its file.
        model_type: Model type.
    """
    module = ModuleType(f"qeff_zoo.recipes.{registry.file_name(model_type)}")
    module.__package__ = "qeff_zoo.recipes"
    exec(compile(text, module.__name__, "exec"), vars(module))
    recipe: Recipe = module.RECIPE
    return recipe


def trace(recipe: Recipe) -> None:
    """Trace every program of a recipe's first tiny model, symbolically.

    Args:
        recipe: Recipe of a model that encodes images or audio, or of an encoder-decoder.

    Raises:
        ZooError: A transform misses its count, or transformers rejects the config.
        Exception: An error of the forward, if the declarations do not fit the model.
    """
    from qeff_zoo.export import exporter, loader
    from qeff_zoo.multimodal.manifest import entry_of

    config = {"model_type": recipe.model_type, **recipe.tiny[0].config}
    recipe = registry.with_parts(recipe, config)
    model = loader.load_meta(config, recipe)
    task = find(recipe.task)
    images = {"images": entry_of(recipe.images)} if recipe.images else {}
    both = {**images, "audio": entry_of(recipe.audio)} if recipe.audio else images
    variants = {"vision": images, "audio": both, task.role: both}
    if (
        task.role == "vision" and task.probe
    ):  # a processor determines the size of the program's images
        task.probe(model)
        return
    for part in (*task.before, task):
        if part.needed(recipe) and part.role not in _ALIKE:
            exporter.run_once(part.tracing(model, **variants.get(part.role, {})))
