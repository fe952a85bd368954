# SPDX-License-Identifier: Apache-2.0
"""What several tests of text2text and others use."""

import torch


def texts(rows: int, width: int, least: int, seed: int) -> torch.Tensor:
    return torch.randint(least, 200, (rows, width), generator=torch.Generator().manual_seed(seed))


#: Calls: of each row, which of its tokens; the rows are never at the same place, and padding is behind the shorter.
SPANS = [((0, 4), (0, 2)), ((4, 5), (2, 5)), ((5, 6), (5, 6)), ((6, 7), (6, 7))]
