"""Grammars for llguidance: its own grammar text, made here and tried out.

llguidance builds its automata lazily and bounds its own work, so a bad regular expression costs
nothing and a text that was tried here also loads elsewhere. Runs in the grammar compiler's
processes; the last stage loads the same text.

Every text begins with `no_forcing`: masks then depend on bytes alone, not on how a tokenizer would
write what the grammar forces.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from atom_lite.errors import RequestError
from atom_lite.worker.grammar_vocabulary import guidance_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.engine.grammar_schema import Schema
    from atom_lite.ipc.grammar_messages import GrammarSpec

# A longer run is nothing that a reader of JSON wants, and small models never end one.
MAX_WHITESPACE_CHARS = 20
# CPU time that the last stage may take to load a grammar, for all streams wait meanwhile.
MAX_LOAD_SECONDS = 0.25
_HEADER = '%llguidance {"no_forcing": true}\n'
_WHITESPACE = rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE_CHARS}}}"


class GuidanceBackend:
    """Compiles for one vocabulary. Every method returns the grammar's bytes.

    Raises:
        RequestError: what is asked for cannot be done; the message says why.
    """

    def __init__(self, pieces: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        self._vocabulary = guidance_vocabulary(pieces, eos_token_ids)

    def json_schema(self, schema: Schema, spec: GrammarSpec) -> bytes:
        """JSON that a prepared schema allows."""
        settings: dict[str, object] = {"whitespace_pattern": _WHITESPACE}
        if spec.whitespace_pattern is not None:
            settings = {"whitespace_pattern": spec.whitespace_pattern}
        elif not spec.any_whitespace:
            settings = {"whitespace_flexible": False}
        content = schema if isinstance(schema, dict) else {} if schema else {"enum": []}
        text = json.dumps({"x-guidance": settings, **content}, ensure_ascii=False)
        return self._tried(f"start: %json {text}")

    def regex(self, pattern: str) -> bytes:
        """Text that a regular expression (Rust's syntax) matches from beginning to end."""
        return self._tried(f"start: /{_in_slashes(pattern)}/" if pattern else 'start: ""')

    def choice(self, choices: Sequence[str]) -> bytes:
        """One of some texts. As one token, which is cheap however many they are."""
        # JSON's spelling is Lark's, but for DEL
        spelled = " | ".join(json.dumps(choice).replace("\x7f", "\\u007f") for choice in choices)
        return self._tried(f"start: CHOICE\nCHOICE: {spelled}")

    def lark(self, text: str) -> bytes:
        """Text of a grammar in llguidance's Lark."""
        if "%llguidance" in text:
            raise RequestError("a grammar must not have a %llguidance line")
        return self._tried(text)

    def _tried(self, grammar: str) -> bytes:
        from llguidance import LLMatcher

        text = _HEADER + grammar
        started = time.process_time()
        matcher = LLMatcher(self._vocabulary, text, log_level=0)
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        seconds = time.process_time() - started
        error = matcher.get_error()
        if error.startswith("NoExtension") or not (error or any(mask)):
            raise RequestError("it allows no output at all")
        if error:
            raise RequestError(_first_line(error))
        if seconds > MAX_LOAD_SECONDS:
            raise RequestError(
                f"it is too large: loading it takes {seconds:.2f} s, at most {MAX_LOAD_SECONDS} s"
            )
        return text.encode()


def _in_slashes(pattern: str) -> str:
    """A regular expression as it stands between slashes on one line."""
    written = []
    escaped = False
    for char in pattern:
        if char == "\n":
            written.append("n" if escaped else "\\n")
        elif char == "/" and not escaped:
            written.append("\\/")
        else:
            written.append(char)
        escaped = char == "\\" and not escaped
    return "".join(written)


def _first_line(error: str) -> str:
    """What is wrong, without where in our own text and without the text."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    text = lines[0] if lines else "unknown error"
    detail = next((line for line in lines if line.startswith("error:")), None)
    if detail is not None:  # a regular expression's own message comes last
        text = f"{text} {detail}"
    before, colon, after = text.partition(": ")
    if colon and before.startswith("at ") and "(" in before:
        text = after
    text = text.removeprefix("failed to compile JSON schema: ")
    return text.partition(" Enable 'coerce_one_of'")[0][:500]
