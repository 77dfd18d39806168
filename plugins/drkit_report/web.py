"""The web application of `drkit serve`: one page to search runs and judge passages, without scripts.

It answers requests for this machine's own names only, and takes judgements only from forms of its own pages. Searches
run in a thread pool, so that the event loop stays free.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qs, urlencode

from attrs import field, frozen
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from drkit.core.escaping import page_templates
from drkit.errors import DrkitError, storage_failure
from drkit_report.search import Ranking, SearchedRuns

_HOSTS = ["127.0.0.1", "localhost"]
_ROW = re.compile(r"[0-9]{1,12}")
_LONGEST_QUERY = 2000  # characters
_LARGEST_FORM = 64 << 10  # bytes
_PATIENCE = 10.0  # seconds for a form to arrive
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def search_app(runs: SearchedRuns, title: str) -> Starlette:
    """Return the application; title: of its pages."""
    pages = _SearchPages(runs, title)
    return Starlette(
        routes=[Route("/", pages.search), Route("/judge", pages.judge, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)],
    )


@frozen(eq=False)
class _SearchPages:
    """The pages of one start of the server; token: what forms of its own pages carry."""

    runs: SearchedRuns
    title: str
    token: str = field(factory=secrets.token_urlsafe, init=False, repr=False)

    def search(self, request: Request) -> Response:
        """Answer a search; not a coroutine, so Starlette calls it in a thread."""
        asked = _Asked.of(request.query_params, self.runs)
        if not asked.query.strip():
            return self._page(asked)
        try:
            return self._page(asked, rankings=self.runs.search(asked.query, asked.systems))
        except DrkitError as problem:
            return self._page(asked, error=str(problem))

    async def judge(self, request: Request) -> Response:
        """Keep the judgement of a form, and show its query again."""
        if "transfer-encoding" in request.headers:  # with a length too, it is not clear where the form ends
            return self._page(_Asked(), error="the form must have a length")
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _LARGEST_FORM:
            return self._page(_Asked(), error="the form is too large")
        try:
            body = await asyncio.wait_for(request.body(), _PATIENCE)
        except asyncio.TimeoutError:
            return self._page(_Asked(), error="the form did not arrive in time")
        fields = parse_qs(body.decode("utf-8", "replace"))
        return await run_in_threadpool(self._keep, {name: values[0] for name, values in fields.items()})

    def _keep(self, form: Mapping[str, str]) -> Response:
        asked, grade, row = _Asked.of(form, self.runs), form.get("grade", ""), form.get("row", "")
        if not secrets.compare_digest(form.get("token", "").encode(), self.token.encode()):
            return self._page(asked, error="this form is from an earlier start of the server; search again")
        if not asked.query.strip() or grade not in ("0", "1") or not _ROW.fullmatch(row):
            return self._page(asked, error="a judgement needs a query, the row of a passage and a grade of 0 or 1")
        try:
            self.runs.judge(asked.query, int(row), int(grade))
        except DrkitError as problem:
            return self._page(asked, error=f"the judgement was not kept: {problem}")
        except OSError as problem:
            what, remedy = storage_failure(problem) or (str(problem), "check the disk")
            return self._page(asked, error=f"the judgement was not kept: {what}; {remedy} and judge again")
        return RedirectResponse(f"/?{urlencode(asked.fields())}", status_code=303)

    def _page(self, asked: _Asked, rankings: list[Ranking] | None = None, error: str = "") -> Response:
        page = page_templates("drkit_report").get_template("search.html.jinja")
        grades = self.runs.grades(asked.query) if rankings else {}
        text = page.render(
            title=self.title,
            asked=asked,
            systems={key: one.label for key, one in self.runs.systems.items()},
            rankings=rankings or [],
            error=error,
            token=self.token,
            passages=len(self.runs.collection.corpus),
            qrels=str(self.runs.kept.path),
            examples=self.runs.examples,
            relevant=sum(grade > 0 for grade in grades.values()),
            judged=len(grades),
        )
        return HTMLResponse(text, status_code=400 if error else 200, headers=_HEADERS)


@frozen
class _Asked:
    """What a form asks for: a query, and the keys of one or two systems ("": none)."""

    query: str = ""
    system: str = ""
    beside: str = ""

    @classmethod
    def of(cls, form: Mapping[str, str], runs: SearchedRuns) -> _Asked:
        """Read a form; one that names no system gets the best one of each run."""
        query, system, beside = (form.get(name, "")[:_LONGEST_QUERY] for name in ("q", "system", "beside"))
        return cls(query, system, beside) if system else cls(query, *runs.best)

    @property
    def systems(self) -> list[str]:
        return [key for key in (self.system, self.beside) if key]

    def fields(self) -> dict[str, str]:
        """Return the same as fields of a form."""
        return {"q": self.query, "system": self.system, "beside": self.beside}
