r"""One sequence's place in its grammar, by either of the two grammar libraries.

A `Template` is a compiled grammar as it came from the compiler process, made ready once; a
`Matcher` follows one sequence through it. Both libraries end in the same few calls, so the rest of
the stage does not know which one a grammar is for.

Runs on the last stage, off the forward thread (`grammar`): loading a grammar takes 0.1 to some 100
milliseconds, a mask 5 us to some milliseconds. Both libraries let go of the GIL meanwhile. Must not
touch torch.

Measured (one core of an AMD Zen 3, 49152 ids, microseconds a mask: mean, worst): a JSON schema 7,
100 by xgrammar and 40, 240 by llguidance; a regular expression 4, 16 and 1300, 8400. The worst that
were found are xgrammar's: 42 ms for `[\w\s.,]{1,500}`, 1.5 s for `(ab|cd|[a-z ]){1,1000}`, and an
ambiguous grammar takes more with every token. llguidance bounds its work: 60 ms at most for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atom_lite.errors import EngineError
from atom_lite.worker.grammar_vocabulary import guidance_vocabulary, xgrammar_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray
    from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo

    from atom_lite.messages import Grammar


class GrammarError(EngineError):
    """One sequence cannot go on under its grammar; the sequence ends with it, the others go on.

    Args:
        message: why.
        status: HTTP status for the client: 400 where what it asks for cannot be done (only tokens
            that this vocabulary lacks would go on, or finding them costs too much), else 500.
    """

    def __init__(self, message: str, *, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class Matcher(Protocol):
    """Follows one sequence through its grammar."""

    def accept(self, token_id: int) -> None:
        """Take the next output token; EOS is one where the grammar may end.

        Raises:
            GrammarError: the grammar does not allow it.
        """
        ...

    def fill(self, masks: NDArray[np.int32], row: int) -> None:
        """Write which tokens may come next into masks[row]: bit i of the row says it of id i.

        Must not be called once EOS was accepted.

        Raises:
            GrammarError: the library gives up.
        """
        ...


class Template(Protocol):
    """A grammar that is ready to be followed by any number of sequences."""

    @property
    def num_bytes(self) -> int:
        """About what it takes up by now."""
        ...

    def matcher(self) -> Matcher:
        """One at the grammar's start."""
        ...


class TemplateLoader:
    """Reads compiled grammars for one vocabulary. Making it imports both libraries.

    Args:
        pieces: the bytes of each token, in the order of ids.
        eos_token_ids: tokens that end the output.
    """

    def __init__(self, pieces: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        if not eos_token_ids:
            raise GrammarError("the model has no end-of-sequence token, so no output could end")
        self.eos_token_ids = tuple(eos_token_ids)
        self._compiler = _lazy_compiler(xgrammar_vocabulary(pieces, eos_token_ids))
        self._tokenizer = guidance_vocabulary(pieces, eos_token_ids)

    def load(self, grammar: Grammar) -> Template:
        """Make a grammar ready.

        Raises:
            GrammarError: it is not what its library compiles for this vocabulary.
        """
        if grammar.backend == "xgrammar":
            return _XgrammarTemplate(grammar.compiled, self._compiler)
        return _GuidanceTemplate(grammar.compiled, self._tokenizer)


# ---------------------------------------------------------------- xgrammar


def _lazy_compiler(info: TokenizerInfo) -> GrammarCompiler:
    """Makes each mask when it is first needed, on the thread that needs it."""
    from xgrammar import GrammarCompiler

    return GrammarCompiler(
        info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
    )


class _XgrammarTemplate:
    """See Template. Its masks come to be while it is followed, and are kept."""

    def __init__(self, rules: bytes, compiler: GrammarCompiler) -> None:
        from xgrammar import Grammar

        try:
            self._compiled = compiler.compile_grammar(Grammar.deserialize_json(rules.decode()))
        except (RuntimeError, UnicodeDecodeError) as error:
            raise GrammarError(f"xgrammar cannot read it: {error}") from error

    @property
    def num_bytes(self) -> int:
        """See Template."""
        return self._compiled.memory_size_bytes

    def matcher(self) -> Matcher:
        """See Template."""
        from xgrammar import GrammarMatcher

        return _XgrammarMatcher(GrammarMatcher(self._compiled))


class _XgrammarMatcher:
    """See Matcher."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> None:
        """See Matcher."""
        if not self._matcher.accept_token(token_id):
            raise GrammarError(f"the grammar does not allow token {token_id}")

    def fill(self, masks: NDArray[np.int32], row: int) -> None:
        """See Matcher."""
        self._matcher.fill_next_token_bitmask(masks, row)


# ---------------------------------------------------------------- llguidance


class _GuidanceTemplate:
    """See Template. A copy of one matcher costs a hundredth of making one from the text."""

    def __init__(self, compiled: bytes, tokenizer: LLTokenizer) -> None:
        from llguidance import LLMatcher

        self._first = LLMatcher(tokenizer, compiled.decode(), log_level=0)
        _check(self._first, status=500)
        self._num_bytes = len(compiled)

    @property
    def num_bytes(self) -> int:
        """See Template."""
        return self._num_bytes

    def matcher(self) -> Matcher:
        """See Template."""
        return _GuidanceMatcher(self._first.deep_copy())


class _GuidanceMatcher:
    """See Matcher."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> None:
        """See Matcher."""
        self._matcher.consume_token(token_id)
        _check(self._matcher, status=500)

    def fill(self, masks: NDArray[np.int32], row: int) -> None:
        """See Matcher."""
        mask = masks[row]
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        # Its limits, or a grammar that only bytes outside the vocabulary would go on with.
        _check(self._matcher, status=400)


def _check(matcher: LLMatcher, *, status: int) -> None:
    """Raise GrammarError if it failed: the library raises nothing, and then allows EOS alone."""
    if matcher.is_error():
        reason = matcher.get_error().split("\n", 1)[0]
        raise GrammarError(f"llguidance gives the grammar up: {reason}", status=status)
