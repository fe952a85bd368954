# SPDX-License-Identifier: Apache-2.0
"""QEfficient's classes: a checkpoint and arguments as QEfficient documents them in, packages and answers out."""

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import finalize

from qeff_zoo import pipeline, targets
from qeff_zoo.api import load
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.contract import tasks_of
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.graph.numerics import STORED
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import PREPARED
from qeff_zoo.package.prepared import SCRIPT, manifest_of
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.configs import ModelView
from qeff_zoo.qefficient.execution import on_devices
from qeff_zoo.qefficient.exported import Source
from qeff_zoo.store.adoption import package_of
from qeff_zoo.terminal.progress_bars import reporter

from . import configs, exported, modules, sdks, translation

if TYPE_CHECKING:
    from qeff_zoo.sessions.opening import Opening

_M = TypeVar("_M", bound="Model")
_OURS = "qeff_zoo.qefficient."


class Model:
    """What the classes have in common: a checkpoint, what was chosen when it was loaded, and what became of it.

    Args:
        source: The checkpoint; `from_pretrained` takes its name. Or a model of transformers, which is saved and loaded.
        **loaded: Options of the model, by the fields of `Request`; of a model of transformers, the arguments of
            `from_pretrained`.

    Raises:
        PlanError: Another object is given in place of a checkpoint.
    """

    #: Hub pipeline tag.
    _task: ClassVar[str]
    #: Of `_task`, a number of slots that makes a graph one of continuous batching; sizes are no part of a graph.
    _slots: int | None = None

    def __init__(self, source: Source, **loaded: Any) -> None:
        if not isinstance(source, Source):
            folder = modules.saved(source, loaded.pop("pretrained_model_name_or_path", None))
            finalize(self, rmtree, folder, ignore_errors=True)
            vars(self).update(vars(type(self).from_pretrained(folder, **loaded)))
            return
        self._source = source
        self._loaded = {"task": self._task, **loaded}
        #: By `compile`; None before, and where only a folder for an SDK was left.
        self.package: Package | None = None
        #: Seconds that each stage of `compile` took.
        self.seconds: Mapping[str, float] = {}
        #: The exported graph, by `export`.
        self.onnx_path: str | None = None
        self._prepared: Path | None = None
        self._session: Any = None
        #: Function that opens the programs of the next session; None for the target's own.
        self._opening: Opening | None = None
        self._config: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source.model!r})"

    @property
    def model_name(self) -> str:
        """The last part of the model's name."""
        return Path(self._source.model).resolve().name

    @property
    def config(self) -> Any:
        """Configuration of the model, see `configs.in_float32`; `compile` refuses changes to it."""
        if self._config is None:
            self._config = configs.in_float32(self._opened_checkpoint())
        return self._config

    @property
    def model(self) -> ModelView:
        """Configuration of the model, in the place of QEfficient's PyTorch module."""
        return ModelView(self.config)

    @property
    def model_architecture(self) -> str | None:
        """Class of the model in transformers, as the checkpoint names it; None if it names none."""
        return next(iter(self._opened_checkpoint().config.get("architectures") or ()), None)

    @property
    def continuous_batching(self) -> bool:
        """Whether the graph has batch slots."""
        return self._slots is not None

    def transform(self, **given: Any) -> None:
        """Refuse QEfficient's change of a PyTorch module, which does not exist here.

        Args:
            **given: Arguments.

        Raises:
            PlanError: Always.
        """
        raise PlanError(
            [
                f"`transform` was called with {', '.join(given) or 'no arguments'}, and there is no PyTorch module; "
                "expected `compile`. Give it these arguments, and run what it returns."
            ]
        )

    def _opened_checkpoint(self) -> Checkpoint:
        return open_checkpoint(self._source.model, **self._source.beside)

    def _require_config(self, function: str) -> None:
        if self._config is not None:
            configs.require_unchanged(function, self._opened_checkpoint(), self._config)

    @property
    def qpc_path(self) -> str | None:
        """Folder of the package."""
        return None if self.package is None else str(self.package.path)

    @classmethod
    def _load(cls: type[_M], name: Any, source: Mapping[str, Any], **loaded: Any) -> _M:
        from qeff_zoo.plan.task import recipe_of

        if not isinstance(name, str | os.PathLike):
            raise modules.refusal(name)
        of_source = {key: it for key, it in source.items() if key in Source.BESIDE}
        token = source.get("token") or source.get("use_auth_token")
        of_source["token"] = token if isinstance(token, str) else None  # True: the user's
        if of_source.get("cache_dir") is not None:
            of_source["cache_dir"] = os.fspath(of_source["cache_dir"])
        read = {*Source.BESIDE, *configs.ARGUMENTS}
        others = {key: it for key, it in source.items() if key not in read}
        translation.refuse("from_pretrained", others, translation.LOADING)
        if others.get("fp8_retain_weights"):
            loaded["weights"] = STORED
        if others.get("enable_proxy"):
            warnings.warn(
                "enable_proxy is left out: the model keeps its embedding and its head. For a small model to try, give "
                "num_hidden_layers=N.",
                stacklevel=outside(),
            )
        found = Source(model=os.fspath(name), **of_source)
        checkpoint = open_checkpoint(found.model, **found.beside)
        recipe = recipe_of(checkpoint)  # what has none is refused here
        if cls._task not in tasks_of(recipe):
            raise UnsupportedModelError(
                f"{checkpoint.name!r} is a {recipe.model_type!r} model for {', '.join(tasks_of(recipe))}, and "
                f"{cls.__name__} is for {cls._task}; expected a model for that. Use QEFFCommonLoader, which chooses "
                "the class."
            )
        cut = configs.selected(checkpoint, *(source.get(name) for name in configs.ARGUMENTS))
        return cls(found if cut is None else Source(model=cut), **loaded)

    def export(self, export_dir: str | os.PathLike[str] | None = None, **others: Any) -> str:
        """Write the portable ONNX graph with its weights, unless it is there; `compile` does not need it.

        Args:
            export_dir: A folder that is new, empty, or an export of the same; None for one below `qeff_models` here.
            **others: QEfficient's other arguments, which change nothing here or are refused.

        Returns:
            Path of the graph.
        """
        translation.refuse("export", others, translation.EXPORTING)
        self._require_config("export")
        source = self._source
        request = Request(**self._loaded, full_batch_size=self._slots)
        _, plan = pipeline.make_plan(source.model, request, **source.beside)
        folder = Path(export_dir or exported.place(self.model_name, "onnx", plan.build_key))
        note = exported.find(folder)
        if note is None or note.key != plan.build_key:
            made = pipeline.export(
                source.model,
                folder,
                request=request,
                **source.beside,
                reporter=reporter(),
            )
            note = exported.write(
                made.path, plan.build_key, source, self._task, continuous=self._slots is not None
            )
        self.onnx_path = str(folder / note.graph)
        return self.onnx_path

    def get_onnx_path(self) -> str:
        """Return the path of the exported graph, which is written unless it is there."""
        return self.onnx_path or self.export()

    def _compile(
        self,
        target: str | None,
        compile_dir: str | os.PathLike[str] | None,
        given: Mapping[str, Any],
    ) -> str:
        """Build a package, or leave what an SDK needs; return the folder."""
        self._require_config("compile")
        arguments = dict(given)
        only_files = translation.pop_only_files(arguments)
        if only_files and target is None:
            target = "qnn-aic" if arguments.get("enable_qnn") else "qaic"
        request = self._request(target, arguments)
        self.package = self._prepared = self._session = None
        chosen = targets.find(str(request.target))
        if only_files and not chosen.compiles_offline:
            raise PlanError(
                [
                    f"`compile`: artifacts is True, and target {target!r} compiles nothing elsewhere; expected one of "
                    "a card. Leave target out."
                ]
            )
        if chosen.compiles_offline and (only_files or not sdks.compiles(chosen)):
            self._prepared = self._prepare(request, compile_dir)
            return str(self._prepared)
        built = pipeline.build(
            self._source.model,
            request,
            **self._source.beside,
            output=None if compile_dir is None else Path(compile_dir),
            reporter=reporter(),
        )
        self.package, self.seconds = built.package, built.seconds
        return str(built.package.path)

    def _request(self, target: str | None, given: dict[str, Any]) -> Request:
        """Convert the arguments of `compile`; warn about those that a CPU ignores, if the user chose no target."""
        qnn, config = given.pop("enable_qnn", None), given.pop("qnn_config", None)
        card = "qnn-aic" if qnn or target == "qnn-aic" else "qaic"
        if qnn and target not in (None, card):
            raise PlanError(
                [
                    f"enable_qnn is {qnn!r}, and target is {target!r}; expected {card!r}. Leave one out."
                ]
            )
        if config is not None and card != "qnn-aic":
            raise PlanError(
                [
                    f"qnn_config is {config!r} without enable_qnn; expected both. Give both, or neither."
                ]
            )
        if target not in (None, *targets.NAMES):
            expected = ", ".join(map(repr, targets.NAMES))
            raise PlanError([f"target is {target!r}, expected one of {expected}. Choose one."])
        chosen = target or (card if sdks.has(card) else targets.NAMES[0])
        prefix = given.get("kv_cache_prefix")
        if chosen not in targets.on_cards() and isinstance(prefix, str) and prefix.isalnum():
            del given["kv_cache_prefix"]  # sessions accept any
        own = ("compile_dir", "target", "enable_qnn", "qnn_config", "qaic_config")
        translated = translation.translate(given, own, self._defaults())
        fields, left = translated.request(chosen)
        text = None if config is None else sdks.json_text(config)
        fields |= {"qnn_config": text} if chosen == "qnn-aic" else {}
        problems = [
            f"`compile`: {name} is {fields[name]!r}, and the model was loaded for {loaded!r}; expected the same. "
            "Load it for the other."
            for name, loaded in self._loaded.items()
            if fields.get(name, loaded) != loaded
        ]
        left += ["enable_qnn=True"] if qnn and chosen != card else []
        if target is not None:
            problems += [f"Target {target!r} knows no {one}. Leave it out." for one in left]
        if problems:
            raise PlanError(problems)
        if target is None and chosen != card:
            without = f" Left out, as only a card knows it: {', '.join(left)}." if left else ""
            warnings.warn(
                f"There is no Cloud AI SDK here: {self.model_name!r} is built for target {chosen!r} and runs on the "
                f"CPU.{without} target={card!r} leaves what an SDK compiles.",
                stacklevel=outside(),
            )
        return Request(**{**self._loaded, **fields})

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Return the default values of `compile`'s arguments, those of derived classes first."""
        defaults = dict[str, Any]()
        for kind in reversed(cls.__mro__):
            if compile := vars(kind).get("compile"):
                parameters = inspect.signature(compile).parameters.values()
                defaults |= {
                    parameter.name: parameter.default
                    for parameter in parameters
                    if parameter.default
                }
        return {
            name: value for name, value in defaults.items() if value is not inspect.Parameter.empty
        }

    def _prepare(self, request: Request, folder: str | os.PathLike[str] | None) -> Path:
        """Leave a folder for a compiler that is elsewhere, unless it is there."""
        model, beside = self._source.model, self._source.beside
        _, plan = pipeline.make_plan(model, request, **beside)
        output = Path(folder or exported.place(self.model_name, plan.target, plan.build_key))
        there = (output / PREPARED).exists()
        if not there or manifest_of(output)["build_key"] != plan.build_key:
            pipeline.prepare(model, output, request=request, **beside, reporter=reporter())
        return output

    def _write_inputs(self, generate: Callable[[], object], role: str) -> Path:
        """Write the first call of a program as files, and run nothing.

        Args:
            generate: A function that generates with the session of `_opened`.
            role: Role of the program, if there are several.
        """
        from qeff_zoo.sessions import open_session
        from qeff_zoo.targets.qaic import bundles, features

        package = package_of(self._prepared) if self._prepared else self.package
        if package is None or package.target not in targets.on_cards():
            where = "is not compiled" if package is None else f"was compiled for {package.target!r}"
            raise GenerationError(
                f"`generate`: artifact_only is True, and {self.model_name!r} {where}; expected a card's files. Call "
                "`compile` with artifact_only=True before."
            )
        recorders = {program.role: bundles.Recorder(program) for program in package.programs}
        before = self.package, self._prepared, self._session
        self._session = open_session(
            package, opening=lambda name, _: features.adapted(recorders[name])
        )
        self.package, self._prepared = package, None
        try:
            generate()
        finally:
            self.package, self._prepared, self._session = before
        recorder = recorders.get(role) or recorders[package.programs[0].role]
        folder = self._prepared or exported.place(
            self.model_name, package.target, package.build_key
        )
        return bundles.write(recorder, folder)

    def _opened(self, device_ids: Sequence[int] | None, runtime_ai100: bool) -> Any:
        """Return the session of the package; it is opened once."""
        if self._prepared is not None:
            raise GenerationError(
                f"{str(self._prepared)!r} is prepared, and has no program yet; expected a package. Run {SCRIPT} in it "
                "where the SDK is, then `qeff-zoo adopt`, and run what that prints with cloud_ai_100_exec_kv."
            )
        if self.package is None:
            raise GenerationError(
                f"{self.model_name!r} is not compiled; expected a package. Call `compile` before `generate`."
            )
        if not runtime_ai100 and self.package.target in targets.on_cards():
            raise GenerationError(
                f"runtime_ai100 is False, and the package is for target {self.package.target!r}; expected one for the "
                f"CPU. Call `compile` with target={targets.NAMES[0]!r}."
            )
        if self._session is None:
            with on_devices(self.package, device_ids):
                self._session = self._load_package(self.package)
            from qeff_zoo.runtime.engine.text_generation import TextGenerationSession

            if isinstance(self._session, TextGenerationSession):
                self._session.ignore_generation_config()  # as QEfficient, which decodes greedily
        return self._session

    def _load_package(self, package: Package) -> Any:
        from qeff_zoo.sessions import open_session

        return open_session(package, opening=self._opening) if self._opening else load(package)


def outside() -> int:
    """Return the `stacklevel` at which a warning of the caller's names the line of the user's."""
    level, frame = 1, inspect.currentframe()
    while (frame := frame and frame.f_back) and _OURS in frame.f_globals.get("__name__", ""):
        level += 1
    return level
