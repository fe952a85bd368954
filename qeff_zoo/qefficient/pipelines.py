# SPDX-License-Identifier: Apache-2.0
"""What QEfficient's pipelines of diffusers share: loading, building, and the report of the seconds of each module."""

import json
import os
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo import pipeline
from qeff_zoo.api import load
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.disk.regular import read_text
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.exported import Source
from qeff_zoo.qefficient.models import outside
from qeff_zoo.terminal.progress_bars import reporter

from . import translation

if TYPE_CHECKING:
    from typing import Self

_MOST_TOKENS = 512  # of T5
_LINE = 60


@dataclass(frozen=True)
class ModulePerf:
    """Seconds of a module.

    Args:
        module_name: Name of the module.
        perf: Seconds of its call, or a list with those of each.
    """

    module_name: str
    perf: float | list[float]


@dataclass(frozen=True)
class QEffPipelineOutput:
    """Images, and the seconds of each module; as a text, QEfficient's report.

    Args:
        pipeline_module: Seconds of each module.
        images: Pillow images, or an array (images, height, width, 3) of values from 0 to 1; of videos, with an axis of
            frames after the first.
    """

    pipeline_module: list[ModulePerf]
    images: Any

    def __repr__(self) -> str:
        rule, thin, total = "=" * _LINE, "-" * _LINE, 0.0
        lines = [rule, "QEfficient Diffusers Pipeline Inference Report", rule, ""]
        lines += ["Module-wise Inference Times:", thin]
        for module in self.pipeline_module:
            calls = module.perf if isinstance(module.perf, list) else [module.perf]
            total += sum(calls)
            name = module.module_name.replace("_", " ").title()
            lines.append(f"  {name:<25} {sum(calls):.4f} s")
            if isinstance(module.perf, list):
                lines += [
                    f"    - Total steps: {len(calls)}",
                    f"    - Average per step:    {sum(calls) / len(calls):.4f} s",
                    f"    - Min step time:       {min(calls):.4f} s",
                    f"    - Max step time:       {max(calls):.4f} s",
                ]
        return "\n".join(
            [*lines, thin, "", f"End-to-End Inference Time: {total:.4f} s", "", rule, ""]
        )


@dataclass
class Module:
    """Module of a pipeline, with QEfficient's attributes.

    Args:
        roles: Roles of its programs in the package.
        qpc_path: Folder of the package; None before `compile`.
        device_ids: Cards of the module, which a CPU has none of.
        seconds: Seconds of each call of the running result.
    """

    roles: tuple[str, ...]
    qpc_path: str | None = None
    device_ids: list[int] | None = None
    seconds: list[float] = field(default_factory=list)


class _Timed:
    """Program whose calls are timed.

    Args:
        program: Opened program.
        seconds: Seconds of each call, extended in place.
    """

    def __init__(self, program: Any, seconds: list[float]) -> None:
        self._program, self._seconds = program, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, feeds: Mapping[str, Any]) -> Any:
        """Run the program."""
        begun = time.perf_counter()
        outputs = self._program.run(feeds)
        self._seconds.append(time.perf_counter() - begun)
        return outputs


class QEffPipeline:
    """A pipeline of diffusers under QEfficient's name.

    Args:
        source: The checkpoint; `from_pretrained` takes its name.
    """

    #: Roles of a package's programs by QEfficient's name of a module, in the order of its report.
    roles: ClassVar[Mapping[str, tuple[str, ...]]]
    #: Role of the text encoder that `max_sequence_length` is for.
    tokens_of: ClassVar[str]

    def __init__(self, source: Source) -> None:
        self._source = source
        self.package: Package | None = None
        self._session: Any = None
        self.modules = {name: Module(roles=roles) for name, roles in self.roles.items()}

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        enable_first_block_cache: bool = False,
        first_block_cache_downsample_factor: int = 4,
        **others: Any,
    ) -> "Self":
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            enable_first_block_cache: Refused if True: steps are never skipped here.
            first_block_cache_downsample_factor: Without that cache, it has no effect.
            **others: `revision`, `token` and `cache_dir`; diffusers' other arguments, which change nothing here or are
                refused.

        Raises:
            PlanError: An argument is not supported.
            UnsupportedModelError: The checkpoint is of another pipeline.
        """
        if enable_first_block_cache:
            raise PlanError(
                [
                    "`from_pretrained`: enable_first_block_cache is True; expected False, since every step is computed "
                    "here. Leave it out."
                ]
            )
        beside = {name: others.pop(name, None) for name in ("revision", "token", "cache_dir")}
        translation.refuse("from_pretrained", others, translation.LOADING)
        source = Source(model=os.fspath(pretrained_model_name_or_path), **beside)
        checkpoint = open_checkpoint(source.model, **source.beside)
        kind = cls.__name__.removeprefix("QEff")
        if checkpoint.model_type != kind:
            raise UnsupportedModelError(
                f"{checkpoint.name!r} is a {checkpoint.model_type!r}, and {cls.__name__} is for {kind!r}; expected a "
                "checkpoint of that pipeline. Use `qeff_zoo.build` for others."
            )
        return cls(source)

    @staticmethod
    def get_default_config_path() -> None:
        """Return None: there is no default file of compile settings, since a CPU has none."""

    def _build(self, compile_config: str | None) -> str:
        """Build a package, or find it in the store; return its folder."""
        if compile_config is not None:
            _check_config(compile_config, self.modules)
        built = pipeline.build(
            self._source.model, Request(), **self._source.beside, reporter=reporter()
        )
        name = type(self).__name__.removeprefix("QEff").removesuffix("Pipeline")
        warnings.warn(
            f"{name} is built for target 'ort' and runs on the CPU: settings of cards have no effect.",
            stacklevel=outside(),
        )
        self.package, self._session = built.package, None
        for module in self.modules.values():
            module.qpc_path = str(built.package.path)
        return str(built.package.path)

    def _opened(self) -> Any:
        if self._session is None:
            assert self.package is not None
            self._session = load(self.package)
            programs = self._session.programs
            for module in self.modules.values():
                for role in module.roles:
                    if role in programs:
                        programs[role] = _Timed(programs[role], module.seconds)
        return self._session

    def _report(self) -> list[ModulePerf]:
        """Return the seconds of each module: of a transformer, those of each call."""
        return [
            ModulePerf(
                name,
                [*module.seconds] if name.startswith("transformer") else sum(module.seconds),
            )
            for name, module in self.modules.items()
        ]

    @contextmanager
    def _tokens(self, session: Any, length: int) -> Iterator[None]:
        """Let the text encoder read so many tokens."""
        if not 0 < length <= _MOST_TOKENS:
            raise GenerationError(
                f"max_sequence_length is {length}; expected 1 to {_MOST_TOKENS}. Correct it, or leave it out."
            )
        prompts = session.prompts[self.tokens_of]
        before, prompts.length = prompts.length, length
        try:
            yield
        finally:
            prompts.length = before

    def _refuse(self, others: Mapping[str, Any], output_type: str, *more: str) -> None:
        """Refuse arguments that no pipeline takes here."""
        if unsupported := [name for name, value in others.items() if value is not None]:
            raise GenerationError(
                f"`{type(self).__name__}` takes no {unsupported[0]!r}; expected prompts and the options of a result. "
                "Leave it out."
            )
        if output_type not in ("pil", "np"):
            raise GenerationError(
                f"output_type is {output_type!r}; expected 'pil' or 'np'. Choose one of these."
            )


def listed(prompt: Any) -> list[Any]:
    """Return one or several texts as a list."""
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise GenerationError(f"prompt is {prompt!r:.100}; expected a text, or several. Give one.")
    return texts


def seeds_of(generator: Any, count: int) -> list[int | None]:
    """Return the seed of each image."""
    if generator is None:
        return [None] * count
    generators = generator if isinstance(generator, list) else [generator]
    if len(generators) != count:
        raise GenerationError(
            f"There are {len(generators)} generators for {count} images; expected one for each, so that an image does "
            "not depend on the others. Give a list."
        )
    seeds = []
    for one in generators:
        fresh = type(one)().manual_seed(one.initial_seed())
        if one.device.type != "cpu" or not bool((one.get_state() == fresh.get_state()).all()):
            raise GenerationError(
                "A generator is not on the CPU, or numbers were drawn from it; expected one that begins. Give "
                "torch.Generator().manual_seed(SEED)."
            )
        seeds.append(one.initial_seed())
    return seeds


def away_of(negative_prompt: Any, prompts: list[str], count: int) -> list[str | None]:
    """Return the negative prompt of each result.

    Args:
        negative_prompt: One text or several, or None.
        prompts: The prompts.
        count: Number of results.
    """
    negative = listed(negative_prompt) if negative_prompt is not None else [None]
    if len(negative) not in (1, len(prompts)):
        raise GenerationError(
            f"There are {len(negative)} negative prompts for {len(prompts)} prompts; expected one, or as many. Correct "
            "negative_prompt."
        )
    return [one for one in negative for _ in range(count // len(negative))]


def _check_config(path: Any, known: Collection[str]) -> None:
    """Check QEfficient's file of compile settings."""
    if not isinstance(path, str):
        raise ValueError(  # noqa: TRY004 -- as QEfficient does
            f"The path of compile settings is {path!r}; expected a text. Correct it."
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path!r}; expected compile settings in JSON.")
    modules = json.loads(read_text(path)).get("modules", {})
    if unknown := modules.keys() - {*known}:
        raise ValueError(
            f"{path!r} has settings of {min(unknown)!r}; expected those of {', '.join(known)}. Correct it."
        )
    for name, settings in modules.items():
        if (settings.get("execute") or {}).get("qpc_path"):
            raise PlanError(
                [
                    f"{path!r} has a qpc_path of {name}; expected null, since a package has all modules. Remove it."
                ]
            )
