"""A server of files for tests: HTTP with ranges and ETags, which may fall silent."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Files(ThreadingHTTPServer):
    """Serves the files of a directory.

    Attributes:
        root: the directory.
        status: what each request is answered with instead, if not 0.
        knows_ranges: whether a part of a file may be asked for.
        together: what requests for heads wait at until so many have come, if it is set.
        answered: requests that were answered, (method, path, range).
        refused: set when one was answered with `status`.
    """

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.root = root
        self.status = 0
        self.knows_ranges = True
        self.together: threading.Barrier | None = None
        self.answered: list[tuple[str, str, str]] = []
        self.refused = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(root: Path) -> Iterator[Files]:
    server = Files(root)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Files
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        if self.server.together is not None:
            self.server.together.wait(60)
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_content: bool) -> None:
        path = self.server.root / self.path.partition("?")[0].lstrip("/")
        if self.server.status:
            self._send(self.server.status, b"", {}, with_content)
            self.server.refused.set()
            return
        self.server.answered.append((self.command, self.path, self.headers.get("Range", "")))
        if path.is_dir():
            links = "".join(
                f'<a href="/{child.relative_to(self.server.root)}{"/" * child.is_dir()}">x</a>'
                for child in path.iterdir()
            )
            self._send(200, links.encode(), {"Content-Type": "text/html"}, with_content)
            return
        if not path.is_file():
            self._send(404, b"", {}, with_content)
            return
        content = path.read_bytes()
        headers = {"ETag": hashlib.sha256(content).hexdigest(), "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range", "")
        if wanted and self.server.knows_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
            self._send(206, content[begin : end + 1], headers, with_content)
        else:
            self._send(200, content, headers, with_content)

    def _send(self, status: int, content: bytes, headers: dict[str, str], with_content: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_content:
            self.wfile.write(content)
