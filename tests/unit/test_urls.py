"""URLs of servers: invalid ones are refused, and no error contains a password."""

from __future__ import annotations

import pickle
import traceback

import pytest
from redis.asyncio import RedisCluster
from redis.asyncio.connection import SSLConnection

from leasequeue import AsyncWorkQueue, InvalidArgument, TaskQueue
from leasequeue.wire.endpoints import client_for
from leasequeue.wire.urls import holds_login

SECRET = "s3cr3tpw"  # noqa: S105 - not a real one
#: Each is wrong, and holds SECRET, whole or in pieces of which the first is "s3c" and the last "tpw".
WITH_A_SECRET = [
    "redis://user:s3cr3tpw@127.0.0.1:notaport/0",
    "redis://user:s3cr3tpw@127.0.0.1:99999/0",
    "redis://user:s3cr3tpw",
    "redis://:s3cr3tpw",
    "redis://user:s3c[r3tpw@127.0.0.1:6379/0",
    "redis://user:s3c/r3tpw@127.0.0.1:6379/0",
    "redis://user:s3c?r3tpw@127.0.0.1:6379/0",
    "redis://user:s3c?r3=tpw@127.0.0.1:6379/0",
    "redis://user:s3c#r3tpw@127.0.0.1:6379/0",
    "redis://user:s3c\u2100tpw@127.0.0.1",
    "redis://user:s3cr3tpw@127.0.0.1:6379,b:notaport",
    "redis://127.0.0.1:6379,user:s3cr3tpw@b,",
    "redis://user:s3c,r3tpw",
    "foo://user:s3cr3tpw@127.0.0.1",
    "user:s3cr3tpw@127.0.0.1",
    "user:s3cr3tpw://127.0.0.1",
    "s3cr3tpw",
    "redis://127.0.0.1?password=s3cr3tpw&foo=bar",
    "redis://127.0.0.1?password=s3c&r3tpw",
    "redis://127.0.0.1?password=s3c&r3tpw=1",
    "redis://127.0.0.1?PASSWORD=s3cr3tpw",
    "redis://127.0.0.1?password=s3cr3tpw&db=x",
    "unix://user:s3cr3tpw@/tmp/socket?foo=bar",
    b"redis://user:s3cr3tpw@127.0.0.1",
]


@pytest.mark.parametrize("cluster", [False, True], ids=["one", "cluster"])
@pytest.mark.parametrize("url", WITH_A_SECRET)
def test_the_error_of_an_invalid_url_contains_no_password(url: str, cluster: bool) -> None:  # noqa: FBT001 - pytest gives it
    with pytest.raises(InvalidArgument, match=r"^url: got .*, expected a redis://") as raised:
        AsyncWorkQueue.from_url(url, "q", cluster=cluster)
    text = "".join(traceback.TracebackException.from_exception(raised.value).format())
    # Without the lines of this file.
    text = "\n".join(line for line in text.splitlines() if "from_url(url" not in line)
    for piece in (SECRET, "s3c", "r3", "tpw"):
        assert piece not in text
        assert piece not in repr(raised.value.__dict__)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None, "what the client library says may hold it"
    assert b"s3c" not in pickle.dumps(raised.value), "as it comes from Spark's workers"


@pytest.mark.parametrize("kind", [AsyncWorkQueue, TaskQueue])
def test_a_name_and_a_url_in_the_wrong_order_are_told_apart_and_no_password_is_shown(
    kind: type[AsyncWorkQueue | TaskQueue],
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        kind.from_url("emails", f"redis://:{SECRET}@127.0.0.1")
    assert str(raised.value) == "url: got '…', expected the URL first, then the queue's name"


@pytest.mark.parametrize("cluster", [False, True], ids=["one", "cluster"])
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("foo=bar", "'foo' is not"),
        ("foo", "'foo' is not"),
        ("db=0&Socket_TimeOut=5", "did you mean 'socket_timeout'"),
        ("retry=3", "'retry' is not"),
        ("parser_class=x", "'parser_class' is not"),
        ("maint_notifications_config=x", "'maint_notifications_config' is not"),
        ("db=many", "values of the right types"),
    ],
)
def test_an_unknown_parameter_is_named(query: str, says: str, cluster: bool) -> None:  # noqa: FBT001 - as above
    with pytest.raises(InvalidArgument, match=says):
        AsyncWorkQueue.from_url(f"redis://127.0.0.1?{query}", "q", cluster=cluster)


def test_tls_parameters_need_a_url_with_tls() -> None:
    with pytest.raises(InvalidArgument, match="'ssl_cert_reqs' is not"):
        AsyncWorkQueue.from_url("redis://127.0.0.1?ssl_cert_reqs=none", "q")


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "REDIS://127.0.0.1",
        "redis://127.0.0.1:6379/3",
        "redis://user:p%40ss@127.0.0.1?socket_timeout=5&client_name=me&protocol=3&max_connections=9",
        "redis://127.0.0.1?username=me&password=secret&db=2&health_check_interval=3",
        "rediss://127.0.0.1?ssl_cert_reqs=none&ssl_ca_certs=/tmp/x&ssl_check_hostname=false",
        "unix:///tmp/socket?db=1",
        "unix://user:secret@/tmp/socket",
    ],
)
def test_valid_urls_are_accepted(url: str) -> None:
    assert AsyncWorkQueue.from_url(url, "q").name == "q"


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("redis://a", [("a", 6379)]),
        ("redis://a:7000,b:7001,c", [("a", 7000), ("b", 7001), ("c", 6379)]),
        ("redis://me:p%2Css,w@a:7000,b/0?socket_timeout=5", [("a", 7000), ("b", 6379)]),
        ("rediss://[::1]:7000,[::2]:7001?ssl_cert_reqs=none", [("::1", 7000), ("::2", 7001)]),
    ],
)
def test_the_url_of_a_cluster_may_name_several_nodes(url: str, nodes: list[tuple[str, int]]) -> None:
    client = client_for(url, "{q}", cluster=True)
    assert isinstance(client, RedisCluster)
    found = client.nodes_manager.startup_nodes.values()
    assert sorted((node.host, node.port) for node in found) == sorted(nodes)
    kwargs = client.connection_kwargs
    if "@" in url:
        assert (kwargs["username"], kwargs["password"], kwargs["socket_timeout"]) == ("me", "p,ss,w", 5)
    assert ("ssl" in url) == (kwargs.get("connection_class") is SSLConnection)


def test_several_nodes_need_a_cluster() -> None:
    with pytest.raises(InvalidArgument, match="one host; only with cluster=True several"):
        AsyncWorkQueue.from_url("redis://a,b", "q")


@pytest.mark.parametrize("hosts", ["a,", ",a", "a,,b", "a,b:x", "a:1,b:99999999", "a, "])
def test_the_hosts_of_a_url_must_be_readable(hosts: str) -> None:
    with pytest.raises(InvalidArgument, match="url: got 'redis://…'"):
        AsyncWorkQueue.from_url(f"redis://{hosts}", "{q}", cluster=True)


@pytest.mark.parametrize(
    ("url", "holds"),
    [
        ("redis://127.0.0.1:6379/0?db=1", False),
        ("unix:///tmp/socket", False),
        ("redis://:x@127.0.0.1", True),
        ("redis://u:x?y@127.0.0.1", True),
        ("redis://127.0.0.1?password=x", True),
        ("redis://127.0.0.1?PASSWORD=x", True),
        ("redis://127.0.0.1?pass%77ord=x", True),
        ("redis://127.0.0.1?db=1&password", True),
        ("rediss://127.0.0.1?ssl_password=x", True),
    ],
)
def test_whether_a_url_holds_a_login(url: str, holds: bool) -> None:  # noqa: FBT001 - as above
    assert holds_login(url) is holds
