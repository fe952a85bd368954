# SPDX-License-Identifier: Apache-2.0
"""Packages that run: a tiny checkpoint with random weights and a tokenizer of its own, and the package built of it."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from package_builder import overwrite
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import CONFIG_MAPPING, PreTrainedTokenizerFast

import qeff_zoo
from qeff_zoo import contract, targets
from qeff_zoo.export import architectures
from qeff_zoo.package import Package
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.program import Program
from qeff_zoo.targets.base import OpenOptions
from qeff_zoo.validation import tiny_models


def opened(package: Package) -> Program:
    """Open the one program of a package."""
    (program,) = package.programs
    return targets.find(package.target).open(package, program.role, OpenOptions(threads=1))


BOS, EOS, PAD = "<s>", "</s>", "<pad>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
_NO_UTF8 = "ÀÁõö÷øùúûüýþÿ"  # what a byte-level tokenizer calls bytes that no character has
_TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "a text of words that are there twice or thrice",
]


def checkpoint(
    folder: Path, model_type: str, tiny: int = 0, task: str | None = None, **config: Any
) -> Path:
    """Write a Hugging Face checkpoint of a recipe's tiny config, with random weights.

    Args:
        folder: Made here.
        model_type: Names the recipe.
        tiny: Which of the recipe's configs.
        task: One of the recipe's; None for its own.
        config: Changes to it.
    """
    own = find_recipe(model_type)
    recipe = contract.for_task(own, task or own.task)
    known = tiny_models.config_of(recipe, recipe.tiny[tiny])
    architectures.register(model_type)
    parsed = CONFIG_MAPPING[model_type].from_dict(copy.deepcopy({**known, **config}))
    torch.manual_seed(0)
    model = contract.auto_class(recipe.task, parsed).from_config(parsed, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if (
                parameter.dim() == 1
            ):  # norms and biases: away from one and zero, where a dropped fact does not show
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    _tokenizer(recipe.task, types=getattr(parsed, "type_vocab_size", 1) > 1).save_pretrained(folder)
    return folder


def _tokenizer(task: str, *, types: bool) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer of few tokens: every byte of UTF-8, so that most characters take several."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=257,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(_NO_UTF8)),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    generates = task == "text-generation"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A" if generates else f"{BOS} $A {EOS}",
        pair=f"{BOS} $A {EOS} $B:1 {EOS}:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS)), (EOS, tokenizer.token_to_id(EOS))],
    )
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_input_names=inputs,
    )
    if generates:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def package(source: Path, **choices: Any) -> Package:
    """Build a package that nobody has validated yet.

    Args:
        source: The checkpoint.
        choices: Fields of `qeff_zoo.plan.request.Request`.
    """
    return qeff_zoo.build(source, validate=False, **choices)


def edit_json(path: Path, **changes: Any) -> None:
    """Set members of a JSON file."""
    content = json.loads(path.read_text()) if path.exists() else {}
    overwrite(path, json.dumps({**content, **changes}).encode())
