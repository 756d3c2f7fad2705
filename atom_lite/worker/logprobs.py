"""Log probabilities out of the model's own logits: of given tokens, and of the likeliest beside.

Both kinds that a client may ask for come from here: of drawn tokens (`KeptLogits`, for the rows of
a step that report) and of prompt tokens (`prompt_scores`). Raw means before anything else touches
the logits. The sampler changes them in place, so the rows that report are copied first; a step in
which no row reports pays nothing.

The likeliest are found by block maxima (`blocked_logits`), never by sorting a vocabulary, except
for a row that asks for more of them than there are blocks. The sum of exponentials is taken in
float32 within a block and in float64 over the blocks: the result is off by about 1e-6.

Runs on the last stage, on the CPU or a GPU. It must not change the logits that it is given.

Measured (one core of an AMD Zen 3, CPU milliseconds, 49152 ids): the 20 likeliest of 32 rows 5, of
which the sum of exponentials 2.4, the likeliest 0.8, the copy and block maxima 0.5; one row 0.8. Of
tokens drawn at random, not by a model, 15: their rank is looked up in every block. 128 prompt rows
take 19 for likely tokens and 100 for random ones; making their logits takes 98.

Shapes: R rows, V vocabulary, N blocks of 64 ids, K the most of the likeliest that a row asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch

from atom_lite.messages import Logprobs
from atom_lite.worker.blocked_logits import BLOCK, BlockedLogits, block_logits, block_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from atom_lite.messages import SamplingParams

# Rows that want nearly the whole vocabulary are sorted this many at a time: 16 MB for 49152 ids.
WIDE_ROWS = 16


class KeptLogits:
    """The raw logits of the rows that report, safe from the sampler.

    Args:
        logits: [R, V] float32 of all rows that draw a token; read.
        rows: which of them report.
        counts: how many of the likeliest each of those wants.
    """

    def __init__(self, logits: Tensor, rows: list[int], counts: list[int]) -> None:
        blocked = block_logits(logits)
        self._blocked = blocked.copy() if len(rows) == len(logits) else blocked.select(rows)
        self._rows = rows
        self._counts = counts

    @classmethod
    def of(cls, logits: Tensor, sampling: Sequence[SamplingParams]) -> Self | None:
        """Keep what is needed; None when no row reports."""
        asked = [(row, params.num_logprobs) for row, params in enumerate(sampling)]
        reporting = [(row, count) for row, count in asked if count is not None]
        if not reporting:
            return None
        return cls(logits, [row for row, _ in reporting], [count for _, count in reporting])

    def report(self, token_ids: Sequence[int]) -> dict[int, Logprobs]:
        """What the rows that report have to say, by row.

        Args:
            token_ids: drawn, one for each of the R rows.
        """
        drawn = [token_ids[row] for row in self._rows]
        return dict(zip(self._rows, _score(self._blocked, drawn, self._counts), strict=True))


def score_tokens(logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[Logprobs]:
    """Log probabilities of one token per row and of the likeliest.

    Args:
        logits: [R, V] float32, read.
        token_ids: R ids.
        counts: how many of the likeliest each row wants; V and more for all.
    """
    return _score(block_logits(logits), token_ids, counts)


def _score(
    blocked: BlockedLogits, token_ids: Sequence[int], counts: Sequence[int]
) -> list[Logprobs]:
    num_blocks = blocked.block_maxima.shape[1]
    # The padding of the last block is never among the likeliest.
    wanted = [min(count, num_blocks * BLOCK) for count in counts]
    narrow = [row for row, count in enumerate(wanted) if count <= num_blocks]
    wide = [row for row, count in enumerate(wanted) if count > num_blocks]
    groups = [narrow] if narrow else []
    groups += [wide[i : i + WIDE_ROWS] for i in range(0, len(wide), WIDE_ROWS)]
    scores: dict[int, Logprobs] = {}
    for rows in groups:
        ids = torch.tensor([token_ids[row] for row in rows], device=blocked.values.device)
        group = _score_group(blocked.select(rows), ids, [wanted[row] for row in rows])
        scores.update(zip(rows, group, strict=True))
    return [scores[row] for row in range(len(wanted))]


def _score_group(blocked: BlockedLogits, token_ids: Tensor, counts: list[int]) -> list[Logprobs]:
    rows = torch.arange(len(counts), device=token_ids.device)
    own = blocked.values[rows, token_ids // BLOCK, token_ids % BLOCK]
    ranks = _ranks(blocked, token_ids, own)
    top_ids, top_values = _likeliest(blocked, counts)
    ids = torch.cat([token_ids.unsqueeze(1), top_ids], 1)
    values = torch.cat([own.unsqueeze(1), top_values], 1)
    logprobs = values.double() - _log_sum_exp(blocked).unsqueeze(1)
    # A row with fewer finite logits than it asks for gets as many as there are.
    found = (top_values > -torch.inf).sum(1).tolist()
    id_array = ids.cpu().numpy().astype("<i4")
    logprob_array = logprobs.float().cpu().numpy().astype("<f4", copy=False)
    return [
        Logprobs(
            token_ids=id_array[row, : 1 + num].tobytes(),
            logprobs=logprob_array[row, : 1 + num].tobytes(),
            rank=rank,
        )
        for row, (num, rank) in enumerate(
            zip(map(min, counts, found), ranks.tolist(), strict=True),
        )
    ]


def _log_sum_exp(blocked: BlockedLogits) -> Tensor:
    """The logarithm of each row's sum of exponentials, [R] float64."""
    weights = (blocked.values - blocked.row_maxima[:, None, None]).exp_()
    sums = block_sums(weights).sum(1, dtype=torch.float64)
    return blocked.row_maxima.double() + sums.log()


def _ranks(blocked: BlockedLogits, token_ids: Tensor, own: Tensor) -> Tensor:
    """The place of each row's token among all, from 1; [R] int64.

    Only blocks whose maximum reaches the token's logit can hold a likelier one.
    """
    rows, blocks = (blocked.block_maxima >= own.unsqueeze(1)).nonzero(as_tuple=True)
    values = blocked.values[rows, blocks]  # [blocks hit, BLOCK]
    mine = own[rows].unsqueeze(1)
    within = torch.arange(BLOCK, device=own.device)
    lower = within < (token_ids[rows] - blocks * BLOCK).unsqueeze(1)
    ahead = ((values > mine) | ((values == mine) & lower)).sum(1)
    return torch.ones_like(token_ids).index_add_(0, rows, ahead)


def _likeliest(blocked: BlockedLogits, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Ids [R, K] and logits [R, K], best first, the lower id first among equals; -inf pads."""
    most = max(counts)
    if most == 0:
        empty = blocked.values.new_empty(len(counts), 0)
        return empty.long(), empty
    asked = torch.tensor(counts, device=blocked.values.device).clamp(min=1)
    candidates = blocked.candidates(blocked.top_k_bound(asked))
    ordered = candidates.values.sort(dim=1, descending=True, stable=True)
    best = ordered.indices[:, :most]
    return candidates.ids.gather(1, best), ordered.values[:, :most]
