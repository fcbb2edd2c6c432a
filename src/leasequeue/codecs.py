"""Codecs: what payloads look like on the server. They compress, encrypt, or keep what is large elsewhere.

    queue = AsyncWorkQueue.from_url(url, "emails", codec=[Zstd(), AesGcm({"2026-11": key})])

They encode the data of items, results and chunks of streams, after ids were computed, and one after the
other; readers undo that. The scripts know nothing of it. What a codec has written is an envelope: the bytes
FF 6C 71 3A, a name of 1 to 64 letters, digits, dots, hyphens and underscores, `:`, and the body. Without a
name (FF 6C 71 3A 3A), the body is taken as it is: so are written payloads that begin with these four bytes.
All other bytes are what they are, also those that begin with the four and go on otherwise.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from leasequeue.durations import check_bool, check_int
from leasequeue.errors import ExtraMissing, InvalidArgument, UnreadablePayload
from leasequeue.errors.describing import describe
from leasequeue.errors.log import Log
from leasequeue.item import MAX_DATA_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["AesGcm", "Codec", "Zstd", "codec_in"]

#: What an envelope begins with. No text in UTF-8 does, and so no JSON.
MAGIC = b"\xfflq:"
_ENVELOPE = re.compile(rb"\xfflq:([A-Za-z0-9._-]{0,64}):")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: How many envelopes may be in each other.
MAX_DEPTH = 8
#: For how long an item is given back that cannot be read here (s): 10,000 of them cost the server 2 %.
UNREADABLE_SECONDS = 10.0
#: How many different warnings a queue object logs.
MAX_WARNINGS = 100
_KEY_BYTES, _NONCE_BYTES = 32, 12

log = Log("leasequeue.queue")


class Codec(Protocol):
    """What encodes payloads, and decodes them. Write your own with these two methods.

    They are called in the event loop, and from several threads; Spark also pickles the object.
    """

    def encode(self, data: bytes, item_id: str) -> tuple[str, bytes] | None:
        """Return a name, with which the payload is found to be of this codec, and the encoded payload.

        None: the payload is not for this codec, as one that is too small, and stays as it is.
        """
        ...

    def decode(self, name: str, body: bytes, item_id: str) -> bytes | None:
        """Return what was encoded; None: this codec does not write the name. Raise any error if it cannot."""
        ...


#: What queues are given: a codec, several in the order in which they encode, or their place, `module:name`.
Codecs: TypeAlias = "Codec | Sequence[Codec] | str | None"


class Zstd(Codec):
    """Compresses payloads of more than `above` bytes with Zstandard, unless that makes them no smaller.

    Its name in envelopes is `zstd`. It needs `leasequeue[payloads]`.

    Args:
        above: Payloads of so many bytes are left as they are.
        level: 1 (quick) to 22 (small).
    """

    def __init__(self, *, above: int = 1024, level: int = 3) -> None:
        self.above = check_int("above", above, minimum=0, maximum=MAX_DATA_BYTES)
        self.level = check_int("level", level, minimum=1, maximum=22)
        _expect("zstandard")

    def encode(self, data: bytes, item_id: str) -> tuple[str, bytes] | None:  # noqa: ARG002 - see `Codec`
        """See `Codec`."""
        if len(data) <= self.above:
            return None
        import zstandard

        body = zstandard.compress(data, self.level)
        return ("zstd", body) if len(body) < len(data) else None

    def decode(self, name: str, body: bytes, item_id: str) -> bytes | None:  # noqa: ARG002 - see `Codec`
        """See `Codec`."""
        if name != "zstd":
            return None
        import zstandard

        # A few bytes may unpack to more than there is memory. Other writers may not say to how many.
        if zstandard.frame_content_size(body) > MAX_DATA_BYTES:
            raise ValueError(f"it is more than {MAX_DATA_BYTES} bytes")
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=MAX_DATA_BYTES)


class AesGcm(Codec):
    """Encrypts payloads with AES-256-GCM, so that who reads or changes the server cannot read or change them.

        AesGcm({"2026-11": new_key, "2026-05": old_key})

    The first key encrypts, all decrypt. To rotate: add a key at the end on all processes, then put it first,
    and remove the old one when nothing is left that was encrypted with it. A payload is bound to the id of
    its item, and cannot be put into another one; that of a schedule to its name. Ids, names, groups, tags,
    errors, progress and logs are not encrypted. Its name in envelopes is `aes.` and that of the key; the body
    is a random nonce of 12 bytes, and the ciphertext with its tag. It needs `leasequeue[payloads]`.

    Args:
        keys: 32 random bytes by name. Use each for less than 4,000,000,000 payloads.
        only: Whether items that are not encrypted are given back, as unreadable: else who can write to the
            server can add any. Set it when no unencrypted ones are left. Results are not refused.
    """

    def __init__(self, keys: Mapping[str, bytes], *, only: bool = False) -> None:
        for name, key in keys.items():
            if not isinstance(name, str) or not _NAME.fullmatch(f"aes.{name}"):
                raise InvalidArgument("keys", name, "names of 1 to 60 letters, digits, dots, hyphens and _")
            if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
                # The text must not show it.
                raise InvalidArgument("keys", name, f"{_KEY_BYTES} random bytes, os.urandom({_KEY_BYTES})")
        if not keys:
            raise InvalidArgument("keys", keys, "one key or more, by name")
        self._keys = dict(keys)
        self.only = check_bool("only", only)
        _expect("cryptography")

    def encode(self, data: bytes, item_id: str) -> tuple[str, bytes]:
        """See `Codec`."""
        name, key = next(iter(self._keys.items()))
        nonce = os.urandom(_NONCE_BYTES)
        return f"aes.{name}", nonce + _aes(key).encrypt(nonce, data, _bound_to(item_id))

    def decode(self, name: str, body: bytes, item_id: str) -> bytes | None:
        """See `Codec`."""
        key = self._keys.get(name.removeprefix("aes.")) if name.startswith("aes.") else None
        if key is None:
            return None
        from cryptography.exceptions import InvalidTag

        # What a schedule adds has its name, and the time.
        for bound in dict.fromkeys((item_id, item_id.rpartition("@")[0])):
            try:
                data: bytes = _aes(key).decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], _bound_to(bound))
            except InvalidTag:
                continue
            return data
        raise ValueError("it was encrypted with another key of this name, for another id, or was changed")


def codec_in(data: bytes) -> str | None:
    """Return the name of the codec that has written a payload as the server has it; None: it is plain."""
    found = _ENVELOPE.match(data)
    return found[1].decode() or None if found else None


class Payloads:
    """Encodes the payloads of a queue, and decodes them.

    Attributes:
        codecs: In the order in which they encode; a queue may have none.
        only: Whether the data of items that is not encrypted is refused.
        place: Where the codecs were imported from, `module:name`; None: the queue object was given objects.
    """

    def __init__(self, queue: str, given: Codecs) -> None:
        self._queue = queue
        self.codecs = codecs_of(given)
        self.place = given if isinstance(given, str) else None
        self.only = any(getattr(one, "only", False) for one in self.codecs)
        #: What was logged.
        self._warned: set[str] = set()

    def encode(self, data: bytes, item_id: str) -> bytes:
        """Return a payload as the server is to have it.

        Raises:
            InvalidArgument: If a codec fails.
        """
        if data.startswith(MAGIC):
            data = MAGIC + b":" + data
        for codec in self.codecs:
            try:
                encoded = codec.encode(data, item_id)
            except Exception as error:
                allowed = f"a payload that {type(codec).__name__} can encode: {describe(error)}"
                raise InvalidArgument("data", item_id, allowed) from error
            if encoded is not None:
                name, body = encoded
                if not _NAME.fullmatch(name):
                    raise InvalidArgument("name", name, "1 to 64 letters, digits, dots, hyphens and _")
                data = b"%b%b:%b" % (MAGIC, name.encode(), body)
        return data

    def leased(self, data: bytes, item_id: str) -> bytes:
        """Return the data of an item as `decode` does; if it is not encrypted and has to be, refuse it."""
        return self.decode(data, item_id, only=self.only)

    def decode(self, data: bytes, item_id: str, *, only: bool = False) -> bytes:
        """Return a payload as it was given; with `only`, if it is encrypted.

        Raises:
            UnreadablePayload: If the codecs of this queue object cannot decode it.
        """
        for _ in range(MAX_DEPTH):
            found = _ENVELOPE.match(data)
            if found is None or not found[1]:
                if only:
                    raise UnreadablePayload(item_id, None, "it is not encrypted, and nothing else is taken")
                return data if found is None else data[found.end() :]
            codec, data = self._opened(found[1].decode(), data[found.end() :], item_id)
            only = only and not getattr(codec, "only", False)
        raise UnreadablePayload(item_id, None, f"more than {MAX_DEPTH} envelopes are in each other")

    def shown(self, data: bytes | None, item_id: bytes) -> bytes | None:
        """Return a payload as it was given; one that cannot be decoded as the server has it."""
        if data is None or not data.startswith(MAGIC):
            return data
        try:
            return self.decode(data, item_id.decode(errors="surrogateescape"))
        except UnreadablePayload:
            return data

    def warn(self, error: UnreadablePayload) -> None:
        """Log that an item cannot be read here, and why: each reason once."""
        why = f"{error.codec} {error.problem}"
        if why not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(why)
            log.warning("%s: %s; such items are released for others, again and again", self._queue, error)

    def _opened(self, name: str, body: bytes, item_id: str) -> tuple[Codec, bytes]:
        for codec in self.codecs:
            try:
                data = codec.decode(name, body, item_id)
            except Exception as error:
                raise UnreadablePayload(item_id, name, describe(error)) from error
            if data is not None:
                return codec, data
        raise UnreadablePayload(item_id, name, "this queue object has no codec for it, or not this key")


def codecs_of(given: Codecs) -> tuple[Codec, ...]:
    """Check codecs and return them; those of a text, `module:name`, are imported."""
    if given is None:
        return ()
    found: Any = given
    if isinstance(given, str):
        module, _, name = given.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            allowed = f"a codec, several, or where to import them from, `module:name`: {describe(error)}"
            raise InvalidArgument("codec", given, allowed) from error
    several = tuple(found) if isinstance(found, (list, tuple)) else (found,)
    for one in several:
        if not (callable(getattr(one, "encode", None)) and callable(getattr(one, "decode", None))):
            raise InvalidArgument("codec", one, "an object with `encode` and `decode`: see `Codec`")
    return several


def _bound_to(item_id: str) -> bytes:
    return item_id.encode(errors="surrogateescape")


def _aes(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _expect(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ExtraMissing("codecs", "payloads") from error
