"""A client of a running job: `status`, `stop`, `scale` and progress displays speak to its master through this.

It survives nothing: when the master goes, calls raise `MasterAway` and the caller decides whether the job has ended or a new master
is on its way. Answers are believed only with the master's proof that it knows the job's token.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from elasticdl.control.protocol.profiling import Missing, Recorded, Refused
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.control.transport import credentials as proofs
from elasticdl.control.transport.channels import connect, refusal
from elasticdl.control.transport.keys import Key, derive
from elasticdl.errors import BadSetting, MasterAway

_SECONDS = 5.0
_ANSWER_SECONDS = 35.0
"""For what the master writes down first: a little longer than it tries."""


class JobClient:
    """One client's connection to a job's master."""

    def __init__(self, address: str, token: bytes) -> None:
        """Make a client; nothing is connected before the first call."""
        import grpc

        from elasticdl.control.generated import control_pb2 as wire
        from elasticdl.control.generated import control_pb2_grpc as service
        from elasticdl.control.protocol import codec

        self._grpc = grpc
        self._codec = codec
        self._wire = wire
        self._caller = proofs.Caller(derive(token, Key.CLIENT), Key.CLIENT, "client")
        self._channel = connect(address, None)
        self._stub = service.ControlStub(self._channel)

    def __enter__(self) -> JobClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def status(self) -> JobStatus:
        """Return how the job stands. Raises MasterAway."""
        return self._codec.decode_status(self._call("Status", self._wire.StatusRequest(), _SECONDS))

    def stop(self, reason: str) -> str:
        """Ask for an early end; return a sentence once it is recorded. Raises MasterAway, BadSetting if it is refused."""
        return self._answered("Stop", self._wire.StopJob(reason=reason))

    def scale(self, workers: int | None = None, servers: int | None = None) -> str:
        """Ask for another number of workers or parameter servers, None: as many as now; return a sentence once it is recorded.

        Raises MasterAway, BadSetting if it is refused; then both numbers stay.
        """
        return self._answered("Scale", self._wire.ScaleRequest(num_workers=workers, num_ps_pods=servers))

    def watch(self, since: float = 0.0) -> Iterator[JobStatus | JobEvent]:
        """Yield the events later than `since` (seconds since the Unix epoch), then statuses and events as they come.

        Ends when the master has ended in order; raises MasterAway when it is lost.
        """
        for seen in self._stream("Watch", self._wire.WatchRequest(since=since)):
            yield self._codec.decode_seen(seen)

    def profile(self, steps: int) -> Iterator[Recorded | Missing]:
        """Yield the next steps of each worker as they come, and of which workers some are missing.

        Ends when nothing more comes. Raises MasterAway, BadSetting if it is refused.
        """
        for message in self._stream("Profile", self._wire.ProfileRequest(steps=steps)):
            said = self._codec.decode_profiled(message)
            if isinstance(said, Refused):
                raise BadSetting(said.reason)
            yield said

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _open(self, method: str) -> proofs.Credentials:
        """Ask for a challenge, and answer it."""
        try:
            challenge = self._stub.Challenge(
                self._wire.ChallengeRequest(), metadata=self._caller.announcement(), timeout=_SECONDS
            )
        except self._grpc.RpcError as error:
            raise self._away(error) from error
        return self._caller.answer(challenge.text, method)

    def _stream(self, method: str, request: Any) -> Iterator[Any]:
        opening = self._open(method)
        call = getattr(self._stub, method)(request, metadata=opening.metadata())
        try:
            self._believe(opening, call.initial_metadata(), call)
            yield from call
        except self._grpc.RpcError as error:
            raise self._away(error) from error
        finally:
            call.cancel()

    def _answered(self, method: str, request: Any) -> str:
        answer = self._call(method, request, _ANSWER_SECONDS)
        if not answer.accepted:
            raise BadSetting(answer.text)
        return str(answer.text)

    def _call(self, method: str, request: Any, seconds: float) -> Any:
        opening = self._open(method)
        try:
            answer, call = getattr(self._stub, method).with_call(
                request, metadata=opening.metadata(), timeout=seconds
            )
        except self._grpc.RpcError as error:
            raise self._away(error) from error
        self._believe(opening, call.initial_metadata(), None)
        return answer

    def _believe(self, opening: proofs.Credentials, metadata: Any, call: Any) -> None:
        if opening.confirmed_by(dict(metadata or ())):
            return
        ended = threading.Event()
        if call is not None and (not call.add_callback(ended.set) or ended.wait(_SECONDS)):
            raise self._away(call)
        raise MasterAway("what listens at the job's control address does not know the job's token")

    def _away(self, error: Any) -> MasterAway | BadSetting:
        if (refused := refusal(error, self._grpc)) is not None:
            return BadSetting(refused)
        return MasterAway(
            "the job's master does not answer: it is starting again, is stopped or very busy, or the job has just ended; "
            "try again in a moment"
        )
