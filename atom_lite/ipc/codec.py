"""Messages <-> bytes of the frontend-engine link: msgpack through msgspec, decoded by type.

One encoder and decoder per process; a decoder accepts only the union of its direction, so that a
wrong message is an error at the boundary and not somewhere inside.
"""

from __future__ import annotations

import msgspec

from atom_lite.messages import EngineMessage, FrontendMessage

_encoder = msgspec.msgpack.Encoder()
_frontend_decoder = msgspec.msgpack.Decoder(FrontendMessage)
_engine_decoder = msgspec.msgpack.Decoder(EngineMessage)


def encode(message: FrontendMessage | EngineMessage) -> bytes:
    """Bytes of one message."""
    return _encoder.encode(message)


def decode_frontend_message(frame: bytes) -> FrontendMessage:
    """A message on its way to the engine; msgspec.ValidationError for anything else."""
    message: FrontendMessage = _frontend_decoder.decode(frame)
    return message


def decode_engine_message(frame: bytes) -> EngineMessage:
    """A message on its way to the frontend; msgspec.ValidationError for anything else."""
    message: EngineMessage = _engine_decoder.decode(frame)
    return message
