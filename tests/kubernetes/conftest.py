"""A control plane for tests of the API, and a whole cluster for tests with pods; each is brought up once, when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from elasticdl import cli
from elasticdl.cluster.kubernetes import rbac
from elasticdl.cluster.kubernetes.api import Api

from . import binaries, layers, testbed
from .control_plane import ControlPlane
from .image import build_image, missing_tools
from .jobs import Job, api_of, left
from .namespaces import own_namespace
from .node import Node
from .processes import alone, wait_for
from .rights import masters_may
from .testbed import Testbed


def need(reason: str) -> None:
    """Skip the test if there is a reason to; where everything has to be tested that is a failure."""
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"not to be skipped here: {reason}")
        pytest.skip(reason)


def _needs(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need nodes, the others need only the API, and put them in an order in which few wait for the image."""
    for item in items:
        if _needs(item, "cluster"):
            item.add_marker("pods")
    items.sort(key=_turn)


LONGEST = (
    "test_losses",
    "test_servers",
    "test_jobs",
    "test_tutorials",
    "test_preemption",
    "test_sql",
    "test_page",
)
"""Files with long tests in pods, which come first: of two processes, none waits long for the other's last one."""


def _turn(item: pytest.Item) -> tuple[bool, bool, bool, int]:
    """Return a test's place: nodes come first, to take the image while the API is tested, and before all else those that lose some."""
    is_api, needs_image = item.get_closest_marker("pods") is None, _needs(item, "image")
    long = needs_image and item.path.stem in LONGEST
    at = LONGEST.index(item.path.stem) if long else len(LONGEST)
    return needs_image, is_api, not is_api and item.path.stem != "test_testbed", at


class ImageToBe:
    """The image, which is built and handed to nodes beside the tests that don't need it."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor) -> None:
        """Begin to build it, unless another process of these tests does: `folder` is that of all of them."""
        self._threads = threads
        self._loads: list[Future[None]] = []
        self.lent = layers.prepare()
        """What the image has of others: minutes when that has changed."""
        self._archive = threads.submit(self._build, folder)

    def _build(self, folder: Path) -> Path:
        with alone(folder / "lock"):
            archive = folder / "image.tar"
            if not archive.exists():
                with TemporaryDirectory(dir=folder) as draft:
                    build_image(Path(draft), layers.digests(self.lent)).rename(archive)
            return archive

    def hand_to(self, nodes: Iterable[Node]) -> None:
        """Let nodes take the image as soon as it is built, one after the other: a node's disk is this machine's."""
        self._loads.append(self._threads.submit(self._hand_over, [*nodes]))

    def _hand_over(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.load(self._archive.result())

    def wait(self) -> None:
        """Wait until the nodes have it."""
        for load in self._loads:
            load.result()


@pytest.fixture(scope="package", autouse=True)
def image_to_be(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ImageToBe | None]:
    """The image, on its way; none if no test needs it."""
    if missing_tools() or not any(_needs(item, "image") for item in request.session.items):
        yield None
        return
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "image"
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as threads:
        yield ImageToBe(folder, threads)


@pytest.fixture(scope="package")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without nodes, on loopback."""
    need(binaries.missing())
    plane = ControlPlane(binaries.build() / "cluster", tmp_path_factory.mktemp("cluster"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def api(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A namespace of its own, as the administrator."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    with own_namespace(control_plane) as made:
        yield made


@pytest.fixture(scope="package")
def cluster(image_to_be: ImageToBe | None) -> Iterator[Testbed]:
    """A cluster with two nodes."""
    need(testbed.missing())
    with Testbed(lent=image_to_be and image_to_be.lent) as bed:
        if image_to_be is not None:
            image_to_be.hand_to(bed.nodes)
        yield bed


@pytest.fixture(scope="package")
def image(image_to_be: ImageToBe | None) -> ImageToBe:
    """The image of the model zoo as `elasticdl zoo build` makes it."""
    need(missing_tools())
    assert image_to_be is not None
    return image_to_be


@pytest.fixture(scope="package")
def ready(cluster: Testbed, image: ImageToBe) -> Testbed:
    """The cluster with the image on all nodes, and the rights that jobs need."""
    image.wait()
    api = api_of(cluster)
    for body in rbac.objects("default"):
        api.create(body)
    return cluster


Start = Callable[..., Job]


@pytest.fixture
def start(ready: Testbed, tmp_path: Path) -> Iterator[Start]:
    """Start a job on the cluster, to train unless told otherwise; nothing of the job may be left at the end."""
    jobs: list[Job] = []
    api = api_of(ready)

    def begin(command: str = "train", words: Sequence[str] = (), **settings: object) -> Job:
        jobs.append(Job.submit(ready, api, tmp_path, settings, command, words))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
        print(job.output.read_text())
        # as the command that a test of how jobs end starts, without the price of a process
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(ready.kubeconfig))
            cli.run(["stop", job.name, "--namespace=default"])
    wait_for("the end of all that the job made", lambda: not left(api), 120.0)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A model zoo, with what is not sent along."""
    folder = tmp_path / "zoo"
    (folder / "parts").mkdir(parents=True)
    (folder / "model.py").write_text("def custom_model(): ...\n")
    (folder / "parts" / "loss.py").write_text("def loss(labels, predictions): ...\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    return folder


@pytest.fixture
def rights(control_plane: ControlPlane, api: Api) -> None:
    """What `elasticdl rbac` prints is there."""
    masters_may(control_plane, api)
