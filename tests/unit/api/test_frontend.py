from __future__ import annotations

import asyncio

import pytest

from atom_lite.api.admission import QueueLimit
from atom_lite.config import Config, ModelConfig
from atom_lite.errors import ConfigError
from atom_lite.messages import EngineStats
from tests.fakes.fake_engine import FakeEngine, engine_ready
from tests.unit.api.serving import in_memory, model_config, run, saying, server_config


def test_prompt_that_can_never_fit_the_cache_is_refused(tokenizer):
    ready = engine_ready(num_blocks=2, block_size=16)

    async def scenario():
        async with in_memory(FakeEngine(ready), tokenizer) as served:
            answer = await served.complete(prompt="a" * 32)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "32" in error["message"]
            assert (await served.complete(prompt="a" * 31)).status_code == 200

    run(scenario())


def test_full_queue_is_a_503_that_says_when_to_come_back(tokenizer):
    async def scenario():
        engine = saying("x", ready=engine_ready(max_num_seqs=1))
        engine.hold()
        config = server_config(max_num_queued_reqs=2)
        async with in_memory(engine, tokenizer, config) as served:
            running = [asyncio.create_task(served.chat()) for _ in range(3)]
            await engine.until(lambda: engine.num_open == 3)  # one runs, two wait
            refused = await served.chat(stream=True)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
            assert served.metric("admission_rejections_total", reason="queue_full") == 1
            engine.stats = EngineStats(num_running=1, num_waiting=0)
            running.append(asyncio.create_task(served.chat()))
            await engine.until(lambda: engine.num_open == 4)
            engine.release()
            assert {(await request).status_code for request in running} == {200}

    run(scenario())


def test_queue_limit_counts_what_the_snapshot_does_not_show_yet():
    engine = FakeEngine(engine_ready(max_num_seqs=2))
    limit = QueueLimit(engine, 1)
    assert [limit.take(1) for _ in range(4)] == [True, True, True, False]
    engine.stats = EngineStats(num_running=2, num_waiting=1)
    assert not limit.take(1)
    engine.stats = EngineStats(num_running=1, num_waiting=0)
    assert limit.take(1)
    none_may_wait = QueueLimit(engine, 0)
    assert [none_may_wait.take(1) for _ in range(2)] == [True, False]
    unlimited = QueueLimit(engine, None)
    assert all(unlimited.take(10) for _ in range(100))


def test_checks_run_in_order_and_the_client_hears_of_its_own_mistake_first(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            served.engine.die()
            assert (await served.chat(use_beam_search=True, model="other")).status_code == 400
            assert (await served.chat(model="other", max_tokens=9999)).status_code == 404
            assert (await served.chat(max_tokens=9999)).status_code == 400
            assert (await served.chat()).status_code == 503

    run(scenario())


def test_every_served_name_is_taken_and_echoed(tokenizer):
    async def scenario():
        config = model_config(served_model_name=("one", "two/three"))
        async with in_memory(saying("x"), tokenizer, config) as served:
            assert (await served.chat()).json()["model"] == "one"
            assert (await served.chat(model="two/three")).json()["model"] == "two/three"
            assert (await served.chat(model="tiny/bytes")).status_code == 404
            listed = (await served.client.get("/v1/models")).json()["data"]
            assert [card["id"] for card in listed] == ["one", "two/three"]

    run(scenario())


def test_chat_template_may_come_from_a_file_or_be_given_as_text(tokenizer, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages[0].content }}!")

    async def scenario():
        for setting, count in ((str(path), 2), ("{{ messages[0].content }}", 1)):
            config = model_config(chat_template=setting)
            async with in_memory(saying("x"), tokenizer, config) as served:
                assert (await served.chat()).json()["usage"]["prompt_tokens"] == count

    run(scenario())
    with pytest.raises(ConfigError, match="--chat-template"):
        from atom_lite.api.prompts import read_template

        read_template(str(tmp_path / "missing.jinja"))


def test_seeds_are_drawn_from_the_server_seed(tokenizer):
    async def seeds(server_seed, **fields):
        async with in_memory(
            saying("x"), tokenizer, Config(model=ModelConfig(seed=server_seed))
        ) as served:
            await served.chat(**fields)
            await served.complete(prompt=["a", "b"], **fields)
            return [message.sampling.seed for message in served.engine.submitted]

    async def scenario():
        first, again, other = await seeds(1), await seeds(1), await seeds(2)
        assert first == again != other
        assert len(set(first)) == 3
        assert await seeds(1, seed=-1) == first  # as in vLLM: any
        assert len(set(await seeds(1, seed=0))) == 1

    run(scenario())
