# SPDX-License-Identifier: Apache-2.0
"""Target `qaic` from a checkpoint to answers: prepared, compiled by the stub, adopted, and run on a stand-in of cards.

What the stub makes is no QPC, and no package of it is ever called validated.
"""

import json
import runpy
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gptq_checkpoints
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import runnable_package
import speculators
import torch
from checkout import TINY_LLAMA
from fixtures_qaic_build import STUB, compiler
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled, emulated, home, hugging_face, prepare
from safetensors.numpy import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.errors import GenerationError, PackageError, PlanError
from qeff_zoo.multimodal.encoding.vision_encoder import PassThroughEncoder, Vision
from qeff_zoo.package import Package
from qeff_zoo.package.prepared import NOTE, PROGRAM, SCRIPT
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.engine.speculation.heads import HeadsDrafter
from qeff_zoo.sessions import EmbeddingSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt, package_of
from qeff_zoo.targets.qaic import bundles, ops, sdk
from qeff_zoo.targets.qaic.features import LAYERS, adapted
from qeff_zoo.targets.qaic.serve_args import serve_args
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.samples import noise
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.judgement.parity import TOLERANCES, relative_errors
from qeff_zoo.validation.reference.numerics import in_float16

pytestmark = pytest.mark.turns(3)

__all__ = ["home", "prepare", "rt"]
ROWS, WIDTH = 3, 8
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"batch_size": ROWS}),
    "llama slots": ("llama", {"full_batch_size": ROWS}),
    "windows slots": ("gemma3_text", {"full_batch_size": ROWS}),
    "recurrences slots": ("qwen3_next", {"full_batch_size": ROWS}),
}


def bound(expected: Any, other: Any) -> float:
    """Return the relative error that answers may have whose noise is that between two that are as right."""
    fp16 = TOLERANCES["fp16"]
    return max(fp16.factor * float(relative_errors(expected, other).max()), fp16.least)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.sampled(99, kept=["llama slots"])
def test_a_decoder_answers_as_hugging_face_does(
    name: str, prepare: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    model_type, sizes = DECODERS[name]
    source, folder = prepare(model_type, ctx_len=48, prefill_seq_len=WIDTH, **sizes)
    emulated(folder)
    package = adopt(folder, compiled(folder, tmp_path), Store())
    assert package.validated == "none"  # no SDK says which compiler it was
    session = open_session(package)
    assert isinstance(session, TextGenerationSession)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    texts = [[int(7 * at * (row + 2) % 250) + 3 for at in range(11 + 6 * row)] for row in range(2)]
    got = [steps(session, row + 1, text) for row, text in enumerate(texts)]
    for text, (ends, logits) in zip(texts, got, strict=True):
        expected = hugging_face(model, text)[ends]
        with in_float16(model):
            half = hugging_face(model, text)[ends]
        assert relative_errors(expected, logits).max() <= bound(expected, half)
    prompts = [*texts, texts[0][:5], texts[1][:9], texts[0][3:]]
    alone = [session.generate([prompt], generation_len=6)[0].token_ids for prompt in prompts]
    together = session.generate(prompts, generation_len=6)
    assert [one.token_ids for one in together] == alone


@pytest.mark.full
def test_heads_of_the_decoders_own_program_draft(
    prepare: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    """Their logits were compared with Hugging Face's beside the model's own, as QEfficient's come."""
    config = json.loads(
        (runnable_package.checkpoint(tmp_path / "c", "llama") / "config.json").read_text()
    )
    heads = speculators.turbo(tmp_path / "heads", config["hidden_size"], config["vocab_size"])
    sizes = {"ctx_len": 48, "prefill_seq_len": WIDTH, "full_batch_size": ROWS}
    _, folder = prepare("llama", draft_heads=str(heads), **sizes)
    manifest = emulated(folder)
    (program,) = manifest["programs"]
    (logits,) = program["outputs"]
    kept, vocab = "num_logits_to_keep", config["vocab_size"]
    assert logits["shape"] == ["batch_size", kept, 4, vocab]
    assert [
        specialization["symbols"].get(kept) for specialization in program["specializations"]
    ] == ["1", "1", "4"]
    package = adopt(folder, compiled(folder, tmp_path), Store())
    with pytest.raises(PackageError, match="logits of the heads that draft for it beside the"):
        serve_args(package)
    prompts = [[3, 4, 5], [6] * 11, [9, 8, 7, 6, 5, 4]]
    plain, drafting = speculators.opened(package, None), speculators.opened(package)
    requested: dict[str, Any] = {"generation_len": 12, "ignore_eos": True}
    expected = [one.token_ids for one in plain.generate(prompts, **requested)]
    assert [one.token_ids for one in drafting.generate(prompts, **requested)] == expected
    assert drafting.metrics is not None
    assert drafting.metrics.drafted_tokens > 0
    assert drafting.speculation is not None
    # What is drafted behind a prompt is what the heads say behind its last token.
    drafter = drafting.speculation.drafter(drafting.request(prompts[0]))
    drafting.decoder.prefill({0: Piece(tokens=prompts[0], start=0)})
    assert isinstance(drafter, HeadsDrafter)
    drafter.read(2, drafting.decoder.hidden[0])
    best = drafting.decoder.hidden[0][-1].argmax(-1)
    assert drafter.guess([*prompts[0], expected[0][0]], 3) == best.tolist()


@pytest.mark.parametrize("mxfp6", [False, True])
@pytest.mark.sampled(2)
def test_integers_of_a_checkpoint_stay(
    mxfp6: bool, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(home))
    floats = runnable_package.checkpoint(tmp_path / "llama", "llama")
    kinds = {"v_proj": (8, 32), "o_proj": (4, 16), "_proj": (4, 32)}
    source = gptq_checkpoints.write(floats, tmp_path / "gptq", kinds)
    request = Request(target="qaic", ctx_len=32, prefill_seq_len=WIDTH, mxfp6_matmul=mxfp6)
    folder = pipeline.prepare(str(source), tmp_path / "prepared", request=request)
    manifest = emulated(folder)
    assert manifest["weights"]["storage"] == "stored"
    (program,) = manifest["programs"]
    assert program["ways"]["weights"] == {"kept": 24, "decoded": 4}
    matrices = program["numerics"]["matrices"]
    assert Counter(matrix["format"]["bits"] for matrix in matrices) == {
        4: 24,
        **({6: 5} if mxfp6 else {}),
    }
    compiled(folder, tmp_path)

    values = products_of(folder)
    name = "model.layers.1.self_attn.o_proj"
    stored = load_file(source / "model.safetensors")
    integers, zeros = unpack(stored[f"{name}.qweight"].T), unpack(stored[f"{name}.qzeros"])
    assert [one.tolist() for one in values[f"{name}.weight"]] == [
        (integers[:, 0::2] | integers[:, 1::2] << 4).ravel().tolist(),
        stored[f"{name}.scales"].T.astype(np.float32).ravel().tolist(),
        (zeros[0::2] | zeros[1::2] << 4).T.ravel().tolist(),
    ]
    assert not complaints(folder, lambda node: None)
    assert "MatMulNBits has 8 bits" in complaints(folder, lambda node: set_bits(node, 8))
    assert "MatMulNBits reads" in complaints(folder, lambda node: node.input.insert(1, "input_ids"))


def complaints(folder: Path, edit: Callable[[Any], None]) -> str:
    """Return what the stub of the compiler says of a graph whose first product by integers is changed."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    edit(next(node for node in model.graph.node if node.op_type == "MatMulNBits"))
    path = folder / "changed.onnx"
    onnx.save(model, path)
    graph = runpy.run_path(str(STUB))["Graph"](str(path))
    return "\n".join(graph.problems({"retained-state": "true"}))


def set_bits(node: Any, bits: int) -> None:
    next(one for one in node.attribute if one.name == "bits").i = bits


def unpack(words: Any) -> Any:
    """Unpack integers of 4 bits, eight to a word along the last axis."""
    whole = np.ascontiguousarray(words).view(np.uint8)
    return np.stack([whole & 15, whole >> 4], -1).reshape(len(whole), -1)


def products_of(folder: Path) -> dict[str, list[Any]]:
    """Read what products by integers of a prepared graph read, each along one axis, by the weight's name."""
    graph = ir.load(folder / "model.onnx").graph
    return {
        node.inputs[2].name.removesuffix(".scales"): [
            value.const_value.numpy().ravel() for value in node.inputs[1:]
        ]
        for node in graph
        if node.op_type == "MatMulNBits"
    }


def steps(session: TextGenerationSession, row: int, text: list[int]) -> tuple[list[int], Any]:
    """Read a text in a row, its prompt in chunks; return after which tokens there are logits, and these."""
    decoder, ends, found = session.decoder, [], []
    for start in (*range(0, WIDTH, WIDTH), *range(WIDTH, len(text))):
        piece = Piece(text[start : start + (WIDTH if start < WIDTH else 1)], start)
        call = decoder.prefill if start < WIDTH else decoder.decode
        found.append(call({row: piece})[row])
        ends.append(start + len(piece.tokens) - 1)
    return ends, np.stack(found)


@pytest.fixture
def prepare_media(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Path, Path]]:
    """Give a function that makes a recipe's tiny model, and prepares a folder of it."""
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))

    def run(model_type: str, **sizes: Any) -> tuple[Path, Path]:
        recipe = find_recipe(model_type)
        source = tiny_models.make(recipe, recipe.tiny[0], tmp_path / model_type)
        request = Request(target="qaic", ctx_len=48, prefill_seq_len=WIDTH, **sizes)
        return source, pipeline.prepare(str(source), tmp_path / "prepared", request=request)

    return run


#: Of one size; patches of any size, with windows, and three axes of positions; in one program, of one size and of two.
SEEING: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("llava", {"full_batch_size": 2}),
    "qwen2_5_vl": ("qwen2_5_vl", {"batch_size": 2, "image_size": ("8x16", "24x32")}),
    "in one program": ("llava", {"single_program": True}),
    "in two sizes, in one program": ("deepseek_vl_hybrid", {"single_program": True}),
}


@pytest.mark.parametrize("case", SEEING)
@pytest.mark.sampled(3)
def test_a_vision_language_model_equals_hugging_face(
    case: str, prepare_media: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    model_type, sizes = SEEING[case]
    source, folder = prepare_media(model_type, **sizes)
    angles = [program.get("ways", {}).get("angles", {}) for program in emulated(folder)["programs"]]
    assert all(ways.keys() <= {"table"} for ways in angles)
    session = open_session(adopt(folder, compiled(folder, tmp_path), Store()))
    assert isinstance(session, ImageTextToTextSession)
    assert isinstance(session.reader, PassThroughEncoder if "single_program" in sizes else Vision)
    rng = np.random.default_rng(0)
    photos = [noise(session, size, rng) for size in ((1, 2), (3, 3))]
    # One picture, two, which calls cut, and none; the model may write a placeholder itself.
    marker = session.media_tokens.marker
    texts = [[3, marker, 4, 5], [marker, 7, marker, 9], [*range(20, 31)]]
    shown = [photos[:1], photos[::-1], []]
    if "single_program" in sizes:
        with pytest.raises(GenerationError, match=r"2 images; expected at most 1.*single-program"):
            session.request(texts[1], images=shown[1])
        texts[1], shown[1] = [7, 9, 11, marker], photos[1:]
    requests = [
        session.request(text, images=images, generation_len=5, ignore_eos=True)
        for text, images in zip(texts, shown, strict=True)
    ]
    same_first_calls(session, texts[0], noise(session, (1, 2), rng), folder)
    model = AutoModelForImageTextToText.from_pretrained(source, attn_implementation="eager").eval()
    for made, images, answer in zip(requests, shown, session.generate(requests), strict=True):
        tokens = torch.tensor([[*made.prompt, *answer.token_ids]])
        settings = {
            name: torch.cat([torch.tensor(image[name]) for image in images])
            for name in photos[0]
            if images
        }
        if images and (types := session.media.types):
            settings[types] = (tokens == session.media_tokens.placeholder).long()
        with torch.no_grad():
            logits = model(input_ids=tokens, **settings, use_cache=False).logits[0].float()
        after = logits[len(made.prompt) - 1 : -1]
        chosen = after.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert (after.max(1).values - chosen).max() <= 0.01 * after.std()  # half precision


def same_first_calls(
    session: ImageTextToTextSession, text: list[int], image: Any, folder: Path
) -> None:
    """Compare what a prepared folder's recorders have of a request with what the stand-in of a card is given."""
    given: list[dict[str, Any]] = []
    execution = type(session.decoder.program._active[0])
    with pytest.MonkeyPatch.context() as patch:
        programs = (session.decoder.program, session.reader.program)
        names = {id(program._active[0]): program._names for program in programs}
        before = execution.setData

        def spy(self: Any, pairs: Any) -> Any:
            given.append({names[id(self)][at]: array.copy() for at, array in pairs})
            return before(self, pairs)

        patch.setattr(execution, "setData", spy)
        session.generate([session.request(text, images=[image], generation_len=1)])
    package = package_of(folder)
    recorders = {program.role: bundles.Recorder(program) for program in package.programs}
    recording = open_session(package, opening=lambda role, _: adapted(recorders[role]))
    recording.generate([recording.request(text, images=[image], generation_len=1)])
    for recorder in recorders.values():
        call = recorder.call
        assert call is not None
        (first, *_) = (one for one in given if call.inputs.keys() <= one.keys())
        for name, array in call.inputs.items():
            if (
                name.endswith("_embeds") or name == LAYERS
            ):  # zeros in place of what an encoder makes
                assert array.shape == first[name].shape
            else:
                assert np.array_equal(array, first[name]), name
        assert {name: [*shape] for name, (_, shape) in call.outputs.items()} == {
            name: [*first[name].shape] for name in call.outputs
        }


def test_one_vision_program_has_the_names_of_qefficient(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whether a call of its sizes depends on images is known when it is compiled: one of one token does not."""
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)  # where `compile` leaves its folder
    recipe = find_recipe("llava")
    source = tiny_models.make(recipe, recipe.tiny[0], tmp_path / "llava")
    model = qeff_zoo.QEFFAutoModelForImageTextToText.from_pretrained(source, kv_offload=False)
    folder = Path(model.compile(prefill_seq_len=WIDTH, ctx_len=48, target="qaic"))
    (program,) = emulated(folder)["programs"]
    assert program["role"] == "language"
    assert [one["name"] for one in program["inputs"]] == ["input_ids", "position_ids", "image_idx"]
    assert [output["name"] for output in program["outputs"]] == ["logits", "image_idx_output"]
    kept, *others = program["states"]
    assert (kept["name"], kept["kind"], kept["dtype"]) == ("pixel_values", "features", "float16")
    assert {other["kind"] for other in others} == {"growing"}
    assert program["vision_size"] == 16
    written = json.loads((folder / "specializations.json").read_text())["specializations"]
    assert all({*one["symbols"]} == {"batch_size", "seq_len", "ctx_len"} for one in written)

    model = ops.with_host_bodies(ir.load(folder / "model.onnx"))
    ir.save(model, folder / "whole.onnx")
    found = {}
    for width in (WIDTH, 1):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{width}.onnx")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        for name, size in {"batch_size": 1, "seq_len": width, "ctx_len": 48}.items():
            options.add_free_dimension_override_by_name(name, size)
        onnxruntime.InferenceSession(folder / "whole.onnx", options)
        graph = ir.load(tmp_path / f"{width}.onnx").graph
        conditions = [
            node.inputs[0].const_value.numpy().item()
            for node in graph
            if node.op_type == "Where" and node.inputs[0].is_initializer()
        ]
        found[width] = conditions
    assert found == {WIDTH: [False], 1: [True]}  # zeros, or what was read


@pytest.mark.parametrize(
    ("model_type", "sizes", "match"),
    [
        (
            "qwen2_vl",
            {},
            "models that read an image of one size.*'qwen2_vl' reads tiles or patches",
        ),
        ("llava", {"full_batch_size": 2}, "keeps one image, and the package is for 2 rows"),
        ("llava", {"prefill_only": True}, "expected neither --prefill-only nor --decode-only"),
        ("llava", {"prefill_seq_len": 1}, "--prefill-seq-len is 1. Give a larger one"),
        ("llava", {"target": "ort"}, "--single-program is for target qaic"),
    ],
)
def test_one_program_is_refused_where_it_could_not_read(
    model_type: str, sizes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    recipe = find_recipe(model_type)
    source = tiny_models.make(recipe, recipe.tiny[0], tmp_path / model_type)
    request = Request(**{"target": "qaic", "ctx_len": 48, "single_program": True, **sizes})
    with pytest.raises(PlanError, match=match):
        pipeline.make_plan(str(source), request)


def test_programs_of_audio_models_have_the_names_of_qefficient(
    prepare_media: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    _, folder = prepare_media("qwen2_audio", batch_size=2)
    language, audio = emulated(folder)["programs"]
    assert [one["name"] for one in language["inputs"]] == ["input_ids", "position_ids", "audio_idx"]
    assert [output["name"] for output in language["outputs"]] == ["logits", "audio_idx_output"]
    (kept,) = (state for state in language["states"] if state["kind"] == "features")
    assert (kept["name"], kept["axes"][:2]) == ("audio_embeds", [1, "audio_rows"])
    assert kept["dtype"] == "float16"
    sizes = [entry["symbols"]["audio_rows"] for entry in language["specializations"]]
    assert sizes == ["16", "16"]  # of two rows of eight tokens
    assert audio["outputs"][0]["shape"][0] == "batch_size"
    assert "-split-retained-state-io" in (folder / SCRIPT).read_text()
    assert (compiled(folder, tmp_path) / "audio" / PROGRAM).is_file()


def test_an_encoder_answers_as_hugging_face_does(
    prepare: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    source, folder = prepare("bert", seq_lens=(8, 24), batch_size=2)
    emulated(folder)
    package = adopt(folder, compiled(folder, tmp_path), Store())
    assert package.validated == "none"
    session = open_session(package)
    assert isinstance(session, EmbeddingSession)
    model = AutoModel.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    texts = [[5, 9, 30, 7], [4, 8, 15, 16, 23, 42, 7, 9, 11, 3], [12, 13]]
    got = session.embed(texts)

    def embedded() -> Any:
        with torch.no_grad():
            states = [model.eval()(torch.tensor([text])).last_hidden_state[0] for text in texts]
        return torch.stack([state.float().mean(0) for state in states]).numpy()

    expected = embedded()
    with in_float16(model):
        half = embedded()
    assert relative_errors(expected, got).max() <= bound(expected, half)


def test_what_is_rounded_more_is_predicted_so(
    prepare: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    sizes = {"ctx_len": 48, "prefill_seq_len": WIDTH, "full_batch_size": ROWS}
    _, folder = prepare("llama", **sizes, mxfp6_matmul=True)
    manifest = emulated(folder)
    against = {check["against"]["dtype"] for check in manifest["validation"]}
    assert against >= {"float32 rounded to mxfp6", "float16 + mxfp6"}
    (program,) = manifest["programs"]
    assert {matrix["format"]["bits"] for matrix in program["numerics"]["matrices"]} == {6}
    assert not adopt(folder, compiled(folder, tmp_path), Store()).verify()


@pytest.mark.full
def test_keys_and_values_in_mxint8_are_judged_by_their_own_noise(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(home))
    request = Request(target="qaic", ctx_len=64, prefill_seq_len=16, mxint8_kv_cache=True)
    tiny = TINY_LLAMA
    manifest = emulated(pipeline.prepare(str(tiny), tmp_path / "prepared", request=request))
    checks = [
        check
        for check in manifest["validation"]
        if check["metric"] == "max_relative_error"
        and check["against"]["dtype"] == "float16 + mxint8"
    ]
    assert {check["threshold_from"] for check in checks} == {"noise-floor"}
    assert all(0.01 < check["threshold"] < 0.16 for check in checks)
    assert all(check["canary"]["value"] > 3 * check["threshold"] for check in checks)


def test_only_of_a_compiler_that_is_known_is_a_package_what_was_predicted(
    prepare: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    _, folder = prepare("llama", ctx_len=48, prefill_seq_len=WIDTH)
    checks = emulated(folder)["validation"]
    qpc = compiled(folder, tmp_path)
    (qpc / PROGRAM).write_bytes(b"as if the SDK had written it")
    settings = json.loads((qpc / NOTE).read_bytes())
    for number, version in enumerate(["1.20.0.90", "unknown", "", "."]):
        (qpc / NOTE).write_text(json.dumps({**settings, "version": version}))
        package = adopt(folder, qpc, Store(tmp_path / f"store-{number}"))
        known = version == "1.20.0.90"
        assert package.validated == ("emulated" if known else "none"), version
        assert package.manifest["validation"] == (checks if known else [])
        assert package.verify() == []
        assert Package.open(package.path).validated == package.validated


@pytest.mark.parametrize("version", ["1.20.0.90", "unknown"])
@pytest.mark.sampled(2)
def test_a_build_without_a_card_is_predicted(
    version: str, home: Path, rt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = home / "llama"
    if not source.exists():
        runnable_package.checkpoint(source, "llama")
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    if (home / "graphs").exists():
        shutil.copytree(home / "graphs", tmp_path / "home" / "graphs")
    monkeypatch.setenv(sdk.COMPILER_VARIABLE, str(compiler(tmp_path / "sdk")))
    monkeypatch.setattr(sdk, "installed", lambda part: version)
    monkeypatch.setattr(rt, "DEVICES", 0)
    request = Request(target="qaic", ctx_len=48, prefill_seq_len=WIDTH)
    package = pipeline.build(str(source), request).package
    assert package.validated == ("emulated" if version[0].isdigit() else "none")
    levels = {check["level"] for check in package.manifest["validation"]}
    assert levels == ({"emulated"} if version[0].isdigit() else set())
    assert not package.verify()
