"""Bad requests cannot hurt: thousands of them, and the server is as it was.

Two sources: schemathesis, from the server's own /openapi.json, and mutations of a corpus of valid
requests, down to the bytes on the wire. Every answer is judged (`judge.py`), and afterwards the
server must be alive, idle and silent.

The seed is `--hypothesis-seed`, a fresh one without it; it is printed, and with the number of a
request it names that request for good.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from schemathesis import GenerationMode

from atom_lite.api.not_yet import NOT_YET
from tests.conformance import corpus
from tests.conformance.judge import Judge, assert_unhurt, memory_of
from tests.conformance.mutations import Mutator
from tests.conformance.raw_http import RawRequest, send
from tests.live_servers import Server, start, start_scripted, stop
from tests.openapi_document import Answer, Document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schemathesis import Case

NUM_MUTATED, NUM_MUTATED_FULL = 220, 8000
NUM_FROM_SCHEMA, NUM_FROM_SCHEMA_FULL = 80, 2400
_CLIENTS = 8
_TIMEOUT_SECONDS = 120
_MAY_GROW_BYTES = 256 << 20
_SHOWN_COMPLAINTS = 12
FLAGS = ("--scheduling-policy", "priority", "--max-num-seqs", "16")


@dataclass(frozen=True)
class Target:
    """A server under fire and what is known of it."""

    server: Server
    document: Document
    scripted: bool

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.server.base_url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port


def aimed_at(server: Server, *, scripted: bool) -> Iterator[Target]:
    try:
        document = Document(httpx.get(server.base_url + "/openapi.json").json())
        for path, body in corpus.bodies(scripted=scripted):  # also warms everything up
            answer = httpx.post(server.base_url + path, json=body, timeout=_TIMEOUT_SECONDS)
            assert answer.status_code == 200, (path, body, answer.text)
        memory = memory_of(server)
        yield Target(server, document, scripted)
        assert_unhurt(server, may_grow_bytes=_MAY_GROW_BYTES, memory_before=memory)
    finally:
        stop(server)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Iterator[Target]:
    """A model that says what it is told to, under the real engine."""
    directory = tmp_path_factory.mktemp("fuzzed")
    config = {"max_position_embeddings": 256, "eos_token_id": 2}
    server = start_scripted(directory, smollm2_gguf, *FLAGS, **config)
    yield from aimed_at(server, scripted=True)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The default model, over two stages."""
    log = tmp_path_factory.mktemp("fuzzed") / "log.txt"
    flags = ("--max-model-len", "256", "--pipeline-parallel-size", "2")
    yield from aimed_at(start(log, *flags, *FLAGS), scripted=False)


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    given_seed = request.config.getoption("--hypothesis-seed")
    drawn = random.SystemRandom().getrandbits(32) if given_seed in (None, "random") else given_seed
    print(f"fuzzing with --hypothesis-seed={drawn}")
    return int(drawn)


def mutate(target: Target, seed: int, count: int) -> None:
    """Send mutated requests from several clients at once and judge every answer."""
    judge = Judge(target.document)
    mutator = Mutator(target.document, corpus.bodies(scripted=target.scripted), sorted(NOT_YET))

    def attempt(number: int) -> tuple[RawRequest, Answer | None, str | None]:
        request = mutator.mutated(random.Random(f"{seed} {number}"))
        try:
            answer = send(target.address, request, timeout_seconds=_TIMEOUT_SECONDS)
        except TimeoutError:
            return request, None, f"hangs: {request.encoded()[:600]!r}"
        return request, answer, judge.complaint(request, answer)

    with ThreadPoolExecutor(_CLIENTS) as pool:
        outcomes = list(pool.map(attempt, range(count)))
    complaints = [
        f"number {number}: {complaint}"
        for number, (_, _, complaint) in enumerate(outcomes)
        if complaint
    ]
    assert not complaints, f"seed {seed}, {len(complaints)} of {count}:\n" + "\n".join(
        complaints[:_SHOWN_COMPLAINTS]
    )
    statuses = [answer.status for _, answer, _ in outcomes if answer is not None]
    assert statuses.count(200) > count / 10  # or most of them would be refused at the door
    assert statuses.count(400) > count / 10


def fire_from_schema(target: Target, seed: int, count: int) -> None:
    """Send what schemathesis makes of the document, for every path, good and bad."""
    judge = Judge(target.document)
    schema = schemathesis.openapi.from_dict(target.document.document)
    operations = [result.ok() for result in schema.get_all_operations()]
    with_body = [operation for operation in operations if operation.body]
    share = count // (2 * len(with_body) + 2)
    for operation in operations:
        # where there is no body nothing can be wrong
        for mode in GenerationMode if operation.body else [GenerationMode.POSITIVE]:
            examples = share if operation.body else max(1, share // len(operations))

            @hypothesis_seed(seed)
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: Case) -> None:
                response = case.call(base_url=target.server.base_url, timeout=_TIMEOUT_SECONDS)
                content = response.content or b""
                headers = {name.lower(): values[0] for name, values in response.headers.items()}
                answer = Answer(response.status_code, headers, content)
                target_path = urlsplit(response.request.url).path.encode()
                body = response.request.body or b""
                sent = RawRequest(
                    case.method, target_path, body if isinstance(body, bytes) else body.encode()
                )
                complaint = judge.complaint(sent, answer)
                assert complaint is None, complaint

            check()


def test_mutated_requests_hurt_nobody(scripted: Target, seed: int) -> None:
    mutate(scripted, seed, NUM_MUTATED)


def test_requests_made_from_the_document_hurt_nobody(scripted: Target, seed: int) -> None:
    fire_from_schema(scripted, seed, NUM_FROM_SCHEMA)


@pytest.mark.full
def test_ten_thousand_requests_hurt_nobody(scripted: Target, seed: int) -> None:
    mutate(scripted, seed + 1, NUM_MUTATED_FULL)
    fire_from_schema(scripted, seed + 1, NUM_FROM_SCHEMA_FULL)


@pytest.mark.full
def test_two_thousand_requests_do_not_hurt_the_real_model(real: Target, seed: int) -> None:
    mutate(real, seed + 2, 1500)
    fire_from_schema(real, seed + 2, 500)
