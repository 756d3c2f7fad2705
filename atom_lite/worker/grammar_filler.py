"""Fills the token masks of a step's rows, on a thread that the step never waits for long.

No call of the grammar libraries can be interrupted, and what a mask costs is known only afterwards.
So each row has its limit of CPU time. Where a call goes beyond it, the row fails at once and the
thread is left to its call, after which it ends; a new one fills the rows that are left. A grammar
whose masks stay below the limit, but are slow all the time, fails when its sequence has used up
what it is given for all its tokens.

    mask_seconds                        for one token of one sequence
    SPARE_SECONDS + TOKEN_SECONDS * n   for n tokens of one sequence

Whatever fails, fails for its own sequence; a grammar that was too slow once is refused from then
on.

Runs on the last stage. Must not touch torch. Shapes: R sampled rows of a step, W mask words.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.worker.grammar_matchers import GrammarError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from atom_lite.worker.grammar_loader import Follower

# What the compiler lets pass takes a hundredth of these, but for ambiguous grammars of the client's
# own, where each token takes longer than the one before.
MASK_SECONDS = 0.25
SPARE_SECONDS = 1.0
TOKEN_SECONDS = 0.01
# How often a step that waits looks whether a row is beyond its limit.
_LOOK_SECONDS = 0.02

logger = logging.getLogger(__name__)


class Work(NamedTuple):
    """One row of a step's masks."""

    row: int
    follower: Future[Follower]
    token_ids: list[int]  # to accept first


class Filled(NamedTuple):
    """The masks of a step, and why the sequences of some of its rows cannot go on."""

    masks: NDArray[np.int32]
    errors: dict[int, GrammarError]


class _UnderWay(NamedTuple):
    """The row that a thread is at."""

    work: Work
    follower: Follower
    clock: int  # the thread's, of CPU time
    started: float


class MaskFiller:
    """Fills one step after the other. Called by the forward thread.

    Args:
        mask_seconds: most CPU time for one mask of one sequence.
    """

    def __init__(self, *, mask_seconds: float = MASK_SECONDS) -> None:
        self._mask_seconds = mask_seconds
        self._thread = _new_thread()

    def begin(self, masks: NDArray[np.int32], work: Sequence[Work]) -> _Rows:
        """Begin to fill rows; the result is for `finish`.

        Args:
            masks: [R, W], written.
            work: the rows that have a grammar.
        """
        rows = _Rows(masks, work, {}, self._mask_seconds)
        rows.future = self._thread.submit(rows.fill)
        return rows

    def finish(self, rows: _Rows) -> Filled:
        """Wait until rows are filled, or have failed."""
        while True:
            try:
                rows.future.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                if (rest := rows.leave_if_stuck()) is not None:
                    logger.warning("A thread is left to a grammar that takes too long")
                    self._thread.shutdown(wait=False)
                    self._thread = _new_thread()
                    rows = rest
                    rows.future = self._thread.submit(rows.fill)
            else:
                return Filled(rows.masks, rows.errors)


class _Rows:
    """Rows of one step for one thread to fill, and how far it is.

    Args:
        masks: written.
        work: the rows.
        errors: of rows that failed before; written.
        mask_seconds: most CPU time for each.
    """

    future: Future[None]

    def __init__(
        self,
        masks: NDArray[np.int32],
        work: Sequence[Work],
        errors: dict[int, GrammarError],
        mask_seconds: float,
    ) -> None:
        self.masks = masks
        self.errors = errors
        self._work = list(work)
        self._mask_seconds = mask_seconds
        self._lock = threading.Lock()  # of the two below
        self._under_way: _UnderWay | None = None
        self._is_left = False

    def fill(self) -> None:
        """Fill all rows. On the filler's thread."""
        clock = _thread_clock()
        for work in self._work:
            try:
                follower = work.follower.result()
                if follower.grammar.failure is not None:
                    raise follower.grammar.failure.with_traceback(None)
                row = _UnderWay(work, follower, clock, time.clock_gettime(clock))
                if not self._go_to(row):
                    return
                follower.advance(work.token_ids)
                follower.fill(self.masks, work.row)
                if not self._go_to(None):
                    return
                self._account(row)
            except Exception as error:  # noqa: BLE001  of two libraries; it ends this sequence alone
                if not self._go_to(None):
                    return
                self._fail(work, error)

    def leave_if_stuck(self) -> _Rows | None:
        """Give up the row under way, if it is beyond its limit.

        On the forward thread, while `fill` runs.

        Returns:
            The rows after it, for another thread.
        """
        with self._lock:
            row = self._under_way
            if row is None or _seconds_since(row) <= self._mask_seconds:
                return None
            self._is_left = True
        failure = self._too_slow(_seconds_since(row))
        row.follower.grammar.failure = failure
        after = self._work[self._work.index(row.work) + 1 :]
        # a copy: the thread that is left behind may still write to its own
        rest = _Rows(self.masks.copy(), after, dict(self.errors), self._mask_seconds)
        rest._fail(row.work, failure)
        return rest

    def _go_to(self, row: _UnderWay | None) -> bool:
        """Say which row comes now; False where this thread was left meanwhile."""
        with self._lock:
            self._under_way = row
            return not self._is_left

    def _account(self, row: _UnderWay) -> None:
        seconds = _seconds_since(row)
        used, num_masks = row.follower.use(seconds)
        if seconds > self._mask_seconds:
            failure = self._too_slow(seconds)
        elif used > SPARE_SECONDS + TOKEN_SECONDS * num_masks:
            failure = GrammarError(
                f"to find the tokens that it allows took {used:.2f} s for {num_masks} tokens, at "
                f"most {SPARE_SECONDS:g} s and {TOKEN_SECONDS:g} s for each are given",
                status=400,
            )
        else:
            return
        row.follower.grammar.failure = failure
        raise failure

    def _too_slow(self, seconds: float) -> GrammarError:
        return GrammarError(
            f"to find the tokens that it allows took {seconds:.2f} s, at most "
            f"{self._mask_seconds:g} s are given",
            status=400,
        )

    def _fail(self, work: Work, error: Exception) -> None:
        status = error.status if isinstance(error, GrammarError) else 500
        reason = f"the output cannot follow its grammar: {error}"
        self.errors[work.row] = GrammarError(reason, status=status)
        logger.warning("A sequence ends: %s", reason)
        self.masks[work.row] = -1


def _new_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="grammar-filler")


def _thread_clock() -> int:
    """This thread's clock of CPU time; where other threads cannot read it, the time of day's."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.pthread_getcpuclockid(threading.get_ident())
    return time.CLOCK_MONOTONIC


def _seconds_since(row: _UnderWay) -> float:
    return time.clock_gettime(row.clock) - row.started
