"""What the access rules of the server permit the scripts to do: found out before the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import AccessDenied

if TYPE_CHECKING:
    from leasehold.scripting.catalogue import Script

#: Commands that the scripts do without if they are refused.
OPTIONAL = frozenset({"MSETEX", "PUBLISH", "SPUBLISH"})


class Rights:
    """Which commands the server permits. Until it has answered the probe: all but MSETEX."""

    def __init__(self) -> None:
        #: Whether the server has MSETEX and permits it.
        self.set_many = False
        #: The commands that it refuses and that scripts cannot do without.
        self.refused: frozenset[str] = frozenset()

    def learn(self, set_many: int, *refused: bytes) -> None:
        """Read the reply of the `probe` script."""
        self.set_many = set_many == 1
        self.refused = frozenset(name.decode() for name in refused) - OPTIONAL

    def refusal(self, script: Script) -> AccessDenied | None:
        """Return the error for a script that the server would end between two commands; None: it may run."""
        wrong = sorted(script.commands & self.refused)
        if not wrong:
            return None
        return AccessDenied(
            f"the access rules forbid {', '.join(wrong)}, which {script.name} needs; nothing was applied. "
            "The protocol reference names all commands",
            commands=wrong,
        )
