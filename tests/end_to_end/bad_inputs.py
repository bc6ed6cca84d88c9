"""Over two hundred things that a listener must not take, and what each must be answered with.

Each input is what a peer writes on one connection; it then reads until the connection ends. Whoever
needs one presents a token that is good, so that it is not refused for the want of one. `pl4nted`
stands wherever something could be repeated to somebody.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

TOKEN = "t0ken-pl4nted"
CHAT = "/v1/chat/completions"
GUARDED = (CHAT, "/v1/responses", "/v1/messages", "/v1/completions")
MAX_BODY_BYTES = 65_536

SMUGGLED = b"POST /v1/smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


class BadInput(NamedTuple):
    """What is written, and the statuses of the responses that must come back, in order.

    Attributes:
        name: unique.
        sent: in one piece.
        statuses: of all responses; none where the connection is to end without a word.
        listener: whose.
    """

    name: str
    sent: bytes
    statuses: tuple[int, ...]
    listener: Literal["api", "admin"] = "api"


def ask(
    body: bytes = b"{}",
    *headers: str,
    path: str = CHAT,
    method: str = "POST",
    length: str | None = "",
    token: str | None = TOKEN,
    host: str = "localhost",
) -> bytes:
    """A request that is well-formed but for what it is given; a length of None is not announced."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if length is not None:
        lines.append(f"Content-Length: {length or len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def first_lines() -> Iterator[tuple[str, bytes, int]]:
    """What stands where the first line of a request should."""
    rest = f"\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    for name, line in {
        "a method in small letters": b"get /v1/models HTTP/1.1",
        "a method with a control": b"GE\x01T /v1/models HTTP/1.1",
        "a method with a separator": b"G(E)T /v1/models HTTP/1.1",
        "no method": b" /v1/models HTTP/1.1",
        "no version": b"GET /v1/models",
        "no path": b"GET HTTP/1.1",
        "an empty path": b"GET  HTTP/1.1",
        "version 0.9": b"GET /v1/models HTTP/0.9",
        "version 1": b"GET /v1/models HTTP/1",
        "version 1.10": b"GET /v1/models HTTP/1.10",
        "version 1.2": b"GET /v1/models HTTP/1.2",
        "version 2": b"GET /v1/models HTTP/2.0",
        "version 9": b"GET /v1/models HTTP/9.9",
        "another protocol's name": b"GET /v1/models HTTPS/1.1",
        "a version in small letters": b"GET /v1/models http/1.1",
        "a tab for a space": b"GET\t/v1/models\tHTTP/1.1",
        "a vertical tab": b"GET /v1/models\x0bHTTP/1.1",
        "a space in the path": b"GET /v1/mod els HTTP/1.1",
        "a NUL in the path": b"GET /v1/mod\0els HTTP/1.1",
        "a DEL in the path": b"GET /v1/mod\x7fels HTTP/1.1",
        "an escape in the path": b"GET /v1/\x1b[31mels HTTP/1.1",
        "bytes that are no text": b"GET /v1/\xff\xfe HTTP/1.1",
        "UTF-8 in the path": "GET /v1/modèles HTTP/1.1".encode(),
        "more behind the version": b"GET /v1/models HTTP/1.1 pl4nted",
        "a CR inside": b"GET /v1/models\rHTTP/1.1",
        "a space before it": b" GET /v1/models HTTP/1.1",
        "a response": b"HTTP/1.1 200 OK",
        "the preface of HTTP/2": b"PRI * HTTP/2.0",
    }.items():
        yield name, line + rest, 400
    yield "a very long method", b"G" * 20_000 + b" /v1/models HTTP/1.1" + rest, 400
    yield "a very long path", b"GET /v1/" + b"x" * 20_000 + b" HTTP/1.1" + rest, 431
    yield "a very long query", b"GET /v1/m?" + b"x" * 20_000 + b" HTTP/1.1" + rest, 431


def other_protocols() -> Iterator[tuple[str, bytes, int]]:
    """What speaks something else on this port."""
    for name, sent in {
        "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\x5a" * 160,
        "SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"\x5a" * 30,
        "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
        "SOCKS 4": b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00",
        "SOCKS 5": b"\x05\x01\x00",
        "Redis": b"*1\r\n$4\r\nPING\r\n",
        "Redis, in line": b"SET pl4nted 1\r\n",
        "memcached": b"get pl4nted\r\n",
        "SMTP": b"EHLO pl4nted.example\r\n",
        "IMAP": b"a001 LOGIN pl4nted pl4nted\r\n",
        "PostgreSQL": b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        "MySQL": b"\x4a\x00\x00\x00\x0a5.5.5\x00",
        "MQTT": b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04pl4n",
        "RDP": b"\x03\x00\x00\x13\x0e\xe0\x00\x00\x00\x00\x00\x01\x00\x08\x00\x03\x00\x00\x00",
        "DNS": b"\x00\x1d\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07pl4nted\x00\x00\x01",
        "PROXY 1": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\nGET /v1/models HTTP/1.1\r\n\r\n",
        "PROXY 2": b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + b"\x7f" * 12,
        "SIP": b"INVITE sip:pl4nted@x SIP/2.0\r\n\r\n",
        "JSON alone": b'{"model":"pl4nted"}\r\n\r\n',
        "NULs": b"\0" * 64,
        "high bytes": b"\xff" * 64,
    }.items():
        yield name, sent, 400


def headers() -> Iterator[tuple[str, bytes, int]]:
    """Headers that one server reads thus and another one so."""
    for name, line in {
        "a space before the colon": b"X : pl4nted",
        "a tab before the colon": b"X\t: pl4nted",
        "no colon": b"pl4nted",
        "no name": b": pl4nted",
        "a name with a space": b"X Y: pl4nted",
        "a name with a slash": b"X/Y: pl4nted",
        "a name with a bracket": b"X(Y: pl4nted",
        "a name with an at sign": b"X@Y: pl4nted",
        "a name with a comma": b"X,Y: pl4nted",
        "a name with quotes": b'"X": pl4nted',
        "a name with braces": b"{X}: pl4nted",
        "a name with a NUL": b"X\0Y: pl4nted",
        "a name with a control": b"X\x01Y: pl4nted",
        "a name in another script": "Ж: pl4nted".encode(),
        "a folded value": b"X: a\r\n pl4nted",
        "a value folded by a tab": b"X: a\r\n\tpl4nted",
        "a NUL in a value": b"X: pl4n\0ted",
        "a CR in a value": b"X: pl4n\rX-Y: ted",
        "an escape in a value": b"X: \x01pl4nted",
        "a DEL in a value": b"X: \x7fpl4nted",
        "a fold before the first": b" X: pl4nted",
        "a length with a space before the colon": b"Content-Length : 9",
        "a coding with a space before the colon": b"Transfer-Encoding : chunked",
        "two hosts": b"Host: x",
        "a host that is a URL": b"Host: http://x/",
    }.items():
        lines = [b"POST /v1/echo HTTP/1.1", line, b"Host: x", b"Connection: close"]
        token = b"Authorization: Bearer " + TOKEN.encode()
        yield name, b"\r\n".join([*lines, token, b"Content-Length: 2", b"", b"{}"]), 400
    yield "a long header", ask(b"{}", "X: " + "x" * 20_000), 431
    yield "a long name", ask(b"{}", "x" * 20_000 + ": x"), 431
    yield "very many headers", ask(b"{}", *(f"X-{number}: 1" for number in range(5000))), 400
    yield "a head without an end", b"GET /v1/models HTTP/1.1\r\n" + b"X: y\r\n" * 20, 408
    yield "half a first line", b"GET /v1/mod", 408


def framings() -> Iterator[tuple[str, bytes, int]]:
    """Two readings of where a body ends; behind it a request waits to be taken for another one."""
    for name, line in {
        "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        "two lengths": b"Content-Length: 5\r\nContent-Length: 0",
        "two lengths alike": b"Content-Length: 5\r\nContent-Length: 5",
        "a list of lengths": b"Content-Length: 5, 0",
        "a list of lengths alike": b"Content-Length: 5, 5",
        "a length below zero": b"Content-Length: -5",
        "a length with a sign": b"Content-Length: +5",
        "a length in hexadecimal": b"Content-Length: 0x5",
        "a length with an underscore": b"Content-Length: 1_0",
        "a length with a space inside": b"Content-Length: 1 0",
        "a length with a fraction": b"Content-Length: 5.0",
        "a length in letters": b"Content-Length: five",
        "a length in other digits": "Content-Length: \uff15".encode(),
        "a length of nothing": b"Content-Length:",
        "a length beyond 64 bits": b"Content-Length: 18446744073709551621",
        "a length folded": b"Content-Length:\r\n 5",
        "a length with a vertical tab": b"Content-Length: \x0b5",
        "an unknown coding": b"Transfer-Encoding: xchunked",
        "a coding with more behind it": b"Transfer-Encoding: chunkedx",
        "a coding beside chunked": b"Transfer-Encoding: chunked, identity",
        "a coding that is none": b"Transfer-Encoding: identity",
        "a coding of spaces": b"Transfer-Encoding: chun ked",
        "a coding in quotes": b'Transfer-Encoding: "chunked"',
        "a coding with a control before it": b"Transfer-Encoding: \x0bchunked",
        "a coding with a control behind it": b"Transfer-Encoding: chunked\x0c",
        "a coding with a NUL": b"Transfer-Encoding: chunked\0",
        "a coding with a semicolon": b"Transfer-Encoding: chunked;a=b",
        "a coding of nothing": b"Transfer-Encoding:",
        "a coding twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "a coding and another": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "another coding and chunked": b"Transfer-Encoding: xchunked\r\nTransfer-Encoding: chunked",
        "chunked twice in a list": b"Transfer-Encoding: chunked, chunked",
        "a coding in a fold": b"Transfer-Encoding:\r\n chunked",
        "a coding behind a bare LF": b"X: y\nTransfer-Encoding: chunked",
        "a coding behind a bare CR": b"X: y\rTransfer-Encoding: chunked",
        "a coding with an underscore": b"X: y\r\nTransfer-Encoding\xff: chunked",
    }.items():
        lines = [b"POST /v1/echo HTTP/1.1", b"Host: x"]
        token = b"Authorization: Bearer " + TOKEN.encode()
        body = b"0\r\n\r\n" + SMUGGLED
        yield name, b"\r\n".join([*lines, token, line, b"", body]), 400
    old = b"POST /v1/echo HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    old += b"Authorization: Bearer " + TOKEN.encode()
    yield "chunks in version 1.0", old + b"\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED, 400


def chunks() -> Iterator[tuple[str, bytes, int]]:
    """Bodies in chunks that are none; `{}` would be a body."""
    for name, body in {
        "a size that is no number": b"zz\r\n{}\r\n0\r\n\r\n",
        "a size below zero": b"-2\r\n{}\r\n0\r\n\r\n",
        "a size with a sign": b"+2\r\n{}\r\n0\r\n\r\n",
        "a size with its base": b"0x2\r\n{}\r\n0\r\n\r\n",
        "a size with an underscore": b"0_2\r\n{}\r\n0\r\n\r\n",
        "a size with a space before it": b" 2\r\n{}\r\n0\r\n\r\n",
        "a size with a space behind it": b"2 \r\n{}\r\n0\r\n\r\n",
        "a size of nothing": b"\r\n{}\r\n0\r\n\r\n",
        "a size beyond 64 bits": b"10000000000000002\r\n{}\r\n0\r\n\r\n",
        "a size ended by a bare LF": b"2\n{}\r\n0\r\n\r\n",
        "a size ended by a bare CR": b"2\r{}\r\n0\r\n\r\n",
        "a chunk that is too long": b"1\r\n{}\r\n0\r\n\r\n",
        "a chunk ended by nothing": b"2\r\n{}0\r\n\r\n",
        "a chunk ended by a bare LF": b"2\r\n{}\n0\r\n\r\n",
        "a chunk ended by a bare CR": b"2\r\n{}\r0\r\n\r\n",
        "an extension with a bare LF": b"2;a\nb\r\n{}\r\n0\r\n\r\n",
        "an extension with a NUL": b"2;\0\r\n{}\r\n0\r\n\r\n",
        "a trailer without a colon": b"2\r\n{}\r\n0\r\npl4nted\r\n\r\n",
        "a trailer with a space before the colon": b"2\r\n{}\r\n0\r\nX : y\r\n\r\n",
    }.items():
        for path in (CHAT, "/v1/echo"):
            sent = ask(body, "Transfer-Encoding: chunked", path=path, length=None)
            yield f"{name}, {path}", sent, 400
    for path in (CHAT, "/v1/echo"):
        body = b"2\r\n{}\r\n0\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"
        sent = ask(body, "Transfer-Encoding: chunked", path=path, length=None)
        yield f"a trailer that is very long, {path}", sent, 431
    for name, body in {
        "no last chunk": b"2\r\n{}\r\n",
        "no end of the last chunk": b"2\r\n{}\r\n0\r\n",
        "no end of a size": b"2",
        "half a chunk": b"20\r\n{}",
    }.items():
        yield name, ask(body, "Transfer-Encoding: chunked", length=None), 408


def targets() -> Iterator[tuple[str, bytes, int]]:
    """Paths that lead elsewhere, as some server would read them."""
    for path in (
        *("/", "//", "/v1", "/api/v1", "/api", "/v2/models"),
        *("/V1/models", "/v1%2fmodels", "/%2e/v1/models", "/./v1/models", "/api/../v1/models"),
        *("/api//v1/models", "//api/v1/models", "/\\v1\\models", "/v1\\models", "/v1;a/models"),
        *(
            "/v1/..",
            "/v1/../",
            "/v1/../keys",
            "/v1/..\\keys",
            "/v1/\\..\\..\\keys",
            "/v1/a/../../b",
        ),
        *("/v1/%2e%2e/keys", "/v1/%2E%2E%2Fkeys", "/v1/.%2e/keys", "/v1/%252e%252e/keys"),
        *("/v1/%2e%2e%5ckeys", "/v1/..;/keys", "/v1/..;a=b/keys", "/v1/..%3b/keys"),
        *("/v1/..%00/keys", "/v1/..%0a/keys", "/v1/..%20/keys", "/v1/..%09/keys", "/v1/..?/x"),
        *("/v1/a/..%23/keys", "/v1/a%2f..%2f..%2fkeys", "/v1/a%5c..%5ckeys", "/v1/./models"),
        *("/profiles/../v1/models", "/profiles/%2e%2e/v1/models", "/profiles/a/b/v1/models"),
        *("/profiles/default/v2/models", "/profiles/default//v1/models", "/profiles/v1/models"),
        *("http://x/v1/models", "https://x/v1/models", "http://x@y/v1/models", "ftp://x/v1/models"),
        *("//elsewhere.example/v1/models", "///v1/models", "/@elsewhere.example/v1/models"),
        *("/v1/models#pl4nted", "/v1#/models", "/metrics", "/healthz", "/runs/pl4nted"),
    ):
        yield f"GET {path}", ask(b"", path=path, method="GET", length=None), 404
    for method in ("GET", "POST", "DELETE", "PROPFIND"):
        yield f"{method} /nowhere", ask(b"", path="/nowhere", method=method), 404
    for path in (
        *("*", "v1/models", "?x=/v1/models", ":80/v1", "x:80"),
        *("@elsewhere.example/v1/models", "\\\\x\\v1\\models"),
    ):
        yield f"GET {path}", ask(b"", path=path, method="GET", length=None), 400
    for target in ("elsewhere.example:443", "/v1/models", "*"):
        yield f"CONNECT {target}", ask(b"", path=target, method="CONNECT", length=None), 404
    yield "CONNECT a URL", ask(b"", path="http://x/v1", method="CONNECT", length=None), 400
    yield "PL4NTED /v1/models", ask(b"", path="/v1/models", method="PL4NTED"), 400
    yield "OPTIONS *", ask(b"", path="*", method="OPTIONS", length=None), 404
    for path in (
        *("/v1/keys", "/v1/KEYS", "/v1/keys/", "/v1//keys", "/v1/keys;a", "/v1/keys%3fa"),
        *("/v1/ke%79s", "/v1/ke%2579s", "/v1/keys%00", "/v1/keys%2f1", "/api/v1/key", "/v1/\\keys"),
        *("/v1/credits", "/v1/auth/keys", "/v1/activity?x=1", "/v1/generation/content?id=pl4nted"),
        *("/profiles/default/v1/keys", "/v1/organization/members", "/v1/workspaces/x"),
    ):
        yield f"GET {path}", ask(b"", path=path, method="GET", length=None), 403


def credentials() -> Iterator[tuple[str, bytes, int]]:
    """Callers who present something else than a token."""
    good = f"Bearer {TOKEN}"
    for name, lines in {
        "nothing": [],
        "an empty value": ["Authorization:"],
        "a scheme alone": ["Authorization: Bearer"],
        "a token alone": [f"Authorization: {TOKEN}"],
        "another scheme": [f"Authorization: Basic {TOKEN}"],
        "a scheme's abbreviation": [f"Authorization: Bear {TOKEN}"],
        "a token in part": [f"Authorization: {good[:-1]}"],
        "a token and more": [f"Authorization: {good}x"],
        "a token in capitals": [f"Authorization: Bearer {TOKEN.upper()}"],
        "a token in quotes": [f'Authorization: Bearer "{TOKEN}"'],
        "two tokens": [f"Authorization: {good}, {good}"],
        "a token and a wrong one": ["Authorization: Bearer wrong", f"Authorization: {good}"],
        "a wrong one and a token": [f"X-Api-Key: {TOKEN}", "Authorization: Bearer wrong"],
        "a wrong key": ["X-Api-Key: wrong"],
        "an empty key": ["X-Api-Key:"],
        "a token as a cookie": [f"Cookie: authorization={TOKEN}"],
        "a token for a proxy": [f"Proxy-Authorization: {good}"],
        "the operator's key": ["Authorization: Bearer sk-operator-pl4nted"],
        "bytes that are no text": ["Authorization: Bearer \xff\xfe"],
        "very much": ["Authorization: Bearer " + "x" * 8000],
        "a user and a password": ["Authorization: Basic cGw0bnRlZDpwbDRudGVk"],
    }.items():
        yield name, ask(b"{}", *lines, token=None), 401
    yield "a token in the query", ask(path=f"{CHAT}?key={TOKEN}", token=None), 401
    yield "a token in the path", ask(path=f"/v1/{TOKEN}/models", method="GET", token=None), 401
    yield "nothing, for the account", ask(path="/v1/keys", method="GET", token=None), 401
    yield "nothing, for nowhere", ask(path="/nowhere", method="GET", token=None), 401
    large = ask(b"", token=None, length=str(10 * MAX_BODY_BYTES))
    yield "nothing, and a large body", large, 401


def bodies() -> Iterator[tuple[str, bytes, int]]:
    """Bodies that no guarded path can read, or may not."""
    for path in GUARDED:
        for name, body in {
            "nothing": b"",
            "spaces": b"   ",
            "half an object": b'{"model":"pl4nted"',
            "a list": b"[]",
            "a text": b'"pl4nted"',
            "a number": b"1",
            "null": b"null",
            "an object and more": b"{} {}",
            "a comma at the end": b'{"model":"pl4nted",}',
            "single quotes": b"{'model':'pl4nted'}",
            "a comment": b"{/*pl4nted*/}",
            "no UTF-8": b'{"model":"\xff"}',
            "deep lists": b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
            "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
            "a switch that is text": b'{"stream":"true"}',
            "a switch that is a number": b'{"stream":1}',
        }.items():
            yield f"{name}, {path}", ask(body, path=path), 400
    for name, body in {
        "a byte order mark": b"\xef\xbb\xbf{}",
        "UTF-32": '{"model":"x"}'.encode("utf-32"),
        "UTF-16": '{"model":"x"}'.encode("utf-16"),
        "a NUL": b"\0",
        "a NUL behind it": b"{}\0",
        "a form": b"model=pl4nted&stream=true",
        "parts": b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\npl4nted\r\n--x--\r\n',
        "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a/>',
        "events": b'data: {"model":"pl4nted"}\n\n',
        "lines of JSON": b"{}\n{}\n",
        "gzip that is not announced": gzip.compress(b"{}"),
        "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94.",
        "half a UTF-8 sequence": b'{"model":"\xe2\x82"}',
        "UTF-8 that is too long": b'{"model":"\xc0\xaf"}',
        "a list for a switch": b'{"stream":[true]}',
        "an object for a switch": b'{"stream":{}}',
        "a control in a text": b'{"model":"\x01"}',
        "an escape that is none": b'{"model":"\\x41"}',
        "a number with a leading zero": b'{"seed":01}',
        "a number with a plus": b'{"seed":+1}',
    }.items():
        yield name, ask(body), 400
    bomb = gzip.compress(b'{"a":"' + b"x" * 40_000_000 + b'"}')
    for name, coding, body, status in (
        ("no gzip", "gzip", b"{}", 400),
        ("half a gzip", "gzip", gzip.compress(b'{"a":"pl4nted"}' * 50)[:30], 400),
        ("no deflate", "deflate", b"\xff\xff\xff\xff", 400),
        ("gzip and more", "gzip", gzip.compress(b"{}") + b"pl4nted", 400),
        ("gzip twice", "gzip, gzip", gzip.compress(b"{}"), 400),
        ("Brotli", "br", b"\x0b\x02\x80\x41\x42\x43", 400),
        ("gzip in gzip", "gzip", gzip.compress(gzip.compress(b"{}")), 400),
        ("a gzip that grows", "gzip", bomb, 413),
        ("a deflate that grows", "deflate", zlib.compress(b" " * 40_000_000), 413),
        ("an unknown coding of the content", "pl4nted", b"\x1f\x8b", 400),
    ):
        yield name, ask(body, f"Content-Encoding: {coding}"), status
    yield "a byte too many", ask(json.dumps({"a": "x" * MAX_BODY_BYTES}).encode()), 413
    yield "a length too large", ask(b"", length=str(MAX_BODY_BYTES + 1)), 413
    yield "a length of terabytes", ask(b"{}", length=str(10**15)), 413
    chunk = b"%x\r\n%b\r\n" % (MAX_BODY_BYTES + 1, b" " * (MAX_BODY_BYTES + 1))
    yield "chunks too large", ask(chunk, "Transfer-Encoding: chunked", length=None), 413
    yield "less than announced", ask(b'{"model":', length="100"), 408
    yield "nothing of what is announced", ask(b"", length="100"), 408
    for header, value in (
        ("X-Loopguard-Profile", "pl4nted"),
        ("X-Loopguard-Profile", "default, default"),
        ("X-Loopguard-Profile", "DEFAULT"),
        ("X-Loopguard-Profile", "../default"),
        ("X-Loopguard-Relay", "pl4nted"),
        ("X-Loopguard-Relay", "LIVE"),
        ("X-Loopguard-Relay", ""),
    ):
        body = b'{"model":"m","messages":[],"stream":true}'
        yield f"{header}: {value}", ask(body, f"{header}: {value}"), 400
    for path in ("/profiles//v1/chat/completions", "/profiles/pl4nted/v1/messages"):
        yield f"POST {path}", ask(b'{"model":"m"}', path=path), 404


def operators() -> Iterator[tuple[str, bytes, int]]:
    """What the operators' listener does not take."""
    for method, path, status in (
        *(("GET", path, 404) for path in ("/v1/models", "/metrics/", "/%2e%2e/etc/passwd")),
        *(("GET", path, 404) for path in ("//metrics", "/METRICS", "/metrics%00", "/healthz/x")),
        *(("GET", path, 400) for path in ("*", "x:80")),
        *(("GET", path, 404) for path in ("/runs", "/runs/", "/keys")),
        ("GET", "http://x/pl4nted", 421),
        *((method, "/metrics", 405) for method in ("POST", "PUT", "DELETE", "PATCH", "PROPFIND")),
        *(("DELETE", path, 405) for path in ("/healthz", "/readyz", "/runs/pl4nted")),
        *(
            ("POST", f"/runs/pl4nted/close?within_s={text}", 400)
            for text in ("-1", "nan", "inf", "1e9", "pl4nted", "", "0x1", "%00")
        ),
    ):
        yield f"{method} {path}", ask(b"", path=path, method=method, token=None), status
    for path in ("/", "/metrics", "/healthz", "/readyz", "/runs/pl4nted", "/console/"):
        for host in ("elsewhere.example", ""):
            sent = ask(b"", path=path, method="GET", token=None, host=host)
            yield f"GET {path}, as {host}", sent, 421
    for path in ("/runs/pl4nted/close", "/config/reload"):
        for host in ("elsewhere.example", "x", "", "127.0.0.1.elsewhere.example", "localhost.x"):
            sent = ask(b"", path=path, token=None, host=host)
            yield f"POST {path}, as {host}", sent, 421
        for origin in ("https://elsewhere.example", "null", "http://localhost:1", "x"):
            sent = ask(b"", f"Origin: {origin}", path=path, token=None)
            yield f"POST {path}, for a page of {origin}", sent, 403
    for target in ("x:443", "/metrics"):
        yield f"CONNECT {target}", ask(b"", path=target, method="CONNECT", token=None), 421
    rest = b"\r\nHost: x\r\nConnection: close\r\n"
    lengths = b"Content-Length: 0\r\nContent-Length: 1\r\n\r\n"
    for name, sent, status in (
        ("TLS", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\x5a" * 160, 400),
        ("a space before the colon", b"GET /metrics HTTP/1.1" + rest + b"X : y\r\n\r\n", 400),
        ("two lengths", b"POST /runs/a/close HTTP/1.1" + rest + lengths, 400),
        ("a long header", b"GET /readyz HTTP/1.1" + rest + b"X: %b\r\n\r\n" % (b"x" * 20_000), 431),
        ("a head without an end", b"GET /metrics HTTP/1.1\r\n", 408),
        ("a long path", b"GET /" + b"x" * 20_000 + b" HTTP/1.1" + rest + b"\r\n", 431),
    ):
        yield name, sent, status


def all_of_them() -> list[BadInput]:
    """The table."""
    table = [
        BadInput(f"{group.__name__}: {name}", sent, (status,))
        for group in (
            *(first_lines, other_protocols, headers, framings, chunks, targets, credentials),
            bodies,
        )
        for name, sent, status in group()
    ]
    table += [
        BadInput(f"operators: {name}", sent, (status,), "admin")
        for name, sent, status in operators()
    ]
    table.append(BadInput("nothing at all", b"", ()))
    table.append(BadInput("operators: nothing at all", b"", (), "admin"))
    return table
