# SPDX-License-Identifier: Apache-2.0
"""QEfficient's pipeline of Flux: texts in, images and the seconds of each module out."""

import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

#: Roles of a package's programs, which are QEfficient's names, in the order of its report.
MODULES = ("text_encoder", "text_encoder_2", "transformer", "vae_decoder")
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
        images: Pillow images, or an array (images, height, width, 3) of values from 0 to 1.
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
        qpc_path: Folder of the package; None before `compile`.
        device_ids: Cards of the module, which a CPU has none of.
        seconds: Seconds of each call of the running image.
    """

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


class QEffFluxPipeline:
    """Text to image by Flux 1, as `diffusers.FluxPipeline` computes it.

    Args:
        source: The checkpoint; `from_pretrained` takes its name.

    Example:
        >>> flux = QEffFluxPipeline.from_pretrained(
        ...     "black-forest-labs/FLUX.1-schnell"
        ... )  # doctest: +SKIP
        >>> output = flux("a cat", num_inference_steps=4, height=512, width=512)  # doctest: +SKIP
        >>> output.images[0].save("cat.png")  # doctest: +SKIP
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.package: Package | None = None
        self._session: Any = None
        self.modules = {name: Module() for name in MODULES}

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        enable_first_block_cache: bool = False,
        first_block_cache_downsample_factor: int = 4,
        **others: Any,
    ) -> "QEffFluxPipeline":
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            enable_first_block_cache: Refused if True: steps are never skipped here.
            first_block_cache_downsample_factor: Without that cache, it has no effect.
            **others: `revision`, `token` and `cache_dir`; diffusers' other arguments, which change nothing here or are
                refused.

        Raises:
            PlanError: An argument is not supported.
            UnsupportedModelError: The checkpoint is not of Flux 1.
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

    def compile(
        self,
        compile_config: str | None = None,
        parallel: bool = False,
        height: int = 512,
        width: int = 512,
        use_onnx_subfunctions: bool = False,
    ) -> str:
        """Build a package, or find it in the store; it draws images of any size.

        Args:
            compile_config: QEfficient's JSON file, whose settings of cards have no effect on a CPU.
            parallel: Whether modules are compiled at the same time, which changes nothing.
            height: Without effect.
            width: Without effect.
            use_onnx_subfunctions: Without effect: equal blocks are functions in any case.

        Returns:
            The package's folder.

        Raises:
            FileNotFoundError: The file does not exist.
            ValueError: The file's path is no text, or names a module that Flux does not have.
            PlanError: The file has a `qpc_path`, which is a program of QEfficient's.
        """
        if compile_config is not None:
            _check_config(compile_config)
        built = pipeline.build(
            self._source.model, Request(), **self._source.beside, reporter=reporter()
        )
        warnings.warn(
            "Flux is built for target 'ort' and runs on the CPU: settings of cards have no effect.",
            stacklevel=outside(),
        )
        self.package, self._session = built.package, None
        for module in self.modules.values():
            module.qpc_path = str(built.package.path)
        return str(built.package.path)

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        height: int = 512,
        width: int = 512,
        prompt_2: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        true_cfg_scale: float = 1.0,
        num_inference_steps: int = 28,
        guidance_scale: float = 3.5,
        num_images_per_prompt: int = 1,
        generator: Any = None,
        output_type: str = "pil",
        max_sequence_length: int = _MOST_TOKENS,
        custom_config_path: str | None = None,
        parallel_compile: bool = False,
        use_onnx_subfunctions: bool = False,
        **others: Any,
    ) -> QEffPipelineOutput:
        """Draw an image of each prompt; the package is built first if `compile` did not.

        Args:
            prompt: One text or several.
            height: Height in pixels.
            width: Width in pixels.
            prompt_2: The same texts as `prompt`, or None.
            negative_prompt: Text that images are guided away from, with a `true_cfg_scale` above 1.
            true_cfg_scale: Scale of that guidance.
            num_inference_steps: Number of steps.
            guidance_scale: Scale of the model's own guidance.
            num_images_per_prompt: Number of images of each prompt.
            generator: torch's generators on the CPU, one for each image, of which nothing was drawn; None for random
                seeds.
            output_type: "pil", or "np".
            max_sequence_length: Tokens of T5, 1 to 512.
            custom_config_path: See `compile`.
            parallel_compile: See `compile`.
            use_onnx_subfunctions: See `compile`.
            **others: diffusers' other arguments, which are refused unless they are None.

        Raises:
            GenerationError: An argument is not supported, or out of its range.
        """
        if unsupported := [name for name, value in others.items() if value is not None]:
            raise GenerationError(
                f"`QEffFluxPipeline` takes no {unsupported[0]!r}; expected prompts and the options of an image. Leave "
                "it out."
            )
        prompts = _listed(prompt)
        if prompt_2 is not None and _listed(prompt_2) != prompts:
            raise GenerationError(
                "prompt_2 differs from prompt; expected the same text for both encoders. Leave prompt_2 out."
            )
        if output_type not in ("pil", "np"):
            raise GenerationError(
                f"output_type is {output_type!r}; expected 'pil' or 'np'. Choose one of these."
            )
        images = [one for one in prompts for _ in range(num_images_per_prompt)]
        seeds = _seeds_of(generator, len(images))
        negative = _listed(negative_prompt) if negative_prompt is not None else [None]
        if len(negative) not in (1, len(prompts)):
            raise GenerationError(
                f"There are {len(negative)} negative prompts for {len(prompts)} prompts; expected one, or as many. "
                "Correct negative_prompt."
            )
        away = [one for one in negative for _ in range(len(images) // len(negative))]
        if self.package is None:
            self.compile(custom_config_path, parallel_compile, height, width, use_onnx_subfunctions)
        session = self._opened()
        options = [
            session.options(
                negative_prompt=other,
                true_cfg_scale=true_cfg_scale,
                seed=seed,
                steps=num_inference_steps,
                guidance_scale=guidance_scale,
                height=height,
                width=width,
            )
            for other, seed in zip(away, seeds, strict=True)
        ]
        for module in self.modules.values():
            module.seconds.clear()
        with _tokens(session, max_sequence_length):
            drawn = [
                session.draw_all([text], one)[0].pixels
                for text, one in zip(images, options, strict=True)
            ]
        return QEffPipelineOutput(self._report(), _converted(drawn, output_type))

    def _opened(self) -> Any:
        if self._session is None:
            assert self.package is not None
            self._session = load(self.package)
            for role, module in self.modules.items():
                timed = _Timed(self._session.programs[role], module.seconds)
                self._session.programs[role] = timed
        return self._session

    def _report(self) -> list[ModulePerf]:
        """Return the seconds of each module: of the transformer, those of each step."""
        return [
            ModulePerf(name, [*module.seconds] if name == "transformer" else sum(module.seconds))
            for name, module in self.modules.items()
        ]


def _listed(prompt: Any) -> list[Any]:
    """Return one or several texts as a list."""
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise GenerationError(f"prompt is {prompt!r:.100}; expected a text, or several. Give one.")
    return texts


def _seeds_of(generator: Any, count: int) -> list[int | None]:
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


@contextmanager
def _tokens(session: Any, length: int) -> Iterator[None]:
    """Let T5 read so many tokens."""
    if not 0 < length <= _MOST_TOKENS:
        raise GenerationError(
            f"max_sequence_length is {length}; expected 1 to {_MOST_TOKENS}. Correct it, or leave it out."
        )
    prompts = session.prompts["text_encoder_2"]
    before, prompts.length = prompts.length, length
    try:
        yield
    finally:
        prompts.length = before


def _converted(drawn: Sequence[Any], output_type: str) -> Any:
    """Return images in the form of diffusers' `output_type`."""
    if output_type == "np":
        import numpy as np

        return np.stack(drawn).astype(np.float32) / np.float32(255)
    from PIL import Image

    return [Image.fromarray(pixels) for pixels in drawn]


def _check_config(path: Any) -> None:
    """Check QEfficient's file of compile settings."""
    if not isinstance(path, str):
        raise ValueError(  # noqa: TRY004 -- as QEfficient does
            f"The path of compile settings is {path!r}; expected a text. Correct it."
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path!r}; expected compile settings in JSON.")
    modules = json.loads(read_text(path)).get("modules", {})
    if unknown := modules.keys() - {*MODULES}:
        raise ValueError(
            f"{path!r} has settings of {min(unknown)!r}; expected those of {', '.join(MODULES)}. Correct it."
        )
    for name, settings in modules.items():
        if (settings.get("execute") or {}).get("qpc_path"):
            raise PlanError(
                [
                    f"{path!r} has a qpc_path of {name}; expected null, since a package has all modules. Remove it."
                ]
            )
