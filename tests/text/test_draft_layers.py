# SPDX-License-Identifier: Apache-2.0
"""Decoder layers that draft: their numbers on a cache of their own, what they draft, and what is refused."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import parity
import published_mtp
import pytest
import speculators
import torch
from fixtures_builds import Models
from fixtures_runtime import LENGTH, PROMPTS
from runnable_package import edit_json
from safetensors.torch import load_file, save_file
from speculators import Made, opened
from transformers import Qwen3Config, Qwen3Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.checkpoint.draft_heads import dflash, mtp
from qeff_zoo.checkpoint.draft_heads.kinds import KINDS as KINDS_OF_HEADS
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.checkpoint.sources import with_speculator
from qeff_zoo.errors import PlanError, SpeculatorError, ZooError
from qeff_zoo.package import Package
from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.engine.speculation import opening
from qeff_zoo.runtime.engine.speculation.assistant import AssistantDrafter
from qeff_zoo.runtime.engine.speculation.costs import Costs
from qeff_zoo.runtime.engine.speculation.layer import Layer, LayerDrafter
from qeff_zoo.sessions.opening import open_heads
from qeff_zoo.validation.ladder import shown
from qeff_zoo.validation.reference.heads import attach
from qeff_zoo.validation.reference.subjects import answers_of
from qeff_zoo.validation.trial.package_runner import try_package

pytestmark = pytest.mark.turns(3)

FREE = Costs(seconds={1: 1.0, 2: 1.0}, together={2: 1e9})
#: Of MTP one that goes on before its last norm, one with a window, one of a model with windows; see CONTRIBUTING.md.
MTP = ("deepseek_v3", "mimo_v2_flash", "exaone_moe")
KINDS = (
    *speculators.LAYERS,
    speculators.ASSISTANT,
    *(published_mtp.KINDS if parity.EVERY else MTP),
)


def referred(model: Any, located: Any, tokens: list[int], after: list[int]) -> Any:
    """Say by the papers' formulas what a layer makes of tokens, told what follows them."""
    with torch.no_grad():
        reference, count = attach(model, located)
        with reference:  # type: ignore[union-attr]
            model(torch.tensor([tokens]))
        found = reference.logits(torch.tensor([tokens]), [0], [len(tokens) - 1], [after])  # type: ignore[union-attr]
    assert found.shape[1] == max(count, len(after))
    return found[0].numpy()


def drafter_of(package: Package, decoder: Decoder) -> Any:
    """Make what drafts for row 1."""
    program = open_heads(package, 1)
    assert program is not None
    drafter = opening.drafter_of(opening.drafting_by(program, decoder), FREE)  # type: ignore[arg-type]
    if isinstance(drafter, AssistantDrafter):
        drafter.set_slot(1)
    return drafter


def rows_of(session: TextGenerationSession, tokens: list[int], cuts: list[int]) -> Any:
    """Run tokens in pieces; return the hidden states of all of them."""
    decoder, found = session.decoder, []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        decoder.verify({1: Piece(tokens[start:stop], start)})
        found.append((start, decoder.hidden[1]))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_logits_are_those_of_the_published_formulas(kind: str, made: Any) -> None:
    """Whatever was guessed before, and was not so; from the beginning of a text, and from a place within it."""
    package = made(kind).package
    session = opened(package, None)
    drafter = drafter_of(package, session.decoder)
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 257, 21).tolist()
    for start, hidden in rows_of(session, tokens[:-2], [7, 11, 12, 16]):
        drafter.read(start, hidden)
        stop = start + len(hidden)
        wrong = draw.integers(0, 257, 4).tolist()
        drafter.draft_logits(tokens[: stop + 1], 5, wrong)
    one: Made = made(kind)
    right = referred(one.model, one.located, tokens[:-2], tokens[-2:])
    assert np.abs(right[0] - right[1]).max() > 0.1 * right.std()
    assert len({*right[0].tolist()}) == (100 if kind == "eagle3" else 257)

    fresh = drafter_of(package, session.decoder)
    for start, hidden in rows_of(session, tokens[:-2], [7, 9]):
        fresh.read(start, hidden)
        fresh.read(start, hidden)  # as of tokens that run again
    got = fresh.draft_logits(tokens[:-1], 2, tokens[-1:])
    # Sums of several layers round differently; a wrong hidden state differs by a tenth.
    assert np.abs(np.stack(got) - right).max() <= 1e-4 * right.std()


@pytest.mark.parametrize("kind", published_mtp.KINDS)
@pytest.mark.sampled(3)
def test_validation_of_mtp_agrees_with_its_authors_code(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    folder = published_mtp.write(kind, tmp_path / kind)
    tokens, after = torch.randint(0, 250, (12,)).tolist(), [5, 77, 130]
    found = with_speculator(open_checkpoint(str(folder)), "mtp").speculator
    assert found is not None
    model = published_mtp.loaded(folder)
    with torch.no_grad():
        right = published_mtp.drafted(kind, folder, tokens, after)
    got = referred(model, found.located, tokens, after)
    assert np.abs(got - right.numpy()).max() <= 1e-5 * right.std()
    assert (right[0] - right[1]).abs().max() > 0.1 * right.std()


def published(folder: Path, target: Any, tokens: list[int], newest: int) -> torch.Tensor:
    """Draft a block as z-lab's model does, on a cache of keys and values: logits of the tokens after the newest."""
    config = Qwen3Config.from_pretrained(folder)
    model, stored = Qwen3Model(config), load_file(folder / "model.safetensors")
    left = model.load_state_dict(stored, strict=False)
    assert left.missing_keys == ["embed_tokens.weight"]
    assert sorted(left.unexpected_keys) == ["fc.weight", "hidden_norm.weight"]
    norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
    norm.load_state_dict({"weight": stored["hidden_norm.weight"]})
    states = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    read = [states[layer + 1] for layer in config.dflash_config["target_layer_ids"]]
    context = norm(torch.cat(read, -1) @ stored["fc.weight"].T)
    masks = [config.dflash_config["mask_token_id"]] * (config.block_size - 1)
    hidden = target.get_input_embeddings()(torch.tensor([[newest, *masks]]))
    whole, start = torch.arange(len(tokens) + config.block_size)[None], len(tokens)
    cos, sin = model.rotary_emb(hidden, whole)
    for layer in model.layers:
        attention, inner = layer.self_attn, layer.input_layernorm(hidden)
        both = torch.cat([context, inner], 1)

        def heads(values: torch.Tensor, size: int = config.head_dim) -> torch.Tensor:
            return values.unflatten(-1, (-1, size)).transpose(1, 2)

        query = attention.q_norm(heads(attention.q_proj(inner)))
        key = attention.k_norm(heads(attention.k_proj(both)))
        query, _ = apply_rotary_pos_emb(query, query, cos[:, start:], sin[:, start:])
        key, _ = apply_rotary_pos_emb(key, key, cos, sin)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, heads(attention.v_proj(both)), enable_gqa=True
        )
        hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    logits: torch.Tensor = target.lm_head(model.norm(hidden))[0, 1:]
    return logits


def test_validation_of_blocks_agrees_with_published_code(models: Models, tmp_path: Path) -> None:
    torch.manual_seed(5)
    folder = speculators.dflash(tmp_path / "dflash", 64, 257)
    found = with_speculator(open_checkpoint(str(models.llama)), str(folder)).speculator
    assert found is not None
    model, tokens = published_mtp.loaded(models.llama), torch.randint(0, 250, (12,)).tolist()
    with torch.no_grad():
        right = published(folder, model, tokens, 7)
    got = referred(model, found.located, tokens, [7, 1, 2, 3])
    assert right.shape == got.shape == (4, 257)
    assert np.abs(got - right.numpy()).max() <= 1e-5 * right.std()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_validation_compares_drafts_too(kind: str, made: Any) -> None:
    """What the reference's process answers, here: of each position the model's logits and two of the layer."""
    package = made(kind).package
    trial = try_package(package, 1, lambda _: None)
    request = {
        "task": package.task,
        "sequences": trial.sequences,
        "positions": trial.positions,
        "speculator": made(kind).located,
        "media": [len(found) for found in trial.media],
        "of_media": trial.of_media,
    }
    with torch.no_grad():
        expected = answers_of(made(kind).model, request, shown(trial)).alone()
    for stage, keys in trial.keys.items():
        right = np.stack([expected[sequence][index] for sequence, index, _ in keys])
        assert len(right) % 3 == 0
        away = np.abs(trial.answers[stage] - right).max(1) / right.std(1)
        assert away.max() <= 5e-5, stage


def test_a_lost_row_begins_anew(made: Any) -> None:
    """More drafters than rows: who lost one goes on with what is told from then on."""
    package = made("eagle3").package
    session, program = opened(package, None), open_heads(package, 1)
    assert program is not None
    layer, tokens = Layer(program), list(range(20))
    pieces = rows_of(session, tokens, [8, 15])
    several = [LayerDrafter(layer, FREE) for _ in range(3)]
    for start, hidden in pieces[:2]:
        for one in several:
            one.read(start, hidden)
            one.draft_logits(tokens[: start + len(hidden) + 1], 2)
    start, hidden = pieces[2]
    late = LayerDrafter(layer, FREE)
    for one in (several[0], late):
        one.read(start, hidden)
    found = [one.draft_logits([*tokens, 5], 2) for one in (several[0], late)]
    assert np.abs(np.stack(found[0]) - np.stack(found[1])).max() <= 1e-4
    del several, one
    assert layer.rows.of(late)[1]
    assert len({layer.rows.of(one)[0] for one in (late, LayerDrafter(layer, FREE))}) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2, kept=["dflash"])
def test_answers_are_those_of_hugging_face(kind: str, made: Any, expected: list[list[int]]) -> None:
    package = made(kind).package
    prompts: list[Any] = PROMPTS
    if kind not in speculators.LAYERS:  # of models without a tokenizer
        prompts = [[*prompt.encode()][:20] for prompt in PROMPTS]
        plain = opened(package, None).generate(prompts, generation_len=LENGTH, ignore_eos=True)
        expected = [output.token_ids for output in plain]
    session = opened(package)
    found = session.generate(prompts, generation_len=LENGTH, ignore_eos=True)
    assert [output.token_ids for output in found] == expected
    assert session.metrics is not None
    assert session.metrics.drafted_tokens > 0
    again = session.generate(prompts, generation_len=LENGTH, ignore_eos=True)  # known prompts
    assert [output.token_ids for output in again] == expected

    # What is drafted first is what the layer makes of the prompt, and then of its own states.
    session, drafts = opened(package), list[list[int]]()
    make = session.speculation.drafter  # type: ignore[union-attr]

    def watched(request: Any) -> Any:
        drafter: Any = make(request)
        draft = drafter.draft
        drafter.draft = lambda *given: drafts.append(draft(*given)) or drafts[-1]
        return drafter

    object.__setattr__(session.speculation, "drafter", watched)
    (answer,) = session.generate(prompts[:1], generation_len=LENGTH, ignore_eos=True)
    tokens, lines = [*session.request(prompts[0]).prompt], list[int]()
    while len(lines) < len(drafts[0]):
        after = [answer.token_ids[0], *lines]
        right = referred(made(kind).model, made(kind).located, tokens, after)
        lines.append(int(right[len(lines)].argmax()))
    assert drafts[0] == lines
    assert len(lines) == 4


def test_an_assistant_follows_its_request(made: Any) -> None:
    """Every draft is of the row that its request has then, whatever the others do, and behind a known beginning too."""
    one: Made = made(speculators.ASSISTANT)
    session, drafts = opened(one.package), list[tuple[list[int], list[int]]]()
    make = session.speculation.drafter  # type: ignore[union-attr]

    def watched(request: Any) -> Any:
        drafter: Any = make(request)
        draft = drafter.draft

        def noted(tokens: list[int], *sizes: int) -> Any:
            drafts.append((tokens, draft(tokens, *sizes)))
            return drafts[-1][1]

        drafter.draft = noted
        return drafter

    object.__setattr__(session.speculation, "drafter", watched)
    draw = np.random.default_rng(3)
    prompts = [draw.integers(3, 257, count).tolist() for count in (17, 9, 13, 21)]
    for _ in range(2):
        session.generate(
            [
                session.request(prompt, generation_len=3 * number, ignore_eos=True)
                for number, prompt in enumerate(prompts, 2)
            ]
        )
    assert session.metrics is not None
    assert session.metrics.reused_tokens > 0
    message = [(tokens, settings) for tokens, settings in drafts if settings]
    assert len(message) > 12
    for tokens, settings in message:
        right = referred(one.model, one.located, tokens[:-1], [tokens[-1], *settings[:-1]])
        assert right.argmax(1)[: len(settings)].tolist() == settings


def test_right_drafts_are_accepted(made: Any) -> None:
    """A layer that says the token after each is accepted as long as the model says so too."""
    package = made("eagle3").package
    (plain,) = opened(package, None).generate([PROMPTS[0]], generation_len=24, ignore_eos=True)
    answer = plain.token_ids
    session = opened(package)
    (make, message) = session.speculation.drafter, [*answer]  # type: ignore[union-attr]
    before = len(session.request(PROMPTS[0]).prompt)

    def knowing(request: Any) -> Any:
        drafter: Any = make(request)
        draft_logits = drafter.draft_logits

        def settings(tokens: list[int], count: int) -> Any:
            right = message[len(tokens) - before :][:count]
            draft_logits(tokens, len(right), right)
            return [np.eye(257)[one] for one in right]

        drafter.draft_logits = settings
        return drafter

    object.__setattr__(session.speculation, "drafter", knowing)
    (output,) = session.generate([PROMPTS[0]], generation_len=24, ignore_eos=True)
    assert output.token_ids == answer
    assert session.metrics is not None
    assert session.metrics.accepted_tokens == session.metrics.drafted_tokens > 12


@pytest.mark.usefixtures("free_drafts")
def test_the_commands_draft(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    package = made("eagle3").package
    argv = ["run", str(package.path), "--prompt", "the quick", "--generation-len", "9"]
    answers = []
    for more in ([], ["--draft", "heads"]):
        assert cli.main([*argv, "--threads", "1", *more]) == 0
        answer, printed_text = capsys.readouterr()
        answers.append(answer)
        assert ("drafted tokens accepted" in printed_text) == bool(more)
    assert answers[0] == answers[1]
    assert cli.main(["inspect", str(package.path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"heads +a layer that drafts \(eagle3\): sha256:[0-9a-f]{64}", shown)
    assert "Shapes of draft" in shown


def _another(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.1.mlp.up_proj.weight"] = torch.zeros(2, 2)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            _another,
            SpeculatorError,
            "has tensors 'layers.1.mlp.up_proj.weight'. Expected one layer",
        ),
        ({"num_hidden_layers": 2}, SpeculatorError, "num_hidden_layers 2; expected 1"),
        ({"draft_vocab_size": "all"}, SpeculatorError, "has draft_vocab_size 'all' in its"),
        ({"draft_vocab_size": 99}, SpeculatorError, "'lm_head.weight' is [100, 64], expected [99"),
        (
            {"vocab_size": 300},
            PlanError,
            "has heads for a vocabulary of 300 tokens, and 'llama' has 257",
        ),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]},
            PlanError,
            "reads what goes into layers [1, 2, 4], and 'llama' has layers 0 to 3",
        ),
        ({"eagle_config": None}, PlanError, "reads what goes into layers [1, 2], and 'llama' has"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(
    change: Any, error: type[ZooError], message: str, models: Models, tmp_path: Path
) -> None:
    folder = speculators.eagle3(tmp_path / "layer", 64, 257)
    if callable(change):
        change(folder)
    else:
        edit_json(folder / "config.json", **change)
    with pytest.raises(error, match=re.escape(message)):
        qeff_zoo.build(models.llama, draft_heads=folder)


#: As z-lab published them for Qwen3 8B and, beyond the layers' sizes, for Qwen3.6 35B.
PUBLISHED_BLOCKS: dict[str, dict[str, Any]] = {
    "qwen3": {
        "block_size": 16,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
        "num_target_layers": 36,
    },
    "qwen3.6": {
        "block_size": 16,
        "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 10, 19, 28, 37]},
        "draft_vocab_size": 248320,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "num_target_layers": 40,
        "rope_scaling": {"rope_type": "yarn", "factor": 64.0},
        "sliding_window": 2048,
        "vocab_size": 248320,
    },
    "without a list": {"block_size": 16, "dflash_config": {"mask_token_id": 3}, "num_target_layers": 36},
}  # fmt: skip
_SIZES = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 4096,
    "intermediate_size": 12288, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED_BLOCKS)
def test_published_block_drafters_are_read(name: str) -> None:
    config = {**_SIZES, **PUBLISHED_BLOCKS[name]}
    assert next(kind.name for kind in KINDS_OF_HEADS if kind.recognizes(config)) == "DFlash"
    lines, parameters = dflash.read("x", config, {})
    settings = config["dflash_config"].get("target_layer_ids", [1, 9, 17, 25, 33])
    assert lines["layers"] == [layer + 1 for layer in settings]
    assert lines["joins"] == [4096, 5 * 4096]
    assert len(parameters) == 3 + 5 * 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dflash_config": {"target_layer_ids": [0]}}, "has mask_token_id None in its"),
        ({"dflash_config": {"mask_token_id": 257}}, "mask_token_id 257 in its configuration"),
        ({"block_size": 65}, "has block_size 65 in its configuration; expected a number from 2"),
        (
            {"architectures": ["DFlash2DraftModel"]},
            "has architectures ['DFlash2DraftModel'] in its configuration",
        ),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 1], "causal": True}},
            "has causal True in its configuration; expected False",
        ),
        ({"num_hidden_layers": 1}, "has tensors 'layers.1."),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 1, 3]}},
            "reads what goes into layers [1, 2, 4], and 'llama' has layers 0 to 3",
        ),
    ],
)
def test_a_block_drafter_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, models: Models, tmp_path: Path
) -> None:
    folder = speculators.dflash(tmp_path / "drafter", 64, 257)
    edit_json(folder / "config.json", **change)
    with pytest.raises((SpeculatorError, PlanError), match=re.escape(message)):
        qeff_zoo.build(models.llama, draft_heads=folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({}, PlanError, "with model_type 'gemma4_text', not 'llama' of 'llama'. Expected the one"),
        ({"backbone_hidden_size": 0}, SpeculatorError, "has backbone_hidden_size 0 in its config"),
        ({"backbone_hidden_size": 32}, SpeculatorError, "'pre_projection.weight' is [32, 128], ex"),
    ],
)
def test_an_assistant_that_does_not_fit_is_refused(
    change: dict[str, Any],
    error: type[ZooError],
    message: str,
    made: Any,
    models: Models,
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(made(speculators.ASSISTANT).speculator, tmp_path / "assistant")
    edit_json(folder / "config.json", **change)
    with pytest.raises(error, match=re.escape(message)):
        qeff_zoo.build(models.llama, draft_heads=folder)


def test_a_model_without_a_draft_layer_is_refused(models: Models, tmp_path: Path) -> None:
    with pytest.raises(
        SpeculatorError, match=r"'llama' has no MTP layer.* 'model.layers.4.eh_proj"
    ):
        qeff_zoo.build(models.llama, draft_heads="mtp")
    folder = published_mtp.write("qwen3_next", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["mtp.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(SpeculatorError, match=r"has no tensor 'mtp.norm.weight'"):
        qeff_zoo.build(folder, draft_heads="mtp")


def test_the_mtp_layer_of_a_vision_language_model_is_read() -> None:
    """As MiniMax M3 is published: the layer is read as one of the whole model, by the names of that."""
    place, within = "language_model.model.mtp.layers.0.", "language_model.model.layers.0."
    names = {"mlp.up_proj.weight": f"{place}transformer_layer.mlp.up_proj.weight"}
    fronts = ("enorm", "hnorm", "eh_proj", "final_layernorm")
    config = {"num_hidden_layers": 3, "hidden_size": 8, "vocab_size": 9, "layer_types": ["a"] * 3}
    outer = {"model_type": "minimax_m3_vl", "text_config": config, "quantization_config": {}}
    every = [*names.values(), *(f"{place}{front}.weight" for front in fronts), "vision.0.weight"]
    found = mtp.find("it", config, every, outer)
    one = {**config, "num_hidden_layers": 1, "layer_types": ["minimax_m3_sparse"]}
    assert found.settings["config"] == {"model_type": "minimax_m3_vl", "text_config": one}
    assert found.layer == {
        **{within + name: tensor for name, tensor in names.items()},
        "language_model.model.norm.weight": f"{place}final_layernorm.weight",
    }


@pytest.mark.full
def test_a_vision_language_model_drafts_after_images(made: Any) -> None:
    """Answers about images are those without drafts; what drafts is told of the text behind the last one."""
    package, answers = made("qwen3_5").package, []
    for speculate in (None, "heads"):
        session: Any = opened(package, speculate)
        shape = session.reader.program.inputs["pixel_values"].shape
        pixels = np.random.default_rng(1).standard_normal((24, *shape[1:]), np.float32)
        image = {"pixel_values": pixels, "image_grid_thw": np.array([[1, 4, 6]])}
        reported: list[tuple[int, int]] = []
        if speculate:
            make = session.speculation.drafter

            def watched(request: Any, make: Any = make, reported: Any = reported) -> Any:
                drafter = make(request)
                read = drafter.read
                drafter.read = lambda start, hidden: (
                    reported.append((start, len(hidden))) or read(start, hidden)
                )
                return drafter

            object.__setattr__(session.speculation, "drafter", watched)
        prompt = [5, session.media_tokens.placeholder, 7, 9, 30]
        request = session.request(prompt, images=[image], generation_len=LENGTH, ignore_eos=True)
        (output,) = session.generate([request])
        answers.append(output.token_ids)
    assert answers[0] == answers[1]
    assert session.metrics.drafted_tokens > 0
    behind = len(request.prompt) - 3
    assert min(start for start, _ in reported) == behind
