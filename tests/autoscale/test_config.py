"""What the file of the autoscaler says, each way to get it wrong, and whether its programs can be started."""

from __future__ import annotations

import contextlib
import copy
import pickle
import subprocess
from typing import TYPE_CHECKING, TypeAlias

import pytest

from leasequeue.autoscale import Config, DeploymentPolicy, JobPolicy, TierPolicy, load_config
from leasequeue.autoscale.config import (
    BACKENDS,
    CallTime,
    CommandSettings,
    FileTable,
    JobTable,
    KubernetesSettings,
    ProcessSettings,
    TierTable,
)
from leasequeue.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


#: The smallest file.
SMALLEST = """
name = "media"

[jobs.resize]

[deployments.resize]
backend = "processes"
processes = { command = ["leasequeue", "worker", "app:worker"] }
"""


Load: TypeAlias = "Callable[[str], Config]"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Give a function that loads a text, without the variables that name a server."""
    monkeypatch.delenv("LEASEQUEUE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)

    def load_text(text: str) -> Config:
        path = tmp_path / "autoscale.toml"
        path.write_text(text)
        return load_config(path)

    return load_text


def problem_in(load: Load, text: str) -> str:
    """Return what is wrong in a file, without its path."""
    with pytest.raises(InvalidConfig) as caught:
        load(text)
    assert "\n" not in str(caught.value)
    return str(caught.value).split("autoscale.toml, ", 1)[-1]


#: A file that has every key.
LARGEST = """
name = "media"
url = "redis://localhost:6379/1"
every = "5s"
clean_every = "1m"
deep_clean_every = "never"
queue_prefix = "prod."

[jobs.resize]
age_target = "90s"
service_time = 30
confidence = 0.95
ignore_abandoned = true
children = { upload = 3.5, mail = "measured" }
url = "redis://other:6379"

[jobs.upload]
queue = "uploads"
service_time = "measured"

[jobs.mail]

[deployments.media]
jobs = ["resize", "upload"]
backend = "kubernetes"
workers_per_unit = 4
spin_up = "1m30s"
steady_share = 0.3
kubernetes = { name = "steady", namespace = "prod", kind = "Deployment" }

[[deployments.media.tiers]]
name = "steady"
min_units = 1
max_units = 20
slow_down = "10m"
slow_up = "500ms"

[[deployments.media.tiers]]
name = "spot"
preemptible = true
workers_per_unit = 8
kubernetes = { name = "media-spot", kind = "StatefulSet", context = "eu", kubeconfig = "/k" }

[deployments.mail]
backend = "command"
max_units = 3

[deployments.mail.command]
request = ["./scale", "{units}"]
ready = ["./ready"]
env = { ZONE = "b" }
directory = "/srv"
timeout = "5s"

[http]
address = "[::1]:8080"
"""


def test_the_smallest_file_has_the_defaults_of_the_page(load: Load, tmp_path: Path) -> None:
    config = load(SMALLEST)
    assert (config.name, config.url, config.http) == ("media", "redis://localhost:6379", None)
    assert (config.every, config.clean_every, config.deep_clean_every) == (10.0, 30.0, 720.0)
    assert config.path == tmp_path / "autoscale.toml"
    job = config.jobs["resize"]
    assert (job.queue, job.url, job.policy) == ("resize", config.url, JobPolicy())
    deployment = config.deployments["resize"]
    assert deployment.policy == DeploymentPolicy(
        name="resize", jobs=("resize",), tiers=(TierPolicy(name="default"),)
    )
    assert deployment.tiers["default"].backend == "processes"
    command = ["leasequeue", "worker", "app:worker"]
    assert deployment.tiers["default"].settings == ProcessSettings(command=command)


@pytest.mark.seed("RWQ-K5")
def test_a_job_has_its_queue_and_its_wishes(load: Load) -> None:
    config = load(LARGEST)
    resize, upload = config.jobs["resize"], config.jobs["upload"]
    assert resize.policy == JobPolicy(
        age_target=90.0,
        service_time=30.0,
        confidence=0.95,
        ignore_abandoned=True,
        children={"upload": 3.5, "mail": None},
    )
    assert (upload.queue, upload.policy.service_time) == ("prod.uploads", None)
    assert {*config.policy.jobs} == {"resize", "upload", "mail"}


@pytest.mark.seed("RWQ-K6")
def test_a_tier_has_its_own_keys_and_those_of_its_deployment(load: Load) -> None:
    config = load(LARGEST)
    steady, spot = config.deployments["media"].tiers.values()
    assert steady.policy == TierPolicy(
        name="steady",
        min_units=1,
        max_units=20,
        workers_per_unit=4,
        spin_up=90.0,
        slow_down=600.0,
        slow_up=0.5,
    )
    assert (spot.policy.workers_per_unit, spot.policy.spin_up, spot.policy.preemptible) == (8, 90.0, True)
    assert config.policy.deployments["media"].steady_share == 0.3
    assert config.policy.deployments["media"].tiers == (steady.policy, spot.policy)


@pytest.mark.seed("RWQ-K7")
def test_servers_names_and_platforms_can_differ(load: Load) -> None:
    config = load(LARGEST)
    assert [(job.queue, job.url) for job in config.jobs.values()] == [
        ("prod.resize", "redis://other:6379"),
        ("prod.uploads", "redis://localhost:6379/1"),
        ("prod.mail", "redis://localhost:6379/1"),
    ]
    steady, spot = config.deployments["media"].tiers.values()
    assert steady.settings == KubernetesSettings(name="steady", namespace="prod", kind="Deployment")
    assert spot.settings == KubernetesSettings(
        name="media-spot", namespace="prod", kind="StatefulSet", context="eu", kubeconfig="/k"
    )
    command = config.deployments["mail"].tiers["default"]
    assert (command.policy.max_units, command.settings) == (
        3,
        CommandSettings(
            request=["./scale", "{units}"],
            ready=["./ready"],
            env={"ZONE": "b"},
            directory="/srv",
            timeout=CallTime(5.0),
        ),
    )
    assert (config.http, config.deep_clean_every) == ("[::1]:8080", None)
    assert config.policy.every == config.every == 5.0


def test_the_environment_names_the_server(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://second")
    assert load(SMALLEST).url == "redis://second"
    monkeypatch.setenv("LEASEQUEUE_URL", "redis://first")
    assert load(SMALLEST).jobs["resize"].url == "redis://first"


def test_a_password_need_not_stand_in_the_file_and_is_not_shown(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "p@ss/w:rd")
    monkeypatch.setenv("ELSEWHERE", "redis://:hidden@there:1")
    text = SMALLEST.replace("[jobs.resize]", '[jobs.resize]\nurl = "${ELSEWHERE}"')
    config = load(
        f'url = "redis://me:${{SECRET}}@${{HOST_NAME}}:6379"\n{text}'.replace("${HOST_NAME}", "host")
    )
    assert config.url == "redis://me:p%40ss%2Fw%3Ard@host:6379"
    assert config.jobs["resize"].url == "redis://:hidden@there:1"
    assert "p%40" not in repr(config)
    assert "hidden" not in repr(config)


def test_names_on_a_cluster_have_a_hash_tag(load: Load) -> None:
    found = problem_in(load, SMALLEST.replace('name = "media"', 'name = "media"\ncluster = true'))
    assert "on a cluster 'media' has no separate slot; expected a name with a hash tag" in found
    text = SMALLEST.replace('name = "media"', 'name = "{media}"\ncluster = true')
    wrong = problem_in(load, text.replace("[jobs.resize]", '[jobs.resize]\nqueue = "resize{}"'))
    assert "on a cluster 'resize{}' has no separate slot; expected a name with a hash tag" in wrong
    sharded = load(text).jobs["resize"]
    assert (sharded.queue, sharded.cluster) == ("resize", True), "it may have shards"
    tagged = load(text.replace("[jobs.resize]", '[jobs.resize]\nqueue = "{resize}"'))
    assert (tagged.cluster, tagged.jobs["resize"].cluster) == (True, True)
    single = load(text.replace("[jobs.resize]", '[jobs.resize]\nurl = "redis://other:6379"'))
    assert (single.cluster, single.jobs["resize"].cluster) == (True, False)


# -------------------------------------------------------------------------- mistakes

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
JOB, DEPLOYMENT = "[jobs.resize]", "[deployments.resize]"
CIRCLE = "[jobs.a]\nchildren = { b = 1 }\n[jobs.b]\nchildren = { a = 2 }"
OF_TWO = "[jobs.b]\n[deployments.b]\nbackend = 'command'\ncommand = { request = ['{units}'] }"
SPACED = "[deployments.'me dia']\nbackend = 'http'\n[deployments.media]\n"
#: A mistake in the smallest file: what is written in place of what, its place, and how its text begins.
MISTAKES = [
    ('name = "media"', 'nam = "media"', "nam: unknown key; did you mean `name`?"),
    ('name = "media"', "", "Object missing required field `name`"),
    (JOB, f"{JOB}\nage_traget = 3", "jobs.resize.age_traget: unknown key; did you mean `age_target`?"),
    (JOB, f"{JOB}\nage_target = 0", "jobs.resize.age_target: expected a duration from 0.001 s to "),
    (JOB, f"{JOB}\nservice_time = 'soon'", 'such as "30s" or "5m", or "measured"'),
    (JOB, f"{JOB}\nqueue = 'a:item'", "jobs.resize.queue: got 'a:item', expected a name without ':item'"),
    (JOB, f"{JOB}\nqueue = 'media'", "jobs.resize: its queue 'media' is that of the autoscaler itself"),
    (JOB, f"{JOB}\nurl = 'http://secret.example'", "jobs.resize.url: this cannot be used; expected a redis:"),
    (JOB, f"{JOB}\nurl = 'redis://${{NO}}'", "jobs.resize.url: the environment variable NO is not set"),
    (JOB, f"{JOB}\nchildren = {{ resise = 1 }}", "jobs.resize.children.resise: there is no job 'resise'"),
    (JOB, f"{JOB}\nchildren = {{ resize = 'x' }}", 'expected a number or "measured"'),
    (JOB, f"{JOB}\nchildren = {{ resize = 1 }}", "the jobs feed each other in a circle: resize → resize"),
    (JOB, f"{JOB}\n[jobs.other]", "jobs.other: no deployment has this job; expected [deployments.other], or"),
    (
        DEPLOYMENT,
        f"{DEPLOYMENT}\njobs = ['resize', 'resize']",
        "jobs[1]: the job 'resize' is in the list twice",
    ),
    (DEPLOYMENT, f"{DEPLOYMENT}\njobs = []", "deployments.resize.jobs: Expected `array` of length >= 1"),
    (
        DEPLOYMENT,
        f"{DEPLOYMENT}\nmin_units = 11",
        "resize.min_units: min_units is 11, max_units is 10; expected",
    ),
    (
        DEPLOYMENT,
        f"{DEPLOYMENT}\nsteady_share = 0.5\npreemptible = true",
        "share: all tiers are pre-emptible",
    ),
    (DEPLOYMENT, f"{DEPLOYMENT}\nkubernetes = {{ name = 'x' }}", "kubernetes: settings of another back end"),
    (DEPLOYMENT, f"[http]\naddress = '8080'\n{DEPLOYMENT}", "http.address: expected an address and a port"),
    ('backend = "processes"', 'backend = "ecs"', "deployments.resize.backend: Invalid enum value 'ecs'"),
    ("processes = {", "processes = { env = { A = 1 },", "processes.env[...]: Expected `str`, got `int`"),
]
#: The same in the file with two tiers.
MISTAKES_OF_TIERS = [
    ('name = "two"\nk', 'name = "one"\nk', "deployments.media.tiers[1].name: two tiers are named 'one'"),
    ('name = "two"\nk', "name = 'a b'\nk", "deployments.media.tiers[1].name: got 'a b'; expected a name"),
    ('{ name = "two" }', '{ name = "one" }', "kubernetes.name: the object 'one' of two is that of media/one"),
    ('kubernetes = { name = "two" }', 'backend = "http"', "media.backend: nothing could ask for the number"),
    ("[jobs.b]", OF_TWO, "deployments.media.jobs: the job 'b' is also that of the deployment 'b'"),
    ("[jobs.b]", "[jobs.b]\nqueue = 'a'", "jobs.b: its queue 'a' is that of the job 'a'; expected another"),
    ("[jobs.a]\n[jobs.b]", CIRCLE, "the jobs feed each other in a circle: "),
    ('["a", "b"]', '["a", "b", "c"]', "deployments.media.jobs[2]: there is no job 'c'; expected one of a, b"),
    ("[deployments.media]\n", SPACED, "deployments.me dia: got 'me dia'; expected a name of 1 to 63 letters"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [*((SMALLEST, *one) for one in MISTAKES), *((TWO_TIERS, *one) for one in MISTAKES_OF_TIERS)],
    ids=[one[1][-50:].replace("\n", " ") for one in [*MISTAKES, *MISTAKES_OF_TIERS]],
)
def test_a_mistake_has_its_place_and_what_is_accepted(
    load: Load, file: str, old: str, new: str, says: str
) -> None:
    assert old in file
    load(file)
    assert says in problem_in(load, file.replace(old, new, 1))


#: Values that no number of this kind can have.
ABSURD = {
    **{f"{JOB}\n{key}": ["0", "nan", "1e300", '"31d"', "true"] for key in ("age_target", "service_time")},
    f"{DEPLOYMENT}\nmin_units": ["-1"],
    f"{DEPLOYMENT}\nmax_units": ["1.5"],
    f"{DEPLOYMENT}\nworkers_per_unit": ["0"],
    f"{DEPLOYMENT}\nsteady_share": ["1.01"],
    f"{DEPLOYMENT}\nspin_up": ['"-1s"'],
    f"{DEPLOYMENT}\npreemptible": ['"yes"'],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, some in ABSURD.items() for value in some])
def test_absurd_values_are_refused(load: Load, key: str, value: str) -> None:
    table, _, name = key.partition("\n")
    problem = problem_in(load, SMALLEST.replace(table, f"{key} = {value}"))
    assert problem.lower().startswith(f"{table[1:-1]}.{name}: expected ")


def test_a_file_that_is_no_toml_says_where(load: Load, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"autoscale\.toml: it is not TOML: Invalid value \(at line 1"):
        load("a =\nb = 1")
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
        assert (str(other), other.place, other.problem) == (str(error), error.place, error.problem)


#: The tables of a file with the keys that each may have, and what any key may be set to by mistake.
TABLES = {
    "": [*FileTable.__struct_fields__, "'a b'", '"ü"', "minScale"],
    "[jobs.resize]": JobTable.__struct_fields__,
    "[http]": ["address"],
    "[deployments.resize]": [*TierTable.__struct_fields__, *BACKENDS, "jobs", "steady_share", "tiers"],
    **{f"[deployments.resize.{name}]": kind.__struct_fields__ for name, kind in BACKENDS.items()},
}
LONG = "x" * 5_000
VALUES = ("0", "-1", "nan", '""', '"x"', "[]", "{}", "true", "[1]", '[""]', "[[]]", "{ a = 1 }", "1979-05-27",
          f'"{LONG}"', f'["{LONG}/x", "{{units}}"]', "1" + "0" * 400, '"a\\u0000"', "[{}]")  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_whatever_a_key_is_set_to_is_accepted_or_has_a_message(tmp_path: Path, table: str) -> None:
    whole = {
        "": {"name": '"media"'},
        "[jobs.resize]": {},
        "[deployments.resize]": {"backend": '"processes"'},
        "[deployments.resize.processes]": {"command": '["leasequeue"]'},
    }
    kind = table.rpartition(".")[2].rstrip("]")
    if kind in BACKENDS:
        whole["[deployments.resize]"] = {"backend": f'"{kind}"'}
    if kind == "command":
        whole[table] = {"request": '["sh", "{units}"]'}
    path = tmp_path / "autoscale.toml"
    for key in TABLES[table]:
        for value in VALUES:
            tables = {**whole, table: {**whole.get(table, {}), key: value}}
            if not table and key in {"jobs", "deployments", "http"}:
                tables = {"": tables[""]}
            path.write_text(
                "\n".join(
                    line
                    for title, said in tables.items()
                    for line in (title, *(f"{name} = {text}" for name, text in said.items()))
                )
            )
            for programs in (False, True):
                with contextlib.suppress(InvalidConfig):
                    load_config(path, programs=programs)


# -------------------------------------------------------------------------- programs

FILE = """
name = "media"
[jobs.resize]
[deployments.resize]
backend = "{backend}"
[[deployments.resize.tiers]]
name = "one"
[deployments.resize.{backend}]
{settings}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a program, and one that is not executable, which is the current one."""
    for name, mode in (("run", 0o755), ("text", 0o644), ("tools/find", 0o755)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(mode)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problem_of(folder: Path, settings: str, backend: str = "processes") -> str:
    """Return the problem of a file when its programs are checked; without that, it has none."""
    path = folder / "autoscale.toml"
    path.write_text(FILE.format(backend=backend, settings=settings))
    load_config(path)
    try:
        load_config(path, programs=True)
    except InvalidConfig as error:
        return f"{error.place.removeprefix('deployments.resize.tiers[0].')}: {error.problem}"
    return ""


@pytest.mark.parametrize(
    "settings",
    [
        'command = ["leasequeue", "worker", "app:worker"]',
        'command = ["sh", "-c", "x"]',
        'command = ["./run"]',
        'command = ["./find"]\ndirectory = "tools"',
        'command = ["find"]\nenv = { PATH = "tools" }',
        'command = ["find"]\nenv = { PATH = "." }\ndirectory = "tools"',
    ],
)
def test_a_program_that_can_be_started_is_no_problem(folder: Path, settings: str) -> None:
    assert problem_of(folder, settings) == ""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('command = ["no-such-program"]', "command: there is no program 'no-such-program' in PATH"),
        ('command = ["sh"]\nenv = { PATH = "tools" }', "command: there is no program 'sh' in PATH"),
        ('command = ["./run"]\ndirectory = "tools"', "command: there is no file './run'"),
        ('command = ["tools/"]', "command: there is no file 'tools/'"),
        ('command = ["./text"]', "command: './text' is not executable"),
        ('command = ["sh"]\ndirectory = "nowhere"', "directory: there is no folder 'nowhere'"),
    ],
)
def test_a_program_that_cannot_be_started_has_its_place(folder: Path, settings: str, says: str) -> None:
    assert problem_of(folder, settings) == f"processes.{says}"
    if "directory" not in settings and "env" not in settings:  # the system agrees
        with pytest.raises(OSError, match=r"No such file|Permission denied|Not a directory"):
            subprocess.run([says.split("'")[1]], check=False, cwd=folder)
