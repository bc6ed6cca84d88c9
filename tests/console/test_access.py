"""Who may look, who may change, and what a browser is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from loopguard.proxy.access import is_same_origin, knows_host, may_change
from tests.console.operated import Operated, operated
from tests.fake_openrouter import Reply, loop

SECRETS = 'client_tokens = ["sk-client"]'
KEY = 'api_key = "sk-upstream"'
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Operated]:
    with operated(tmp_path, [loop(), Reply("Good.")], server=SECRETS, upstream=KEY) as started:
        yield started


@pytest.mark.parametrize(
    ("host", "listens_on", "known"),
    [
        ("localhost:8081", "127.0.0.1", True),
        ("127.0.0.1:8081", "localhost", True),
        ("[::1]:8081", "::1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("evil.example:8081", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("10.0.0.5:8081", "10.0.0.5", True),
        ("loopguard.internal", "0.0.0.0", True),
    ],
)
def test_a_listener_on_loopback_has_no_other_name(
    host: str,
    listens_on: str,
    known: bool,  # noqa: FBT001 - what is expected
) -> None:
    """A name that somebody pointed at this machine is not taken for it."""
    request = make_mocked_request("GET", "/console/", headers={"Host": host})
    assert knows_host(request, listens_on) == known


def test_who_names_nothing_is_no_page() -> None:
    """A check in HTTP/1.0, as HAProxy sends it, names no host; a browser always names one."""
    assert knows_host(make_mocked_request("GET", "/readyz"), "127.0.0.1")


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://here:1"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "http://here:1"}, True),
        ({"Origin": "http://here:2"}, False),
        ({"Origin": "null"}, False),
        ({}, False),
    ],
)
def test_what_a_page_of_another_site_asks_is_known(headers: dict[str, str], same: bool) -> None:  # noqa: FBT001
    """The browser's own word counts, else the origin that it names."""
    request = make_mocked_request("POST", "/console/x", headers={"Host": "here:1", **headers})
    assert is_same_origin(request) == same


@pytest.mark.parametrize(
    ("remote", "headers", "token", "may"),
    [
        ("127.0.0.1", {}, None, True),
        ("::1", {}, None, True),
        ("10.0.0.5", {}, None, False),
        ("127.0.0.1", {"X-Forwarded-For": "10.0.0.5"}, None, False),
        ("127.0.0.1", {"Forwarded": "for=10.0.0.5"}, None, False),
        ("127.0.0.1", {}, "secret", False),
        ("10.0.0.5", {"Authorization": "Bearer secret"}, "secret", True),
        ("127.0.0.1", {"Authorization": "Bearer sécret"}, "secret", False),
        ("127.0.0.1", {"Authorization": "Basic secret"}, "secret", False),
    ],
)
def test_who_may_change(remote: str, headers: dict[str, str], token: str | None, may: bool) -> None:  # noqa: FBT001
    """With a token whoever presents it, without one whoever comes straight from this machine."""
    request = make_mocked_request("POST", "/console/x", headers=headers).clone(remote=remote)
    assert may_change(request, token) == may


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/main.js",
        "/reply.js",
        "/console.css",
        "/icon.svg",
        "/replies",
        "/figures",
        "/configuration",
    ],
)
def test_every_answer_has_the_policy(ours: Operated, path: str) -> None:
    """Whatever is answered, no inline script, no foreign source, no frame, no guess of its type."""
    status, _, headers = ours.request("GET", path)
    assert status == 200
    policy = headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in "".join(policy)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_there_is_no_way_out_of_the_folder(ours: Operated) -> None:
    """Only the page's own files are served, whatever is asked for."""
    for path in ("/pages.py", "/..%2fpages.py", "/static/main.js", "/%2e%2e/%2e%2e/settings.py"):
        assert ours.request("GET", path)[0] == 404


def test_the_console_is_where_the_listener_leads(ours: Operated) -> None:
    """The root and the path without its slash lead to the page."""
    assert "<title>loopguard console</title>" in ours.request("GET", "/../")[1]
    assert "<title>loopguard console</title>" in ours.request("GET", "")[1]


def test_a_name_of_elsewhere_is_refused(ours: Operated) -> None:
    """Nothing of the listener is given to a host that somebody pointed here."""
    elsewhere = {"Host": "evil.example"}
    paths = ("/", "/figures", "/../", "/../metrics", "/../healthz", "/../runs/run-1", "/../nothing")
    for path in paths:
        assert ours.request("GET", path, elsewhere)[0] == 421
    assert ours.request("GET", "/../metrics", {"Host": "localhost"})[0] == 200


def test_a_page_of_elsewhere_asks_in_vain(ours: Operated) -> None:
    """Nothing is judged, tried or applied for a page of another origin, and nothing changes."""
    before = ours.config.read_text()
    for path in ("judge", "try", "apply"):
        for headers in ({}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            status, _, _ = ours.request(
                "POST", f"/configuration/{path}", headers, json={"changes": []}
            )
            assert status == 403
    assert ours.config.read_text() == before


def test_no_secret_leaves(ours: Operated) -> None:
    """Nothing that the console answers holds a client token, the key or the ledger's URL."""
    assert ours.ask(Profile="default")[0] in (200, 401)
    told = [str(ours.request("GET", path)) for path in ("/configuration", "/figures", "/replies")]
    told.append(
        str(ours.request("POST", "/configuration/judge", SAME_ORIGIN, json={"changes": []}))
    )
    assert '"min_stale_chars"' in told[0].replace("'", '"')
    for secret in ("sk-client", "sk-upstream", "ledger.db"):
        assert secret not in "".join(told)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"changes": 1}', b"\xff"])
def test_what_is_no_draft_is_refused(ours: Operated, body: bytes) -> None:
    """A body that is no draft is the asker's fault, in whatever way it is none."""
    for path in ("judge", "try", "apply"):
        headers = SAME_ORIGIN | {"Content-Type": "application/json"}
        status, _, _ = ours.request("POST", f"/configuration/{path}", headers, data=body)
        assert 400 <= status < 500


CHANGE = {"path": ["profiles", "default", "relay"], "value": "live"}


def test_a_draft_is_applied_once(ours: Operated) -> None:
    """What is applied is in use and in the file; the same draft again is of an older file."""
    _, form, _ = ours.request("GET", "/configuration")
    draft = {"changes": [CHANGE], "version": form["version"]}
    status, told, _ = ours.request("POST", "/configuration/apply", SAME_ORIGIN, json=draft)
    assert (status, told["profiles"]["default"]["relay"]) == (200, "live")
    assert told["kept"] == f"{ours.config}.bak"
    assert 'relay = "live"' in ours.config.read_text()
    status, told, _ = ours.request("POST", "/configuration/apply", SAME_ORIGIN, json=draft)
    assert (status, "changed meanwhile" in told["error"]) == (409, True)


def test_a_change_through_a_proxy_is_refused(ours: Operated) -> None:
    """Behind a proxy on this machine may be anyone, so that without a token nothing is changed."""
    before = ours.config.read_text()
    headers = SAME_ORIGIN | {"X-Forwarded-For": "10.0.0.5"}
    _, form, _ = ours.request("GET", "/configuration", headers)
    assert form["may_change"] is False
    draft = {"changes": [CHANGE], "version": form["version"]}
    assert ours.request("POST", "/configuration/apply", headers, json=draft)[0] == 403
    assert ours.config.read_text() == before


def test_a_change_needs_the_token(tmp_path: Path) -> None:
    """Where there is a token, this machine alone is not enough."""
    with operated(tmp_path, [Reply("Good.")], server='admin_token = "sk-admin"') as ours:
        _, form, _ = ours.request("GET", "/configuration")
        assert (form["may_change"], form["takes_token"]) == (False, True)
        assert "sk-admin" not in str(form)
        draft = {"changes": [CHANGE], "version": form["version"]}
        for token, expected in (("", 401), ("Bearer sk-wrong", 401), ("Bearer sk-admin", 200)):
            headers = SAME_ORIGIN | ({"Authorization": token} if token else {})
            status, _, _ = ours.request("POST", "/configuration/apply", headers, json=draft)
            assert status == expected


def test_a_file_that_cannot_be_written_is_told(ours: Operated) -> None:
    """Where the file cannot be replaced the draft is not lost: the reason is told."""
    _, form, _ = ours.request("GET", "/configuration")
    ours.config.with_name("loopguard.toml.bak").mkdir()
    draft = {"changes": [CHANGE], "version": form["version"]}
    status, told, _ = ours.request("POST", "/configuration/apply", SAME_ORIGIN, json=draft)
    assert (status, "cannot be written" in told["error"]) == (409, True)
