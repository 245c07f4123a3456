"""Statements whose halves run in pods, from the side of the person who gives them: here is no database, no URL and no store.

For each statement a pod puts rows into files and returns settings; the job of these is an ordinary one; a second pod does
what follows. All objects are removed when their part is done, and at Ctrl-C.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes import datapod
from elasticdl.cluster.kubernetes.api import Api, ApiError, Unreachable, connect
from elasticdl.cluster.kubernetes.datapod import Answered, GivenUp, SecretKey
from elasticdl.cluster.kubernetes.manifests import UID_TO_COME
from elasticdl.errors import BadInput, BadSetting, Interrupted, JobFailed
from elasticdl.job import podjob, podsubmit
from elasticdl.query import halves, jobs, placing
from elasticdl.query.answer import Answer
from elasticdl.query.asked import Act, Asked
from elasticdl.query.jobs import Half
from elasticdl.query.registry import Version
from elasticdl.query.training import JobFacts
from elasticdl.spec.edge import Given
from elasticdl.spec.jobspec import JobSpec

_RUN_BYTES = 4
_TRIES = 3
"""Of a half whose pod has done its work, and whose log is gone before it was read."""
_LOG_SECONDS = 30.0
"""For which a log is asked for."""
_STANDING_SECONDS = 3.0
"""What lasts no longer is on its way, and people need not know of it."""


@dataclass(frozen=True, slots=True)
class DataPods:
    """What pods for halves are made of.

    Attributes:
        spec: settings of jobs that all statements share.
        secret: with the URL of the database.
        store: the directory of models, as pods see it.
    """

    spec: JobSpec
    secret: SecretKey
    store: str

    @classmethod
    def of(cls, spec: JobSpec, secret: str, store: str) -> DataPods:
        """Check what needs no cluster. Raises BadSetting."""
        if not spec.on_kubernetes:
            raise BadSetting(
                "--database_secret is for jobs on Kubernetes: give --image_name; on this machine --database has the URL"
            )
        key = placing.secret_key(secret)
        placing.volume_of_store(store, spec.volume)
        return cls(podsubmit.prepare(spec), key, store)

    def manifests(self) -> str:
        """Return the objects of a half as YAML; the Secret is named in them, and not read."""
        import yaml

        name = f"{self.spec.job_name}-run-begin"
        asked = Asked(Act.BEGIN, "run", self.store, "the statements")
        objects = [
            datapod.job(self.spec, name, self.secret),
            datapod.request(self.spec, name, UID_TO_COME, asked.to_json()),
        ]
        return str(yaml.safe_dump_all(objects, sort_keys=False, width=120))


def run(
    text: str,
    pods: DataPods,
    flags: Mapping[str, Given],
    tell: Callable[[str], object],
    filename: str,
    answered: Callable[[Answer], object],
) -> list[Answer]:
    """Run statements, and return their answers. Raises what `query.run.run` raises."""
    api = connect(pods.spec.namespace)
    check_cluster(api, pods.spec, pods.store)
    if not api.may("get", "Pod", "log"):
        raise BadSetting(
            f"you may not read logs of pods in the namespace {api.namespace}, and the answers of pods with the database are there; ask for "
            "the right to get pods/log"
        )
    seed = flags["seed"].value if "seed" in flags else None
    answers: list[Answer] = []
    count = 1
    while len(answers) < count:
        asked = Asked(
            Act.BEGIN, secrets.token_hex(_RUN_BYTES), pods.store, text, filename, len(answers), seed
        )
        count, answer = _Statement(api, pods, flags, tell, asked).run()
        answers.append(answer)
        answered(answer)
    return answers


def check_cluster(api: Api, spec: JobSpec, store: str) -> None:
    """Check what only the cluster knows of a store, and of this user. Raises BadSetting, Unreachable, ApiError."""
    volume = placing.volume_of_store(store, spec.volume)
    if volume.kind == "claim_name":
        modes: list[str] | None = None
        try:
            modes = list(api.get("PersistentVolumeClaim", volume.source)["spec"].get("accessModes") or [])
        except ApiError as error:
            if error.status == 404:
                raise BadSetting(
                    f"--volume: the namespace {api.namespace} has no claim {volume.source!r}; `kubectl get persistentvolumeclaims "
                    f"--namespace={api.namespace}` shows those it has"
                ) from None
            if error.status != 403:
                raise
        placing.check_claim(store, volume, modes)


class _Statement:
    """One run of one statement."""

    def __init__(
        self,
        api: Api,
        pods: DataPods,
        flags: Mapping[str, Given],
        tell: Callable[[str], object],
        asked: Asked,
    ) -> None:
        self._api, self._pods, self._flags, self._tell, self._asked = api, pods, flags, tell, asked
        self._left = False
        """Whether the first half has left files for which no second one has come."""

    def run(self) -> tuple[int, Answer]:
        """Do it, and return how many statements there are, and the answer to this one. Raises BadInput, JobFailed, Interrupted."""
        try:
            body = self._ask(self._asked)
            count = int(body["count"])
            if "half" not in body:
                return count, self._answer(body["answer"], {})
            self._left = True
            half = Half.from_json(body["half"])
            spec = halves.spec_of(half, self._flags)
            for why in half.reasons_of(self._flags):
                self._tell(f"  {why}")
            summary = jobs.run(spec)
            job = JobFacts.of(spec).to_json()
            # no more than is used: a summary may be larger than an object of the API
            measured = {"metrics": summary.get("metrics") or {}}
            ending = replace(self._asked, act=Act.END, half=half.to_json(), job=job, summary=measured)
            return count, self._answer(self._ask(ending)["answer"], summary)
        except BaseException as error:
            if self._left:
                self._forget(str(error) if isinstance(error, JobFailed) else "")
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted; what was made in the cluster has been removed") from None
            raise

    def _forget(self, why: str) -> None:
        """Let a pod remove the files of the first half, or keep them for a week. Never raises an error of the cluster's."""
        try:
            kept = self._ask(replace(self._asked, act=Act.FORGET, why=why))["kept"]
        except (ApiError, Unreachable, JobFailed, BadInput, KeyboardInterrupt) as error:
            self._tell(f"the rows stay in {self._pods.store} for a month: {error}")
            return
        for directory in kept:
            self._tell(f"the rows are kept in {directory} for a week")

    def _ask(self, asked: Asked) -> dict[str, Any]:
        """Return a pod's answer. Raises what it says was refused, or JobFailed."""
        body = self._answer_of_pod(asked)
        self._left = self._left and asked.act is not Act.END
        for line in body["told"]:
            self._tell(line)
        if "error" not in body:
            return body
        raise BadInput(body["error"]) if body["is_input"] else JobFailed(body["error"])

    def _answer_of_pod(self, asked: Asked) -> dict[str, Any]:
        for again in range(_TRIES):
            name = f"{self._pods.spec.job_name}-{asked.run}-{asked.act}{again or ''}"
            try:
                self._create(name, asked)
                found = self._watched(name)
                if found is not None:
                    return found
            finally:
                with suppress(ApiError, Unreachable):
                    self._api.delete("Job", name)
            self._tell(f"the log of {name} can't be read; another pod does it again")
        raise JobFailed(f"the logs of {_TRIES} pods could not be read, one after the other; try again")

    def _create(self, name: str, asked: Asked) -> None:
        spec = self._pods.spec
        try:
            made = self._api.create(datapod.job(spec, name, self._pods.secret))
            self._api.create(datapod.request(spec, name, str(made["metadata"]["uid"]), asked.to_json()))
            self._api.patch("Job", name, {"spec": {"suspend": False}})
        except ApiError as error:
            raise BadSetting(f"the pod for the rows can't be made: {error}") from None
        except Unreachable as error:
            raise BadSetting(
                f"the pod for the rows can't be made, the cluster stopped answering: {error}"
            ) from None

    def _watched(self, name: str) -> dict[str, Any] | None:
        """Return what a pod of a Job answers, None if its log can't be read. Raises JobFailed."""
        said, stood, since = "", "", time.monotonic()
        while True:
            seen = podjob.patiently(lambda: self._look(name), self._tell)
            match seen:
                case Answered(pod):
                    try:
                        end = time.monotonic() + _LOG_SECONDS
                        return podjob.patiently(lambda: self._read(pod), self._tell, end)
                    except TimeoutError:  # its node was lost just then
                        return None
                case GivenUp(why):
                    raise JobFailed(why)
            if seen.why != stood:
                stood, since = seen.why, time.monotonic()
            if stood not in (said, "") and time.monotonic() - since >= _STANDING_SECONDS:
                said = stood
                self._tell(stood)
            time.sleep(podjob.LOOK_SECONDS)

    def _look(self, name: str) -> datapod.Waiting | Answered | GivenUp:
        try:
            if not self._api.has("Job", name):
                return GivenUp(f"{name} was deleted")
            found, _ = self._api.list("Pod", datapod.selector(name))
        except ApiError as error:
            return GivenUp(f"{name} can't be looked at: {error}")
        return datapod.decide(found)

    def _read(self, pod: str) -> dict[str, Any] | None:
        try:
            for line in self._api.log(pod, datapod.CONTAINER):
                if line.startswith(datapod.ANSWER):
                    return dict(json.loads(line.removeprefix(datapod.ANSWER)))
        except (ApiError, ValueError):
            return None
        return None

    def _answer(self, body: Mapping[str, Any], summary: Mapping[str, Any]) -> Answer:
        import pyarrow as pa

        model = body["model"]
        return Answer(
            body["statement"],
            None if body["columns"] is None else pa.table(body["columns"]),
            None if model is None else Version.of(**{**model, "directory": Path(model["directory"])}),
            summary,
            tuple(body["notes"]),
        )


def check_here(spec: JobSpec, store: str) -> None:
    """Check a store for jobs in pods whose rows are read here, where it has to be as well. Raises BadSetting, Unreachable, ApiError."""
    placing.volume_of_store(store, spec.volume)
    placing.check_owner(store, os.geteuid(), placing.user_of_pods(spec))
    if not Path(store).parent.is_dir():
        raise BadSetting(
            f"--store: {store!r} is on a volume of the pods and not on this machine, which reads the rows; mount it here under the same "
            "path, or give --database_secret: then pods read the rows as well"
        )
    check_cluster(connect(spec.namespace), spec, store)
