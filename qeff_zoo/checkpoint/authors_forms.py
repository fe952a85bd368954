# SPDX-License-Identifier: Apache-2.0
"""Published checkpoints whose files are for their authors' own code, and the same weights in transformers' form."""

import re

#: Names of such checkpoints, and those of transformers' form, in which groups of the name are filled in.
_FORMS = {
    r"AIDC-AI/(Ovis2-\d+B)": r"thisisiron/\1-hf",
    r"DAMO-NLP-SG/(VideoLLaMA3-\w+?)(-Image)?": r"lkhl/\1-Image-HF",
    r"LanguageBind/Video-LLaVA-7B": r"LanguageBind/Video-LLaVA-7B-hf",
    r"allenai/(OLMo-[17]B)": r"allenai/\1-hf",
    r"deepseek-ai/(deepseek-vl-[\w.]+-(?:base|chat))": r"deepseek-community/\1",
    r"deepseek-ai/(Janus-(?:Pro-)?[\w.]+)": r"deepseek-community/\1",
    r"liuhaotian/llava-v(1\.[56])-(\w+)-(\w+)": r"llava-hf/llava-v\1-\2-\3-hf",
    r"liuhaotian/llava-v1\.5-(7b|13b)": r"llava-hf/llava-1.5-\1-hf",
    r"lmms-lab/(llava-onevision-qwen2-[\w.]+-(?:ov|si))": r"llava-hf/\1-hf",
    r"lmms-lab/(LLaVA-NeXT-Video-(?:7B|34B))(?:-DPO)?": r"llava-hf/\1-hf",
    r"microsoft/(Florence-2-\w+(?:-ft)?)": r"florence-community/\1",
    r"mistralai/Pixtral-12B-2409": r"mistral-community/pixtral-12b",
    r"state-spaces/(mamba-[\w.]+)": r"state-spaces/\1-hf",
    r"stepfun-ai/GOT-OCR2_0": r"stepfun-ai/GOT-OCR-2.0-hf",
}


def converted(name: str) -> str | None:
    """Return the name of the checkpoint in transformers' form, for one in its authors' own; None for others.

    Args:
        name: Name of a checkpoint on the Hub, or of a folder, which may have the last part of that name.
    """
    for pattern, other in _FORMS.items():
        last = pattern.partition("/")[2]
        found = re.fullmatch(pattern, name) or re.fullmatch(last, name)
        if found:
            return found.expand(other)
    return None
