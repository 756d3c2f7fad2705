"""How well the model predicts a long text: negative log likelihood per window, through the engine.

The text is Python's own language reference (`pydoc_data.topics`), which every Python brings along.
It is cut into windows of some thousand tokens; each is a prompt of its own, chunked as the scheduler
and the policy say. The logits of a chunk are made in blocks of rows, so memory stays bounded.

Legend: T tokens of a step, R rows of a block, E hidden size, V vocabulary.
"""

from __future__ import annotations

import pydoc_data.topics
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan
    from benchmarks.staged_model import ObservedDecoder

BLOCK_ROWS = 128


def reference_text() -> str:
    """Some 110 thousand tokens of English about Python."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


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
    """Sums the negative log likelihood of prompts while they are being computed.

    Args:
        decoder: of the last stage.
        prompts: by sequence id; each prompt's first token is not predicted.
    """

    def __init__(self, decoder: ObservedDecoder, prompts: dict[int, list[int]]) -> None:
        self._decoder = decoder
        self._prompts = prompts
        self.nll_by_sequence = dict.fromkeys(prompts, 0.0)
        self.tokens_by_sequence = dict.fromkeys(prompts, 0)

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
        for rows, wanted in zip(hidden.split(BLOCK_ROWS), targets.split(BLOCK_ROWS), strict=True):
            logits = self._decoder.logits(rows)  # [R, V]
            losses = torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
            total += float(losses.double().sum())
        return total
