# SPDX-License-Identifier: Apache-2.0
"""Codes of the languages that speech models support, and their English names."""

import re
from functools import cache

_NAMES = """
en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese,
tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi, fi finnish,
vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish, hu hungarian, ta tamil,
no norwegian, th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin, mi maori, ml malayalam, cy welsh,
sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian, az azerbaijani, sl slovenian, kn kannada,
et estonian, mk macedonian, br breton, eu basque, is icelandic, hy armenian, ne nepali, mn mongolian, bs bosnian,
kk kazakh, sq albanian, sw swahili, gl galician, mr marathi, pa punjabi, si sinhala, km khmer, sn shona, yo yoruba,
so somali, af afrikaans, oc occitan, ka georgian, be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic,
yi yiddish, lo lao, uz uzbek, fo faroese, ht haitian creole, ps pashto, tk turkmen, nn nynorsk, mt maltese,
sa sanskrit, lb luxembourgish, my myanmar, bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian,
ln lingala, ha hausa, ba bashkir, jw javanese, su sundanese, yue cantonese
"""
#: Alternative names.
_OTHERS = {
    "bokmal": "no",
    "burmese": "my",
    "castilian": "es",
    "flemish": "nl",
    "haitian": "ht",
    "letzeburgesch": "lb",
    "mandarin": "zh",
    "moldavian": "ro",
    "moldovan": "ro",
    "panjabi": "pa",
    "pushto": "ps",
    "sinhalese": "si",
    "valencian": "ca",
}


#: Codes of languages under other codes of a model, and former codes.
_CODES = {"nb": "no", "fil": "tl", "iw": "he", "in": "id", "ji": "yi", "cmn": "zh"}
#: What may follow the language in a tag of BCP 47: a script, a region, or both.
_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z]{4})?(?:[-_](?:[a-z]{2}|[0-9]{3}))?")


@cache
def _names() -> dict[str, str]:
    pairs = (entry.strip().partition(" ") for entry in _NAMES.split(","))
    return {code: name for code, _, name in pairs}


def name_of(code: str) -> str:
    """Return the English name of a language, in lower case; the code of an unknown language."""
    return _names().get(code, code)


def code_of(language: str) -> str:
    """Return the code of a language, given its code, its name, a model's token, or a tag such as "de-DE"."""
    plain = language.strip().strip("<|>").lower()
    by_name = {name: code for code, name in _names().items()}
    known = by_name.get(plain, _OTHERS.get(plain, plain))
    tag = _TAG.fullmatch(known)
    code = _CODES.get(tag[1], tag[1]) if tag else known
    return code if code in _names() else known
