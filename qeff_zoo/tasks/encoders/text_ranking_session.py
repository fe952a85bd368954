# SPDX-License-Identifier: Apache-2.0
"""Sessions of models that rank texts: pairs in, a score for each out, by the logit of a token or by modules."""

from qeff_zoo.contract import ENCODER_RANKING, TEXT_RANKING
from qeff_zoo.runtime.labels import names_of
from qeff_zoo.tasks.encoders.text_classification_session import TextClassificationSession


class TextRankingSession(TextClassificationSession):
    """An opened package of the task `text-ranking`; see `EncoderSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/Qwen3-Reranker-0.6B")  # doctest: +SKIP
        >>> session.classify([("what is a panda?", "A bear of China.")])[0].score  # doctest: +SKIP
    """

    task = TEXT_RANKING

    def _labels(self, count: int) -> tuple[str, ...]:
        return names_of({}, count)  # those of the configuration are of other heads


class EncoderRankingSession(TextRankingSession):
    """An opened package of the task `encoder-ranking`, whose modules compute the scores of pairs."""

    task = ENCODER_RANKING
