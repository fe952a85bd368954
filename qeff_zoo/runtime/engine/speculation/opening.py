# SPDX-License-Identifier: Apache-2.0
"""Opening of speculative decoding: a session and its draft source in, a `Speculation` out, or an error."""

from dataclasses import replace
from functools import partial

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoding.decoder import DRAFTED, Decoder
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.engine.speculation import (
    EXACT,
    HEADS,
    LOOKUP,
    REJECTION,
    Acceptance,
    Own,
    Speculation,
)
from qeff_zoo.runtime.engine.speculation.assistant import Assistant, AssistantDrafter
from qeff_zoo.runtime.engine.speculation.block import Block, BlockDrafter
from qeff_zoo.runtime.engine.speculation.costs import Costs, measure
from qeff_zoo.runtime.engine.speculation.draft_model import DraftModel, ModelDrafter
from qeff_zoo.runtime.engine.speculation.heads import Heads, HeadsDrafter, HeadsWithin
from qeff_zoo.runtime.engine.speculation.layer import Layer, LayerDrafter
from qeff_zoo.runtime.engine.speculation.lookup import PromptLookup
from qeff_zoo.runtime.engine.text_generation import TextGenerationSession
from qeff_zoo.runtime.program import Program


def drafting_by(
    program: Program, decoder: Decoder
) -> Block | Layer | Assistant | Heads | HeadsWithin:
    """Return the drafter of a package's program: layers with states, an assistant at a position, or heads.

    Args:
        program: Opened program; that of the decoder if it has the draft heads.
        decoder: Decoder of the package.
    """
    if program is decoder.program:
        return HeadsWithin(decoder.heads)
    if program.states:
        return Layer(program) if DRAFTED in program.outputs else Block(program)
    return Assistant(program, decoder) if "position_ids" in program.inputs else Heads(program)


def speculation_of(
    session: TextGenerationSession,
    drafts: TextGenerationSession | Program | Own,
    acceptance: Acceptance = EXACT,
) -> Speculation:
    """Return the speculative decoding of a session, with measured costs of calls.

    Args:
        session: Idle session.
        drafts: An idle session of a smaller model, which is then reserved for drafts; the package's program of draft
            heads, draft layer or assistant; the session's program if it has the heads; or "lookup".
        acceptance: Acceptance rule for a draft model's tokens: if the request's sample is the same, or with
            probability min(1, p/q), for which drafts are sampled by the request's parameters.

    Raises:
        GenerationError: If the package cannot check drafts, or the two packages have different vocabularies.
    """
    _check(session)
    most = session.decoder.sizes.num_speculative_tokens[-1]
    if acceptance == REJECTION and not isinstance(drafts, TextGenerationSession):
        name = LOOKUP if drafts == LOOKUP else HEADS
        raise GenerationError(
            f"Acceptance {REJECTION!r} is for drafts that a model draws, and {name!r} draws none: both ways accept "
            f"the same of them. Expected {EXACT!r}, or the package of a smaller model. Leave the acceptance out."
        )
    if drafts == LOOKUP:
        costs = measure(session.decoder, most)
        return Speculation(most=most, drafter=lambda _: PromptLookup(costs))
    if not isinstance(drafts, TextGenerationSession):
        assert not isinstance(drafts, str)
        if drafts is not session.decoder.program:
            _check_read(session, drafts)
        own, costs = drafting_by(drafts, session.decoder), measure(session.decoder, most)
        if isinstance(own, Heads | HeadsWithin):
            costs = replace(costs, beginning=own.measure())
            return Speculation(most=most, drafter=lambda _: HeadsDrafter(own, costs))
        once, each = (own.measure(), 0.0) if isinstance(own, Block) else (0.0, own.measure())
        costs = replace(costs, beginning=once, drafting=each)
        return Speculation(most=most, drafter=lambda _: drafter_of(own, costs))
    _check_draft(session, drafts)
    model = DraftModel(drafts.decoder, session.decoder.vocab_size)
    costs = replace(measure(session.decoder, most), drafting=model.measure())
    return Speculation(most=most, drafter=partial(_model_drafter, model, costs, acceptance))


def drafter_of(drafts: Layer | Assistant, costs: Costs) -> LayerDrafter | AssistantDrafter:
    """Return the drafter of one request that drafts token by token, or a block."""
    if isinstance(drafts, Block):
        return BlockDrafter(drafts, costs)
    if isinstance(drafts, Layer):
        return LayerDrafter(drafts, costs)
    return AssistantDrafter(drafts, costs)


def _model_drafter(
    model: DraftModel, costs: Costs, acceptance: Acceptance, request: Request
) -> ModelDrafter:
    draws = acceptance == REJECTION and request.sampling.temperature > 0
    return ModelDrafter(model, costs, request.sampling if draws else None)


def _check(session: TextGenerationSession) -> None:
    decoder, name = session.decoder, str(session.folder)
    decoder.require_logits("drafts to be checked by")
    if not decoder.verifies or not decoder.sizes.num_speculative_tokens:
        raise GenerationError(
            f"Package {name!r} returns the logits of one token a call, so that no drafts can be checked; expected one "
            "that returns several. Build it with --num-speculative-tokens, such as 7."
        )
    if not decoder.only_grows and not decoder.movable:
        kinds = sorted({state.kind for state in decoder.program.states if not state.grows})
        raise GenerationError(
            f"Package {name!r} has {' and '.join(kinds)} states, which its device keeps, so that a rejected token "
            "cannot be taken back. Expected states that grow with the context alone. Run it without speculation."
        )


def _check_read(session: TextGenerationSession, drafts: Program) -> None:
    """Require the outputs and states that a draft program takes: without them nothing would be drafted."""
    decoder = session.decoder
    read = {name for name in drafts.inputs if name.startswith(("past_key.", "past_value."))}
    lacking = sorted(read - {*decoder.states}) or [
        name for name in ("hidden_states",) if name not in decoder.program.outputs
    ]
    if lacking:
        raise GenerationError(
            f"Package {str(session.folder)!r} has no {lacking[0]!r}, from which its own {HEADS!r} draft; expected one "
            "whose model was built together with what drafts for it. Build it again with --draft-heads."
        )


def _check_draft(session: TextGenerationSession, drafts: TextGenerationSession) -> None:
    name, own = str(drafts.folder), str(session.folder)
    drafts.decoder.require_logits("drafting")
    if not drafts.decoder.only_grows and not drafts.decoder.movable:
        raise GenerationError(
            f"The draft package {name!r} has states that its device keeps and that do not grow with the context, "
            "so that a rejected token cannot be taken back. Expected another one. Build it for target 'ort'."
        )
    one, other = session.tokenizer, drafts.tokenizer
    if one is None or other is None:
        same = one is other and session.decoder.vocab_size == drafts.decoder.vocab_size
    else:
        same = one.vocabulary == other.vocabulary
    if not same:
        raise GenerationError(
            f"The draft package {name!r} has another vocabulary than {own!r}: {_tokens(drafts)} tokens, and "
            f"{_tokens(session)} that are not the same. Expected a model of the same family. Draft with one, or with "
            "'lookup'."
        )


def _tokens(session: TextGenerationSession) -> str:
    tokenizer = session.tokenizer
    return f"{tokenizer.vocab_size if tokenizer else session.decoder.vocab_size:,}"
