"""Jobs as programs: their arguments are those of their functions, and `Annotated` holds their help."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import types
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from pyspark.errors import PySparkException

from leasehold.errors import InvalidArgument, LeaseholdError, ServerError
from leasehold.spark.jobs.session import Tell, session
from leasehold.spark.options import URL_VARIABLES, has_password

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession


class Job(Protocol):
    """A function that does a job, and returns what it has to report: what JSON can say."""

    __name__: str

    def __call__(self, spark: SparkSession, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Do it."""


class JobFailed(LeaseholdError):
    """A job could not be done. The text says why; what Spark has to say is the cause.

    Attributes:
        kind: The name of the error of ours that ended it, such as `InvalidArgument`; else empty.
    """

    def __init__(self, reason: str, kind: str = "") -> None:
        self.kind = kind
        super().__init__(reason)


@dataclass(frozen=True)
class Argument:
    """One argument of a job.

    Attributes:
        name: As a parameter of the function.
        help: What is said of it.
        kind: str, int, float or bool.
        default: What it is if it is not given; `inspect.Parameter.empty`: it has to be.
        option: Whether it is given by name.
        choices: What it may be; empty: anything.
        many: Whether it may be given several times.
    """

    name: str
    help: str
    kind: type
    default: Any
    option: bool
    choices: tuple[str, ...] = ()
    many: bool = False


def arguments(job: Job) -> Iterator[Argument]:
    """The arguments of a job, in order; `spark` and what is without help are none."""
    hints = get_type_hints(job, include_extras=True)
    for parameter in inspect.signature(job).parameters.values():
        kind, *help_ = get_args(hints[parameter.name]) if _annotated(hints[parameter.name]) else (None,)
        if not help_:
            continue
        if get_origin(kind) in (types.UnionType, Union):
            kind = next(one for one in get_args(kind) if one is not type(None))
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        many = get_origin(kind) is list
        yield Argument(
            name=parameter.name,
            help=help_[0],
            kind=str if choices or many else kind,
            default=parameter.default,
            option=parameter.kind is inspect.Parameter.KEYWORD_ONLY,
            choices=choices,
            many=many,
        )


def _annotated(hint: Any) -> bool:
    return hasattr(hint, "__metadata__")


def carry_out(job: Job, given: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Do a job in a session of its own, or in the one that spark-submit has made.

    Args:
        job: Which.
        given: Its arguments, by name.
        tell: Is told how far it is.

    Raises:
        JobFailed: If Spark gives up, for a reason of ours or of its own.
        LeaseholdError: What the job raises.
    """
    tell("starting Spark")
    with session(f"leasehold {job.__name__}") as spark:
        try:
            return job(spark, **given, tell=tell)
        except PySparkException as error:
            raise JobFailed(*reason(str(error))) from error


def reason(told: str) -> tuple[str, str]:
    """What Spark says, without traces: the text and the name of our error in it, or its beginning."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    for line in lines:
        name, colon, text = line.partition(": ")
        if colon and name.startswith("leasehold.") and name.replace(".", "").replace("_", "").isalnum():
            return text, name.rpartition(".")[2]
    # What a Python function raised stands at the end of its traceback.
    raised = [line for before, line in pairwise(lines) if _ends_traceback(before, line)]
    return (raised[-1] if raised else lines[0] if lines else "Spark gave up"), ""


def _ends_traceback(before: str, line: str) -> bool:
    name, colon, _ = line.partition(":")
    ends = bool(colon) and name.isidentifier() and name.endswith(("Error", "Exception"))
    return ends and not before.startswith("at ")


def main(job: Job, given: Sequence[str] | None = None) -> None:
    """Run a job as a program, as spark-submit does; prints its report as a line of JSON.

    A URL with a password is refused: the arguments of programs are in Spark's logs and on its web page.

    Raises:
        SystemExit: If it fails: 2 wrong usage, 5 the server, 1 anything else.
    """
    parser = argparse.ArgumentParser(prog=job.__name__, description=inspect.getdoc(job))
    for argument in arguments(job):
        _add(parser, argument)
    try:
        chosen = vars(parser.parse_args(given))
        if has_password(chosen.get("url") or ""):
            # The text itself is not shown.
            allowed = f"one without: Spark logs how it was called. Set {' or '.join(URL_VARIABLES)}"
            raise InvalidArgument("url", "one with a password", allowed)
        report = carry_out(job, chosen, _say)
    except LeaseholdError as error:
        _say(str(error))
        sys.exit(exit_code(error))
    sys.stdout.write(json.dumps(report) + "\n")


def exit_code(error: LeaseholdError) -> int:
    """How a program ends: 2 wrong usage, 5 the server is away or refuses, 1 anything else."""
    kind = error.kind if isinstance(error, JobFailed) else type(error).__name__
    servers = {ServerError.__name__, *(one.__name__ for one in ServerError.__subclasses__())}
    return 5 if kind in servers else 2 if kind == InvalidArgument.__name__ else 1


def _add(parser: argparse.ArgumentParser, argument: Argument) -> None:
    empty = argument.default is inspect.Parameter.empty
    if not argument.option:
        parser.add_argument(argument.name, help=argument.help)
        return
    flag = f"--{argument.name.replace('_', '-')}"
    if argument.kind is bool:
        parser.add_argument(flag, action="store_true", help=argument.help)
        return
    extra: dict[str, Any] = {"action": "append"} if argument.many else {}
    if argument.choices:
        extra["choices"] = argument.choices
    parser.add_argument(
        flag,
        type=argument.kind,
        required=empty,
        default=None if empty else argument.default,
        help=argument.help,
        **extra,
    )


def _say(text: str) -> None:
    sys.stderr.write(f"leasehold: {text}\n")
