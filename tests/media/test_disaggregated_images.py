# SPDX-License-Identifier: Apache-2.0
"""Images among prompts that one package runs, and another goes on from, which has no program that reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_handoff import serving

from qeff_zoo import pipeline
from qeff_zoo.errors import HandoffError
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.engine.disaggregated import Prefills
from qeff_zoo.serving.errors import ApiError, blaming
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.validation import ladder, tiny_models

pytestmark = pytest.mark.together("apart_pictures")
LENGTH = 5
ROWS = 6  # of features of a picture


class SubModels:
    """A package of --prefill-only and one of --decode-only, opened, and unpatched Hugging Face."""

    def __init__(self, folder: Path) -> None:
        recipe = find_recipe("qwen2_5_vl")  # rotary positions have three axes, and lag behind
        self.checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
        self.store = Store(folder / "store")
        self.prefill = self.build(prefill_only=True, prefill_seq_len=8, full_batch_size=1)
        self.decode = self.build(decode_only=True, full_batch_size=3)
        self.prompts, self.answers = map(opened, (self.prefill, self.decode))

    def build(self, **choices: Any) -> Package:
        requested = Request(ctx_len=64, **choices)
        source = str(self.checkpoint)
        return pipeline.build(source, requested, store=self.store, validate=False).package

    def image(self, seed: int) -> dict[str, Any]:
        width = self.prompts.reader.program.inputs["pixel_values"].shape[1]
        pixels = np.random.default_rng(seed).standard_normal((24, width), np.float32)
        return {"pixel_values": pixels, "image_grid_thw": np.array([[1, 4, 6]])}

    def reference_output(self, tokens: list[int], images: list[dict[str, Any]]) -> list[int]:
        import torch
        from transformers import AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_pretrained(
            self.checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        model.generation_config.eos_token_id = None
        marker = self.answers.media_tokens.placeholder
        ids = [one for token in tokens for one in [token] * (ROWS if token == marker else 1)]
        settings: dict[str, Any] = {
            name: torch.from_numpy(np.concatenate([image[name] for image in images]))
            for name in (images[0] if images else ())
        }
        if settings:
            settings["mm_token_type_ids"] = torch.tensor([[int(token == marker) for token in ids]])
        made = model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=LENGTH,
            do_sample=False,
            **settings,
        )
        return made[0, len(ids) :].tolist()


def opened(package: Package) -> ImageTextToTextSession:
    session = open_session(package, threads=1)
    assert isinstance(session, ImageTextToTextSession)
    return session


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> SubModels:
    return SubModels(tmp_path_factory.mktemp("halves"))


def test_together_they_answer_as_hugging_face(
    halves: SubModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that calls cut, several in a prompt and none, rows that decode together, rotary positions that lag."""
    assert [program.role for program in halves.prefill.programs] == ["language", "vision"]
    assert [program.role for program in halves.decode.programs] == ["language"]
    answers, marker = halves.answers, halves.answers.media_tokens.placeholder
    one, other = halves.image(1), halves.image(2)
    requested: list[tuple[list[int], list[dict[str, Any]]]] = [
        ([3, marker, 4, *range(10, 16)], [one]),
        ([5, 6, marker, 7, marker, 8], [one, other]),
        ([*range(20, 33)], []),
        ([3, marker, 4, *range(10, 16)], [other]),
    ]
    wanted = [halves.reference_output(*each) for each in requested]
    assert wanted[0] != wanted[3]  # the picture matters

    def request(tokens: list[int], photos: list[dict[str, Any]]) -> Any:
        return answers.request(tokens, images=photos, generation_len=LENGTH, ignore_eos=True)

    with serving(halves.prompts) as address:
        prefills = Prefills(answers, [address])
        requests = [request(*each) for each in requested]
        with monkeypatch.context() as patch, Engine(answers, prefills=prefills) as engine:
            patch.setattr(answers.decoder, "prefill", None)  # it must run none
            found = [each.result(60).token_ids for each in engine.submit_together(requests)]
            stats = engine.stats()
    assert found == wanted
    assert (stats.handed_over, stats.handoffs_failed) == (4, 0)
    assert (stats.images, stats.encoded_images, halves.prompts.reader.read) == (4, 2, 2)
    # With what was read, a prompt can be run here when nobody else does.
    alone = answers.generate(requests)
    assert [each.token_ids for each in alone] == wanted
    with (
        pytest.raises(ApiError, match=r"broke off.*what it reads of an image") as gone,
        blaming("messages"),
    ):
        request([3, marker, 4], [halves.image(3)])
    assert gone.value.status == 503
    monkeypatch.setattr(answers.reader, "request_features", None)
    with pytest.raises(HandoffError, match=r"decodes alone .* reads no image itself"):
        request([3, marker, 4], [halves.image(3)])


def test_each_agrees_with_hugging_face(halves: SubModels) -> None:
    """The one reads images among its prompts; the other decodes text, since it has nothing that reads them."""
    for package in (halves.prefill, halves.decode):
        record = ladder.validate(package, halves.checkpoint, level="tiny", threads=1)
        assert record.passed, record.failures


def test_an_image_is_referenced_by_its_requests(halves: SubModels) -> None:
    """What a client says of an image, a server does not believe: the prefix cache knows features, no names."""
    answers, marker = halves.answers, halves.answers.media_tokens.placeholder
    with serving(halves.prompts) as address:
        prefills = Prefills(answers, [address])
        first, second = (
            answers.request([3, marker, *range(10, 30)], images=[halves.image(seed)])
            for seed in (1, 2)
        )
        assert first.spans
        assert second.spans
        for part in (*first.spans.parts, *second.spans.parts):
            object.__setattr__(part, "digest", b"the same")
        logits = [prefills.run(each.prompt, each.spans).logits for each in (first, second, first)]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    np.testing.assert_allclose(logits[0], logits[2], atol=1e-5)


@pytest.mark.parametrize(
    "spoil", [{"pixel_values": np.zeros((2, 2), np.float32)}, {"other": np.zeros(3, np.float32)}]
)
def test_a_file_that_is_no_image_is_refused_by_the_server(
    halves: SubModels, spoil: dict[str, Any]
) -> None:
    with serving(halves.prompts) as address:
        prefills = Prefills(halves.answers, [address])
        with pytest.raises(HandoffError, match=r"refuses: .*expected"):
            prefills.read(spoil)
        assert prefills.read(halves.image(1))[1]  # it goes on
