"""Reads grammars on a thread of its own, and keeps those that may be wanted again.

Why a thread: importing the two libraries and reading the vocabulary takes a second, which passes
while the weights load; a grammar takes 1 ms, at most 0.25 s, which passes while its prompt is
computed.

Runs on the last stage. Must not touch torch: only the forward thread may (`engine.forward_thread`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.errors import ConfigError
from atom_lite.worker.grammar_matchers import GrammarError, Template, TemplateLoader
from atom_lite.worker.token_masks import allow_only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from atom_lite.messages import Grammar
    from atom_lite.worker.grammar_matchers import Matcher

# Grammars that are kept, by what they have grown to.
MAX_CACHED_BYTES = 64 * 1024 * 1024
MAX_CACHED = 1024

logger = logging.getLogger(__name__)


class Vocabulary(NamedTuple):
    """What grammars need to know of a checkpoint's tokens."""

    pieces: Sequence[bytes]  # by id, as many as there are logits; empty where it is no text
    eos_token_ids: Sequence[int]


@dataclass(slots=True, kw_only=True)
class CachedGrammar:
    """A grammar that came, whether or not it can be used.

    `failure` says why no sequence can follow it; that may turn out late, when a mask takes too
    long, so each thread may set it and all read it.
    """

    eos_token_ids: tuple[int, ...] = ()
    template: Template | None = None
    failure: GrammarError | None = None

    @property
    def num_bytes(self) -> int:
        """About what it takes up by now."""
        return 0 if self.template is None else self.template.num_bytes


class Follower:
    """One sequence on its way through a grammar. One thread at a time."""

    def __init__(self, grammar: CachedGrammar) -> None:
        if grammar.failure is not None:
            raise grammar.failure.with_traceback(None)
        assert grammar.template is not None
        self.grammar = grammar
        self._matcher: Matcher = grammar.template.matcher()
        self._eos_token_ids = grammar.eos_token_ids
        self._has_ended = False
        self._used_seconds = 0.0
        self._num_masks = 0

    def use(self, seconds: float) -> tuple[float, int]:
        """Count what one mask took; what all took so far, and how many they are."""
        self._used_seconds += seconds
        self._num_masks += 1
        return self._used_seconds, self._num_masks

    def advance(self, token_ids: Sequence[int]) -> None:
        """Accept the next output tokens; after EOS (ignore_eos) only EOS can come.

        Raises:
            GrammarError: one is not allowed.
        """
        for token_id in token_ids:
            is_eos = token_id in self._eos_token_ids
            if not self._has_ended:
                self._matcher.accept(token_id)
                self._has_ended = is_eos
            elif not is_eos:
                raise GrammarError(f"token {token_id} came after the grammar's end")

    def fill(self, masks: NDArray[np.int32], row: int) -> None:
        """Write what may come next into masks[row].

        Raises:
            GrammarError: nothing may, or the library gives up.
        """
        if self._has_ended:
            allow_only(masks, row, self._eos_token_ids)
        else:
            self._matcher.fill(masks, row)
        if not masks[row].any():
            raise GrammarError("no token of the vocabulary goes on with it", status=400)


class GrammarLoader:
    """Makes followers. Methods may be called from any thread and return at once.

    Args:
        vocabulary: reads the checkpoint's tokens, on the loader's thread. None: there are none to
            be read, and every grammar fails.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary] | None) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-loader")
        self._cache: OrderedDict[tuple[str, str], CachedGrammar] = OrderedDict()
        self._templates: Future[TemplateLoader] | None = None
        if vocabulary is not None:
            self._templates = self._thread.submit(lambda: TemplateLoader(*vocabulary()))

    def wait(self) -> None:
        """Wait until a first grammar would find all at hand; whether it can be used or not."""
        if self._templates is not None and (error := self._templates.exception()) is not None:
            logger.info("Structured output is not to be had: %s", error)

    def follower(self, grammar: Grammar, output: Sequence[int]) -> Future[Follower]:
        """A follower that has seen the output so far.

        The future's exception says why there is none: GrammarError, or whatever a library raised.
        """
        return self._thread.submit(self._make, grammar, output)

    def _make(self, grammar: Grammar, output: Sequence[int]) -> Follower:
        key = (grammar.backend, grammar.key)
        cached = self._cache.get(key)
        if cached is None:
            cached = self._cache[key] = self._read(grammar)
        self._cache.move_to_end(key)
        self._evict()
        follower = Follower(cached)
        follower.advance(output)
        return follower

    def _read(self, grammar: Grammar) -> CachedGrammar:
        cached = CachedGrammar()
        try:
            if self._templates is None:
                raise ConfigError("this stage was started without a vocabulary")
            templates = self._templates.result()
            cached.eos_token_ids = templates.eos_token_ids
            cached.template = templates.load(grammar)
        except Exception as error:  # noqa: BLE001  of two libraries; it fails this grammar alone
            cached.failure = GrammarError(f"it cannot be used: {error}")
        return cached

    def _evict(self) -> None:
        """Let the longest unused go; sequences under way keep what they have."""
        total = sum(cached.num_bytes for cached in self._cache.values())
        while len(self._cache) > 1 and (total > MAX_CACHED_BYTES or len(self._cache) > MAX_CACHED):
            total -= self._cache.popitem(last=False)[1].num_bytes
