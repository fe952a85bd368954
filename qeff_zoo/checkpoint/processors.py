# SPDX-License-Identifier: Apache-2.0
"""Settings of a checkpoint's processor, from transformers' object to `processor_settings.json`.

A checkpoint's files have some settings; classes have defaults for the others, which differ between an image processor
and the processor around it, and some are computed. So the object is loaded, and the arguments of its calls are
recorded.
"""

import importlib
import inspect
import json
import sys
import tempfile
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS, read_config
from qeff_zoo.checkpoint.json_files import read_json

from . import text

#: Files of a checkpoint with settings of a processor.
FILES = frozenset({"processor_config.json", "preprocessor_config.json"})
#: Raised if the same files give other settings.
_REVISION = 3
#: Errors of transformers' loaders if files are absent, contradict one another, or need a package.
_UNLOADABLE = (
    OSError, ImportError, ValueError, TypeError, KeyError, AttributeError, IndexError, RuntimeError,
)  # fmt: skip
#: Module of torchvision that transformers imports.
_LEAF = "torchvision.transforms.v2.functional"
_TEMPLATE = "chat_template.jinja"
#: Attributes of a processor with the text for an image in a prompt; the first existing one counts.
_MARKERS = "image_placeholder_token", "image_token"
#: Prompt whose processed form shows the text before prompts.
_PROBE = "A prompt."
_SHOWN = 32, 32  # pixels of an image with it
#: Attributes of a processor with its feature extractor.
_EXTRACTORS = "feature_extractor", "audio_processor"
#: Arguments of a call that are no settings of an image processor.
_OF_CALL = {"return_tensors", "data_format", "input_data_format", "device", "disable_grouping"}


class _CalledError(Exception):
    """Exception that ends a processor's call at the call of its image processor."""


class _Recorder:
    """Stand-in for a part of a processor that records the texts and the keyword arguments of its call."""

    def __init__(self, held: Any) -> None:
        self.held, self.options, self.texts = held, dict[str, Any](), list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)

    def __call__(self, texts: Any = (), *_: Any, **options: Any) -> Any:
        self.texts, self.options = list(texts or options.get("text", ())), options
        raise _CalledError


def identity_of(names: Iterable[str]) -> dict[str, Any]:
    """Return the identity of a package's processor settings, besides the version of transformers; empty without any.

    Args:
        names: Relative paths of the checkpoint's files.
    """
    return {} if FILES.isdisjoint(names) else {"revision": _REVISION}


def write(source: Path, folder: Path) -> None:
    """Write the settings of a checkpoint's processor, if transformers has one for it.

    Args:
        source: Folder of the checkpoint's small files.
        folder: The package.
    """
    processor = load(source)
    settings = held(processor)
    if audio := _audio_settings(processor, source):
        settings["feature_extractor"] = audio
    if settings:
        (folder / PROCESSOR_SETTINGS).write_text(
            json.dumps(settings, sort_keys=True), encoding="utf-8"
        )
    template = getattr(processor, "chat_template", None)
    if isinstance(template, str) and not _has_template(folder):
        (folder / _TEMPLATE).write_text(template, encoding="utf-8")


def _has_template(folder: Path) -> bool:
    named = folder / "tokenizer_config.json"
    settings = read_json(named) if named.is_file() else {}
    files = (folder / name for name in (_TEMPLATE, "chat_template.json"))
    return "chat_template" in settings or any(file.is_file() for file in files)


def load(folder: Path) -> Any:
    """Return transformers' processor of a folder, or its image processor or feature extractor alone, or None.

    Code of the checkpoint never runs. Where torchvision is not installed, parts that transformers has with torchvision
    only have their settings, and compute nothing.

    Raises:
        CheckpointError: The tokenizer in it may exhaust the memory.
    """
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor
    from transformers.processing_utils import ProcessorMixin

    text.require_bounded(folder, folder.name)
    with _quietly():
        if own := _settings_of_code(folder):
            with tempfile.TemporaryDirectory(prefix="qeff-processor-") as name:
                (Path(name) / "preprocessor_config.json").write_text(json.dumps(own), "utf-8")
                # transformers has no class for some of such settings
                with suppress(ValueError):
                    return AutoImageProcessor.from_pretrained(name)
                return None
        for videos in (False, True):  # few processors read settings of videos
            with suppress(*_UNLOADABLE), _own_parts(videos=videos):
                processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
                if isinstance(processor, ProcessorMixin):
                    return processor
        parts: tuple[Any, ...] = (AutoImageProcessor, AutoFeatureExtractor)
        for part in parts:
            with suppress(*_UNLOADABLE):
                return part.from_pretrained(folder, trust_remote_code=False)
    return None


def _settings_of_code(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the image processor in a checkpoint's code, see `Recipe.alias`; None without one."""
    path = folder / "config.json"
    if not (path.is_file() and read_json(path).get("auto_map")):
        return None
    return read_config(path).get("image_processor")


def extractor_of(processor: Any) -> Any:
    """Return the feature extractor of a processor, or the processor itself if it is one; None if it has none."""
    from transformers import SequenceFeatureExtractor

    parts = (getattr(processor, name, None) for name in _EXTRACTORS)
    extractor = next((part for part in parts if part is not None), processor)
    return extractor if isinstance(extractor, SequenceFeatureExtractor) else None


def is_audio_only(processor: Any) -> bool:
    """Return whether a processor has a feature extractor, or is one, and no image processor."""
    from transformers import FeatureExtractionMixin

    has_extractor = any(hasattr(processor, name) for name in _EXTRACTORS)
    is_extractor = isinstance(processor, FeatureExtractionMixin)
    return (has_extractor or is_extractor) and not hasattr(processor, "image_processor")


def _audio_settings(processor: Any, folder: Path) -> dict[str, Any]:
    """Return the settings of a processor's feature extractor: those of the files, and the defaults of its class."""
    extractor = extractor_of(processor)
    if extractor is None:
        return {}
    settings: dict[str, Any] = {}
    with suppress(*_UNLOADABLE):
        settings, _ = type(extractor).get_feature_extractor_dict(folder)
    settings |= {name: var for name, var in vars(extractor).items() if name[0] != "_"}
    plain = {name: _plain(setting) for name, setting in settings.items() if _is_plain(setting)}
    return {**plain, "feature_extractor_type": type(extractor).__name__}


def _is_plain(value: Any) -> bool:
    """Return whether a setting has a form in JSON; computed filters and windows have none."""
    if getattr(value, "ndim", 0):
        return False
    return value is None or isinstance(value, str | int | float | list | tuple | dict)


def held(processor: Any) -> dict[str, Any]:
    """Return the settings that transformers' processor uses.

    Args:
        processor: Result of `load`.

    Returns:
        Settings of an image processor's call by name, `image_processor`; for a processor with text also `image_token`,
        the text for an image in a prompt, `opening`, the text before every prompt, `opening_follows_images`, whether
        that text follows the images at the beginning of a prompt, `renamed_tokens`, texts by those that its class
        writes, and `add_special_tokens`, whether a prompt gets the tokenizer's special tokens.
    """
    from PIL import Image

    values: dict[str, Any] = {}
    images = getattr(processor, "image_processor", processor)
    if hasattr(images, "valid_kwargs"):
        names = sorted(images.valid_kwargs.__annotations__.keys() - _OF_CALL)
        settings = {name: getattr(images, name, None) for name in names}
        settings |= {k: v for k, v in options_of(processor).items() if k in settings}
        settings = {name: _plain(value) for name, value in settings.items()}
        unset = {
            name: False
            for name, setting in settings.items()
            if setting is None and name[:3] == "do_"
        }
        kind = type(images).__name__
        values["image_processor"] = {**settings, **unset, "image_processor_type": kind}
    tokens = (getattr(processor, name, None) for name in _MARKERS)
    token = next(filter(None, tokens), None)
    if token is not None:
        values["image_token"] = str(token)
    if renamed := _renamed_tokens(processor):
        values["renamed_tokens"] = renamed
    if getattr(processor, "tokenizer", None) is not None:
        texts = _merged(processor).get("text_kwargs", {})
        values["add_special_tokens"] = bool(texts.get("add_special_tokens", True))
        if opening := _opening_of(processor):
            values["opening"] = opening
            shown = Image.new("RGB", _SHOWN)
            expanded = _expanded(processor, f"{token}{_PROBE}", images=[shown]) if token else ""
            if expanded == f"{token}{opening}{_PROBE}":
                values["opening_follows_images"] = True
    return values


def _renamed_tokens(processor: Any) -> dict[str, str]:
    """Return the tokens of a processor's file that replace those of its class, by the latter.

    Its class writes a token of null as "None", and some classes never write one of their arguments.
    """
    kind = type(processor)
    methods = {*inspect.getmembers(kind, inspect.isfunction)} - {("__init__", kind.__init__)}
    read = {name for _, one in methods for name in _names_in(inspect.unwrap(one).__code__)}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if name.endswith("_token") and name in read.difference(_MARKERS)
        if isinstance(parameter.default, str)
    }
    named = {old: str(getattr(processor, name, old)) for name, old in defaults.items()}
    return {old: new for old, new in named.items() if new != old}


def _names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a function's code, with the functions in it."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _opening_of(processor: Any) -> str:
    """Return the text that a processor puts before every prompt; empty if it changes prompts otherwise."""
    text = _expanded(processor, _PROBE)
    return text.removesuffix(_PROBE) if text.endswith(_PROBE) else ""


def _expanded(processor: Any, prompt: str, **media: Any) -> str:
    """Return the text that a processor tokenizes for a prompt; "" if it refuses the prompt."""
    recorder = _Recorder(processor.tokenizer)
    refused = suppress(_CalledError, *_UNLOADABLE)
    with mock.patch.object(processor, "tokenizer", recorder), _quietly(), refused:
        processor(text=[prompt], **media)
    return "".join(map(str, recorder.texts))


def _merged(processor: Any) -> dict[str, Any]:
    """Return the keyword arguments of a processor for its parts, by part."""
    tokenizer = getattr(processor, "tokenizer", None)
    settings = getattr(tokenizer, "init_kwargs", {})
    merged: dict[str, Any] = {}
    with suppress(*_UNLOADABLE):  # of a processor that merges in another way
        merged = processor._merge_kwargs(tokenizer_init_kwargs=settings)
    return merged


def options_of(processor: Any) -> dict[str, Any]:
    """Return the keyword arguments with which a processor calls its image processor."""
    if not hasattr(processor, "_merge_kwargs"):
        return {}
    options: dict[str, Any] = _merged(processor).get("images_kwargs", {})
    recorder = _Recorder(processor.image_processor)
    with mock.patch.object(processor, "image_processor", recorder):
        try:
            processor._process_images([[]], **options)
        except (_CalledError, *_UNLOADABLE):  # one that has no such step calls it as it is
            pass
    return {**options, **recorder.options}


def _plain(value: Any) -> Any:
    """Return a setting as a JSON value."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, int):  # a member of an enumeration, too
        return int(value)
    return {str(key): _plain(entry) for key, entry in dict(value).items() if entry is not None}


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the reports of transformers during loading."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _own_parts(*, videos: bool = False) -> Iterator[None]:
    """Load parts of a processor from transformers alone, and image processors also without torchvision.

    Args:
        videos: Whether video processors are loaded without it, too; else they are omitted.
    """
    from transformers import processing_utils
    from transformers.models.auto import processing_auto

    kinds, mixin = "MODALITY_TO_AUTOPROCESSOR_MAPPING", processing_utils.ProcessorMixin
    makers = {"image_processor": _images_of, **({"video_processor": _videos_of} if videos else {})}
    parts = _Parts(getattr(processing_utils, kinds), makers)
    check: Any = mixin.check_argument_for_proper_class

    def lenient(self: Any, name: str, part: Any) -> Any:
        # The base classes of imported parts are placeholders where torchvision is not installed.
        known = part is None or any(part is one for one in parts.imported)
        return None if known else check(self, name, part)

    named = processing_auto.processor_class_from_name

    def real(name: str) -> Any:
        class_ = named(name)
        if not getattr(class_, "is_dummy", False):
            return class_
        known = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
        return _imported(
            name, [kind for kind, value in known.items() if value == name], "processing"
        )

    with (
        mock.patch.object(processing_utils, kinds, parts),
        mock.patch.object(mixin, "check_argument_for_proper_class", lenient),
        mock.patch.object(processing_auto, "processor_class_from_name", real),
    ):
        yield


def _imported(name: str, types: Iterable[str], module: str) -> Any:
    """Return a class whose module imports torchvision for functions that are not called here.

    Args:
        name: Name of the class; empty for the first one that the module exports.
        types: Types of models, one of which has the module.
        module: Beginning of the module's name, such as "processing".

    Raises:
        ImportError: No such module defines it.
    """
    *parents, leaf = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", _LEAF)
    modules = {one: sys.modules.get(one) or ModuleType(one) for one in (*parents, leaf)}
    vars(modules[parents[-1]]).setdefault("functional", modules[leaf])
    vars(modules[leaf]).setdefault("__getattr__", _type_of_torchvision)
    for kind in (one.replace("-", "_") for one in types):
        path = f"transformers.models.{kind}.{module}_{kind}"
        with suppress(ModuleNotFoundError), standing_in(modules):
            imported = importlib.import_module(path)
            return getattr(imported, name or imported.__all__[0])
    raise ImportError(f"No module of transformers defines {name!r}.")


@contextmanager
def standing_in(modules: Mapping[str, Any]) -> Iterator[None]:
    """Let modules stand in for absent ones; modules of processors that are imported meanwhile are forgotten.

    All other modules stay: transformers keeps their classes, and looks up their modules by name later.

    Args:
        modules: Modules by name.
    """
    before = dict(sys.modules)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in {*sys.modules} - before.keys():
            if name in modules or "processing_" in name:
                del sys.modules[name]
        sys.modules.update({name: before[name] for name in modules if name in before})


def _type_of_torchvision(name: str) -> Any:
    """Return a type for the annotations of functions."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Any


def _images_of(folder: Path) -> Any:
    """Return an image processor that transformers has with torchvision only; None if it has none for a folder.

    Its class is that of its settings, or that of the model's type if these have no class of transformers.
    """
    from transformers.models.auto import image_processing_auto

    known = vars(image_processing_auto)["IMAGE_PROCESSOR_MAPPING_NAMES"]
    named = {kind: backends.get("torchvision") for kind, backends in known.items()}
    for settings in _settings_in(folder, "image_processor"):
        name = str(settings.get("image_processor_type") or "").removesuffix("Fast")
        if name not in named.values() and settings.get("auto_map"):
            name = str(named.get(_type_of(folder)) or "")
        if types := [kind for kind, value in named.items() if value == name and name]:
            return _imported(name, types, "image_processing").from_pretrained(folder)
    return None


def _videos_of(folder: Path) -> Any:
    """Return a video processor of transformers, which it has with torchvision only."""
    names = [one.get("video_processor_type") for one in _settings_in(folder, "video_processor")]
    name = str(next(filter(None, names), ""))
    return _imported(name, [_type_of(folder)], "video_processing").from_pretrained(folder)


def _settings_in(folder: Path, part: str) -> list[Any]:
    """Return the settings of a part of a processor, in files of its own or in that of the processor."""
    documents = [read_json(path) for name in sorted(FILES) if (path := folder / name).is_file()]
    return [document.get(part) or document for document in documents]


def _type_of(folder: Path) -> str:
    path = folder / "config.json"
    return str(read_config(path).get("model_type")) if path.is_file() else ""


class _Parts(UserDict[str, Any]):
    """Auto classes by kind, whose `from_pretrained` runs no code of the checkpoint and needs no torchvision.

    It returns None for any part but a tokenizer that fails to load. transformers' own classes do not pass
    `trust_remote_code` on to parts, whose loaders then wait for permission on the terminal.

    Args:
        kinds: transformers' own mapping.
        makers: Functions that make a part where transformers' own loader fails, by kind.

    Attributes:
        imported: Parts whose classes were imported by `_imported`.
    """

    def __init__(self, kinds: Mapping[str, Any], makers: Mapping[str, Any]) -> None:
        super().__init__()
        self._kinds, self._makers, self.imported = kinds, makers, list[Any]()
        self._loading = set[str]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds.keys())

    def __contains__(self, kind: object) -> bool:
        return kind in self._kinds

    def __getitem__(self, kind: str) -> Any:
        from transformers import processing_utils

        def load(folder: Any, *args: Any, **options: Any) -> Any:
            # LlavaNextVideoProcessor, a processor, is taken for its own video processor.
            if kind in self._loading:
                return None
            self._loading.add(kind)
            try:
                options = {**options, "trust_remote_code": False}
                processor = self._kinds[kind].from_pretrained(folder, *args, **options)
            except _UNLOADABLE:
                if kind == "tokenizer":
                    raise
                processor = self._make(kind, Path(folder))
            finally:
                self._loading.remove(kind)
            return None if isinstance(processor, processing_utils.ProcessorMixin) else processor

        return SimpleNamespace(from_pretrained=load, __name__=kind)

    def _make(self, kind: str, folder: Path) -> Any:
        if make := self._makers.get(kind):
            with suppress(*_UNLOADABLE):
                self.imported.append(make(folder))
                return self.imported[-1]
        return None
