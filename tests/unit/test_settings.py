"""The configuration: what is read, what stands over what, and what is refused."""

import dataclasses
import tomllib
from typing import NamedTuple

import pydantic
import pytest

from loopguard import settings
from loopguard.check_config import effective
from loopguard.core.detection.detector import Detection
from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import StretchKnobs
from loopguard.core.events import CHANNELS
from loopguard.core.retry import RetryPolicy
from loopguard.settings import ConfigurationError, Settings, judge, load, written

STRETCH = StretchKnobs(2350, 12, 0.4, 0.07)
DOCUMENT = FrequencyKnobs(
    window_words=256,
    repeat_threshold=32,
    min_offenders=2,
    min_saturated_run=3000,
    max_response_chars=250000,
)


@pytest.fixture
def read(tmp_path):
    """Reads a configuration from its text, with this environment alone."""

    def read(toml: str = "[profiles.default]\n", **environ: str) -> Settings:
        path = tmp_path / "loopguard.toml"
        path.write_text(toml, "utf-8")
        return load(path, environ)

    return read


@pytest.fixture
def faults(read):
    """The lines that a configuration is refused with."""

    def faults(toml: str = "[profiles.default]\n", **environ: str) -> list[str]:
        with pytest.raises(ConfigurationError) as refused:
            read(toml, **environ)
        return list(refused.value.faults)

    return faults


def test_shipped():
    """The shipped configuration arms both rules, and a profile with the document's rule alone."""
    settings = load(environ={})

    assert settings.profiles.keys() == {"default", "document"}
    assert settings.profiles["default"].detection == Detection(
        channels=("content", "reasoning", "arguments"),
        frequency=DOCUMENT,
        stretch=STRETCH,
        max_identical_calls=16,
    )
    document = settings.profiles["document"]
    assert document.detection == Detection(CHANNELS, frequency=DOCUMENT)
    assert (document.request_gate, document.stop_on_identical) == (False, False)
    assert settings.retry == RetryPolicy(
        max_attempts=4, initial_wait_s=1, max_wait_s=60, exchange_timeout_s=1800
    )
    assert settings.warnings == ()


def test_defaults_are_the_shipped_ones(read):
    """What is left out of a file is what the shipped file says, except that nothing is armed."""
    shipped = load(environ={})
    profile = shipped.profiles["default"]
    disarmed = dataclasses.replace(
        profile,
        detection=dataclasses.replace(
            profile.detection, frequency=None, stretch=None, max_identical_calls=0
        ),
    )

    assert read() == dataclasses.replace(shipped, profiles={"default": disarmed})


def test_environment_over_file(read):
    """A variable stands over the file, and its text is read as what the setting is."""
    settings = read(
        '[server]\nhost = "127.0.0.2"\nport = 1\n[profiles.Fast-One]\n[profiles.default]\n',
        LOOPGUARD_SERVER__PORT="9000",
        LOOPGUARD_SERVER__CLIENT_TOKENS="one, two,",
        LOOPGUARD_SERVER__KEEPALIVE_S="2.5",
        LOOPGUARD_UPSTREAM__API_KEY="12345",
        LOOPGUARD_LOOP_MEMORY__TTL_S="7",
        LOOPGUARD_PROFILES__FAST_ONE__RELAY="live",
        LOOPGUARD_PROFILES__FAST_ONE__CHANNELS="content,reasoning",
        LOOPGUARD_PROFILES__FAST_ONE__LOOP_DETECTION__ENABLED="true",
        LOOPGUARD_PROFILES__FAST_ONE__LOOP_DETECTION__WINDOW_WORDS="256",
        LOOPGUARD_PROFILES__FAST_ONE__LOOP_DETECTION__REPEAT_THRESHOLD="32",
        LOOPGUARD_PROFILES__FAST_ONE__LOOP_DETECTION__MIN_OFFENDERS="2",
        LOOPGUARD_PROFILES__FAST_ONE__LOOP_DETECTION__MIN_SATURATED_RUN="3000",
        LOOPGUARD_PROFILES__FAST_ONE__LOOP_DETECTION__MAX_RESPONSE_CHARS="250000",
    )

    assert (settings.server.host, settings.server.port) == ("127.0.0.2", 9000)
    assert [token.get_secret_value() for token in settings.server.client_tokens] == ["one", "two"]
    assert settings.server.keepalive_s == 2.5
    assert settings.upstream.api_key.get_secret_value() == "12345"
    assert settings.loop_memory.ttl_s == 7
    fast = settings.profiles["Fast-One"]
    assert (fast.name, fast.relay) == ("Fast-One", "live")
    assert fast.detection == Detection(channels=("content", "reasoning"), frequency=DOCUMENT)
    assert settings.profiles["default"].detection.frequency is None


class Secret(NamedTuple):
    """A setting that may stand in a file: the file's bytes, and what is read of them."""

    table: str
    key: str
    text: bytes
    read: object

    @property
    def variable(self) -> str:
        return f"LOOPGUARD_{self.table}__{self.key}".upper()

    def revealed(self, settings: Settings) -> object:
        value = getattr(getattr(settings, self.table), self.key)
        if isinstance(value, tuple):
            return [token.get_secret_value() for token in value]
        return value.get_secret_value()


SECRETS = (
    Secret("server", "client_tokens", b"one\n\n  two \n", ["one", "two"]),
    Secret("upstream", "api_key", b"sk-planted\r\n", "sk-planted"),
    Secret("ledger", "url", b" postgresql://u:planted@h/n\n", "postgresql://u:planted@h/n"),
)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret.key)
def test_secret_from_a_file(read, tmp_path, secret):
    """A secret's file is named by the file or the environment, and its line ends are no part."""
    path = tmp_path / "secret"
    path.write_bytes(secret.text)
    key = {} if secret.table == "upstream" else {"LOOPGUARD_UPSTREAM__API_KEY": "sk"}
    toml = f'[profiles.default]\n[{secret.table}]\n{secret.key}_file = "{path}"\n'

    assert secret.revealed(read(toml, **key)) == secret.read
    assert secret.revealed(read(**key, **{f"{secret.variable}_FILE": str(path)})) == secret.read


def test_secret_is_read_each_time(read, tmp_path):
    """A secret that was written anew is the new one as soon as the configuration is read again."""
    path = tmp_path / "secret"
    for key in ("sk-first", "sk-second"):
        path.write_text(f"{key}\n")
        settings = read(LOOPGUARD_UPSTREAM__API_KEY_FILE=str(path))
        assert settings.upstream.api_key.get_secret_value() == key


@pytest.mark.parametrize(
    ("written", "beside", "phrase"),
    [
        (None, "", "cannot be read: No such file or directory"),
        (b"", "", "names a file that holds nothing"),
        (b" \n\r\n", "", "names a file that holds nothing"),
        (b"sk-\xff", "", "cannot be read: not text in UTF-8, or no path"),
        (b"sk-planted", "sk-planted", "must not be given beside "),
    ],
)
def test_secret_that_cannot_be_read(faults, tmp_path, written, beside, phrase):
    """A secret's file that is not there, is empty, is no text or stands beside the secret."""
    path = tmp_path / "secret"
    if written is not None:
        path.write_bytes(written)
    for secret in SECRETS:
        told = faults(**{f"{secret.variable}_FILE": str(path), secret.variable: beside})

        key = f"{secret.table}.{secret.key}"
        named = phrase + key if beside else phrase
        assert f"{key}_file: {named} (set by {secret.variable}_FILE)" in told
        assert "planted" not in "".join(told)


def test_secret_file_is_named_where_its_text_is_refused(faults, tmp_path):
    """A secret of a file that cannot be one is refused by its key and its file."""
    path = tmp_path / "secret"
    path.write_text("sk planted")

    (told,) = faults(LOOPGUARD_UPSTREAM__API_KEY_FILE=str(path))
    assert told.startswith("upstream.api_key: must be printable ASCII without spaces")
    assert told.endswith(f" (set by {path})")


def test_empty_is_unset(read):
    """An empty variable and an empty key are no key at all."""
    settings = read(
        '[upstream]\napi_key = ""\n[profiles.default]\n',
        LOOPGUARD_UPSTREAM__API_KEY="",
        LOOPGUARD_UPSTREAM__BASE_URL="",
    )

    assert settings.upstream.api_key is None
    assert settings.upstream.base_url == "https://openrouter.ai/api/v1"


def test_workers(read, faults, monkeypatch):
    """Their number is written, or `auto` for the cores that can be used."""
    monkeypatch.setattr(settings, "usable_cores", lambda: 6)
    assert read('server.workers = "auto"\n[profiles.default]').server.workers == 6
    assert read(LOOPGUARD_SERVER__WORKERS="auto").server.workers == 6
    assert read(LOOPGUARD_SERVER__WORKERS="3").server.workers == 3
    for number in ("0", "257", '"many"', "2.0"):
        (fault,) = faults(f"server.workers = {number}\n[profiles.default]")
        assert fault.startswith("server.workers: must be ")


def test_foreign_variables(read):
    """What a cluster defines for a service called loopguard is not taken for a setting."""
    settings = read(
        LOOPGUARD_PORT="tcp://10.0.0.1:8080",
        LOOPGUARD_SERVICE_HOST="10.0.0.1",
        LOOPGUARD_PORT_8080_TCP_ADDR="10.0.0.1",
    )

    assert settings == read()


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("LOOPGUARD_SERVER_PORT", "1", "not read; write two underscores between table and key"),
        ("LOOPGUARD_LOG", "debug", "not read; write two underscores between table and key"),
        ("LOOPGUARD_SERVRE__PORT", "1", "no table has this name"),
        ("LOOPGUARD_PROFILES__NOBODY__RELAY", "live", "must name exactly one profile of the file"),
        ("LOOPGUARD_PROFILES__A_B__RELAY", "live", "must name exactly one profile of the file"),
    ],
)
def test_misnamed_variables(faults, name, text, fault):
    """A variable that can only be a slip is refused by its own name."""
    toml = "[profiles.default]\n[profiles.a-b]\n[profiles.a_b]\n"

    assert faults(toml, **{name: text}) == [f"{name}: {fault}"]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("SERVER__PRT", "1", "server.prt: unknown key"),
        ("SERVER__PORT", "many", "server.port: must be a whole number"),
        ("SERVER__PORT", "9" * 5000, "server.port: must be a whole number"),
        ("RETRY__INITIAL_WAIT_S", "soon", "retry.initial_wait_s: must be a number"),
        ("RETRY__INITIAL_WAIT_S", "nan", "retry.initial_wait_s: must be a finite number"),
        ("ROUTES__MODEL", "*", "routes: must be a list of tables"),
        ("PROFILES__DEFAULT", "live", "profile `default`: must be a table"),
        ("PROFILES__DEFAULT__RELAY", "keep", "profile `default`: relay: must be 'hold' or 'live'"),
    ],
)
def test_faults_of_the_environment(faults, name, text, fault):
    """A fault that a variable brought names the key, and the variable where it set just that."""
    (line,) = faults(**{f"LOOPGUARD_{name}": text})

    assert line in (fault, f"{fault} (set by LOOPGUARD_{name})")


@pytest.mark.parametrize(
    ("toml", "fault"),
    [
        ("server = 1", "server: must be a table"),
        ('[server]\nhost = ""', "server.host: must have at least 1 character"),
        ("[server]\nport = 65536", "server.port: must be 65535 or less"),
        ('[server]\nport = "80"', "server.port: must be a whole number"),
        ("[server]\nadmin_port = 8080", "server.admin_port: must not be the address of the API"),
        ("[server]\nclient_tokens = [1]", "server.client_tokens[0]: must be text"),
        (
            '[server]\nclient_tokens = [""]',
            "server.client_tokens[0]: must be printable ASCII without spaces",
        ),
        ("[server]\nmax_line_bytes = 0", "server.max_line_bytes: must be 1 or more"),
        ("[server]\ndrain_s = -1", "server.drain_s: must be 0 or more"),
        ("[server]\nkeepalive_s = inf", "server.keepalive_s: must be a finite number"),
        ("[upstream]\nfirst_delta_timeout_s = 0", "upstream.first_delta_timeout_s: must be more"),
        ("[upstream]\napi_key = 5", "upstream.api_key: must be text"),
        ("[retry]\nmax_attempts = 0", "retry.max_attempts: must be 1 or more"),
        ("[retry]\nmax_wait_s = -1", "retry.max_wait_s: must be 0 or more"),
        ("[retry]\nmax_wait_s = 90000", "retry.max_wait_s: must be 86400 or less"),
        ("[loop_memory]\nttl_s = true", "loop_memory.ttl_s: must be a number"),
        ('[ledger]\nurl = "mysql://h/l"', "ledger.url: must begin with sqlite:/// and name a file"),
        ('[ledger]\nurl = "sqlite://"', "ledger.url: must begin with sqlite:/// and name a file"),
        ("[ledger]\nretention_days = -1", "ledger.retention_days: must be 0 or more"),
        ("[ledger]\nconcurrency = 0", "ledger.concurrency: must be 1 or more"),
        ('[log]\nlevel = "loud"', "log.level: must be 'debug', 'info', 'warning' or 'error'"),
        ("[log]\ncolour = 1", "log.colour: unknown key"),
        ("[[routes]]", "routes[0].model: missing"),
        ("[[routes]]\nmodel = 'x'\nprofile = 'y'", "routes[0].profile: no profile has this name"),
        ("routes = 3", "routes: must be a list of tables"),
        ("routes = [3]", "routes[0]: must be a table"),
        ("[profiles]\nother = 3", "profile `other`: must be a table"),
        ("[profiles.x]\nchannels = []", "profile `x`: channels: must have at least 1 item"),
        ("[profiles.x]\nchannels = ['a']", "profile `x`: channels[0]: must be 'content', "),
        (
            "[profiles.x]\nchannels = ['content', 'content']",
            "profile `x`: channels: must name each once",
        ),
        ("[profiles.x]\nstream_idle_s = 0", "profile `x`: stream_idle_s: must be more than 0"),
        ("[profiles.x]\nloop_detection = 1", "profile `x`: loop_detection: must be a table"),
        ('[profiles."a/b"]', "profile `a/b`: its name stands in URLs"),
        ('[profiles."a\\nforged: line"]', "profile `a\\nforged: line`: its name stands in URLs"),
        ("[ledgers]", "ledgers: unknown table"),
    ],
)
def test_faults_of_the_file(faults, toml, fault):
    """A setting that makes no sense is refused with a line that begins with its key."""
    lines = faults(f"{toml}\n[profiles.default]\n")

    assert lines[0].startswith(fault)
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    "url",
    [
        "openrouter.ai/api/v1",
        "ftp://127.0.0.1/",
        "https://",
        "https:///api/v1",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:65536/",
        "http://127.0.0.1:http/",
        "http://[::1/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\\nX-Forged: 1",
        "http://127.0.0.1/v1?key=planted",
        "http://127.0.0.1/v1?",
        "http://127.0.0.1/v1#part",
        "http://name:planted@127.0.0.1/v1",
    ],
)
def test_upstream_urls(faults, url):
    """An upstream that is no plain http or https URL is refused, and its text is not repeated."""
    (line,) = faults(f'[upstream]\nbase_url = "{url}"\n[profiles.default]\n')

    assert line.startswith("upstream.base_url: must ")
    assert "planted" not in line


def test_upstream_slash(read):
    """The base URL is kept without its last slash, so that paths can be put behind it."""
    settings = read('[upstream]\nbase_url = "http://[::1]:9/api/"\n[profiles.default]\n')

    assert settings.upstream.base_url == "http://[::1]:9/api"


def test_all_faults_at_once(faults):
    """Every fault of every table is told, those between two tables too."""
    lines = faults(
        """
        [server]
        host = "0.0.0.0"
        [upstream]
        api_key = "sk-planted"
        [retry]
        max_attempts = 0
        max_wait_s = -1
        [[routes]]
        model = "*"
        profile = "nobody"
        [profiles.a]
        relay = "keep"
        [profiles.b.loop_detection]
        enabled = true
        window_words = 0
        """
    )

    keys = [line.rpartition(": ")[0] for line in lines]
    assert keys == [
        "retry.max_attempts",
        "retry.max_wait_s",
        "routes[0].profile",
        "profiles",
        "profile `a`: relay",
        "profile `b`: loop_detection.window_words",
        *(
            f"profile `b`: loop_detection.{knob}"
            for knob in (
                "repeat_threshold",
                "min_offenders",
                "min_saturated_run",
                "max_response_chars",
            )
        ),
        "server.client_tokens",
    ]


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.0.2.1", True),
        ("localhost.example", True),
    ],
)
def test_open_relay(faults, read, host, refused):
    """A key of its own, a listener beyond loopback and no tokens are refused together alone."""
    server = f'[server]\nhost = "{host}"\n'
    upstream = '[upstream]\napi_key = "sk-planted"\n'
    tokens = 'client_tokens = ["t0ken"]\n'
    profile = "[profiles.default]\n"

    if refused:
        (line,) = faults(server + upstream + profile)
        assert line.startswith("server.client_tokens: needed")
    else:
        read(server + upstream + profile)
    read(server + tokens + upstream + profile)
    read(server + profile)


def test_tokens_without_a_key(faults):
    """Tokens for callers are refused without a key to replace them with."""
    (line,) = faults('[server]\nclient_tokens = ["t0ken"]\n[profiles.default]\n')
    assert line.startswith("upstream.api_key: needed with server.client_tokens")


@pytest.mark.parametrize(
    ("min_offenders", "max_response_chars", "left"),
    [
        (7, 250000, None),
        (8, 250000, "only the length backstop can fire"),
        (257, 250000, "only the length backstop can fire"),
        (257, 0, "nothing can fire"),
    ],
)
def test_breadth_beyond_the_window(read, min_offenders, max_response_chars, left):
    """Offenders that do not fit into the window are armed as declared, and warned of."""
    settings = read(
        f"""
        [profiles.default.loop_detection]
        enabled = true
        window_words = 256
        repeat_threshold = 32
        min_offenders = {min_offenders}
        min_saturated_run = 3000
        max_response_chars = {max_response_chars}
        """
    )

    knobs = settings.profiles["default"].detection.frequency
    assert (knobs.min_offenders, knobs.max_response_chars) == (min_offenders, max_response_chars)
    if left is None:
        assert settings.warnings == ()
    else:
        (warning,) = settings.warnings
        assert warning.startswith("profile `default`: loop_detection.min_offenders: ")
        assert warning.endswith(left)


@pytest.mark.parametrize("written", [b"server = [", b"x = \xff", b"x = " + b"9" * 5000])
def test_unreadable_file(tmp_path, written):
    """A file that is no TOML is refused in one line that names it."""
    path = tmp_path / "loopguard.toml"
    path.write_bytes(written)

    with pytest.raises(ConfigurationError) as refused:
        load(path, {})

    (line,) = refused.value.faults
    assert line.startswith(f"{path}: not readable as TOML: ")


def test_frozen():
    """Nothing of the configuration can be changed once it has been judged."""
    settings = load(environ={})

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.retry = None
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        settings.server.port = 1
    with pytest.raises(TypeError, match="does not support item assignment"):
        settings.profiles["default"] = None


def test_secrets_are_not_shown(read, faults):
    """No representation and no refusal holds a key."""
    settings = read(
        LOOPGUARD_UPSTREAM__API_KEY="sk-planted", LOOPGUARD_SERVER__CLIENT_TOKENS="planted"
    )
    lines = faults(
        '[upstream]\napi_key = ["sk-planted"]\n[server]\nport = "sk-planted"\n[profiles.default]\n',
        LOOPGUARD_SERVER__CLIENT_TOKENS="pl anted",
    )

    assert "planted" not in repr(settings) + repr(lines)
    assert len(lines) == 3


def test_effective_reads_back(read):
    """The printed tree, read as a configuration, is the same configuration."""
    toml = """
        [log]
        format = "text"
        [[routes]]
        model = "deepseek/\\"*\\""
        profile = "a"
        [profiles.default]
        [profiles.a]
        relay = "live"
        live_trip = "finish"
        channels = ["content"]
        [profiles.a.loop_detection]
        enabled = true
        window_words = 1
        repeat_threshold = 2
        min_offenders = 3
        min_saturated_run = 0
        max_response_chars = 0
        """
    settings = read(toml)
    printed = "\n".join(effective(settings))

    assert read(printed) == settings
    assert tomllib.loads(printed)["routes"][0]["model"] == 'deepseek/"*"'


def test_what_is_tuned_is_read_as_it_is_written():
    """A disarmed rule keeps its knobs, what is not written has its default, variables are named."""
    tree = {
        "server": {"client_tokens": ["sk-secret"]},
        "profiles": {
            "default": {"loop_detection": {"enabled": False, "window_words": 64}},
            "my-own": {},
        },
    }
    variable = "LOOPGUARD_PROFILES__MY_OWN__RELAY"
    read = written(tree, {variable: "live", "LOOPGUARD_RETRY__MAX_ATTEMPTS": "7"})

    assert read.retry["max_attempts"] == 7
    assert read.retry["max_wait_s"] == 60.0
    assert read.profiles["default"]["loop_detection"] == {
        "enabled": False,
        "window_words": 64,
        "repeat_threshold": None,
        "min_offenders": None,
        "min_saturated_run": None,
        "max_response_chars": None,
    }
    assert read.profiles["my-own"]["relay"] == "live"
    assert read.profiles["my-own"]["escape"]["steps"] == []
    assert read.variables == {
        ("profiles", "my-own", "relay"): variable,
        ("retry", "max_attempts"): "LOOPGUARD_RETRY__MAX_ATTEMPTS",
    }
    assert "secret" not in repr(read)


def test_what_is_tuned_is_refused_in_the_words_of_the_launch():
    """A table that the launch refuses is refused here too, in the same words."""
    tree = {"profiles": {"default": {"loop_detection": {"enabled": True}}}}
    with pytest.raises(ConfigurationError) as at_launch:
        judge(tree, {})
    with pytest.raises(ConfigurationError) as refused:
        written(tree, {})
    assert refused.value.faults == at_launch.value.faults
    assert len(refused.value.faults) == 5


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[upstream]\nbase_url = "http://upstream.example/v1"\n', "upstream.base_url"),
        ('[upstream]\nbase_url = "http://10.0.0.1:8000"\n', "upstream.base_url"),
        ('[server]\nadmin_host = "0.0.0.0"\n', "server.admin_host"),
        ('[server]\nadmin_host = "::"\n', "server.admin_host"),
    ],
)
def test_exposure_is_warned_of(read, toml, key):
    """What leaves unencrypted, and an admin listener that others reach, are told at the launch."""
    (warning,) = read(f"[profiles.default]\n{toml}").warnings

    assert warning.startswith(f"{key}: ")


@pytest.mark.parametrize(
    "toml",
    [
        '[upstream]\nbase_url = "http://localhost:8089/v1"\n',
        '[upstream]\nbase_url = "http://[::1]:8089/v1"\n',
        '[upstream]\nbase_url = "https://upstream.example/v1"\n',
        '[server]\nadmin_host = "127.0.0.2"\n',
    ],
)
def test_no_exposure_no_warning(read, toml):
    """What stays on the machine, or leaves encrypted, is not warned of."""
    assert read(f"[profiles.default]\n{toml}").warnings == ()


@pytest.mark.parametrize("path", ["keys", "/Keys", "/keys/", "//keys", "/ke%79s", "", "/a b"])
def test_account_path_is_plain(faults, path):
    """A path of the account that no request could match is refused."""
    assert faults(f'[upstream]\naccount_paths = ["{path}"]\n[profiles.default]\n') == [
        (
            "upstream.account_paths[0]: must begin with a slash, in small letters and as it is "
            "spelt plainly"
        )
    ]
