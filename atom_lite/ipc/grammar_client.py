"""The frontend's end of the grammar compiler: specs in, compiled grammars out, cached.

    compile(spec) -> cache -> the same spec on its way -> the compiler process, started on first use

The process is started with the first structured request, which then waits half a second more; a
server that sees none pays nothing. One that dies or does not answer is replaced; what it was asked
is asked once more. Runs on the frontend's event loop and never blocks it.

Invariant: every call ends, with a grammar or an error, within the time limit of a grammar and a
minute for those before it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from atom_lite.errors import ConfigError, EngineError, RequestError
from atom_lite.ipc.grammar_messages import (
    LENGTH_BYTES,
    CompileGrammar,
    GrammarAnswer,
    GrammarCompiled,
    GrammarCompilerSetup,
    GrammarSpec,
    body_length,
    decode_answer,
    encode_frame,
)
from atom_lite.messages import Grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_WAITING = 64  # different grammars under way
MAX_CACHE_BYTES = 64 * 1024 * 1024
QUEUE_SECONDS = 60.0
_ENTRY_BYTES = 500  # of a cache entry besides its text

logger = logging.getLogger(__name__)


class GrammarClient:
    """Compiles grammars in a process of its own.

    Args:
        command: starts the compiler.
        make_setup: the vocabulary and limits; called on a thread, once for each start.
        timeout_seconds: of one grammar, as in the set-up.
        queue_seconds: how much longer an answer may take before the compiler counts as hung.
    """

    def __init__(
        self,
        command: Sequence[str],
        make_setup: Callable[[], GrammarCompilerSetup],
        *,
        timeout_seconds: float,
        queue_seconds: float = QUEUE_SECONDS,
    ) -> None:
        self._command = command
        self._make_setup = make_setup
        self._longest_wait_seconds = timeout_seconds + queue_seconds
        self._cache = _Cache(MAX_CACHE_BYTES)
        self._under_way: dict[str, asyncio.Task[Grammar]] = {}
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()
        self._process: _CompilerProcess | None = None

    @property
    def process_id(self) -> int | None:
        """Of the running compiler."""
        return None if self._process is None else self._process.process.pid

    async def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar of a spec; the same object for the same spec while it is cached.

        Raises:
            RequestError: 400 where it cannot be compiled, 503 where too many wait.
            EngineError: the compiler cannot be run.
        """
        key = hashlib.sha256(msgspec.msgpack.encode(spec)).hexdigest()
        known = self._cache.get(key)
        if isinstance(known, Grammar):
            return known
        if known is not None:
            raise RequestError(known)
        task = self._under_way.get(key)
        if task is None:
            if len(self._under_way) >= MAX_WAITING:
                raise _busy(f"{MAX_WAITING} grammars wait to be compiled")
            task = asyncio.create_task(self._compile(key, spec))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)  # a client that leaves must not take it from the others

    async def close(self) -> None:
        """End the compiler; callers that still wait get an error."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._process is not None:
            await self._process.end()

    def _forget(self, key: str, done: asyncio.Task[Grammar]) -> None:
        del self._under_way[key]
        if not done.cancelled():
            done.exception()  # seen: its callers may all have left

    async def _compile(self, key: str, spec: GrammarSpec) -> Grammar:
        answer = await self._ask(spec)
        if isinstance(answer, GrammarCompiled):
            grammar = Grammar(key=key, backend=answer.backend, compiled=answer.compiled)
            self._cache.put(key, grammar, len(answer.compiled))
            return grammar
        if answer.fault == "busy":
            raise _busy(answer.reason)
        if answer.fault == "wrong":
            self._cache.put(key, answer.reason, len(answer.reason))
        raise RequestError(answer.reason)

    async def _ask(self, spec: GrammarSpec) -> GrammarAnswer:
        for is_last in (False, True):
            process = await self._running()
            try:
                question = CompileGrammar(number=next(self._numbers), spec=spec)
                async with asyncio.timeout(self._longest_wait_seconds):
                    return await process.ask(question)
            except TimeoutError:
                await process.end()
                raise EngineError("the grammar compiler does not answer") from None
            except EngineError:
                if is_last:
                    raise
        raise AssertionError("unreachable")

    async def _running(self) -> _CompilerProcess:
        async with self._starting:
            if self._process is None or self._process.is_gone:
                if self._process is not None:
                    await self._process.end()
                try:
                    setup = await asyncio.to_thread(lambda: encode_frame(self._make_setup()))
                except ConfigError as error:
                    raise RequestError(f"no grammar can be compiled: {error}") from error
                self._process = await _CompilerProcess.start(self._command, setup)
            return self._process


class _CompilerProcess:
    """One run of the compiler."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.is_gone = False
        self._ended_here = False
        self._answers: dict[int, asyncio.Future[GrammarAnswer]] = {}
        self._reader = asyncio.create_task(self._run_reader())

    @classmethod
    async def start(cls, command: Sequence[str], setup: bytes) -> _CompilerProcess:
        """Start it and hand it the frame of its set-up."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in a terminal is not for it
            )
        except OSError as error:
            raise EngineError(f"the grammar compiler cannot be started: {error}") from error
        logger.info("grammar compiler started, process %d", process.pid)
        started = cls(process)
        started._write(setup)
        return started

    async def ask(self, question: CompileGrammar) -> GrammarAnswer:
        """The answer to one question.

        Raises:
            EngineError: the process is gone, or goes meanwhile.
        """
        if self.is_gone:
            raise EngineError("the grammar compiler is gone")
        future: asyncio.Future[GrammarAnswer] = asyncio.get_running_loop().create_future()
        self._answers[question.number] = future
        try:
            self._write(encode_frame(question))
            return await future
        finally:
            del self._answers[question.number]

    async def end(self) -> None:
        """Kill it, if it still runs."""
        self._ended_here = True
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await asyncio.gather(self._reader, return_exceptions=True)

    def _write(self, frame: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frame)  # the loop keeps what does not fit into the pipe yet

    async def _run_reader(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                prefix = await self.process.stdout.readexactly(LENGTH_BYTES)
                body = await self.process.stdout.readexactly(body_length(prefix))
                answer = decode_answer(body)
                future = self._answers.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer)
        except asyncio.IncompleteReadError:
            if not self._ended_here:
                logger.warning("the grammar compiler died; the next grammar starts another")
        except (EngineError, msgspec.MsgspecError):
            logger.exception("the grammar compiler's answers cannot be read")
        finally:
            self._fail()

    def _fail(self) -> None:
        self.is_gone = True
        for future in self._answers.values():
            if not future.done():
                future.set_exception(EngineError("the grammar compiler died"))


class _Cache:
    """Grammars, and why others are wrong, by the hash of their spec; the oldest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[str, tuple[Grammar | str, int]] = OrderedDict()

    def get(self, key: str) -> Grammar | str | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: str, value: Grammar | str, num_bytes: int) -> None:
        num_bytes += _ENTRY_BYTES
        self._entries[key] = (value, num_bytes)
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._num_bytes -= freed


def _busy(reason: str) -> RequestError:
    return RequestError(f"The server is busy: {reason}", code="queue_full", status=503)
