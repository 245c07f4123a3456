"""Serves a job's figures to Prometheus from a pod: by TLS with the master's certificate, and to those with the token of figures only."""

from __future__ import annotations

import ssl
from pathlib import Path

from aiohttp import web

from elasticdl.page.exposition import CONTENT_TYPE, exposed
from elasticdl.page.httpserver import HttpServer, healthy, problem, shows_token
from elasticdl.page.port import listen_in_pod
from elasticdl.page.recording import Recording


class FiguresServer:
    """The figures of a job, from when it is made until it is closed."""

    def __init__(self, recording: Recording, token: str, address: tuple[str, int], certificate: Path) -> None:
        """Listen in a pod.

        Args:
            recording: what has been seen of the job.
            token: for `/metrics`, as hexadecimal digits.
            address: the pod's, and the port.
            certificate: folder of `tls.crt` and `tls.key`.

        Raises BadSetting if the port can't be had; OSError if the certificate can't be read.
        """
        self._recording = recording
        self._token = token
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        tls.load_cert_chain(certificate / "tls.crt", certificate / "tls.key")
        routes = {"/metrics": self._metrics, "/healthz": healthy}
        self._server = HttpServer(listen_in_pod(*address, "--metrics_port"), routes, self._refused, tls)

    def part(self) -> None:
        """Wait for nobody: how the job ended is for a program that may not ask again."""

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _refused(self, request: web.Request) -> web.Response | None:
        if request.path == "/healthz" or shows_token(request, self._token):
            return None
        return problem(401, "the token of the job's figures is needed; the Secret JOB-metrics has it")

    async def _metrics(self, request: web.Request) -> web.Response:
        return figures(self._recording)


def figures(recording: Recording) -> web.Response:
    """Answer with the figures of now."""
    return web.Response(body=exposed(recording.moment()), headers={"Content-Type": CONTENT_TYPE})
