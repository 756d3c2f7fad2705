"""What the HTTP layer needs of an engine, wherever that engine runs.

Implemented by the link to the engine process and by the fake of the unit tests; both must keep the
invariant that a stream ends with exactly one SequenceFinished or raises EngineError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atom_lite.messages import EngineReady, EngineStats, SequenceEvent, SubmitSequence


class EngineClient(Protocol):
    """An engine as the frontend's event loop sees it; no call blocks."""

    @property
    def ready(self) -> EngineReady:
        """What the engine said at start."""
        ...

    @property
    def alive(self) -> bool:
        """False from the moment that the engine is known to have failed."""
        ...

    @property
    def responding(self) -> bool:
        """False while a living engine has been silent for too long; it may come back."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot; a new object for each frame."""
        ...

    def stream(self, message: SubmitSequence) -> AsyncIterator[SequenceEvent]:
        """Submit a sequence and iterate its events, the last of them its SequenceFinished.

        Several tokens may come in one event.

        Raises:
            EngineError: the engine is dead, or dies meanwhile; raised by the iterator.
        """
        ...

    def abort(self, sequence_id: int, reason: Literal["stop", "abort"] = "abort") -> None:
        """End a sequence at the next step boundary; unknown and finished ids are ignored."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget cached blocks that no running sequence holds."""
        ...

    def next_sequence_id(self) -> int:
        """An id that no sequence of this run has had."""
        ...
