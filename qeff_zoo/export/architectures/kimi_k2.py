# SPDX-License-Identifier: Apache-2.0
"""Kimi K2 of Moonshot AI: transformers' DeepSeek-V3 under another name, and the tokenizer of its tiktoken file.

Checkpoints name the class of DeepSeek-V3. Their tokenizer is Python code, `TikTokenTokenizer` in tokenization_kimi.py;
here transformers converts the same file, with the pieces of that code: Han characters apart from other letters, and
words in camel case apart from each other.
"""

from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#: Pieces of a text before BPE, as `pat_str` in tokenization_kimi.py.
_PIECES = (
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)


class KimiK2Config(DeepseekV3Config):
    """DeepSeek-V3's config."""

    model_type = "kimi_k2"


class KimiK2ForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek-V3's model."""

    config: KimiK2Config
    # transformers searches this module for a decorator, which is in DeepSeek-V3's.
    _can_set_experts_implementation_cached_value = True


class TikTokenTokenizer(PreTrainedTokenizerFast):
    """Tokenizer of a tiktoken file, in the class name of published files.

    Args:
        tokenizer_object: Backend that transformers makes of the file, with the pieces of another family.
        **kwargs: Settings of tokenizer_config.json.
    """

    vocab_files_names = {"vocab_file": "tiktoken.model"}  # noqa: RUF012

    def __init__(self, tokenizer_object: Tokenizer, **kwargs: Any) -> None:
        tokenizer_object.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex("|".join(_PIECES)), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        super().__init__(tokenizer_object=tokenizer_object, **kwargs)  # type: ignore[no-untyped-call]


def register() -> None:
    """Register config, model, names of weights and tokenizer with transformers."""
    AutoConfig.register("kimi_k2", KimiK2Config, exist_ok=True)
    AutoModelForCausalLM.register(KimiK2Config, KimiK2ForCausalLM, exist_ok=True)
    AutoTokenizer.register(KimiK2Config, fast_tokenizer_class=TikTokenTokenizer, exist_ok=True)
    mapping = get_checkpoint_conversion_mapping("deepseek_v3")
    assert mapping is not None
    register_checkpoint_conversion_mapping("kimi_k2", mapping, overwrite=True)
