"""How a control message looks on the wire: a fixed header, then the body.

    magic  version kind  pad  sequence  received  step_id  length   body
    4 B    1 B     1 B   2 B  8 B       8 B       8 B      8 B      `length` bytes

- `sequence` counts the sender's messages on this connection from 0: a gap or a repeat is an error.
- `received` says how many messages the sender has received so far, so that the other side knows
  which of its buffers have arrived and can be released without waiting for anything.

A body of up to INLINE_BYTES travels in one transfer with its header, into a buffer that the
receiver has posted before; a longer one follows in a transfer of its own, of exactly `length`
bytes. Bodies are opaque here; never pickle. Pure functions, used by every process of the pipeline.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from atom_lite.parallel.link import PipelineError

_MAGIC = b"ATLP"
_VERSION = 1
_HEADER = struct.Struct("<4sBB2xQQqQ")

HEADER_BYTES = _HEADER.size
# Holds the plan or result of a few hundred decode rows, or of a prefill chunk of some 15000 tokens.
FRAME_BYTES = 64 * 1024
INLINE_BYTES = FRAME_BYTES - HEADER_BYTES
# Far above any plan (a plan of a million token ids is 5 MB): a longer length is a broken header,
# and must not become an allocation.
MAX_BODY_BYTES = 1 << 30


class FrameKind(enum.IntEnum):
    """What a message is."""

    PLAN = 1
    RESULT = 2
    HEARTBEAT = 3
    FAILURE = 4
    SHUTDOWN = 5
    TIMES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fixed part of a message; see the module docstring."""

    kind: FrameKind
    sequence: int
    received: int
    step_id: int
    length: int

    @property
    def is_inline(self) -> bool:
        """Whether the body came with the header."""
        return self.length <= INLINE_BYTES


def encode_frame(header: Header, body: bytes) -> bytearray:
    """The first transfer of a message: the header, and the body if it is short enough."""
    assert header.length == len(body)
    if len(body) > MAX_BODY_BYTES:
        raise PipelineError(f"a message of {len(body)} bytes is over {MAX_BODY_BYTES}")
    frame = bytearray(
        _HEADER.pack(
            _MAGIC,
            _VERSION,
            header.kind,
            header.sequence,
            header.received,
            header.step_id,
            header.length,
        )
    )
    if header.is_inline:
        frame += body
    return frame


def decode_header(frame: bytes | bytearray) -> Header:
    """Read a header.

    Raises:
        PipelineError: the bytes are no header of this version; the peer is of another kind.
    """
    magic, version, kind, sequence, received, step_id, length = _HEADER.unpack_from(frame)
    if magic != _MAGIC or version != _VERSION:
        raise PipelineError(
            f"a peer sent {magic!r} version {version} where {_MAGIC!r} version {_VERSION} is due; "
            "all stages must run the same version of atom_lite"
        )
    if length > MAX_BODY_BYTES:
        raise PipelineError(f"a peer announced {length} bytes, over {MAX_BODY_BYTES}")
    try:
        known_kind = FrameKind(kind)
    except ValueError:
        raise PipelineError(f"a peer sent a message of unknown kind {kind}") from None
    return Header(
        kind=known_kind, sequence=sequence, received=received, step_id=step_id, length=length
    )


def inline_body(frame: bytes | bytearray, header: Header) -> bytes:
    """The body of a message whose header says that it is inline."""
    assert header.is_inline
    return bytes(memoryview(frame)[HEADER_BYTES : HEADER_BYTES + header.length])
