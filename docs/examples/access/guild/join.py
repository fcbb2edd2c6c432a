"""Let a user join roles, and show what happened: `python -m guild.join 62 1 2`."""

import asyncio
import sys

from guild.flow import access, tasks


async def join(user_id: int, *roles: int) -> None:
    """Start a run of the flow, wait until it ends, and print its result and its diagram."""
    async with tasks:
        run = await access.start(user_id=user_id, roles=roles)
        print(await run.result(timeout=60))
        print(await access.runs.mermaid(run.id))


if __name__ == "__main__":
    asyncio.run(join(*map(int, sys.argv[1:])))
