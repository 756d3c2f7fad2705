"""Mixed use for a while: no error in the log, no leaked block, every request with an answer.

`ATOM_LITE_SOAK_SECONDS` sets how long; ten minutes by default, under the marker `full`.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.live_servers import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = float(os.environ.get("ATOM_LITE_SOAK_SECONDS", "600"))
WORKERS = 8
TOPICS = ("rivers", "bridges", "bread", "clocks", "kites", "salt", "maps", "owls")


class User:
    """One client that keeps doing random things until told to stop."""

    def __init__(self, server: Server, seed: int, stop: threading.Event) -> None:
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self._random = random.Random(seed)
        self._stop = stop
        self._client = httpx.Client(base_url=server.base_url, timeout=120)

    def run(self) -> None:
        actions = (self.chat, self.stream, self.leave, self.leave_early, self.mistake, self.batch)
        with self._client:
            while not self._stop.is_set():
                action = self._random.choice(actions)
                try:
                    action()
                    self.outcomes[action.__name__] += 1
                except (httpx.HTTPError, AssertionError, KeyError) as error:
                    self.problems.append(f"{action.__name__}: {error!r}")

    def prompt(self) -> str:
        topic = self._random.choice(TOPICS)
        return f"Write about {topic}. " * self._random.choice((1, 2, 5, 20, 80))

    def fields(self) -> dict[str, Any]:
        return {
            "max_tokens": self._random.randrange(1, 40),
            "temperature": self._random.choice((0, 0.7, 1.5)),
            "top_p": self._random.choice((1, 0.9)),
            "seed": self._random.randrange(100),
            "stop": self._random.choice((None, ["."], ["\n", "the"])),
        }

    def chat(self) -> None:
        messages = [{"role": "user", "content": self.prompt()}]
        reply = self._client.post(
            "/v1/chat/completions", json={"messages": messages, **self.fields()}
        )
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["finish_reason"] in ("stop", "length")

    def stream(self) -> None:
        body = {"prompt": self.prompt(), "stream": True, **self.fields()}
        with self._client.stream("POST", "/v1/completions", json=body) as reply:
            lines = [line for line in reply.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] in ("stop", "length")

    def leave(self) -> None:
        body = {"prompt": self.prompt(), "stream": True, "max_tokens": 500, "ignore_eos": True}
        with self._client.stream("POST", "/v1/completions", json=body) as reply:
            next(reply.iter_lines())

    def leave_early(self) -> None:
        body = {"prompt": self.prompt(), "max_tokens": 500, "ignore_eos": True}
        with pytest.raises(httpx.ReadTimeout):
            self._client.post("/v1/completions", json=body, timeout=self._random.random() / 2)

    def mistake(self) -> None:
        body: dict[str, Any] = self._random.choice(
            (
                {"prompt": [7] * 9000},
                {"prompt": "x", "temperature": 9},
                {"prompt": "x", "stop": [""]},
                {"prompt": "x", "stop_token_ids": [10**6]},
                {"prompt": "\ud83d"},
                {},
            )
        )
        reply = self._client.post(
            "/v1/completions",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
        assert reply.status_code == 400, reply.text

    def batch(self) -> None:
        prompts = [self.prompt() for _ in range(3)]
        reply = self._client.post("/v1/completions", json={"prompt": prompts, **self.fields()})
        assert [choice["index"] for choice in reply.json()["choices"]] == [0, 1, 2]


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 300)
def test_mixed_use_leaves_nothing_behind(start_server: Callable[..., Server]) -> None:
    server = start_server("--num-gpu-blocks-override", "600")
    stop = threading.Event()
    users = [User(server, seed, stop) for seed in range(WORKERS)]
    threads = [threading.Thread(target=user.run) for user in users]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join(200)
    wait_until(lambda: server.metric("atom_lite:num_requests_running") == 0, 20, "nothing runs")
    done = sum((user.outcomes for user in users), Counter())
    print(f"{SECONDS:g} s of mixed use:", dict(done))
    assert not [problem for user in users for problem in user.problems]
    assert len(done) == 6
    assert server.metric("atom_lite:kv_cache_usage_perc") == 0
    assert server.metric("atom_lite:num_requests_waiting") == 0
    assert "Traceback" not in server.log_text()
    assert "ERROR" not in server.log_text()
