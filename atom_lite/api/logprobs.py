r"""Log probabilities as JSON, in both of OpenAI's shapes and vLLM's for prompts.

Streams and whole answers call the same functions. They write bytes, not objects: an answer with 20
alternatives to each token holds little else, and what is fixed about a token (its text, its bytes)
is written once per run of the server.

    chat         {"content":[{"token","bytes","logprob","top_logprobs":[...]}, ...],"refusal":null}
    completions  {"tokens":[],"token_logprobs":[],"top_logprobs":[],"text_offset":[]}
    prompt       [null, {"ID":{"logprob","rank","decoded_token"}, ...}, ...]

JSON has no infinity, so what cannot come at all is -9999.0, as OpenAI and vLLM have it. A token
that is no whole character shows U+FFFD as its text in chat, where its bytes stand beside it;
completions, which have none, write `bytes:\xf0\x9f`, as OpenAI does, so that two of them stay two.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.api import sse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atom_lite.messages import Logprobs
    from atom_lite.text.listed_tokens import ListedToken
    from atom_lite.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0


class TokenJson(NamedTuple):
    """What is fixed about one token.

    Attributes:
        text: as a JSON string, the bytes of no whole character as U+FFFD.
        exact_text: the same, these bytes spelled out.
        data: its bytes as a JSON list of numbers.
    """

    text: bytes
    exact_text: bytes
    data: bytes


class TokenTable:
    """The JSON of every token that has been told of; one per server."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, TokenJson] = {}

    def __getitem__(self, token_id: int) -> TokenJson:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._write(token_id)
        return known

    def _write(self, token_id: int) -> TokenJson:
        in_tokenizer = token_id < self._tokenizer.vocab_size  # a model's may be padded beyond
        data = self._tokenizer.token_bytes(token_id) if in_tokenizer else b""
        text = exact = data.decode("utf-8", "replace")
        if text.encode() != data:
            exact = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return TokenJson(sse.json_text(text), sse.json_text(exact), sse.json_bytes(list(data)))


class _NumberedTokens:
    """The same with `token_id:N` for a text (`return_tokens_as_token_ids`)."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table

    def __getitem__(self, token_id: int) -> TokenJson:
        name = b'"token_id:%d"' % token_id
        return TokenJson(name, name, self._table[token_id].data)


class LogprobWriter:
    """Writes what one request wants to know.

    Args:
        table: of the server.
        num_top: alternatives to each token.
        tokens_as_ids: name tokens by their ids.
    """

    def __init__(self, table: TokenTable, num_top: int, *, tokens_as_ids: bool = False) -> None:
        self._tokens = _NumberedTokens(table) if tokens_as_ids else table
        self._num_top = num_top

    # ------------------------------------------------------------ chat

    def chat(self, tokens: Iterable[ListedToken]) -> bytes:
        """The `logprobs` of a chat choice, or of a part of one."""
        entries = b",".join([self._chat_entry(token) for token in tokens])
        return b'{"content":[%b],"refusal":null}' % entries

    def _chat_entry(self, token: ListedToken) -> bytes:
        assert token.logprobs is not None  # each output token has some
        ids, values = unpack(token.logprobs)
        top = [
            b"%b}" % self._chat_token(ids[rank], values[rank])
            for rank in range(1, min(self._num_top + 1, len(ids)))
        ]
        return b'%b,"top_logprobs":[%b]}' % (self._chat_token(ids[0], values[0]), b",".join(top))

    def _chat_token(self, token_id: int, logprob: float) -> bytes:
        token = self._tokens[token_id]
        return b'{"token":%b,"bytes":%b,"logprob":%b' % (token.text, token.data, _number(logprob))

    # ------------------------------------------------------------ completions

    def completion(self, tokens: Iterable[ListedToken]) -> bytes:
        """The `logprobs` of a text completion, or of a part of one.

        Nothing is told of the first token of an echoed prompt.
        """
        names, logprobs, tops, offsets = [], [], [], []
        for token in tokens:
            names.append(self._tokens[token.token_id].exact_text)
            offsets.append(b"%d" % token.start)
            if token.logprobs is None:
                logprobs.append(b"null")
                tops.append(b"null")
                continue
            ids, values = unpack(token.logprobs)
            logprobs.append(_number(values[0]))
            tops.append(self._completion_top(ids, values))
        return b'{"tokens":[%b],"token_logprobs":[%b],"top_logprobs":[%b],"text_offset":[%b]}' % (
            b",".join(names),
            b",".join(logprobs),
            b",".join(tops),
            b",".join(offsets),
        )

    def _completion_top(self, ids: Sequence[int], values: Sequence[float]) -> bytes:
        """The likeliest by their texts, and the token itself where it is not among them."""
        shown: dict[bytes, bytes] = {}
        last = min(self._num_top, len(ids) - 1)
        for rank in (*range(1, last + 1), 0):
            shown.setdefault(self._tokens[ids[rank]].exact_text, _number(values[rank]))
        return b"{%b}" % b",".join([b"%b:%b" % pair for pair in shown.items()])

    # ------------------------------------------------------------ prompts

    def prompt(self, logprobs: Iterable[Logprobs]) -> bytes:
        """The `prompt_logprobs` of vLLM: nothing of the first token, then a dict by id for each."""
        return b"[%b]" % b",".join([b"null", *[self._prompt_entry(told) for told in logprobs]])

    def _prompt_entry(self, told: Logprobs) -> bytes:
        ids, values = unpack(told)
        shown = {ids[0]: self._ranked(ids[0], values[0], told.rank)}
        for rank in range(1, min(self._num_top + 1, len(ids))):
            shown.setdefault(ids[rank], self._ranked(ids[rank], values[rank], rank))
        return b"{%b}" % b",".join([b'"%d":%b' % pair for pair in shown.items()])

    def _ranked(self, token_id: int, logprob: float, rank: int) -> bytes:
        text = self._tokens[token_id].text
        return b'{"logprob":%b,"rank":%d,"decoded_token":%b}' % (_number(logprob), rank, text)


def unpack(told: Logprobs) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ids and log probabilities: of the token itself, then of the likeliest, best first."""
    count = len(told.token_ids) // 4
    return (
        struct.unpack(f"<{count}i", told.token_ids),
        struct.unpack(f"<{count}f", told.logprobs),
    )


def own_logprob(told: Logprobs) -> float:
    """That of the token itself; finite."""
    value: float = struct.unpack_from("<f", told.logprobs)[0]
    return value if value > LEAST_LOGPROB else LEAST_LOGPROB


def _number(logprob: float) -> bytes:
    return b"%a" % (logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB)
