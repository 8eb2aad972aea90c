"""The page on which a table is labelled, for a browser on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotate.session import Session
from lmbm_torch.extras import naming_extras

with naming_extras():
    import uvicorn
    from fastapi import Body, FastAPI, HTTPException, Request
    from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

HOST = "127.0.0.1"
Flipped = dict[int, tuple[int, int]]


def page(session: Session, port: int) -> FastAPI:
    """The application.

    It answers requests that name this machine as their host alone, and writes only what its own page asks
    for: other sites that are open in the browser can neither read the table nor change it.

    Args:
        session: the table.
        port: at which it is served.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    @app.middleware("http")
    async def refuse_others(request: Request, answer):
        host, origin = request.headers.get("host"), request.headers.get("origin")
        if host not in hosts or (request.method != "GET" and origin != f"http://{host}"):
            return PlainTextResponse("only for the page of this address", 403)
        return await answer(request)

    def rendered(template: str, row: int, flipped: Flipped | None = None, cause: str = "") -> HTMLResponse:
        num_labelled, num_partly = session.progress()
        content = {
            "row": row,
            "num_rows": session.num_rows,
            "cells": [(name, values[row]) for name, values in session.rows.columns.items()],
            "names": session.label_names,
            "known": [None if value != value else int(value) for value in session.known[row].tolist()],
            "found": session.completion(row),
            "flipped": flipped or {},
            "cause": cause,
            "num_labelled": num_labelled,
            "num_partly": num_partly,
            "next_unlabelled": session.next_unlabelled(row),
            "output": session.output,
        }
        return HTMLResponse(environment.get_template(template).render(content))

    def check(row: int) -> None:
        if not 0 <= row < session.num_rows:
            raise HTTPException(404, f"row: expected one of 0 to {session.num_rows - 1}, got {row}")

    # Coroutines run one after the other, so that no two of them write at once.
    @app.get("/")
    async def first() -> RedirectResponse:
        row = session.next_unlabelled(-1)
        return RedirectResponse(f"/rows/{row or 0}")

    @app.get("/rows/{row}")
    async def whole(row: int) -> HTMLResponse:
        check(row)
        return rendered("page.html.jinja", row)

    @app.post("/rows/{row}/marks")
    async def mark(
        row: int, label: Annotated[int, Body()], value: Annotated[Literal[0, 1] | None, Body()]
    ) -> HTMLResponse:
        check(row)
        if not 0 <= label < len(session.label_names):
            raise HTTPException(404, f"label: expected one of {len(session.label_names)}, got {label}")
        try:
            flipped = session.mark(row, label, value)
        except ValueError as refused:
            raise HTTPException(422, str(refused)) from None
        said = "unknown" if value is None else value
        return rendered("row.html.jinja", row, flipped, f"{session.label_names[label]} = {said}")

    @app.post("/rows/{row}/{what}")
    async def write(row: int, what: Literal["accept", "keep"]) -> HTMLResponse:
        check(row)
        try:
            {"accept": session.accept, "keep": session.keep}[what](row)
        except (ValueError, OSError) as refused:
            raise HTTPException(422, str(refused)) from None
        following = session.next_unlabelled(row)
        return rendered("row.html.jinja", row if following is None else following)

    return app


def serve(session: Session, port: int) -> None:
    """Serve the page to this machine until it is interrupted."""
    uvicorn.run(page(session, port), host=HOST, port=port, log_level="warning")
