"""The keys of a configuration file: what each accepts, and its default."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from leasequeue.autoscale.model import DeploymentPolicy, JobPolicy, TierPolicy
from leasequeue.durations import LONGEST_SECONDS, parse_duration
from leasequeue.errors import InvalidArgument
from leasequeue.keys import check_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The default of a key that must be given, and of one that is left out where it is not.
REQUIRED: Final = object()
ABSENT: Final = object()

#: What turns a duration off, and what leaves a number to measurement.
NEVER, MEASURED = "never", "measured"
#: The largest numbers that are accepted: units of a tier, workers of a unit, children of an item.
MAX_UNITS, MAX_WORKERS, MAX_CHILDREN = 1_000_000, 100_000, 1_000_000
#: The bounds of `every` (s), and the shortest age target and service time.
SHORTEST_PASS, LONGEST_PASS, SHORTEST = 0.1, 86_400.0, 0.001

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)


class Unfit(Exception):
    """A value that a key does not accept. Its text says why, if that is more than what was given."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a table.

    Args:
        read: Returns a value as the program takes it, or raises Unfit.
        expected: What is accepted.
        default: The value if the key is missing; REQUIRED: it must be given; ABSENT: the value is left out.
    """

    read: Callable[[Any], Any]
    expected: str
    default: object = ABSENT


# -------------------------------------------------------------------------- what is accepted


def duration(
    *, minimum: float = 0.0, maximum: float = LONGEST_SECONDS, word: str = "", default: object = ABSENT
) -> Key:
    """Return a key for a duration, read in seconds; a word stands for None."""

    def read(value: Any) -> float | None:
        if word and value == word:
            return None
        seconds: float | None = None
        if isinstance(value, str):
            seconds = parse_duration(value)
        elif _is_number(value):
            seconds = float(value)
        if seconds is None or not minimum <= seconds <= maximum:
            raise Unfit
        return seconds

    bounds = f"from {_written(minimum)} to {_written(maximum)}"
    also = f', or "{word}"' if word else ""
    return Key(read=read, expected=f'a duration {bounds}, such as "30s" or "5m"{also}', default=default)


def whole(minimum: int, maximum: int, *, default: object = ABSENT) -> Key:
    """Return a key for a whole number."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise Unfit
        return value

    return Key(read=read, expected=f"a whole number from {minimum:,} to {maximum:,}", default=default)


def number(minimum: float, maximum: float, *, word: str = "", default: object = ABSENT) -> Key:
    """Return a key for a number; a word stands for None."""

    def read(value: Any) -> float | None:
        if word and value == word:
            return None
        if not _is_number(value) or not minimum <= value <= maximum:
            raise Unfit
        return float(value)

    also = f', or "{word}"' if word else ""
    return Key(read=read, expected=f"a number from {minimum:,.9g} to {maximum:,.9g}{also}", default=default)


def flag(*, default: object = ABSENT) -> Key:
    """Return a key for true or false."""

    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise Unfit
        return value

    return Key(read=read, expected="true or false", default=default)


def text(expected: str = "a text", *, empty: bool = False, default: object = ABSENT) -> Key:
    """Return a key for a text, which may be empty or not."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not (value or empty) or "\0" in value:
            raise Unfit
        return value

    return Key(read=read, expected=expected, default=default)


def one_of(*words: str, default: object = ABSENT) -> Key:
    """Return a key for one of some words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise Unfit
        return value

    return Key(read=read, expected=" or ".join(f'"{word}"' for word in words), default=default)


def words(expected: str, *, must_contain: str = "", default: object = ABSENT) -> Key:
    """Return a key for a list of texts that are not empty, at least one."""

    def read(value: Any) -> list[str]:
        if not isinstance(value, list) or not value:
            raise Unfit
        if not all(isinstance(one, str) and one and "\0" not in one for one in value):
            raise Unfit
        if not any(must_contain in one for one in value):
            raise Unfit
        return value

    return Key(read=read, expected=expected, default=default)


def texts(expected: str) -> Key:
    """Return a key for a table of texts; without one, it is empty."""

    def read(value: Any) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise Unfit
        if any(not name or "=" in name or "\0" in name + value[name] for name in value):
            raise Unfit
        return value

    return Key(read=read, expected=expected, default={})


def table(expected: str, *, default: object = ABSENT) -> Key:
    """Return a key for a table, whose keys are read elsewhere."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Unfit
        return value

    return Key(read=read, expected=expected, default=default)


def tables(expected: str) -> Key:
    """Return a key for a list of tables, at least one, whose keys are read elsewhere."""

    def read(value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
            raise Unfit
        return value

    return Key(read=read, expected=expected)


def queue_name(value: Any) -> str:
    """Return the name of a queue."""
    try:
        return check_prefix(value)
    except InvalidArgument as error:
        raise Unfit(f"got {error.given}, expected {error.allowed}") from error


def short_name(value: Any) -> str:
    """Return the name of a deployment or a tier, which is part of paths and of the names of workers."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Unfit
    return value


def address(value: Any) -> tuple[str, int]:
    """Return the host and the port of an address, as `0.0.0.0:8080` or `[::]:8080`."""
    try:
        parts = urlsplit(f"//{value}") if isinstance(value, str) else None
        port = None if parts is None else parts.port
    except ValueError as error:
        raise Unfit from error
    if parts is None or port is None or not parts.hostname or parts.netloc != value or "@" in value:
        raise Unfit
    return parts.hostname, port


def _address_text(value: Any) -> str:
    address(value)
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _written(seconds: float) -> str:
    """Return a duration as in a file."""
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


# -------------------------------------------------------------------------- the keys

#: What a name of a deployment or a tier is.
SHORT_NAME = "a name of 1 to 63 letters, digits, - and _"
QUEUE_NAME = "the name of a queue"
URL = Key(read=text().read, expected="a redis://, rediss:// or unix:// URL")

FILE_KEYS: Mapping[str, Key] = {
    "name": Key(read=queue_name, expected=QUEUE_NAME, default=REQUIRED),
    "url": URL,
    "cluster": flag(default=False),
    "every": duration(minimum=SHORTEST_PASS, maximum=LONGEST_PASS, default=10.0),
    "clean_every": duration(minimum=SHORTEST_PASS, word=NEVER, default=30.0),
    "deep_clean_every": duration(minimum=SHORTEST_PASS, word=NEVER, default=720.0),
    "queue_prefix": text("what the names of all queues begin with", empty=True, default=""),
    "jobs": table("a table of each job: [jobs.NAME]", default=REQUIRED),
    "deployments": table("a table of each deployment: [deployments.NAME]", default=REQUIRED),
    "http": table("a table with an address: [http]"),
}

HTTP_KEYS: Mapping[str, Key] = {
    "address": Key(
        read=_address_text, expected='an address and a port, such as "0.0.0.0:8080"', default=REQUIRED
    ),
}

_JOB = JobPolicy()
JOB_KEYS: Mapping[str, Key] = {
    "queue": text(QUEUE_NAME),
    "url": URL,
    "cluster": flag(),
    "age_target": duration(minimum=SHORTEST, default=_JOB.age_target),
    "service_time": duration(minimum=SHORTEST, word=MEASURED, default=None),
    "confidence": number(0.5, 0.9999, default=_JOB.confidence),
    "ignore_abandoned": flag(default=_JOB.ignore_abandoned),
    "children": table("a table of the names of jobs and numbers: { upload = 3.5 }", default={}),
}
#: How many items of another job one item adds.
CHILDREN = number(0, MAX_CHILDREN, word=MEASURED)

_TIER = TierPolicy(name="")
#: Those of a tier that may also stand in its deployment, for all its tiers.
TIER_KEYS: Mapping[str, Key] = {
    "min_units": whole(0, MAX_UNITS, default=_TIER.min_units),
    "max_units": whole(0, MAX_UNITS, default=_TIER.max_units),
    "workers_per_unit": whole(1, MAX_WORKERS, default=_TIER.workers_per_unit),
    "spin_up": duration(default=_TIER.spin_up),
    "preemptible": flag(default=_TIER.preemptible),
    "slow_down": duration(default=_TIER.slow_down),
    "slow_up": duration(default=_TIER.slow_up),
}

_ENV = 'a table of texts, such as { LOG_LEVEL = "debug" }'
_PATTERN = 'a pattern of the names of workers, such as "media-spot-*"'
#: The settings of each back end.
BACKENDS: Mapping[str, Mapping[str, Key]] = {
    "processes": {
        "command": words('a list of words, such as ["leasequeue", "worker", "app:worker"]', default=REQUIRED),
        "env": texts(_ENV),
        "directory": text("the path of a folder", default=None),
        "on_exit": one_of("stop", "leave", default=None),
        "stop_within": duration(minimum=SHORTEST_PASS, default=60.0),
        "kill_after": duration(minimum=SHORTEST_PASS, word=NEVER, default=None),
    },
    "kubernetes": {
        "name": text("the name of the object"),
        "namespace": text("the name of a namespace", default="default"),
        "kind": one_of("Deployment", "StatefulSet", default="Deployment"),
        "context": text("the name of a context of the kubeconfig file", default=None),
        "kubeconfig": text("the path of a kubeconfig file", default=None),
    },
    "command": {
        "request": words(
            'a list of words, one of them with {units}, such as ["./scale", "{units}"]',
            must_contain="{units}",
            default=REQUIRED,
        ),
        "ready": words('a list of words, such as ["./ready"]', default=None),
        "env": texts(_ENV),
        "directory": text("the path of a folder", default=None),
        "timeout": duration(minimum=SHORTEST_PASS, maximum=3600.0, default=30.0),
        "workers": text(_PATTERN, default=None),
    },
    "http": {"workers": text(_PATTERN, default=None)},
}
BACKEND = one_of(*BACKENDS)

_SETTINGS: Mapping[str, Key] = {
    "backend": BACKEND,
    **{name: table("a table of its settings") for name in BACKENDS},
}

DEPLOYMENT_KEYS: Mapping[str, Key] = {
    "jobs": words('a list of names of jobs, such as ["resize", "upload"]'),
    "steady_share": number(0, 1, default=DeploymentPolicy(name="", jobs=(), tiers=()).steady_share),
    "tiers": tables("one table or more: [[deployments.NAME.tiers]]"),
    **{name: Key(read=one.read, expected=one.expected) for name, one in TIER_KEYS.items()},
    **_SETTINGS,
}
ONE_TIER_KEYS: Mapping[str, Key] = {
    "name": Key(read=short_name, expected=SHORT_NAME, default=REQUIRED),
    **{name: Key(read=one.read, expected=one.expected) for name, one in TIER_KEYS.items()},
    **_SETTINGS,
}

#: What the settings of redis-work-queue's autoscaler are called here.
OTHER_NAMES = {
    "queueName": "queue",
    "runTime": "service_time",
    "timeout": "no key: the server knows which leases have expired",
    "workersPerPod": "workers_per_unit",
    "ignoreAbandoned": "ignore_abandoned",
    "deploymentName": "kubernetes = { name = … }",
    "minScale": "min_units",
    "maxScale": "max_units",
    "spinupTime": "spin_up",
    "targetTime": "age_target, in the table of the job",
    "manualSlowdownDuration": "slow_down",
    "slowupDuration": "slow_up",
    "flakyBaseWorkers": "steady_share",
    "namespace": "kubernetes = { namespace = … }",
    "redis": "url",
    "redisOverride": "url, in the table of the job",
    "queueNamePrefix": "queue_prefix",
    "segmentedDeployments": "jobs, in the table of the deployment",
}
