from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_lite.parallel.link import PipelineError
from atom_lite.parallel.wire import (
    FRAME_BYTES,
    HEADER_BYTES,
    INLINE_BYTES,
    MAX_BODY_BYTES,
    FrameKind,
    Header,
    decode_header,
    encode_frame,
    inline_body,
)


def header(length: int = 0, kind: FrameKind = FrameKind.PLAN, **fields: int) -> Header:
    values = {"sequence": 1, "received": 2, "step_id": 3, **fields}
    return Header(kind=kind, length=length, **values)


@given(
    kind=st.sampled_from(FrameKind),
    sequence=st.integers(0, 2**64 - 1),
    received=st.integers(0, 2**64 - 1),
    step_id=st.integers(-(2**63), 2**63 - 1),
    body=st.binary(max_size=200),
)
def test_what_is_encoded_is_decoded(
    kind: FrameKind, sequence: int, received: int, step_id: int, body: bytes
) -> None:
    sent = header(len(body), kind, sequence=sequence, received=received, step_id=step_id)
    frame = encode_frame(sent, body).ljust(FRAME_BYTES, b"\xff")  # the receiver's buffer is larger
    got = decode_header(frame)
    assert got == sent
    assert inline_body(frame, got) == body


def test_a_short_body_travels_with_its_header() -> None:
    assert len(encode_frame(header(INLINE_BYTES), b"x" * INLINE_BYTES)) == FRAME_BYTES


def test_a_long_body_does_not_travel_with_its_header() -> None:
    sent = header(INLINE_BYTES + 1)
    assert not sent.is_inline
    assert len(encode_frame(sent, b"x" * (INLINE_BYTES + 1))) == HEADER_BYTES


@pytest.mark.parametrize("position", [0, 3, 4, 5])
def test_a_broken_header_is_refused(position: int) -> None:
    frame = encode_frame(header(), b"")
    frame[position] ^= 0x40
    with pytest.raises(PipelineError, match="a peer sent"):
        decode_header(frame)


def test_an_absurd_length_is_refused_before_it_is_allocated() -> None:
    frame = encode_frame(header(), b"")
    frame[HEADER_BYTES - 8 : HEADER_BYTES] = (MAX_BODY_BYTES + 1).to_bytes(8, "little")
    with pytest.raises(PipelineError, match="announced"):
        decode_header(frame)
