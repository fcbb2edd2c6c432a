"""Options that are numbers, one of several words, durations or times; their errors say what is accepted."""

from __future__ import annotations

import functools
import math
import re
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue import durations
from leasequeue.durations import LONGEST_SECONDS
from leasequeue.errors.describing import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


TaskName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Add a task of this name, instead of DATA.")
]
TaskArguments = Annotated[
    str | None, typer.Option(metavar="JSON", help="With --task: its arguments, as a JSON object.")
]

_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([KMG])i?B?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)", re.ASCII)


def number_option(
    help: str,  # noqa: A002 - as in `typer.Option`
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    whole: bool = True,
) -> Any:
    """Return an option whose value is a number between two bounds, both inclusive."""
    parse = functools.partial(_parse_number, minimum=minimum, maximum=maximum, whole=whole)
    return typer.Option(parser=parse, metavar="N", help=help)


def size_option(help: str) -> Any:  # noqa: A002 - as in `typer.Option`
    """Return an option whose value is a number of bytes, at least a mebibyte: `500M`, `2G`."""
    return typer.Option(parser=_parse_size, metavar="SIZE", help=help)


def choice_option(
    help: str,  # noqa: A002 - as in `typer.Option`
    choices: Sequence[str],
    *names: str,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Return an option whose value is one of some words, which shells complete.

    Args:
        help: Its help.
        choices: The words.
        names: Its names; by default that of the parameter.
        elsewhere: Other words that may be tried, and what to do instead.
    """

    def completed(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return typer.Option(
        *names,
        parser=functools.partial(_parse_choice, choices=choices, elsewhere=elsewhere),
        metavar=f"[{'|'.join(choices)}]",
        autocompletion=completed,
        help=help,
    )


def _parse_number(text: object, *, minimum: float | None, maximum: float | None, whole: bool) -> float:
    if not isinstance(text, str):
        return text  # type: ignore[return-value]  # the default of an option
    number: float | None = None
    if (_WHOLE if whole else _NUMBER).fullmatch(text) and len(text) <= 100:
        number = int(text) if whole else float(text)
    lowest = -math.inf if minimum is None else minimum
    highest = math.inf if maximum is None else maximum
    if number is None or not lowest <= number <= highest:
        what = "a whole number" if whole else "a number"
        if minimum is not None and maximum is not None:
            what += f" from {minimum:,} to {maximum:,}"
        elif minimum is not None:
            what += f", at least {minimum:,}"
        raise typer.BadParameter(f"{text!r} is not {what}")
    return number


def _parse_size(text: object) -> int:
    if not isinstance(text, str):
        return text  # type: ignore[return-value]  # the default of an option
    match = _SIZE.fullmatch(text)
    if not match or float(match[1]) * _BYTES[match[2]] < _BYTES["M"]:
        raise typer.BadParameter(f"{text!r} is not a size of 1M or more; write 500M or 2G")
    return round(float(match[1]) * _BYTES[match[2]])


def _parse_choice(text: str, *, choices: Sequence[str], elsewhere: Mapping[str, str]) -> str:
    if text not in choices:
        problem = f"{text!r} is not one of {', '.join(choices)}"
        raise typer.BadParameter(f"{problem}; {elsewhere[text]}" if text in elsewhere else problem)
    return text


def parse_arguments(text: str | None) -> dict[str, Any]:
    """Parse the arguments of a task: a JSON object; none are an empty one."""
    import msgspec  # only then, to start quickly

    try:
        return msgspec.json.decode((text or "{}").encode(errors="surrogateescape"), type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        problem = f"'{plain(text or '')}' is not a JSON object, with names: {error}"
        raise typer.BadParameter(problem, param_hint="--args") from None


def task_data(task: str | None, args: str | None, data: str | None) -> bytes | None:
    """Return the data of an item for a task of a name; None if no task is given."""
    if task is None:
        if args is not None:
            raise typer.BadParameter("can only be given with --task", param_hint="--args")
        return None
    if data is not None:
        raise typer.BadParameter("cannot be combined with DATA", param_hint="--task")
    import msgspec  # only then, to start quickly

    from leasequeue.tasks.wire import data_of

    parse_arguments(args)  # a worker reads no others
    # The texts of numbers stay: as a float, one of many digits would be another number.
    arguments = msgspec.json.format((args or "{}").encode(errors="surrogateescape"), indent=-1)
    return data_of(task, arguments, None)


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


def time_option(help: str) -> Any:  # noqa: A002 - as in `typer.Option`
    """Return an option whose value is a time with a zone."""
    return typer.Option(parser=_parse_time, metavar="TIME", help=help)


def _parse_time(text: str) -> datetime:
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
