# SPDX-License-Identifier: Apache-2.0
"""Tools, structured output and reasoning of a chat: options of its template, its grammar, and its parser."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from qeff_zoo.runtime import Grammar, TextGenerationSession
from qeff_zoo.runtime.text.chat_output import ChatFormat, prompt_end
from qeff_zoo.runtime.text.chat_output.call_grammar import output_grammar
from qeff_zoo.runtime.text.chat_output.free_grammar import free_grammar, loosened
from qeff_zoo.runtime.text.chat_output.marks import Marks
from qeff_zoo.runtime.text.chat_output.values import check_schema
from qeff_zoo.runtime.text.chat_template import ChatOptions
from qeff_zoo.runtime.text.closed_schemas import closed
from qeff_zoo.runtime.text.template_source import TemplateSource
from qeff_zoo.runtime.text.thinking_budget import ThinkingBudget
from qeff_zoo.serving.answers.chats import Chat
from qeff_zoo.serving.errors import ApiError, blaming, brief
from qeff_zoo.serving.requests.schemas import ChatRequest, NamedTool

#: What holds for calls that a model makes by itself of functions that are not strict: nothing; that the function exists
#: and its arguments are an object; or its schema. vLLM has these levels.
ToolStrictLevel: TypeAlias = Literal["auto", "function", "parameter"]


@dataclass(frozen=True)
class ChatFormats:
    """Formats of a model's chat templates, found at first use, and what holds for outputs in them.

    Args:
        tool_parser: Name of the format of tool calls, "none", or None for the one that a template renders.
        reasoning_parser: Name of the format of reasoning, "none", or None for the one of a template.
        tool_strict_level: Constraint of calls that are not required.
        closes_objects: Whether objects of schemas without `additionalProperties` have no further keys.
    """

    tool_parser: str | None = None
    reasoning_parser: str | None = None
    tool_strict_level: ToolStrictLevel = "auto"
    closes_objects: bool = False
    _known: dict[TemplateSource, ChatFormat] = field(default_factory=dict, compare=False)

    def of(self, source: TemplateSource) -> ChatFormat:
        """Return the format of a template."""
        if source not in self._known:
            self._known[source] = ChatFormat.of(source, self.tool_parser, self.reasoning_parser)
        return self._known[source]


def chat_options(body: ChatRequest) -> ChatOptions:
    """Return the options of the chat template.

    Raises:
        ApiError: Options contradict each other.
    """
    prompts = body.add_generation_prompt and "add_generation_prompt" in body.model_fields_set
    if body.continue_final_message and prompts:
        raise ApiError(
            400,
            "Both 'continue_final_message' and 'add_generation_prompt' are true; expected one. Leave one out.",
            param="continue_final_message",
            code="invalid_value",
        )
    with blaming("chat_template_kwargs"):
        return ChatOptions(
            tools=[tool.as_template_input() for tool in body.offered],
            documents=[one for one in body.documents if isinstance(one, dict)],
            variables=body.chat_template_kwargs,
            reasoning_effort=body.reasoning_effort,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template=body.chat_template,
        )


@dataclass(frozen=True, kw_only=True)
class OutputPlan:
    """Grammar and parser of the outputs of a chat.

    Args:
        grammar: Grammar of the outputs; None for free text.
        chat: Function that returns the prepared chat of requests, by their argument `requests`.
        shown: Added tokens that the text of an output contains as they are.
        thinking: Budget of the reasoning; None for no limit.
    """

    grammar: Grammar | None
    chat: partial[Chat]
    shown: frozenset[int]
    thinking: ThinkingBudget | None = None


def output_plan(
    session: TextGenerationSession,
    body: ChatRequest,
    form: Grammar | None,
    prompt: list[int],
    formats: ChatFormats,
    options: ChatOptions,
) -> OutputPlan:
    """Return the grammar, which is not compiled yet, and the parser of the outputs of a chat.

    Args:
        session: Session of the model.
        body: Body of the request.
        form: Grammar of its structured output; None for free text.
        prompt: Token ids of the prompt.
        formats: Formats of the model.
        options: Options of the chat template.

    Raises:
        ApiError: The tools cannot be used.
    """
    assert session.chat_template is not None
    tokenizer = session.tokenizer
    known = formats.of(session.chat_template.source(options)) if tokenizer else ChatFormat()
    schemas = _schemas(body, known)
    if schemas and formats.closes_objects:
        with blaming("tools", "invalid_schema"):
            schemas = {name: closed(schema) for name, schema in schemas.items()}
    end = prompt_end(tokenizer, prompt) if tokenizer else ""
    chosen = body.tool_choice
    must = bool(schemas) and chosen != "auto"
    several = body.parallel_tool_calls and not isinstance(chosen, NamedTool)
    grammar = form
    if must or (form is not None and (schemas or known.has_parts or known.marks_answers)):
        allowed = schemas
        if schemas and isinstance(chosen, NamedTool):
            allowed = {chosen.function.name: schemas[chosen.function.name]}
        with blaming("tools", "invalid_schema"):
            grammar = output_grammar(
                known.calls,
                known.reasoning,
                known.marks(tokenizer) if tokenizer else Marks({}),
                schemas=allowed,
                thoughts=known.thoughts(end),
                several=several,
                otherwise=None if must else form,
                prompt=end,
            )
    elif strict := schemas and _held(body, known, schemas, formats.tool_strict_level):
        assert known.calls
        with blaming("tools", "invalid_schema"):
            grammar = free_grammar(
                known.calls,
                known.reasoning,
                known.marks(tokenizer) if tokenizer else Marks({}),
                schemas=strict,
                thoughts=known.thoughts(end),
                several=several,
                prompt=end,
            )
    most = None if several else 1
    make = partial(
        known.parser, end, schemas=schemas, most=most, structured=form is not None and not must
    )
    has_parser = make() is not None
    parser: Any = make if has_parser else None
    return OutputPlan(
        grammar=grammar,
        chat=partial(Chat, parser=parser, shows_reasoning=body.include_reasoning),
        shown=known.shown(tokenizer) if tokenizer and has_parser else frozenset(),
        thinking=known.budget(end, body.thinking_token_budget, tokenizer) if tokenizer else None,
    )


def _held(
    body: ChatRequest, known: ChatFormat, schemas: Mapping[str, Any], level: ToolStrictLevel
) -> Mapping[str, Any] | None:
    """Return the schemas that hold for calls which the model need not make; None if nothing holds.

    Args:
        body: Body of the request.
        known: Format of the chat template.
        schemas: Schemas of the functions by name.
        level: Constraint of calls of functions that are not strict.
    """
    strict = {one.function.name for one in body.offered if one.function.strict}
    if level == "parameter":
        strict = {*schemas}
    if (not strict and level == "auto") or known.calls is None:
        return None
    return {
        name: schema if name in strict else loosened(known.calls, schema)
        for name, schema in schemas.items()
    }


def _schemas(body: ChatRequest, known: ChatFormat) -> Mapping[str, Any] | None:
    """Return the schemas of the functions that may be called, by name; None without functions.

    Raises:
        ApiError: The model calls no functions, or the chosen one does not exist.
    """
    schemas = {tool.function.name: tool.function.parameters for tool in body.offered}
    with blaming("tools", "invalid_schema"):
        for schema in schemas.values():
            check_schema(schema)
    chosen = body.tool_choice
    wanted = chosen.function.name if isinstance(chosen, NamedTool) else None
    if (wanted is not None and wanted not in schemas) or (chosen == "required" and not schemas):
        raise ApiError(
            400,
            f"Parameter 'tool_choice' is {brief(wanted or chosen)}, and 'tools' has {brief([*schemas])}; expected a "
            "function of 'tools'. Add it, or choose another.",
            param="tool_choice",
            code="invalid_value",
        )
    if not schemas:
        return None
    if not (known.takes_tools and known.calls):
        lacks = (
            "renders no tools" if not known.takes_tools else "renders calls in an unknown format"
        )
        raise ApiError(
            400,
            f"Model {body.model!r} cannot call the {len(schemas)} functions of 'tools': its chat template {lacks}; "
            "expected a request without them, or another model. Leave them out"
            f"{', or start the server with --tool-parser' if known.takes_tools else ''}.",
            param="tools",
            code="tools_not_supported",
        )
    return schemas
