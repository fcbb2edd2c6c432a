"""The application: routes of the pages, actions and assets, and what is answered when something is wrong."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse
from starlette.routing import Route

from leasequeue.dashboard.action import Forbidden, answer, notice_of
from leasequeue.dashboard.guard import Guard
from leasequeue.dashboard.pages import ACTIONS, PAGES
from leasequeue.dashboard.rendering import Assets, Renderer
from leasequeue.dashboard.rights import GivesRights, Rights
from leasequeue.dashboard.sampler import OF_ONE_QUEUE, Sampler
from leasequeue.dashboard.sharing import SharedReads
from leasequeue.dashboard.sources import ShownQueues, Source
from leasequeue.dashboard.view import Board, Elsewhere, NotFound, Page, ShowData, View
from leasequeue.errors import InvalidArgument, LeasequeueError, ServerError, ServerRefused
from leasequeue.queue.shards.spreading import IN_PART

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from leasequeue.dashboard.action import Action


def dashboard(
    *sources: Source,
    rights: GivesRights = Rights.read_only,
    show_data: ShowData = False,
    environment: str = "",
) -> Starlette:
    """Return an application that shows queues in the browser, and acts on them for those who may.

        def rights_of(request: Request) -> Rights:
            return Rights.all if is_admin(request) else Rights.read_only

        board = dashboard(tasks, rights=rights_of)
        app.mount("/queues", board)

    Who may see it is left to the application: wrap it, or have `rights` return `Rights.nothing`. It asks the
    servers only while a page is open, and all viewers share its calls. Starlette starts no lifespan of an
    application that is mounted, so nothing has to be started; connections close with the event loop. To close
    them before, give `board.router.lifespan_context` to the lifespan of FastAPI, as `then=`.

    Args:
        sources: Task queues, queues, and URLs of servers whose queues are looked for.
        rights: What each viewer may do: `Rights`, or a function of the request that returns them.
        show_data: Whether payloads, arguments and results are shown; or a function of the name of a queue and
            of such bytes that returns what is shown of them, None to hide it.
        environment: A word that each page shows, such as `"production"`.

    Raises:
        InvalidArgument: If an argument cannot be used.
    """
    if not (isinstance(rights, Rights) or callable(rights)):
        raise InvalidArgument("rights", rights, "Rights, or a function of a request that returns them")
    if not (isinstance(show_data, bool) or callable(show_data)):
        raise InvalidArgument("show_data", show_data, "True, False, or a function that returns a text")
    queues = ShownQueues(*sources)
    sampler = Sampler(queues)
    board = Board(
        queues=queues,
        sampler=sampler,
        reads=SharedReads(),
        rights=rights,
        show_data=show_data,
        environment=environment,
    )

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await sampler.close()
            await queues.close()

    app = Starlette(
        routes=_routes(board),
        middleware=[Middleware(Guard)],
        lifespan=lifespan,
    )
    app.state.board = board
    return app


def _routes(board: Board) -> list[Route]:
    assets = Assets()
    actions = {one.path.rpartition("/")[2]: one for one in ACTIONS}
    render = Renderer(
        {
            "assets": assets.names,
            "menu": [page for page in PAGES if page.menu],
            "environment": board.environment,
        }
    )

    async def asset(request: Request) -> Response:
        found = assets.answer(request.path_params["file"])
        if found is None:
            raise HTTPException(404)
        return found

    def show(page: Page) -> Callable[[View], Awaitable[Response]]:
        async def respond(view: View) -> Response:
            before = IN_PART.set(True)  # a node may be away: what others have is shown
            try:
                facts = await page.read(view)
            finally:
                IN_PART.reset(before)
            return render.page(
                page.template, view, {"page": page, "notice": notice_of(view, actions), **facts}
            )

        return respond

    def do(action: Action) -> Callable[[View], Awaitable[Response]]:
        async def respond(view: View) -> Response:
            return await answer(action, view, render)

        return respond

    def route(path: str, respond: Callable[[View], Awaitable[Response]], *methods: str) -> Route:
        return Route(path, _endpoint(board, render, respond), methods=[*methods])

    async def missing(_: View) -> Response:
        raise NotFound("there is no such page")

    return [
        *(route(page.path, show(page), "GET") for page in PAGES),
        *(route(action.path, do(action), "GET", "POST") for action in ACTIONS),
        Route("/assets/{file}", asset),
        route("/{rest:path}", missing, "GET"),
    ]


def _endpoint(
    board: Board, render: Renderer, respond: Callable[[View], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page or an action: with the viewer's rights, and a page for each error."""

    async def endpoint(request: Request) -> Response:
        view = View(request=request, board=board, rights=Rights.nothing)
        try:
            view.rights = await _rights_of(board.rights, request)
            return await respond(view)
        except Elsewhere as error:
            return RedirectResponse(str(error), 303)
        except OF_ONE_QUEUE as error:
            title, status, again = "This did not work", 409, False
            problem: LeasequeueError = error
        except ServerError as error:
            away = "The server refuses" if isinstance(error, ServerRefused) else "The server is away"
            title, status, again, problem = away, 503, True, error
        except NotFound as error:
            title, status, again, problem = "Not found", 404, False, error
        except Forbidden as error:
            title, status, again, problem = "Not permitted", 403, False, error
        except InvalidArgument as error:
            title, status, again, problem = "This cannot be done", 400, False, error
        except LeasequeueError as error:
            title, status, again, problem = "This did not work", 409, False, error
        facts = {"title": title, "problem": problem, "again": again and request.method == "GET"}
        found = render.page("problem.html", view, facts, status)
        if again:
            found.headers["retry-after"] = "5"
        return found

    return endpoint


async def _rights_of(given: GivesRights, request: Request) -> Rights:
    """Return the rights of a request."""
    found = given if isinstance(given, Rights) else given(request)
    if inspect.isawaitable(found):
        found = await found
    if not isinstance(found, Rights):
        raise TypeError(f"rights: the function returned {type(found).__name__}, expected Rights")
    if not found.look:
        raise Forbidden("you may not see this dashboard")
    return found
