"""Stands for what the flow talks to; in a real service, these are the clients of the platforms."""

import asyncio
from dataclasses import dataclass, field


class Refused(Exception):
    """A platform does not do it, however often it is asked."""


@dataclass
class Platforms:
    """The members of the guild, Discord, Telegram, GitHub, and a service that mints badges.

    Attributes:
        banned: Users who get no role.
        strangers: Users without an account on GitHub.
        outages: So many messages on Telegram fail before one is sent.
        slow: How long Discord takes for a call, in seconds.
        log: What was done.
    """

    banned: set[int] = field(default_factory=set)
    strangers: set[int] = field(default_factory=set)
    outages: int = 0
    slow: float = 0.2
    log: list[str] = field(default_factory=list)

    async def allows(self, user_id: int, role: int) -> bool:
        """Return whether a user meets the requirements of a role."""
        return role > 0 and user_id not in self.banned

    async def add_member(self, user_id: int, roles: list[int]) -> None:
        """Give a user roles of the guild; those that the user has already stay."""
        self.log.append(f"member {user_id}: roles {roles}")

    async def add_discord_role(self, server: str, user_id: int) -> None:
        """Give a user the role of a Discord server."""
        await asyncio.sleep(self.slow)
        self.log.append(f"discord {server}: user {user_id}")

    async def make_link(self, chat: str, user_id: int) -> str:
        """Return a new link by which a user can join a chat on Telegram once."""
        self.log.append(f"link to {chat}: user {user_id}")
        return f"https://t.me/+{chat}-{user_id}-{len(self.log)}"

    async def send_message(self, user_id: int, text: str) -> None:
        """Send a user a message on Telegram."""
        if self.outages:
            self.outages -= 1
            raise ConnectionError("Telegram does not answer")
        self.log.append(f"telegram: user {user_id}: {text}")

    async def add_to_team(self, team: str, user_id: int) -> None:
        """Invite a user to a team on GitHub."""
        if user_id in self.strangers:
            raise Refused(f"user {user_id} has no account on GitHub")
        self.log.append(f"github {team}: user {user_id}")

    async def order_badge(self, badge: str, user_id: int, *, run: str, stage: str) -> None:
        """Order a badge. The service calls `guild.flow.badge_minted` with run and stage when it is there."""
        self.log.append(f"badge {badge}: user {user_id}: {run}/{stage}")
