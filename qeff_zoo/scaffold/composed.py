# SPDX-License-Identifier: Apache-2.0
"""Draft of a recipe for a model with an encoder of images or audio, or with an encoder beside its decoder.

No config names the family of an encoder. The declarations of similar recipes are tried, the most similar first: the
first with which all programs are traced is proposed, with a tiny configuration of the new architecture.
"""

import difflib
import importlib.util
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from itertools import chain
from pathlib import PurePath
from textwrap import shorten
from typing import Any

from qeff_zoo import registry
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.recipe import Recipe
from qeff_zoo.recipe_media import Media
from qeff_zoo.scaffold import counting
from qeff_zoo.scaffold.mixing import Mix, fields_in, text_of
from qeff_zoo.scaffold.shrinking import SECTIONS, parse, shrink
from qeff_zoo.scaffold.source import Call, Code, Spread, layout
from qeff_zoo.scaffold.subject import Subject, family_of, parents_of
from qeff_zoo.scaffold.tracing import FAILURES, execute, trace

#: Number of different declarations that are tried: in all, and of one family.
MOST_TRIED, MOST_OF_FAMILY = 30, 3
#: Fields of a recipe that describe its own checkpoints, and that no other recipe inherits.
_OWN = ("embeds", "detected_by", "variants", "former_text_types", "requires", "rev", "alias")
_TEXT = "text_config"
#: Folders of modelling code, transformers' and ours, and of the families and programs of encoders.
_MODELLING = ("models", "architectures", "multimodal", "tracing")
#: Characters of an error in a note.
_LONGEST = 300
#: Number of other declarations whose errors a note lists.
_MOST_REASONS = 4


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Drafted recipe of a composed model.

    Args:
        recipe: The recipe, executed.
        relative: Recipe that it is derived from.
        text: Content of its file.
        notes: Open points for the author, one sentence each.
    """

    recipe: Recipe
    relative: Recipe
    text: str
    notes: tuple[str, ...]


def drafts(subject: Subject, settings: Mapping[str, Any]) -> Iterator[Composed]:
    """Yield the drafts that are traced, each with other declarations, derived from the most similar recipes.

    Args:
        subject: The architecture.
        settings: Content of preprocessor_config.json; empty without the file.

    Raises:
        UnsupportedModelError: The declarations of no recipe fit.
    """
    rejected: dict[str, str] = {}
    tried: list[tuple[Any, ...]] = []
    families = Counter[tuple[Any, ...]]()
    untraced: Composed | None = None
    for relative in ranked(subject, settings):
        encoders = (_images(relative, subject.config), relative.audio, relative.submodels)
        choice = (relative.task, *encoders, relative.image_prompt, bool(relative.transforms))
        family = (relative.task, *map(type, encoders))
        if choice in tried or families[family] == MOST_OF_FAMILY:
            continue
        if len(tried) == MOST_TRIED:
            break
        tried.append(choice)
        families[family] += 1
        try:
            derived = _derived(subject, relative, settings, rejected)
        except FAILURES as error:
            problem = _problem(error)
            rejected.setdefault(f"{_in_words(relative)} of {relative.model_type}", problem)
            untraced = untraced or _untraced(subject, relative, settings, problem)
            continue
        yield derived
    if len(rejected) < len(tried):
        return
    if untraced:
        others = [f"{name} ({why})" for name, why in rejected.items()][1 : 1 + _MOST_REASONS]
        more = (f"Other families: {'; '.join(others)}.",) if others else ()
        yield replace(untraced, notes=(*untraced.notes, *more))
        return
    name = registry.file_name(subject.model_type)
    reasons = "; ".join(f"{declared}: {problem}" for declared, problem in rejected.items())
    raise UnsupportedModelError(
        f"The declarations of no recipe fit model_type {subject.model_type!r}. {reasons or 'None has its task'}. "
        f"Expected a model whose programs are traced with one of them. Write recipes/{name}.py by hand, see "
        "docs/adding-vision-language-models.md."
    )


def _problem(error: Exception) -> str:
    """Return an error in a line, with the line of the modelling code that raised it."""
    text = shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" …").rstrip(". ")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"line {frame.lineno} of {PurePath(frame.filename).name}, `{frame.name}`"
        for frame in frames
        if {*_MODELLING} & {*PurePath(frame.filename).parts}
    ]
    return f"{text}, in {lines[-1]}" if lines else text


def ranked(subject: Subject, settings: Mapping[str, Any]) -> list[Recipe]:
    """Return the recipes of the subject's possible tasks, the most similar first.

    Args:
        subject: The architecture.
        settings: Content of preprocessor_config.json.
    """
    processor = _class_of(settings)
    config = parse(subject.config)
    parents, known = parents_of(subject.family), {*fields_in(config)}
    parts, every = _parts(config), [*_recipes()]
    leaves = {_leaf(name) for name in known} | _axes(config)
    named = leaves & {*chain.from_iterable(map(_named, every))}

    def similarity(recipe: Recipe) -> float:
        fields, others = _described(registry.file_name(recipe.model_type))
        family = family_of(recipe.model_type)
        name = difflib.SequenceMatcher(None, recipe.model_type, subject.model_type).ratio()
        return (
            _overlap(known, fields)
            + _overlap(parts, others)
            + 2 * _overlap(named, _named(recipe))
            + (family in parents)
            + (family == subject.family)
            + bool(processor and processor == _processor(recipe))
            + name / 2
        )

    same = [recipe for recipe in every if recipe.task in subject.tasks]
    return sorted(same, key=similarity, reverse=True)


def _class_of(settings: Mapping[str, Any]) -> str:
    """Return the class of an image processor, of Pillow; empty if its settings name none."""
    return str(settings.get("image_processor_type", "")).removesuffix("Fast")


def _processor(recipe: Recipe) -> str:
    """Return the class of the image processor of a recipe's tiny model; empty for the default."""
    return str(recipe.tiny[0].image_processor.get("image_processor_type", ""))


def _recipes() -> Iterator[Recipe]:
    """Return the recipes of this repository."""
    for name in registry.list_model_types():
        if importlib.util.find_spec(f"qeff_zoo.recipes.{name}"):
            yield registry.find_recipe(name)


def _overlap(some: Set[str], others: Set[str]) -> float:
    """Return the share of common names; 1 if there are none at all."""
    return len(some & others) / len(some | others) if some or others else 1.0


def _named(recipe: Recipe) -> set[str]:
    """Return the config fields that the declarations of a recipe name."""
    images, audio = recipe.images, recipe.audio
    names = [images.deepstack, images.video] if images else []
    axes = {SECTIONS} if images and images.axes > 1 else set()
    tokens = [media.token for media in (images, audio) if media]
    return {_leaf(name) for name in (*names, *tokens) if _leaf(name).isidentifier()} | axes


def _leaf(name: str) -> str:
    """Return the name of a field without its part; ids of tokens are named in one of two ways."""
    return name.rpartition(".")[2].replace("_token_index", "_token_id")


def _axes(config: Any) -> set[str]:
    """Return the field with the sections of a rotary embedding over several axes, if a config has it."""
    rope = getattr(text_of(config), "rope_parameters", None) or {}
    return {SECTIONS} & {*rope}


@cache
def _described(recipe_type: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the fields and the parts of a recipe's first tiny configuration."""
    recipe = registry.find_recipe(recipe_type)
    try:
        config = parse({"model_type": recipe.model_type, **recipe.tiny[0].config})
        return frozenset(fields_in(config)), frozenset(_parts(config))
    except FAILURES:  # a default of its parts does not fit, or differs among layers
        return frozenset(recipe.tiny[0].config), frozenset()


def _parts(config: Any) -> set[str]:
    """Return the types of the parts of a config, but for the language model, of which any may be inside."""
    inner = (getattr(config, name, None) for name in config.sub_configs)
    text = text_of(config)
    return {part.model_type for part in inner if part is not None and part is not text}


def _derived(
    subject: Subject, relative: Recipe, settings: Mapping[str, Any], rejected: Mapping[str, str]
) -> Composed:
    """Return a recipe derived from another one, after its programs were traced."""
    problems: list[Exception] = []
    for proportional in (False, True):
        mix = Mix(subject.config, relative.tiny[0].config, proportional=proportional)
        for sources in _transforms(subject, relative, mix):
            text = _text(subject, relative, mix, sources, settings)
            try:
                recipe = execute(text, subject.model_type)
                trace(recipe)
            except FAILURES as error:
                problems.append(error)
                continue
            notes = _notes(recipe, relative, mix, rejected)
            return Composed(recipe=recipe, relative=relative, text=text, notes=(*notes,))
    raise problems[0]


def _untraced(
    subject: Subject, relative: Recipe, settings: Mapping[str, Any], problem: str
) -> Composed | None:
    """Return a recipe derived from another one, whose programs are not traced yet; None if it is no Python."""
    try:
        mix = Mix(subject.config, relative.tiny[0].config)
        text = _text(subject, relative, mix, None, settings)
        recipe = execute(text, subject.model_type)
    except FAILURES:
        return None
    note = (
        f"Its programs are not traced with {_in_words(relative)} of {relative.model_type} ({problem}), nor with the "
        "other families. Correct `tiny`, or write a family: see docs/adding-vision-language-models.md."
    )
    notes = (note, *_unknown(mix), *_own_fields(subject, relative))
    return Composed(recipe=recipe, relative=relative, text=text, notes=notes)


def _own_fields(subject: Subject, relative: Recipe) -> Iterator[str]:
    """Yield a note on the fields of a config that the relative's lacks: its declarations do not know their effect."""
    known, _ = _described(registry.file_name(relative.model_type))
    leaves = {*map(_leaf, known)}
    names = {*fields_in(parse(subject.config))}
    if own := sorted(name for name in names if _leaf(name) not in leaves):
        yield (
            f"{relative.model_type} has no {', '.join(own)}. Look up in the modelling code which of them change the "
            "programs: these need a value in `tiny`, and a hook of a family if they change the inputs or the features."
        )


def _transforms(subject: Subject, relative: Recipe, mix: Mix) -> Iterator[Mapping[str, str] | None]:
    """List the transforms that are tried: calls by name of the constructor; None for those of the relative."""
    if not relative.media:
        yield None
    elif mix.text_type:  # those of its own recipe are added to them
        yield {}
        yield None
    else:
        yield from _counted(subject, relative, mix)
        yield None
    if relative.transforms:
        yield {}


def _counted(subject: Subject, relative: Recipe, mix: Mix) -> Iterator[Mapping[str, str]]:
    """List the transforms of a language model without a recipe, as counted in two of its models."""
    text = text_of(parse(subject.config))
    raw = {**text.to_dict(), "model_type": text.model_type}
    try:
        pairs = [{**mix.tiny, _TEXT: shrink(raw, times=times)} for times in (1, 2)]
        configs = [{**pair, "model_type": subject.model_type} for pair in pairs]
        counted, _ = counting.count(configs, relative.task)
    except FAILURES:
        return
    yield {item.name: item.source for item in counted}


def _text(
    subject: Subject,
    relative: Recipe,
    mix: Mix,
    sources: Mapping[str, str] | None,
    settings: Mapping[str, Any],
) -> str:
    """Write the recipe's file, formatted as ruff does."""
    alias = _alias(relative.model_type)
    imports = {registry.file_name(relative.model_type): alias}
    values: dict[str, Any] = {
        "": Code(alias),
        "model_type": subject.model_type,
        "architectures": subject.architectures,
        "special": f"Complete this: what sets {subject.model_type} apart from {relative.model_type}.",
    }
    if sources is not None and (sources or relative.transforms):
        values["transforms"] = tuple(map(Code, sources.values()))
    values |= _reset(relative)
    tiny = f"{alias}.tiny[0]"
    base = relative.tiny[0]
    parts: dict[str, Any] = dict(mix.tiny)
    if mix.text_type:
        inner = _alias(mix.text_type)
        imports[registry.file_name(mix.text_type)] = inner
        parts[mix.text_key] = Spread(Code(f"{inner}.tiny[0].config"), {"model_type": mix.text_type})
    arguments: dict[str, Any] = {"config": _delta(parts, mix.tiny, base.config, f"{tiny}.config")}
    if base.image_processor:
        kind = _class_of(settings)
        own = {"image_processor_type": kind} if kind else {}
        same = own.items() <= base.image_processor.items()
        code = Code(f"{tiny}.image_processor")
        arguments["image_processor"] = code if same else Spread(code, own)
    if base.ctx_len:
        arguments["ctx_len"] = base.ctx_len
    values["tiny"] = (Call("Tiny", arguments),)
    body = layout(Call("replace", values), before=9)
    names = ", ".join(["Tiny", *sorted(sources or ())])
    siblings = "".join(
        f"from .{name} import RECIPE as {other}\n"
        for name, other in sorted(imports.items())
        if f"{other}," in body or f"{other}." in body
    )
    return (
        "# SPDX-License-Identifier: Apache-2.0\n"
        f'"""`transformers.models.{subject.family}`: Complete this with its checkpoints and what is unusual."""\n\n'
        f"from dataclasses import replace\n\nfrom qeff_zoo.recipe import {names}\n\n{siblings}\n"
        f"RECIPE = {body}\n"
    )


def _alias(model_type: str) -> str:
    return registry.file_name(model_type).upper()


def _reset(relative: Recipe) -> dict[str, Any]:
    """Return the defaults of fields that a relative sets for its own checkpoints."""
    defaults: dict[str, Any] = {}
    for field in fields(Recipe):
        default = field.default if field.default is not MISSING else None
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if field.name in _OWN and getattr(relative, field.name) != default:
            defaults[field.name] = Code("lambda config: None") if field.name == "alias" else default
    return defaults


def _delta(
    parts: Mapping[str, Any], tiny: Mapping[str, Any], base: Mapping[str, Any], code: str
) -> Any:
    """Return source of a configuration: what it changes in another one, or the whole if it lacks some of its fields.

    Args:
        parts: Source of each field.
        tiny: Value of each field.
        base: The other configuration.
        code: Expression of the other configuration.
    """
    if dict(tiny) == dict(base):
        return Code(code)
    own: dict[str, Any] = {}
    for key, value in tiny.items():
        inner = base.get(key)
        if key in base and inner == value:
            continue
        nested = isinstance(inner, Mapping) and isinstance(value, Mapping)
        nested = nested and parts[key] is value
        own[key] = _delta(value, value, inner or {}, f'{code}["{key}"]') if nested else parts[key]
    if {*base} <= {*tiny}:
        return Spread(Code(code), own)
    same = {key: Code(f'{code}["{key}"]') for key in tiny if isinstance(base.get(key), Mapping)}
    return {key: own.get(key, same.get(key, parts[key])) for key in tiny}


def _images(relative: Recipe, config: Mapping[str, Any]) -> Media | None:
    """Return the image encoder that a recipe declares for a config."""
    return registry.with_parts(relative, config).images


def _in_words(recipe: Recipe) -> str:
    """Return the declared encoders of a recipe, or its task without any."""
    declared = [one for one in (recipe.images, recipe.audio) if one]
    return " and ".join(type(one).__name__ for one in declared) or recipe.task


def _notes(
    recipe: Recipe,
    relative: Recipe,
    mix: Mix,
    rejected: Mapping[str, str],
) -> Iterator[str]:
    """List the open points for the author."""
    whole = registry.with_parts(recipe, {"model_type": recipe.model_type, **mix.tiny})
    declared = f"{_in_words(whole)} of {relative.model_type}"
    yield f"All programs are traced with {declared}, task {recipe.task}."
    if recipe.media:
        yield (
            "The comparison draws the processor's arrays, and ignores how images or audio are written into a prompt. "
            "Compare that with transformers' processor, see docs/adding-vision-language-models.md."
        )
    if rejected:
        yield f"Rejected: {'; '.join(f'{name} ({why})' for name, why in rejected.items())}."
    if recipe.images and recipe.images.video:
        yield (
            f"Videos are declared as those of {relative.model_type}. Set `video` to an empty text if transformers' "
            "processor takes none."
        )
    yield from _unknown(mix)


def _unknown(mix: Mix) -> Iterator[str]:
    """Return a note on the sizes that could not be derived."""
    if mix.kept:
        yield (
            f"Not derived: {', '.join(mix.kept)} in `tiny`, as published. Set them to small, different numbers."
        )
