"""Random JSON schemas through the whole engine: every finished output validates.

The weights are random, so the model goes wherever a mask lets it: one that is a token too wide
shows at once. The vocabulary is SmolLM2's, in which a token may straddle several parts of JSON. All
run at once, in chunks, some preempted. What is checked of each output:

    ended by EOS    it parses, and jsonschema finds that it validates
    cut             it is a valid prefix by llguidance, whichever library masked it

Few schemas may be refused, and most outputs must end.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from llguidance import LLMatcher

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from atom_lite.engine.in_process import Engine
from atom_lite.errors import RequestError
from atom_lite.messages import SamplingParams, SequenceFinished, TokensGenerated
from atom_lite.worker.grammar_vocabulary import guidance_vocabulary
from tests.fakes.grammars import make_grammar, smollm_vocabulary, text_of
from tests.fakes.tiny_model import write_tiny_model
from tests.property.json_schemas import Schema, supported, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hypothesis.strategies import SearchStrategy

    from atom_lite.messages import Grammar

MAX_TOKENS = 400
CUT_EVERY = 10  # of these one may have 3 tokens only


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(path, bos_token_id=1, eos_token_id=2)
    config = Config(
        model=ModelConfig(
            model=str(path), tokenizer=str(smollm2_gguf), load_format="dummy", dtype="float32"
        ),
        # The pool holds one of full length, and is packed with prompts: some must soon give way.
        cache=CacheConfig(block_size=4, num_gpu_blocks_override=112),
        scheduler=SchedulerConfig(
            max_num_seqs=32, max_num_batched_tokens=64, capacity_policy="watermark"
        ),
    )
    with Engine(config) as made:
        yield made


def drawn(strategy: SearchStrategy[Schema], count: int) -> list[Schema]:
    """So many different schemas, other ones with every run."""
    found: dict[str, Schema] = {}

    @settings(
        max_examples=2 * count,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(schema: Schema) -> None:
        found[json.dumps(schema)] = schema

    collect()
    return list(found.values())[:count]


def compiled(schema: Schema, backend: str = "auto", **fields: Any) -> Grammar | None:
    vocabulary = smollm_vocabulary()
    try:
        return make_grammar(vocabulary, "json_schema", schema, backend=backend, **fields)
    except RequestError:
        return None


def check_cut(schema: Schema, tokens: list[int]) -> None:
    """llguidance takes every token of an output that was cut."""
    grammar = compiled(schema, "guidance")
    assert grammar is not None, schema
    vocabulary = smollm_vocabulary()
    tokenizer = guidance_vocabulary(vocabulary.pieces, vocabulary.eos_token_ids)
    matcher = LLMatcher(tokenizer, grammar.compiled.decode(), log_level=0)
    num_valid = matcher.validate_tokens(tokens)
    assert num_valid == len(tokens), (schema, text_of(vocabulary, tokens), num_valid)


def check(schema: Schema, engine: Engine, sequence_id: int) -> str:
    """Check one output; how it ended."""
    tokens: list[int] = []
    for event in engine.events(sequence_id):
        if isinstance(event, TokensGenerated):
            tokens += event.token_ids
        elif isinstance(event, SequenceFinished):
            assert event.reason in ("stop", "length"), (event.error, schema)
            if event.reason == "length":
                check_cut(schema, tokens)
                return "preempted and cut" if event.num_preemptions else "cut"
            text = text_of(smollm_vocabulary(), tokens[:-1]).decode()
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
            return "preempted" if event.num_preemptions else "ended"
    raise AssertionError("no terminal event")


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(30, id="30"),
        pytest.param(1000, id="1000", marks=[pytest.mark.full, pytest.mark.timeout(3600)]),
    ],
)
def test_outputs_of_random_schemas_validate(engine: Engine, count: int) -> None:
    schemas = drawn(supported, count)
    grammars = [
        compiled(schema, any_whitespace=index % 3 > 0) for index, schema in enumerate(schemas)
    ]
    running = [
        (
            schema,
            engine.submit(
                [5 + index] * 20,
                SamplingParams(
                    max_tokens=MAX_TOKENS if index % CUT_EVERY else 3, temperature=1.0, seed=index
                ),
                grammar=grammar,
            ),
        )
        for index, (schema, grammar) in enumerate(zip(schemas, grammars, strict=True))
        if grammar is not None
    ]
    ends = Counter(check(schema, engine, sequence_id) for schema, sequence_id in running)
    engine.scheduler.check_integrity()
    backends = Counter("refused" if grammar is None else grammar.backend for grammar in grammars)
    print(dict(ends), dict(backends))
    assert backends["refused"] <= 0.1 * len(schemas)
    assert min(backends["xgrammar"], backends["guidance"]) > 0
    assert ends["ended"] + ends["preempted"] >= 0.9 * 0.9 * len(running)
    assert ends["cut"] + ends["preempted and cut"] > 0
    assert ends["preempted"] > 0


def test_a_keyword_that_would_not_be_enforced_is_refused() -> None:
    for schema in drawn(unsupported(), 20):
        assert compiled(schema) is None, schema
