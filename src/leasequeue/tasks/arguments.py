"""The arguments of a task: bound, checked and written as JSON by the caller, and read by the worker."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.errors import InvalidArgument, InvalidCall, InvalidTask, PayloadError
from leasequeue.errors.describing import text_of
from leasequeue.item import codec
from leasequeue.queue.lease import Lease
from leasequeue.worker.handler import item_type, signature_of

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Collection, Mapping


class _Provided:
    """The default of a parameter that the worker fills in. Each use of it in its place is an error."""

    def __repr__(self) -> str:
        return "Provided()"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name}: this is Provided(), which a worker replaces; when you call the function yourself, pass "
            "a value"
        )


_PROVIDED = _Provided()


def Provided() -> Any:  # noqa: N802 - it stands where a value or a class would
    """Mark a parameter of a task that the worker fills in, by writing this as its default.

    A parameter annotated `Lease` gets the lease, any other one the value of its name from the worker's
    lifespan.

        @tasks.task
        async def send(to: str, *, smtp: Smtp = Provided(), lease: Lease = Provided()) -> None: ...
    """
    return _PROVIDED


class UnknownArguments(Exception):
    """A call has arguments that the task does not have here: a newer program has added it."""


class Arguments:
    """What the function of a task is called with.

    Attributes:
        types: The arguments of a call by name, in the function's order, each with its type.
        provided: The parameters that the worker fills in.
        lease_names: Those of them that take the lease.
    """

    def __init__(self, task: str, function: Callable[..., Any], *, batch: bool) -> None:
        self._task = task
        self._required: list[str] = []
        self._positional: list[str] = []
        self._batch = batch
        self.provided: list[str] = []
        self.lease_names: list[str] = []
        self.types: dict[str, Any] = {}
        for parameter in self._parameters(function):
            if isinstance(parameter.default, _Provided):
                self.provided.append(parameter.name)
                if parameter.annotation is Lease:
                    self.lease_names.append(parameter.name)
            else:
                self.types[parameter.name] = self._type_of(parameter)
                if parameter.default is parameter.empty:
                    self._required.append(parameter.name)
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                    self._positional.append(parameter.name)
        self._names = [*self.types]
        if batch and (len(self.types) != 1 or not self._positional):
            raise InvalidTask(
                task, f"with batch= it takes one argument, a list, and not {', '.join(self.types) or 'none'}"
            )
        # A struct cannot have an attribute of every name, such as `__id`.
        self._fields = {name: f"field_{place}" for place, name in enumerate(self.types)}
        kind = self._struct(self._required)
        self._decode = codec.decoder(kind)
        self._decode_call = codec.decoder(msgspec.defstruct("Call", [("args", kind)]))

    @property
    def required(self) -> tuple[str, ...]:
        """The arguments without a default, in order."""
        return tuple(self._required)

    @property
    def first(self) -> str:
        """The argument that takes the result of the stage before: the first positional one."""
        if not self._positional:
            raise InvalidCall(
                self._task, "it has no positional argument, which would take the result before it"
            )
        return self._positional[0]

    def encode(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        ordered: bool = False,
        filled: Collection[str] = (),
    ) -> bytes:
        """Write the arguments of a call as a JSON object, without those that are left out.

        Args:
            args: The positional arguments.
            kwargs: The other ones.
            ordered: Whether equal arguments are to be written alike: dicts and sets have their entries in the
                order of these.
            filled: Those that are not given here: a worker takes them from a flow run.
        """
        bound = self._bind(args, kwargs, filled)
        try:
            raw = codec.encode(bound, ordered=ordered)
        except Exception as error:
            raise InvalidCall(
                self._task, f"the arguments cannot be written as JSON: {text_of(error)}"
            ) from error
        try:
            (self._decode_some if filled else self._decode)(raw)
        except Exception as error:
            raise InvalidCall(self._task, text_of(error)) from error
        return raw

    def decode(self, lease: Lease) -> dict[str, Any]:
        """Read the arguments of an item: a value for each name that the call gave, or a flow run gives.

        Raises:
            UnknownArguments: If the function does not have one of them.
            PayloadError: If they do not fit the function in another way.
        """
        try:
            if inputs := lease.inputs:
                arguments = self._decode(_with_inputs(lease.data, inputs))
            else:
                arguments = self._decode_call(lease.data).args
        except Exception as error:
            if unknown := self._unknown(lease):
                raise UnknownArguments(", ".join(unknown)) from error
            raise PayloadError(lease.id, f"call of {self._task}", text_of(error)) from error
        found = {}
        for name, field in self._fields.items():
            value = getattr(arguments, field)
            if value is not msgspec.UNSET:
                found[name] = value
        return found

    def decode_one(self, lease: Lease) -> Any:
        """Read the argument of an item of a batch. Raises as `decode`."""
        return self.decode(lease)[self._names[0]]

    @functools.cached_property
    def _decode_some(self) -> Callable[[bytes], Any]:
        """Reads arguments of which a flow run gives the others."""
        return codec.decoder(self._struct(()))

    def _struct(self, required: Collection[str]) -> type[msgspec.Struct]:
        fields: list[Any] = [
            (field, self.types[name], msgspec.field(name=name))
            if name in required
            else (field, self.types[name], msgspec.field(name=name, default=msgspec.UNSET))
            for name, field in self._fields.items()
        ]
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)

    def _parameters(self, function: Callable[..., Any]) -> list[inspect.Parameter]:
        try:
            found = [*signature_of(function).parameters.values()]
        except InvalidArgument as error:
            raise InvalidTask(self._task, error.allowed) from error
        for one in found:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                advice = "give each a separate parameter, or take a list or a dict"
                raise InvalidTask(self._task, f"it has {one}: arguments are sent by name, so {advice}")
            if one.kind is one.POSITIONAL_ONLY:
                raise InvalidTask(
                    self._task, f"{one.name} is positional-only: arguments are sent by name, so remove the /"
                )
        return found

    def _type_of(self, parameter: inspect.Parameter) -> Any:
        if parameter.annotation is Lease:
            raise InvalidTask(
                self._task, f"the worker fills in {parameter.name}: write {parameter} = Provided()"
            )
        kind = parameter.annotation
        if self._batch:
            try:
                kind = item_type(parameter)
            except InvalidArgument as error:
                raise InvalidTask(
                    self._task, f"with batch= it takes a list, such as {parameter.name}: list[str]"
                ) from error
        if kind is parameter.empty:
            return Any
        try:
            codec.check(kind)
        except codec.UnknownType as error:
            raise InvalidTask(
                self._task,
                f"{parameter.name}: {error}; if the worker fills it in, write {parameter.name} = Provided()",
            ) from error
        return kind

    def _bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], filled: Collection[str]
    ) -> dict[str, Any]:
        positional = [name for name in self._positional if name not in filled]
        if len(args) > len(positional):
            beside = f" beside {', '.join(filled)}" if filled else ""
            raise InvalidCall(
                self._task, f"it takes {len(positional)} positional arguments{beside}, and not {len(args)}"
            )
        bound = dict(zip(positional, args, strict=False))
        for name, value in kwargs.items():
            if name in self.provided:
                raise InvalidCall(self._task, f"the worker fills in {name}: leave it out of the call")
            if name not in self._names:
                takes = ", ".join(self._names) or "none"
                raise InvalidCall(self._task, f"it has no argument {name!r} (it has {takes})")
            if name in filled:
                raise InvalidCall(self._task, f"{name} takes the result before it: leave it out of the call")
            if name in bound:
                raise InvalidCall(self._task, f"there are two values for {name}")
            bound[name] = value
        if missing := [name for name in self._required if name not in bound and name not in filled]:
            are = "s {} are" if len(missing) > 1 else " {} is"
            raise InvalidCall(self._task, f"the argument{are.format(str(missing)[1:-1])} missing")
        return {name: bound[name] for name in self._names if name in bound}

    def _unknown(self, lease: Lease) -> list[str]:
        try:
            given = _ANY_CALL.decode(lease.data).args
        except Exception:  # noqa: BLE001 - the error of the other decoder says why
            return []
        return sorted({*given, *(lease.inputs or ())} - {*self._names, *self.provided})


class _AnyCall(msgspec.Struct):
    args: dict[str, msgspec.Raw]


_ANY_CALL = msgspec.json.Decoder(_AnyCall)


def _with_inputs(data: bytes, inputs: Mapping[str, bytes]) -> bytes:
    given = _ANY_CALL.decode(data).args
    return msgspec.json.encode(given | {name: msgspec.Raw(raw) for name, raw in inputs.items()})
