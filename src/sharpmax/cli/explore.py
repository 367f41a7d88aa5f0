"""`sharpmax explore`: a page to try rules on rows of logits and to look at the heads of a model."""

from __future__ import annotations

import threading
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Final

import typer
from typer import Argument, Option

from sharpmax.report.explorer import explorer_html, write_explorer

_HOST: Final = "127.0.0.1"


def explore(
    report: Annotated[
        Path | None,
        Argument(
            help="File of a diagnosis, from `sharpmax diagnose --json`.", show_default="no model"
        ),
    ] = None,
    output: Annotated[
        Path | None, Option(help="Write the page to this file instead of opening it.")
    ] = None,
    port: Annotated[
        int, Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")
    ] = 0,
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Open a page on which to shape a row of logits, try policies on it and watch it disperse.

    With a REPORT it also shows the heads of the model: a map, their curves, and, if the diagnosis
    was made with --examples, the tokens that they attend to before and after sharpening.

    The page is served to this machine alone until Ctrl-C. It needs no model and no network.
    """
    diagnosis = None
    if report is not None:
        # Imported when it is needed: it brings PyTorch.
        from sharpmax.models import Diagnosis

        diagnosis = Diagnosis.load(report)
    if output is not None:
        typer.echo(f"Page: {write_explorer(output, diagnosis)}")
        return
    with PageServer(explorer_html(diagnosis), port) as server:
        typer.echo(f"Page: {server.address} (Ctrl-C ends it)")
        if browser:
            # In a thread, because some browsers keep the call until they are closed.
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("")


class PageServer(ThreadingHTTPServer):
    """Serve one page at "/", to this machine alone."""

    daemon_threads = True

    def __init__(self, page: str, port: int = 0) -> None:
        self.page = page.encode("utf-8")
        super().__init__((_HOST, port), _Handler)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{_HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        # Another site must not reach the page through a name of its own for this address.
        own = {f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")}
        if self.headers.get("Host") not in own:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(self.server.page)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about requests."""
