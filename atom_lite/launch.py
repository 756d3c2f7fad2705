"""Starts and stops the processes: this one is the frontend, the engine is its child.

    socket bound -> engine started -> EngineReady -> HTTP served
                     meanwhile here: HTTP libraries imported, tokenizer loaded
    first request for structured output -> grammar compiler started

What the engine takes is what a start takes, so nothing slow may be imported at this module's top:
fastapi and what it needs cost 0.8 s, which pass on the other core.

The port is taken first, so that a port in use fails in milliseconds and not after the weights are
loaded. The engine runs in a process session of its own: Ctrl-C in a terminal reaches only the
frontend, which lets running streams finish. The engine's standard input is its lifeline: it ends
when this process ends, however that happens. So is the grammar compiler's.

Never imports torch or transformers: a live frontend is checked for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from atom_lite.config import CacheConfig, ParallelConfig
from atom_lite.engine.node import run_node
from atom_lite.errors import ConfigError, EngineError
from atom_lite.ipc.grammar_client import GrammarClient
from atom_lite.ipc.grammar_messages import GrammarCompilerSetup
from atom_lite.ipc.remote_engine import RemoteEngine
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.observability.logs import configure_logging
from atom_lite.parallel.placement import find_placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from atom_lite.api.http_server import HttpServer
    from atom_lite.config import Config
    from atom_lite.messages import EngineReady
    from atom_lite.models.checkpoint import Checkpoint
    from atom_lite.parallel.placement import Placement
    from atom_lite.text.tokenizer import Tokenizer

    MakeApp: TypeAlias = Callable[[RemoteEngine, EngineReady], FastAPI]

ENGINE_MODULE = "atom_lite.engine.process"
GRAMMAR_COMPILER_MODULE = "atom_lite.engine.grammar_process"
# The engine gets this long to exit after a Shutdown before it is killed.
_ENGINE_EXIT_SECONDS = 10.0
_POLL_SECONDS = 0.05
_BACKLOG = 2048  # connections that wait to be accepted; uvicorn's own number

logger = logging.getLogger(__name__)


def serve(config: Config) -> int:
    """Run frontend and engine until a signal or the engine's death.

    On a node other than the head's it runs stages instead, until the head ends.

    Returns:
        0 after SIGTERM or Ctrl-C, 1 when the engine died, 3 when the head on another node did.

    Raises:
        ConfigError: flags, files, checkpoint or port cannot be used.
    """
    configure_logging(config.observability.log_level)
    placement = find_placement(config.parallel, os.environ)
    if placement is not None and not placement.is_torchrun:
        _check_address(placement)
    if placement is not None and not placement.has_head:
        return _run_followers(config, placement)
    if config.model.chat_template is not None:
        from atom_lite.api.prompts import read_template

        read_template(config.model.chat_template)  # a mistake is told before the model loads
    listener = _bind(config.server.host, config.server.port)
    with contextlib.closing(listener):
        checkpoint = resolve_checkpoint(
            config.model.model,
            revision=config.model.revision,
            load_format=config.model.load_format,
        )
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_Frontend(config, checkpoint, listener).run())


def _run_followers(config: Config, placement: Placement) -> int:
    """What this process is where another one serves: a stage, or the launcher of some."""
    if not placement.is_torchrun:
        return run_node(config, placement)
    from atom_lite.engine.stage_process import run_as_rank  # with torch, which no frontend has

    return run_as_rank(config, placement)


def _check_address(placement: Placement) -> None:
    """Fail here and at once where a name means nothing: torch would ask for it for minutes."""
    rendezvous = placement.rendezvous
    try:
        socket.getaddrinfo(rendezvous.address, rendezvous.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name at all
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"--master-addr {rendezvous.address}: {reason}") from error


def describe_engine(ready: EngineReady) -> str:
    """What runs where and what memory it takes, in one line for the log."""
    memory = ", ".join(f"{kind} {size / 1e6:.0f} MB" for kind, size in ready.memory_bytes.items())
    return (
        f"Engine ready: {ready.architecture} in {ready.dtype} on {ready.device}; memory: {memory}; "
        f"{ready.num_blocks} KV blocks of {ready.block_size} tokens, sequences of at most "
        f"{ready.max_model_len} tokens, {ready.max_num_batched_tokens} tokens a step"
    )


def _grammar_client(config: Config, ready: EngineReady, tokenizer: Tokenizer) -> GrammarClient:
    settings = config.structured_outputs

    def make_setup() -> GrammarCompilerSetup:
        return GrammarCompilerSetup(
            pieces=tokenizer.vocabulary(ready.vocab_size),
            eos_token_ids=ready.eos_token_ids,
            backend=settings.structured_outputs_backend,
            timeout_seconds=settings.grammar_compile_timeout_seconds,
            memory_bytes=settings.grammar_compile_memory_bytes,
        )

    return GrammarClient(
        [sys.executable, "-m", GRAMMAR_COMPILER_MODULE],
        make_setup,
        timeout_seconds=settings.grammar_compile_timeout_seconds,
    )


def ignored_settings(config: Config, ready: EngineReady, checkpoint: Checkpoint) -> list[str]:
    """What the operator asked for and this start has no use for, each with the reason."""
    cache, model, parallel = config.cache, config.model.model, config.parallel
    found = []
    if parallel.nnodes == 1:
        no_meeting = "it says where several hosts meet, and --nnodes is 1"
        if parallel.master_addr is not None:
            found.append(f"--master-addr: {no_meeting}")
        if parallel.master_port != ParallelConfig().master_port:
            found.append(f"--master-port: {no_meeting}")
    if cache.gpu_memory_utilization != CacheConfig().gpu_memory_utilization:
        if ready.device == "cpu":
            found.append("--gpu-memory-utilization: the model runs on a CPU")
        elif cache.num_gpu_blocks_override or cache.kv_cache_memory_bytes:
            found.append("--gpu-memory-utilization: the KV cache's size is given")
    if cache.kv_cache_memory_bytes and cache.num_gpu_blocks_override:
        found.append("--kv-cache-memory-bytes: --num-gpu-blocks-override goes before it")
    is_local = checkpoint.kind == "gguf" if model is None else Path(model).expanduser().exists()
    if config.model.revision is not None and is_local:
        found.append(f"--revision: the model comes from {checkpoint.path}, not from the hub")
    return found


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.Loop


def _bind(host: str, port: int) -> socket.socket:
    """Take the port without listening yet: clients are refused, not kept waiting, while we load."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, ValueError, OverflowError) as error:  # ValueError: no host name at all
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"--host {host} --port {port}: {reason}")


async def _fail_when_hung(engine: RemoteEngine) -> None:
    """End the run of a pipeline whose head has stopped answering.

    Its stages have left it by then, or are held up by it for good, so it cannot come back. An
    engine of one stage can, and is waited for.
    """
    await engine.wait_hung()
    engine.fail("stage 0 has stopped answering")


class _Frontend:
    """One run of the frontend, from the first process to the last answer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, listener: socket.socket) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._listener = listener
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._grammars: GrammarClient | None = None

    async def run(self) -> int:
        self._install_signal_handlers()
        engine = RemoteEngine()
        process = await self._start_engine(engine)
        watcher = asyncio.create_task(self._watch(process, engine))
        try:
            app = await self._start_app(engine)
            if app is None:
                return 0
            return await self._serve_http(app, engine)
        except EngineError as error:
            logger.error("the engine could not start: %s", error)
            return 1
        finally:
            if self._grammars is not None:
                await self._grammars.close()
            await self._end_engine(process, engine)
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            await engine.close()

    def _install_signal_handlers(self) -> None:
        def on_signal() -> None:
            if self._stop.is_set():
                self._stop_now.set()
            self._stop.set()

        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, on_signal)

    async def _start_engine(self, engine: RemoteEngine) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            ENGINE_MODULE,
            engine.requests_address,
            engine.events_address,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._config) + b"\n")
        return process

    async def _watch(self, process: asyncio.subprocess.Process, engine: RemoteEngine) -> None:
        code = await process.wait()
        await asyncio.sleep(_POLL_SECONDS)  # its last words may still be in the pipe
        engine.fail(f"the engine process ended with exit code {code}")

    async def _start_app(self, engine: RemoteEngine) -> FastAPI | None:
        """The HTTP application once the engine is ready; None when a signal came first."""
        starting = asyncio.gather(engine.wait_ready(), asyncio.to_thread(self._prepare_app))
        stopped = asyncio.create_task(self._stop.wait())
        either: set[asyncio.Future[Any]] = {starting, stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return None
        ready, make_app = starting.result()
        logger.info("%s", describe_engine(ready))
        for reason in ignored_settings(self._config, ready, self._checkpoint):
            logger.warning("ignored: %s", reason)
        return make_app(engine, ready)

    def _prepare_app(self) -> MakeApp:
        """All that takes time and needs no engine, on a thread of its own."""
        from atom_lite.api.app import create_app
        from atom_lite.observability.metrics import Metrics
        from atom_lite.text.tokenizer import Tokenizer

        override = self._config.model.tokenizer
        tokenizer = Tokenizer.from_checkpoint(
            self._checkpoint.path, override=Path(override) if override else None
        )

        def make_app(engine: RemoteEngine, ready: EngineReady) -> FastAPI:
            names = self._config.model.served_model_name or (self._checkpoint.name,)
            metrics = Metrics(self._config, ready, names[0])
            engine.on_frame = metrics.observe_engine
            self._grammars = _grammar_client(self._config, ready, tokenizer)
            return create_app(
                self._config,
                engine,
                tokenizer,
                model_name=names[0],
                metrics=metrics,
                grammars=self._grammars,
            )

        return make_app

    async def _serve_http(self, app: FastAPI, engine: RemoteEngine) -> int:
        from atom_lite.api.http_server import HttpServer
        from atom_lite.observability.status_line import run_status_line

        self._listen()
        server = HttpServer.of(app, self._config.server)
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        background: list[asyncio.Task[Any]] = [asyncio.create_task(self._announce(server))]
        if not self._config.observability.disable_log_stats:
            background.append(asyncio.create_task(run_status_line(engine)))
        stopped = asyncio.create_task(self._stop.wait())
        failed = asyncio.create_task(engine.wait_failed())
        background += [stopped, failed]
        if engine.ready.num_stages > 1:
            background.append(asyncio.create_task(_fail_when_hung(engine)))
        try:
            await asyncio.wait({serving, failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                logger.error("the HTTP server ended by itself", exc_info=serving.exception())
                return 1
            if failed.done() and not self._stop.is_set():
                return await self._outlive_engine()
            return await self._drain(app, server)
        finally:
            server.should_exit = True
            for task in background:
                task.cancel()
            await asyncio.gather(serving, *background, return_exceptions=True)

    def _listen(self) -> None:
        """Listen on the port. Two servers may bind one port unnoticed; only one can listen.

        uvloop's own attempt would fail without a word.
        """
        try:
            self._listener.listen(_BACKLOG)
        except OSError as error:
            raise _cannot_listen(
                self._config.server.host, self._config.server.port, error
            ) from error

    async def _announce(self, server: HttpServer) -> None:
        while not server.started:
            await asyncio.sleep(_POLL_SECONDS)
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("Serving %s on http://%s:%d", self._checkpoint.name, shown, port)

    async def _outlive_engine(self) -> int:
        """Answer /health with 503 for a while, so that whoever watches learns why, then give up."""
        grace = self._config.server.engine_death_grace_seconds
        logger.error("the engine died; this process exits in %g s", grace)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), grace)
        return 1

    async def _drain(self, app: FastAPI, server: HttpServer) -> int:
        """Let running requests finish, for at most --shutdown-timeout seconds."""
        frontend = app.state.frontend
        frontend.begin_shutdown()
        server.refuse_new_connections()
        timeout = self._config.server.shutdown_timeout
        if frontend.open_requests:
            logger.info("stopping: %d requests get %g s", frontend.open_requests, timeout)
        deadline = asyncio.get_running_loop().time() + timeout
        while frontend.open_requests and not self._stop_now.is_set():
            if asyncio.get_running_loop().time() > deadline:
                logger.warning("stopping: %d requests are cut off", frontend.open_requests)
                break
            await asyncio.sleep(_POLL_SECONDS)
        frontend.abort_all()
        return 0

    async def _end_engine(self, process: asyncio.subprocess.Process, engine: RemoteEngine) -> None:
        if process.returncode is None:
            engine.shut_down()
            assert process.stdin is not None
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _ENGINE_EXIT_SECONDS)
        except TimeoutError:
            logger.warning("the engine did not exit in %g s; killing it", _ENGINE_EXIT_SECONDS)
            process.kill()
            await process.wait()
