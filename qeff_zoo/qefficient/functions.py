# SPDX-License-Identifier: Apache-2.0
"""QEfficient's functions: the stages of the way from a model to its answers, each by itself."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qeff_zoo import pipeline
from qeff_zoo.api import find_package, load
from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT, TEXT_GENERATION
from qeff_zoo.errors import CompileError, GenerationError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.causal import QEFFAutoModelForCausalLM
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, execute, on_devices, prompts_of
from qeff_zoo.qefficient.foreign_graphs import compile_exported
from qeff_zoo.qefficient.models import Model
from qeff_zoo.store import Store

from . import exported, translation


def transform(model: Any) -> Any:
    """Return a model of ours as it is: what is to be changed about it is changed when its graph is traced.

    Args:
        model: Model of one of the classes here.

    Raises:
        PlanError: The model is of another class.
    """
    if isinstance(model, Model):
        return model
    raise PlanError(
        [
            f"`transform` got a {type(model).__name__}, expected a model of qeff_zoo.qefficient: transformers' own is "
            "never changed. Save it, and load the folder with QEFFAutoModelForCausalLM.from_pretrained."
        ]
    )


def export(
    model_name: str,
    *,
    onnx_dir_path: str | os.PathLike[str] | None = None,
    local_model_dir: str | None = None,
    full_batch_size: int | None = None,
) -> tuple[str, str]:
    """Write the portable ONNX graph of a model that generates text, unless it is there.

    Args:
        model_name: Hub id or folder.
        onnx_dir_path: Argument `export_dir` of `QEFFAutoModelForCausalLM.export`.
        local_model_dir: Folder of the same model, to be read in its place.
        full_batch_size: Any number for a graph of continuous batching.

    Returns:
        The folder, and the path of the graph in it.
    """
    model = QEFFAutoModelForCausalLM.from_pretrained(
        local_model_dir or model_name, continuous_batching=bool(full_batch_size)
    )
    path = model.export(onnx_dir_path)
    return str(Path(path).parent), path


def compile(
    onnx_path: str | os.PathLike[str],
    qpc_path: str | os.PathLike[str],
    num_cores: int = 16,
    device_group: Sequence[int] | None = None,
    *,
    batch_size: int = 1,
    prompt_len: int = 32,
    ctx_len: int = 128,
    full_batch_size: int | None = None,
    mos: int = -1,
    target: str | None = None,
    **compiler_options: Any,
) -> str:
    """Build a package of an exported graph's model; of a graph that QEfficient exported, a QPC for its runtime.

    Args:
        onnx_path: Path from `export`, of this machine, with its checkpoint where it was; or by QEfficient's.
        qpc_path: Folder in which the package or the QPC is put, as `qpcs`.
        num_cores: Number of cores of each card.
        device_group: Cards that the model is sliced over.
        batch_size: Prompts answered at a time, without continuous batching.
        prompt_len: Prompt tokens taken by one call.
        ctx_len: Prompt and generated tokens together.
        full_batch_size: Prompts answered at a time with it, for a graph that was exported so.
        mos: Degree to which weights are split over the cores; -1 leaves it to the compiler.
        target: See `QEFFAutoModelForCausalLM.compile`.
        **compiler_options: See `QEFFAutoModelForCausalLM.compile`.

    Returns:
        Path of `qpcs`; of QEfficient's graph, where there is no SDK, the folder of the script that makes it.

    Raises:
        CompileError: The graph is neither's, or not as it was exported.
    """
    path = Path(onnx_path)
    note = exported.find(path.parent)
    if note is None and exported.is_foreign(path):
        given = {
            "prefill_seq_len": prompt_len, "ctx_len": ctx_len, "batch_size": batch_size,
            "full_batch_size": full_batch_size, "num_cores": num_cores, "device_group": device_group,
            "mos": None if mos == -1 else mos,
        }  # fmt: skip
        return compile_exported(path, Path(qpc_path), target, given | compiler_options)
    if note is None or (note.graph, note.task) != (path.name, TEXT_GENERATION):
        raise CompileError(
            f"Cannot compile {str(onnx_path)!r}: no {exported.NOTE} beside it says which model it is of, or the graph "
            "changed, or generates no text; expected one by `export` of qeff_zoo.qefficient. Export the model again."
        )
    model = QEFFAutoModelForCausalLM.from_pretrained(
        note.model, note.continuous_batching, revision=note.revision
    )
    return model.compile(
        prefill_seq_len=prompt_len,
        ctx_len=ctx_len,
        batch_size=batch_size,
        full_batch_size=full_batch_size,
        num_cores=num_cores,
        target=target,
        compile_dir=Path(qpc_path) / "qpcs",
        device_group=device_group,
        mos=None if mos == -1 else mos,
        **compiler_options,
    )


def cloud_ai_100_exec_kv(
    tokenizer: Any,
    qpc_path: str | os.PathLike[str],
    prompt: str | Sequence[str] | None = None,
    prompts_txt_file_path: str | None = None,
    device_id: Sequence[int] | None = None,
    generation_len: int | None = None,
    *,
    stream: bool = True,
    image: Any = None,
    **others: Any,
) -> CloudAI100ExecInfo:
    """Answer prompts with a package.

    Args:
        tokenizer: See `QEFFAutoModelForCausalLM.generate`, also for the others.
        qpc_path: Folder of a package, or one with `qpcs` in it; or what `qeff_zoo.load` takes.
        prompt: Prompts, or a text in which `|` separates them.
        prompts_txt_file_path: A file with one prompt a line.
        device_id: Cards to run on.
        generation_len: Tokens for each at most.
        stream: Print prompts and answers.
        image: An image that every prompt is about: a path, bytes, a Pillow image or an array. Prompts are then users'
            messages, to which the chat template is applied.
        **others: QEfficient's other arguments, which change nothing here or are refused.
    """
    translation.refuse("cloud_ai_100_exec_kv", others, translation.GENERATING)
    prompts = prompts_of(prompt, prompts_txt_file_path)
    package = package_at(qpc_path)
    if package.task not in (TEXT_GENERATION, IMAGE_TEXT_TO_TEXT):
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}; expected "
            f"{TEXT_GENERATION!r} or {IMAGE_TEXT_TO_TEXT!r}. Run it with `qeff-zoo run`."
        )
    if image is not None and package.task != IMAGE_TEXT_TO_TEXT:
        raise GenerationError(
            f"An image is given, and package {str(package.path)!r} is for task {package.task!r}, which reads none; "
            f"expected one for {IMAGE_TEXT_TO_TEXT!r}. Leave the image out."
        )
    with on_devices(package, device_id):
        session: Any = load(package)
        session.ignore_generation_config()  # as QEfficient, which decodes greedily
    if image is not None:
        shown = {"images": [image], "chat": True, "generation_len": generation_len}
        requests = [session.request(text, **shown) for text in prompts]
        return execute(session, requests, stream=stream)
    return execute(
        session, prompts, tokenizer=tokenizer, stream=stream, generation_len=generation_len
    )


def find_built(model_name: str, **sizes: Any) -> Package | None:
    """Find what `QEFFAutoModelForCausalLM.compile` made for the CPU of a model, for sizes and nothing else.

    Args:
        model_name: Hub id or folder.
        **sizes: `prefill_seq_len`, `ctx_len`, and `batch_size` or `full_batch_size`.

    Returns:
        The package; None where the store has none.
    """
    _, plan = pipeline.make_plan(model_name, Request(task=TEXT_GENERATION, **sizes))
    return Store().lookup(plan.build_key)


def package_at(path: str | os.PathLike[str]) -> Package:
    """Find the package of a path as QEfficient has it: itself a package, or with one as `qpcs` in it.

    Args:
        path: A folder; else a key or a name of the store.
    """
    below = Path(path) / "qpcs"
    return find_package(os.fspath(below if below.is_dir() else path))
