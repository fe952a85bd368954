# SPDX-License-Identifier: Apache-2.0
"""Tasks: classes, tracing, programs, sessions, validation and commands of each kind of package.

One row of `_MODULES` per task, one folder per group.
"""

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from qeff_zoo.graph.states import State
from qeff_zoo.plan.option import Option
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Component, Recipe, Role, Shape
from qeff_zoo.tasks.commands import Commands

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tags that other rooms name.
TEXT_GENERATION = "text-generation"
FEATURE_EXTRACTION = "feature-extraction"
TEXT_CLASSIFICATION = "text-classification"
TOKEN_CLASSIFICATION = "token-classification"
IMAGE_CLASSIFICATION = "image-classification"
ZERO_SHOT = "zero-shot-image-classification"
IMAGE_FEATURE_EXTRACTION = "image-feature-extraction"
IMAGE_TEXT_TO_TEXT = "image-text-to-text"
AUDIO_TEXT_TO_TEXT = "audio-text-to-text"
ANY_TO_ANY = "any-to-any"
SPEECH_RECOGNITION = "automatic-speech-recognition"
SPEECH_SEQ2SEQ = "speech-seq2seq"
TEXT2TEXT = "text2text-generation"
IMAGE_TO_TEXT = "image-to-text"
#: Every task, and the module of this package that holds its value `TASK`.
_MODULES: Mapping[str, str] = {
    TEXT_GENERATION: "text_generation.task",
    FEATURE_EXTRACTION: "encoders.feature_extraction",
    TEXT_CLASSIFICATION: "encoders.text_classification",
    TOKEN_CLASSIFICATION: "encoders.token_classification",
    IMAGE_CLASSIFICATION: "images.image_classification",
    ZERO_SHOT: "images.zero_shot_image_classification",
    IMAGE_FEATURE_EXTRACTION: "images.image_feature_extraction",
    IMAGE_TEXT_TO_TEXT: "image_text_to_text",
    AUDIO_TEXT_TO_TEXT: "audio_text_to_text",
    ANY_TO_ANY: "any_to_any",
    SPEECH_RECOGNITION: "speech.ctc",
    SPEECH_SEQ2SEQ: "speech.seq2seq",
    "audio-classification": "audio_classification.task",
    TEXT2TEXT: "encoder_decoder.text2text_generation",
    IMAGE_TO_TEXT: "encoder_decoder.image_to_text",
}
NAMES = tuple(_MODULES)

AnswerKind: TypeAlias = Literal["logits", "embeddings", "scores"]
#: Default of an option, and its origin.
Default: TypeAlias = tuple[Any, str]


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """All that `torch.export` needs of a task.

    Args:
        module: Takes the inputs by name, returns a flat tuple.
        inputs: Example inputs, small and on the CPU.
        dynamic_shapes: As `torch.export` takes them, with named dimensions shared between inputs.
        input_names: Of the flattened inputs.
        output_names: Of the outputs.
        states: Which of the inputs are retained from call to call, and what they hold.
        layers: Of the other inputs, those that belong to one layer, and its index.
        then: Applied to the portable graph, in place; one trace may serve several variants.
        checked_later: torch.export need not prove at once that every size fits, as of strided convolutions.
    """

    module: Any
    inputs: dict[str, Any]
    dynamic_shapes: dict[str, Any]
    input_names: list[str]
    output_names: list[str]
    states: Sequence[State] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    then: Callable[[Any], object] | None = None
    checked_later: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """How one program of a task is traced and specialized.

    Args:
        role: Of the program.
        probe: `probe(model)` runs a model once without computing anything, and returns the states of a decoder; None
            for a part that is run as it is traced.
        tracing: `tracing(model, **variant)` describes how to trace a model.
        half: `half(model)` is the module whose repeated layers it runs, of a model of two halves; None for all of it,
            and without a probe for none.
        wanted: Of a part that a package may have or not, whether that of a checkpoint has it.
        needed: Whether a recipe's models have it.
        optional: Whether packages for a target that does not run it go without.
        variant: `variant(checkpoint, recipe, shape, chosen)` says what changes the graph beyond its sizes.
        specializations: What the symbols of its graph are for each way of calling it, as in the manifest.
    """

    role: Role
    probe: Callable[[Any], Any] | None
    tracing: Callable[..., Tracing]
    half: Callable[[Any], Any] | None = None
    wanted: Callable[["Checkpoint"], bool] = lambda checkpoint: True
    needed: Callable[[Recipe], bool] = lambda recipe: True
    optional: bool = False
    variant: Callable[["Checkpoint", Recipe, Shape, Mapping[str, Any]], dict[str, Any]] = (
        lambda checkpoint, recipe, shape, chosen: {}
    )
    specializations: Callable[[Shape], list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Task(Part):
    """What a package may be for: which models it takes, how they are traced, specialized, run and judged.

    Values are light; what needs torch, numpy or a runtime is imported by the functions when they are called. A task is
    the part that answers; what runs before it, and has programs of its own in the package, is in `before`.

    Args:
        name: Hub pipeline tag, but where two tasks have one.
        tag: That, where the name is not.
        program: What its program is called in a package of several; its role where there is one.
        before: Parts whose results it reads, as the pictures or sounds that a tower has read.
        beside: Parts that a package may have or not: heads that draft for it, what times words, or what reads videos.
        answers: Logits of a language model, embeddings, or a classifier's scores.
        by_token: Whether each token, or frame of sound, has an answer of its own.
        reads: What its packages read.
        auto_classes: transformers' automatic classes; the first that knows a configuration makes the model.
        suffixes: How the names of transformers' classes end that are made for it.
        has_head: Whether such a class has weights of its own; else any other class of the architecture will do too.
        companion: A file beside a checkpoint that says that it is meant for this, whatever its class.
        shapes: Profiles of a recipe that serves it besides a task of another role.
        defaults: What a checkpoint says of choices that the user left out.
        problems: Why a checkpoint of a recipe cannot be built as requested, one sentence each.
        session: Returns the class that runs its packages.
        stages: Returns the function of `qeff_zoo.validation.cases` that plans the calls that are compared.
        trial: Returns the class that runs its packages on sample inputs, a `TaskTrial` of `validation.package_runner`.
        reference: Returns the class that runs transformers' model on the same, of `(model, request, arrays)`: only the
            reference process imports it.
        commands: What `run`, `serve` and `bench` do with its packages, and with which options.
        vllm_task: What vllm-qaic calls it where it is a pooling model's; None where it has no API for it.
    """

    name: str
    tag: str = ""
    answers: AnswerKind
    program: str = ""
    before: tuple[Part, ...] = ()
    beside: tuple[Part, ...] = ()
    by_token: bool = False
    reads: Literal["text", "image", "sound"] = "text"
    auto_classes: tuple[str, ...]
    suffixes: tuple[str, ...]
    has_head: bool = True
    companion: str | None = None
    shapes: Mapping[str, Shape]
    defaults: Callable[["Checkpoint"], Mapping[str, Default]] = lambda checkpoint: {}
    problems: Callable[["Checkpoint", Recipe, Request], list[str]] = (
        lambda checkpoint, recipe, request: []
    )
    session: Callable[[], Any]
    stages: Callable[[], Callable[..., Any]]
    trial: Callable[[], Callable[..., Any]]
    reference: Callable[[], Callable[..., Any]]
    commands: Commands
    vllm_task: str | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        """What has a program, or may have one, by the role of that; the one that answers is first."""
        others = (*self.before, *self.beside)
        return {self.program or self.role: self, **{part.role: part for part in others}}

    def takes(self, option: Option) -> bool:
        """Tell whether a choice of a build means anything to it."""
        return option.of in (None, self.answers, *(part.role for part in self.parts.values()))


def lazy(name: str) -> Callable[[], Any]:
    """Return a function that imports a module and returns one of its values.

    Args:
        name: `module:value`.
    """
    module, _, value = name.partition(":")
    return lambda: getattr(importlib.import_module(module), value)


def find(name: str) -> Task:
    """Return a task by its pipeline tag, one of `NAMES`."""
    task: Task = importlib.import_module(f"{__name__}.{_MODULES[name]}").TASK
    return task


def task_of(architecture: str, recipe: Recipe) -> str:
    """Return the task that a class of transformers is made for; the recipe's own where its name does not tell.

    Args:
        architecture: Class name.
        recipe: Of its `model_type`.
    """
    if recipe.media:  # a name may end as that of a class for text alone
        return recipe.task
    reads = find(recipe.task).reads
    alike = (task for task in map(find, NAMES) if task.reads == reads)
    # What has no head is recognized last: every name may end like that.
    every = sorted(alike, key=lambda task: not task.has_head)
    told = (task.name for task in every if architecture.endswith(task.suffixes))
    return next(told, recipe.task)


def tasks_of(recipe: Recipe) -> tuple[str, ...]:
    """Return every task that a recipe serves, its own first: those that its architectures are made for."""
    if recipe.images and recipe.sounds:
        return recipe.task, AUDIO_TEXT_TO_TEXT, ANY_TO_ANY
    made_for = (task_of(architecture, recipe) for architecture in recipe.architectures)
    return tuple(dict.fromkeys([recipe.task, *made_for]))


def for_task(recipe: Recipe, task: str) -> Recipe:
    """Return a recipe as it is for one of its tasks."""
    wanted = find(task)
    same = wanted.role == find(recipe.task).role
    shapes = recipe.shapes if same else wanted.shapes
    read: dict[str, Any] = {}
    if recipe.images and recipe.sounds and task != ANY_TO_ANY:
        read = {"images" if task == AUDIO_TEXT_TO_TEXT else "sounds": None}
    return replace(recipe, task=task, shapes=shapes, **read)


def components_of(recipe: Recipe, *beside: str) -> tuple[Component, ...]:
    """Return the models that become programs of a package: those of its task, which for most is one.

    Args:
        recipe: As it is for its task.
        *beside: Roles of parts that the package is to have, of those that it may have or not.
    """
    task = find(recipe.task)
    left_out = {part.role for part in task.beside} - {*beside}
    left_out |= {part.role for part in task.before if not part.needed(recipe)}
    return tuple(
        Component(role=role, task=task.name) for role in task.parts if role not in left_out
    )


def wanted_beside(recipe: Recipe, checkpoint: "Checkpoint", runs: Collection[str]) -> list[str]:
    """Return the roles of what a package has, of parts that it may have or not.

    Args:
        recipe: As it is for its task.
        checkpoint: To be built.
        runs: Roles that the target runs beside a program that answers.
    """
    needed = [part for part in find(recipe.task).beside if part.needed(recipe)]
    taken = [part for part in needed if not part.optional or part.role in runs]
    return [part.role for part in taken if part.wanted(checkpoint)]


def part_of(component: Component) -> Part:
    """Return how a component is traced and specialized."""
    task = find(component.task)
    return task.parts.get(component.role, task)


def named(name: str, every: list[dict[str, int]]) -> list[dict[str, Any]]:
    """Name specializations of one kind, and number them where there are several.

    Args:
        name: Of the kind.
        every: Size by symbol of each.
    """
    return [
        {
            "name": name if len(every) == 1 else f"{name}_{number}",
            "symbols": {key: str(value) for key, value in symbols.items()},
        }
        for number, symbols in enumerate(every)
    ]


def auto_class(task: str, config: Any) -> Any:
    """Return transformers' automatic class that makes a task's model.

    Args:
        task: Hub pipeline tag.
        config: The model's, as transformers parses it.
    """
    import transformers

    classes = [getattr(transformers, name) for name in find(task).auto_classes]
    return next((one for one in classes if type(config) in one._model_mapping), classes[-1])
