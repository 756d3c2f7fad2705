from __future__ import annotations

import pytest
from llguidance import LLMatcher
from xgrammar import GrammarCompiler, GrammarMatcher, allocate_token_bitmask

from atom_lite.worker.grammar_vocabulary import guidance_vocabulary, xgrammar_vocabulary

# id 2 is EOS with a text of its own, 3 a control token, 7 padding
PIECES = [b"y", b"ye", b"</s>", b"", b"yes", b"s", b"</s>", b""]
EOS = 2
NO_FORCING = '%llguidance {"no_forcing": true}\n'


def xgrammar_allows(ebnf: str, so_far: list[int]) -> list[int]:
    compiler = GrammarCompiler(xgrammar_vocabulary(PIECES, [EOS]), max_threads=1)
    matcher = GrammarMatcher(compiler.compile_grammar(ebnf))
    assert all(matcher.accept_token(token_id) for token_id in so_far)
    mask = allocate_token_bitmask(1, len(PIECES))
    matcher.fill_next_token_bitmask(mask)
    return [i for i in range(len(PIECES)) if int(mask[0, 0]) >> i & 1]


def guidance_allows(lark: str, so_far: list[int]) -> list[int]:
    matcher = LLMatcher(guidance_vocabulary(PIECES, [EOS]), NO_FORCING + lark)
    assert matcher.consume_tokens(so_far)
    mask = matcher.compute_bitmask()
    return [i for i in range(len(PIECES)) if mask[i // 8] >> i % 8 & 1]


@pytest.mark.parametrize(("so_far", "allowed"), [([], [0, 1, 4]), ([1], [5]), ([4], [EOS])])
def test_both_libraries_allow_the_same_tokens(so_far: list[int], allowed: list[int]) -> None:
    assert xgrammar_allows('root ::= "yes"', so_far) == allowed
    assert guidance_allows('start: "yes"', so_far) == allowed


def test_tokens_without_text_and_eos_are_no_text() -> None:
    text = [0, 1, 4, 5, 6]
    assert xgrammar_allows("root ::= [^x]+", []) == text
    assert guidance_allows("start: /[^x]+/", []) == text
    assert xgrammar_allows("root ::= [^x]+", [5]) == sorted([EOS, *text])
    assert guidance_allows("start: /[^x]+/", [5]) == sorted([EOS, *text])
