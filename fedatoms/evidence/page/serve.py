"""The live page: a small server for this machine and whoever knows its address, which follows runs."""

import errno
import hmac
import json
import secrets
import threading
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


class Site(ThreadingHTTPServer):
    """A server that knows its whole address, with the secret in it."""

    address: str


def server(folders: Sequence[Path], port: int, data_dir: Path | None = None) -> Site:
    """Returns a server of the live page on this machine; port 0 takes any that is free.

    Its address has a secret in it, new each time: other users of the machine do not know it.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder. Give folders that hold runs, for example runs.")
    pages: dict[str, Callable[[], Answer]] = {
        "": partial(_front, folders),
        "live.json": lambda: ("application/json", json.dumps(runs_now(folders), allow_nan=False).encode()),
        "report": partial(_report, folders, data_dir, threading.Lock()),
        "report.csv": lambda: ("text/csv", to_csv(find(folders).runs).encode()),
    }
    secret = secrets.token_urlsafe(16)
    try:
        site = Site((LOOPBACK, port), partial(_Handler, pages, secret))
        site.address = f"http://{LOOPBACK}:{site.server_port}/{secret}/"
        return site
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


def page_of(path: str, secret: str) -> str | None:
    """Returns which page a path asks for; nothing if it lacks the secret, which is compared in constant time.

    >>> page_of("/abc/report?x", "abc"), page_of("/abd/report", "abc"), page_of("/", "abc")
    ('report', None, None)
    """
    given, _, page = path.split("?")[0].removeprefix("/").partition("/")
    return page if hmac.compare_digest(given.encode(), secret.encode()) else None


class _Handler(BaseHTTPRequestHandler):
    server_version = "fedatoms"
    sys_version = ""

    def __init__(self, pages: dict[str, Callable[[], Answer]], secret: str, *rest: object) -> None:
        self._pages, self._secret = pages, secret
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answers with a page, or with one line."""
        port = cast(Site, self.server).server_port
        ours = is_ours(self.headers.get("Host", ""), self.headers.get("Origin"), port)
        if not ours or self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"This page is for this machine alone.\n")
        page = page_of(self.path, self._secret)
        if page is None:
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"Use the whole address that was printed.\n")
        make = self._pages.get(page)
        if make is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is the live page, and report.\n")
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
            "Referrer-Policy": "no-referrer",
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


def _report(folders: Sequence[Path], data_dir: Path | None, drawing: threading.Lock) -> Answer:
    with drawing:  # a page takes seconds and memory: one after the other
        found = find(folders)
        check_something(found, folders)
        return "text/html", render(found, folders, "report.csv", data_dir).encode()
