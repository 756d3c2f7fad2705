"""A minimal OpenAI-compatible HTTP front for OpenVINO GenAI's continuous batching.

OpenVINO GenAI is a library, so it needs one to be measured by the client that measures the others.
It is as thin as it can be, so that what it costs is not taken for the library's: raw ASGI on
uvicorn, the `tokenizers` package, and one message between its two processes for a step. Two,
because `ContinuousBatchingPipeline.step` keeps Python's lock while it computes: in one process
tokens would leave a step late.

Runs in the peer's own virtual environment, as a script; must not import anything of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import uvicorn
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KV_GIGABYTES = 1  # 8-bit by default: room for some 90 thousand tokens of SmolLM2-135M

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


def run_engine(connection: Connection, model: str, budget: int) -> None:
    """The engine process: take requests, step, send what each step brought; ends with the pipe."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = budget
    scheduler.cache_size = KV_GIGABYTES
    scheduler.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU")
    _send(connection, {"ready": True})
    handles: dict[int, Any] = {}
    while True:
        while not handles or connection.poll():
            try:
                message = json.loads(connection.recv_bytes())
            except EOFError:
                return
            _take(pipeline, handles, message)
        pipeline.step()
        _send(connection, {"tokens": _collect(handles)})


def _take(pipeline: Any, handles: dict[int, Any], message: dict[str, Any]) -> None:
    import numpy as np
    import openvino
    import openvino_genai

    request_id = message["id"]
    if "ids" not in message:
        if (handle := handles.pop(request_id, None)) is not None:
            handle.cancel()
        return
    settings = openvino_genai.GenerationConfig()
    settings.max_new_tokens = message["max_tokens"]
    settings.ignore_eos = message["ignore_eos"]
    settings.do_sample = False
    ids = openvino.Tensor(np.array([message["ids"]], dtype=np.int64))
    handles[request_id] = pipeline.add_request(request_id, ids, settings)


def _collect(handles: dict[int, Any]) -> list[tuple[int, list[int], str | None]]:
    """For each request with news: its new tokens, and why it ended if it did."""
    import openvino_genai

    news: list[tuple[int, list[int], str | None]] = []
    running = openvino_genai.GenerationStatus.RUNNING
    for request_id, handle in list(handles.items()):
        ids: list[int] = []
        reason = openvino_genai.GenerationFinishReason.NONE
        while handle.can_read():
            for output in handle.read().values():
                ids += output.generated_ids
                reason = output.finish_reason
        ended = None
        if handle.get_status() != running:
            ended = {1: "stop", 2: "length"}.get(int(reason), "error")
            del handles[request_id]
        if ids or ended is not None:
            news.append((request_id, ids, ended))
    return news


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


class Front:
    """The HTTP side, on the event loop of this process.

    Args:
        connection: to the engine process.
        tokenizer: directory with tokenizer.json and chat_template.jinja.
        model: its name for clients.
    """

    def __init__(self, connection: Connection, tokenizer: Path, model: str) -> None:
        self._connection = connection
        self._tokenizer = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        self._template = jinja2.Template((tokenizer / "chat_template.jinja").read_text())
        self._model = model
        self._ids = itertools.count()
        self._streams: dict[int, asyncio.Queue[tuple[list[int], str | None]]] = {}
        self._ready = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """One ASGI conversation."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        route = scope["path"]
        if route == "/health":
            await _answer(send, 200 if self._ready else 503, {})
        elif route == "/v1/models":
            await _answer(send, 200, {"object": "list", "data": [{"id": self._model}]})
        elif route == "/tokenize":
            ids = self._prompt(await _body(receive))
            await _answer(send, 200, {"count": len(ids)})
        elif route in ("/v1/chat/completions", "/v1/completions"):
            await self._generate(await _body(receive), receive, send)
        else:
            await _answer(send, 404, {"error": {"message": f"no such route: {route}"}})

    async def _live(self, receive: Receive, send: Send) -> None:
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._on_message)
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _on_message(self) -> None:
        try:
            message = json.loads(self._connection.recv_bytes())
        except EOFError:  # the engine has died: so does the server, and every client sees it
            os.kill(os.getpid(), signal.SIGKILL)
            return
        self._ready = True
        for request_id, ids, ended in message.get("tokens", ()):
            if (stream := self._streams.get(request_id)) is not None:
                stream.put_nowait((ids, ended))

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        text = body.get("prompt")
        if text is None:
            text = self._template.render(messages=body["messages"], add_generation_prompt=True)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    async def _generate(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        if not body.get("stream") or body.get("temperature") != 0:
            message = "only streams at temperature 0 are served here"
            await _answer(send, 400, {"error": {"message": message}})
            return
        ids = self._prompt(body)
        request_id = next(self._ids)
        self._streams[request_id] = asyncio.Queue()
        request = {"id": request_id, "ids": ids, "max_tokens": body["max_tokens"]}
        request["ignore_eos"] = bool(body.get("ignore_eos"))
        _send(self._connection, request)
        await _start(send, 200, b"text/event-stream")
        writing = asyncio.create_task(self._write(request_id, len(ids), body, send))
        leaving = asyncio.create_task(_left(receive))
        await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        del self._streams[request_id]
        if not writing.done():
            writing.cancel()
            _send(self._connection, {"id": request_id})
        await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(
        self, request_id: int, num_prompt_tokens: int, body: dict[str, Any], send: Send
    ) -> None:
        """Stream the answer; usage on every chunk when asked, else at the end."""
        options = body.get("stream_options") or {}
        decode = DecodeStream(skip_special_tokens=True)
        usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": 0}
        ended = None
        while ended is None:
            ids, ended = await self._streams[request_id].get()
            text = "".join(decode.step(self._tokenizer, token) or "" for token in ids)
            usage["completion_tokens"] += len(ids)
            delta = {"delta": {"content": text}, "text": text, "finish_reason": ended}
            chunk: dict[str, Any] = {"choices": [{"index": 0, **delta}]}
            if options.get("continuous_usage_stats"):
                chunk["usage"] = usage
            if ended == "error":
                chunk = {"error": {"message": "the pipeline gave this request up"}}
            await _event(send, chunk)
        if options.get("include_usage"):
            await _event(send, {"choices": [], "usage": usage})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _body(receive: Receive) -> dict[str, Any]:
    data, more = b"", True
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    body: dict[str, Any] = json.loads(data)
    return body


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, kind: bytes) -> None:
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    await _start(send, status, b"application/json")
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def _event(send: Send, chunk: dict[str, Any]) -> None:
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": data, "more_body": True})


def main() -> None:
    """Start the engine process, then serve."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file or OpenVINO directory")
    parser.add_argument("--tokenizer", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    ours, engines = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    engine = spawn.Process(
        target=run_engine,
        args=(engines, str(options.model), options.max_num_batched_tokens),
        daemon=True,
    )
    engine.start()
    engines.close()  # so that the engine's end is seen at this one
    front = Front(ours, options.tokenizer, options.model.stem)
    uvicorn.run(front, host=options.host, port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
