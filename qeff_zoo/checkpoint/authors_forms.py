# SPDX-License-Identifier: Apache-2.0
"""Published checkpoints whose files are for their authors' own code, and the same weights in transformers' form."""

import re

#: Names of such checkpoints, and those of transformers' form, in which groups of the name are filled in. Both are of
#: the same weights, and occur in published code; names that only follow the same pattern are not here.
_FORMS = {
    r"AIDC-AI/(Ovis2-[12]B)": r"thisisiron/\1-hf",
    r"DAMO-NLP-SG/(VideoLLaMA3-[27]B-Image)": r"lkhl/\1-HF",
    r"LanguageBind/Video-LLaVA-7B": r"LanguageBind/Video-LLaVA-7B-hf",
    r"allenai/(OLMo-(?:1B|7B|1\.7-7B))": r"allenai/\1-hf",
    r"deepseek-ai/(deepseek-vl-(?:1\.3b|7b)-(?:base|chat))": r"deepseek-community/\1",
    r"deepseek-ai/(Janus-Pro-[17]B)": r"deepseek-community/\1",
    r"liuhaotian/llava-v1\.5-(7b|13b)": r"llava-hf/llava-1.5-\1-hf",
    r"liuhaotian/(llava-v1\.6-(?:mistral-7b|vicuna-7b|vicuna-13b|34b))": r"llava-hf/\1-hf",
    r"lmms-lab/(llava-onevision-qwen2-(?:0\.5b|7b|72b)-(?:ov|si))": r"llava-hf/\1-hf",
    r"lmms-lab/(llava-onevision-qwen2-(?:7b|72b)-ov-chat)": r"llava-hf/\1-hf",
    r"lmms-lab/(llava-onevision-qwen2-72b-ov)-sft": r"llava-hf/\1-hf",
    r"lmms-lab/(LLaVA-NeXT-Video-(?:7B|34B)(?:-DPO)?)": r"llava-hf/\1-hf",
    r"microsoft/(Florence-2-(?:base|large)(?:-ft)?)": r"florence-community/\1",
    r"mistralai/Pixtral-12B-2409": r"mistral-community/pixtral-12b",
    r"state-spaces/(mamba-(?:130m|370m|790m|1\.4b|2\.8b))": r"state-spaces/\1-hf",
    r"(?:stepfun-ai|ucaslcl)/GOT-OCR2_0": r"stepfun-ai/GOT-OCR-2.0-hf",
}


def converted(name: str) -> str | None:
    """Return the name of the checkpoint in transformers' form, for one in its authors' own; None for others.

    Args:
        name: Name of a checkpoint on the Hub, or of a folder, which may have the last part of that name.
    """
    for pattern, other in _FORMS.items():
        last = pattern.partition("/")[2]
        match = re.fullmatch(pattern, name) or re.fullmatch(last, name)
        if match:
            return match.expand(other)
    return None
