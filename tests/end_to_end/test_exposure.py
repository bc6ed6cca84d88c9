"""What leaves for where: keys, credentials of the machine, account paths, and what comes back."""

import asyncio
import re
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.end_to_end.command import serving
from tests.end_to_end.conftest import Guard
from tests.end_to_end.raw_caller import CHAT, REQUEST, ask, asked, connected
from tests.end_to_end.test_access import KEYS, bearer
from tests.fake_openrouter import FakeOpenRouter, Reply, close, loop, raw

GOOD = Reply("The good answer.")
MODELS = "/v1/models"


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of the machine's user for the upstream's host, where clients look for them."""
    path = tmp_path / "netrc"
    path.write_text("machine 127.0.0.1 login planted password planted\n")
    monkeypatch.setenv("NETRC", str(path))


@pytest.mark.parametrize("path", [CHAT, MODELS])
@pytest.mark.usefixtures("netrc")
async def test_netrc_is_not_sent(guarded: Guard, path: str) -> None:
    """What ~/.netrc holds for the upstream's host is neither sent nor in the way of a key."""
    method = "POST" if path == CHAT else "GET"
    async with guarded([GOOD]) as ours:
        assert (await ask(ours, path=path, method=method)).status == 200
        assert (
            await ask(ours, headers=bearer("sk-caller"), path=path, method=method)
        ).status == 200
        without, with_key = ours.fake.requests
        assert "authorization" not in without.headers
        assert with_key.key == "sk-caller"
    async with guarded([GOOD], upstream__api_key="sk-operator") as ours:
        assert (await ask(ours, path=path, method=method)).status == 200
        assert ours.fake.requests[0].key == "sk-operator"


@pytest.mark.usefixtures("netrc")
async def test_netrc_is_not_sent_with_what_loopguard_asks(guarded: Guard) -> None:
    """Nor is it sent where loopguard asks by itself: for prices, and twice for the models."""
    async with guarded([loop(), GOOD]) as ours, aiohttp.ClientSession() as session:
        caller = bearer("sk-caller") | {"X-Loopguard-Run": "run"}
        assert (await ask(ours, headers=caller)).status == 200
        async with session.post(f"{ours.admin}/runs/run/close") as closed:
            assert (await closed.json())["loopAbortOwed"] == 0
        async with session.get(f"{ours.admin}/console/figures") as figures:
            assert figures.status == 200
        keys = {request.path: request.headers.get("authorization") for request in ours.fake.lookups}
        assert keys == {"/generation": "Bearer sk-caller"}
        lists = [request for request in ours.fake.requests if request.path == "/models"]
        assert ["authorization" in request.headers for request in lists] == [False, False]


async def test_environments_proxy_is_asked(guarded: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream is asked through the environment's proxy, unless NO_PROXY names its host."""
    async with FakeOpenRouter([GOOD]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:word@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "elsewhere.example")
        async with guarded([], upstream__base_url="http://upstream.invalid/api/v1") as ours:
            assert (await ask(ours)).status == 200
        (request,) = proxy.requests
        assert request.headers["host"] == "upstream.invalid"
        assert request.headers["proxy-authorization"] == "Basic dXNlcjp3b3Jk"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with guarded([GOOD]) as ours:
            assert (await ask(ours)).status == 200
        assert len(proxy.requests) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that nobody has signed, and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("the command openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "self-signed.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(path), "-out", str(path.with_suffix(".crt"))]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *name, *files], check=True, capture_output=True
    )
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


@asynccontextmanager
async def over_tls(fake: FakeOpenRouter, certificate: Path) -> AsyncIterator[str]:
    """Serve the fake over TLS as well; its base URL."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", fake.port)
        await asyncio.gather(copy(reader, plain_writer), copy(plain_reader, writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with await asyncio.start_server(join, "127.0.0.1", 0, ssl=context) as server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}/api/v1"


@pytest.mark.parametrize("path", [CHAT, MODELS])
async def test_certificate_that_nobody_signed_is_refused(
    guarded: Guard, certificate: Path, path: str
) -> None:
    """An upstream whose certificate is not trusted is sent nothing, and the caller reads why."""
    method = "POST" if path == CHAT else "GET"
    async with FakeOpenRouter([GOOD]) as fake, over_tls(fake, certificate) as base_url:
        async with guarded([], upstream__base_url=base_url) as ours:
            caller = await ask(ours, headers=bearer("sk-caller"), path=path, method=method)
            assert (caller.status, caller.error["type"]) == (502, "upstream_unusable")
            assert "certificate is not one that is trusted" in caller.error["message"]
        assert fake.requests == []


async def test_certificate_of_the_operators_choice(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE names further certificates that are trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_suffix(".crt")))
    async with (
        FakeOpenRouter([GOOD]) as fake,
        over_tls(fake, certificate) as base_url,
        serving(base_url) as command,
        connected(command.port) as caller,
    ):
        await caller.send(REQUEST)
        assert b"The good answer." in await caller.whole()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("path", [CHAT, MODELS])
async def test_redirects_are_not_followed(guarded: Guard, path: str, status: int) -> None:
    """A redirect of the upstream's goes to the caller; the key goes nowhere else."""
    method = "POST" if path == CHAT else "GET"
    async with FakeOpenRouter([GOOD]) as elsewhere:
        lines = f"HTTP/1.1 {status} Away\r\nLocation: {elsewhere.base_url}/models\r\n"
        answer = raw(f"{lines}Content-Length: 0\r\n\r\n".encode())
        async with guarded([[answer]], **KEYS) as ours:
            ours.fake._answer = lambda _: [answer]
            caller = await ask(ours, headers=bearer("t0ken-a"), path=path, method=method)
            assert caller.status == status
            assert caller.headers["location"].startswith(elsewhere.base_url)
        assert elsewhere.connections == []


ACCOUNT = [
    "/key",
    "/keys",
    "/keys/0123abcd",
    "/Keys//",
    "/auth/keys",
    "/credits",
    "/credits?x=1",
    "/cred%69ts/coinbase",
    "/activity",
    "/generation/content?id=gen-1",
    "/organization/members",
    "/x%2f..%2fkeys",
]


@pytest.mark.parametrize("path", ACCOUNT)
async def test_account_is_not_lent(guarded: Guard, path: str) -> None:
    """With the operator's key no spelling of a path that manages the account is served."""
    async with guarded([GOOD], **KEYS) as ours:
        for method in ("GET", "POST", "DELETE", "PATCH"):
            caller = await ask(ours, headers=bearer("t0ken-a"), path=f"/v1{path}", method=method)
            assert caller.status == (404 if ".." in path else 403)
        assert ours.fake.requests == []


async def test_which_paths_are_of_the_account(guarded: Guard) -> None:
    """A caller's own key manages its own account; with the operator's the list says what is."""
    async with guarded([GOOD]) as ours:
        await ask(ours, headers=bearer("sk-caller"), path="/v1/keys", method="GET")
        assert ours.fake.requests[0].path == "/keys"
    async with guarded([GOOD], upstream__api_key="sk", upstream__account_paths="/models") as ours:
        await ask(ours, path="/v1/keysmith", method="GET")
        await ask(ours, path="/v1/keys", method="GET")
        assert (await ask(ours, path=MODELS, method="GET")).status == 403
        assert [request.path for request in ours.fake.requests] == ["/keysmith", "/keys"]
    async with guarded([GOOD], upstream__api_key="sk", upstream__account_paths="/") as ours:
        assert (await ask(ours, path="/v1/embeddings")).status == 403
        assert (await ask(ours)).status == 200


@pytest.mark.parametrize("path", [CHAT, MODELS, "/v1/keys"])
async def test_page_is_not_lent_the_key(guarded: Guard, path: str) -> None:
    """A page in a browser may not spend a key that nobody has to present a token for."""
    page = {"Origin": "https://elsewhere.example"}
    async with guarded([GOOD], upstream__api_key="sk-operator") as ours:
        for headers in (page, page | bearer("sk-caller"), {"Origin": "null"}):
            assert (await ask(ours, headers=headers, path=path)).status == 403
        assert ours.fake.requests == []
    async with guarded([GOOD], **KEYS) as ours:
        assert (await ask(ours, headers=page | bearer("t0ken-a"))).status == 200
    async with guarded([GOOD]) as ours:
        assert (await ask(ours, headers=page | bearer("sk-caller"))).status == 200


def heads() -> Iterator[tuple[str, bytes]]:
    """Heads of an upstream that wants more in the caller's than a header."""
    for name, line in {
        "a bare CR": b"X-Evil: a\rX-Planted: 1",
        "a bare LF": b"X-Evil: a\nX-Planted: 1",
        "a NUL": b"X-Evil: a\0X-Planted: 1",
        "a fold": b"X-Evil: a\r\n X-Planted: 1",
        "an escape": b"X-Evil: \x1b[2JX-Planted: 1",
        "no text": b"X-Evil: \xff\xfe",
        "a name with a space": b"X Evil: a",
        "figures of ours": b"X-Loopguard-Attempts: 99\r\nX-Loopguard-Evil: 1",
        "a second length": b"Content-Length: 7",
        "lengths in a list": b"Content-Length: 13, 7",
        "a signed length": b"Content-Length: +13",
        "another coding": b"Transfer-Encoding: xchunked",
        "a length and a coding": b"Transfer-Encoding: chunked",
        "a long line": b"X-Evil: " + b"x" * 9000,
        "very many": b"\r\n".join(b"X-Evil-%d: 1" % number for number in range(2000)),
    }.items():
        yield name, b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n%b\r\n\r\n" % line
    yield "a reason", b"HTTP/1.1 200 OK\rX-Planted: 1\r\nContent-Length: 13\r\n\r\n"
    yield "a long reason", b"HTTP/1.1 200 %b\r\nContent-Length: 13\r\n\r\n" % (b"x" * 9000)
    yield (
        "a tunnel",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    )
    yield "an unknown status", b"HTTP/1.1 999 X\r\nContent-Length: 13\r\n\r\n"
    yield "a status that is none", b"HTTP/1.1 20 OK\r\nContent-Length: 13\r\n\r\n"
    yield "another version", b"HTTP/3.0 200 OK\r\nContent-Length: 13\r\n\r\n"


HEADER = re.compile(rb"[!#-9;-~]+: [^\x00-\x1f\x7f]*")


@pytest.mark.parametrize("mode", ["through", "whole", "live"])
async def test_upstreams_head_cannot_split_the_answer(guarded: Guard, mode: str) -> None:
    """Whatever an upstream writes into its head, the caller reads one response, and a clean one."""
    body, headers = asked("whole" if mode == "through" else mode)
    path, kind = (MODELS, b"json") if mode == "through" else (CHAT, b"text/event-stream")
    async with guarded([], retry__max_attempts="1") as ours:
        for name, told in heads():
            told_of = told.replace(b"\r\n", b"\r\nContent-Type: %b\r\n" % kind, 1)
            ours.fake._answer = lambda _, told=told_of: [
                raw(told + b"HTTP/1.1 200 OK\r\n\r\n"),
                close,
            ]
            async with connected(ours.loopguard.api_port) as caller:
                await caller.send(body, path=path, headers={"Connection": "close", **headers})
                answer = await caller._reader.read(-1)
            head, _, rest = answer.partition(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            assert re.fullmatch(rb"HTTP/1.1 (200|502|999) [A-Za-z ]*", first), name
            assert all(HEADER.fullmatch(line) for line in lines), name
            names = Counter(line.partition(b":")[0].lower() for line in lines)
            assert names[b"content-length"] + names[b"transfer-encoding"] == 1, name
            assert names[b"x-loopguard-attempts"] <= 1, name
            assert not names[b"x-loopguard-evil"], name
            if mode != "through":
                assert b"HTTP" not in rest, name
            elif names[b"content-length"] and b" 200 " in first:
                (length,) = (
                    int(line[16:]) for line in lines if line[:14].lower() == b"content-length"
                )
                assert len(rest) <= length, name
