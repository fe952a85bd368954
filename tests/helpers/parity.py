# SPDX-License-Identifier: Apache-2.0
"""One tiny config, computed five ways, fed the same tokens.

    HF float64 ── noise ── HF float32 ─┬─ transformed model in PyTorch
                                       ├─ portable graph in ONNX Runtime
                                       └─ lowered graph in ONNX Runtime (fp32, int8, int4)

What rounding alone does is measured: the distance of Hugging Face in float32 from Hugging Face in float64 on the same
tokens. A result may be a few times that far from Hugging Face; `TOLERANCE` says how many times.
"""

import copy
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import onnx_ir as ir
import onnxruntime
import static_graphs
import torch
from aligned import aligned
from selection import EVERY
from sharing import made_once
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING

from qeff_zoo import contract
from qeff_zoo.checkpoint.config import model_config, parsed_model_config
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.export import architectures, exporter, loader
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.graph import external_data
from qeff_zoo.graph.numerics import WEIGHTS, Format, RoundedMatrix, format_of
from qeff_zoo.graph.passes import slots as slots_pass
from qeff_zoo.graph.states import State, states_of
from qeff_zoo.recipe import Recipe, Tiny
from qeff_zoo.registry import find_recipe, list_recipes
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.program import Program
from qeff_zoo.targets.base import Lowered
from qeff_zoo.targets.ort import attention, lowering, processor
from qeff_zoo.targets.ort.session import OrtProgram
from qeff_zoo.tasks.encoders import pooling
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.reference.numerics import compute_in_float64, round_weights
from qeff_zoo.weights import placement
from qeff_zoo.weights.bindings import bind
from qeff_zoo.weights.quantization import round_trip
from qeff_zoo.weights.storage import Storage
from qeff_zoo.weights.writing import evaluate, plan_file, write

#: Environment variable that names the folder which all processes of a test session share.
CACHE = "QEFF_ZOO_TEST_CACHE"

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Variant: TypeAlias = tuple[tuple[str, Any], ...]

#: How many times the rounding noise a result may be away from Hugging Face in float32.
TOLERANCE: Mapping[str, float] = {
    "torch": 4,  # the same operations of the same library, grouped otherwise; how differs between processors
    "portable": 4,  # other kernels, which sum in another order
    "fp32": 4,
    "static": 4,  # sums of recurrences in blocks
    # With activations in float32, against Hugging Face with rounded weights; summed in blocks.
    "int8": 4,
    "int4": 5,  # zero points are taken off at the end of a block
    "as shipped": 2,  # two roundings lie 1.4 times as far apart as one from none; see `stray`
}
#: A dropped fact is at least so many times the tolerance away, else a test that compares proves nothing.
DROPPED = 37

PLAIN: Variant = ()
EXPANDED: Variant = (("expanded_kv", True),)
COMPUTE_CONTEXT: Variant = (("comp_ctx_lengths", True),)
CONTINUOUS: Variant = (("continuous_batching", True),)

#: Classes of modules that multiply by a matrix.
MATRICES = frozenset({"Linear", "FalconLinear", "Conv1D"})

CTX_LEN = 40
#: Rows of a window's cache beyond the window: few, so that it is moved.
SPARE = 3
#: Columns that share a scale: few, so that tiny matrices have several blocks.
BLOCK_SIZE = 32
#: What matrices become, by the name of a choice.
FORMATS = {weights: format_of(weights, BLOCK_SIZE) for weights in WEIGHTS}
SLOTS = 4
PROMPT = 18  # beyond every window of a tiny config
ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One tiny config of one recipe."""

    recipe: Recipe
    tiny: Tiny

    @property
    def name(self) -> str:
        """Recipe, variant and any task but the recipe's own, as tests are named."""
        own = find_recipe(self.recipe.model_type).task
        task = "" if self.recipe.task == own else f"-{self.recipe.task}"
        return f"{self.recipe.model_type}-{self.tiny.name}{task}"

    @property
    def config(self) -> dict[str, Any]:
        """What a config.json would say."""
        return tiny_models.config_of(self.recipe, self.tiny)

    @property
    def aligned(self) -> dict[str, Any]:
        """The same, with sizes that the kernels of a decoder take."""
        return aligned(self.config) if self.recipe.task == "text-generation" else self.config


#: Kind of state -> who has one.
STATES = {
    "growing": "llama-base",
    "window": "gemma3_text-base",
    "recurrent": "qwen3_next-base",
    "index": "deepseek_v32-base",
}
CROSSED = [
    *STATES.values(),
    *("gpt_oss-base", "falcon-alibi", "gpt2-base"),
    *("aria_text-base", "dbrx-base", "deepseek_v2-base", "doge-base", "gemma3n_text-base"),
    *("gpt_neo-base", "inkling_text-base", "jetmoe-base", "llama4_text-base", "longcat_flash-base"),
    *("minimax-base", "minimax_m3_vl_text-base", "phimoe-base", "recurrent_gemma-base"),
    *("mamba-base", "mamba2-base", "kimi_linear-base", "zaya-base"),
    *(("gemma2-base", "gemma4_text-experts") if EVERY else ()),
]
#: Encoders with each transform, and with relative positions, windows and experts.
CROSSED_ENCODERS = [
    *("bert-base", "deberta-v2-conv", "mobilebert-base", "modernbert-base"),
    *("openai_privacy_filter-base", "t5-base"),
]
#: What sees, and has a transform that nothing above has.
CROSSED_MEDIA = ["ernie4_5_vl_moe-base", "step3p7-base"]


def is_traced(recipe: Recipe) -> bool:
    """Return whether graphs of a recipe's tiny models are compared in any case; else PyTorch computes what we changed.

    Every recipe's graphs were compared when its evidence was recorded: `validated_models/_tiny`.
    """
    names = (*CROSSED, *CROSSED_ENCODERS)
    return EVERY or recipe.model_type in {all_cases()[name].recipe.model_type for name in names}


@cache
def of_text() -> list[Recipe]:
    """Return every recipe of what reads one text; tests of images, speech and text2text try the others."""
    return [recipe for recipe in list_recipes() if of_one_text(recipe.task)]


def of_one_text(task: str) -> bool:
    """Return whether a task reads text, and no other text than that which it goes on with."""
    found = contract.find(task)
    if found.comparison.name == "values":  # speech, whose tests are in tests/media
        return False
    return found.reads == "text" and (found.role == "encoder" or "encoder" not in found.parts)


@cache
def all_cases() -> dict[str, Case]:
    """Return every tiny config of every recipe, by name."""
    found = [Case(recipe=recipe, tiny=tiny) for recipe in of_text() for tiny in recipe.tiny]
    return {case.name: case for case in found}


#: Recipes whose first tiny config chooses among equal scores, so that kernels may differ -> the number of another one.
_WITHOUT_TIES = {"doge": 1}


@cache
def more_cases() -> dict[str, Case]:
    """Return, for every task but its own that a recipe serves by text alone, one tiny config, by name."""
    found = [
        Case(
            recipe=contract.for_task(recipe, task),
            tiny=recipe.tiny[_WITHOUT_TIES.get(recipe.model_type, 0)],
        )
        for recipe in of_text()
        for task in contract.tasks_of(recipe)[1:]
        if of_one_text(task) and not contract.find(task).before
    ]
    return {case.name: case for case in found}


def names_of(task: str | None = None) -> list[str]:
    """Name the cases of a task; of all tasks by default."""
    return [name for name, case in all_cases().items() if task in (None, case.recipe.task)]


def parse(config: Mapping[str, Any]) -> Any:
    """Make transformers' configuration; some classes write into what they are given."""
    known = {key: copy.deepcopy(value) for key, value in config.items() if key != "model_type"}
    architectures.register(config["model_type"])
    kind = CONFIG_MAPPING[config["model_type"]]
    return kind.from_dict(kind._decode_special_floats(known))  # a saved config has no infinity


def hugging_face(config: Mapping[str, Any], task: str, seed: int = 0) -> Any:
    """Make transformers' own model with random weights, in float32, unpatched, with eager attention."""
    parsed = parsed_model_config(parse(config))
    auto = contract.auto_class(task, parsed)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = auto.from_config(parsed, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms and biases start at 1 and 0, where much can be dropped unseen; so do some projections of pictures.
            if parameter.dim() == 1 or name.endswith("bias") or not parameter.any():
                parameter += 0.3 * torch.randn_like(parameter)
        stored = model.state_dict()
        for name, buffer in model.named_buffers():  # a router's correction, which starts at 0
            if name in stored and buffer.dim() == 1 and buffer.is_floating_point():
                buffer += 0.3 * torch.randn_like(buffer)
                if name.endswith("running_var"):
                    buffer.abs_()
    return model.requires_grad_(False)


def positions(subject: "Subject") -> int:
    """Return how many tokens the longest text has, or 64 where nothing bounds them."""
    config = subject.config
    reserved = config["pad_token_id"] + 1 if subject.recipe.positions_after_padding else 0
    return int(config.get("max_position_embeddings", 64)) - int(reserved)


def in_float64(model: Any) -> Any:
    """Copy a model to float64."""
    wide = copy.deepcopy(model)
    compute_in_float64(wide)
    if any(hasattr(module, "_is_expert_parallel") for module in wide.modules()):
        wide.set_experts_implementation("eager")  # the default has no float64 kernel
    return wide


class Subject:
    """Everything that is made of one config: made when first used, kept for the session.

    Args:
        config: Of the model, `model_type` included.
        recipe: Of its `model_type`.
    """

    def __init__(self, config: Mapping[str, Any], recipe: Recipe) -> None:
        self.recipe = recipe
        self.hf = hugging_face(config, recipe.task)
        self.folder = Path(tempfile.mkdtemp(prefix="subject-", dir=os.environ[CACHE]))
        self.hf.save_pretrained(self.folder / "checkpoint")
        if model_config(config) is not config:
            parse(config).save_pretrained(self.folder / "checkpoint")
        self.checkpoint = open_checkpoint(str(self.folder / "checkpoint"))
        self._sessions: dict[Any, Any] = {}
        self._lowered: dict[Any, Lowered] = {}

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json as transformers writes it."""
        return self.checkpoint.config

    @cached_property
    def hf64(self) -> Any:
        """Hugging Face in float64."""
        return in_float64(self.hf)

    @cached_property
    def bindings(self) -> Mapping[str, Any]:
        """Every weight over the checkpoint's tensors."""
        meta = loader.build_meta(self.config, self.recipe.task)
        return bind(meta, self.checkpoint.tensors).expressions

    def graph(self, variant: Variant = PLAIN, *, everything: bool = False) -> ir.Model:
        """Give a portable graph of one's own; traced once a session, by whichever process comes first.

        Args:
            variant: What the task's `tracing` takes.
            everything: Trace all layers, also those that others prove.
        """
        requested = [self.config, self.recipe.model_type, variant, everything]
        name = hashlib.sha256(json.dumps(requested, sort_keys=True).encode()).hexdigest()
        path = Path(os.environ[CACHE]) / f"{name}.onnx"
        made_once(path, lambda place: ir.save(self._export(dict(variant), everything), place))
        return ir.load(path)

    def _export(self, variant: dict[str, Any], everything: bool) -> ir.Model:
        if (
            not everything
            and self.recipe.task == "text-generation"
            and not dict(variant).get("continuous_batching")
        ):
            graph = self.graph((*CONTINUOUS, *variant.items()))  # one trace serves both
            slots_pass.remove(graph)
            return graph
        if not everything:
            return exporter.export_graph(self.config, self.recipe, **variant)
        part = contract.find(self.recipe.task)
        graph = exporter._attempt(self.config, self.recipe, part, everything=True, **variant)
        assert graph is not None
        return graph

    def save_with_weights(self, model: ir.Model, path: Path) -> Path:
        """Write a portable graph with its weights inside."""
        for name, value in model.graph.initializers.items():
            if external_data.is_placeholder(value):
                weight = evaluate(self.bindings[name], self.checkpoint)
                value.const_value = ir.tensor(weight, name=name)
        ir.save(model, path)
        return path

    def lower(self, storage: str, variant: Variant = PLAIN) -> Lowered:
        """Give a lowered graph, which is not to be changed; lowered once a process."""
        key = storage, variant
        if key not in self._lowered:
            graph = self.graph(variant)
            with mock.patch.object(attention, "_SPARE", SPARE):
                self._lowered[key] = lowering.lower(
                    graph, self.bindings, Storage(FORMATS[storage]), CTX_LEN
                )
        return self._lowered[key]

    def save_lowered(
        self,
        folder: Path,
        storage: str,
        variant: Variant = PLAIN,
        accuracy_level: int | None = None,
    ) -> Path:
        """Write a lowered graph and its data file.

        Args:
            folder: Made here.
            storage: One of `WEIGHTS`.
            variant: Of the graph.
            accuracy_level: Of MatMulNBits and QMoE, in place of the one chosen; 1 computes in float32.
        """
        lowered = self.lower(storage, variant)
        layout = plan_file(lowered.slots, self.checkpoint.tensors)
        folder.mkdir()
        write(layout, self.checkpoint, folder / external_data.WEIGHTS)
        model = lowered.model.clone()
        placement.place(model, layout)
        for node in model.graph if accuracy_level is not None else ():
            if node.op_type in ("MatMulNBits", "QMoE"):
                node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", accuracy_level)
        ir.save(model, folder / "graph.onnx")
        return folder / "graph.onnx"

    def portable(self, variant: Variant = PLAIN) -> onnxruntime.InferenceSession:
        """Open the portable graph in a stock session."""
        return self._session(
            ("portable", variant),
            lambda path: self.save_with_weights(self.graph(variant), path / "graph.onnx"),
        )

    def lowered(
        self, storage: str, variant: Variant = PLAIN, accuracy_level: int | None = None
    ) -> onnxruntime.InferenceSession:
        """Open a lowered graph."""
        return self._session(
            (storage, variant, accuracy_level),
            lambda path: self.save_lowered(path / "package", storage, variant, accuracy_level),
        )

    def _session(self, key: Any, save: Callable[[Path], Path]) -> onnxruntime.InferenceSession:
        if key not in self._sessions:
            path = save(Path(tempfile.mkdtemp(dir=self.folder)))
            self._sessions[key] = open_session(path)
        return self._sessions[key]

    @cached_property
    def transformed(self) -> Any:
        """The model that is traced, with this checkpoint's weights in place of none."""
        model = loader.load_meta(self.config, self.recipe)
        unsaved = {
            *(getattr(self.hf, "_keys_to_ignore_on_save", None) or ())
        }  # no checkpoint has them
        stored = {key: tensor for key, tensor in self.hf.state_dict().items() if key not in unsaved}
        model.load_state_dict(stored, assign=True)
        return model.requires_grad_(False)

    @cached_property
    def states(self) -> list[State]:
        """What a decoder retains."""
        found: list[State] = decoder_tracing.probe(loader.load_meta(self.config, self.recipe))
        return found

    def steps(
        self, how: str, variant: Variant = PLAIN, *, slots: int = ROWS, ctx_len: int = CTX_LEN
    ) -> "Steps":
        """Start a generation one of the ways in `TOLERANCE`."""
        if how == "torch":
            return torch_steps(self, slots, ctx_len, seen=dict(variant).get("comp_ctx_lengths"))
        if how == "portable":
            return session_steps(self.portable(variant), slots, ctx_len)
        if how == "static":
            return program_steps(static_graphs.program(self, slots, ctx_len))
        return decoder_steps(self.lowered(how, variant, 1), slots, ctx_len)

    def rounded(self, storage: str, variant: Variant = PLAIN) -> Any:
        """Give Hugging Face's model with the weights that are left after `storage`."""
        model = copy.deepcopy(self.hf)
        round_weights(model, self.lower(storage, variant).numerics.matrices)
        return model


@cache
def subject(name: str) -> Subject:
    """Return what is made of a case, with sizes as in production; once a process."""
    case = {**all_cases(), **more_cases()}[name]
    return Subject(case.aligned, case.recipe)


@cache
def awkward(name: str) -> Subject:
    """Return what is made of a case as its recipe has it: kernels refuse its sizes, and other ways are taken."""
    case = all_cases()[name]
    return Subject(case.config, case.recipe)


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a graph in ONNX Runtime as it comes, on one thread, with the options of this processor."""
    options = onnxruntime.SessionOptions()
    for name, value in processor.options().items():
        options.add_session_config_entry(name, value)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.states = states_of(ir.load(path).graph.inputs)
    return session


# --- text generation -----------------------------------------------------------------------------


@dataclass
class Steps:
    """A generation: states that pass from call to call, and a check that nothing else was written.

    Args:
        call: (input_ids, position_ids, batch_index or None, states) -> logits, new states.
        states: By name.
        scratch: Whether a call may write anything behind the newest token of its rows, which nobody has written yet.
        moved: States of which a call may move all that its rows have.
        seen: Rows and tokens that they were given: one that lies in a window need not change it when it comes again.
    """

    call: Callable[[Array, Array, Array | None, dict[str, Array]], tuple[Array, dict[str, Array]]]
    states: dict[str, Array] = field(default_factory=dict)
    scratch: bool = False
    moved: frozenset[str] = frozenset()
    seen: set[tuple[int, int]] = field(default_factory=set)

    def step(
        self, input_ids: Array, position_ids: Array, batch_index: Array | None = None
    ) -> Array:
        """Feed tokens; return the logits of the highest position in each row, (batch, vocab)."""
        index = None if batch_index is None else np.asarray(batch_index, np.int64)[:, None]
        logits, present = self.call(input_ids, position_ids, index, self.states)
        assert logits.shape[:2] == (len(input_ids), 1)
        assert set(present) == set(self.states)
        where = np.nonzero(position_ids >= 0)
        new = {*zip(where[0].tolist(), input_ids[where].tolist(), strict=True)}
        for name, past in self.states.items():
            if not past.size:  # as of a rotated part that no head has
                continue
            if name in self.moved:
                rows = (past != present[name]).reshape(len(past), -1).any(1)
                changed = {*np.flatnonzero(rows).tolist()}
                given = {*np.flatnonzero(position_ids.max(1) >= 0).tolist()}
                assert changed <= given
                assert {(row, token) for row, token in new if row not in changed} <= self.seen
                continue
            check_writes(name, past, present[name], position_ids, batch_index, scratch=self.scratch)
        self.states = present
        self.seen |= new
        return logits[:, 0]


def check_writes(
    name: str,
    past: Array,
    present: Array,
    position_ids: Array,
    batch_index: Array | None = None,
    *,
    scratch: bool = False,
) -> None:
    """Assert that every token was written where it belongs, and that no other byte changed that is ever read."""
    assert past.shape == present.shape
    slots = np.arange(len(position_ids)) if batch_index is None else np.asarray(batch_index)
    keyed = name.startswith("past_")
    written = np.zeros((past.shape[0], past.shape[2] if keyed else 1), bool)
    for slot, positions in zip(slots, position_ids, strict=True):
        # A window's rows are written modulo its size; other states change as a whole.
        written[slot, positions[positions >= 0] % written.shape[1]] = True
    rows = 2 if keyed else 1
    by_row = [
        np.moveaxis(state[:, None] if not keyed else state, rows, 1) for state in (past, present)
    ]
    kept = ~written
    if scratch and keyed:
        for slot, positions in zip(slots, position_ids, strict=True):
            kept[slot, positions.max() + 1 :] &= positions.max() < 0
    np.testing.assert_array_equal(by_row[1][kept], by_row[0][kept])
    changed = by_row[1][written] != by_row[0][written]
    # Every head's key of a token is new; of a recurrence some part may stay as it was.
    new = changed.any(-1) if keyed else changed.reshape(len(changed), -1).any(-1)
    # What padding left may happen to be what a token writes there.
    assert new.any() if scratch and written.any() else new.all()


def garbage(shape: Sequence[int]) -> Array:
    """Fill a state with what an earlier request may have left."""
    return (3 * np.random.default_rng(1).standard_normal(shape)).astype(np.float32)


def session_steps(session: Any, slots: int, ctx_len: int = CTX_LEN) -> Steps:
    """Generate with an ONNX Runtime session."""
    outputs = [output.name for output in session.get_outputs()]
    states = {
        value.name: garbage(
            [slots, *(ctx_len if size == "ctx_len" else size for size in value.shape[1:])]
        )
        for value in session.get_inputs()
        if f"{value.name}_RetainedState" in outputs
    }

    def call(
        input_ids: Array, position_ids: Array, batch_index: Array | None, past: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        index = {} if batch_index is None else {"batch_index": batch_index}
        # What a state holds beyond this call's rows belongs to other requests only with slots.
        given = past if index else {name: state[: len(input_ids)] for name, state in past.items()}
        feeds = {"input_ids": input_ids, "position_ids": position_ids, **index, **given}
        if any(value.name == "comp_ctx_lengths" for value in session.get_inputs()):
            feeds["comp_ctx_lengths"] = least_context(position_ids)
        results = _run_in_place(session, feeds)
        present = {name: results[f"{name}_RetainedState"] for name in past}
        if not index:
            present = {
                name: np.concatenate([state, past[name][len(input_ids) :]])
                for name, state in present.items()
            }
        return results["logits"], present

    return Steps(call, states)


def least_context(position_ids: Array) -> Array:
    """Give the shortest compute context that a call may have: not one row of the cache behind its tokens is seen."""
    return np.zeros(position_ids.max() + 1, np.int64)


def decoder_steps(session: Any, rows: int, ctx_len: int = CTX_LEN) -> Steps:
    """Generate with a lowered graph as the runtime calls it; with the shortest compute contexts, if it has any."""
    specializations = [
        {
            "name": f"{kind}_{length}",
            "symbols": {
                "batch_size": str(rows),
                "seq_len": str(width),
                "ctx_len": str(ctx_len),
                "comp_ctx_lengths": str(length),
            },
        }
        for kind, width in (("Prefill", ctx_len), ("Decode", 1))
        for length in range(1, ctx_len + 1)
    ]
    return program_steps(OrtProgram(session, session.states, specializations))


def program_steps(program: Program) -> Steps:
    """Generate with a program as the runtime calls it."""
    decoder = Decoder(program)
    for state in decoder.states.values():
        state[:] = garbage(state.shape)

    def call(
        input_ids: Array, position_ids: Array, batch_index: Array | None, past: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        pieces = {
            row: Piece(tokens[positions >= 0], int(positions.max() - (positions >= 0).sum() + 1))
            for row, (tokens, positions) in enumerate(zip(input_ids, position_ids, strict=True))
            if positions.max() >= 0
        }
        single = all(len(piece.tokens) == 1 for piece in pieces.values())
        found = decoder.decode(pieces) if single else decoder.prefill(pieces)
        logits = np.full((len(input_ids), 1, decoder.vocab_size), np.nan, np.float32)
        for row, values in found.items():
            logits[row, 0] = values
        return logits, {name: state.copy() for name, state in decoder.states.items()}

    states = {name: state.copy() for name, state in decoder.states.items()}
    moved = frozenset(state.name for state in decoder.program.states if state.kind == "window")
    return Steps(call, states, scratch=True, moved=moved)


def _run_in_place(session: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a call whose states are written where they are read, as the runtime does; return the outputs."""
    binding = session.io_binding()
    outputs = {output.name for output in session.get_outputs()}
    arrays = {
        name: array.copy() for name, array in feeds.items()
    }  # ONNX Runtime shares their memory
    for name, array in arrays.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(name, value)
        if f"{name}_RetainedState" in outputs:
            binding.bind_ortvalue_output(f"{name}_RetainedState", value)
    binding.bind_output("logits")
    session.run_with_iobinding(binding)
    present = {f"{name}_RetainedState": array for name, array in arrays.items()}
    return {**present, "logits": binding.get_outputs()[-1].numpy()}


def torch_steps(
    subject: Subject, slots: int, ctx_len: int = CTX_LEN, *, seen: bool = False
) -> Steps:
    """Generate with the transformed model in PyTorch; where that is asked for, with the shortest compute contexts."""
    step = decoder_tracing.Step(subject.transformed, subject.states).eval()
    states = {
        state.name: garbage(
            [slots, *(ctx_len if size == "ctx_len" else size for size in state.axes[1:])]
        )
        for state in subject.states
    }

    def call(
        input_ids: Array, position_ids: Array, batch_index: Array | None, past: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        rows = len(input_ids) if batch_index is None else slots
        given = [torch.from_numpy(state[:rows]) for state in past.values()]
        index = None if batch_index is None else torch.from_numpy(batch_index)
        arguments = torch.from_numpy(input_ids), torch.from_numpy(position_ids), given, index
        lengths = torch.from_numpy(least_context(position_ids)) if seen else None
        with torch.no_grad():
            logits, *present = step(*arguments, lengths)
        new = {
            name: np.concatenate([state.numpy(), past[name][rows:]])
            for name, state in zip(states, present, strict=True)
        }
        return logits.numpy(), new

    return Steps(call, states)


def tokens(seed: int = 0, rows: int = ROWS, length: int = PROMPT) -> Array:
    """Draw token ids that every tiny vocabulary has."""
    return np.random.default_rng(seed).integers(3, 250, (rows, length))


def reference(model: Any, ids: Array) -> Array:
    """Compute Hugging Face's logits of every position, without any cache, as float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(model.dtype)  # what a model makes as it runs is of its own type
    try:
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(ids), use_cache=False).logits
    finally:
        torch.set_default_dtype(before)
    return logits.double().numpy()


def modules_called(model: Any) -> dict[str, Any]:
    """Return the modules that one forward of Hugging Face's model calls, by name."""
    called: dict[str, Any] = {}
    hooks = [
        module.register_forward_pre_hook(lambda module, _, name=name: called.update({name: module}))
        for name, module in model.named_modules()
    ]
    try:
        reference(model, tokens(length=2))
    finally:
        for hook in hooks:
            hook.remove()
    return called


def noise(subject: Subject, ids: Array) -> float:
    """Measure what rounding does to Hugging Face's logits."""
    return float(np.abs(reference(subject.hf, ids) - reference(subject.hf64, ids)).max())


def noise_of(expected: Any, wide: Any) -> float:
    """Return the noise of float32: of the model, or at least of a pooling, which a table of vectors has alone."""
    rounding = np.finfo(np.float32).eps * np.abs(expected).max()
    return float(max(np.abs(expected - wide).max(), rounding))


Compared: TypeAlias = Iterator[tuple[Array, Array]]
Scenario: TypeAlias = Callable[[Callable[..., Steps], Array, Array], Compared]


def one_shot(start: Callable[..., Steps], ids: Array, expected: Array) -> Compared:
    """Take the whole prompt at once."""
    positions = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    yield start().step(ids, positions), expected[:, -1]


def chunked(start: Callable[..., Steps], ids: Array, expected: Array) -> Compared:
    """Take the prompt in chunks; the last one is filled up, once behind and once before the tokens."""
    rows, length = ids.shape
    size = 5
    for side in ("behind", "before"):
        steps = start()
        for first in range(0, length, size):
            real = np.arange(first, min(first + size, length))
            padding = np.full(size - len(real), -1)
            order = [real, padding] if side == "behind" else [padding, real]
            positions = np.tile(np.concatenate(order), (rows, 1))
            # Padding tokens are any tokens: were they written or looked at, it would show.
            chunk = np.where(positions >= 0, ids[:, positions[0].clip(0)], 77)
            yield steps.step(chunk, positions), expected[:, real[-1]]


def padded_batch(start: Callable[..., Steps], ids: Array, expected: Array) -> Compared:
    """Take rows of different lengths at once, then one token more of each at its own position."""
    rows = len(ids)
    lengths = np.array([13, 6, 9][:rows])
    columns = np.tile(np.arange(lengths.max()), (rows, 1))
    positions = np.where(columns < lengths[:, None], columns, -1)
    steps = start()
    every = np.arange(rows)
    prompt = np.where(positions >= 0, ids[:, : lengths.max()], 78)
    yield steps.step(prompt, positions), expected[every, lengths - 1]
    for more in range(4):
        position = lengths + more
        logits = steps.step(ids[every, position][:, None], position[:, None])
        yield logits, expected[every, position]


def decode(start: Callable[..., Steps], ids: Array, expected: Array) -> Compared:
    """Take a short prompt, then token by token beyond every window, to the last row of the cache."""
    length = ids.shape[1]
    steps = start(ctx_len=length)
    yield steps.step(ids[:, :3], np.tile(np.arange(3), (len(ids), 1))), expected[:, 2]
    for position in range(3, length):
        at = np.full((len(ids), 1), position)
        yield steps.step(ids[:, position : position + 1], at), expected[:, position]


def single_tokens(start: Callable[..., Steps], ids: Array, expected: Array) -> Compared:
    """Take one row token by token from the very first."""
    steps = start()
    for position in range(10):
        logits = steps.step(ids[:1, position : position + 1], np.array([[position]]))
        yield logits, expected[:1, position]


def idle_row(start: Callable[..., Steps], ids: Array, expected: Array) -> Compared:
    """Leave a row out of some calls; `Steps` checks that its states stay as they are."""
    steps = start()
    positions = np.tile(np.arange(4), (2, 1))
    positions[1] = -1
    yield steps.step(ids[:2, :4], positions)[:1], expected[:1, 3]
    positions = np.array([[4, 5, 6, -1], [0, 1, 2, 3]])
    yield (
        steps.step(np.stack([ids[0, [4, 5, 6, 0]], ids[1, :4]]), positions),
        expected[[0, 1], [6, 3]],
    )
    yield steps.step(ids[:2, 4:5], np.array([[-1], [4]]))[1:], expected[1:2, 4]
    yield steps.step(ids[:2, [7]], np.array([[7], [-1]]))[:1], expected[:1, 7]


def slots(start: Callable[..., Steps], ids: Array, expected: Array) -> Compared:
    """Fill cache slots out of order, decode some of them in another order; `Steps` checks the others."""
    steps = start(slots=SLOTS)
    yield (
        steps.step(ids[:2, :9], np.tile(np.arange(9), (2, 1)), [3, 0]),
        expected[:2, 8],
    )
    padded = np.array([[0, 1, 2, 3, 4, -1, -1]])
    yield steps.step(ids[2:, :7], padded, [2]), expected[2:, 4]
    row_of = {3: 0, 0: 1, 2: 2}
    length = {3: 9, 0: 9, 2: 5}
    for order in ([0, 2, 3], [2, 3], [3, 2, 0], [2], [0, 3], [2, 0, 3], [3, 0, 2]):
        rows = [row_of[slot] for slot in order]
        at = np.array([length[slot] for slot in order])
        yield steps.step(ids[rows, at][:, None], at[:, None], order), expected[rows, at]
        length.update({slot: length[slot] + 1 for slot in order})
    idle = np.array([[length[2]], [-1]])
    got = steps.step(ids[[2, 0], length[2]][:, None], idle, [2, 1])
    yield got[:1], expected[2:3, length[2]]


SCENARIOS: Mapping[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (one_shot, chunked, padded_batch, decode, single_tokens, idle_row, slots)
}
#: Those that need no `batch_index`.
PLAIN_SCENARIOS = [name for name in SCENARIOS if name != "slots"]


def distance(scenario: Scenario, start: Callable[..., Steps], ids: Array, expected: Array) -> float:
    """Return the largest difference of a scenario's logits from the expected ones."""
    return max(float(np.abs(got - want).max()) for got, want in scenario(start, ids, expected))


@cache
def expected_of(subject: Subject) -> tuple[Array, Array, float]:
    """Return token ids, Hugging Face's logits, and how far rounding moves those."""
    ids = tokens()
    logits = reference(subject.hf, ids)
    return ids, logits, noise(subject, ids)


def assert_close(subject: Subject, how: str, scenario: str, variant: Variant) -> None:
    ids, expected, noise = expected_of(subject)

    def start(**sizes: int) -> Steps:
        return subject.steps(how, variant, **sizes)

    away = distance(SCENARIOS[scenario], start, ids, expected)
    assert away <= TOLERANCE[how] * noise


# --- as it ships ---------------------------------------------------------------------------------

_PRODUCTS = frozenset(
    {
        torch.nn.functional.linear,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.baddbmm,
        torch._grouped_mm,
    }
)


class RoundedActivations(TorchFunctionMode):
    """Rounds what Hugging Face's model multiplies by its matrices to int8, in their blocks or by rows, as kernels do.

    Then its routers choose what those of a package choose: a comparison with it sees no other experts.

    Args:
        model: Hugging Face's.
        matrices: Those of a package.
    """

    def __init__(self, model: Any, matrices: Iterable[RoundedMatrix]) -> None:
        super().__init__()
        named = dict(model.named_parameters(remove_duplicate=False))
        self.formats: dict[int, Format] = {}
        for matrix in (one for one in matrices if one.multiplied):
            name = matrix.name if matrix.name in named else matrix.name.rpartition(".")[0]
            place = named[name].untyped_storage().data_ptr()
            self.formats[place] = Format(bits=8, block=matrix.format.block)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS:
            place = 1 if func in (torch.addmm, torch.baddbmm) else 0
            x, matrix = args[place : place + 2]
            format = self.formats.get(matrix.untyped_storage().data_ptr())
            if format is not None:
                rounded = torch.from_numpy(round_trip(x.contiguous().numpy(), format))
                args = (*args[:place], rounded, *args[place + 1 :])
        return func(*args, **(kwargs or {}))


def spread(differences: Array) -> Array:
    """Return the root mean square over the vocabulary."""
    return np.sqrt((differences**2).mean(-1))


def stray(start: Callable[[], Steps], subject: Subject, storage: str) -> float:
    """Compare a generation as it ships with a model that rounds its activations alike.

    A number between two roundings may fall either way, and choose another expert or key. So three of four positions of
    a row may be as far away as rounding moves the model at a typical position, and every one as far as at the worst.
    What follows such a choice may be another text: one row of three is left out.

    Args:
        start: Starts a generation with rounded weights and activations.
        subject: Of which it is.
        storage: Of its matrices.

    Returns:
        How many times as far they are.
    """
    ids, model = tokens(seed=1), subject.rounded(storage)
    with RoundedActivations(model, subject.lower(storage).numerics.matrices):
        expected = reference(model, ids)
    noise = spread(expected - reference(model, ids))
    at = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    steps = start()
    got = [steps.step(ids[:, [t]], at[:, [t]]) for t in range(ids.shape[1])]
    away = spread(np.stack([*got, start().step(ids, at)], 1) - expected[:, [*at[0], -1]])
    by_row = np.maximum(np.quantile(away, 0.75, 1) / np.median(noise), away.max(1) / noise.max())
    return float(np.median(by_row))


# --- feature extraction --------------------------------------------------------------------------


def embed(subject: Subject, how: str, variant: Variant, ids: Array, mask: Array) -> Array:
    """Compute embeddings one of the ways in `TOLERANCE`."""
    if how == "torch":
        model = pooling.tracing(subject.transformed, **dict(variant)).module
        with torch.no_grad():
            return model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    session = subject.portable(variant) if how == "portable" else subject.lowered(how, variant, 1)
    return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
