"""Tries a grammar of xgrammar's out before a step of the last stage has to wait for its masks.

The last stage makes each mask when it is first needed, and no call of the library can be
interrupted. Here, in a child process that may be killed at any moment, is found out

    what all masks take up   they are made once: what the last stage will come to keep at most
    what a token costs       along random outputs; a grammar that is ambiguous takes more with
                             every token, and is out of bounds soon

A grammar that is slow only beyond these outputs is left to `worker.grammar`, which ends its
sequence. Runs in the grammar compiler's children, without torch, which the library's own matcher
class needs.
"""

from __future__ import annotations

import importlib
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xgrammar.grammar import Grammar
    from xgrammar.tokenizer_info import TokenizerInfo

# CPU time for one token, its mask and its acceptance: a fifth of what the last stage gives. JSON
# schemas take 1 ms where a mask is made, 0.05 else.
MAX_TOKEN_SECONDS = 0.05
# CPU time that the last stage may take to read a grammar; those of schemas take 0.5 to 5 ms.
MAX_LOAD_SECONDS = 0.1
MAX_MASK_BYTES = 32 * 1024 * 1024
NUM_OUTPUTS = 2
MAX_OUTPUT_TOKENS = 64
MAX_OUTPUT_SECONDS = 0.3  # of all; what is quick enough takes a tenth


class TooCostlyError(RequestError):
    """It would cost the last stage too much; llguidance may do with less."""


class GrammarTrial:
    """Tries grammars out for one vocabulary.

    Args:
        info: the vocabulary.
        num_ids: of the model's logits.
        eos_token_ids: tokens that end an output.
    """

    def __init__(self, info: TokenizerInfo, num_ids: int, eos_token_ids: Sequence[int]) -> None:
        from xgrammar.compiler import GrammarCompiler

        # One thread: it must not compete with the model for cores, and the process may be forked.
        # No cache: each grammar is tried in a process of its own.
        self._eager, self._lazy = (
            GrammarCompiler(
                info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=is_lazy
            )
            for is_lazy in (False, True)
        )
        self._num_ids = num_ids
        self._eos_token_ids = list(eos_token_ids)

    def check(self, grammar: Grammar) -> None:
        """Try a grammar out.

        Raises:
            TooCostlyError: it would take too much memory or time.
            RequestError: it allows nothing.
            RuntimeError: of the library.
        """
        num_bytes = self._eager.compile_grammar(grammar).memory_size_bytes
        if num_bytes > MAX_MASK_BYTES:
            raise TooCostlyError(
                f"it is too large: its masks take {num_bytes} bytes, at most {MAX_MASK_BYTES}"
            )
        started = time.thread_time()
        compiled = self._lazy.compile_grammar(grammar)
        seconds = time.thread_time() - started
        if seconds > MAX_LOAD_SECONDS:
            raise TooCostlyError(
                f"it is too large: reading it takes {seconds:.2f} s, at most {MAX_LOAD_SECONDS} s"
            )
        end = time.thread_time() + MAX_OUTPUT_SECONDS
        for number in range(NUM_OUTPUTS):
            self._follow(compiled, random.Random(number), end)

    def _follow(self, compiled: Any, choices: random.Random, end: float) -> None:
        """Follow one random output, as long as the grammar goes on and there is time."""
        core: Any = importlib.import_module("xgrammar.base")._core
        matcher = core.GrammarMatcher(compiled._handle, None, False, -1, None)
        mask = np.zeros((1, (self._num_ids + 31) // 32), dtype=np.int32)
        for position in range(MAX_OUTPUT_TOKENS):
            started = time.thread_time()
            if started > end:
                return
            matcher.fill_next_token_bitmask(mask, 0, False)
            if position == 0 and not mask.any():
                raise RequestError("it allows no output at all")
            bits = np.unpackbits(mask.view(np.uint8)[0], count=self._num_ids, bitorder="little")
            bits[self._eos_token_ids] = 0
            if not bits.any():
                return
            matcher.accept_token(int(choices.choice(np.flatnonzero(bits))), False)
            seconds = time.thread_time() - started
            if seconds > MAX_TOKEN_SECONDS:
                raise TooCostlyError(
                    f"finding the tokens that it allows takes {seconds:.2f} s after {position} "
                    f"tokens, at most {MAX_TOKEN_SECONDS} s"
                )
