"""Reads what grammars need to know of the checkpoint's tokens, for the last stage.

The stage may not import `text`, so the engine hands this to it. The same bytes as the frontend
gives the grammar compiler: both ask `Tokenizer.vocabulary`. Each node reads its own checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.models.spec import load_spec
from atom_lite.text.tokenizer import Tokenizer
from atom_lite.worker.grammar_loader import Vocabulary

if TYPE_CHECKING:
    from atom_lite.config import Config


def read_vocabulary(config: Config) -> Vocabulary:
    """The bytes of every token that the model has a logit for.

    Raises:
        ConfigError: there is no tokenizer, or none whose tokens have bytes.
    """
    model = config.model
    checkpoint = resolve_checkpoint(
        model.model, revision=model.revision, load_format=model.load_format
    )
    override = None if model.tokenizer is None else Path(model.tokenizer)
    tokenizer = Tokenizer.from_checkpoint(checkpoint.path, override=override)
    spec = load_spec(checkpoint)
    return Vocabulary(tuple(tokenizer.vocabulary(spec.vocab_size)), spec.eos_token_ids)
