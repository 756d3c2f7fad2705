"""Grammars for xgrammar: turned into its rules and tried out here, sent on as those rules.

The only backend of GBNF grammars and structural tags. Runs in the grammar compiler's processes;
the last stage compiles the rules and makes each token mask when it is first needed.

Why not the compiled grammar with its masks: for a small object that is 3.7 MB, of which all but
200 kB are the states of the whitespace (up to 20 characters at each place), read in 45 ms. Its
rules are 6 kB, those of an object of a hundred properties 30 kB, compiled in 0.6 and 2.9 ms; a mask
that is made when it is needed adds at most 1 ms, once for each state that an output comes through.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from atom_lite.engine.grammar_guidance import MAX_WHITESPACE_CHARS
from atom_lite.engine.grammar_schema import beyond_xgrammar, prepare_schema, refuse
from atom_lite.engine.grammar_trial import GrammarTrial
from atom_lite.errors import RequestError
from atom_lite.worker.grammar_vocabulary import xgrammar_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xgrammar.grammar import Grammar

    from atom_lite.engine.grammar_schema import Schema
    from atom_lite.ipc.grammar_messages import GrammarSpec

# What xgrammar makes of the characters of a string of bounded length lets control
# characters through, which JSON does not have: [^"\\\r\n], in its serialized form a kind, a size,
# "negated", and pairs of code points. One class of characters is much cheaper to repeat than a
# choice, so there are no escapes in the right one either.
_CHARACTERS = [1, 9, 1, 34, 34, 92, 92, 13, 13, 10, 10]
_JSON_CHARACTERS = [1, 9, 1, 34, 34, 92, 92, 0, 31, 127, 127]
_WARNING = re.compile(r"Warning: (.*)")
_SOURCE_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*?\) is false: )?")
_STDERR = 2


class NotForXgrammarError(RequestError):
    """Not exact with xgrammar; llguidance may do it."""


def load_xgrammar_alone() -> None:
    """Import xgrammar's compiler without torch and transformers, of which it uses nothing.

    The package's own `__init__` imports both: 2 s and 190 MB, for a process that must start again
    in no time after each crash. Not for a process that needs the real ones.
    """
    found = importlib.util.find_spec("xgrammar")
    assert found is not None and found.submodule_search_locations is not None
    package = types.ModuleType("xgrammar")
    package.__path__ = list(found.submodule_search_locations)
    transformers = types.ModuleType("transformers")
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast"):
        setattr(transformers, name, type(name, (), {}))
    # None makes an import fail; the libraries below take torch only where there is one
    sys.modules.update({"xgrammar": package, "transformers": transformers, "torch": None})  # type: ignore[dict-item]
    for name in ("load_binding", "exception", "compiler"):
        importlib.import_module(f"xgrammar.{name}")


class XgrammarBackend:
    """Compiles for one vocabulary. Every method returns the grammar's bytes.

    Args:
        pieces: the bytes of each token.
        eos_token_ids: tokens that end the output.

    Raises:
        RequestError: what is asked for cannot be done; the message says why.
    """

    def __init__(self, pieces: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        self._info = xgrammar_vocabulary(pieces, eos_token_ids)
        self._trial = GrammarTrial(self._info, len(pieces), eos_token_ids)

    def json_schema(self, schema: Schema, spec: GrammarSpec) -> bytes:
        """JSON that a prepared schema allows."""
        from xgrammar.grammar import Grammar

        if (place := beyond_xgrammar(schema)) is not None:
            refuse(place, "this is not supported by xgrammar", NotForXgrammarError)
        if spec.whitespace_pattern is not None:
            raise NotForXgrammarError("'whitespace_pattern' is not supported by xgrammar")
        return self._tried(
            lambda: _without_control_characters(
                Grammar.from_json_schema(
                    json.dumps(schema),
                    any_whitespace=spec.any_whitespace,
                    max_whitespace_cnt=MAX_WHITESPACE_CHARS if spec.any_whitespace else None,
                    strict_mode=False,  # objects are closed by prepare_schema
                )
            )
        )

    def regex(self, pattern: str) -> bytes:
        """Text that a regular expression (ECMA's syntax) matches from beginning to end."""
        from xgrammar.grammar import Grammar

        return self._tried(lambda: Grammar.from_regex(pattern))

    def choice(self, choices: Sequence[str]) -> bytes:
        """One of some texts."""
        spelled = " | ".join(f'"{_in_quotes(choice)}"' for choice in choices)
        return self.gbnf(f"root ::= {spelled}")

    def gbnf(self, text: str) -> bytes:
        """Text of a grammar in llama.cpp's notation, beginning at `root`."""
        from xgrammar.grammar import Grammar

        return self._tried(lambda: Grammar.from_ebnf(text))

    def lark(self, text: str) -> bytes:
        """Text of a grammar in Lark's notation, beginning at `start`."""
        from xgrammar.grammar import Grammar

        return self._tried(lambda: Grammar.from_lark(text, tokenizer_info=self._info))

    def structural_tag(self, text: str) -> bytes:
        """Free text in which tags have contents of a given form."""
        from xgrammar.grammar import Grammar

        tag = json.dumps(_prepared_tag(text))
        return self._tried(lambda: _without_control_characters(Grammar.from_structural_tag(tag)))

    def _tried(self, make: Callable[[], Grammar]) -> bytes:
        with _collected_warnings() as warnings:
            try:
                grammar = make()
                self._trial.check(grammar)
            except RuntimeError as error:
                raise RequestError(_cleaned(str(error))) from None
        if warnings:
            raise RequestError(warnings[0])
        return grammar.serialize_json().encode()


def _without_control_characters(grammar: Grammar) -> Grammar:
    """The same grammar, its bounded strings free of characters that JSON must escape."""
    from xgrammar.grammar import Grammar

    rules = json.loads(grammar.serialize_json())
    numbers = rules["grammar_expr_data"]
    for start in rules["grammar_expr_indptr"]:
        end = start + len(_CHARACTERS)
        if numbers[start:end] == _CHARACTERS:
            numbers[start:end] = _JSON_CHARACTERS
    return Grammar.deserialize_json(json.dumps(rules))


@contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    """What xgrammar says on standard error of constraints that it leaves out."""
    warnings: list[str] = []
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), _STDERR)
        try:
            yield warnings
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
            written.seek(0)
            text = written.read().decode("utf-8", "replace")
            warnings += [_cleaned(found) for found in _WARNING.findall(text)]


def _prepared_tag(text: str) -> dict[str, Any]:
    """A structural tag in the current form, its schemas prepared as all others."""
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the structural tag is not valid JSON: {error}") from None
    if not isinstance(tag, dict):
        raise RequestError("the structural tag must be a JSON object")
    if "structures" in tag:  # the older form, which clients still send
        if not _are_objects(tag["structures"]):
            raise RequestError("the structural tag's structures must be a list of objects")
        tags = [
            {
                "type": "tag",
                "begin": item.get("begin", ""),
                "content": {"type": "json_schema", "json_schema": item.get("schema", {})},
                "end": item.get("end", ""),
            }
            for item in tag["structures"]
        ]
        triggered = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}
        tag = {"type": "structural_tag", "format": triggered}
    prepared: dict[str, Any] = _with_prepared_schemas(tag)
    return prepared


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _with_prepared_schemas(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_prepared_schemas(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "json_schema" not in node:
        return {name: _with_prepared_schemas(value) for name, value in node.items()}
    schema = prepare_schema(json.dumps(node["json_schema"]), close_objects=False)
    if (place := beyond_xgrammar(schema)) is not None:
        refuse(place, "this is not supported inside a structural tag")
    return {"max_whitespace_cnt": MAX_WHITESPACE_CHARS, **node, "json_schema": schema}


def _in_quotes(text: str) -> str:
    r"""A text as a GBNF literal: its control characters, quotes and backslashes as \uHHHH."""
    return "".join(
        f"\\u{ord(char):04x}" if char < " " or char in '"\\\x7f' else char for char in text
    )


def _cleaned(message: str) -> str:
    """An error without the place in the library's source."""
    lines = [line for line in message.splitlines() if line.strip()]
    return _SOURCE_PLACE.sub("", lines[0] if lines else "unknown error")[:500]
