# SPDX-License-Identifier: Apache-2.0
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from checkout import ROOT, TESTS
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from qeff_zoo import registry, scaffold
from qeff_zoo.cli import main
from qeff_zoo.errors import StoreError, UnsupportedModelError, ZooError
from qeff_zoo.export import architectures, exporter
from qeff_zoo.recipe import Recipe
from qeff_zoo.scaffold import composed, counting, subject
from qeff_zoo.scaffold.mixing import Mix
from qeff_zoo.scaffold.shrinking import awkward, shrink
from qeff_zoo.scaffold.source import Call, Code, Spread, layout

pytestmark = pytest.mark.turns(2)

REPOSITORY = ROOT
PUBLISHED_CONFIGS = TESTS / "published"
# What published checkpoints of an architecture say beyond the defaults of their config class.
PUBLISHED: dict[str, dict[str, Any]] = {
    "olmo2": {},
    "starcoder2": {"sliding_window": 4096},
    "gemma": {},
    "qwen3_moe": {"head_dim": 128, "decoder_sparse_step": 2},
    "phi": {"qk_layernorm": True},
    "stablelm": {"use_parallel_residual": True},
    "granite": {
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0,
        "logits_scaling": 16.0,
        "residual_multiplier": 0.22,
    },
    "smollm3": {},
    "cohere2": {},
    "olmo3": {},
    "phi3": {
        "original_max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + step / 48 for step in range(48)],
            "long_factor": [2.0 + step / 48 for step in range(48)],
        },
    },
    "gpt_neox": {},
    "bloom": {},
    "roberta": {"architectures": ["RobertaModel"]},
}


def config_of(model_type: str) -> dict[str, Any]:
    config: dict[str, Any] = CONFIG_MAPPING[model_type]().to_dict()
    return {**config, **PUBLISHED.get(model_type, {})}


def write_config(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


# The recipes that drafts may start from: what is drafted here has none, whatever is shipped.
RELATIVES = [
    *("bert", "falcon", "gemma2", "gemma3_text", "gpt2", "llama", "mistral", "mixtral", "qwen2"),
    "qwen3",
]


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, scaffold.Proposal]:
    folder = tmp_path_factory.mktemp("drafted")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "list_model_types", lambda: RELATIVES)
        for model_type in PUBLISHED:
            found[model_type] = scaffold.propose(write_config(folder, config_of(model_type)))
            scaffold.write(found[model_type], folder)
    return found


@pytest.fixture
def recipes(
    drafted: dict[str, scaffold.Proposal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    for proposal in drafted.values():
        scaffold.write(proposal, tmp_path)
    monkeypatch.setenv(registry.RECIPES_ENV, str(tmp_path))
    return tmp_path


def test_drafts_are_formatted(recipes: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--config", str(REPOSITORY / "pyproject.toml"), "--no-cache", str(recipes)]
    for command in (["format", "--check", "--diff"], ["check"]):
        done = subprocess.run([*ruff, *command, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_drafts_are_recipes(
    model_type: str, drafted: dict[str, scaffold.Proposal], recipes: Path
) -> None:
    recipe = registry.find_recipe(model_type)
    assert recipe.model_type == model_type
    assert drafted[model_type].text.count("\n") <= 40
    config = CONFIG_MAPPING[model_type](**recipe.tiny[0].config)
    assert config.num_hidden_layers >= 4
    assert config.vocab_size == 257


@pytest.mark.parametrize(
    ("model_type", "relative", "counts", "offset"),
    [
        ("olmo2", "llama", {"rms_norm": 33}, None),
        ("starcoder2", "mistral", {}, None),
        ("gemma", "llama", {"rms_norm": 17}, 1.0),
        ("qwen3_moe", "mixtral", {"rms_norm": 33, "experts": 4}, None),
        ("granite", "llama", {"rms_norm": 17}, None),
        ("roberta", "bert", {}, None),
    ],
)
def test_claims(
    model_type: str,
    relative: str,
    counts: dict[str, int],
    offset: float | None,
    drafted: dict[str, scaffold.Proposal],
    recipes: Path,
) -> None:
    assert drafted[model_type].relative == relative
    transforms = registry.find_recipe(model_type).transforms
    config = CONFIG_MAPPING[model_type](num_hidden_layers=8)
    if model_type == "qwen3_moe":
        config.decoder_sparse_step = 2
    assert {transform.name: transform.count(config) for transform in transforms} == counts
    assert not transforms or transforms[0].parameters.get("offset") == offset


@pytest.mark.parametrize(
    ("model_type", "layers"),
    [
        ("falcon_mamba", {"num_hidden_layers": 8}),  # some of its norms have no weight
        ("mamba2", {"num_hidden_layers": 8}),
        ("olmo_hybrid", {"layer_types": ["linear_attention", "full_attention"] * 2}),
    ],
)
def test_recurrences_are_counted(model_type: str, layers: dict[str, Any]) -> None:
    recipe = registry.find_recipe(model_type)
    config = {"model_type": model_type, **recipe.tiny[0].config}
    number = len(layers.get("layer_types", [])) or layers["num_hidden_layers"]
    other = {**config, **layers, "num_hidden_layers": number}
    counted, notes = counting.count([config, other], recipe.task)
    assert not notes
    assert counting.promises(recipe, counted)
    assert {item.name for item in counted} == {"rms_norm", "recurrence"}


def test_facts_stay(recipes: Path) -> None:
    def tiny(model_type: str) -> Any:
        return CONFIG_MAPPING[model_type](**registry.find_recipe(model_type).tiny[0].config)

    granite = tiny("granite")
    assert (granite.embedding_multiplier, granite.logits_scaling) == (12.0, 16.0)
    assert (granite.residual_multiplier, granite.attention_multiplier) == (0.22, 0.2)
    assert tiny("phi").qk_layernorm
    assert tiny("stablelm").rope_parameters["partial_rotary_factor"] == 0.25
    assert tiny("starcoder2").sliding_window == 7
    assert tiny("qwen3_moe").head_dim == 24
    assert tiny("cohere2").layer_types == ["sliding_attention", "full_attention"] * 2
    assert tiny("smollm3").no_rope_layers == [1, 0, 1, 0]
    assert len(tiny("phi3").rope_parameters["long_factor"]) == 8


def agree(recipe: Recipe) -> None:
    """Compare the portable graph in ONNX Runtime with Hugging Face: prefill, a padded chunk, decode."""
    config = {"model_type": recipe.model_type, **recipe.tiny[0].config}
    graph = exporter.export_graph(config, recipe)
    torch.manual_seed(0)
    parsed = CONFIG_MAPPING[recipe.model_type].from_dict(config)
    model = AutoModelForCausalLM.from_config(
        parsed, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases start where a dropped fact does not show
                parameter += 0.1 * torch.randn_like(parameter)
        ids = torch.randint(3, 250, (2, 18))
        expected = model(input_ids=ids, use_cache=False).logits.numpy()
    state = model.state_dict()
    for name, value in graph.graph.initializers.items():
        if name in state:
            value.const_value = ir.tensor(state[name].numpy(), name=name)
    session = ort.InferenceSession(ir.to_proto(graph).SerializeToString())
    past = {
        item.name: np.zeros(
            [2 if axis == 0 else 40 if axis == 2 else size for axis, size in enumerate(item.shape)],
            np.float32,
        )
        for item in session.get_inputs()
        if item.name.startswith("past")
    }
    names = [output.name for output in session.get_outputs()]

    def step(tokens: Any, positions: Any) -> Any:
        feeds = {"input_ids": tokens, "position_ids": np.tile(positions, (2, 1)), **past}
        found = dict(zip(names, session.run(None, feeds), strict=True))
        past.update({name: found[f"{name}_RetainedState"] for name in past})
        return found["logits"][:, 0]

    tokens = ids.numpy()
    found = {7: step(tokens[:, :8], np.arange(8))}
    chunk = np.concatenate([tokens[:, 8:12], np.zeros((2, 4), np.int64)], 1)
    found[11] = step(chunk, np.array([8, 9, 10, 11, -1, -1, -1, -1]))
    for position in range(12, 18):
        found[position] = step(tokens[:, position : position + 1], np.array([position]))
    scale = float(np.abs(expected).max())
    for position, logits in found.items():
        np.testing.assert_allclose(
            logits, expected[:, position], atol=2e-5 * max(1.0, scale), rtol=1e-4
        )


@pytest.mark.parametrize("model_type", ["olmo2", "starcoder2", "gemma"])
@pytest.mark.sampled(3)
def test_drafts_export_and_agree(model_type: str, recipes: Path) -> None:
    agree(registry.find_recipe(model_type))


def test_a_draft_recipe_that_does_not_run_is_reported(
    drafted: dict[str, scaffold.Proposal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(len(proposal.notes) == 1 for proposal in drafted.values())
    monkeypatch.setattr(registry, "reason_of", lambda model_type: "")
    proposal = scaffold.propose(write_config(tmp_path, config_of("openai-gpt")))
    assert "does not run on retained states yet" in proposal.notes[0]
    assert "keeps no keys and values" in proposal.notes[0]


# --- models of several parts ----------------------------------------------------------------------

COMPOSED = sorted(
    registry.file_name(recipe.model_type)
    for recipe in registry.list_recipes()
    if recipe.task in subject.COMPOSED and not recipe.requires
)
#: Recipes whose programs the declarations of others did not trace: most have a family or sizes of their own.
UNTRACED = {
    "aria", "cosmos3_edge", "deepseek_ocr2", "deepseek_vl_hybrid", "ernie4_5_vl_moe",
    "florence2", "fuyu", "gemma4",
    "gemma4_unified", "granite4_vision", "granite_docling", "granite_speech", "kimi_k25",
    "lfm2_vl", "lfm3_vl", "llama4", "mllama", "molmo",
    "moonshine", "nemotron_h_omni", "ovis2", "phi4_multimodal",
    "qwen2_5_omni", "qwen2_audio", "qwen3_asr", "speech_to_text", "step3p7",
    "video_llama_3",
}  # fmt: skip


def published(model_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a published config and its image processor's settings; without one, the config class's defaults."""
    for folder in (PUBLISHED_CONFIGS, PUBLISHED_CONFIGS / "audio"):
        if (path := folder / f"{model_type}.json").exists():
            facts = json.loads(path.read_text())
            return facts["config"], facts.get("preprocessor_config") or {}
    recipe = registry.find_recipe(model_type)
    architectures.register(recipe.model_type)
    config = CONFIG_MAPPING[recipe.model_type]().to_dict()
    return {**config, "architectures": list(recipe.architectures[:1])}, {}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hide the recipe of a model type from drafts."""
    every = registry.list_model_types()

    def hide(model_type: str) -> None:
        others = [name for name in every if name != model_type]
        monkeypatch.setattr(registry, "list_model_types", lambda: others)

    return hide


@pytest.mark.parametrize("model_type", COMPOSED)
@pytest.mark.sampled(30)
def test_composed_models_have_a_draft(
    model_type: str, hidden: Callable[[str], None], tmp_path: Path
) -> None:
    """A first draft has the task of the recipe; its family may differ, and `qeff-zoo new` compares it."""
    config, settings = published(model_type)
    recipe = registry.find_recipe(model_type)
    hidden(model_type)
    drafted = next(composed.drafts(subject.examine(config), settings))

    assert drafted.recipe.model_type == recipe.model_type
    assert drafted.relative.model_type != recipe.model_type
    assert drafted.recipe.tiny[0].config
    if model_type not in UNTRACED:
        assert drafted.notes[0].startswith("All programs are traced with")
        assert drafted.recipe.task == recipe.task


def test_a_draft_that_is_not_traced_names_the_line_and_the_fields_to_look_up(
    hidden: Callable[[str], None],
) -> None:
    config, settings = published("moonshine")
    hidden("moonshine")
    drafted = next(composed.drafts(subject.examine(config), settings))

    error, fields, *_ = drafted.notes
    relative = drafted.relative.model_type
    assert re.search(rf"of {relative} \(.*, in line \d+ of \w+\.py, `\w+`\)", error)
    assert fields.startswith(f"{relative} has no ")
    assert "pad_head_dim_to_multiple_of" in fields


def test_image_tokens_keep_their_published_share_of_the_patches() -> None:
    """Gemma 3 pools 4,096 patches into 256 tokens, and its tiny model 16 into one."""
    config, _ = published("gemma3")
    mix = Mix(config, registry.find_recipe("paligemma").tiny[0].config)
    vision = mix.tiny["vision_config"]
    patches = (vision["image_size"] // vision["patch_size"]) ** 2
    assert patches == 16 * mix.tiny["mm_tokens_per_image"]
    assert "mm_tokens_per_image" not in mix.kept


@pytest.mark.parametrize(
    "model_type",
    [
        *("cvt", "deit", "dinov2", "efficientnet", "focalnet", "glpn", "mobilenet_v1", "owlvit"),
        *("pvt", "regnet", "segformer", "siglip", "swinv2", "videomae", "vit_msn"),
    ],
)
@pytest.mark.sampled(5)
def test_image_encoders_have_a_draft(model_type: str, hidden: Callable[[str], None]) -> None:
    config, settings = published(model_type)
    recipe = registry.find_recipe(model_type)
    hidden(model_type)
    drafted = next(composed.drafts(subject.examine(config), settings))

    assert drafted.recipe.task == recipe.task
    assert drafted.notes[0].startswith("All programs are traced with")


@pytest.mark.parametrize(
    ("model_type", "family"),
    [
        ("audioflamingo3", "AudioWindows"),
        ("cohere_compass", "PatchGrid"),
    ],
)
def test_the_family_of_an_encoder_is_proposed(
    model_type: str, family: str, hidden: Callable[[str], None]
) -> None:
    config, settings = published(model_type)
    hidden(model_type)
    drafted = next(composed.drafts(subject.examine(config), settings))
    declared = drafted.recipe.images or drafted.recipe.audio
    assert type(declared).__name__ == family
    assert f"All programs are traced with {family} of " in drafted.notes[0]


def test_a_draft_of_a_composed_model_is_formatted_and_names_unknown_sizes(
    hidden: Callable[[str], None], tmp_path: Path
) -> None:
    config, _ = published("whisper")
    hidden("whisper")
    (proposal, *_) = islice(
        scaffold.proposals(write_config(tmp_path, {**config, "d_other": 7777})), 1
    )
    scaffold.write(proposal, tmp_path / "recipes")
    ruff = [sys.executable, "-m", "ruff", "format", "--check", "--diff", "--no-cache"]
    options = ["--config", str(REPOSITORY / "pyproject.toml"), str(tmp_path / "recipes")]
    done = subprocess.run([*ruff, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_awkward_values() -> None:
    assert awkward("rms_norm_eps", 1e-6) == 1e-2
    assert awkward("final_logit_softcapping", 30.0) == 5.0
    assert awkward("residual_multiplier", 1.0) == 1.5
    assert awkward("residual_multiplier", 0.22) == 0.22
    assert shrink(config_of("olmo2"))["rms_norm_eps"] == 1e-2


def test_the_next_family_is_tried_if_the_first_does_not_match(
    hidden: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = ["first", "second"]
    proposals = [
        scaffold.Proposal(
            model_type="new", relative=text, text=text, file_name="new.py", notes=(f"Of {text}.",)
        )
        for text in texts
    ]
    monkeypatch.setattr(scaffold, "proposals", lambda model: iter(proposals))
    monkeypatch.setattr(
        scaffold,
        "try_out",
        lambda path: scaffold.Trial(passed=path.read_text() == "second", report="Compared."),
    )
    assert main(["new", "model", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "new.py").read_text() == "second"
    assert "Of second." in capsys.readouterr().err
    monkeypatch.setattr(
        scaffold, "try_out", lambda path: scaffold.Trial(passed=False, report="Compared.")
    )
    (tmp_path / "new.py").unlink()
    assert main(["new", "model", "--output", str(tmp_path)]) == 1
    assert (tmp_path / "new.py").read_text() == "first"


# --- trying a draft -------------------------------------------------------------------------------

WRONG = """
from dataclasses import replace

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA, model_type="gemma", architectures=("GemmaForCausalLM",), special="Not like this.", tiny=LLAMA.tiny[:1]
)
"""


def test_a_draft_that_matches(drafted: dict[str, scaffold.Proposal], tmp_path: Path) -> None:
    trial = scaffold.try_out(scaffold.write(drafted["starcoder2"], tmp_path))
    assert trial.passed, trial.report
    assert trial.report.startswith("starcoder2: agrees with Hugging Face (tiny)")
    assert "against Starcoder2ForCausalLM, float32" in trial.report
    assert (tmp_path / "starcoder2.py").read_text() == drafted["starcoder2"].text


def test_a_recipe_that_does_not_match_reports_the_place(tmp_path: Path) -> None:
    """Gemma's norms store weight - 1; Llama's recipe drops that."""
    (tmp_path / "gemma.py").write_text(WRONG)
    trial = scaffold.try_out(tmp_path / "gemma.py")
    assert not trial.passed
    assert trial.report.startswith("gemma: DISAGREES with Hugging Face (tiny)")
    failed = [line for line in trial.report.splitlines() if " NO " in line]
    assert any("decode" in line and "max_relative_error" in line for line in failed)


def test_a_recipe_that_cannot_be_tried_reports_the_reason(tmp_path: Path) -> None:
    wrong = WRONG.replace('special="Not like this."', "transforms=()")
    (tmp_path / "gemma.py").write_text(wrong.replace("tiny=LLAMA.tiny[:1]", "tiny=()"))
    assert not scaffold.try_out(tmp_path / "gemma.py").passed
    (tmp_path / "gemma.py").write_text("import nothing_like_this\n")
    trial = scaffold.try_out(tmp_path / "gemma.py")
    assert not trial.passed
    assert "ModuleNotFoundError: No module named 'nothing_like_this'. Expected" in trial.report


def test_no_shipped_recipe_is_a_draft() -> None:
    drafts = [
        file.name
        for file in (REPOSITORY / "recipes").glob("*.py")
        if "Complete this" in file.read_text(encoding="utf-8")
    ]
    assert not drafts


def test_a_draft_has_the_mark_of_one(drafted: dict[str, scaffold.Proposal]) -> None:
    assert all("Complete this" in proposal.text for proposal in drafted.values())


def test_an_existing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="There is a recipe for model_type 'llama' already"):
        scaffold.propose(write_config(tmp_path, {"model_type": "llama"}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "lama"}, "has no model_type 'lama'"),
        ({"model_type": "pp_lcnet_v4"}, "several parts or no text"),
        ({"model_type": "olmo2", "hidden_size": "wide"}, "does not accept this config"),
        ({"model_type": "gemma4_text"}, "No recipe can be drafted for model_type 'gemma4_text'"),
    ],
)
def test_unsupported_architecture_is_refused(
    config: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "list_model_types", lambda: RELATIVES)
    with pytest.raises(UnsupportedModelError, match=message):
        scaffold.propose(write_config(tmp_path, config))


def test_nothing_is_overwritten(drafted: dict[str, scaffold.Proposal], tmp_path: Path) -> None:
    path = scaffold.write(drafted["olmo2"], tmp_path / "new")
    path.write_text("mine")
    with pytest.raises(StoreError, match="olmo2"):
        scaffold.write(drafted["olmo2"], tmp_path / "new")
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1,), "(1,)"),
        ({"a": [1.0, None, True]}, '{"a": [1.0, None, True]}'),
        (Call("f", {"": Code("X"), "b": 'say "x"'}), "f(X, b='say \"x\"')"),
        (Spread(Code("A.b"), {"k": ()}), '{**A.b, "k": ()}'),
        ("it's\n", '"it\'s\\n"'),
    ],
)
def test_layout(value: Any, text: str) -> None:
    assert layout(value) == text


def test_layout_breaks_at_the_margin() -> None:
    words = ["x" * 28] * 3
    assert layout(words, before=4).count("\n") == 0
    assert layout(words, before=5) == "[\n" + f'    "{words[0]}",\n' * 3 + "]"


def test_import_is_light() -> None:
    code = (
        "import sys, qeff_zoo.scaffold; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'onnx_ir', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
