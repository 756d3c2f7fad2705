from __future__ import annotations

import subprocess
import sys

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.unit.api.serving import events_of, in_memory, run, saying


def test_frontend_imports_no_heavy_library():
    program = (
        "import sys, atom_lite.api.app\n"
        "heavy = {'torch', 'transformers', 'xgrammar', 'numpy'} & sys.modules.keys()\n"
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_answers_satisfy_the_official_types(tokenizer):
    async def scenario():
        async with in_memory(saying("hi"), tokenizer) as served:
            ChatCompletion.model_validate((await served.chat()).json())
            Completion.model_validate((await served.complete()).json())
            options = {"include_usage": True, "continuous_usage_stats": True}
            stream = await served.chat(stream=True, stream_options=options)
            for event in events_of(stream.text):
                ChatCompletionChunk.model_validate(event)

    run(scenario())


def test_answers_count_as_one_request_in_every_metric(tokenizer):
    async def scenario():
        async with in_memory(saying("hello"), tokenizer) as served:
            for number in range(5):
                await served.chat(stream=number % 2 == 0)
            for name in (
                "time_to_first_token_seconds_count",
                "e2e_request_latency_seconds_count",
                "request_queue_time_seconds_count",
                "request_prompt_tokens_count",
                "request_params_n_count",
            ):
                assert served.metric(name) == 5, name
            assert served.metric("request_success_total", finished_reason="stop") == 5
            assert served.metric("generation_tokens_total") == 30
            assert served.metric("inter_token_latency_seconds_count") == 25
            page = (await served.client.get("/metrics")).text
            assert 'atom_lite:generation_tokens_total{engine="0",' in page

    run(scenario())


def test_metrics_of_a_stop_string_count_what_usage_counts(tokenizer):
    async def scenario():
        async with in_memory(saying("one two three"), tokenizer) as served:
            usage = (await served.chat(stop="two")).json()["usage"]
            assert served.metric("request_success_total", finished_reason="stop") == 1
            assert served.metric("request_generation_tokens_sum") == usage["completion_tokens"]

    run(scenario())
