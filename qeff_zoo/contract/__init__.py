# SPDX-License-Identifier: Apache-2.0
"""The contract of tasks: what plan, export, validation, commands and runtime require of each kind of package.

The tasks themselves are folders of `qeff_zoo/tasks/`, above these; `_MODULES` has a row for each.
"""

import importlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import EMBEDDINGS, LOGITS, SCORES, Comparison
from qeff_zoo.contract.deferred import lazy as lazy
from qeff_zoo.graph.states import State
from qeff_zoo.package.option import Option
from qeff_zoo.recipe import Component, Recipe, Role, Shape

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tags that other packages of the code refer to.
TEXT_GENERATION = "text-generation"
FEATURE_EXTRACTION = "feature-extraction"
SPARSE_EMBEDDING = "sparse-embedding"
TEXT_CLASSIFICATION = "text-classification"
TEXT_RANKING = "text-ranking"
ENCODER_RANKING = "encoder-ranking"
TOKEN_CLASSIFICATION = "token-classification"
FILL_MASK = "fill-mask"
QUESTION_ANSWERING = "question-answering"
MULTIPLE_CHOICE = "multiple-choice"
IMAGE_CLASSIFICATION = "image-classification"
ZERO_SHOT = "zero-shot-image-classification"
IMAGE_FEATURE_EXTRACTION = "image-feature-extraction"
IMAGE_TEXT_TO_TEXT = "image-text-to-text"
IMAGE_TEXT_EMBEDDING = "image-text-embedding"
AUDIO_TEXT_TO_TEXT = "audio-text-to-text"
ANY_TO_ANY = "any-to-any"
SPEECH_RECOGNITION = "automatic-speech-recognition"
SPEECH_SEQ2SEQ = "speech-seq2seq"
TEXT2TEXT = "text2text-generation"
IMAGE_TO_TEXT = "image-to-text"
DEPTH_ESTIMATION = "depth-estimation"
OBJECT_DETECTION = "object-detection"
IMAGE_SEGMENTATION = "image-segmentation"
#: Every task, and the module of `qeff_zoo.tasks` that holds its value `TASK`.
_MODULES: Mapping[str, str] = {
    TEXT_GENERATION: "text_generation.task",
    FEATURE_EXTRACTION: "encoders.feature_extraction",
    SPARSE_EMBEDDING: "encoders.sparse_embedding",
    TEXT_CLASSIFICATION: "encoders.text_classification",
    TEXT_RANKING: "encoders.text_ranking",
    ENCODER_RANKING: "encoders.encoder_ranking",
    TOKEN_CLASSIFICATION: "encoders.token_classification",
    FILL_MASK: "encoders.fill_mask",
    QUESTION_ANSWERING: "encoders.question_answering",
    MULTIPLE_CHOICE: "encoders.multiple_choice",
    IMAGE_CLASSIFICATION: "images.image_classification",
    ZERO_SHOT: "images.zero_shot_image_classification",
    IMAGE_FEATURE_EXTRACTION: "images.image_feature_extraction",
    IMAGE_TEXT_TO_TEXT: "multimodal.image_text_to_text",
    IMAGE_TEXT_EMBEDDING: "multimodal.image_text_embedding",
    AUDIO_TEXT_TO_TEXT: "multimodal.audio_text_to_text",
    ANY_TO_ANY: "multimodal.any_to_any",
    SPEECH_RECOGNITION: "speech.ctc",
    SPEECH_SEQ2SEQ: "speech.seq2seq",
    "audio-classification": "audio_classification.task",
    TEXT2TEXT: "encoder_decoder.text2text_generation",
    IMAGE_TO_TEXT: "encoder_decoder.image_to_text",
    DEPTH_ESTIMATION: "depth_estimation.task",
    # Before detection without texts: its suffixes are longer.
    "zero-shot-object-detection": "zero_shot_detection.task",
    OBJECT_DETECTION: "object_detection.task",
    "text-to-speech": "text_to_speech.task",
    IMAGE_SEGMENTATION: "image_segmentation.task",
    "video-classification": "video_classification.task",
    "image-to-image": "image_to_image.task",
    "keypoint-detection": "keypoint_detection.task",
    "mask-generation": "mask_generation.task",
    "text-to-image": "diffusion.text_to_image",
    "text-to-video": "video_diffusion.text_to_video",
    "image-to-video": "video_diffusion.image_to_video",
}
NAMES = tuple(_MODULES)
#: Example input of a prompt, by the role of the program that encodes it.
_EXAMPLES = {"audio": "speech.wav", "vision": "--image photo.png"}

#: Suffix of the names of classes with a head of a masked language model.
MASKED_LM = "ForMaskedLM"
#: Suffix of the name of a class with a head.
HEAD = re.compile(r"(For[A-Z]\w*|LMHeadModel)$")

#: Options of a build, a `qeff_zoo.plan.request.Request`, which stands above the contract.
Request: TypeAlias = Any
#: Default of an option, and its source.
Default: TypeAlias = tuple[Any, str]


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """Inputs of `torch.export` for a task.

    Args:
        module: Module that takes the inputs by name and returns a flat tuple.
        inputs: Example inputs, small and on the CPU.
        dynamic_shapes: Dynamic shapes, as in `torch.export`, with named dimensions shared between inputs.
        input_names: Names of the flattened inputs.
        output_names: Names of the outputs.
        states: Inputs that are retained from call to call, and their contents.
        layers: Layer indices of the other inputs that belong to one layer.
        then: Function applied to the portable graph, in place; one trace may serve several variants.
        checked_later: Whether torch.export may defer its proof that every size fits, as for strided convolutions.
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
    """Tracing and specialization of one program of a task.

    Args:
        role: Role of the program.
        probe: Function `probe(model)` that runs a model once without any computation, and returns the states of a
            decoder; None for a part that runs as it is traced.
        tracing: Function `tracing(model, **variant)` that describes how to trace a model.
        half: Function `half(model)` that returns the module whose repeated layers the program runs, in a model of two
            halves; None for the whole model, and without a probe for no layers.
        wanted: Function that returns whether a checkpoint has this part, for a part that packages may lack.
        needed: Whether a recipe's models have it.
        optional: Whether a package omits it for a target that does not run it.
        component: Folder of the component that it runs, in a checkpoint of several; empty for other checkpoints.
        variant: Function `variant(checkpoint, recipe, shape, chosen)` that returns what changes the graph beyond its
            sizes.
        specializations: Function that returns the values of the graph's symbols for each kind of call, as in the
            manifest.
        sized: Function that returns the sizes of the program from those of the package.
    """

    role: Role
    probe: Callable[[Any], Any] | None
    tracing: Callable[..., Tracing]
    half: Callable[[Any], Any] | None = None
    wanted: Callable[["Checkpoint"], bool] = lambda checkpoint: True
    needed: Callable[[Recipe], bool] = lambda recipe: True
    optional: bool = False
    component: str = ""
    variant: Callable[["Checkpoint", Recipe, Shape, Mapping[str, Any]], dict[str, Any]] = (
        lambda checkpoint, recipe, shape, chosen: {}
    )
    specializations: Callable[[Shape], list[dict[str, Any]]]
    sized: Callable[["Checkpoint", Shape], Shape] = lambda checkpoint, shape: shape


@dataclass(frozen=True, kw_only=True)
class Task(Part):
    """A task of packages: supported models, tracing, specialization, runtime and validation.

    Values are light; functions import torch, numpy or a runtime when called. A task is the part that returns the
    result; parts that run before it, in programs of their own, are in `before`.

    Args:
        name: Hub pipeline tag, unless two tasks share a tag.
        does: Phrase that completes "models that", such as "embed texts".
        guide: Page of docs/ that explains it.
        tag: Hub pipeline tag, if it is not the name.
        program: Name of its program in a package of several; the role by default.
        before: Parts whose results it consumes, such as image or audio encoders.
        beside: Optional parts of a package: draft heads, word-level timestamps, or a video encoder.
        comparison: Comparison of its results with the reference's, by their kind: logits, embeddings, scores or values.
        by_token: Whether the model returns one result per token (or audio frame).
        reads: Kind of input of its packages.
        auto_classes: Automatic classes of transformers; the first that supports a configuration creates the model.
        suffixes: Suffixes of transformers' class names for the task.
        has_head: Whether such a class has a head with weights; otherwise any other class of the architecture fits too.
        on_request: Whether files beside a checkpoint or the user select it, and its class alone does not.
        head_of: Task whose classes have its head, if they are not its own.
        companion: File of a checkpoint that marks it for this task, whatever its class.
        shapes: Profiles of a recipe that serves it besides a task of another role.
        defaults: Function that returns a checkpoint's values of options that the user omitted.
        problems: Function that returns why a checkpoint cannot be built as requested, one sentence each.
        warnings: Function `warnings(checkpoint, chosen)` that returns possible surprises of the chosen options, one
            sentence each.
        generation_warnings: Function that returns settings of `generate` with another effect in a package, one sentence
            each.
        session: Function that returns the session class of its packages.
        public: Names that `qeff_zoo.sessions` exports for the task, such as its session class, each `module:name`.
        stages: Function that returns the planner of the compared calls, in `qeff_zoo.validation.trial.cases`.
        trial: Function that returns the class that runs its packages on sample inputs, a `TaskTrial` of
            `validation.trial.package_runner`.
        reference: Function that returns the class that runs transformers' model on the same inputs, of `(model,
            request, arrays)`: only the reference process imports it.
        commands: Implementations and options of `run`, `serve` and `bench` for its packages.
        reads_characters: Whether its sessions read the characters of texts without a backend of the tokenizers library.
        labelled: Whether its outputs name labels of the configuration although they are no scores of labels alone.
        vllm_task: Name of the task in vllm-qaic, for a pooling model; None if it has no API for the task.
    """

    name: str
    does: str
    guide: str
    tag: str = ""
    comparison: Comparison
    program: str = ""
    before: tuple[Part, ...] = ()
    beside: tuple[Part, ...] = ()
    by_token: bool = False
    reads: Literal["text", "image", "video", "audio"] = "text"
    auto_classes: tuple[str, ...]
    suffixes: tuple[str, ...]
    has_head: bool = True
    on_request: bool = False
    head_of: str = ""
    companion: str | None = None
    shapes: Mapping[str, Shape]
    defaults: Callable[["Checkpoint"], Mapping[str, Default]] = lambda checkpoint: {}
    problems: Callable[["Checkpoint", Recipe, Request], list[str]] = (
        lambda checkpoint, recipe, request: []
    )
    warnings: Callable[["Checkpoint", Mapping[str, Default]], list[str]] = (
        lambda checkpoint, chosen: []
    )
    generation_warnings: Callable[[Mapping[str, Any], Recipe], Iterable[str]] = (
        lambda generation, recipe: ()
    )
    session: Callable[[], Any]
    public: tuple[str, ...] = ()
    stages: Callable[[], Callable[..., Any]]
    trial: Callable[[], Callable[..., Any]]
    reference: Callable[[], Callable[..., Any]]
    commands: Commands
    reads_characters: bool = False
    labelled: bool = False
    vllm_task: str | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        """Parts that have a program, or may have one, by role; the task itself is first."""
        others = (*self.before, *self.beside)
        return {self.program or self.role: self, **{part.role: part for part in others}}

    @property
    def generates(self) -> bool:
        """Whether its model is a language model, which returns logits of tokens."""
        return self.comparison is LOGITS

    @property
    def embeds(self) -> bool:
        """Whether its model returns embeddings."""
        return self.comparison is EMBEDDINGS

    @property
    def scores(self) -> bool:
        """Whether its model returns scores of labels."""
        return self.comparison is SCORES

    def takes(self, option: Option) -> bool:
        """Whether an option of a build applies to the task."""
        return option.of in (
            None,
            self.comparison.name,
            *(part.role for part in self.parts.values()),
        )


def find(name: str) -> Task:
    """Return a task by its pipeline tag, one of `NAMES`."""
    task: Task = importlib.import_module(f"qeff_zoo.tasks.{_MODULES[name]}").TASK
    return task


def task_of(architecture: str, recipe: Recipe) -> str:
    """Return the task of a transformers class; the recipe's default if no task computes its head.

    Args:
        architecture: Class name.
        recipe: Recipe of its `model_type`.
    """
    return computed_by(architecture, recipe) or recipe.task


def computed_by(architecture: str, recipe: Recipe) -> str | None:
    """Return the task that computes the head of a transformers class; None if there is none.

    Args:
        architecture: Class name, one of the recipe's.
        recipe: Recipe of its `model_type`.
    """
    if recipe.media or recipe.pipeline:  # the suffix may be that of another task's class
        return recipe.task
    reads = find(recipe.task).reads
    alike = (one for one in map(find, NAMES) if one.reads == reads and not one.on_request)
    # Classes without a head come last: their suffix matches every name.
    every = sorted(alike, key=lambda task: not task.has_head)
    fitting = (task.name for task in every if architecture.endswith(task.suffixes))
    own = recipe.task if find(recipe.task).has_head or not HEAD.search(architecture) else None
    return next(fitting, own)


def tasks_of(recipe: Recipe) -> tuple[str, ...]:
    """Return every task that a recipe's architectures serve, its default first."""
    if recipe.images and recipe.audio:
        return recipe.task, AUDIO_TEXT_TO_TEXT, ANY_TO_ANY
    made_for = (task_of(architecture, recipe) for architecture in recipe.architectures)
    embeds = [IMAGE_TEXT_EMBEDDING] if recipe.embeds else []
    return tuple(dict.fromkeys([recipe.task, *made_for, *embeds]))


def served_by(recipe: Recipe) -> tuple[str, ...]:
    """Return every task that a recipe's checkpoints can be built for.

    Those beyond `tasks_of` have its models and another output, and no evidence of their own. Decoders rank if they
    classify: a whole text is read in one call. Masked language models have sparse embeddings,
    and models that embed rank by modules of sentence-transformers.
    """
    known = tasks_of(recipe)
    ranks = recipe.task == TEXT_GENERATION and TEXT_CLASSIFICATION in known
    masked = any(one.endswith(MASKED_LM) for one in recipe.architectures)
    return (
        *known,
        *([TEXT_RANKING] if ranks else []),
        *([SPARSE_EMBEDDING] if masked else []),
        *([ENCODER_RANKING] if FEATURE_EXTRACTION in known else []),
    )


def scores_texts(task: str) -> bool:
    """Return whether a task scores pairs of texts, as a CrossEncoder does."""
    return task in (TEXT_CLASSIFICATION, TEXT_RANKING, ENCODER_RANKING)


def names_labels(task: str) -> bool:
    """Return whether the outputs of a task are the labels that a configuration names."""
    found = find(task)
    scores = found.scores and not found.head_of and task not in (ZERO_SHOT, ENCODER_RANKING)
    return scores or found.labelled


def for_task(recipe: Recipe, task: str) -> Recipe:
    """Return a recipe adapted to one of its tasks."""
    wanted = find(task)
    same = wanted.role == find(recipe.task).role
    shapes = recipe.shapes if same else wanted.shapes
    read: dict[str, Any] = {}
    if recipe.images and recipe.audio and task != ANY_TO_ANY:
        read = {"images" if task == AUDIO_TEXT_TO_TEXT else "audio": None}
    return replace(recipe, task=task, shapes=shapes, **read)


def components_of(recipe: Recipe, *beside: str) -> tuple[Component, ...]:
    """Return the models that become programs of a package: those of its task, usually one.

    Args:
        recipe: Recipe for its task.
        *beside: Roles of the optional parts that the package has.
    """
    task = find(recipe.task)
    left_out = {part.role for part in task.beside} - {*beside}
    left_out |= {part.role for part in task.before if not part.needed(recipe)}
    return tuple(
        Component(role=role, task=task.name) for role in task.parts if role not in left_out
    )


def wanted_beside(recipe: Recipe, checkpoint: "Checkpoint", runs: Collection[str]) -> list[str]:
    """Return the roles of the optional parts that a package has.

    Args:
        recipe: Recipe for its task.
        checkpoint: Checkpoint of the build.
        runs: Roles that the target runs beside the task's own program.
    """
    needed = [part for part in find(recipe.task).beside if part.needed(recipe)]
    taken = [part for part in needed if not part.optional or part.role in runs]
    return [part.role for part in taken if part.wanted(checkpoint)]


def part_of(component: Component) -> Part:
    """Return the part of a component, with its tracing and specialization."""
    task = find(component.task)
    return task.parts.get(component.role, task)


def named(name: str, every: list[dict[str, int]]) -> list[dict[str, Any]]:
    """Name the specializations of one kind, with numbers if there are several.

    Args:
        name: Name of the kind.
        every: Sizes of each specialization, by symbol.
    """
    return [
        {
            "name": name if len(every) == 1 else f"{name}_{number}",
            "symbols": {key: str(value) for key, value in symbols.items()},
        }
        for number, symbols in enumerate(every)
    ]


def auto_class(task: str, config: Any) -> Any:
    """Return transformers' automatic class that creates a task's model.

    Args:
        task: Hub pipeline tag.
        config: Config of the model, parsed by transformers.
    """
    import transformers

    classes = [getattr(transformers, name) for name in find(task).auto_classes]
    return next((one for one in classes if type(config) in one._model_mapping), classes[-1])


def example(name: str) -> str:
    """Return example inputs of a task for `run`.

    Args:
        name: Name of the task; of an unknown task, the inputs are a text.
    """
    task = find(name) if name in NAMES else None
    if task is None or task.reads == "text":
        inputs = [given for role, given in _EXAMPLES.items() if task and role in task.parts]
        if inputs and task and task.generates:
            return f"{' '.join(inputs)} --chat --prompt 'What is this?'"
        return "--prompt 'Once upon a time'"
    given = {
        "image": "--image photo.png", "video": "--video clip.mp4", "audio": "speech.wav"
    }  # fmt: skip
    return given[task.reads]
