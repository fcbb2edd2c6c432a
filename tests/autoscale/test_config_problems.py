"""Each way to get the file of the autoscaler wrong, with its place and its line."""

from __future__ import annotations

import copy
import pickle
import random
from typing import TYPE_CHECKING

import pytest

from leasequeue.autoscale import load_config
from leasequeue.autoscale.config.keys import BACKENDS, FILE_KEYS, JOB_KEYS, OTHER_NAMES, TIER_KEYS
from leasequeue.errors import InvalidConfig
from tests.autoscale.config_files import SMALLEST, load, only_problem, problems

if TYPE_CHECKING:
    from pathlib import Path

    from tests.autoscale.config_files import Load

__all__ = ["load"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "media"', 'nam = "media"', "line 2, nam: unknown key; expected name"),
        (
            "[jobs.resize]",
            "[jobs.resize]\nage_traget = 3",
            ("line 5, jobs.resize.age_traget: unknown key; expected age_target"),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nrunTime = 3",
            ("line 5, jobs.resize.runTime: unknown key; expected service_time"),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nzzz = 3",
            (
                "line 5, jobs.resize.zzz: unknown key; expected one of "
                "queue, url, cluster, age_target, service_time, confidence, ignore_abandoned, children"
            ),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nage_target = 0",
            (
                "line 5, jobs.resize.age_target: got 0; expected "
                'a duration from 1ms to 30d, such as "30s" or "5m"'
            ),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nqueue = 'a:item'",
            (
                "line 5, jobs.resize.queue: got 'a:item', "
                "expected a name without ':item': keys that begin with 'a:item:' belong to the queue 'a'"
            ),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nqueue = 'media'",
            (
                "line 4, jobs.resize: its queue 'media' is that "
                "of the autoscaler itself; expected another queue"
            ),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nurl = 'http://secret.example'",
            ("line 5, jobs.resize.url: this cannot be used; expected a redis://, rediss:// or unix:// URL"),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nurl = 'redis://${NO_SUCH_NAME}'",
            ("line 5, jobs.resize.url: the environment variable NO_SUCH_NAME is not set"),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nchildren = { resise = 1 }",
            ("line 5, jobs.resize.children.resise: there is no job 'resise'; expected resize"),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nchildren = { resize = -1 }",
            (
                "line 5, jobs.resize.children.resize: "
                'got -1; expected a number from 0 to 1,000,000, or "measured"'
            ),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\nchildren = { resize = 1 }",
            ("line 5, jobs.resize.children.resize: the jobs feed each other in a circle: resize → resize"),
        ),
        (
            "[jobs.resize]",
            "[jobs.resize]\n[jobs.other]",
            (
                "line 5, jobs.other: no deployment has this job; "
                "expected [deployments.other], or its name in the jobs of another one"
            ),
        ),
        (
            "[deployments.resize]",
            "[deployments.resize]\njobs = ['resize', 'resize']",
            ("line 7, deployments.resize.jobs[1]: the job 'resize' is in the list twice"),
        ),
        (
            "[deployments.resize]",
            "[deployments.resize]\njobs = []",
            (
                "line 7, deployments.resize.jobs: got "
                '[]; expected a list of names of jobs, such as ["resize", "upload"]'
            ),
        ),
        (
            "[deployments.resize]",
            "[deployments.resize]\nmin_units = 11",
            (
                "line 7, deployments.resize."
                "min_units: min_units is 11, max_units is 10; expected min_units of at most max_units"
            ),
        ),
        (
            "[deployments.resize]",
            "[deployments.resize]\nmax_units = 0",
            (
                "line 6, deployments.resize: all its "
                "tiers have max_units = 0; expected a tier that may have units"
            ),
        ),
        (
            "[deployments.resize]",
            "[deployments.resize]\ntiers = []",
            (
                "line 7, deployments.resize.tiers: got "
                "[]; expected one table or more: [[deployments.NAME.tiers]]"
            ),
        ),
        (
            "[deployments.resize]",
            "[deployments.resize]\nsteady_share = 0.5\npreemptible = true",
            (
                "line 7, "
                "deployments.resize.steady_share: all tiers are pre-emptible; expected a tier with "
                "preemptible = "
                "false"
            ),
        ),
        (
            "[deployments.resize]",
            "[deployments.resize]\nkubernetes = { name = 'x' }",
            (
                "line 7, deployments."
                'resize.kubernetes: settings of another back end than "processes"; expected backend '
                '= "kubernetes"'
            ),
        ),
        (
            'backend = "processes"',
            "",
            (
                "line 6, deployments.resize.backend: missing; expected "
                '"processes" or "kubernetes" or "command" or "http"'
            ),
        ),
        (
            'backend = "processes"',
            'backend = "ecs"',
            (
                'line 7, deployments.resize.backend: got "ecs"; '
                'expected "processes" or "kubernetes" or "command" or "http"'
            ),
        ),
        (
            "processes = {",
            "processes = { env = { A = 1 },",
            (
                "line 8, deployments.resize.processes.env: this "
                'cannot be used; expected a table of texts, such as { LOG_LEVEL = "debug" }'
            ),
        ),
        (
            '["leasequeue", "worker", "app:worker"]',
            '"leasequeue worker"',
            (
                "line 8, deployments.resize."
                'processes.command: got "leasequeue worker"; expected a list of words, such as '
                '["leasequeue", "worker", "app:worker"]'
            ),
        ),
        (
            "[deployments.resize]",
            "[http]\naddress = '8080'\n[deployments.resize]",
            ('line 7, http.address: got "8080"; expected an address and a port, such as "0.0.0.0:8080"'),
        ),
    ],
    ids=lambda value: value[:50].replace("\n", " ") if "line" not in value else "",
)
def test_a_mistake_has_its_line_and_what_is_accepted(load: Load, old: str, new: str, says: str) -> None:
    assert old in SMALLEST
    found = problems(load, SMALLEST.replace(old, new, 1))
    assert says in found, found


def test_a_required_setting_that_is_wrong_is_not_said_to_be_missing(load: Load) -> None:
    text = SMALLEST.replace('["leasequeue", "worker", "app:worker"]', '"leasequeue worker"')
    assert "missing" not in only_problem(load, text)


@pytest.mark.parametrize("key", ["age_target", "service_time"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e300", '"31d"', '"soon"', "true", "[]"])
def test_absurd_times_are_refused(load: Load, key: str, value: str) -> None:
    text = SMALLEST.replace("[jobs.resize]", f"[jobs.resize]\n{key} = {value}")
    assert only_problem(load, text).startswith(f"line 5, jobs.resize.{key}: got ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("min_units", "-1"),
        ("max_units", "1.5"),
        ("max_units", "1e9"),
        ("max_units", "true"),
        ("workers_per_unit", "0"),
        ("steady_share", "nan"),
        ("steady_share", "1.01"),
        ("spin_up", '"-1s"'),
        ("slow_down", "nan"),
        ("slow_up", '"forever"'),
        ("preemptible", '"yes"'),
    ],
)
def test_absurd_limits_are_refused(load: Load, key: str, value: str) -> None:
    text = SMALLEST.replace("[deployments.resize]", f"[deployments.resize]\n{key} = {value}")
    assert only_problem(load, text).startswith(f"line 7, deployments.resize.{key}: got ")


TWO_TIERS = """
name = "media"
[jobs.a]
[jobs.b]
[deployments.media]
jobs = ["a", "b"]
backend = "kubernetes"
[[deployments.media.tiers]]
name = "one"
kubernetes = { name = "one" }
[[deployments.media.tiers]]
name = "two"
kubernetes = { name = "two" }
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            'name = "two"\nk',
            'name = "one"\nk',
            "line 12, deployments.media.tiers[1].name: two tiers are named 'one'; expected another name",
        ),
        (
            'name = "two"\nk',
            "k",
            (
                "line 11, deployments.media.tiers[1].name: missing; expected a name of 1 to 63 "
                "letters, digits, "
                "- and _"
            ),
        ),
        (
            '{ name = "two" }',
            '{ name = "one" }',
            (
                "line 13, deployments.media.tiers[1].kubernetes.name: its object 'one' is that of media/one; "
                "expected an object for each tier"
            ),
        ),
        (
            'kubernetes = { name = "two" }',
            'backend = "http"',
            (
                "line 13, deployments.media.tiers[1].backend: nothing could ask for the number; "
                "expected [http] "
                "address"
            ),
        ),
        (
            'kubernetes = { name = "two" }',
            "min_units = 11",
            (
                "line 13, deployments.media.tiers[1].min_units: min_units is 11, max_units is 10; expected "
                "min_units of at most max_units"
            ),
        ),
        (
            "[jobs.b]",
            "[jobs.b]\n[deployments.b]\nbackend = 'command'\ncommand = { request = ['{units}'] }",
            (
                "line 9, deployments.media.jobs: the job 'b' is also that of the deployment 'b'; "
                "expected one "
                "deployment for each job"
            ),
        ),
        (
            "[jobs.b]",
            "[jobs.b]\nqueue = 'a'",
            "line 4, jobs.b: its queue 'a' is that of the job 'a'; expected another queue",
        ),
        (
            "[jobs.a]\n[jobs.b]",
            "[jobs.a]\nchildren = { b = 1 }\n[jobs.b]\nchildren = { a = 2 }",
            "line 6, jobs.b.children.a: the jobs feed each other in a circle: a → b → a",
        ),
        (
            '["a", "b"]',
            '["a", "b", "c"]',
            "line 6, deployments.media.jobs[2]: there is no job 'c'; expected one of a, b",
        ),
        (
            "[deployments.media]\n",
            "[deployments.'me dia']\nbackend = 'http'\n[deployments.media]\n",
            (
                "line 5, deployments.'me dia': got \"me dia\"; expected a name of 1 to 63 letters, "
                "digits, - and _"
            ),
        ),
    ],
    ids=lambda value: "" if "line" in value else value[:50].replace("\n", " "),
)
def test_what_does_not_go_together_is_refused(load: Load, old: str, new: str, says: str) -> None:
    assert old in TWO_TIERS
    load(TWO_TIERS)
    found = problems(load, TWO_TIERS.replace(old, new))
    assert says in found, found


def test_all_that_is_wrong_is_said_at_once_in_the_order_of_the_lines(load: Load) -> None:
    text = "[jobs.resize]\nqueue = 3\n[http]\nport = 1\n[deployments.resize]\nbackend = 'ecs'\nmax_units = ''"
    with pytest.raises(InvalidConfig) as caught:
        load(text)
    error = caught.value
    assert [(one.line, one.place) for one in (error, *error.others)] == [
        (None, "name"),
        (2, "jobs.resize.queue"),
        (3, "http.address"),
        (4, "http.port"),
        (6, "deployments.resize.backend"),
        (7, "deployments.resize.max_units"),
    ]
    assert len(str(error).splitlines()) == 6


def test_a_file_that_is_no_toml_says_where(load: Load, tmp_path: Path) -> None:
    for text, says in (("a =\nb = 1", "it is not TOML: Invalid value (at line 1"), ("", "name: missing")):
        with pytest.raises(InvalidConfig, match=r"autoscale\.toml") as caught:
            load(text)
        assert says in str(caught.value)
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(InvalidConfig, match="it is not UTF-8"):
        load_config(tmp_path / "latin")
    with pytest.raises(InvalidConfig, match="No such file or directory; expected a file that can be read"):
        load_config(tmp_path / "nothing")


def test_the_error_can_be_sent_between_processes(load: Load) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load("[jobs.resize]\nqueue = 3")
    error = caught.value
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - made here
        assert (str(other), other.line, len(other.others)) == (str(error), error.line, len(error.others))


def test_whatever_stands_in_the_file_is_read_or_refused(load: Load) -> None:
    generator = random.Random(17)
    keys = [*FILE_KEYS, *JOB_KEYS, *TIER_KEYS, *BACKENDS, "tiers", "address", *OTHER_NAMES, "'a b'", '"ü"']
    values = ["0", "-1", "nan", '""', '"x"', "[]", "{}", "true", "[1]", "{ a = 1 }", "1979-05-27", '"5m"']
    tables = ["", "[jobs]", "[jobs.a]", "[jobs.'']", "[deployments.a]", "[[deployments.a.tiers]]"]
    tables += ["[http]", "[deployments.a.kubernetes]", "[[jobs]]"]
    for _ in range(150):
        lines = ["name = 'media'"] if generator.random() < 0.5 else []
        for table in generator.sample(tables, 4):
            lines += [table, *(f"{key} = {generator.choice(values)}" for key in generator.sample(keys, 2))]
        with pytest.raises(InvalidConfig):
            load("\n".join(lines))


def test_a_table_of_a_tier_has_the_line_of_its_key(load: Load) -> None:
    text = TWO_TIERS.replace(
        'kubernetes = { name = "two" }', "[deployments.media.tiers.kubernetes]\nnme = 'two'"
    )
    assert problems(load, text) == [
        "line 14, deployments.media.tiers[1].kubernetes.nme: unknown key; expected name",
    ]
