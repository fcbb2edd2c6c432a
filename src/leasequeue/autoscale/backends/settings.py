"""The settings of the back ends, as `TierConfig.settings` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from leasequeue.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping

AnySettings = TypeVar("AnySettings", bound=msgspec.Struct)


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of processes."""

    #: The program and its arguments. `{name}` becomes the unit's name; without it, `--name NAME` is added.
    command: list[str]
    #: Variables that are added to the environment.
    env: dict[str, str] = {}
    #: Where it is started; None: where the autoscaler runs.
    directory: str | None = None
    #: What becomes of the units when the autoscaler ends; None: see `ProcessBackend.close`.
    on_exit: Literal["stop", "leave"] | None = None
    #: How long a unit may take to stop (s); then it is reported.
    stop_within: float = 60.0
    #: After how long a unit that has not stopped is killed with SIGKILL (s); None: never.
    kill_after: float | None = None


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of commands. `{units}`, `{deployment}` and `{tier}` are replaced in all arguments."""

    #: What asks for a number of units.
    request: list[str]
    #: What prints how many units work; None: see `CommandBackend.ready`.
    ready: list[str] | None = None
    #: Variables that are added to the environment.
    env: dict[str, str] = {}
    #: Where the programs are started; None: where the autoscaler runs.
    directory: str | None = None
    #: How long a program may take (s).
    timeout: float = 30.0
    #: A pattern of the names of this tier's workers, such as `media-spot-*`; None: those of all tiers.
    workers: str | None = None


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the HTTP answer."""

    #: As in `CommandSettings`.
    workers: str | None = None


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of Kubernetes: the arguments of `KubernetesBackend`."""

    name: str
    namespace: str = "default"
    kind: Literal["Deployment", "StatefulSet"] = "Deployment"
    context: str | None = None
    kubeconfig: str | None = None


def settings_of(
    kind: type[AnySettings], settings: Mapping[str, object], backend: str, target: str
) -> AnySettings:
    """Return the settings of a back end as a value.

    Raises:
        BackendError: If they do not fit. `load_config` says it before, with the place in the file.
    """
    try:
        return msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as error:
        raise BackendError(backend, target, f"its settings cannot be used: {error}") from error
