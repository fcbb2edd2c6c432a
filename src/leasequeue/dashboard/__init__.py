"""Show queues in the browser: a Starlette application, to be mounted in another one or served alone.

    from leasequeue.dashboard import Rights, dashboard

    board = dashboard(tasks, rights=lambda request: Rights.all if is_admin(request) else Rights.read_only)
    app = FastAPI(lifespan=lifespan(tasks, then=board.router.lifespan_context))
    app.mount("/queues", board)

Needs the extra `leasequeue[dashboard]`. CONTRIBUTING.md says how a page or an action is added.
"""

from leasequeue.errors import ExtraMissing

try:
    import jinja2 as _jinja2  # noqa: F401 - to say here what is missing and how to install it
    import starlette as _starlette  # noqa: F401 - as above
except ImportError as error:
    raise ExtraMissing("the dashboard", "dashboard") from error

from leasequeue.dashboard.app import dashboard
from leasequeue.dashboard.rights import Rights

__all__ = ["Rights", "dashboard"]
