"""Load format `scripted`: the model says what a test told it to say.

Why it exists: tests of stop strings, tool calls or schedules need known output, and still want the
real engine under it. So the weights are dummies of a tiny config (`--model` is a directory that
holds its config.json), each layer really runs and writes KV, and only the logits are replaced: +30
at the next id of the sequence's script (an EOS id when the script is over or absent), 0 elsewhere.
That happens *before* masks and sampling, so min_tokens and the filters still have their say.

Runs on the last stage. A script in any other load format, and ids outside the vocabulary, are the
frontend's to refuse; should such an id come through, it ends the script rather than the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from atom_lite.worker.sequence_table import MirroredSequence

SCRIPTED_LOGIT = 30.0


def scripted_logits(
    sequences: Sequence[MirroredSequence],
    output_indices: Sequence[int],
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Logits [R, V] float32 that all but force each sequence's next scripted id.

    Args:
        sequences: R sequences with a token to draw.
        output_indices: of each, how many output tokens it has.
        vocab_size: V.
        eos_token_ids: the first one follows the end of a script.
        device: where the logits are made.
    """
    logits = torch.zeros(len(sequences), vocab_size, device=device)
    end = eos_token_ids[0] if eos_token_ids else vocab_size - 1
    ids = []
    for sequence, output_index in zip(sequences, output_indices, strict=True):
        script = sequence.script or ()
        token_id = script[output_index] if output_index < len(script) else end
        ids.append(token_id if 0 <= token_id < vocab_size else end)
    logits[torch.arange(len(ids)), ids] = SCRIPTED_LOGIT
    return logits
