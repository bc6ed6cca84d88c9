"""Which headers cross."""

from datetime import UTC, datetime

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from loopguard.proxy import headers as crossing


def proxied(*items: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(items))


NOW = datetime(2026, 10, 2, 10, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ((), None),
        (("7",), 7.0),
        (("0.5",), 0.5),
        (("-3",), 0.0),
        (("Fri, 02 Oct 2026 10:00:30 GMT",), 30.0),
        (("Fri, 02 Oct 2026 10:00:30 -0000",), 30.0),
        (("Fri, 02 Oct 2026 09:00:00 GMT",), 0.0),
        (("soon",), None),
        (("soon", "4"), 4.0),
        (("",), None),
    ],
)
def test_retry_after(values: tuple[str, ...], seconds: float | None) -> None:
    """A wait is read as seconds or as a date, of whichever zone; what cannot be read is no wait."""
    assert crossing.retry_after_s(values, NOW) == seconds


def test_to_upstream() -> None:
    """What is of the hop, the framing, the caller's host or ours stays; the rest crosses."""
    sent = crossing.to_upstream(
        proxied(
            ("Host", "loopguard"),
            ("Authorization", "Bearer sk-caller"),
            ("Connection", "keep-alive, X-Of-The-Hop"),
            ("X-Of-The-Hop", "1"),
            ("TE", "trailers"),
            ("Content-Length", "3"),
            ("Content-Encoding", "gzip"),
            ("Accept-Encoding", "br"),
            ("Expect", "100-continue"),
            ("X-Forwarded-For", "192.0.2.7"),
            ("X-Forwarded-Proto", "https"),
            ("X-Real-IP", "192.0.2.7"),
            ("Forwarded", "for=192.0.2.7"),
            ("Via", "1.1 balancer"),
            ("X-LoopGuard-Run", "r"),
            ("X-Loopguard-Later", "x"),
            ("X-Title", "first"),
            ("x-title", "second"),
        ),
        None,
    )
    assert sent == [
        ("Authorization", "Bearer sk-caller"),
        ("X-Title", "first"),
        ("x-title", "second"),
        ("Accept-Encoding", "identity"),
    ]


@pytest.mark.parametrize(
    ("taken", "asked"),
    [((), "identity"), (("br",), "br"), (("gzip", "br"), "gzip, br")],
)
def test_encodings_of_a_verbatim_answer(taken: tuple[str, ...], asked: str) -> None:
    """An answer that is passed on as it comes may be compressed in any way the caller takes."""
    presented = proxied(*(("Accept-Encoding", encoding) for encoding in taken))
    sent = crossing.to_upstream(presented, None, verbatim_body=True)
    assert sent == [("Accept-Encoding", asked)]


def test_operators_key_replaces_whatever_the_caller_presents() -> None:
    """Where the operator has a key, nothing of the caller's credentials crosses."""
    sent = crossing.to_upstream(
        proxied(("authorization", "Bearer token"), ("X-API-Key", "token"), ("X-Title", "t")),
        "sk-op",
    )
    assert ("Authorization", "Bearer sk-op") in sent
    assert "token" not in str(sent)


def test_to_caller() -> None:
    """What the upstream's host says of itself stays behind; what describes the reply crosses."""
    upstream = proxied(
        ("Date", "Fri, 02 Oct 2026 10:00:00 GMT"),
        ("Set-Cookie", "__cf_bm=fake"),
        ("Server", "cloudflare"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Encoding", "gzip"),
        ("Content-Length", "5"),
        ("X-Generation-Id", "gen-1"),
    )
    assert crossing.to_caller(upstream) == [("X-Generation-Id", "gen-1")]
    assert crossing.to_caller(upstream, verbatim_body=True) == [
        ("Content-Encoding", "gzip"),
        ("Content-Length", "5"),
        ("X-Generation-Id", "gen-1"),
    ]


@pytest.mark.parametrize(
    ("items", "credential"),
    [
        ([], None),
        ([("Authorization", "Bearer t0ken")], "t0ken"),
        ([("Authorization", "bearer  t0ken ")], "t0ken"),
        ([("Authorization", "Basic t0ken")], None),
        ([("Authorization", "Bearer ")], None),
        ([("X-Api-Key", "t0ken")], "t0ken"),
        ([("Authorization", "Basic x"), ("X-Api-Key", "t0ken")], "t0ken"),
        ([("Authorization", "Bearer a"), ("X-Api-Key", "b")], "a"),
    ],
)
def test_credential(items: list[tuple[str, str]], credential: str | None) -> None:
    """The caller presents a bearer token or, like Anthropic's clients, a key of its own header."""
    assert crossing.credential(proxied(*items)) == credential
