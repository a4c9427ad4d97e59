"""Read settings from `HOLDFAST_*` variables, then `holdfast.toml`, then defaults. Reject unknown names."""

import difflib
import ipaddress
import os
from collections.abc import Mapping
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from holdfast.budgets import Budget
from holdfast.errors import BadSettings
from holdfast.ids import is_token
from holdfast.logs import LogFormat
from holdfast.policy import RetentionPolicy, check_names, parse, read_json

PREFIX = "HOLDFAST_"
FILE = Path("holdfast.toml")
_FOR_TESTS = f"{PREFIX}TEST_"
"""Variables with this prefix belong to the test suite; they are not settings."""
_Dollars: TypeAlias = Annotated[Decimal, Field(ge=0, le=1_000_000)]
_FOREIGN = "OH_"
"""The prefix of the variables of the OpenHands agent server."""


class _Tokens(Protocol):
    """The tokens of a model request."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


class Price(BaseModel):
    """The price of a model, in dollars for a million tokens. Tokens from and for the cache cost like others unless they have prices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: _Dollars
    output: _Dollars
    cache_read: _Dollars | None = None
    cache_write: _Dollars | None = None

    def of(self, usage: _Tokens) -> Decimal:
        """Return the cost of a request in dollars. Its input includes the tokens from and for the cache."""
        read, write = max(0, usage.cache_read_tokens), max(0, usage.cache_write_tokens)
        parts = (
            (max(0, usage.input_tokens - read - write), self.input),
            (max(0, usage.output_tokens), self.output),
            (read, self.input if self.cache_read is None else self.cache_read),
            (write, self.input if self.cache_write is None else self.cache_write),
        )
        return sum((tokens * price for tokens, price in parts), Decimal()) / 1_000_000


class Settings(BaseSettings):
    """The settings for operators. Every field is `HOLDFAST_<NAME>` in the environment and `<name>` in the file."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, toml_file=FILE, extra="forbid", frozen=True)

    store: str = Field("sqlite:///holdfast.db", description="The store for sessions, as a URL.")
    lease_ttl_seconds: Annotated[float, Field(ge=0.2)] = Field(
        10.0, description="How long a holder that stopped renewing keeps its sessions."
    )
    lease_renew_seconds: Annotated[float, Field(ge=0.1)] = Field(
        3.0, description="How often a holder renews its deadline."
    )
    loop_timeout_seconds: Annotated[float, Field(ge=1)] = Field(
        30.0,
        description="How long a tool may block a worker's event loop before other workers take over its sessions.",
    )
    max_payload_bytes: Annotated[int, Field(gt=0)] = Field(
        64 * 1024 * 1024, description="The largest single text in a row: a message, a payload, a result."
    )
    max_history_bytes: Annotated[int, Field(ge=1024)] = Field(
        64 * 1024 * 1024,
        description="The largest history that a turn loads, with its media; a larger one fails the turn.",
    )
    max_pending: Annotated[int, Field(gt=0)] = Field(
        1000, description="How many submissions of one session may be pending at once."
    )

    credential_key: SecretStr | None = Field(
        None,
        description="The key that encrypts credentials. Separate several keys with commas; the first one encrypts.",
    )
    shell_retention_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="How long the log keeps a shell command that has ended. By default it is kept indefinitely.",
    )
    shell_output_bytes: Annotated[int, Field(ge=1024)] = Field(
        16 * 1024 * 1024, description="How much of one shell command's output is kept."
    )
    shell_tail_bytes: Annotated[int, Field(ge=0)] = Field(
        256 * 1024, description="How much of that is reserved for the end of an output that is too long."
    )
    media: str = Field(
        "database",
        description="Where large content is stored: database, disk:///path or s3://bucket/prefix.",
    )
    media_threshold_bytes: Annotated[int, Field(ge=1024)] = Field(
        64 * 1024, description="Content of at least this size goes to the media store."
    )
    media_grace_seconds: Annotated[float, Field(ge=0)] = Field(
        3600.0, description="How long media that no session refers to is kept before it is collected."
    )
    log_format: LogFormat = Field(
        "text", description="The format of the logs: `text` for people, `json` for programs."
    )
    url: str | None = Field(
        None, description="The server that commands use instead of the store, where possible."
    )
    host: str = Field("127.0.0.1", description="The address that `holdfast serve` listens on.")
    port: Annotated[int, Field(ge=0, lt=65536)] = Field(8350, description="Its port; 0 selects a free one.")
    auth: Literal["token", "none"] = Field(
        "token", description="`none` disables authentication; it is allowed only on a loopback address."
    )
    token: SecretStr | None = Field(
        None, description="An administrator's token. By default a new one is generated at each start."
    )
    jwt_keys: str | None = Field(
        None,
        description="The keys of an identity provider, as a JWKS URL or file. Its tokens are accepted too.",
    )
    jwt_issuer: str | None = Field(None, description="The issuer that these tokens must have.")
    jwt_audience: str | None = Field(
        None, description="The audience that these tokens must have. Required with `jwt_keys`."
    )
    max_body_bytes: Annotated[int, Field(gt=0)] = Field(
        10 * 1024 * 1024, description="The largest request body."
    )
    request_timeout_seconds: Annotated[float, Field(gt=0)] = Field(
        30.0,
        description="How long a client may take to send the head of a request, or pause within its body. Twice as long applies to "
        "a body that arrives at less than 500 bytes per second, and to a client that reads nothing of a response.",
    )
    max_archive_bytes: Annotated[int, Field(gt=0)] = Field(
        16 * 1024 * 1024 * 1024, description="The largest archive that a request may contain."
    )
    attached_grace_seconds: Annotated[float, Field(ge=1, le=86_400)] = Field(
        180.0,
        description="How long a turn of an attached session continues without a watcher, unless the session has its own `grace`.",
    )
    max_requests_per_minute: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How many requests an API server accepts from one owner per minute. Administrators have no limit.",
    )
    max_submissions_per_minute: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How many messages and other requests to sessions an API server accepts from one owner per minute. Answers, "
        "signals and interrupts are not limited.",
    )
    max_streams: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How many event streams and downloads of one owner an API server keeps open at once.",
    )
    max_sessions: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="How many sessions one owner may have that are not cleaned."
    )
    max_stored_bytes_per_owner: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How many bytes of content one owner may have in the store and the media store. Beyond it, new messages and sessions are refused.",
    )
    max_running_per_owner: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How many sessions of one owner all workers together run at once. Further ones wait, and delay no other owner.",
    )
    max_running_per_agent: Annotated[int, Field(ge=1)] | None = Field(
        None, description="How many sessions of one agent all workers together run at once."
    )
    retention_min_idle_days: Annotated[float, Field(ge=0)] = Field(
        7.0,
        description="Cleaning a session that was active within this many days requires an administrator; erasing it, an administrator or the scope `delete`.",
    )
    retention_rehydrated_days: Annotated[float, Field(ge=0, le=36500)] = Field(
        7.0,
        description="How long a policy skips a session after it was restored from an archive, unless the policy has its own `rehydrated_days`.",
    )
    retention: Annotated[tuple[RetentionPolicy, ...], NoDecode] = Field(
        (), description="The retention policies, as JSON. The first policy that matches a session applies."
    )
    retention_sweep_seconds: Annotated[float, Field(ge=1)] = Field(
        3600.0, description="How often the sweep looks for due sessions."
    )
    retention_sweep_at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] | None = Field(
        None, description="Sweep once a day at this time in UTC, such as 03:30, instead of at an interval."
    )
    submission_retention_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="How long a submission that has ended is kept. By default it is kept with its session.",
    )
    prices: Annotated[Mapping[str, Price], NoDecode] = Field(
        {},
        description="Prices of models by name, as JSON, in dollars for a million tokens. They override the known prices.",
    )
    usage_retention_days: Annotated[int, Field(ge=1, le=36500)] | None = Field(
        None, description="How long the sums of usage are kept. By default they are kept indefinitely."
    )
    budgets: Annotated[tuple[Budget, ...], NoDecode] = Field(
        (),
        description="Budgets, as JSON: how much each turn, session, owner or agent, or all together, may use.",
    )
    webhook_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = Field(
        (),
        description="Networks that webhooks may be sent to although they are not public, such as 10.0.0.0/8, separated by commas. http is "
        "allowed there, too.",
    )
    mirror: Path | None = Field(
        None,
        description="A folder in which a worker mirrors the journals as files of JSON lines, as an absolute path.",
    )
    stream_comment_seconds: Annotated[float, Field(ge=1)] = Field(
        15.0, description="How often an idle event stream sends a keep-alive comment."
    )

    @field_validator("retention", mode="before")
    @classmethod
    def _read_policies(cls, given: Any) -> Any:
        """Parse the JSON of the environment, and turn a list, as the file has it, into a tuple."""
        result = parse(given) if isinstance(given, str) else given
        return tuple(result) if isinstance(result, list) else result  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    @field_validator("budgets", mode="before")
    @classmethod
    def _read_budgets(cls, given: Any) -> Any:
        """Parse the JSON of the environment, and turn a list, as the file has it, into a tuple."""
        if isinstance(given, str):
            try:
                given = read_json(given)
            except ValueError as error:
                message = f'it must be JSON, such as [{{"per": "turn", "cost": 2}}]: {error}'
                raise ValueError(message) from None
        if not isinstance(given, list | tuple):
            message = 'it must be a list of budgets, such as [{"per": "turn", "cost": 2}]'
            raise ValueError(message)  # noqa: TRY004 - pydantic turns a ValueError into a validation error
        return tuple(given)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    @field_validator("webhook_networks", mode="before")
    @classmethod
    def _read_networks(cls, given: Any) -> Any:
        """Split the text of the environment, and parse the networks."""
        if isinstance(given, str):
            given = [part.strip() for part in given.split(",") if part.strip()]
        if not isinstance(given, list | tuple):
            message = "it must be a list of networks, such as 10.0.0.0/8"
            raise ValueError(message)  # noqa: TRY004 - pydantic turns a ValueError into a validation error
        return tuple(_network(each) for each in given)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    @field_validator("mirror")
    @classmethod
    def _check_mirror(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            message = "it must be an absolute path, such as /var/lib/holdfast/journals"
            raise ValueError(message)
        return path

    @field_validator("prices", mode="before")
    @classmethod
    def _read_prices(cls, given: Any) -> Any:
        """Parse the JSON of the environment."""
        if not isinstance(given, str):
            return given
        try:
            return read_json(given)
        except ValueError as error:
            message = f'it must be JSON, such as {{"name": {{"input": 0.4, "output": 1.6}}}}: {error}'
            raise ValueError(message) from None

    @field_validator("retention")
    @classmethod
    def _check_policy_names(cls, policies: tuple[RetentionPolicy, ...]) -> tuple[RetentionPolicy, ...]:
        check_names(policies)
        return policies

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give arguments precedence over the environment, and the environment over the file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def _network(given: object) -> IPv4Network | IPv6Network:
    """Return a network of the setting. Raise a `ValueError` with the value and what is wrong with it."""
    if isinstance(given, IPv4Network | IPv6Network):
        return given
    text = str(given)  # a number in the file is not an address
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        wider = ipaddress.ip_network(text, strict=False)
    except ValueError:
        message = f"{text!r} is not a network. Use an address with a prefix length, such as 10.0.0.0/8, and not a host name"
    else:
        message = f"{text!r} has host bits set. Use {wider}"
    raise ValueError(message)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback address, which other machines cannot reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_settings(**given: object) -> Settings:
    """Read the settings; `given` values take precedence. Raise `BadSettings` that lists every invalid or unknown one."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX) and not name.startswith(_FOR_TESTS) and name.upper() not in known
    )
    if unknown:
        hints = " ".join(
            [f"Unknown variables: {', '.join(unknown)}.", *filter(None, map(_suggestion, unknown))]
        )
        raise BadSettings(problem=f"{hints} Known variables: {', '.join(sorted(known))}.")
    try:
        settings = Settings(**given)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        problems = [_complaint(e["loc"], e["type"], e["msg"]) for e in error.errors()]
        raise BadSettings(problem=" ".join(problems)) from error
    except (ValueError, RecursionError) as error:
        raise BadSettings(problem=f"{FILE} is not valid TOML: {error}.") from error
    if settings.lease_renew_seconds * 2 > settings.lease_ttl_seconds:
        raise BadSettings(problem="lease_ttl_seconds must be at least twice lease_renew_seconds.")
    if settings.jwt_keys is not None and settings.jwt_audience is None:
        raise BadSettings(
            problem="jwt_keys requires jwt_audience: tokens for other services must not be accepted."
        )
    if settings.token is not None and not is_token(settings.token.get_secret_value()):
        raise BadSettings(problem="token must have printable ASCII characters only, to be sent in a header.")
    if settings.shell_tail_bytes * 2 > settings.shell_output_bytes:
        raise BadSettings(problem="shell_output_bytes must be at least twice shell_tail_bytes.")
    return settings


def foreign_variables() -> dict[str, str]:
    """Return the variables of the OpenHands agent server in the environment, which Holdfast does not read, with a similar setting of each."""
    names = sorted(name for name in os.environ if name.upper().startswith(_FOREIGN))
    return {name: _suggestion(name) for name in names}


def _suggestion(variable: str) -> str:
    """Return a sentence with the setting whose name is most similar to that of a variable; empty if none is similar."""
    name = variable.partition("_")[2].lower()
    close = difflib.get_close_matches(name, Settings.model_fields, n=1)
    return f"For {variable}, did you mean {PREFIX}{close[0].upper()}?" if close else ""


def _complaint(place: tuple[int | str, ...], kind: str, message: str) -> str:
    name = str(place[0])
    message = message.removeprefix("Value error, ")
    if len(place) > 1:
        message = f"{''.join(f'[{part}]' if isinstance(part, int) else f'.{part}' for part in place[1:])}: {message}"
        if kind == "extra_forbidden":
            models = {"prices": Price, "budgets": Budget}
            valid = models.get(name, RetentionPolicy).model_fields
            message += f"; valid fields: {', '.join(valid)}"
    elif kind == "extra_forbidden":
        return (
            f"Unknown setting in {FILE}: {name}. Known settings: {', '.join(sorted(Settings.model_fields))}."
        )
    return f"{name} ({PREFIX}{name.upper()} in the environment, {name} in {FILE}): {message}."
