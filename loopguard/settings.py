"""One TOML file, the environment over it, and the frozen values that the rest is built from.

Every table is judged by itself and every fault is kept, so that an operator reads all of them at
once. A table that could not be read is judged further as though it had been left out: what two
tables have to agree on (a route and its profile, an open relay) is therefore judged even when a
third one is at fault. A fault names its key and, where the environment set it, the variable; it
never shows a value, because a key pasted into the wrong line is still a key.

A secret may stand in a file of its own, as a cluster mounts them: the key's name with ``_file``
names the file. It is read here, and again whenever the configuration is.

Blind spots: nothing is looked up or bound here, so a host that does not resolve and a port that is
taken are found by whoever listens. An environment variable without two underscores is not read:
a cluster defines LOOPGUARD_PORT and the like for a service of that name. One that begins with a
table's name is refused all the same, since it can only be a slip.
"""

import copyreg
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    SettingsConfigDict,
)

from loopguard.core.detection.detector import Detection
from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import StretchKnobs
from loopguard.core.escape import Escape, Step
from loopguard.core.events import CHANNELS, Channel
from loopguard.core.profile import LiveTrip, Profile, Relay
from loopguard.core.retry import RetryPolicy
from loopguard.core.text import one_line
from loopguard.cores import usable_cores

SHIPPED = Path(__file__).with_name("loopguard.toml")
"""The configuration that is read when none is named."""

DEFAULT_PROFILE = "default"
"""The profile of a request that selects none; a configuration without it is refused."""

_PREFIX = "LOOPGUARD_"
_BETWEEN = "__"

_KNOB_CEILING = 2**32 - 1
"""A knob is an unsigned 32-bit number: above every reply there is, and a slip beyond that."""

_WINDOW_CEILING_WORDS = 1_000_000
"""The window costs 8 bytes a word on every channel of every attempt; this one costs 8 MB."""

_BYTES_CEILING = 2**32 - 1

_CONNECTIONS_CEILING = 1_000_000
"""Beyond every limit of open files that a system is shipped with."""

_SECONDS_CEILING = 86_400
"""A longer time is a slip in the unit, and some event loops cannot wait for much longer ones."""

_ATTEMPTS_CEILING = 100
"""Each attempt is paid for; the waits between so many already exceed every exchange."""

_DAYS_CEILING = 36_500
"""A hundred years; a larger number is a slip, and 0 is what keeps for ever."""

_LOOK_UPS_CEILING = 64
"""The endpoint has a rate limit that nobody has published; more at once would meet it."""

_WORKERS_CEILING = 256
"""More than the cores of most machines. Each costs some 80 MiB, so a larger number is a slip."""

_LISTS_OF_SECRETS = (("server", "client_tokens"),)
_SECRETS = (
    *_LISTS_OF_SECRETS,
    ("server", "admin_token"),
    ("upstream", "api_key"),
    ("ledger", "url"),
)
"""What may stand in a file instead: each has a sibling whose name ends in ``_file``."""

_Name = TypeVar("_Name", bound=str)

_ledger_place = re.compile(r"sqlite:///.+|postgres(ql)?://.+")
_profile_name = re.compile(r"[A-Za-z0-9_-]+")
_plain_path_text = re.compile(r"/|(/[a-z0-9_.~-]+)+")
_header_text = re.compile(r"[\x21-\x7e]+")


class ConfigurationError(ValueError):
    """A configuration that loopguard refuses to start with.

    Attributes:
        faults: one line for each, naming the key; without any value.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(one_line(fault) for fault in faults)
        super().__init__("\n".join(self.faults))


def _split(value: object) -> object:
    """A list as the environment writes it: items between commas."""
    if isinstance(value, str):
        return tuple(item for item in map(str.strip, value.split(",")) if item)
    return value


def _unless_empty(value: object) -> object:
    return None if value == "" else value


def _number_of_workers(value: object) -> object:
    return usable_cores() if value == "auto" else value


def _in_a_header(secret: SecretStr) -> SecretStr:
    if not _header_text.fullmatch(secret.get_secret_value()):
        raise ValueError("must be printable ASCII without spaces, since it stands in a header")
    return secret


def _distinct(names: tuple[_Name, ...]) -> tuple[_Name, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must name each once")
    return names


def _upstream_url(url: str) -> str:
    """The base URL without its last slash; credentials in it would end up in logs."""
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in ("http", "https")
            and parts.hostname is not None
            and parts.port != 0
            and _header_text.fullmatch(url) is not None
        )
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must be an http or https URL with a host")
    if "@" in parts.netloc:
        raise ValueError("must not hold credentials; the key stands in upstream.api_key")
    if "?" in url or "#" in url:
        raise ValueError("must not have a query or a fragment")
    return url.rstrip("/")


def _plain_path(path: str) -> str:
    if not _plain_path_text.fullmatch(path):
        raise ValueError("must begin with a slash, in small letters and as it is spelt plainly")
    return path


def _ledger_url(secret: SecretStr) -> SecretStr:
    if not _ledger_place.fullmatch(secret.get_secret_value()):
        raise ValueError("must begin with sqlite:/// and name a file, or with postgresql://")
    return secret


_Port: TypeAlias = Annotated[int, Field(ge=0, le=65535)]
_Bytes: TypeAlias = Annotated[int, Field(ge=1, le=_BYTES_CEILING)]
_Wait: TypeAlias = Annotated[float, Field(ge=0, le=_SECONDS_CEILING)]
_Limit: TypeAlias = Annotated[float, Field(gt=0, le=_SECONDS_CEILING)]
_Secret: TypeAlias = Annotated[SecretStr, AfterValidator(_in_a_header)]
_Text: TypeAlias = Annotated[str, Field(min_length=1)]


class _Variable(str):
    """The text of an environment variable, which has no other way to write a number."""

    __slots__ = ()


class _Table(BaseModel):
    """A table of the configuration: frozen, nothing unknown, numbers written as numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _read_variable(cls, written: object, info: ValidationInfo) -> object:
        """A variable's text as the type of its setting; unchanged where it is not of that type."""
        if not isinstance(written, _Variable) or info.field_name is None:
            return written
        annotation = cast("type[Any]", cls.model_fields[info.field_name].annotation)
        try:
            return TypeAdapter(annotation).validate_python(written)
        except ValidationError:
            return str(written)


class Server(_Table):
    """The two listeners and what a caller may ask of them; see docs/configuration.md."""

    host: _Text = "127.0.0.1"
    port: _Port = 8080
    admin_host: _Text = "127.0.0.1"
    admin_port: _Port = 8081
    client_tokens: Annotated[
        tuple[_Secret, ...], Strict(strict=False), BeforeValidator(_split)
    ] = ()
    client_tokens_file: str = ""
    admin_token: Annotated[_Secret | None, BeforeValidator(_unless_empty)] = None
    admin_token_file: str = ""
    max_connections: Annotated[int, Field(ge=1, le=_CONNECTIONS_CEILING)] = 5_000
    head_timeout_s: _Limit = 30.0
    body_timeout_s: _Limit = 60.0
    idle_timeout_s: _Limit = 75.0
    max_body_bytes: _Bytes = 33_554_432
    max_line_bytes: _Bytes = 16_777_216
    max_held_bytes: _Bytes = 33_554_432
    drain_delay_s: _Wait = 0.0
    drain_s: _Wait = 30.0
    keepalive_s: _Wait = 15.0
    workers: Annotated[
        int, Field(ge=1, le=_WORKERS_CEILING), BeforeValidator(_number_of_workers)
    ] = 1

    @field_validator("admin_port")
    @classmethod
    def _apart(cls, admin_port: int, info: ValidationInfo) -> int:
        other = info.data
        if admin_port and (other.get("host"), other.get("port")) == (
            other.get("admin_host"),
            admin_port,
        ):
            raise ValueError("must not be the address of the API")
        return admin_port


_ACCOUNT_PATHS = (
    "/activity",
    "/auth",
    "/byok",
    "/credits",
    "/generation/content",
    "/guardrails",
    "/key",
    "/keys",
    "/organization",
    "/workspaces",
)
"""Where OpenRouter's API manages an account or shows what others have asked with its key."""


class Upstream(_Table):
    """Where replies come from; ``api_key`` is None where callers bring their own."""

    base_url: Annotated[str, AfterValidator(_upstream_url)] = "https://openrouter.ai/api/v1"
    api_key: Annotated[_Secret | None, BeforeValidator(_unless_empty)] = None
    api_key_file: str = ""
    account_paths: Annotated[
        tuple[Annotated[str, AfterValidator(_plain_path)], ...],
        Strict(strict=False),
        BeforeValidator(_split),
    ] = _ACCOUNT_PATHS
    connect_timeout_s: _Limit = 10.0
    first_delta_timeout_s: _Limit = 300.0


class LoopMemory(_Table):
    """How long an exchange that looped in every attempt is remembered, in seconds; 0 is never."""

    ttl_s: _Wait = 30.0


class Ledger(_Table):
    """Where abandoned generations are kept and how their prices are asked for.

    ``url`` is None for the SQLite file in the state folder.
    """

    url: Annotated[
        Annotated[SecretStr, AfterValidator(_ledger_url)] | None, BeforeValidator(_unless_empty)
    ] = None
    url_file: str = ""
    retention_days: Annotated[int, Field(ge=0, le=_DAYS_CEILING)] = 400
    look_ups: bool = True
    first_look_s: _Limit = 2.0
    longest_wait_s: _Limit = 300.0
    give_up_after_s: _Limit = 3600.0
    look_up_timeout_s: _Limit = 10.0
    concurrency: Annotated[int, Field(ge=1, le=_LOOK_UPS_CEILING)] = 4


class Log(_Table):
    """What is logged and in which form."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


class Traces(_Table):
    """Whether spans are made; the ``OTEL_`` variables say where they go."""

    enabled: bool = False


class Route(_Table):
    """The profile of every request whose model matches the glob."""

    model: _Text
    profile: str

    @field_validator("profile")
    @classmethod
    def _declared(cls, profile: str, info: ValidationInfo) -> str:
        if profile not in (info.context or ()):
            raise ValueError("no profile has this name")
        return profile


class _Retry(_Table):
    max_attempts: Annotated[int, Field(ge=1, le=_ATTEMPTS_CEILING)] = 4
    initial_wait_s: _Wait = 1.0
    max_wait_s: _Wait = 60.0
    exchange_timeout_s: _Limit = 1800.0


class _LoopDetection(_Table):
    """The detector of the loop-detection document; a knob is judged whether or not it is armed."""

    model_config = ConfigDict(validate_default=True)

    enabled: bool
    window_words: Annotated[int | None, Field(ge=1, le=_WINDOW_CEILING_WORDS)] = None
    repeat_threshold: Annotated[int | None, Field(ge=1, le=_KNOB_CEILING)] = None
    min_offenders: Annotated[int | None, Field(ge=1, le=_KNOB_CEILING)] = None
    min_saturated_run: Annotated[int | None, Field(ge=0, le=_KNOB_CEILING)] = None
    max_response_chars: Annotated[int | None, Field(ge=0, le=_KNOB_CEILING)] = None

    @field_validator(
        "window_words",
        "repeat_threshold",
        "min_offenders",
        "min_saturated_run",
        "max_response_chars",
    )
    @classmethod
    def _written(cls, knob: int | None, info: ValidationInfo) -> int | None:
        if knob is None and info.data.get("enabled"):
            raise ValueError("missing; an armed detector writes all five knobs")
        return knob


class _StretchDetection(_Table):
    """The stretch rule; a knob is judged whether or not it is armed."""

    model_config = ConfigDict(validate_default=True)

    enabled: bool
    min_stale_chars: Annotated[int | None, Field(ge=1, le=_KNOB_CEILING)] = None
    novelty_cost_chars: Annotated[int | None, Field(ge=0, le=_KNOB_CEILING)] = None
    structure_weight: Annotated[float | None, Field(ge=0, le=1)] = None
    data_weight: Annotated[float | None, Field(ge=0, le=1)] = None

    @field_validator("min_stale_chars", "novelty_cost_chars", "structure_weight", "data_weight")
    @classmethod
    def _written(cls, knob: float | None, info: ValidationInfo) -> float | None:
        if knob is None and info.data.get("enabled"):
            raise ValueError("missing; an armed stretch rule writes all four knobs")
        return knob


class _Escape(_Table):
    """What a retry after a trip changes; the figure of a step is written where the step is."""

    model_config = ConfigDict(validate_default=True)

    steps: Annotated[
        tuple[Step, ...], Strict(strict=False), BeforeValidator(_split), AfterValidator(_distinct)
    ] = ()
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0, le=2)] = None
    fallback_model: Annotated[_Text | None, BeforeValidator(_unless_empty)] = None

    @field_validator("temperature", "repetition_penalty", "fallback_model")
    @classmethod
    def _written(cls, figure: object, info: ValidationInfo) -> object:
        step = "raise_temperature" if info.field_name == "temperature" else info.field_name
        if figure is None and step in info.data.get("steps", ()):
            raise ValueError(f"missing; the step `{step}` needs it")
        return figure


class _Profile(_Table):
    relay: Relay = "hold"
    live_trip: LiveTrip = "error"
    channels: Annotated[
        tuple[Channel, ...],
        Field(min_length=1),
        Strict(strict=False),
        BeforeValidator(_split),
        AfterValidator(_distinct),
    ] = CHANNELS
    stream_idle_s: _Limit = 120.0
    call_timeout_s: _Limit = 600.0
    request_gate: bool = True
    stop_on_identical: bool = True
    log_sample: bool = False
    max_identical_calls: Annotated[int, Field(ge=0, le=_KNOB_CEILING)] = 0
    escape: _Escape = _Escape()
    loop_detection: _LoopDetection = _LoopDetection(enabled=False)
    stretch_detection: _StretchDetection = _StretchDetection(enabled=False)


class _Tree(BaseSettings):
    """The shape of the whole, by which names of variables are taken apart."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter=_BETWEEN, enable_decoding=False
    )

    server: Server
    upstream: Upstream
    retry: _Retry
    loop_memory: LoopMemory
    ledger: Ledger
    log: Log
    traces: Traces
    routes: tuple[Route, ...]
    profiles: dict[str, _Profile]


_AT_THE_NEXT_START: Mapping[str, Iterable[str]] = {
    "server": (
        "host",
        "port",
        "admin_host",
        "admin_port",
        "max_connections",
        "head_timeout_s",
        "idle_timeout_s",
        "max_body_bytes",
        "workers",
    ),
    "upstream": ("base_url",),
    "ledger": Ledger.model_fields.keys(),
    "traces": Traces.model_fields.keys(),
}
"""What is bound, opened or begun once. Where replies come from is among it, since their prices are
asked for there, for an hour and across restarts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator wrote, judged.

    Attributes:
        server: the listeners and their bounds.
        upstream: where replies come from.
        retry: the budget of one exchange.
        loop_memory: how long a loop is remembered.
        ledger: where abandoned generations are kept, and when they are looked up.
        log: level and form of the log.
        traces: whether spans are made.
        routes: globs of models and their profiles; the first that matches counts.
        profiles: by name; ``default`` is among them.
        warnings: one line for each thing that is armed as declared and probably not meant.
    """

    server: Server
    upstream: Upstream
    retry: RetryPolicy
    loop_memory: LoopMemory
    ledger: Ledger
    log: Log
    traces: Traces
    routes: tuple[Route, ...]
    profiles: Mapping[str, Profile]
    warnings: tuple[str, ...]


def load(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the configuration and judge all of it.

    Args:
        path: the TOML file; None is the shipped one.
        environ: variables named LOOPGUARD_TABLE__KEY stand over the file, empty ones are unset.

    Raises:
        ConfigurationError: with every fault of the file and the environment.
    """
    return judge(_read_file(path or SHIPPED), environ)


def judge(tree: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """Judge a configuration that was read.

    Args:
        tree: of the file.
        environ: stands over it, as in `load`.

    Raises:
        ConfigurationError: with every fault.
    """
    faults = _Faults()
    names = _profile_names(tree)
    tree = _overlaid(tree, environ, faults)
    tree = _over(_secrets_of_files(tree, faults), tree)

    for unknown in sorted(tree.keys() - _Tree.model_fields.keys()):
        faults.add((unknown,), "unknown table")
    server = faults.judge(Server, ("server",), tree.get("server", {}))
    upstream = faults.judge(Upstream, ("upstream",), tree.get("upstream", {}))
    retry = faults.judge(_Retry, ("retry",), tree.get("retry", {}))
    loop_memory = faults.judge(LoopMemory, ("loop_memory",), tree.get("loop_memory", {}))
    ledger = faults.judge(Ledger, ("ledger",), tree.get("ledger", {}))
    log = faults.judge(Log, ("log",), tree.get("log", {}))
    traces = faults.judge(Traces, ("traces",), tree.get("traces", {}))
    routes = _judge_routes(tree.get("routes", []), names, faults)
    profiles = _judge_profiles(tree.get("profiles", {}), faults)
    if _is_open_relay(server, upstream):
        faults.add(("server", "client_tokens"), _OPEN_RELAY)
    if server.client_tokens and not upstream.api_key:
        faults.add(
            ("upstream", "api_key"),
            "needed with server.client_tokens: a caller who presents a token has no other place "
            "for a key of the upstream",
        )
    if faults.lines:
        raise ConfigurationError(faults.lines)
    core_profiles = {name: _core_profile(name, table) for name, table in profiles.items()}
    return Settings(
        server=server,
        upstream=upstream,
        retry=RetryPolicy(**retry.model_dump()),
        loop_memory=loop_memory,
        ledger=ledger,
        log=log,
        traces=traces,
        routes=routes,
        profiles=_frozen(core_profiles),
        warnings=(
            *_exposures(server, upstream),
            *(line for profile in core_profiles.values() for line in _warnings(profile)),
        ),
    )


_OPEN_RELAY = (
    "needed, because upstream.api_key would pay for anyone who reaches server.host; "
    "or set server.host to 127.0.0.1, or leave upstream.api_key empty"
)


def _is_open_relay(server: Server, upstream: Upstream) -> bool:
    lends_key = upstream.api_key is not None and not server.client_tokens
    return lends_key and not _is_loopback(server.host)


def adopted(running: Settings, read: Settings) -> tuple[Settings, tuple[str, ...]]:
    """What a running command can use of a configuration that was read again.

    Returns:
        The settings that it uses from now on, and a line for each key that is used at the next
        start only: what is bound, opened or begun once.

    Raises:
        ConfigurationError: the two together are refused although each alone is not.
    """
    kept, waiting = {}, []
    for name, keys in _AT_THE_NEXT_START.items():
        held, wanted = getattr(running, name), getattr(read, name)
        changed = [key for key in keys if getattr(held, key) != getattr(wanted, key)]
        waiting += [f"{name}.{key}: takes effect at the next start" for key in changed]
        kept[name] = wanted.model_copy(update={key: getattr(held, key) for key in keys})
    settings = replace(read, **kept)
    if _is_open_relay(settings.server, settings.upstream):
        # What was read would listen elsewhere, but does not yet.
        raise ConfigurationError([f"server.client_tokens: {_OPEN_RELAY}", *waiting])
    return settings, tuple(waiting)


def _frozen(profiles: dict[str, Profile]) -> MappingProxyType[str, Profile]:
    return MappingProxyType(profiles)


# Workers are told the settings as a pickle (`loopguard.channel`).
copyreg.pickle(MappingProxyType, lambda proxy: (_frozen, (dict(proxy),)))


_Path: TypeAlias = tuple[str | int, ...]
"""Where a key stands: the names of its tables, then its own; an index inside a list."""


@dataclass(frozen=True, slots=True)
class Written:
    """The tables that an operator tunes, each key as it is written or else by its default.

    Attributes:
        retry: the budget of one exchange.
        profiles: by name; a knob that nobody wrote is None.
        variables: the variable of each key that the environment sets, by the key's path.
    """

    retry: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    variables: dict[_Path, str]


def written(tree: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Written:
    """Read the tables that an operator tunes, those of a disarmed rule included.

    Args:
        tree: of the file.
        environ: stands over it, as in `load`.

    Raises:
        ConfigurationError: with every fault of these tables.
    """
    faults = _Faults()
    overlaid = _overlaid(tree, environ, faults)
    retry = faults.judge(_Retry, ("retry",), overlaid.get("retry", {}))
    profiles = _judge_profiles(overlaid.get("profiles", {}), faults)
    if faults.lines:
        raise ConfigurationError(faults.lines)
    return Written(
        retry=retry.model_dump(mode="json"),
        profiles={name: table.model_dump(mode="json") for name, table in profiles.items()},
        variables=faults.origins,
    )


_Judged = TypeVar("_Judged", bound=_Table)


class _Faults:
    """The faults found so far, one line each.

    Attributes:
        lines: as the operator reads them.
        origins: the environment variable that set a key.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[_Path, str] = {}

    def add(self, path: _Path, phrase: str) -> None:
        """Note what is wrong with a key; a profile is named first, with its name alone."""
        match path:
            case ("profiles", name, *rest):
                named = [f"profile `{name}`", *([_dotted(rest)] if rest else [])]
            case _:
                named = [_dotted(path)]
        origin = f" (set by {self.origins[path]})" if path in self.origins else ""
        self.lines.append(": ".join([*named, phrase]) + origin)

    def judge(
        self, table: type[_Judged], path: _Path, written: object, profiles: Sequence[str] = ()
    ) -> _Judged:
        """Read a table; one at fault is noted and its defaults stand in for it."""
        try:
            return table.model_validate(written, context=profiles)
        except ValidationError as error:
            for fault in error.errors(include_url=False, include_input=False):
                self.add((*path, *fault["loc"]), _phrase(fault))
            return table.model_construct()


_PHRASES = {
    "missing": "missing",
    "extra_forbidden": "unknown key",
    "model_type": "must be a table",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "greater_than": "must be more than {gt:.15g}",
    "greater_than_equal": "must be {ge:.15g} or more",
    "less_than_equal": "must be {le:.15g} or less",
    "value_error": "{error}",
}


def _phrase(fault: ErrorDetails) -> str:
    template = _PHRASES.get(fault["type"])
    if template is None:
        return re.sub(r"^\w+ should", "must", fault["msg"])
    return template.format(**fault.get("ctx", {}))


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)[1:]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError([f"{path}: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigurationError([f"{path}: not readable as TOML: {error}"]) from None


def _secrets_of_files(tree: Mapping[str, Any], faults: _Faults) -> dict[str, dict[str, Any]]:
    """The secrets that stand in files of their own, as a tree."""
    secrets: dict[str, dict[str, Any]] = {}
    for table, key in _SECRETS:
        written = tree.get(table)
        path = written.get(f"{key}_file") if isinstance(written, dict) else None
        if not isinstance(written, dict) or not isinstance(path, str) or not path:
            continue  # a value that is no text is refused where the table is judged
        if written.get(key):
            faults.add((table, f"{key}_file"), f"must not be given beside {table}.{key}")
            continue
        try:
            text = _read_secret(path)
        except ValueError as error:
            faults.add((table, f"{key}_file"), str(error))
            continue
        lines = tuple(line for line in map(str.strip, text.splitlines()) if line)
        secret = lines if (table, key) in _LISTS_OF_SECRETS else text
        secrets.setdefault(table, {})[key] = secret
        faults.origins[table, key] = path
    return secrets


def _read_secret(path: str) -> str:
    """The text of a file without the white space around it.

    Raises:
        ValueError: it cannot be read, or holds nothing.
    """
    try:
        text = Path(path).read_text("utf-8").strip()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError("cannot be read: not text in UTF-8, or no path") from None
    if not text:
        raise ValueError("names a file that holds nothing")
    return text


def _read_names(
    environ: Mapping[str, str], profiles: Sequence[str], faults: _Faults
) -> dict[tuple[str, ...], str]:
    """The keys that variables set, each with the variable's name; slips are noted as faults."""
    tables = _Tree.model_fields.keys()
    variables = {}
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or not environ[name]:
            continue
        table, *keys = name.removeprefix(_PREFIX).lower().split(_BETWEEN)
        if not keys:
            if any(f"{table}_".startswith(f"{known}_") for known in tables):
                faults.add((name,), "not read; write two underscores between table and key")
            continue
        if table not in tables:
            faults.add((name,), "no table has this name")
            continue
        if table == "profiles":
            meant = [known for known in profiles if known.lower().replace("-", "_") == keys[0]]
            if len(meant) != 1:
                faults.add((name,), "must name exactly one profile of the file")
                continue
            keys[0] = meant[0]
        variables[table, *keys] = name
    return variables


def _profile_names(tree: Mapping[str, Any]) -> tuple[str, ...]:
    declared = tree.get("profiles")
    return tuple(declared) if isinstance(declared, dict) else ()


def _overlaid(
    tree: Mapping[str, Any], environ: Mapping[str, str], faults: _Faults
) -> dict[str, Any]:
    """The tree with the environment over it; the origins of the latter are noted."""
    variables = _read_names(environ, _profile_names(tree), faults)
    faults.origins.update(variables.items())
    source = EnvSettingsSource(_Tree)
    source.env_vars = {
        _PREFIX.lower() + _BETWEEN.join(key): _Variable(environ[name])
        for key, name in variables.items()
    }
    return _over(source(), tree)


def _over(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees, the one above deciding where they differ."""
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            merged[key] = _over(value, under)
        else:
            merged[key] = value
    return merged


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _judge_routes(written: object, profiles: Sequence[str], faults: _Faults) -> tuple[Route, ...]:
    if not isinstance(written, list):
        faults.add(("routes",), "must be a list of tables")
        return ()
    return tuple(
        faults.judge(Route, ("routes", index), table, profiles)
        for index, table in enumerate(written)
    )


def _judge_profiles(written: object, faults: _Faults) -> dict[str, _Profile]:
    if not isinstance(written, dict):
        faults.add(("profiles",), "must be a table")
        return {}
    if DEFAULT_PROFILE not in written:
        faults.add(("profiles",), f"must hold a profile named {DEFAULT_PROFILE}")
    for name in written:
        if not _profile_name.fullmatch(name):
            faults.add(
                ("profiles", name), "its name stands in URLs, so it is made of A-Z a-z 0-9 _ and -"
            )
    return {name: faults.judge(_Profile, ("profiles", name), written[name]) for name in written}


def _core_profile(name: str, table: _Profile) -> Profile:
    frequency = table.loop_detection.model_dump(exclude={"enabled"})
    stretch = table.stretch_detection.model_dump(exclude={"enabled"})
    return Profile(
        name=name,
        relay=table.relay,
        live_trip=table.live_trip,
        stream_idle_s=table.stream_idle_s,
        call_timeout_s=table.call_timeout_s,
        detection=Detection(
            channels=table.channels,
            frequency=FrequencyKnobs(**frequency) if table.loop_detection.enabled else None,
            stretch=StretchKnobs(**stretch) if table.stretch_detection.enabled else None,
            max_identical_calls=table.max_identical_calls,
        ),
        request_gate=table.request_gate,
        stop_on_identical=table.stop_on_identical,
        log_sample=table.log_sample,
        escape=Escape(**table.escape.model_dump(exclude_none=True)),
    )


def _exposures(server: Server, upstream: Upstream) -> Iterable[str]:
    """What others on the way may read or reach, although nothing is wrong with the settings."""
    target = urlsplit(upstream.base_url)
    if target.scheme == "http" and not _is_loopback(target.hostname or ""):
        yield (
            "upstream.base_url: over http the key, the prompts and the replies are readable to "
            "everyone on the way"
        )
    if not _is_loopback(server.admin_host):
        yield (
            "server.admin_host: metrics, runs and the console are shown to everyone who reaches "
            f"{server.admin_host}"
        )


def _warnings(profile: Profile) -> Iterable[str]:
    """What is armed as declared although it cannot do what it says."""
    knobs = profile.detection.frequency
    if knobs is None:
        return
    needed = knobs.min_offenders * (knobs.repeat_threshold + 1)
    if needed > knobs.window_words:
        left = "only the length backstop" if knobs.max_response_chars else "nothing"
        yield (
            f"profile `{profile.name}`: loop_detection.min_offenders: {knobs.min_offenders} words "
            f"that each occur more than {knobs.repeat_threshold} times do not fit into "
            f"window_words of {knobs.window_words}, so {left} can fire"
        )
