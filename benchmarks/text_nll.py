"""How well the model predicts a long text: negative log likelihood per window, through the engine.

The text is cut into windows of some thousand tokens; each is a prompt of its own, chunked as the
scheduler and the policy say. The logits of a chunk are made in blocks of rows, so memory stays
bounded. (The API has no prompt logprobs yet; with them this could be asked over HTTP.)

Legend: T tokens of a step, R rows of a block, E hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan
    from benchmarks.staged_model import ObservedDecoder

BLOCK_ROWS = 128


def windows(token_ids: list[int], *, num_tokens: int, window_tokens: int) -> list[list[int]]:
    """The first `num_tokens` of a text, in windows; the last one may be shorter.

    Raises:
        ValueError: the text has fewer tokens.
    """
    if len(token_ids) < num_tokens:
        raise ValueError(f"the text has {len(token_ids)} tokens, asked for {num_tokens}")
    return [
        token_ids[start : min(start + window_tokens, num_tokens)]
        for start in range(0, num_tokens, window_tokens)
    ]


class NllMeter:
    """Sums the negative log likelihood of watched prompts while they are being computed."""

    def __init__(self, decoder: ObservedDecoder) -> None:
        """`decoder`: of the last stage."""
        self._decoder = decoder
        self._prompts: dict[int, list[int]] = {}
        self.nll_by_sequence: dict[int, float] = {}
        self.tokens_by_sequence: dict[int, int] = {}

    def watch(self, sequence_id: int, prompt: list[int]) -> None:
        """Count this sequence, all tokens of its prompt but the first, which nothing predicts."""
        self._prompts[sequence_id] = prompt
        self.nll_by_sequence[sequence_id] = 0.0
        self.tokens_by_sequence[sequence_id] = 0

    @torch.inference_mode()
    def after_step(self, plan: StepPlan) -> None:
        """Take the step that has just been run; its hidden states [T, E] are the decoder's last."""
        hidden = self._decoder.hidden
        end = 0
        for row in plan.rows:
            begin, end = end, end + row.num_tokens
            prompt = self._prompts.get(row.sequence_id)
            if prompt is None or row.token_ids:
                continue
            assert hidden is not None
            targets = prompt[row.start + 1 : row.start + row.num_tokens + 1]
            rows = hidden[begin : begin + len(targets)]
            self.nll_by_sequence[row.sequence_id] += self._nll(rows, torch.tensor(targets))
            self.tokens_by_sequence[row.sequence_id] += len(targets)

    def _nll(self, hidden: torch.Tensor, targets: torch.Tensor) -> float:
        """Of rows [R, E] whose next tokens are `targets` [R]."""
        total = 0.0
        for begin in range(0, len(targets), BLOCK_ROWS):
            block = slice(begin, begin + BLOCK_ROWS)
            logits = self._decoder.logits(hidden[block])  # [R, V]
            losses = torch.nn.functional.cross_entropy(logits, targets[block], reduction="none")
            total += float(losses.double().sum())
        return total
