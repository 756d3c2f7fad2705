"""Ways to spoil a valid request: its values, its JSON, its encoding, its HTTP.

`mutated` draws everything from a random generator that it is given, so that a number and a seed
name a request for good.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from tests.conformance import corpus
from tests.conformance.raw_http import JSON, Framing, RawRequest

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.openapi_document import Document

    Mutation = Callable[["Mutator", random.Random], RawRequest]

ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.5, -0.0, 5.0, 1e-320, 1e308, -1e308),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, 49152, 1000000),
    *("", " ", "x", "5", "true", "null", "NaN", "\x00", "a\x00b", "\u2028", "\ufeffx", "\uffff"),
    *("\U0001f600" * 40, "../../etc/passwd", "{{ 7 * 7 }}", "{% for %}", "<|im_start|>", "%s%n"),
    *("e\u0301" * 50, "\u202e\u0600", "a" * 3000, "-1", "1e5", "[]", "(a+)+$", "(", "[", "\\"),
    *([], [[]], [None], [1], ["x"], [1, "x"], [[1], "x"], [-1], [2**40], ["x"] * 2000, [0] * 5000),
    *({}, {"a": 1}, {"type": "text"}, {"type": None}, {"": {}}, {"1": 1}, {"-1": 1}, {"x": []}),
    *({"role": "user"}, {"type": "object"}, {"$ref": "#"}, {"json": {}}, {"type": "json_schema"}),
    *({"__proto__": {}}, {"content": [{"type": "image_url", "image_url": {"url": "file:///"}}]}),
]
ODD_LITERALS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 1000, b"9" * 5000, b"0x10"),
    *(b"01", b"+1", b".5", b"1.", b"1e", b"-", b"tru", b"True", b"None", b"undefined", b"'x'"),
    *(
        rb'"\ud83d"',
        rb'"\udc00\ud83d"',
        rb'"\x"',
        rb'"\u12"',
        b'"a\nb"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
    ),
    *(b'"\x00"', b'"', b"[1,]", b'{"a":1,}', b"/* */1", b"[" * 60, b"[" * 200 + b"]" * 200),
    *(b"[" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'"' + b"x" * 200_000 + b'"'),
]
PATH_TRICKS = [
    *(b"%b/", b"/%b", b"/.%b", b"/x/..%b", b"%b%%00", b"%b%%ff", b"%b;a=b", b"%b?a=%%ff", b"%b#f"),
    *(
        b"%b?\xff\xfe",
        b"http://other.example%b",
        b"%b%%0d%%0aset-cookie:x",
        b"%b\\",
        b"%b?" + b"a" * 5000,
    ),
    *(b"/v1/models/%%2e%%2e%b", b"/v1/models/%%00%b", b"/V1%b", b"/%%2Fv1%b", b"%b%%"),
]
METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO", "post"]
CONTENT_TYPES = [
    *(b"", b"text/plain", b"application/xml", b"multipart/form-data", b"application/json;" * 50),
    *(
        b"application/json; charset=utf-16",
        b"APPLICATION/JSON",
        b"application/jsonx",
        b"\xff",
        b"*/*",
    ),
    *(b"application/x-www-form-urlencoded", b"application/json, text/html", b"a" * 20_000),
]
ODD_HEADERS = [
    *((b"x-request-id", b"\xff\xfe"), (b"x-request-id", b"a" * 300), (b"x-request-id", b"a b")),
    *((b"authorization", b"Bearer"), (b"authorization", b"\xff"), (b"x-api-key", b"")),
    *((b"content-encoding", b"gzip"), (b"content-encoding", b"br"), (b"accept", b"text/html")),
    *((b"expect", b"100-continue"), (b"upgrade", b"websocket"), (b"x-long", b"y" * 60_000)),
    *((b"host", b"[::bad"), (b"host", b"\xff"), (b"cookie", b"a=b;" * 500), (b"origin", b"null")),
    *((b"range", b"bytes=0-1"), (b"accept-charset", b"utf-16"), (b"x-forwarded-for", b"%s")),
]
FRAMINGS: list[Framing] = ["chunked", "none", "short", "long", "bad_length", "bad_chunk", "both"]
ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "latin-1", "utf-7"]


class Mutator:
    """Makes requests from the valid ones that a server takes.

    Args:
        document: the server's own, for the names of fields and their limits.
        bodies: valid bodies with their paths.
        more_fields: names that the document does not list and the server knows.
    """

    def __init__(
        self, document: Document, bodies: list[tuple[str, dict[str, Any]]], more_fields: list[str]
    ) -> None:
        self.bodies = bodies
        self._limits = {path: corpus.limit_values(document, path) for path, _ in bodies}
        self._more_fields = more_fields

    def mutated(self, rng: random.Random) -> RawRequest:
        """One request, bad in most cases."""
        weights = [weight for _, weight in _MUTATIONS]
        ((mutation, _),) = rng.choices(_MUTATIONS, weights)
        return mutation(self, rng)

    # ------------------------------------------------------------ values

    def valid(self, rng: random.Random) -> RawRequest:
        """Nothing wrong at all."""
        path, body = rng.choice(self.bodies)
        return _post(path, body)

    def odd_field(self, rng: random.Random) -> RawRequest:
        """One field, known to the server or not, with an odd value."""
        path, body = rng.choice(self.bodies)
        name = rng.choice([*sorted(self._limits[path]), *self._more_fields, "made_up", ""])
        return _post(path, body | {name: rng.choice(ODD_VALUES)}, blame=name)

    def odd_inside(self, rng: random.Random) -> RawRequest:
        """An odd value somewhere inside a body, or a part of it left out."""
        path, body = rng.choice(self.bodies)
        body = json.loads(json.dumps(body))
        places = list(_places(body))
        holder, key, name = rng.choice(places)
        if rng.random() < 0.3:
            del holder[key]
        else:
            holder[key] = rng.choice(ODD_VALUES)
        return _post(path, body, blame=name)

    def limits(self, rng: random.Random) -> RawRequest:
        """Several fields at their limits, each of which is allowed."""
        path, body = rng.choice(self.bodies)
        return _post(path, body | corpus.at_the_limits(rng, self._limits[path]))

    def combined(self, rng: random.Random) -> RawRequest:
        """What two valid requests ask for, in one."""
        path, body = rng.choice(self.bodies)
        others = [other for other_path, other in self.bodies if other_path == path]
        return _post(path, body | rng.choice(others))

    # ------------------------------------------------------------ JSON

    def odd_literal(self, rng: random.Random) -> RawRequest:
        """A field whose value is no JSON, or JSON that is hard to take."""
        path, body = rng.choice(self.bodies)
        name = rng.choice([*sorted(self._limits[path]), "metadata"])
        rest = {key: value for key, value in body.items() if key != name}
        raw = json.dumps(rest).encode()[:-1] + (b", " if rest else b"")
        raw += json.dumps(name).encode() + b": " + rng.choice(ODD_LITERALS) + b"}"
        return _raw_post(path, raw, blame=name)

    def doubled_key(self, rng: random.Random) -> RawRequest:
        """A key that comes twice: the last counts."""
        path, body = rng.choice(self.bodies)
        name = rng.choice(sorted(body))
        raw = b"{" + json.dumps(name).encode() + b": " + rng.choice(ODD_LITERALS[:8]) + b", "
        return _raw_post(path, raw + json.dumps(body).encode()[1:], blame=name)

    def torn(self, rng: random.Random) -> RawRequest:
        """Bytes cut off, changed, put in or put behind."""
        path, body = rng.choice(self.bodies)
        raw = bytearray(json.dumps(body).encode())
        at = rng.randrange(len(raw))
        kind = rng.randrange(5)
        if kind == 0:
            del raw[at:]
        elif kind == 1:
            raw[at] = rng.randrange(256)
        elif kind == 2:
            raw[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 3:
            raw += rng.choice([b"x", b"{}", b"\x00", b",", b"}", b" " * 5000, b"\n// end"])
        else:
            raw[:] = rng.choice([b"", b" ", b"null", b"[]", b'"x"', b"5", b"{}", b"[{}]", b"\xff"])
        return _raw_post(path, bytes(raw))

    def encoded(self, rng: random.Random) -> RawRequest:
        """Another encoding than UTF-8, or compressed."""
        path, body = rng.choice(self.bodies)
        text = json.dumps(body | {"user": "Zo\u00eb"}, ensure_ascii=False)
        if rng.random() < 0.3:
            header = (b"content-encoding", rng.choice([b"gzip", b"GZIP", b"identity"]))
            return _raw_post(path, gzip.compress(text.encode()), headers=(JSON, header))
        return _raw_post(path, text.encode(rng.choice(ENCODINGS), "replace"))

    # ------------------------------------------------------------ HTTP

    def framed(self, rng: random.Random) -> RawRequest:
        """A body that ends elsewhere than the headers say, or comes in chunks."""
        path, body = rng.choice(self.bodies)
        raw = json.dumps(body).encode()
        return RawRequest("POST", path.encode(), raw, framing=rng.choice(FRAMINGS))

    def odd_headers(self, rng: random.Random) -> RawRequest:
        """Another content type, or headers that nobody needs."""
        path, body = rng.choice(self.bodies)
        headers = [JSON]
        if rng.random() < 0.5:
            headers = [(b"content-type", rng.choice(CONTENT_TYPES))]
        headers += rng.sample(ODD_HEADERS, rng.randint(0, 2))
        return _raw_post(path, json.dumps(body).encode(), headers=tuple(headers))

    def elsewhere(self, rng: random.Random) -> RawRequest:
        """Another method or a path that is not quite one."""
        path, body = rng.choice(self.bodies)
        target = path.encode()
        if rng.random() < 0.6:
            target = rng.choice(PATH_TRICKS) % target
        method = rng.choice(METHODS) if rng.random() < 0.5 else "POST"
        return RawRequest(method, target, json.dumps(body).encode())


# How often each is drawn.
_MUTATIONS: list[tuple[Mutation, int]] = [
    (Mutator.valid, 4),
    (Mutator.odd_field, 24),
    (Mutator.odd_inside, 18),
    (Mutator.limits, 14),
    (Mutator.combined, 6),
    (Mutator.odd_literal, 12),
    (Mutator.doubled_key, 4),
    (Mutator.torn, 8),
    (Mutator.encoded, 4),
    (Mutator.framed, 4),
    (Mutator.odd_headers, 4),
    (Mutator.elsewhere, 4),
]


def _post(path: str, body: dict[str, Any], *, blame: str | None = None) -> RawRequest:
    return _raw_post(path, json.dumps(body).encode(), blame=blame)


def _raw_post(
    path: str,
    raw: bytes,
    *,
    blame: str | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,),
) -> RawRequest:
    return RawRequest("POST", path.encode(), raw, headers=headers, blame=blame)


def _places(body: dict[str, Any]) -> list[tuple[Any, Any, str]]:
    """Every value of a body: what holds it, under which key, and in which field it is."""
    found: list[tuple[Any, Any, str]] = []

    def walk(holder: Any, name: str) -> None:
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key, name or key))
            if isinstance(holder[key], dict | list):
                walk(holder[key], name or key)

    walk(body, "")
    return found
