# SPDX-License-Identifier: Apache-2.0
"""Common functions of text encoder tasks: run, tracing, specialization and validation.

IN   input_ids (batch_size, seq_len) i64         `pad_token_id` for padding
     attention_mask (batch_size, seq_len) i64    1 for a token
     [token_type_ids (batch_size, seq_len) i64]  1 for the second text of a pair
     [pooling_mask (batch_size, seq_len) i64]    1 for a token that is pooled, for models that do not pool their prompts
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from qeff_zoo.contract import Task, Tracing, lazy, named
from qeff_zoo.contract.commands import PROMPTS, Commands
from qeff_zoo.recipe import ENCODER_SHAPES, Shape

_SERVE_PATHS = (
    *(
        f"{api}/{name}"
        for api in ("", "/v1")
        for name in ("classify", "pooling", "rerank", "score")
    ),
    *("/v1/embeddings", "/embed", "/embed_all", "/embed_sparse", "/similarity", "/predict"),
    *("/v1/embed", "/v2/embed", "/v2/rerank"),
)
_BATCH, _SEQ = 2, 6  # example sizes: at least 2, or torch.export specializes


def run_once(model: Any, choices: int | None = None) -> None:
    """Run the model without any computation.

    Args:
        model: Hugging Face model.
        choices: Number of texts that a row of its inputs has; None for inputs without choices.
    """
    import torch

    from qeff_zoo.export.uncomputed import uncomputed

    model.config.use_cache = False  # of a decoder
    with uncomputed():
        shape = (_BATCH, _SEQ) if choices is None else (_BATCH, choices, _SEQ)
        tokens = torch.ones(shape, dtype=torch.long)
        model(input_ids=tokens, attention_mask=tokens.clone())


def describe(
    model: Any, module: Any, output: str, *, token_types: bool = False, further: Sequence[str] = ()
) -> Tracing:
    """Describe how to trace a wrapped model: example inputs, names and symbols.

    Args:
        model: Hugging Face model.
        module: Module around the model; takes the inputs by name.
        output: Name of its output.
        token_types: Whether the module takes `token_type_ids`.
        further: Names of further inputs, (batch_size, seq_len) each.
    """
    import torch
    from torch.export import Dim

    model.config.use_cache = False
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if token_types else [])]
    names += further
    # Learned positions limit the sequence length, which torch.export requires.
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    batch, seq = Dim("batch_size", min=2), Dim("seq_len", min=2, max=longest)
    return Tracing(
        module=module.eval(),
        inputs={name: torch.ones(_BATCH, _SEQ, dtype=torch.long) for name in names},
        dynamic_shapes={name: {0: batch, 1: seq} for name in names},
        input_names=names,
        output_names=[output],
    )


def takes_token_types(model: Any) -> bool:
    """Return whether a model separates the second text of a pair from the first by token types."""
    types = getattr(model.config.get_text_config(), "type_vocab_size", None) or 0
    return types > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


def task_of(
    *,
    noun: str,
    verb: str,
    options: Sequence[str] = (),
    reference: str = "TextReference",
    probe: Callable[[Any], Any] = run_once,
    **declared: Any,
) -> Task:
    """Return a task of text encoders, with the fields that all of them share.

    Args:
        noun: Name of its specializations.
        verb: Class of `verbs` that `run` calls.
        options: Options of `run` besides prompts and adapter.
        reference: Class of `reference` that runs transformers' model.
        probe: Function that runs a model once without any computation.
        **declared: Fields of `Task` of its own.
    """
    return Task(
        role="encoder",
        shapes=ENCODER_SHAPES,
        probe=probe,
        specializations=specializations(noun),
        trial=lazy("qeff_zoo.tasks.encoders.trial:EncoderTrial"),
        reference=lazy(f"qeff_zoo.tasks.encoders.reference:{reference}"),
        commands=Commands(
            run=lazy(f"qeff_zoo.tasks.encoders.verbs:{verb}"),
            run_options=(*PROMPTS, "adapter", *options),
            serve=lazy("qeff_zoo.tasks.encoders.service:TextEncoding"),
            serve_paths=_SERVE_PATHS,
        ),
        stages=lazy("qeff_zoo.validation.trial.cases:encoder_stages"),
        **declared,
    )


def specializations(name: str) -> Callable[[Shape], list[dict[str, Any]]]:
    """Return a function that returns a specialization for each sequence length.

    Args:
        name: Name of the specializations.
    """
    return lambda shape: named(
        name, [{"batch_size": shape.batch_size, "seq_len": seq_len} for seq_len in shape.seq_lens]
    )
