"""The client with the real compiler process: what hangs, crashes or eats memory harms nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from atom_lite.errors import ConfigError, EngineError, RequestError
from atom_lite.ipc import grammar_client
from atom_lite.ipc.grammar_client import GrammarClient
from atom_lite.ipc.grammar_messages import (
    CompileGrammar,
    GrammarCompilerSetup,
    GrammarSpec,
    encode_frame,
)
from tests.live_servers import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

COMMAND = (sys.executable, "-m", "atom_lite.engine.grammar_process")
QUICK = GrammarSpec(kind="choice", text='["a", "b"]')
PIECES = [*(bytes([byte]) for byte in range(256)), b""]


def setup(**changes: Any) -> GrammarCompilerSetup:
    values = {
        "pieces": PIECES,
        "eos_token_ids": [256],
        "backend": "auto",
        "timeout_seconds": 10.0,
        "memory_bytes": 512 * 1024 * 1024,
    }
    return GrammarCompilerSetup(**(values | changes))


def hanging(number: int = 0) -> GrammarSpec:
    """A grammar that xgrammar is busy with for half a minute, in little memory."""
    runs = " | ".join(f'"{"a" * length}"' for length in range(1, 400))
    rules = [f'r{rule} ::= ({runs} | "{rule}")* "b{number}"' for rule in range(30)]
    root = "root ::= " + " ".join(f"r{rule}" for rule in range(30))
    return GrammarSpec(kind="grammar", text="\n".join([root, *rules]))


@asynccontextmanager
async def running(**changes: Any) -> AsyncIterator[GrammarClient]:
    made = setup(**changes)
    client = GrammarClient(COMMAND, lambda: made, timeout_seconds=made.timeout_seconds)
    try:
        yield client
    finally:
        await client.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def refusal(client: GrammarClient, spec: GrammarSpec) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await client.compile(spec)
    return caught.value


def test_grammar_is_compiled_once_and_the_same_object_for_all() -> None:
    async def scenario() -> None:
        async with running() as client:
            first, second = await asyncio.gather(client.compile(QUICK), client.compile(QUICK))
            assert first is second
            assert await client.compile(QUICK) is first
            other = await client.compile(GrammarSpec(kind="choice", text='["c"]'))
            assert other.key != first.key
            regex = await client.compile(GrammarSpec(kind="regex", text="a+"))
            assert (first.backend, regex.backend) == ("xgrammar", "guidance")

    run(scenario())


def test_wrong_grammar_is_refused_again_without_the_process() -> None:
    async def scenario() -> None:
        async with running() as client:
            wrong = GrammarSpec(kind="regex", text="(")
            error = await refusal(client, wrong)
            assert error.status == 400
            assert "unclosed group" in error.message
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGSTOP)
            assert (await refusal(client, wrong)).message == error.message

    run(scenario())


def test_compiler_is_small_and_of_low_priority() -> None:
    async def scenario() -> None:
        async with running() as client:
            assert client.process_id is None  # nothing is started before it is needed
            await client.compile(QUICK)
            process = psutil.Process(client.process_id)
            assert process.nice() >= 10
            assert process.num_threads() == 1
            libraries = [mapped.path for mapped in process.memory_maps()]
            assert not any("torch" in path for path in libraries)
            assert process.memory_full_info().uss < 100e6

    run(scenario())


def test_hanging_grammar_ends_at_its_limit_and_holds_up_no_other() -> None:
    async def scenario() -> None:
        async with running(timeout_seconds=2.0) as client:
            await client.compile(QUICK)
            hung = asyncio.create_task(refusal(client, hanging()))
            started = time.monotonic()
            await client.compile(GrammarSpec(kind="choice", text='["quick"]'))
            assert not hung.done()
            error = await hung
            assert error.status == 400
            assert "longer than 2 s" in error.message
            assert time.monotonic() - started >= 1.9
            assert psutil.Process(client.process_id).children() == []

    run(scenario())


def test_many_hanging_grammars_leave_places_for_quick_ones() -> None:
    async def scenario() -> None:
        async with running(timeout_seconds=100.0) as client:
            await client.compile(QUICK)
            hung = [asyncio.create_task(refusal(client, hanging(n))) for n in range(1, 9)]
            await asyncio.sleep(0)  # they ask first
            await client.compile(GrammarSpec(kind="choice", text='["quick"]'))
            done, _ = await asyncio.wait(hung, return_when=asyncio.FIRST_COMPLETED)
            assert all(task.result().status == 503 for task in done)
            for task in hung:
                task.cancel()

    run(scenario())


def test_grammar_that_needs_too_much_memory_is_refused() -> None:
    members = [f"value-{number}-{number * 7919 % 1000}" for number in range(4000)]
    spec = GrammarSpec(kind="json_schema", text=json.dumps({"enum": members}))

    async def scenario() -> None:
        async with running(backend="xgrammar", memory_bytes=4 * 1024 * 1024) as client:
            error = await refusal(client, spec)
            assert error.status == 400
            assert "4 MB of memory" in error.message
            await client.compile(QUICK)

    run(scenario())


def chain(num_rules: int) -> GrammarSpec:
    """Rules that lead to each other in a row; compiling and loading it goes as deep."""
    rules = [f'r{at}: r{at + 1} "a" | "b"' for at in range(num_rules)]
    return GrammarSpec(kind="grammar", text="\n".join(["start: r0", *rules, f'r{num_rules}: "c"']))


def test_grammar_too_deep_for_the_stack_of_a_thread_is_refused() -> None:
    """The last stage loads it on one, and the overflow would end the engine."""

    async def scenario() -> None:
        async with running() as client:
            assert (await client.compile(chain(100))).backend == "guidance"
            error = await refusal(client, chain(1000))  # 3 MB of stack
            assert error.status == 400
            assert "nested too deeply" in error.message

    run(scenario())


def test_crash_of_a_compilation_is_a_refusal() -> None:
    async def scenario() -> None:
        async with running(timeout_seconds=30.0) as client:
            await client.compile(QUICK)
            hung = asyncio.create_task(refusal(client, hanging()))
            compiler = psutil.Process(client.process_id)
            while not compiler.children():
                await asyncio.sleep(0)
            compiler.children()[0].send_signal(signal.SIGSEGV)
            error = await hung
            assert error.status == 400
            assert "signal 11" in error.message
            assert client.process_id == compiler.pid

    run(scenario())


def test_compiler_that_dies_is_replaced_and_asked_again() -> None:
    async def scenario() -> None:
        async with running() as client:
            await client.compile(QUICK)
            first = client.process_id
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            waiting = asyncio.create_task(client.compile(GrammarSpec(kind="regex", text="b")))
            await asyncio.sleep(0)
            os.kill(first, signal.SIGKILL)
            assert (await waiting).compiled
            assert client.process_id != first

    run(scenario())


def test_compiler_that_does_not_answer_is_an_error_and_replaced() -> None:
    async def scenario() -> None:
        made = setup()
        client = GrammarClient(COMMAND, lambda: made, timeout_seconds=0.5, queue_seconds=0.0)
        try:
            while True:  # half a second is not much for a start on a busy machine
                try:
                    await client.compile(QUICK)
                    break
                except EngineError:
                    client._longest_wait_seconds *= 2
            first = client.process_id
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            with pytest.raises(EngineError, match="does not answer"):
                await client.compile(GrammarSpec(kind="regex", text="c"))
            client._longest_wait_seconds = 60
            await client.compile(GrammarSpec(kind="regex", text="c"))
            assert client.process_id != first
        finally:
            await client.close()

    run(scenario())


def test_compiler_that_cannot_start_is_an_error() -> None:
    async def scenario() -> None:
        for command in (("/no/such/program",), (sys.executable, "-c", "pass")):
            client = GrammarClient(command, setup, timeout_seconds=1.0)
            with pytest.raises(EngineError, match="grammar compiler"):
                await client.compile(QUICK)
            await client.close()

    run(scenario())


def test_tokenizer_without_bytes_is_told_to_the_client() -> None:
    def no_vocabulary() -> GrammarCompilerSetup:
        raise ConfigError("no bytes")

    async def scenario() -> None:
        client = GrammarClient(COMMAND, no_vocabulary, timeout_seconds=1.0)
        assert "no bytes" in (await refusal(client, QUICK)).message
        await client.close()

    run(scenario())


def test_too_many_waiting_grammars_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_client, "MAX_WAITING", 2)

    async def scenario() -> None:
        async with running() as client:
            texts = ('["1"]', '["2"]', '["3"]')
            asked = [client.compile(GrammarSpec(kind="choice", text=text)) for text in texts]
            *served, refused = await asyncio.gather(*asked, return_exceptions=True)
            assert all(hasattr(grammar, "compiled") for grammar in served)
            assert isinstance(refused, RequestError)
            assert refused.status == 503

    run(scenario())


def test_cache_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_client, "MAX_CACHE_BYTES", 3000)

    async def scenario() -> None:
        async with running() as client:
            first = await client.compile(QUICK)
            assert await client.compile(QUICK) is first
            for number in range(8):
                await client.compile(GrammarSpec(kind="regex", text=f"a{number}"))
            assert await client.compile(QUICK) is not first

    run(scenario())


def test_client_that_leaves_does_not_take_the_grammar_from_others() -> None:
    async def scenario() -> None:
        async with running() as client:
            leaving = asyncio.create_task(client.compile(QUICK))
            staying = asyncio.create_task(client.compile(QUICK))
            await asyncio.sleep(0)
            leaving.cancel()
            assert (await staying).compiled

    run(scenario())


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_no_process_outlives_the_frontend(ending: str) -> None:
    """The end of its input ends the compiler, and so what it compiles, as does its own death."""
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(encode_frame(setup(timeout_seconds=60.0)))
    process.stdin.write(encode_frame(CompileGrammar(number=1, spec=hanging())))
    process.stdin.flush()
    compiler = psutil.Process(process.pid)
    wait_until(lambda: bool(compiler.children()), 30, "a child compiles")
    (child,) = compiler.children()
    if ending == "close":
        process.stdin.close()
    else:
        process.kill()
    assert process.wait(30) == (0 if ending == "close" else -signal.SIGKILL)
    wait_until(lambda: not child.is_running(), 30, "the child ends")
    assert process.stdout is not None
    process.stdout.close()
    if ending == "kill":
        process.stdin.close()


CYCLE = {"anyOf": [{"$ref": "#/$defs/b"}] * 2}
PATHOLOGICAL = [
    ("regex", "(a{1,1000}){1,1000}"),
    ("regex", "(x+x+)+y"),
    ("regex", "(" * 5000 + "a" + ")" * 5000),
    ("regex", "((((a*)*)*)*)*" * 20),
    ("regex", r"(\p{L}|\p{N}|\w|\s){1,5000}"),
    ("regex", "|".join("a" * length for length in range(400))),
    ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
    ("json_schema", json.dumps({"enum": list(range(10_000))})),
    ("choice", json.dumps([f"value-{number}" for number in range(10_000)])),
    ("json_schema", '{"type":"string","maxLength":2000000000}'),
    ("json_schema", '{"type":"array","minItems":2000000000}'),
    ("json_schema", json.dumps({"$defs": {"b": CYCLE}, **CYCLE})),
    ("grammar", "root ::= root root | root |"),
    ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
]


@pytest.mark.parametrize("backend", ["auto", "xgrammar"])
def test_pathological_grammars_are_compiled_or_refused_in_time(backend: str) -> None:
    async def scenario() -> None:
        async with running(backend=backend, timeout_seconds=5.0) as client:
            for kind, text in PATHOLOGICAL:
                try:
                    grammar = await client.compile(GrammarSpec(kind=kind, text=text))
                except RequestError as error:
                    assert error.status == 400, text[:40]
                    assert len(error.message) < 1000, text[:40]
                else:
                    assert len(grammar.compiled) < 2 * 1024 * 1024, text[:40]

    run(scenario())
