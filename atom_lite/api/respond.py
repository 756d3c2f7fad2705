"""Sends a generation as an HTTP answer, and notices when nobody is left to read it.

The status line of a stream waits for its first event, so that an engine that refuses the sequence
still gives a proper HTTP status; it waits a second at most, because clients of a busy server must
see that they are connected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from atom_lite.api import sse
from atom_lite.api.faults import fault_body, fault_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from atom_lite.api.frontend import Frontend
    from atom_lite.api.generation import Generation, SequenceOutput
    from atom_lite.api.replies import Reply

_STATUS_WAIT_SECONDS = 1.0
# Log probabilities of this many tokens take some 4 ms to write; a thread hop takes about 0.1 ms.
_THREAD_ABOVE_FIGURES = 4096


class GenerationResponse(Response):
    """Runs a generation and writes its answer, whole or as events.

    Args:
        frontend: counts the request as open while this runs.
        generation: not started yet; it is submitted when the answer begins.
        reply: the shape of the answer.
        stream_interval: tokens between two chunks of a choice.
    """

    media_type = "application/json"

    def __init__(
        self, frontend: Frontend, generation: Generation, reply: Reply, *, stream_interval: int = 1
    ) -> None:
        super().__init__()
        self._frontend = frontend
        self._generation = generation
        self._reply = reply
        self._stream_interval = stream_interval
        self._tokens_sent: dict[int, int] = {}
        self._ended: set[int] = set()  # choices whose last chunk is sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; on every way out nothing of this request runs on."""
        generation = self._generation
        with self._frontend.open_request(generation):
            generation.start()
            watcher = asyncio.create_task(_watch_client(receive, generation))
            try:
                if self._reply.options.stream:
                    await self._send_stream(scope, receive, send)
                else:
                    await self._send_whole(scope, receive, send)
            finally:
                watcher.cancel()
                generation.abort()

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation = self._generation
        while not generation.settled:
            await generation.wait()
        if generation.client_gone:
            return
        if generation.fault is not None:
            await fault_response(generation.fault)(scope, receive, send)
            return
        reply = self._reply
        if sum(map(reply.num_figures, generation.outputs)) > _THREAD_ABOVE_FIGURES:
            body = await asyncio.to_thread(reply.whole, generation)
        else:
            body = reply.whole(generation)
        await Response(body, media_type=self.media_type)(scope, receive, send)

    async def _send_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation = self._generation
        keep_alive = self._frontend.config.server.sse_keep_alive_interval or None
        await generation.wait(min(_STATUS_WAIT_SECONDS, keep_alive or _STATUS_WAIT_SECONDS))
        if generation.client_gone:
            return
        if generation.fault is not None:
            await fault_response(generation.fault)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        while True:
            settled = generation.settled
            parts = []
            for output in generation.take_changed():
                if output.index not in self._tokens_sent:
                    parts.append(await self._open(output))
                parts.append(await self._chunks(output))
            data = b"".join(parts)
            if settled:
                break
            if data:
                await _write(send, data)
            if not await generation.wait(keep_alive):
                await _write(send, sse.KEEP_ALIVE)
        if not generation.client_gone:
            await _write(send, data + self._closing(), more=False)

    async def _open(self, output: SequenceOutput) -> bytes:
        """What a choice begins with, as soon as that is known; its first text is due with it.

        An echoed prompt may be long; what is told of it does not change any more.
        """
        if output.fault is not None or not output.opens:
            return b""
        self._tokens_sent[output.index] = -self._stream_interval
        if self._reply.num_prompt_figures(output) > _THREAD_ABOVE_FIGURES:
            return await asyncio.to_thread(self._reply.opening, output)
        return self._reply.opening(output)

    async def _chunks(self, output: SequenceOutput) -> bytes:
        """What is new of a choice: text, then how it ended."""
        index = output.index
        sent = self._tokens_sent.get(index)
        if output.fault is not None or sent is None or index in self._ended:
            return b""
        if output.num_output_tokens - sent < self._stream_interval and not output.finished:
            return b""
        self._tokens_sent[index] = output.num_output_tokens
        parts = output.take_parts()
        ends = output.finished and self._generation.fault is None
        if not parts and not ends:
            return b""
        if ends:
            self._ended.add(index)
        tokens = output.take_tokens()
        if self._reply.num_output_figures(len(tokens)) > _THREAD_ABOVE_FIGURES:
            return await asyncio.to_thread(self._reply.written, output, parts, tokens, ends)
        return self._reply.written(output, parts, tokens, ends)

    def _closing(self) -> bytes:
        fault = self._generation.fault
        if fault is not None:
            return sse.event(fault_body(fault)) + sse.DONE
        return self._reply.closing(self._generation.outputs)


async def _write(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _watch_client(receive: Receive, generation: Generation) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.leave()
