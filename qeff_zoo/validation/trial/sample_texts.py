# SPDX-License-Identifier: Apache-2.0
"""The fixed token sequences that packages are validated on: prose, code, numbers and several scripts."""

import random
from collections.abc import Sequence

from qeff_zoo.runtime.text.tokenizer import Tokenizer

_TEXTS = (
    "The harbour was quiet before the storm. Fishermen pulled their boats high onto the shingle, "
    "tied down the nets, and went home to wait. By midnight the wind had turned to the north-west "
    "and the first of the waves came over the wall, carrying sand, weed and broken timber into "
    "the narrow streets. In the morning the children found a ship's bell lying in the square, green "
    "with age, and nobody could say which of the many wrecks along the coast it had come from.",
    'def merge(left, right):\n    """Merge two sorted lists into one."""\n    result = []\n'
    "    while left and right:\n        source = left if left[0] <= right[0] else right\n"
    "        result.append(source.pop(0))\n    return result + left + right\n\n\n"
    "class Queue:\n    def __init__(self, limit: int = 16) -> None:\n        self.items = []\n"
    "        self.limit = limit\n\n    def push(self, item):\n        if len(self.items) >= self.limit:\n"
    '            raise OverflowError(f"{self.limit} items at most")\n        self.items.append(item)\n',
    "Question: A train leaves at 09:45 and covers 318 km at an average speed of 106 km/h. When does it "
    "arrive? Answer: 318 / 106 = 3, so it travels for three hours and arrives at 12:45. Question: What "
    "is 17 times 23? Answer: 17 * 20 = 340 and 17 * 3 = 51, which makes 391. Question: How many "
    "prime numbers are there below 30? Answer: 2, 3, 5, 7, 11, 13, 17, 19, 23 and 29, that is ten.",
    "Der Fluss trat in jenem Frühjahr zweimal über die Ufer. Les habitants du village se souviennent "
    "encore de l'hiver où la neige couvrait les toits. El tren de la mañana llegó con dos horas de "
    "retraso. 天空很蓝。孩子们在河边放风筝。 Вечером на площади играла музыка. 山の上に小さな神社があります。 "
    "كان البحر هادئا في ذلك الصباح. 🌊🚢 and then everyone went home, tired but content.",
)


def draw(
    lengths: Sequence[int], tokenizer: Tokenizer | None, vocab_size: int, *, whole: bool = False
) -> list[list[int]]:
    """Return one sequence of token ids per length, always the same ones.

    Args:
        lengths: Numbers of tokens.
        tokenizer: The package's. Ids are random without one, and where it makes too few tokens of the texts.
        vocab_size: Vocabulary of the model.
        whole: End each sequence as the tokenizer ends a text, instead of in the middle of it.
    """
    sequences = []
    for number, length in enumerate(lengths):
        ids = [] if tokenizer is None else _text(number, length, tokenizer, whole)
        # A vocabulary of other texts, such as of nucleotides, has few tokens of these or none.
        spare = random.Random(number).choices(range(vocab_size), k=length - len(ids))
        middle = len(ids) // 2  # between the tokens that begin and end a text
        sequences.append([*ids[:middle], *spare, *ids[middle:]])
    return sequences


def _text(number: int, length: int, tokenizer: Tokenizer, whole: bool) -> list[int]:
    """Take texts in turn, from another one on for each sequence, as often as it takes."""
    start = number % len(_TEXTS)
    turned = " ".join((*_TEXTS[start:], *_TEXTS[:start]))
    copies = 1 + length // max(1, len(tokenizer.encode(turned)))
    text = " ".join([turned] * copies)
    return tokenizer.encode_batch([text], length)[0] if whole else tokenizer.encode(text)[:length]
