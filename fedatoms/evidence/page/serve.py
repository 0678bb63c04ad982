"""The live page: a small server for this machine alone, which follows runs and makes the report when asked."""

import errno
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import cast

from fedatoms.core.lookup import one_line
from fedatoms.evidence.page.assemble import asset, check_something, render
from fedatoms.evidence.page.export import to_csv
from fedatoms.evidence.page.live import runs_now
from fedatoms.evidence.results.finding import find

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")  # a browser that was led here under another name is refused
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; frame-ancestors 'none'"
)
Answer = tuple[str, bytes]  # kind and content


def server(folders: Sequence[Path], port: int, data_dir: Path | None = None) -> ThreadingHTTPServer:
    """Returns a server of the live page on this machine; port 0 takes any that is free."""
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder. Give folders that hold runs, for example runs.")
    pages: dict[str, Callable[[], Answer]] = {
        "/": partial(_front, folders),
        "/live.json": lambda: ("application/json", json.dumps(runs_now(folders), allow_nan=False).encode()),
        "/report": partial(_report, folders, data_dir),
        "/report.csv": lambda: ("text/csv", to_csv(find(folders).runs).encode()),
    }
    try:
        return ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, pages))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "taken by another program" if error.errno == errno.EADDRINUSE else "not for everyone"
        raise ValueError(f"port={port} is {why}. Use another port, or 0 for any that is free.") from None


def is_ours(host: str, origin: str | None, port: int) -> bool:
    """Says whether a request names this server, and comes from its own page or from none.

    >>> is_ours("localhost:8000", None, 8000), is_ours("evil.example:8000", None, 8000)
    (True, False)
    >>> is_ours("127.0.0.1:8000", "http://evil.example", 8000)
    False
    """
    hosts = [f"{name}:{port}" for name in NAMES]
    return host in hosts and (origin is None or origin in [f"http://{each}" for each in hosts])


class _Handler(BaseHTTPRequestHandler):
    server_version = "fedatoms"
    sys_version = ""

    def __init__(self, pages: dict[str, Callable[[], Answer]], *rest: object) -> None:
        self._pages = pages
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answers with a page, or with one line."""
        port = cast(ThreadingHTTPServer, self.server).server_port
        ours = is_ours(self.headers.get("Host", ""), self.headers.get("Origin"), port)
        if not ours or self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"This page is for this machine alone.\n")
        make = self._pages.get(self.path.split("?")[0])
        if make is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is / and /report.\n")
        try:
            status, answer = HTTPStatus.OK, make()
        except (ValueError, OSError) as error:
            status, answer = HTTPStatus.SERVICE_UNAVAILABLE, ("text/plain", f"{one_line(error)}\n".encode())
        with suppress(ConnectionError):  # a reader that has left
            self._send(status, *answer)

    def log_message(self, format: str, *values: object) -> None:
        """Says nothing of each request."""

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _front(folders: Sequence[Path]) -> Answer:
    where = escape(", ".join(folder.as_posix() for folder in folders))
    page = Template(asset("live.html")).substitute(
        style="\n".join(map(asset, ("page.css", "live.css"))), script=asset("live.js"), folders=where
    )
    return "text/html", page.encode()


def _report(folders: Sequence[Path], data_dir: Path | None) -> Answer:
    found = find(folders)
    check_something(found, folders)
    return "text/html", render(found, folders, "report.csv", data_dir).encode()
