"""Statements of SQL on a cluster: rows of PostgreSQL are trained and predicted, and only the pods that read and write them have its URL."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from elasticdl.audit import audit
from elasticdl.cluster.kubernetes.api import Api, ApiError, Unreachable
from tests.data.test_postgresql import PASSWORD, Server

from .image import IMAGE
from .jobs import ELASTICDL, SECONDS, api_of, environment, left
from .processes import wait_for
from .testbed import Testbed

dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
ROWS = 400
SCRIPT = """
SELECT number, word, twice FROM numbers
TO TRAIN linear WITH train.epoch=1, train.batch_size=64 LABEL twice INTO twices;
SELECT number, word FROM numbers ORDER BY number DESC
TO PREDICT results.seen WITH predict.into='append' USING twices;
SELECT number, word, twice FROM numbers TO EXPLAIN twices WITH explain.rows=50
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A database with a table of numbers, and one with results from before."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with tempfile.TemporaryDirectory(prefix="elasticdl-") as folder:
        made = Server(Path(folder))
        made.make()
        made.start()
        try:
            made.ask(
                "CREATE TABLE numbers AS SELECT i AS number, 2.0 * i AS twice, 'row ' || i % 3 AS word "
                f"FROM generate_series(1, {ROWS}) AS s(i)"
            )
            made.ask("CREATE TABLE results (number integer, word text, seen real)")
            yield made
        finally:
            made.stop()


@pytest.fixture
def volume(ready: Testbed, server: Server, tmp_path: Path) -> Iterator[Path]:
    """What the claim `models` is on, which all nodes of this machine share, and the Secret with the URL."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    url = f"postgresql://me:{quote(PASSWORD, safe='')}@/postgres?host=/database"
    size = {"storage": "1Gi"}
    shared: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    bodies = [
        ("PersistentVolume", {"capacity": size, "hostPath": {"path": str(folder)}, **shared}),
        ("PersistentVolumeClaim", {"resources": {"requests": size}, "volumeName": "models", **shared}),
    ]
    objects = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "models"}, "spec": spec}
        for kind, spec in bodies
    ]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hr"}, "stringData": {"url": url}}
    for body in (*objects, secret):
        ready.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    yield folder
    for name in ("secret/hr", "persistentvolumeclaim/models", "persistentvolume/models"):
        ready.kubectl("delete", name, "--wait=false")


class Watcher:
    """Sees all pods that there are, and all that they say."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.pods: dict[str, dict[str, Any]] = {}
        self.lines: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._look)]

    def __enter__(self) -> Watcher:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(SECONDS)

    def newest(self) -> dict[str, Any]:
        """Return the pod with the database that was made last."""
        found, _ = self._api.list("Pod", "app.kubernetes.io/component=data")
        return max(found, key=lambda one: str(one["metadata"]["creationTimestamp"]))

    def _look(self) -> None:
        while not self._over.wait(0.2):
            with suppress(ApiError, Unreachable):
                for pod in self._api.list("Pod", "app.kubernetes.io/name=elasticdl")[0]:
                    name = pod["metadata"]["name"]
                    if name not in self.pods and pod["status"]["phase"] not in (None, "Pending"):
                        thread = threading.Thread(
                            target=self._read, args=(name, pod["spec"]["containers"][0]["name"])
                        )
                        self._threads.append(thread)
                        thread.start()
                        self.pods[name] = pod

    def _read(self, pod: str, container: str) -> None:
        with suppress(ApiError, Unreachable):
            self.lines += [line for _, line in self._api.follow_log(pod, container)]


@contextmanager
def locked(server: Server, table: str) -> Iterator[Callable[[], None]]:
    """Keep others from reading and writing a table until the yielded function is called."""
    with closing(dbapi.connect(server.table().url)) as database, database.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield database.rollback


@pytest.mark.timeout(1800)
def test_rows_are_trained_and_predicted_once_and_no_one_else_sees_the_password(
    ready: Testbed, server: Server, volume: Path, tmp_path: Path
) -> None:
    """The pod that reads the rows of the training is killed in its SELECT, the one that writes the results in its transaction."""
    api = api_of(ready)
    words = [
        ELASTICDL, "sql", SCRIPT, "-o", "json", "--database_secret=hr", "--store=/data/models", "--num_workers=1",
        f"--image_name={IMAGE}", "--image_pull_policy=Never", "--worker_resource_request=cpu=50m,memory=600Mi",
        "--master_resource_request=cpu=50m,memory=200Mi",
        f"--volume=claim_name=models,mount_path=/data;host_path={server.socket},mount_path=/database",
    ]  # fmt: skip
    ours = {name: value for name, value in environment(ready).items() if name != "PGPASSWORD"}
    said = tmp_path / "said.txt"
    with (
        Watcher(api) as watcher,
        locked(server, "numbers") as unlock_numbers,
        locked(server, "results") as unlock_results,
        open(said, "w") as file,
    ):
        process = subprocess.Popen(
            words, cwd=tmp_path, env=ours, stdout=subprocess.PIPE, stderr=file, text=True
        )

        def lose(table: str, unlock: Callable[[], None]) -> None:
            """Kill the pod that waits for a table, and let its successor have it."""
            asked = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{table}%'"

            def waits() -> bool:
                assert process.poll() is None, said.read_text()
                return server.ask(asked) == [(1,)]

            wait_for(f"the pod that waits for {table}", waits, 3 * SECONDS)  # maybe after all of a training
            # its process runs a moment before its node says so
            wait_for("its phase", lambda: watcher.newest()["status"]["phase"] == "Running", SECONDS)
            lost = watcher.newest()
            node = next(one for one in ready.nodes if one.name == lost["spec"]["nodeName"])
            node.kill_container(lost)
            name = lost["metadata"]["name"]
            wait_for("its successor", lambda: watcher.newest()["metadata"]["name"] != name, SECONDS)
            unlock()

        try:
            lose("numbers", unlock_numbers)
            lose("results", unlock_results)
            out, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
            print(said.read_text())
        assert process.returncode == 0
        wait_for("the end of all that was made", lambda: not left(api), 120.0)
    (trained,), (written,), explained = map(json.loads, out.splitlines())
    assert (trained["rows"], trained["validation_rows"], written["rows"]) == (ROWS - 40, 40, ROWS)
    assert {row["feature"] for row in explained} == {"number", "word"}
    assert server.ask("SELECT count(*), count(DISTINCT number), count(seen) FROM results") == [(ROWS,) * 3]
    (version,) = (volume / "models/twices").iterdir()
    assert audit(version / "audit").complete
    assert not list((volume / "models/.work").iterdir())

    roles = {pod["spec"]["containers"][0]["name"] for pod in watcher.pods.values()}
    assert roles == {"data", "master", "worker"}
    assert "elasticdl-answer" in "\n".join(watcher.lines)
    kept = b"".join(path.read_bytes() for path in volume.rglob("*") if path.is_file())
    for secret in (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD)):
        for place in (
            json.dumps(list(watcher.pods.values())),
            "\n".join(watcher.lines),
            said.read_text(),
            out,
        ):
            assert secret not in place
        assert secret.encode() not in kept
    with_url = {
        pod["spec"]["containers"][0]["name"]
        for pod in watcher.pods.values()
        if "secretKeyRef" in json.dumps(pod["spec"])
    }
    assert with_url == {"data"}
    assert os.environ["PGPASSWORD"] not in json.dumps(words)
