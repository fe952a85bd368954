# SPDX-License-Identifier: Apache-2.0
"""A checkpoint -> the model that is trained: with an adapter, or with all its weights; and its tokenizer."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from qeff_zoo.checkpoint import text
from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.checkpoint.config_faults import refusals_of
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.disk.regular import read_text
from qeff_zoo.errors import TrainingError, Translating, UnsupportedModelError
from qeff_zoo.finetuning.config import CLASSIFICATION, CPU, Config
from qeff_zoo.finetuning.devices import Device

_ADAPTER = "adapter_config.json"
_ALL = ("all-linear",)
_LENGTH = 1024  # tokens of a row, of models that read any number


def open_base(config: Config) -> Checkpoint:
    """Open the checkpoint to train, whose weights are not yet fetched.

    Raises:
        CheckpointError: There is none, or it cannot be used.
        UnsupportedModelError: The checkpoint is quantized, or needs code of its own.
        TrainingError: The model has fewer positions than requested.
    """
    checkpoint = open_checkpoint(config.model_name, revision=config.revision)
    if checkpoint.quantization:
        raise UnsupportedModelError(
            f"{checkpoint.name!r} is quantized, with {checkpoint.method!r}. Expected a checkpoint of floats to train. "
            "Give the one it was made from."
        )
    if checkpoint.needs_remote_code:
        raise UnsupportedModelError(
            f"{checkpoint.name!r} needs code of its own, which is never run. Expected an architecture of transformers. "
            "Give another checkpoint."
        )
    longest = positions_of(checkpoint.config)
    if longest and config.max_length > longest:
        raise TrainingError(
            f"max_length is {config.max_length}, and {checkpoint.name!r} reads {longest} tokens. Expected that many at "
            f"most. Give --max-length {longest}."
        )
    if config.from_peft_checkpoint and not (Path(config.from_peft_checkpoint) / _ADAPTER).is_file():
        raise TrainingError(
            f"There is no adapter in {config.from_peft_checkpoint!r}. Expected a folder with {_ADAPTER}. Correct the "
            "path."
        )
    return checkpoint


def with_length(config: Config, checkpoint: Checkpoint) -> Config:
    """Fill in the number of tokens of a row from the model, if the config leaves it open."""
    longest = positions_of(checkpoint.config) or _LENGTH
    return config if config.max_length else replace(config, max_length=longest)


def read_tokenizer(config: Config, checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Read the tokenizer, which can pad.

    Raises:
        TrainingError: No tokenizer maps tokens to characters, or none has a token for padding.
    """
    folder = config.tokenizer_name or str(checkpoint.folder)
    text.require_bounded(Path(folder), folder)

    def refusal(
        error: BaseException,
    ) -> TrainingError:  # transformers and tokenizers raise anything
        return TrainingError(
            f"Cannot read a tokenizer in {folder!r}: {' '.join(str(error).split())[:200]}. Expected tokenizer.json. "
            "Give --tokenizer-name."
        )

    with Translating(refusal):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False
        )
    if not tokenizer.is_fast:
        raise TrainingError(
            f"The tokenizer in {folder!r} does not say which characters a token is of. Expected one with a "
            "tokenizer.json. Convert it, and give --tokenizer-name."
        )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise TrainingError(
                f"The tokenizer in {folder!r} has neither a padding nor an EOS token. Expected one of them. Name it in "
                "tokenizer_config.json."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load(
    config: Config,
    checkpoint: Checkpoint,
    tokenizer: PreTrainedTokenizerBase,
    device: Device,
    labels: Sequence[str] = (),
) -> PreTrainedModel | PeftModel:
    """Load a model to train.

    Args:
        config: Config of the run.
        checkpoint: Fetched.
        tokenizer: Tokenizer of the model.
        device: Device of the training.
        labels: Classes of a classifier, in order.

    Raises:
        TrainingError: The adapter does not fit.
    """
    set_seed(
        config.seed
    )  # what is not in the checkpoint is drawn: an adapter, or a classifier's output
    kind: type[AutoModelForCausalLM | AutoModelForSequenceClassification] = AutoModelForCausalLM
    facts = {}
    if config.task_mode == CLASSIFICATION:
        kind = AutoModelForSequenceClassification
        facts = {
            "id2label": dict(enumerate(labels)),
            "label2id": {label: number for number, label in enumerate(labels)},
            "ignore_mismatched_sizes": True,  # of another number of labels
        }
    # Weights that are not trained need no more bits than the forward pass has.
    half = config.use_peft and device.kind != CPU and device.autocast
    with refusals_of(checkpoint.config):
        model: PreTrainedModel = kind.from_pretrained(
            checkpoint.folder,
            dtype=device.autocast if half else torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            **facts,
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    model.name_or_path = str(
        checkpoint.folder
    )  # by an id, peft would ask the Hub at each checkpoint
    if not config.use_peft:
        return model
    if config.from_peft_checkpoint:
        return _continued(model, config.from_peft_checkpoint)
    return _adapted(model, config, checkpoint)


def _adapted(model: PreTrainedModel, config: Config, checkpoint: Checkpoint) -> PeftModel:
    """Give a model an adapter that changes nothing yet."""
    targets = config.target_modules
    absent = [] if targets == _ALL else [target for target in targets if not _named(model, target)]
    head = model.get_output_embeddings()
    if head is not None and any(head in _named(model, target) for target in targets):
        raise TrainingError(
            f"target_modules has the output matrix of {checkpoint.name!r}. Expected other linear layers: the loss is "
            "computed from that matrix as it is, and its adapter would never learn. Change --target-modules."
        )
    classifying = config.task_mode == CLASSIFICATION
    try:
        if absent:
            raise ValueError(f"no module is called {', '.join(map(repr, absent))}")  # noqa: TRY301
        lora = LoraConfig(
            task_type=TaskType.SEQ_CLS if classifying else TaskType.CAUSAL_LM,
            r=config.lora_r,
            lora_alpha=config.lora_alpha,
            lora_dropout=config.lora_dropout,
            target_modules=targets[0] if targets == _ALL else list(targets),
            revision=checkpoint.revision,
            **config.peft_options,
        )
        adapted = get_peft_model(model, lora)
    except (TypeError, ValueError) as error:
        linear = sorted(
            {
                name.rpartition(".")[2]
                for name, module in model.named_modules()
                if isinstance(module, torch.nn.Linear)
                and module is not model.get_output_embeddings()
            }
        )
        raise TrainingError(
            f"{checkpoint.name!r} cannot have this adapter: {' '.join(str(error).split())[:300]}. Expected options of "
            f"peft's LoraConfig, and target modules among its linear layers: {', '.join(linear)}. Change "
            "--target-modules or --peft-options."
        ) from error
    assert isinstance(adapted, PeftModel)
    return adapted


def _named(model: PreTrainedModel, end: str) -> list[torch.nn.Module]:
    """Return the modules whose names end so."""
    return [module for name, module in model.named_modules() if f".{name}".endswith(f".{end}")]


def _continued(model: PreTrainedModel, adapter: str) -> PeftModel:
    """Give a model an adapter that has been trained before."""
    try:
        with warnings.catch_warnings():
            # Of another architecture nothing may be found: that is no adapter to go on from.
            warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
            return PeftModel.from_pretrained(model, adapter, is_trainable=True)
    except (RuntimeError, ValueError, UserWarning) as error:
        raise TrainingError(
            f"The adapter {adapter!r} does not fit {model.name_or_path!r}: {' '.join(str(error).split())[:300]}. "
            "Expected one that was trained on the same model. Change --from-peft-checkpoint or --model-name."
        ) from error


def checkpoint_bytes(model: PreTrainedModel | PeftModel) -> int:
    """Return how long a checkpoint is: what is trained, and two moments of each number."""
    return sum(3 * parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def name_base(adapter: Path, checkpoint: Checkpoint) -> None:
    """Write the Hub id of an adapter's base into its files, in place of a path of this machine."""
    if checkpoint.model_id is None or not (adapter / _ADAPTER).is_file():
        return
    for path in (adapter / _ADAPTER, adapter / "README.md"):
        text = read_text(path)
        for here in (json.dumps(str(checkpoint.folder))[1:-1], str(checkpoint.folder)):
            text = text.replace(here, checkpoint.model_id)
        path.write_text(text, encoding="utf-8")


def merge(model: object, folder: Path) -> None:
    """Write a model whose weights have its adapter in them."""
    assert isinstance(model, PeftModel)
    merged = model.merge_and_unload()
    assert isinstance(merged, PreTrainedModel)
    merged.save_pretrained(folder)
