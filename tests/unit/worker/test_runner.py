"""The runner on a tiny random model, driven by hand-made plans instead of a scheduler."""

import json
import logging
from dataclasses import replace

import pytest

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from atom_lite.errors import ConfigError
from atom_lite.messages import SamplingParams, SequenceStart, StepPlan, StepRow
from atom_lite.worker.forward_timer import EventTimer
from atom_lite.worker.runner import Runner
from tests.fakes.device import Device

BLOCK_SIZE = 4
EOS = 2
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 199,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}
PROMPT = [5, 9, 120, 7, 7, 33, 64, 101, 3, 12, 90]
GREEDY = SamplingParams(max_tokens=50, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=50, temperature=1.3, top_p=0.9, top_k=60, seed=42)
SHAPED = SamplingParams(
    max_tokens=50,
    temperature=1.3,
    seed=42,
    min_tokens=5,
    presence_penalty=1.5,
    frequency_penalty=0.8,
    repetition_penalty=1.5,
    logit_bias={9: 2.0, 120: -3.0},
    allowed_token_ids=(*range(1, 160, 2), 9, 120),
    bad_words=tuple((before, last) for before in range(1, 160) for last in (11, 13, 15)),
)
KINDS = pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, SHAPED], ids=["greedy", "sampled", "shaped"]
)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(TINY))
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_p": 0.8}))
    return str(path)


def config_of(model_path, *, cache=None, **model):
    return Config(
        model=ModelConfig(
            model=model_path,
            **{"load_format": "dummy", "dtype": "float32", "device": "cpu"} | model,
        ),
        cache=cache or CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=100),
        scheduler=SchedulerConfig(max_num_seqs=4),
    )


@pytest.fixture(scope="module")
def runner(model_path):
    return Runner.load(config_of(model_path))


class HandMadeHead:
    """Sends a runner the plans of a few sequences: whole prompts or chunks, then decodes."""

    def __init__(self, runner, first_block=0):
        self.runner = runner
        self.next_block = first_block
        self.num_blocks = {}
        self.step_id = 0

    def run(self, *, starts=(), rows=(), drops=()):
        self.step_id += 1
        plan = StepPlan(
            step_id=self.step_id, starts=list(starts), rows=list(rows), drops=list(drops)
        )
        result = self.runner.run(plan)
        assert result.step_id == self.step_id
        return result

    def row(self, sequence_id, start, num_tokens, *, sample, epoch=0, token_ids=()):
        held = self.num_blocks.get((sequence_id, epoch), 0)
        needed = -(-(start + num_tokens) // BLOCK_SIZE)
        new_blocks = list(range(self.next_block, self.next_block + needed - held))
        self.next_block += len(new_blocks)
        self.num_blocks[sequence_id, epoch] = needed
        return StepRow(
            sequence_id=sequence_id,
            epoch=epoch,
            start=start,
            num_tokens=num_tokens,
            sample=sample,
            new_block_ids=new_blocks,
            token_ids=list(token_ids),
        )

    def prefill(
        self, sequence_id, prompt, sampling, *, chunks, epoch=0, num_prompt=None, script=None
    ):
        """Run a prompt in chunks and return its first token."""
        starts = [
            SequenceStart(
                sequence_id=sequence_id,
                epoch=epoch,
                token_ids=prompt,
                num_prompt_tokens=num_prompt or len(prompt),
                sampling=sampling,
                script=script,
            )
        ]
        done = 0
        for chunk in chunks:
            last = done + chunk == len(prompt)
            row = self.row(sequence_id, done, chunk, sample=last, epoch=epoch)
            result = self.run(starts=starts, rows=[row])
            assert len(result.tokens) == last
            starts, done = [], done + chunk
        return result.tokens[0].token_id

    def decode(self, position_and_token, *, epoch=0):
        """One decode of each sequence of {id: (position, token)}; returns {id: next token}."""
        rows = [
            self.row(sequence_id, position, 1, sample=True, epoch=epoch, token_ids=[token])
            for sequence_id, (position, token) in position_and_token.items()
        ]
        result = self.run(rows=rows)
        assert [token.epoch for token in result.tokens] == [epoch] * len(rows)
        return {token.sequence_id: token.token_id for token in result.tokens}

    def generate(self, sequence_id, prompt, sampling, count, *, chunks=None, script=None):
        """Output tokens of a sequence that runs alone; it is dropped in the end."""
        chunks = chunks or [len(prompt)]
        output = [self.prefill(sequence_id, prompt, sampling, chunks=chunks, script=script)]
        while len(output) < count:
            position = len(prompt) + len(output) - 1
            output.append(self.decode({sequence_id: (position, output[-1])})[sequence_id])
        self.run(drops=[(sequence_id, 0)])
        return output


@KINDS
@pytest.mark.parametrize("chunks", [[1] * 11, [4, 4, 3], [10, 1], [2, 9]])
def test_prompt_in_chunks_gives_the_tokens_of_the_whole_prompt(runner, sampling, chunks):
    whole = HandMadeHead(runner).generate(1, PROMPT, sampling, 8)
    chunked = HandMadeHead(runner, first_block=40).generate(2, PROMPT, sampling, 8, chunks=chunks)
    assert chunked == whole
    assert len(set(whole)) > 2  # a model that repeats one id would prove little


@KINDS
def test_tokens_do_not_depend_on_the_batch(runner, sampling):
    prompts = {1: PROMPT, 2: PROMPT[3:], 3: PROMPT[:2]}
    alone = {
        key: HandMadeHead(runner).generate(key, prompt, sampling, 6)
        for key, prompt in prompts.items()
    }
    head = HandMadeHead(runner)
    outputs = {}
    for key, prompt in prompts.items():
        outputs[key] = [head.prefill(key, prompt, sampling, chunks=[len(prompt)])]
    for _ in range(5):
        inputs = {k: (len(prompts[k]) + len(out) - 1, out[-1]) for k, out in outputs.items()}
        for key, token in head.decode(inputs).items():
            outputs[key].append(token)
    head.run(drops=[(key, 0) for key in prompts])
    assert outputs == alone


def test_tokens_do_not_depend_on_the_options_of_the_batch(runner):
    kinds = {1: GREEDY, 2: SAMPLED, 3: SHAPED}
    alone = {
        key: HandMadeHead(runner).generate(key, PROMPT, sampling, 6)
        for key, sampling in kinds.items()
    }
    head = HandMadeHead(runner)
    outputs = {
        key: [head.prefill(key, PROMPT, sampling, chunks=[11])] for key, sampling in kinds.items()
    }
    for _ in range(5):
        inputs = {key: (len(PROMPT) + len(out) - 1, out[-1]) for key, out in outputs.items()}
        for key, token in head.decode(inputs).items():
            outputs[key].append(token)
    head.run(drops=[(key, 0) for key in kinds])
    assert outputs == alone


@KINDS
def test_resumed_sequence_goes_on_as_if_never_preempted(runner, sampling):
    whole = HandMadeHead(runner).generate(1, PROMPT, sampling, 8)
    head = HandMadeHead(runner)
    output = [head.prefill(1, PROMPT, sampling, chunks=[11])]
    for _ in range(3):
        output.append(head.decode({1: (len(PROMPT) + len(output) - 1, output[-1])})[1])
    head.run(drops=[(1, 0)])
    resumed = PROMPT + output
    output.append(head.prefill(1, resumed, sampling, chunks=[6, 9], epoch=1, num_prompt=11))
    while len(output) < 8:
        position = len(PROMPT) + len(output) - 1
        output.append(head.decode({1: (position, output[-1])}, epoch=1)[1])
    head.run(drops=[(1, 1)])
    assert output == whole


def test_decodes_and_a_chunk_share_a_step(runner):
    expected = HandMadeHead(runner).generate(1, PROMPT, GREEDY, 2)
    other = HandMadeHead(runner).generate(2, PROMPT[4:], GREEDY, 1)
    head = HandMadeHead(runner)
    first = head.prefill(1, PROMPT, GREEDY, chunks=[11])
    start = SequenceStart(
        sequence_id=2, epoch=0, token_ids=PROMPT[4:], num_prompt_tokens=7, sampling=GREEDY
    )
    rows = [
        head.row(1, 11, 1, sample=True, token_ids=[first]),
        head.row(2, 0, 7, sample=True),
    ]
    result = head.run(starts=[start], rows=rows)
    assert [(t.sequence_id, t.token_id) for t in result.tokens] == [(1, expected[1]), (2, other[0])]
    (times,) = result.times
    assert times.step_id == result.step_id
    assert len(times.stage_seconds) == 1
    assert times.stage_seconds[0] > 0.0
    assert times.draw_seconds > 0.0
    head.run(drops=[(1, 0), (2, 0)])


def test_a_result_does_not_wait_for_its_time_which_comes_with_a_later_one(model_path):
    runner = Runner.load(config_of(model_path))
    device = Device()
    runner._timer = EventTimer(device.make_event)
    head = HandMadeHead(runner)
    head.prefill(1, PROMPT, GREEDY, chunks=[4, 7])
    assert head.run(drops=[(1, 0)]).times == []
    device.num_passed = device.num_recorded
    assert [times.step_id for times in head.run().times] == [1, 2]


def test_plan_without_rows_runs_no_model(runner):
    result = HandMadeHead(runner).run(drops=[(1, 0)])
    assert result.tokens == []
    assert result.times == []


def test_scripted_sequence_says_its_script_and_then_eos(model_path):
    runner = Runner.load(config_of(model_path, load_format="scripted"))
    head = HandMadeHead(runner)
    script = [70, 71, 72, 198]
    assert head.generate(1, PROMPT, GREEDY, 6, script=script) == [*script, EOS, EOS]
    assert head.generate(2, PROMPT, SAMPLED, 6, chunks=[6, 5], script=script) == [*script, EOS, EOS]
    assert any(bool(layer.pages.any()) for layer in runner._pool.layers)  # KV is really written


def test_info_says_what_was_loaded(runner):
    info = runner.info
    assert info.num_blocks == 100
    assert info.max_model_len == 128
    assert info.vocab_size == 199
    assert info.eos_token_ids == (EOS,)
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert info.architecture == "LlamaForCausalLM"
    assert info.default_sampling == {"temperature": 0.3, "top_p": 0.8}
    # keys and values, 2 layers, 2 heads of 8, float32
    assert info.memory_bytes["kv_cache"] == 100 * BLOCK_SIZE * 2 * 2 * 2 * 8 * 4
    assert info.memory_bytes["weights"] > 199 * 32 * 2 * 4
    assert info.memory_bytes["process"] > 10**7  # an interpreter with torch


@pytest.mark.parametrize(
    ("model", "cache", "words"),
    [
        ({"max_model_len": 129}, {}, "--max-model-len 129: the model's own limit is 128"),
        ({"max_model_len": 100}, {"num_gpu_blocks_override": 20}, "100.* 20 blocks .* 80 tokens"),
        ({"threads": 0}, {}, "--threads 0"),
        ({}, {"block_size": 0}, "--block-size 0"),
        ({}, {"kv_cache_memory_bytes": 5, "num_gpu_blocks_override": None}, "memory-bytes 5"),
        ({}, {"num_gpu_blocks_override": 1 << 50}, "cannot be allocated"),
    ],
)
def test_impossible_flags_are_one_clear_line(model_path, model, cache, words):
    default = CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=100)
    with pytest.raises(ConfigError, match=words) as caught:
        Runner.load(config_of(model_path, cache=replace(default, **cache), **model))
    assert "\n" not in str(caught.value)


def test_implicit_model_len_is_lowered_to_a_small_pool(model_path, caplog):
    cache = CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=20)
    with caplog.at_level(logging.WARNING):
        runner = Runner.load(config_of(model_path, cache=cache))
    assert runner.info.max_model_len == 80
    assert "lowered from 128 to 80" in caplog.text
    HandMadeHead(runner).generate(1, PROMPT * 7, GREEDY, 3)  # 77 + 3 tokens: the last block


def test_sampling_defaults_follow_their_flag(model_path, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": 7}))
    (tmp_path / "empty").mkdir()
    for flag, expected in [
        ("vllm", {}),
        (str(tmp_path), {"top_k": 7}),
        (str(tmp_path / "generation_config.json"), {"top_k": 7}),
    ]:
        runner = Runner.load(config_of(model_path, generation_config=flag))
        assert runner.info.default_sampling == expected
    overrides = '{"top_k": 9, "temperature": 0.5, "min_p": null}'
    runner = Runner.load(
        config_of(model_path, generation_config=str(tmp_path), override_generation_config=overrides)
    )
    assert runner.info.default_sampling == {"top_k": 9, "temperature": 0.5}
    with pytest.raises(ConfigError, match="--generation-config"):
        Runner.load(config_of(model_path, generation_config=str(tmp_path / "empty")))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ('{"top_q": 1}', "'top_q' is not supported"),
        ('{"top_p": -1}', "top_p is -1"),
        ('{"top_p": "1"}', "top_p is '1'"),
    ],
)
def test_override_of_a_default_that_is_none_is_refused(model_path, overrides, complaint):
    with pytest.raises(ConfigError, match="--override-generation-config") as refused:
        Runner.load(config_of(model_path, override_generation_config=overrides))
    assert complaint in str(refused.value)
