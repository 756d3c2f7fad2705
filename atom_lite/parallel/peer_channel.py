"""One control connection to one other rank: frames out, frames in, signs of life.

Used by both ends (`distributed_link`): the head has one for each follower, a follower has one, to
the head. Threads, and what each may touch:

    any caller, and the pulse   `send`, one at a time under the lock: it starts a transfer and
                                returns, so the lock is held for microseconds
    the channel's own thread    waits for frames, for as long as the peer lives
    the pulse (one a process)   sends a heartbeat and counts silence, see `Pulse`

The receiving thread is woken for each frame and sleeps inside gloo otherwise, without the GIL. It
may stay there for good when its peer is stopped: it is a daemon, and such a process leaves by
`os._exit`.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from atom_lite.parallel.link import LinkTiming, PipelineError
from atom_lite.parallel.wire import (
    FRAME_BYTES,
    FrameKind,
    Header,
    decode_header,
    encode_frame,
    inline_body,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom_lite.parallel.groups import Transfer, TransferGroup

_HEADER_TAG = 0
_BODY_TAG = 1  # apart, so that a long body can never land in the buffer of a header


class PeerChannel:
    """Frames to and from one peer, in order.

    Args:
        peer: its rank in both groups.
        name: what errors call it, such as `stage 1`.
        outgoing: group that this side sends on.
        incoming: group that this side receives on; nothing else receives from this peer there.
        on_frame: told of every message but heartbeats, on the channel's thread; False ends the
            receiving: the peer will send nothing more. What it raises as PipelineError is a loss.
        on_lost: told once that the peer is gone, hangs or sends nonsense; on any thread.
    """

    def __init__(
        self,
        peer: int,
        name: str,
        *,
        outgoing: TransferGroup,
        incoming: TransferGroup,
        on_frame: Callable[[Header, bytes], bool],
        on_lost: Callable[[str], None],
    ) -> None:
        self.peer = peer
        self.name = name
        self._outgoing = outgoing
        self._incoming = incoming
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._num_sent = 0
        self._num_received = 0
        self._pending: deque[tuple[int, list[Transfer]]] = deque()
        self._is_lost = threading.Event()
        self._has_said_goodbye = False
        self._num_received_at_tick = 0
        self._silent_ticks = 0
        self._thread = threading.Thread(target=self._run, name=f"from {name}", daemon=True)

    def start(self) -> None:
        """Begin to receive; the callbacks may be called from here on."""
        self._thread.start()

    @property
    def num_unacknowledged(self) -> int:
        """Messages whose buffers are kept because the peer may not have them yet."""
        return len(self._pending)

    @property
    def is_lost(self) -> bool:
        """Whether the peer is known to be gone or hung."""
        return self._is_lost.is_set()

    def send(self, kind: FrameKind, step_id: int = 0, body: bytes = b"") -> None:
        """Start to send a message. A peer that is gone is told to `on_lost`; nothing is raised.

        SHUTDOWN is the last message: the peer stops receiving there, and later ones are dropped.
        """
        with self._lock:
            if self.is_lost or self._has_said_goodbye:
                return
            self._has_said_goodbye = kind is FrameKind.SHUTDOWN
            header = Header(
                kind=kind,
                sequence=self._num_sent,
                received=self._num_received,
                step_id=step_id,
                length=len(body),
            )
            try:
                self._pending.append((self._num_sent, self._start_transfers(header, body)))
                self._num_sent += 1
                return
            except RuntimeError as error:
                reason = gloo_reason(error)
        self._lose(reason)

    def _start_transfers(self, header: Header, body: bytes) -> list[Transfer]:
        frame = torch.frombuffer(encode_frame(header, body), dtype=torch.uint8)
        works = [self._outgoing.send([frame], self.peer, _HEADER_TAG)]
        if not header.is_inline:
            tensor = torch.frombuffer(bytearray(body), dtype=torch.uint8)
            works.append(self._outgoing.send([tensor], self.peer, _BODY_TAG))
        return works

    def flush(self, seconds: float) -> None:
        """Wait until everything sent has left this process, or has failed, or the time is over.

        For the end of a connection only: running out of time breaks it.
        """
        deadline = time.monotonic() + seconds
        while (works := self._take_oldest_pending()) is not None:
            for work in works:
                left = deadline - time.monotonic()
                if left <= 0 or self.is_lost:
                    return
                with contextlib.suppress(RuntimeError):
                    work.wait(timedelta(seconds=left))

    def _take_oldest_pending(self) -> list[Transfer] | None:
        """To be waited for once: gloo counts completions, a second wait would never end."""
        with self._lock:
            return self._pending.popleft()[1] if self._pending else None

    def join(self, seconds: float) -> bool:
        """Wait for the peer's last message; False if it did not come in time."""
        if threading.current_thread() is not self._thread:
            self._thread.join(max(seconds, 0))
        return not self._thread.is_alive()

    def tick(self, hang_ticks: int) -> None:
        """One beat of the pulse: say that this side lives, notice if the other does not."""
        self.send(FrameKind.HEARTBEAT)
        if self._num_received != self._num_received_at_tick:
            self._num_received_at_tick = self._num_received
            self._silent_ticks = 0
            return
        self._silent_ticks += 1
        if self._silent_ticks >= hang_ticks and self._thread.is_alive():
            self._lose("it has stopped answering")

    def _run(self) -> None:
        frame = bytearray(FRAME_BYTES)
        tensor = torch.frombuffer(frame, dtype=torch.uint8)
        try:
            while self._receive(frame, tensor):
                pass
        except PipelineError as error:
            self._lose(str(error))
        except Exception as error:  # noqa: BLE001  a thread that just ended would go unnoticed
            self._lose(gloo_reason(error))

    def _receive(self, frame: bytearray, tensor: torch.Tensor) -> bool:
        self._incoming.recv([tensor], self.peer, _HEADER_TAG).wait()
        header = decode_header(frame)
        if header.sequence != self._num_received:
            raise PipelineError(
                f"message {header.sequence} came where {self._num_received} was due"
            )
        body = inline_body(frame, header) if header.is_inline else self._receive_body(header)
        self._num_received += 1
        self._release(header.received)
        if header.kind is FrameKind.HEARTBEAT:
            return True
        return self._on_frame(header, body)

    def _receive_body(self, header: Header) -> bytes:
        body = bytearray(header.length)
        tensor = torch.frombuffer(body, dtype=torch.uint8)
        self._incoming.recv([tensor], self.peer, _BODY_TAG).wait()
        return bytes(body)

    def _release(self, num_arrived: int) -> None:
        """Drop the buffers that the peer has acknowledged."""
        with self._lock:
            while self._pending and self._pending[0][0] < num_arrived:
                self._pending.popleft()

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self.is_lost:
                return
            self._is_lost.set()
        self._on_lost(reason)


class Pulse:
    """The thread that beats for all channels of a process.

    Silence is counted in beats of this thread, not by the clock: when a whole server is stopped and
    continued (Ctrl-Z, a debugger, a paused container), no peer counts as hung for that time.
    """

    def __init__(self, channels: Sequence[PeerChannel], timing: LinkTiming) -> None:
        self._channels = channels
        self._interval = timing.heartbeat_seconds
        self._hang_ticks = max(2, round(timing.hang_seconds / timing.heartbeat_seconds))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it is gone on return, so nothing is sent any more."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            for channel in self._channels:
                channel.tick(self._hang_ticks)


def gloo_reason(error: Exception) -> str:
    """The core of a gloo error: without source lines, addresses and advice."""
    text = re.sub(r"\[[^]]*\]:?\d*:?", "", str(error)).strip()
    first_sentence = re.split(r"[.\n]", text, maxsplit=1)[0]
    return re.sub(r"\s+", " ", first_sentence).strip() or type(error).__name__
