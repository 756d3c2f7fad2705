"""A tiny random model of three layers, one for each of up to three stages, and work for it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from atom_lite.engine.in_process import Engine
from atom_lite.engine.vocabulary import read_vocabulary
from atom_lite.messages import SamplingParams
from atom_lite.text.byte_alphabet import spell
from tests.fakes.grammars import make_grammar
from tests.unit.models.tiny_models import CONFIGS, make_model, save

if TYPE_CHECKING:
    from pathlib import Path

    from atom_lite.messages import Grammar

SHAPES: dict[str, Any] = {
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {5: 2.0, 70: -4.0},
    "allowed_token_ids": tuple(range(80)),
    "bad_words": tuple((before, last) for before in range(80) for last in range(10, 20)),
    "min_tokens": 6,
}


# What the outputs of some requests must look like; longer than most get.
FORMS: list[tuple[str, Any]] = [
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 3}),
    ("regex", "([a-c]{2} ){2,9}"),
    ("choice", ["yes", "no"]),
    ("json_schema", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
]


def tiny_config(path: Path) -> Config:
    """Its config, with the checkpoint and a tokenizer saved at `path`."""
    save(make_model(CONFIGS["llama-tied-llama3-rope"]), path)
    save_letters(path / "tokenizer.json")
    return Config(
        model=ModelConfig(model=str(path), dtype="float32", threads=1),
        cache=CacheConfig(block_size=4, num_gpu_blocks_override=120),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24),
    )


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Prompts of 1 to 90 tokens, some with a common prefix; greedy, sampled and shaped."""
    source = random.Random(3)
    common = [source.randrange(3, 90) for _ in range(40)]
    made = []
    for index in range(16):
        length = source.randrange(1, 90)
        prompt = [source.randrange(3, 90) for _ in range(length)]
        if index % 3 == 0:
            prompt = common + prompt[:20]
        sampling = SamplingParams(
            max_tokens=12, temperature=float(index % 2), seed=index, ignore_eos=True
        )
        if index % 4 > 1:
            sampling = msgspec.structs.replace(sampling, **SHAPES)
        made.append((prompt, sampling))
    return made


def save_letters(path: Path) -> None:
    """A tokenizer of 96 tokens: three control tokens, then one for each of 93 ASCII characters."""
    controls = ("<unk>", "<s>", "</s>")
    letters = [spell(bytes([code])) for code in range(0x20, 0x7F) if chr(code) not in "`~"]
    tokens = {token: index for index, token in enumerate([*controls, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in controls])
    tokenizer.save(str(path))


def grammars(config: Config, count: int) -> list[Grammar | None]:
    """A grammar for every other request, in turn."""
    vocabulary = read_vocabulary(config)
    made = [make_grammar(vocabulary, kind, content) for kind, content in FORMS]
    return [made[index // 2 % len(made)] if index % 2 else None for index in range(count)]


def outputs(
    config: Config, *, one_by_one: bool = False, least_preemptions: int = 0
) -> list[list[int]]:
    work = requests()
    with Engine(config) as engine:
        tokens = []
        ids: list[int] = []
        for (prompt, sampling), grammar in zip(work, grammars(config, len(work)), strict=True):
            ids.append(engine.submit(prompt, sampling, grammar=grammar))
            if one_by_one:
                tokens.append(engine.collect(ids.pop()))
        tokens += [engine.collect(sequence_id) for sequence_id in ids]
        engine.scheduler.check_integrity()
        assert engine.scheduler.stats().kv_usage == 0
        assert engine.scheduler.stats().num_preemptions >= least_preemptions
    return tokens
