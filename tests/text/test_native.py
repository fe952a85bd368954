# SPDX-License-Identifier: Apache-2.0
"""Packages outside of Python: the genuine onnxruntime-genai opens them, and so does qeff-run of cpp/; same tokens."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime_genai
import pytest
from checkout import ROOT
from fixtures_builds import Models
from runnable_package import package as build

import qeff_zoo
from qeff_zoo.cli.description import describe
from qeff_zoo.package import Package
from qeff_zoo.runtime import Sampling
from qeff_zoo.targets.ort import genai

pytestmark = pytest.mark.turns(3)

SIZES = {"ctx_len": 64, "prefill_seq_len": 4}
#: Longer than a call takes.
PROMPTS = [[0, 45, 116, 19, 20, 54], [0, 45, 116, 19, 20, 77]]


class Packages(dict[str, Package]):
    """Packages by name, each built when a test first needs it.

    Args:
        models: Tiny checkpoints.
        home: Folder of the store.
    """

    def __init__(self, models: Models, home: Path) -> None:
        self._models, self._home = models, home
        models.trace(models.llama, home)

    def __missing__(self, name: str) -> Package:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QEFF_HOME", str(self._home))
            self[name] = self._build(name)
        return self[name]

    def _build(self, name: str) -> Package:
        if name == "trained":
            return build(ROOT / "examples" / "tiny-llama", ctx_len=128, weights="int8")
        if name == "hybrid":  # windows, and states of recurrences
            return build(self._models.checkpoint("hybrid", "recurrent_gemma"), **SIZES)
        if name in ("alibi", "compute contexts"):
            # Its attention has no kernel: it reads all rows of the cache, written or not.
            contexts = {"comp_ctx_lengths_prefill": (8,), "comp_ctx_lengths_decode": (16, 32)}
            falcon = self._models.checkpoint("falcon-alibi", "falcon", alibi=True)
            return build(falcon, **SIZES, **({} if name == "alibi" else contexts))
        return build(self._models.llama, weights=name, **SIZES)


@pytest.fixture(scope="module")
def packages(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(models, tmp_path_factory.mktemp("genai"))


def generated(package: Package, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Generate with onnxruntime-genai, greedily; prompts of one length."""
    model = onnxruntime_genai.Model(str(package.path))
    length = len(prompts[0])
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=length + count, batch_size=len(prompts))
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(np.array(prompts, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [generator.get_sequence(row)[length:].tolist() for row in range(len(prompts))]


@pytest.mark.parametrize("name", ["fp32", "int8", "w8a8", "alibi"])
@pytest.mark.sampled(2)
def test_native_runner_generates_the_tokens_of_the_session(name: str, packages: Packages) -> None:
    package = packages[name]
    session: Any = qeff_zoo.load(package)
    ours = [one.token_ids for one in session.generate(PROMPTS, generation_len=16)]
    assert [len(tokens) for tokens in ours] == [16, 16]
    assert generated(package, PROMPTS, 16) == ours
    assert [generated(package, [prompt], 16)[0] for prompt in PROMPTS] == ours
    assert "onnxruntime-genai opens it too" in describe(package)


def test_native_runner_tokenizes_and_stops_at_eos(packages: Packages) -> None:
    package = packages["fp32"]
    tokenizer = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(str(package.path)))
    session: Any = qeff_zoo.load(package)
    text = "a text of words,\nit's héllo 12"
    ids = tokenizer.encode(text).tolist()
    assert ids == session.tokenizer.encode(text, special_tokens=False)
    assert tokenizer.decode(np.array(ids, np.int32)) == text
    settings = json.loads((package.path / genai.CONFIG).read_text())["model"]
    ends = (
        settings["eos_token_id"]
        if isinstance(settings["eos_token_id"], list)
        else [settings["eos_token_id"]]
    )
    assert frozenset(ends) == session.eos_token_ids
    assert list(tokenizer.eos_token_ids) == ends


def test_onnx_runtime_opens_it_as_its_own_model_package(packages: Packages, tmp_path: Path) -> None:
    """By its C API, in a process of its own; with the logits of the graph that Python opens."""
    package = packages["fp32"]
    graph = onnxruntime.InferenceSession(package.path / "graph.onnx")
    feeds: dict[str, Any] = {
        "input_ids": np.array([[0, 45, 116, 19]]),
        "position_ids": np.arange(4)[None],
    }
    sizes = {"batch_size": 1, "ctx_len": SIZES["ctx_len"]}
    feeds |= {
        one.name: np.zeros([sizes.get(size, size) for size in one.shape], np.float32)
        for one in graph.get_inputs()
        if one.name not in feeds
    }
    np.savez(tmp_path / "feeds.npz", **feeds)
    (expected,) = graph.run(["logits"], feeds)
    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    script = ROOT / "tests" / "helpers" / "model_package_by_c.py"
    words = [library, package.path / "model_package", "decoder", tmp_path / "feeds.npz"]
    done = subprocess.run(
        [sys.executable, str(script), *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logits = np.array(json.loads(done.stdout), np.float32)
    np.testing.assert_array_equal(logits, expected.ravel())


NUMBERS = {"dtype": "int64", "shape": ["batch_size", 1]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": [{"name": "comp_ctx_lengths", **NUMBERS}]}, "compute contexts"),
        ({"inputs": [{"name": "num_logits_to_keep", **NUMBERS}]}, "speculation"),
        ({"inputs": [{"name": "lora_ids", **NUMBERS}]}, "input lora_ids"),
        ({"states": {"kind": "window"}}, "window states"),
        ({"states": {"kind": "recurrent"}}, "recurrent states"),
        ({"states": {"name": "compressed_kv.0"}}, "layers without keys and values of their own"),
        ({"states": {"axes": ["batch_size", 1, "ctx_len", 8]}}, "caches of different sizes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_manifests_are_described_with_a_reason(
    change: dict[str, Any], reason: str, packages: Packages, tmp_path: Path
) -> None:
    package = packages["fp32"]
    (program,) = package.manifest["programs"]
    first, *others = program["states"]
    states = [{**first, **change.get("states", {})}, *others]
    inputs = [*program["inputs"], *change.get("inputs", ())]
    manifest = {
        **package.manifest,
        "programs": [{**program, "states": states, "inputs": inputs}],
    }
    assert genai.describe(manifest) == f"onnxruntime-genai does not open it: {reason}"
    genai.write(tmp_path, manifest)
    assert not [*tmp_path.iterdir()]


def test_a_package_without_the_file_is_reported(packages: Packages) -> None:
    package = packages["fp32"]
    without = [file for file in package.manifest["files"] if file["path"] != genai.CONFIG]
    manifest = {**package.manifest, "files": without}
    assert "opens it once it is built again" in genai.describe(manifest)
    encoder = {**manifest, "task": "feature-extraction"}
    assert genai.describe(encoder) == "onnxruntime-genai does not open it: task feature-extraction"


# --- cpp/ ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def qeff_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build cpp/; warnings are errors."""
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"There is no {tool} here: cpp/ is not built and not tested.")
    if not (ROOT / "cpp" / ".headers").is_dir():
        pytest.skip(
            "There are no headers of ONNX Runtime here: run cpp/headers. cpp/ is not tested."
        )
    folder = tmp_path_factory.mktemp("cpp")
    flags = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-O0 -g0 -Werror"]
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    run("cmake", "-S", ROOT / "cpp", "-B", folder, python, *flags)
    run("cmake", "--build", folder, "--parallel", "2")
    return folder / "qeff-run"


def run(*command: Any, code: int = 0) -> str:
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def listed(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


@pytest.mark.parametrize("name", ["fp32", "int8", "w8a8", "alibi", "compute contexts", "hybrid"])
def test_qeff_run_generates_our_tokens(name: str, packages: Packages, qeff_run: Path) -> None:
    session: Any = qeff_zoo.load(packages[name])
    assert ("comp_ctx_lengths" in session.decoder.program.inputs) is (name == "compute contexts")
    (ours,) = session.generate(PROMPTS[:1], generation_len=40)
    words = ["--prompt-ids", listed(PROMPTS[0]), "--generation-len", "40", "--threads", "1"]
    found = json.loads(run(qeff_run, packages[name].path, *words, "--json"))
    assert found["token_ids"] == ours.token_ids
    assert run(qeff_run, packages[name].path, *words).split() == [*map(str, ours.token_ids)]
    assert 0 < found["graph_s"] < found["total_s"]


def test_qeff_run_reads_and_writes_text(packages: Packages, qeff_run: Path) -> None:
    package = packages["trained"]  # what random weights generate is no text
    session: Any = qeff_zoo.load(package)
    for text, chat in (
        ("class socket.SocketIO\n    It's a 你好 <|user|> 12", False),
        ("What is a socket?", True),
    ):
        (ours,) = session.generate([text], generation_len=32, chat=chat)
        words = [package.path, "--prompt", text, *(["--chat"] if chat else [])]
        found = json.loads(run(qeff_run, *words, "--generation-len", "32", "--json"))
        if not chat:
            assert found["prompt_ids"] == session.tokenizer.encode(text)
        assert len(found["prompt_ids"]) == ours.prompt_tokens
        assert (found["token_ids"], found["text"]) == (ours.token_ids, ours.text)
    assert ours.text.isprintable()
    assert run(qeff_run, *words, "--generation-len", "32") == f"{ours.text}\n"


def test_qeff_run_samples(packages: Packages, qeff_run: Path) -> None:
    package = packages["fp32"].path

    def sampled(*words: str) -> list[int]:
        prompt = ["--prompt-ids", listed(PROMPTS[0]), "--generation-len", "12", "--ignore-eos"]
        found: list[int] = json.loads(run(qeff_run, package, *prompt, "--json", *words))[
            "token_ids"
        ]
        return found

    greedy = sampled()
    hot = ["--temperature", "5", "--seed"]
    assert sampled(*hot, "1") == sampled(*hot, "1") != greedy
    assert sampled(*hot, "1") != sampled(*hot, "2")
    for only_one in (["--top-k", "1"], ["--top-p", "0"], ["--min-p", "1"]):
        assert sampled(*hot, "1", *only_one) == greedy
    assert sampled("--temperature", "0.000001", "--seed", "1") == greedy
    penalized = sampled("--repetition-penalty", "100")
    session: Any = qeff_zoo.load(package)
    sampling = Sampling(repetition_penalty=100)
    (ours,) = session.generate(PROMPTS[:1], generation_len=12, sampling=sampling, ignore_eos=True)
    assert penalized == ours.token_ids


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "expected one of --prompt and --prompt-ids"),
        (["--prompt", "a", "--tempreature", "1"], 2, "unrecognized argument: --tempreature"),
        (["--prompt", "a", "--top-k", "many"], 2, "expected a number after --top-k, not many"),
        (["--prompt-ids", "1,x"], 2, "expected token ids after --prompt-ids, not x"),
        (["--prompt-ids", "1,70000"], 1, "Cannot read token 70000; expected 0 to"),
        (["--prompt-ids", listed(range(65))], 1, "expected 1 to 64 in all. Shorten the prompt"),
        (["--prompt-ids", "1", "--temperature", "-1"], 1, "Cannot sample with temperature -1"),
    ],
)
def test_qeff_run_fails_in_a_line(
    words: list[str], code: int, message: str, packages: Packages, qeff_run: Path
) -> None:
    assert message in run(qeff_run, packages["fp32"].path, *words, code=code)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target": {"name": "qaic", "needs": {}}},
            "it is for target qaic; expected target ort or openvino",
        ),
        ({"task": "feature-extraction"}, "it is for feature-extraction; expected text-generation"),
        ({"programs": [{}, {}]}, "it is of several programs; expected one"),
        ({"programs": [{}]}, "Expected one as it was built"),
    ],
)
def test_qeff_run_refuses_other_packages(
    changes: dict[str, Any],
    message: str,
    packages: Packages,
    qeff_run: Path,
    tmp_path: Path,
) -> None:
    manifest = {**packages["fp32"].manifest, **changes}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert message in run(qeff_run, tmp_path, "--prompt", "a", code=1)
    assert "there is no such file" in run(qeff_run, tmp_path / "absent", "--prompt", "a", code=1)


def test_qeff_run_refuses_deep_files(packages: Packages, qeff_run: Path, tmp_path: Path) -> None:
    """Libraries read and copy JSON by recursion, which ends in the stack's overflow at 50,000 lists."""
    folder = Path(shutil.copytree(packages["trained"].path, tmp_path / "package"))
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    tokenizer.pop("post_processor", None)
    start = json.dumps(tokenizer)[:-1] + ', "post_processor": '
    (folder / "tokenizer.json").chmod(0o644)
    for depth in (40, 60, 60_000):
        nested = '{"type":"Sequence","processors":[' * depth + "]}" * depth
        (folder / "tokenizer.json").write_text(start + nested + "}")
        refused = run(qeff_run, folder, "--prompt", "a", "--generation-len", "1", code=depth > 50)
        if depth > 50:
            assert "tokenizer.json: its lists and objects nest deeper than 100" in refused
    manifest = folder / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_text("[" * 60_000)
    assert "nest deeper than 100" in run(qeff_run, folder, "--prompt", "a", code=1)
