# SPDX-License-Identifier: Apache-2.0
"""Why a test of another server does not pass here: one table, by the test's name and its message."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

PASS, MISSING, FOREIGN, FAILS = "pass", "missing", "not applicable", "fails"


@dataclass(frozen=True)
class Rule:
    """Reason of some tests.

    Args:
        suite: Name of the suite.
        result: `MISSING` for a feature that this server lacks, `FOREIGN` for one of the other server alone.
        reason: Reason, as a noun.
        tests: Regular expression of test ids.
        message: Regular expression of their messages, or of the last answer that they printed.
    """

    suite: str
    result: str
    reason: str
    tests: str = ""
    message: str = ""

    def fits(self, suite: str, test: str, message: str) -> bool:
        """Return whether the rule is for a test with a message."""
        return (
            suite == self.suite
            and re.search(self.tests, test) is not None
            and re.search(self.message, message, re.DOTALL) is not None
        )


_TEXT = "text, tokens or labels of the model that a test loads"
_CHOICE = "calls and reasoning that the model of a test chooses by itself"
_UNITS = "unit tests of its own objects, without a server"
#: Messages without a refusal: a refused request depends on no text of a model.
_UNREFUSED = r"\A(?!.*(Error code: 4|Client Error))"
_FORM = "wording, types and statuses of its errors"
_FIELDS = "fields of its own answers: metrics, ids and nulls"
_LONG = "texts beyond the context: truncated here, with a mark"
_OWN_API = "its own API: /completion, /props, /slots, /metrics, /embeddings"
_OWN_FIELDS = "its own fields: timings, __verbose, id_slot, return_progress, aliases"
_L, _V = "llama.cpp", "vLLM"
#: The first that fits counts.
RULES = (
    # --- llama.cpp ------------------------------------------------------------------------------
    Rule(_L, FOREIGN, _TEXT, "test_infill_with", "match_regex"),
    Rule(
        _L,
        FOREIGN,
        _OWN_API,
        message=r"POST /completion\b|GET /(props|slots|metrics)\b",
    ),
    Rule(
        _L,
        FOREIGN,
        _OWN_API,
        "test_(metrics|kv_keep_only_active|ignore_eos)|parallel_slots|test_server_slots"
        "|test_correct_api_key",
    ),
    Rule(_L, FOREIGN, _OWN_FIELDS, message=r"timings|verbose|id_slot|return_progress|'aliases'"),
    Rule(_L, FOREIGN, _OWN_FIELDS, "test_return_progress|llama_telemetry"),  # ignored, not refused
    Rule(
        _L,
        MISSING,
        "its forms of one text: tokens and words together, and objects",
        "test_embedding_(mixed_input|content)",
        '"input"',
    ),
    Rule(
        _L,
        FOREIGN,
        "pooling by a flag of its server: by the package here",
        "test_embedding_pooling_none",
    ),
    Rule(_L, FOREIGN, _LONG, "test_embedding_error_prompt_too_long"),
    Rule(
        _L,
        FOREIGN,
        "dates for templates that transformers does not give them",
        "test_date_inside_prompt",
        'Expected today\'s date|"messages"',
    ),
    Rule(
        _L,
        FOREIGN,
        "its templates by name: the package's own here",
        r"test_(apply_chat_template|chat_template)",
    ),
    Rule(
        _L,
        FOREIGN,
        "paths without /v1, several addresses of a server, files of its page",
        "openai_library_correct_api_key|multiple_addresses|static_assets",
    ),
    Rule(_L, FOREIGN, "its rules for origins, which are refused by default here", "test_cors"),
    Rule(_L, FOREIGN, "images on the server's disk", "test_local_media_file"),
    Rule(
        _L,
        FOREIGN,
        _FORM,
        message=r"exceed_context_size_error|assert 400 == 500|assert 4\d\d == 501",
    ),
    Rule(
        _L,
        FOREIGN,
        "empty chats, which it accepts, and two answers in turn, which it refuses",
        "test_anthropic_empty_messages|test_invalid_chat_completion_req",
    ),
    Rule(_L, FOREIGN, "files of the Hub", message=r"huggingface\.co"),
    Rule(
        _L,
        FOREIGN,
        "a longer context than that of the small model",
        message=r"context_length_exceeded.*2,048|expected at most 2,048|The prompt has 2,4",
    ),
    Rule(
        _L,
        FOREIGN,
        _CHOICE,
        "thinking_with_reasoning_model|thoughts|hello_world|weather|calc_result",
        "Expected |Should have |expected ",
    ),
    Rule(
        _L,
        FOREIGN,
        "its first and last chunks, which have no text; OpenAI's first has an empty one",
        message="'content' not in|assert '' is None",
    ),
    Rule(
        _L,
        FOREIGN,
        _TEXT,
        r"test_chat_completion(_stream)?\[|openai_library|test_rerank|cached_tokens"
        r"|test_tokenize_with_bos|test_completion_with_response_format",
        r"assert \d+ == \d+|match_regex|Unexpected output",
    ),
    # --- vLLM -----------------------------------------------------------------------------------
    Rule(
        _V,
        FOREIGN,
        "built-in tools of gpt-oss: code, search, servers of MCP",
        message=r"tools\[0\]\.type' is '",
    ),
    Rule(
        _V,
        FOREIGN,
        _UNITS,
        "messages_conversion|TestHarmonyToResponseOutput|test_init_tool_server|TestMCPToolServerUnit",
    ),
    Rule(_V, MISSING, "Cohere's /v2/embed of images", "cohere_online_vision"),
    Rule(
        _V,
        FOREIGN,
        _FORM,
        "not_supported|unsupported_input_type|_valid|error|invalid|non_integer|vocab|seed|negative|empty|store",
        r"BadRequestError'|Regex pattern|literal_error|Unsupported input_type|non-negative integer"
        r"|'bad2' in|_than_equal' in|Invalid or corrupted audio",
    ),
    Rule(_V, FOREIGN, _FORM, "classify/test_online.py::test_(score|rerank)", "'detail'"),
    Rule(
        _V,
        MISSING,
        "several chats in one request, /v1/chat/completions/batch",
        "batched_chat_completions",
    ),
    Rule(
        _V,
        MISSING,
        "embeddings, scores and labels of images in messages and lists",
        "pooling/.*(vision|image)",
    ),
    Rule(_V, FOREIGN, _TEXT, "pooling/(embed|classify)/test_online.py::test_chat_request"),
    Rule(_V, FOREIGN, _UNITS, r"late_interaction_serving\.py|test_factories"),
    Rule(_V, FOREIGN, _FORM, "test_(embed|pooling)_not_supported"),
    Rule(_V, FOREIGN, "files of the Hub", r"late_interaction_online\.py", r"huggingface\.co"),
    Rule(_V, FOREIGN, _TEXT, r"late_interaction_online\.py::test_token_embed"),
    Rule(_V, FOREIGN, _FIELDS, "test_pooling_token_embed", "pooling-client"),
    Rule(
        _V,
        MISSING,
        "embeddings of tokens at /v1/embeddings, and late chunking: those of parts of a text",
        "late_chunking|token_embed|without_chunking",
    ),
    Rule(
        _V,
        MISSING,
        "pooled vectors in bytes, and in other types and byte orders",
        "pooling/.*(embed_dtype|base64|bytes|params_not_supported|endianness)",
    ),
    Rule(
        _V,
        MISSING,
        "streams of responses in the background",
        "responses/",
        "'background' and 'stream'",
    ),
    Rule(
        _V,
        MISSING,
        "embeddings as they are before normalization: as the package was built here",
        "embed/test_online.py::test_use_activation",
    ),
    Rule(
        _V,
        MISSING,
        "penalties, top_k, top_p and min_p for recordings",
        "speech_to_text",
        "'(repetition|frequency|presence)_penalty' with|'(top_k|top_p|min_p)' with",
    ),
    Rule(
        _V,
        FOREIGN,
        "languages and translation, which the small model of speech lacks",
        "speech_to_text",
        "Language 'it' is not known|only writes down what is said",
    ),
    Rule(
        _V,
        FOREIGN,
        "its streams and texts of recordings: chunks of chats, and JSON for text, unlike OpenAI's",
        "speech_to_text",
        "'stream_(include|continuous)_usage|'choices'|JSONDecodeError|Expecting value",
    ),
    Rule(
        _V,
        MISSING,
        "/v1/audio for models that chat about recordings",
        "speech_to_text",
        "There is no POST /v1/audio",
    ),
    Rule(
        _V,
        MISSING,
        "log-probabilities of the whole vocabulary, -1, which vLLM gives by a flag",
        message="logprobs' is -1",
    ),
    Rule(_V, MISSING, "its new /v1/decisions", "decisions_e2e"),
    Rule(_V, FOREIGN, "its prompt embeddings", "prompt_embeds"),
    Rule(
        _V,
        FOREIGN,
        "its own parameters: logprob_token_ids, beam search, cache_salt, tokens as ids, languages",
        message="logprob_token_ids|beam_search|cache_salt|'kv_|as_token_ids|lang_code|watermark|response_messages"
        "|'padding' with",
    ),
    Rule(
        _V,
        FOREIGN,
        _LONG,
        "max_model_len|_truncation_size|test_truncate_prompt_tokens|long_text",
    ),
    Rule(
        _V,
        FOREIGN,
        "longer contexts",
        message=r"assert 2048 == 8192|expected at most [\d,]+ together",
    ),
    Rule(_V, FOREIGN, "empty texts, which are encoded here", "empty_input_error"),
    Rule(
        _V,
        FOREIGN,
        _FIELDS,
        message=r"isinstance\(None, dict\)|attribute 'prompt_logprobs'|'prompt_token_ids' in|== \{'prompt'"
        r"|'content': ",
    ),
    Rule(_V, FOREIGN, "reward models with scores of tokens", "pooling/reward"),
    Rule(
        _V,
        FOREIGN,
        "flags, metrics and operation of its server",
        "force_include_usage|root_path|middleware|test_basic.py::test_(show|server|health)|test_metrics"
        "|return_tokens_as_ids",
    ),
    Rule(
        _V,
        FOREIGN,
        "its own objects, fixtures and environment",
        message=r"has no attribute|'NoneType' and 'int'|is not callable|run_mteb|JSON serializable|accelerator"
        r"|is not iterable|is not subscriptable|fixture|await"
        r"|huggingface\.co|not supported between|_io\.|BaseException type|local_asset|hf_model",
    ),
    Rule(
        _V,
        FOREIGN,
        _CHOICE,
        "function_tool_use|function_calling|named_tool_use|include_reasoning|thinking_token_budget"
        "|anthropic/|responses/|test_completion_streaming|tool_parsers/|structured_outputs_json"
        "|response_format_json|TestGPTOSS",
        _UNREFUSED,
    ),
    Rule(_V, FOREIGN, _TEXT, "classify/test_online.py::test_completion_request"),  # its vocabulary
    Rule(
        _V,
        FOREIGN,
        _TEXT,
        r"chunked_prompt|test_completion\.py::|test_chat\.py::|return_token_ids|classify/|rerank_api|speech_to_text"
        "|online.py::test_basic|pooling_embed",
        _UNREFUSED,
    ),
)


def result_of(suite: str, row: Mapping[str, str]) -> tuple[str, str]:
    """Return the result of a test, and its reason.

    Args:
        suite: Name of the suite.
        row: Test, outcome, message and last printed text.
    """
    if row["outcome"] in ("passed", "xpassed"):
        return PASS, ""
    if row["outcome"] == "own objects":
        return FOREIGN, _UNITS
    message = f"{row['message']}\n{row['printed']}"
    if row["outcome"] == "skipped":
        return FOREIGN, "skipped by the suite itself"
    for rule in RULES:
        if rule.fits(suite, row["test"], message):
            return rule.result, rule.reason
    return FAILS, " ".join(row["message"].split())[:200]
