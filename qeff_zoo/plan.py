# SPDX-License-Identifier: Apache-2.0
"""Every choice of a build, made once: what was chosen, and who chose it.

In: a checkpoint's config and a request. Out: a frozen `Plan`, which is printed by `qeff-zoo plan`, hashed to the build
key and recorded in the manifest. Nothing is downloaded but the config and small files; all conflicts are reported
together.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from qeff_zoo import identity, registry, targets
from qeff_zoo.checkpoint import Checkpoint
from qeff_zoo.checkpoint.sentence_transformers import read_pooling
from qeff_zoo.errors import PlanError, UnsupportedModelError
from qeff_zoo.numerics import format_of
from qeff_zoo.programs import ProgramPlan
from qeff_zoo.recipe import Recipe, Shape
from qeff_zoo.tasks import choice, compute_contexts, for_task, looks_ahead, positions_of

#: Raised when the same inputs come to give another graph or another package.
EXPORTER_REVISION = 4
#: Stands for the weights of a plan that is made from a config alone.
NO_WEIGHTS = "sha256:" + "0" * 64
STORAGES = ("fp32", "int8", "int4")
#: Columns of a quantized matrix that may share a scale, and how many do unless asked otherwise.
BLOCK_SIZES, BLOCK_SIZE = (32, 64, 128), 64
POOLINGS = ("mean", "cls", "max", "lasttoken")
TARGETS: Mapping[str, tuple[str, ...]] = {"ort": ("onnxruntime",)}  # name -> what compiles for it
_TRACERS = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for. None leaves a choice to the recipe.

    Args:
        target: What to compile for.
        task: Hub pipeline tag; None for what the checkpoint was trained for.
        profile: Name of one of the recipe's shapes.
        weights: "fp32", "int8" or "int4".
        block_size: Columns that share a scale, of int8 and int4: one of `BLOCK_SIZES`. Large blocks are fast, small
            ones exact; None for `BLOCK_SIZE`.
        prefill_seq_len: See `Shape`.
        ctx_len: See `Shape`.
        batch_size: See `Shape`.
        full_batch_size: See `Shape`.
        seq_lens: See `Shape`.
        comp_ctx_lengths_prefill: See `qeff_zoo.tasks.compute_contexts`; `ctx_len` may be left out.
        comp_ctx_lengths_decode: The same.
        pooling: "mean", "cls", "max" or "lasttoken".
        normalize: Whether embeddings have length 1.
        expanded_kv: Of latent attention, retain every head's keys and values in place of the latents.
    """

    target: str | None = None
    task: str | None = None
    profile: str | None = None
    weights: str | None = None
    block_size: int | None = None
    prefill_seq_len: int | None = None
    ctx_len: int | None = None
    batch_size: int | None = None
    full_batch_size: int | None = None
    seq_lens: tuple[int, ...] | None = None
    comp_ctx_lengths_prefill: tuple[int, ...] | None = None
    comp_ctx_lengths_decode: tuple[int, ...] | None = None
    pooling: str | None = None
    normalize: bool | None = None
    expanded_kv: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved build.

    Args:
        recipe: Of the checkpoint's `model_type`, as it is for the task that was chosen.
        shape: Sizes the package is specialized for.
        spec: All that identifies the build, in JSON values; its digest is the build key.
        why: For every chosen field of the spec, by its path there, who set it.
        variant: What the task's `tracing` takes.
    """

    recipe: Recipe = field(repr=False)
    shape: Shape
    spec: Mapping[str, Any]
    why: Mapping[str, str]
    variant: Mapping[str, Any]

    @property
    def build_key(self) -> str:
        """The package's portable identity."""
        return identity.build_key(self.spec)

    @property
    def resolved(self) -> targets.Resolved:
        return targets.find(self.target).resolve()

    @property
    def programs(self) -> tuple[ProgramPlan, ...]:
        from qeff_zoo.tasks.specializations import specializations

        return (
            ProgramPlan(
                role="decoder" if self.shape.ctx_len else "encoder",
                task=self.recipe.task,
                shape=self.shape,
                variant=self.variant,
                specializations=specializations(self.recipe.task, self.shape),
                weights=format_of(self.storage, self.block_size),
            ),
        )

    @property
    def target(self) -> str:
        """Name of the target."""
        return str(self.spec["target"]["name"])

    @property
    def storage(self) -> str:
        """How matrices are stored: one of `STORAGES`."""
        return str(self.spec["quantization"]["weights"])

    @property
    def block_size(self) -> int:
        """Columns of a quantized matrix that share a scale; of floats any."""
        return int(self.spec["quantization"].get("block_size", BLOCK_SIZE))

    def explained(self) -> dict[str, dict[str, Any]]:
        """Return every chosen field with its value and who set it, then what follows from the checkpoint."""
        fields_ = {}
        for path, by in self.why.items():
            group, name = path.split(".")
            fields_[path] = {"value": self.spec[group][name], "by": by}
        source = {
            f"source.{name}": value
            for name, value in self.spec["source"].items()
            if value is not None
        }
        tools = {f"toolchain.{name}": value for name, value in self.spec["toolchain"].items()}
        derived = {
            "recipe.model_type": self.recipe.model_type,
            **source,
            **tools,
        }
        return {
            **fields_,
            **{name: {"value": value, "by": "derived"} for name, value in derived.items()},
        }

    def graph_key(self, program: ProgramPlan, structure: str) -> str:
        """Name the traced graph: the same for every fine-tune of one architecture.

        Args:
            program: One of `programs`.
            structure: Digest of the checkpoint's tensor names and shapes.
        """
        parts = {
            **{name: self.spec[name] for name in ("arch", "recipe", "exporter")},
            "toolchain": {name: self.spec["toolchain"][name] for name in _TRACERS},
            "variant": dict(self.variant),
            "task": None if self.recipe.task == _default_task(self.recipe) else self.recipe.task,
            "structure": structure,
        }
        return "qg1-" + identity.digest(parts, "qz-graph-1")


class _Choices:
    """Chosen values with who chose them, and everything that is wrong with them."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.problems: list[str] = []

    def set(self, name: str, value: Any, by: str) -> None:
        self.value[name], self.why[name] = value, by

    def by_user(self, name: str) -> bool:
        return self.why.get(name) == "user"

    def first(self, name: str, *candidates: tuple[Any, str]) -> None:
        """Set a field to the first candidate that is not None."""
        self.set(name, *next(candidate for candidate in candidates if candidate[0] is not None))


def resolve(checkpoint: Checkpoint, request: Request, weights_digest: str) -> Plan:
    """Make every choice.

    Args:
        checkpoint: Opened; its weights need not be here.
        request: What the user asked for.
        weights_digest: Identity of the weights, "sha256:…".

    Raises:
        UnsupportedModelError: There is no recipe for the model.
        PlanError: Choices conflict; all conflicts at once.
    """
    choices = _Choices()
    recipe = _choose_task(checkpoint, recipe_of(checkpoint), request, choices)
    _check_model(checkpoint, recipe, choices)
    choices.first("target", (request.target, "user"), ("ort", "default"))
    choices.first("weights", (request.weights, "user"), ("fp32", "default"))
    _check_member(choices, "target", TARGETS)
    _check_member(choices, "weights", STORAGES)
    blocks = _choose_blocks(request, choices)
    shape = _choose_shape(checkpoint, recipe, request, choices)
    variant = _choose_variant(checkpoint, recipe, request, shape, choices)
    if choices.problems:
        raise PlanError(choices.problems)
    spec = {
        "spec": 1,
        "source": {
            "model_id": checkpoint.model_id,
            "revision": checkpoint.revision,
            "weights": weights_digest,
            "companions": checkpoint.companions_digest(),
        },
        "arch": identity.arch_digest(checkpoint.config),
        "recipe": {
            "model_type": recipe.model_type,
            "rev": recipe.rev,
            "transforms": [
                {"name": t.name, "version": t.version, "parameters": dict(t.parameters)}
                for t in recipe.transforms
            ],
        },
        "task": {"name": recipe.task, **variant},
        "shape": {key: value for key, value in asdict(shape).items() if value},
        "quantization": {"method": "none", "weights": choices.value["weights"], **blocks},
        "target": {"name": choices.value["target"], "revision": 1},
        "exporter": EXPORTER_REVISION,
        "toolchain": _toolchain(choices.value["target"]),
    }
    why = {_path(name): by for name, by in choices.why.items()}
    return Plan(recipe=recipe, shape=shape, spec=spec, why=why, variant=variant)


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """Return the recipe of a checkpoint's `model_type`.

    Raises:
        UnsupportedModelError: There is none.
    """
    try:
        return registry.find_recipe(checkpoint.model_type)
    except UnsupportedModelError as error:
        if not checkpoint.needs_remote_code:
            raise
        raise UnsupportedModelError(
            f"{checkpoint.name!r} needs Python code of its own (`auto_map` in config.json), and model_type "
            f"{checkpoint.model_type!r} has no recipe. Expected a model that transformers implements; code from a "
            f"checkpoint is never run. {error}"
        ) from error


def _default_task(recipe: Recipe) -> str:
    """Return the task whose graphs have the recipe's key alone, as they had when it was the only one."""
    return registry.find_recipe(recipe.model_type).task


def _choose_task(
    checkpoint: Checkpoint, recipe: Recipe, request: Request, choices: _Choices
) -> Recipe:
    """Choose the task, and return the recipe as it is for that."""
    chosen = choice.choose(
        checkpoint.name, recipe, checkpoint.architectures, checkpoint.companions, request.task
    )
    choices.set("task", chosen.task, chosen.by)
    choices.problems += chosen.problems
    if (chosen.task, recipe.task) == ("text-classification", "text-generation") and (
        checkpoint.config.get("pad_token_id") is None
    ):
        choices.problems.append(
            f"{checkpoint.name!r} has no pad_token_id in config.json, and a decoder classifies by the last token that "
            f"is not padding. Expected one; set it to the id that its tokenizer pads with."
        )
    if chosen.task == "text-generation" and looks_ahead(checkpoint.config):
        choices.problems.append(
            f"{checkpoint.name!r} lets every token see those behind it (`use_bidirectional_attention` is "
            f"{checkpoint.config['use_bidirectional_attention']!r} in config.json), so that no text can be generated "
            f"token by token. Expected a causal model; choose feature-extraction with --task."
        )
    return for_task(recipe, chosen.task)


def _check_model(checkpoint: Checkpoint, recipe: Recipe, choices: _Choices) -> None:
    unknown = [name for name in checkpoint.architectures if name not in recipe.architectures]
    if unknown:
        choices.problems.append(
            f"{checkpoint.name!r} has architecture {unknown[0]!r}, but recipe {recipe.model_type!r} covers "
            f"{', '.join(recipe.architectures)}. Use a checkpoint of one of those, or extend the recipe."
        )
    quantized = checkpoint.config.get("quantization_config") or {}
    method = quantized.get("quant_method", "none")
    if method not in recipe.quant_methods:
        choices.problems.append(
            f"{checkpoint.name!r} is quantized with {method!r}, but recipe {recipe.model_type!r} supports "
            f"{', '.join(recipe.quant_methods)}. Use the unquantized checkpoint; `--weights int4` quantizes it."
        )


def _check_member(choices: _Choices, name: str, allowed: Any) -> None:
    if choices.value[name] not in allowed:
        choices.problems.append(
            f"{_flag(name)} is {choices.value[name]!r}, expected one of {', '.join(map(str, allowed))}."
        )


def _choose_shape(
    checkpoint: Checkpoint, recipe: Recipe, request: Request, choices: _Choices
) -> Shape:
    """Start from a profile, take what the user asked for, and fit the rest to the model's positions."""
    profile = request.profile or next(iter(recipe.shapes))
    if profile not in recipe.shapes:
        choices.problems.append(
            f"--profile is {profile!r}, but recipe {recipe.model_type!r} has {', '.join(recipe.shapes)}. Choose one."
        )
        profile = next(iter(recipe.shapes))
    base = recipe.shapes[profile]
    encoder = bool(base.seq_lens)
    for item in fields(Shape):
        asked, default = getattr(request, item.name), getattr(base, item.name)
        if asked is not None and item.name != "batch_size" and (item.name == "seq_lens") != encoder:
            choices.problems.append(
                f"{_flag(item.name)} does not apply to {recipe.task}. Leave it out."
            )
        choices.set(
            item.name, *((default, f"recipe:{profile}") if asked is None else (asked, "user"))
        )
    if request.batch_size is not None and request.full_batch_size is None:
        choices.set("full_batch_size", None, "user: --batch-size")
    for name in [name for name, value in choices.value.items() if not value]:
        del choices.why[name]  # it does not apply, so nobody chose it
    _check_sizes(choices, request)
    _fit_positions(checkpoint, recipe, choices, encoder=encoder)
    if not encoder:
        _fit_compute_contexts(recipe, choices)
    return replace(base, **{item.name: choices.value[item.name] for item in fields(Shape)})


def _choose_blocks(request: Request, choices: _Choices) -> dict[str, int]:
    """Choose the blocks of quantized matrices."""
    if choices.value["weights"] == "fp32":
        if request.block_size is not None:
            choices.problems.append(
                "--block-size is of quantized weights, and --weights is fp32. Leave it out, or choose int8 or int4."
            )
        return {}
    choices.first("block_size", (request.block_size, "user"), (BLOCK_SIZE, "default"))
    _check_member(choices, "block_size", BLOCK_SIZES)
    return {"block_size": choices.value["block_size"]}


def _check_sizes(choices: _Choices, request: Request) -> None:
    for name in ("prefill_seq_len", "ctx_len", "batch_size", "full_batch_size"):
        asked = getattr(request, name)
        if asked is not None and asked < 1:
            choices.problems.append(f"{_flag(name)} is {asked}, expected at least 1.")
    if request.seq_lens is not None and (not request.seq_lens or min(request.seq_lens) < 1):
        choices.problems.append(
            f"--seq-lens is {list(request.seq_lens)}, expected lengths of at least 1."
        )
    if request.seq_lens:
        choices.set("seq_lens", tuple(sorted(set(request.seq_lens))), "user")
    if request.batch_size is not None and request.full_batch_size is not None:
        choices.problems.append(
            f"--batch-size {request.batch_size} and --full-batch-size {request.full_batch_size} exclude each other: a "
            f"continuous-batching package takes its batch from its slots. Give one of them."
        )


def _fit_positions(
    checkpoint: Checkpoint, recipe: Recipe, choices: _Choices, *, encoder: bool
) -> None:
    """Refuse sizes beyond the model's positions where the user set them; shorten those nobody asked for."""
    positions = _positions(checkpoint.config)
    if positions is not None and recipe.positions_after_padding:
        positions -= int(checkpoint.config.get("pad_token_id", 1)) + 1
    if encoder:
        lengths = choices.value["seq_lens"]
        if positions is not None and max(lengths, default=0) > positions:
            if choices.by_user("seq_lens"):
                choices.problems.append(
                    f"--seq-lens has {max(lengths)}, but {checkpoint.name!r} has {positions} positions. Choose less."
                )
            fitting = tuple(length for length in lengths if length <= positions) or (positions,)
            choices.set("seq_lens", fitting, f"derived: {positions} positions")
        return
    ctx_len, prefill = choices.value["ctx_len"], choices.value["prefill_seq_len"]
    if positions is not None and ctx_len > positions:
        if choices.by_user("ctx_len"):
            choices.problems.append(
                f"--ctx-len is {ctx_len}, but {checkpoint.name!r} has {positions} positions. "
                f"Choose at most {positions}."
            )
        ctx_len = positions
        choices.set("ctx_len", ctx_len, f"derived: {positions} positions")
    if prefill > ctx_len:
        if choices.by_user("prefill_seq_len"):
            choices.problems.append(
                f"--prefill-seq-len is {prefill}, more than the context of {ctx_len}. Choose at most {ctx_len}."
            )
        choices.set("prefill_seq_len", ctx_len, "derived: fits ctx_len")


def _fit_compute_contexts(recipe: Recipe, choices: _Choices) -> None:
    """Refuse compute contexts that do not fit where the user set them; drop a recipe's that do not."""
    ctx_len, prefill = choices.value["ctx_len"], choices.value["prefill_seq_len"]
    leasts = {"comp_ctx_lengths_prefill": max(2, prefill), "comp_ctx_lengths_decode": 2}
    given = {name: tuple(choices.value[name]) for name in leasts}
    for name, least in leasts.items() if any(given.values()) else ():
        if choices.by_user(name):
            flag = _flag(name)
            choices.problems += compute_contexts.misfits(flag, given[name], least, ctx_len)
            if not recipe.retains_context:
                choices.problems.append(
                    f"{flag} is for a cache that grows with the context, but {recipe.model_type!r} keeps windows and "
                    f"recurrent states only, which it would not change. Leave it out."
                )
        fitting = compute_contexts.fit(given[name], least, ctx_len)
        choices.set(name, fitting, choices.why.get(name, "derived: fits ctx_len"))


def _positions(config: Mapping[str, Any]) -> int | None:
    """Return the number of positions a model was made for, with the growth that its RoPE scaling states."""
    positions = positions_of(config)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if positions is None or not original or not factor:
        return positions
    return max(positions, int(original * factor))


def _choose_variant(
    checkpoint: Checkpoint, recipe: Recipe, request: Request, shape: Shape, choices: _Choices
) -> dict[str, Any]:
    """Choose what changes the graph beyond its sizes."""
    foreign = ["pooling", "normalize"] if recipe.task != "feature-extraction" else []
    foreign += ["expanded_kv"] if recipe.task != "text-generation" else []
    for name in foreign:
        if getattr(request, name) is not None:
            choices.problems.append(f"{_flag(name)} does not apply to {recipe.task}. Leave it out.")
    if recipe.task == "text-generation":
        return _choose_decoder(checkpoint, request, shape, choices)
    if recipe.task != "feature-extraction":
        return {}
    found = read_pooling(checkpoint.companions)
    by = "checkpoint: modules.json"
    choices.first(
        "pooling", (request.pooling, "user"), (found and found.pooling, by), ("mean", "default")
    )
    choices.first(
        "normalize",
        (request.normalize, "user"),
        (found and found.normalize, by),
        (False, "default"),
    )
    _check_member(choices, "pooling", POOLINGS)
    dense = [
        {name: value for name, value in asdict(layer).items() if name != "folder"}
        for layer in (found.dense if found else ())
    ]
    return {
        "pooling": choices.value["pooling"],
        "normalize": choices.value["normalize"],
        **({"dense": dense} if dense else {}),
    }


def _choose_decoder(
    checkpoint: Checkpoint, request: Request, shape: Shape, choices: _Choices
) -> dict[str, Any]:
    variant = {"continuous_batching": True} if shape.full_batch_size else {}
    if shape.comp_ctx_lengths_decode:
        variant["comp_ctx_lengths"] = True
    if not request.expanded_kv:
        return variant
    if not checkpoint.config.get("kv_lora_rank"):
        choices.problems.append(
            f"--expanded-kv is for latent attention, which {checkpoint.model_type!r} has not. Leave it out."
        )
    choices.set("expanded_kv", True, "user")
    return {**variant, "expanded_kv": True}


def _toolchain(target: str) -> dict[str, str]:
    """Return the versions of what traces and compiles, the same on every machine (no `+cpu`)."""
    found = {}
    for name in (*_TRACERS, *TARGETS.get(target, ())):
        try:
            found[name] = re.sub(r"\+.*", "", version(name))
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def _path(name: str) -> str:
    """Return where the spec holds a chosen field."""
    places = {
        "target": "target.name",
        "weights": "quantization.weights",
        "block_size": "quantization.block_size",
        "task": "task.name",
        "pooling": "task.pooling",
        "normalize": "task.normalize",
        "expanded_kv": "task.expanded_kv",
    }
    return places.get(name, f"shape.{name}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
