"""Which library compiles what.

    backend     JSON schema, choice          regular expression, Lark   GBNF, structural tag
    auto        xgrammar where it is exact   llguidance                 xgrammar
                and quick, else llguidance
    xgrammar    xgrammar                     xgrammar                   xgrammar
    guidance    llguidance                   llguidance                 refused

xgrammar's masks cost 2 to 8 us, llguidance's 30 to 90 us (49152 tokens, one core); llguidance does
all of a schema or says what it cannot, and bounds its own work.

Runs in the grammar compiler's processes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from atom_lite.engine.grammar_guidance import GuidanceBackend
from atom_lite.engine.grammar_schema import prepare_schema
from atom_lite.engine.grammar_trial import TooCostlyError
from atom_lite.engine.grammar_xgrammar import NotForXgrammarError, XgrammarBackend
from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from atom_lite.ipc.grammar_messages import GrammarSpec

    Compiled: TypeAlias = "tuple[Literal['xgrammar', 'guidance'], bytes]"

# Beyond these, llguidance is ready 10 times as soon.
MAX_XGRAMMAR_CHARS_IF_AUTO = 16 * 1024


class GrammarCompiler:
    """Turns specs into what the last stage loads.

    Args:
        pieces: the bytes of each token, empty where it is no text.
        eos_token_ids: tokens that end the output.
        backend: "auto", "xgrammar" or "guidance".
    """

    def __init__(self, pieces: Sequence[bytes], eos_token_ids: Sequence[int], backend: str) -> None:
        self._xgrammar = None if backend == "guidance" else XgrammarBackend(pieces, eos_token_ids)
        self._guidance = None if backend == "xgrammar" else GuidanceBackend(pieces, eos_token_ids)

    def compile(self, spec: GrammarSpec) -> Compiled:
        """The backend that took it, and the compiled grammar.

        Raises:
            RequestError: it cannot be compiled; the message says why.
        """
        match spec.kind:
            case "json_schema":
                return self._json_schema(spec)
            case "choice":
                return self._choice(spec)
            case "regex":
                return self._regex(spec.text)
            case "grammar":
                return self._grammar(spec.text)
            case "structural_tag":
                return "xgrammar", self._only_xgrammar("a structural tag").structural_tag(spec.text)

    def _json_schema(self, spec: GrammarSpec) -> Compiled:
        schema = prepare_schema(spec.text, close_objects=spec.close_objects)
        return self._first_fit(spec, lambda backend: backend.json_schema(schema, spec))

    def _choice(self, spec: GrammarSpec) -> Compiled:
        choices: list[str] = json.loads(spec.text)
        return self._first_fit(spec, lambda backend: backend.choice(choices))

    def _first_fit(
        self, spec: GrammarSpec, compile_by: Callable[[XgrammarBackend | GuidanceBackend], bytes]
    ) -> Compiled:
        if self._guidance is None:
            assert self._xgrammar is not None
            return "xgrammar", compile_by(self._xgrammar)
        if self._xgrammar is not None and len(spec.text) <= MAX_XGRAMMAR_CHARS_IF_AUTO:
            try:
                return "xgrammar", compile_by(self._xgrammar)
            except (NotForXgrammarError, TooCostlyError):
                pass  # the other one has its own limits
        return "guidance", compile_by(self._guidance)

    def _regex(self, pattern: str) -> Compiled:
        if self._guidance is not None:
            return "guidance", self._guidance.regex(pattern)
        return "xgrammar", self._only_xgrammar("a regular expression").regex(pattern)

    def _grammar(self, text: str) -> Compiled:
        if "::=" in text:
            return "xgrammar", self._only_xgrammar("a GBNF grammar").gbnf(text)
        if self._guidance is not None:
            return "guidance", self._guidance.lark(text)
        return "xgrammar", self._only_xgrammar("a grammar").lark(text)

    def _only_xgrammar(self, what: str) -> XgrammarBackend:
        if self._xgrammar is None:
            raise RequestError(f"{what} needs --structured-outputs-backend auto or xgrammar")
        return self._xgrammar
