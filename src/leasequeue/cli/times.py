"""Reading and writing durations and times: `90s`, `2d`, `2026-11-21T09:00+01:00`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import typer

from leasequeue import durations
from leasequeue.durations import LONGEST_SECONDS


def parse_duration(text: str | float | None) -> float | None:
    """Parse a duration: `500ms`, `30s`, `5m`, `1h30m`, `2d`, `1w`, or a number of seconds."""
    if not isinstance(text, str):
        return text  # the default of an option
    if (seconds := durations.parse_duration(text)) is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 500ms, 30s, 5m, 1h30m, 2d or 1w")
    return seconds


def duration_option(
    help: str,  # noqa: A002 - as in `typer.Option`
    *names: str,
    longest: float = LONGEST_SECONDS,
    instead: str = "",
) -> Any:
    """Return an option whose value is a duration.

    Args:
        help: Its help.
        names: Its names; by default that of the parameter.
        longest: The longest that is accepted (s).
        instead: What to do for a longer one.
    """

    def parse(text: str | float | None) -> float | None:
        duration = parse_duration(text)
        if isinstance(text, str) and duration is not None and duration > longest:
            allowed = f"{text!r} is longer than {longest / 86400:,g}d, the longest that is accepted"
            raise typer.BadParameter(f"{allowed}; {instead}" if instead else allowed)
        return duration

    return typer.Option(*names, parser=parse, metavar="DURATION", help=help)


def parse_time(text: str) -> datetime:
    """Parse a time with a zone, in ISO 8601."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise typer.BadParameter(
            f"{text!r} is not a time with a zone; write 2030-01-31T09:00Z or 2030-01-31T09:00+01:00"
        )
    return when


def format_time(time: float | datetime | None) -> str | None:
    """Format a time, or seconds since 1970, as ISO 8601 in UTC; None stays None."""
    if time is None:
        return None
    seconds = time.timestamp() if isinstance(time, datetime) else time
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):  # another client may write any number
        return f"{seconds:.0f} s after 1970"
