"""The flow of a user who joins roles of a guild: `leasequeue worker guild.flow:worker` runs its stages."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from guild.platforms import Platforms, Refused
from leasequeue import (
    FanOut,
    HandedOver,
    Next,
    Provided,
    Reject,
    RetryPolicy,
    TaskQueue,
    Worker,
    current_stage,
    fan_out,
    once,
)
from leasequeue.flow import Flow

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
#: The queues of a flow have the same hash tag, so that a cluster has them on one node.
tasks = TaskQueue.from_url(REDIS_URL, "{guild}:access")
REWARDS = "{guild}:rewards"
#: Telegram is asked again after 1 s, 2 s, 4 s …
AGAIN = RetryPolicy(attempts=5, first=1, jitter=False)


@dataclass(frozen=True)
class Reward:
    """What a role is worth on a platform: on a Discord server, in a Telegram chat, in a team on GitHub."""

    platform: str
    server: str


ROLES = {
    1: [Reward("discord", "1985"), Reward("telegram", "friends")],
    2: [Reward("discord", "1985"), Reward("github", "builders"), Reward("badge", "builder")],
}


@tasks.task
async def check_access(
    user_id: int, roles: list[int], *, platforms: Platforms = Provided()
) -> Next[list[int]]:
    """Return the roles whose requirements the user meets; without any, the user is not let in."""
    granted = [role for role in roles if await platforms.allows(user_id, role)]
    return Next(granted, "member" if granted else "refuse")


@tasks.task
async def refuse(user_id: int) -> str:
    """Send the user a message."""
    return f"user {user_id} meets the requirements of none of the roles"


@tasks.task
async def update_membership(user_id: int, granted: list[int], *, platforms: Platforms = Provided()) -> int:
    """Make the user a member, and return how many roles that gives."""
    await platforms.add_member(user_id, granted)
    return len(granted)


@tasks.task
async def plan_rewards(user_id: int, granted: list[int]) -> FanOut[Reward]:
    """Give all rewards of the roles at once; each server is a group, for its limit."""
    rewards = dict.fromkeys(reward for role in granted for reward in ROLES[role])
    calls = [
        GIVES[one.platform].options(group=f"{one.platform}:{one.server}").call(one, user_id)
        for one in rewards
    ]
    return fan_out(calls, join="settled")


@tasks.task(queue=REWARDS, timeout=30)
async def add_discord_role(reward: Reward, user_id: int, *, platforms: Platforms = Provided()) -> Reward:
    """Give a role on a Discord server, which is slow."""
    await platforms.add_discord_role(reward.server, user_id)
    return reward


@tasks.task(queue=REWARDS, retry=AGAIN)
async def invite_to_telegram(reward: Reward, user_id: int, *, platforms: Platforms = Provided()) -> Reward:
    """Send a link to a Telegram chat. A second attempt sends the same link."""
    link = await once("link", platforms.make_link, reward.server, user_id)
    await platforms.send_message(user_id, f"Join us: {link}")
    return reward


@tasks.task(queue=REWARDS)
async def invite_to_github(reward: Reward, user_id: int, *, platforms: Platforms = Provided()) -> Reward:
    """Invite the user to a team on GitHub."""
    try:
        await platforms.add_to_team(reward.server, user_id)
    except Refused as error:
        raise Reject(str(error)) from error  # no second attempt; the others continue
    return reward


@tasks.task(queue=REWARDS)
async def order_badge(reward: Reward, user_id: int, *, platforms: Platforms = Provided()) -> Reward:
    """Hand the badge over to the service that mints it; the flow continues when `badge_minted` is called."""
    stage = current_stage()
    await platforms.order_badge(reward.server, user_id, run=stage.run, stage=stage.path)
    raise HandedOver(timeout=86_400)  # order it again if it is not there in a day


async def badge_minted(run: str, stage: str, badge: str) -> None:
    """Continue with a run, when the service has minted its badge."""
    await tasks.queue.flow_runs.report(run, stage, Reward("badge", badge))


GIVES = {
    "discord": add_discord_role,
    "telegram": invite_to_telegram,
    "github": invite_to_github,
    "badge": order_badge,
}


@tasks.task
async def finish_join(user_id: int, member: int, rewards: list[Reward]) -> str:
    """Send the user a message about what the roles gave."""
    return f"user {user_id}: {member} roles, {', '.join(sorted(one.platform for one in rewards))}"


access = Flow(
    "access",
    tasks,
    attributes={"user_id": int, "roles": list[int]},
    lookup=["user_id", "roles"],
    keep=86_400,
)
check = access.stage(check_access, name="check")
refuse_stage = access.stage(refuse, after=check)
member = access.stage(
    update_membership, name="member", after=check, takes={"granted": check}, concurrency=5, retry=AGAIN
)
rewards = access.stage(plan_rewards, name="rewards", after=member, takes={"granted": check}, priority=1)
finish = access.stage(finish_join, name="finish", after=rewards, priority=2, result=True)


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, object]]:
    """Connect to the platforms, and limit the calls of each server: 10 in 10 s, by all workers together."""
    await limit_servers()
    yield {"platforms": Platforms()}


async def limit_servers() -> None:
    """Allow 10 calls in 10 s on each server."""
    await add_discord_role.queue.limits.set(group="*", rate="10/10s")


worker = Worker(tasks, lifespan=lifespan)
