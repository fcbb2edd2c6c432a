"""Seals: what tells the messages of scripts from those of clients that may only publish.

A channel belongs to no database and to no key: who may publish on it needs no other right. So a message is
believed if it has a secret that stands in the keys of the queue, or a seal made with one; or it says only
where to look. Who can read these keys can still make messages.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time

from leasequeue.errors.log import Log

#: The length of a seal: a SHA-1 in hexadecimal digits.
SEAL_BYTES = 40
#: How often to log that messages were dropped (s).
LOG_SECONDS = 60.0

log = Log("leasequeue.queue")


def unsealed(message: bytes, secret: bytes) -> bytes | None:
    """Return the text of a message that a script has sealed with this secret; None: it has not.

    See `lua/lib/push`.
    """
    seal, _, text = message.partition(b" ")
    if len(seal) != SEAL_BYTES:
        return None
    found = hashlib.sha1(text + secret, usedforsecurity=False).hexdigest().encode()
    return text if hmac.compare_digest(seal, found) else None


class Unverified:
    """Counts the messages on the channels of a queue that were dropped, as no script has published them.

    Any thread may use it.
    """

    def __init__(self, queue: str) -> None:
        self.count = 0
        self._queue = queue
        self._lock = threading.Lock()
        self._logged, self._logged_at = 0, -LOG_SECONDS

    def add(self, number: int = 1) -> None:
        """Count messages, and log it, once a minute."""
        with self._lock:
            self.count += number
            if (now := time.monotonic()) < self._logged_at + LOG_SECONDS or self.count == self._logged:
                return
            new, self._logged, self._logged_at = self.count - self._logged, self.count, now
        log.warning(
            "%d messages on the channels of %r were dropped: no script of this queue has published them. "
            "Another client does, or a queue of this name in another database",
            *(new, self._queue),
        )
