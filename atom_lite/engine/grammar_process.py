"""The grammar compiler: `python -m atom_lite.engine.grammar_process`, a child of the frontend.

It reads CompileGrammar frames from standard input and answers on standard output. Clients send the
grammars, so compiling must be able to hang, crash and eat memory without harm: this process only
loads the libraries and the vocabulary, and forks a child for each grammar (2 ms; nothing is loaded
again). A child has a time limit, a memory limit and low priority, and is killed when it is over;
one that takes long is stopped in turns while others want the cores (`grammar_pacing`).

Several children run at once. Those that are no longer quick may take only some of the places, and
one too many ends with "busy": however many bad grammars come, a quick one waits a second or two.

The end of standard input is the end of the frontend: children are killed, the process exits. When
this process is killed, Linux kills its children; elsewhere their limit of CPU time ends them.
Never imports torch: 95 MB with SmolLM2's vocabulary, ready in half a second.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NoReturn

import psutil

from atom_lite.engine.grammar_compiler import GrammarCompiler
from atom_lite.engine.grammar_pacing import Pacing
from atom_lite.engine.grammar_xgrammar import load_xgrammar_alone
from atom_lite.errors import RequestError
from atom_lite.ipc.grammar_messages import (
    LENGTH_BYTES,
    CompileGrammar,
    GrammarAnswer,
    GrammarCompiled,
    GrammarCompilerSetup,
    GrammarQuestion,
    GrammarRefused,
    body_length,
    decode_question,
    encode_frame,
)

MAX_CHILDREN = 4
MAX_SLOW_CHILDREN = 2
QUICK_SECONDS = 1.0
FOREGROUND_SECONDS = 0.1  # a child that takes longer is paced
# The last stage loads what passes here on a thread, which may have 2 MB where this process has 8:
# an overflow there would end the engine.
_STACK_BYTES = 1 << 20
_NICENESS = 10
_READ_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Child:
    """A process that compiles one grammar, and what came of it so far."""

    number: int
    pid: int
    pipe: int  # its answer comes here, then the end of file
    deadline: float
    background_from: float
    slow_from: float
    is_in_background: bool = False
    is_slow: bool = False
    answer: bytearray = field(default_factory=bytearray)

    @property
    def next_limit(self) -> float:
        """When something is to be done about it next."""
        if not self.is_in_background:
            return self.background_from
        return self.deadline if self.is_slow else self.slow_from


class GrammarServer:
    """Answers questions until its input ends.

    Args:
        questions: file descriptor to read frames from.
        answers: file descriptor to write frames to.
    """

    def __init__(self, questions: int, answers: int) -> None:
        self._questions = questions
        self._answers = answers
        self._received = bytearray()
        self._setup: GrammarCompilerSetup | None = None
        self._compiler: GrammarCompiler | None = None
        self._waiting: deque[CompileGrammar] = deque()
        self._children: list[_Child] = []
        self._pacing = Pacing()
        self._selector = selectors.DefaultSelector()
        self._selector.register(questions, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve; on every way out no child is left."""
        try:
            while self._serve_once():
                pass
        finally:
            for child in self._children:
                self._kill(child)

    def _serve_once(self) -> bool:
        """Wait for something to do and do it; False at the end of the input."""
        for key, _ in self._selector.select(self._seconds_to_next_limit()):
            if key.fd == self._questions:
                if not self._read_questions():
                    return False
            else:
                self._read_answer(key.data)
        self._enforce_limits()
        while self._waiting and len(self._children) < MAX_CHILDREN:
            self._start(self._waiting.popleft())
        self._pacing.turn()
        return True

    def _read_questions(self) -> bool:
        data = os.read(self._questions, _READ_BYTES)
        self._received += data
        while len(self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + body_length(bytes(self._received[:LENGTH_BYTES]))
            if len(self._received) < end:
                break
            body = bytes(self._received[LENGTH_BYTES:end])
            del self._received[:end]
            self._take(decode_question(body))
        return bool(data)

    def _take(self, question: GrammarQuestion) -> None:
        if isinstance(question, CompileGrammar):
            self._waiting.append(question)
            return
        self._setup = question
        self._compiler = GrammarCompiler(question.pieces, question.eos_token_ids, question.backend)

    def _start(self, question: CompileGrammar) -> None:
        assert self._setup is not None and self._compiler is not None, "no set-up before a grammar"
        readable, writable = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(self._questions)
            os.close(self._answers)  # else the frontend would not notice the end of this process
            _end_with(parent)
            _run_child(self._compiler, self._setup, question, writable)
        os.close(writable)
        now = time.monotonic()
        child = _Child(
            number=question.number,
            pid=pid,
            pipe=readable,
            deadline=now + self._setup.timeout_seconds,
            background_from=now + min(FOREGROUND_SECONDS, self._setup.timeout_seconds),
            slow_from=now + min(QUICK_SECONDS, self._setup.timeout_seconds),
        )
        self._children.append(child)
        self._selector.register(readable, selectors.EVENT_READ, child)

    def _read_answer(self, child: _Child) -> None:
        data = os.read(child.pipe, _READ_BYTES)
        child.answer += data
        if data:
            return
        status = self._reap(child)
        if status == 0:
            self._write(bytes(child.answer))
        else:
            self._refuse(child, self._why_it_died(status))

    def _why_it_died(self, status: int) -> str:
        assert self._setup is not None
        megabytes = self._setup.memory_bytes // 10**6
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        return (
            f"compiling it crashed ({how}): it is nested too deeply, or needs more than "
            f"{megabytes} MB of memory"
        )

    def _seconds_to_next_limit(self) -> float | None:
        now = time.monotonic()
        waits = [max(0.0, child.next_limit - now) for child in self._children]
        turn = self._pacing.seconds_to_next_turn()
        if turn is not None:
            waits.append(turn)
        return min(waits, default=None)

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for child in list(self._children):
            if now >= child.deadline:
                self._kill(child)
                assert self._setup is not None
                self._refuse(
                    child, f"compiling it took longer than {self._setup.timeout_seconds:g} s"
                )
            elif now >= child.slow_from and not child.is_slow:
                self._keep_if_there_is_a_place(child)
            elif now >= child.background_from and not child.is_in_background:
                child.is_in_background = True
                self._pacing.add(child.pid)

    def _keep_if_there_is_a_place(self, child: _Child) -> None:
        if sum(other.is_slow for other in self._children) < MAX_SLOW_CHILDREN:
            child.is_slow = child.is_in_background = True
            self._pacing.add(child.pid)
            return
        self._kill(child)
        reason = f"too many grammars that take longer than {QUICK_SECONDS:g} s to compile"
        self._write(encode_frame(GrammarRefused(number=child.number, reason=reason, fault="busy")))

    def _kill(self, child: _Child) -> None:
        os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        self._reap(child)

    def _reap(self, child: _Child) -> int:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        self._children.remove(child)
        self._pacing.remove(child.pid)
        return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])

    def _refuse(self, child: _Child, reason: str) -> None:
        refusal = GrammarRefused(number=child.number, reason=reason, fault="costly")
        self._write(encode_frame(refusal))

    def _write(self, frame: bytes) -> None:
        _write_all(self._answers, frame)


def _run_child(
    compiler: GrammarCompiler, setup: GrammarCompilerSetup, question: CompileGrammar, pipe: int
) -> NoReturn:
    """Compile and answer; nothing of the parent's runs on, whatever happens."""
    exit_code = 1
    try:
        _limit(setup)
        _write_all(pipe, encode_frame(_answer(compiler, setup, question)))
        exit_code = 0
    finally:
        os._exit(exit_code)


def _end_with(parent: int) -> None:
    """Have this process killed when its parent ends, as nobody else could end it then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit(setup: GrammarCompilerSetup) -> None:
    size = psutil.Process().memory_info().vms + setup.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    seconds = math.ceil(setup.timeout_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(
    compiler: GrammarCompiler, setup: GrammarCompilerSetup, question: CompileGrammar
) -> GrammarAnswer:
    try:
        backend, compiled = compiler.compile(question.spec)
    except RequestError as error:
        if "std::bad_alloc" not in error.message:
            return GrammarRefused(number=question.number, reason=error.message)
    except MemoryError:
        pass  # as above
    except Exception as error:  # a client's grammar must not pass for a crash of ours
        logger.exception("a grammar could not be compiled")
        reason = f"it cannot be compiled: {type(error).__name__}"
        return GrammarRefused(number=question.number, reason=reason)
    else:
        return GrammarCompiled(number=question.number, backend=backend, compiled=compiled)
    megabytes = setup.memory_bytes // 10**6
    reason = f"compiling it needs more than {megabytes} MB of memory"
    return GrammarRefused(number=question.number, reason=reason, fault="costly")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def main() -> int:
    """Serve until the frontend is gone."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s grammar compiler: %(message)s")
    os.nice(_NICENESS)
    # Whatever a library prints must not get between the frames.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    load_xgrammar_alone()
    GrammarServer(sys.stdin.fileno(), answers).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
