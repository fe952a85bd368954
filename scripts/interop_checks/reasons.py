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


_TEXT = "text of the model that the test loads"
_UNREADY = "output cut at 96 tokens: a small model neither ends nor calls by itself"
_FORM = "wording or type of its error messages"
_L, _V = "llama.cpp", "vLLM"
RULES = (
    # --- llama.cpp ------------------------------------------------------------------------------
    Rule(_L, FOREIGN, "its own API: /completion, /infill, /props, /slots, /metrics", message=r"POST /(completion|infill)\b|GET /(props|slots)\b|no (GET|POST) /metrics"),
    Rule(_L, FOREIGN, "its own API: /completion, /infill, /props, /slots, /metrics", "test_(infill|metrics|kv_keep_only_active|ignore_eos)|completion_parallel_slots|test_server_slots"),
    Rule(_L, FOREIGN, "its own fields: timings, __verbose, id_slot, return_progress, aliases", message=r"timings|__verbose|id_slot|return_progress|'aliases'|'verbose'|\bverbose\b"),
    Rule(_L, FOREIGN, "its own parameters: content of /completions and /embedding, TEI's texts, mixed inputs", r"test_(correct_api_key|embedding_mixed_input|embedding_content|rerank_tei)"),
    Rule(_L, FOREIGN, "its pooling by a flag of the server", "test_embedding_pooling_none"),
    Rule(_L, FOREIGN, "texts beyond the context: truncated here, with a mark", "test_embedding_error_prompt_too_long"),
    Rule(_L, MISSING, "grammar and json_schema as parameters of their own: structured_outputs and response_format here", "test_completion_with_(json_schema|grammar|response_format)"),
    Rule(_L, MISSING, "count of a chat's tokens at /v1/chat/completions/input_tokens: /tokenize here", "token_count"),
    Rule(_L, FOREIGN, "its templates by name, and its variables of templates", r"test_(apply_chat_template|chat_template|date_inside_prompt)|command-r7b.*auto"),
    Rule(_L, FOREIGN, "paths without /v1, several addresses of a server, static files", r"openai_library_correct_api_key|multiple_addresses|no_ui|static_assets|There is no POST /chat"),
    Rule(_L, FOREIGN, "CORS: other origins are refused by default, and with other headers", "test_cors"),
    Rule(_L, FOREIGN, "files of the server's disk as images", "test_local_media_file"),
    Rule(_L, FOREIGN, _FORM, message=r"exceed_context_size_error|assert 400 == 500|assert 4\d\d == 501"),
    Rule(_L, FOREIGN, "empty messages, which its API accepts", "test_anthropic_empty_messages|test_invalid_chat_completion_req"),
    Rule(_L, FOREIGN, "files of the Hub", message="huggingface.co|test-1.jpeg"),
    Rule(_L, FOREIGN, _UNREADY, "thinking_with_reasoning_model|test_thoughts|real_model|test_hello_world|test_weather|test_calc_result|without_tool_call_slow"),
    Rule(_L, FOREIGN, _TEXT, r"test_chat_completion\[|_stream\[|openai_library|test_rerank|cached_tokens|logprobs_stream|test_tokenize_with_bos|test_completion_stream|test_logit_bias"),
    # --- vLLM -----------------------------------------------------------------------------------
    Rule(_V, FOREIGN, "gpt-oss: its built-in tools and its text", "responses/test_harmony|TestGPTOSS|test_openai_tool_parser|test_parsable_context"),
    Rule(_V, MISSING, "Cohere's /v2/embed and /v2/chat", "cohere", r"v2/|404"),
    Rule(_V, MISSING, "several chats in one request: /v1/chat/completions/batch", "batched_chat_completions"),
    Rule(_V, MISSING, "embeddings, scores and pooling of messages and images", r"pooling/.*(chat|conversation|vision|image|late_interaction|data_1|messages)"),
    Rule(_V, MISSING, "/invocations, SageMaker's path", message="/invocations", tests=""),
    Rule(_V, MISSING, "/tokenizer_info, the tokenizer's files", "tokenizer_info", ""),
    Rule(_V, MISSING, "encoding of pooled vectors as bytes or base64, and their types", r"pooling/.*(embed_dtype|base64|bytes|params_not_supported|endianness)"),
    Rule(_V, FOREIGN, _FORM, message=r"BadRequestError'|Regex pattern did not match|literal_error|'bad2' in|TooLong|assert 'Input"),
    Rule(_V, FOREIGN, "texts beyond the context: truncated here, with a mark", "max_model_len"),
    Rule(_V, FOREIGN, "fields of its own answers: metrics, kv_transfer_params, ids and nulls", message=r"isinstance\(None, dict\)|kv_transfer|has no attribute '(id|prompt_logprobs|data)'|'prompt_token_ids' in|KeyError: '(data|results)'"),
    Rule(_V, FOREIGN, "its own parameters: logprob_token_ids, prompt_embeds, use_beam_search, cache_salt", message=r"logprob_token_ids|prompt_embeds|use_beam_search|cache_salt|'kv_|return_tokens_as_token_ids|max_tokens_per_doc"),
    Rule(_V, FOREIGN, "its own objects and environment", message=r"has no attribute '_?\w+'|run_mteb|JSON serializable|accelerator|is not iterable|fixture|huggingface.co|not supported between"),
    Rule(_V, FOREIGN, "flags of its server", r"enable_force_include_usage|root_path|middleware|no_request_id|cors"),
    Rule(_V, FOREIGN, _UNREADY, r"function_tool_use|named_tool_use|include_reasoning|thinking_token_budget|anthropic/|responses/test_simple|test_completion_streaming|granite4|hermes_tool_parser"),
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
        return FOREIGN, "unit tests of its own objects, without a server"
    message = f"{row['message']}\n{row['printed']}"
    if row["outcome"] == "skipped":
        return FOREIGN, "skipped by the suite itself"
    for rule in RULES:
        if rule.fits(suite, row["test"], message):
            return rule.result, rule.reason
    return FAILS, " ".join(row["message"].split())[:200]
