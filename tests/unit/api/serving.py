"""The application over a fake engine, in memory or on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from fastapi import FastAPI
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from atom_lite.api.app import create_app
from atom_lite.config import Config, ModelConfig, ServerConfig
from atom_lite.observability.metrics import Metrics
from atom_lite.text.byte_alphabet import BYTE_OF_LETTER
from atom_lite.text.tokenizer import Tokenizer
from tests.fakes.fake_engine import FakeEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

    from atom_lite.api.structured import GrammarSource

MODEL = "tiny/bytes"
EOS, TURN = 0, 1
DEF, GH = 258, 259  # two tokens of several characters
TEMPLATE = (
    "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant: {% endif %}"
)


def ids_of(text: str) -> list[int]:
    """The token ids of a text: a byte is its value plus two, but for "DEF" and "GH"."""
    ids = [byte + 2 for byte in text.encode()]
    for token, spelled in ((DEF, "DEF"), (GH, "GH")):
        pattern = [byte + 2 for byte in spelled.encode()]
        start = 0
        while start <= len(ids) - len(pattern):
            if ids[start : start + len(pattern)] == pattern:
                ids[start : start + len(pattern)] = [token]
            start += 1
    return ids


def make_tokenizer(directory: Path) -> Tokenizer:
    """A byte-level vocabulary of 260 tokens with a chat template."""
    vocab = {"<eos>": EOS, "<turn>": TURN}
    vocab |= {letter: byte + 2 for letter, byte in BYTE_OF_LETTER.items()}
    vocab |= {"DEF": DEF, "GH": GH, "DE": 260}
    backend = Backend(models.BPE(vocab, [("D", "E"), ("DE", "F"), ("G", "H")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<turn>"])
    backend.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<eos>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.from_checkpoint(directory)


def saying(text: str, **settings: Any) -> FakeEngine:
    """An engine that answers everything with this text."""
    return FakeEngine(plan=lambda _message: ids_of(text), **settings)


@dataclass
class Served:
    """A running application and what it runs on."""

    app: FastAPI
    engine: FakeEngine
    client: httpx.AsyncClient
    metrics: Metrics
    base_url: str

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "x"}]} | fields
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: Any) -> httpx.Response:
        body: dict[str, Any] = {"prompt": "x", "max_tokens": 100} | fields
        return await self.client.post("/v1/completions", json=body)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series; it must exist."""
        all_labels = {"model_name": MODEL, "engine": "0"} | labels
        value = self.metrics.registry.get_sample_value(f"atom_lite:{name}", all_labels)
        assert value is not None, f"no series {name} {labels}"
        return value


def build(
    engine: FakeEngine,
    tokenizer: Tokenizer,
    config: Config,
    grammars: GrammarSource | None = None,
) -> tuple[FastAPI, Metrics]:
    metrics = Metrics(config, engine.ready, MODEL)
    app = create_app(
        config, engine, tokenizer, model_name=MODEL, metrics=metrics, grammars=grammars
    )
    return app, metrics


@asynccontextmanager
async def in_memory(
    engine: FakeEngine,
    tokenizer: Tokenizer,
    config: Config | None = None,
    grammars: GrammarSource | None = None,
) -> AsyncIterator[Served]:
    """Requests without a socket; answers come whole."""
    app, metrics = build(engine, tokenizer, config or Config(), grammars)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield Served(app, engine, client, metrics, "http://server")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        yield  # signals belong to the test runner


@asynccontextmanager
async def on_socket(
    engine: FakeEngine, tokenizer: Tokenizer, config: Config | None = None
) -> AsyncIterator[Served]:
    """A real uvicorn on a free port of 127.0.0.1."""
    app, metrics = build(engine, tokenizer, config or Config())
    settings = uvicorn.Config(
        app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = _Server(settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        async with httpx.AsyncClient(base_url=base_url, timeout=30) as client:
            yield Served(app, engine, client, metrics, base_url)
        server.should_exit = True
        await serving


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, bounded: what hangs must fail."""
    asyncio.run(asyncio.wait_for(scenario, 60))


def server_config(**fields: Any) -> Config:
    return Config(server=ServerConfig(**fields))


def model_config(**fields: Any) -> Config:
    return Config(model=ModelConfig(**fields))


def events_of(text: str) -> list[Any]:
    """The payloads of a stream; the last must be [DONE]."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(events: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream, chat or completion."""
    text = ""
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text
