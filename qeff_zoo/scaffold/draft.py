# SPDX-License-Identifier: Apache-2.0
"""A recipe's first draft: a model's config.json in, the text of `recipes/<model_type>.py` out.

The nearest existing recipe is changed where the new architecture has the same fields, else a recipe is written whole.
What the draft claims is tried on transformers' own modules, without weights: how many norms and expert blocks there
are, whether norm weights have an offset, and that the tiny configuration runs. The words are left to its author.
"""

import difflib
import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from qeff_zoo import registry
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.contract import find
from qeff_zoo.errors import StoreError, UnsupportedModelError, ZooError
from qeff_zoo.recipe import DECODER_SHAPES, ENCODER_SHAPES, IMAGE_SHAPES, Recipe
from qeff_zoo.scaffold.counting import Counted
from qeff_zoo.scaffold.shrinking import deepen, fields_of, parse, shrink
from qeff_zoo.scaffold.source import Call, Code, Spread, layout
from qeff_zoo.scaffold.subject import Subject, examine, family_of, parents_of
from qeff_zoo.scaffold.tracing import FAILURES, execute
from qeff_zoo.unsupported import draftable

from . import composed, counting

MAX_LINES = 40
_SHAPES = {
    "decoder": ("DECODER_SHAPES", DECODER_SHAPES),
    "encoder": ("ENCODER_SHAPES", ENCODER_SHAPES),
    "vision": ("IMAGE_SHAPES", IMAGE_SHAPES),
}
# From awkward to plain, until the model runs.
_PLAINER = ((), ("head_dim",), ("num_key_value_heads",), ("head_dim", "num_key_value_heads"))


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A drafted recipe.

    Args:
        model_type: Model type.
        relative: `model_type` of the recipe that is nearest; None if there is no recipe for the task.
        text: Content of the recipe's file.
        file_name: Name of the recipe's file.
        notes: Open points for the author, one sentence each.
    """

    model_type: str
    relative: str | None
    text: str
    file_name: str
    notes: tuple[str, ...]


@dataclass(kw_only=True)
class _Draft:
    """A recipe under construction."""

    subject: Subject
    nearest: Recipe | None
    tiny: dict[str, Any]
    counted: list[Counted]
    notes: list[str] = field(default_factory=list)


def propose(model: str) -> Proposal:
    """Draft a recipe for an architecture that has none.

    Args:
        model: Hub id, folder or config.json; only the configuration is read.

    Raises:
        UnsupportedModelError: transformers has no such model, or no task of qeff-zoo computes it.
        ZooError: There is a recipe already, or the configuration cannot be read.

    Example:
        >>> proposal = propose("allenai/OLMo-2-0425-1B")  # doctest: +SKIP
        >>> write(proposal, Path("recipes"))  # doctest: +SKIP
    """
    return next(proposals(model))


def proposals(model: str) -> Iterator[Proposal]:
    """Yield drafts of a recipe, each with another family of encoders; see `propose`.

    Args:
        model: Hub id, folder or config.json.
    """
    checkpoint = open_checkpoint(model, need_weights=False)
    config = checkpoint.config
    name = registry.file_name(str(config["model_type"]))
    if name in registry.list_model_types():
        raise ZooError(
            f"There is a recipe for model_type {config['model_type']!r} already; expected a model without one. "
            f"Run `qeff-zoo show {name}` to see it, and extend it where it falls short."
        )
    with _quiet():
        reason = registry.reason_of(str(config["model_type"]))
        subject = None if reason and reason not in draftable() else examine(config)
        if subject is None or (reason and not subject.is_composed):
            raise UnsupportedModelError(
                f"No recipe of model_type {config['model_type']!r} can be drafted. {reason} Expected a model that a "
                "task of qeff-zoo computes. If the reason no longer holds, remove its line from "
                "qeff_zoo/unsupported.json."
            )
        if subject.is_composed:
            for one in composed.drafts(subject, _settings(checkpoint)):
                yield _proposal(subject, one.relative, one.text, one.notes)
        else:
            draft = _draft(subject)
            yield _proposal(subject, draft.nearest, _text(draft), draft.notes)


def _proposal(
    subject: Subject, nearest: Recipe | None, text: str, notes: Sequence[str]
) -> Proposal:
    name, lines = registry.file_name(subject.model_type), text.count("\n")
    long = f"The draft has {lines} lines, {MAX_LINES} are expected. Shorten its tiny configuration."
    last = f"Complete what says 'Complete this', then run `qeff-zoo validate {name} --record`."
    return Proposal(
        model_type=subject.model_type,
        relative=nearest.model_type if nearest else None,
        text=text,
        file_name=f"{name}.py",
        notes=(*notes, *([long] if lines > MAX_LINES else []), last),
    )


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the content of a checkpoint's preprocessor_config.json; empty without the file."""
    file = checkpoint.companions.get("preprocessor_config.json")
    settings: Mapping[str, Any] = read_json(file) if file else {}
    return settings


def write(proposal: Proposal, folder: Path) -> Path:
    """Write a drafted recipe; never over another file.

    Args:
        proposal: Proposal from `propose`.
        folder: Folder of the recipe, created if it is absent.

    Returns:
        The path of the file.

    Raises:
        StoreError: The file is there already, or cannot be written.
    """
    path = folder / proposal.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(proposal.text)
    except OSError as error:
        raise StoreError(
            f"Cannot write {str(path)!r}: {error.strerror}. Expected a folder that this user may write, without that "
            f"file. Give another folder with --output."
        ) from error
    return path


def _draft(subject: Subject) -> _Draft:
    """Draft with the most awkward tiny configuration that runs, or with the most awkward one if none does."""
    drafts, problems = [], []
    for plain in _PLAINER:
        try:
            drafts.append(_draft_with(subject, plain))
            _try(drafts[-1])
        except FAILURES as error:
            problems.append(f"{type(error).__name__}: {error}".splitlines()[0].rstrip("."))
            continue
        if plain:
            drafts[-1].notes.append(
                f"It runs only with plain {' and '.join(plain)} ({problems[0]})."
            )
        return drafts[-1]
    if not drafts:
        raise UnsupportedModelError(
            f"No recipe can be drafted for model_type {subject.model_type!r}: {problems[0]}. Expected a configuration "
            f"that shrinks. Write recipes/{registry.file_name(subject.model_type)}.py by hand."
        )
    drafts[0].notes.append(f"Its tiny model does not run on retained states yet ({problems[0]}).")
    return drafts[0]


def _draft_with(subject: Subject, plain: tuple[str, ...]) -> _Draft:
    tiny = shrink(subject.config, plain=plain)
    double = shrink(subject.config, times=2, plain=plain)
    configs = (tiny, double, deepen(subject.config, tiny))
    full = [{**config, "model_type": subject.model_type} for config in configs]
    counted, notes = counting.count(full, subject.task)
    nearest = next(iter(_rank(subject, tiny)), None)
    return _Draft(subject=subject, nearest=nearest, tiny=tiny, counted=counted, notes=notes)


def _rank(subject: Subject, tiny: Mapping[str, Any]) -> list[Recipe]:
    """Sort our recipes of the same task, the nearest first."""
    parents = parents_of(subject.family)
    fields = fields_of(subject.config)

    def nearness(recipe: Recipe) -> float:
        keys = set(recipe.tiny[0].config)
        family = family_of(recipe.model_type)
        alike = len(keys & set(tiny)) / len(keys | set(tiny))
        named = difflib.SequenceMatcher(None, recipe.model_type, subject.model_type).ratio()
        return (
            alike
            + _fits(recipe, fields)
            + (family in parents)
            + (family == subject.family)
            + named / 2
        )

    ours = [
        name
        for name in registry.list_model_types()
        if importlib.util.find_spec(f"qeff_zoo.recipes.{name}")
    ]
    same = [recipe for recipe in map(registry.find_recipe, ours) if recipe.task == subject.task]
    return sorted(same, key=nearness, reverse=True)


def _fits(recipe: Recipe, fields: set[str]) -> bool:
    """Whether a recipe's tiny configuration has only known fields; head_dim may be left out."""
    return set(recipe.tiny[0].config) - {"head_dim"} <= fields


def _try(draft: _Draft) -> None:
    """Import the draft and run its tiny model on the meta device; note layer kinds that occur once."""
    from qeff_zoo.export import layers, loader
    from qeff_zoo.export.tracing import decoder_tracing

    recipe = execute(_text(draft), draft.subject.model_type)
    config = {"model_type": recipe.model_type, **recipe.tiny[0].config}
    model = loader.load_meta(config, recipe)
    task = find(recipe.task)
    probe = task.probe or decoder_tracing.probe
    if task.role == "decoder" and not probe(model):
        raise UnsupportedModelError(f"{type(model).__name__} keeps no keys and values.")
    repeated, _ = layers.reduce(model, partial(probe, model), everything=True)
    kinds = repeated.kinds if repeated else ()
    if any(kinds.count(kind) == 1 for kind in kinds):
        draft.notes.append(
            "A kind of layer occurs once in the tiny configuration, twice is expected. Change it."
        )


def _text(draft: _Draft) -> str:
    """Write the recipe's file, formatted as ruff does."""
    subject, nearest = draft.subject, draft.nearest
    derived = nearest is not None and _fits(nearest, fields_of(subject.config))
    name = nearest.model_type if nearest else "the others"
    head = {
        "model_type": subject.model_type,
        "architectures": subject.architectures,
        "special": f"Complete this: what sets {subject.model_type} apart from {name}.",
    }
    doc = (
        f'"""`transformers.models.{subject.family}`: '
        f'Complete this with its checkpoints and what is unusual."""'
    )
    body = _derived(draft, nearest, head) if derived and nearest else _whole(draft, head)
    return f"# SPDX-License-Identifier: Apache-2.0\n{doc}\n\n{body}"


def _whole(draft: _Draft, head: Mapping[str, Any]) -> str:
    shapes, _ = _SHAPES[find(draft.subject.task).role]
    fields = {
        "model_type": head["model_type"],
        "architectures": head["architectures"],
        "task": draft.subject.task,
        "special": head["special"],
        **_transforms(draft.counted),
        "shapes": Code(shapes),
        "tiny": (Call("Tiny", {"config": draft.tiny}),),
    }
    imports = ", ".join([shapes, "Recipe", "Tiny", *_constructors(draft.counted)])
    return f"from qeff_zoo.recipe import {imports}\n\nRECIPE = {layout(Call('Recipe', fields), before=9)}\n"


def _derived(draft: _Draft, nearest: Recipe, head: Mapping[str, Any]) -> str:
    alias, config = registry.file_name(nearest.model_type).upper(), nearest.tiny[0].config
    base, before, tiny = dict(config), "", Code(f"{alias}.tiny[0].config")
    if "head_dim" in base and "head_dim" not in fields_of(draft.subject.config):
        del base["head_dim"]
        kept = f'key: value for key, value in {alias}.tiny[0].config.items() if key != "head_dim"'
        before, tiny = f"_TINY = {{{kept}}}\n\n", Code("_TINY")
    own = _overrides(draft, base)
    fields = {"": Code(alias), **head}
    shapes, standard = _SHAPES[find(nearest.task).role]
    counted = [] if counting.promises(nearest, draft.counted) else draft.counted
    if nearest.transforms and not draft.counted:
        fields["transforms"] = ()
    fields |= _transforms(counted)
    if nearest.shapes != standard:
        fields["shapes"] = Code(shapes)
    fields["tiny"] = (Call("Tiny", {"config": Spread(tiny, own) if own else tiny}),)
    constructors = ["Tiny", *_constructors(counted)]
    names = ", ".join([shapes, *constructors] if "shapes" in fields else constructors)
    return (
        f"from dataclasses import replace\n\nfrom qeff_zoo.recipe import {names}\n\n"
        f"from .{registry.file_name(nearest.model_type)} import RECIPE as {alias}\n\n"
        f"{before}RECIPE = {layout(Call('replace', fields), before=9)}\n"
    )


def _overrides(draft: _Draft, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tiny configuration changes in a relative's."""
    own = {key: value for key, value in draft.tiny.items() if key not in base or base[key] != value}
    rope, inherited = own.get("rope_parameters", {}), base.get("rope_parameters", {})
    if (
        set(rope) <= {"rope_type", "rope_theta"}
        and "rope_type" in inherited
        and rope.get("rope_type") == "default"
    ):
        own.pop("rope_parameters")  # a scaled RoPE shows more than a plain one
    meant = parse({"model_type": draft.subject.model_type, **draft.tiny}).to_dict()
    # A relative's window stays: this config may have none, another checkpoint's has one.
    kept = {"rope_parameters", "sliding_window"}
    left = [key for key in base if key not in {*draft.tiny, *kept} and base[key] != meant.get(key)]
    return {**own, **{key: meant.get(key) for key in left}}


def _transforms(counted: list[Counted]) -> dict[str, Any]:
    return {"transforms": tuple(Code(item.source) for item in counted)} if counted else {}


def _constructors(counted: list[Counted]) -> list[str]:
    return sorted(item.name for item in counted)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' remarks on tiny configurations to itself."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
