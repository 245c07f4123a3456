"""What statements on Kubernetes need of a store and a Secret, and what the pods of a half amount to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticdl.cluster.kubernetes import datapod
from elasticdl.cluster.kubernetes.datapod import Answered, GivenUp, SecretKey, Waiting
from elasticdl.errors import BadSetting
from elasticdl.query import jobs, placing
from elasticdl.query.jobs import Half, pod_name
from elasticdl.spec.edge import Given
from elasticdl.spec.jobspec import JobKind
from elasticdl.spec.pods import volumes

VOLUMES = volumes(
    "claim_name=c,mount_path=/data;nfs=server:/x,mount_path=/data/nfs;host_path=/h,mount_path=/host;"
    "empty_dir=disk,mount_path=/empty;claim_name=r,mount_path=/read,read_only=true;secret=s,mount_path=/secret"
)


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("", "--store is required if the jobs of statements are on Kubernetes: name a directory on a --volume that all pods"),
        ("s3://bucket/models", "--store: jobs write models and audits to directories, and not to URLs"),
        ("models", "--store: on Kubernetes it is a path of the pods, and begins with '/'"),
        ("/models", "--store: '/models' is on no --volume; name a directory"),
        ("/host/models", "--store: '/host/models' is on the host_path at /host, which is another directory on each node"),
        ("/empty/models", "--store: '/empty/models' is on the empty_dir at /empty, which ends with its pod"),
        ("/secret/models", "--store: '/secret/models' is on the secret at /secret, which can not be written to"),
        ("/read/models", r"--store: '/read/models' is on a volume that can't be written to \(/read\)"),
    ],
)  # fmt: skip
def test_a_store_that_pods_do_not_share_is_refused(store: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        placing.volume_of_store(store, VOLUMES)


def test_a_store_that_they_share() -> None:
    assert placing.volume_of_store("/data/models", VOLUMES).source == "c"
    assert placing.volume_of_store("/data/nfs/models", VOLUMES).source == "server:/x"
    placing.check_claim("/data/models", VOLUMES[0], ["ReadWriteMany", "ReadOnlyMany"])
    placing.check_claim("/data/models", VOLUMES[0], None)
    with pytest.raises(
        BadSetting, match="the claim 'c', which has the access mode ReadWriteOnce, and every pod"
    ):
        placing.check_claim("/data/models", VOLUMES[0], ["ReadWriteOnce"])


def test_who_owns_what_is_made_here() -> None:
    placing.check_owner("/data/models", 1000, 1000)
    placing.check_owner("/data/models", 0, None)
    with pytest.raises(
        BadSetting, match="for its user alone, and that is 0 here and 1000 in the pods; run this as 1000"
    ):
        placing.check_owner("/data/models", 0, 1000)


def test_names_of_secrets() -> None:
    assert placing.secret_key("hr") == SecretKey("hr", "url")
    assert placing.secret_key("hr/POSTGRES_URL") == SecretKey("hr", "POSTGRES_URL")
    for text in ("", "HR", "hr/", "hr/a b", "/url"):
        with pytest.raises(BadSetting, match="--database_secret: expected NAME or NAME/KEY, received"):
            placing.secret_key(text)
    with pytest.raises(BadSetting, match="received a URL") as caught:
        placing.secret_key("postgresql://me:very secret@host/db")
    assert "very" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("my_elasticdl_model", "sql-my-elasticdl-model-3f2a"),
        ("Income.2026", "sql-income-2026-3f2a"),
        ("_", "sql-3f2a"),
        ("m" * 64, f"sql-{'m' * 31}-3f2a"),
    ],
)
def test_jobs_of_models_have_names_that_kubernetes_knows(model: str, name: str) -> None:
    assert pod_name(model, "3f2a") == name
    assert len(name) <= 40


def pod(number: int, phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A pod of a half, the higher the number the newer."""
    return {
        "metadata": {"name": f"half-{number}", "creationTimestamp": f"2026-11-26T15:00:{number:02}Z"},
        "spec": {},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": datapod.CONTAINER, "state": state or {}}],
            **status,
        },
    }


def ended(number: int, **terminated: Any) -> dict[str, Any]:
    return pod(
        number, "Failed", {"terminated": {"exitCode": 1, "message": "some\nKeyError: 3\n", **terminated}}
    )


EVICTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}
UNPLACED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]}


@pytest.mark.parametrize(
    ("found", "amounts"),
    [
        ([], Waiting()),
        ([pod(1, "Running", {"running": {}})], Waiting()),
        ([pod(1, "Pending", **UNPLACED)], Waiting("the pod half-1 waits: 0/2 nodes are available")),
        ([ended(1), pod(2, "Running")], Waiting()),
        ([ended(1)], Waiting("the pod half-1 has ended (KeyError: 3), and another one is made")),
        ([pod(3, "Succeeded"), ended(1), ended(2)], Answered("half-3")),
        ([*(ended(one) for one in range(5))], GivenUp("5 pods have ended without an answer (KeyError: 3)")),
        ([*({**ended(one), "status": {**ended(one)["status"], **EVICTED}} for one in range(9)), pod(9, "Running")], Waiting()),
        (
            [ended(1, exitCode=137, reason="OOMKilled")],
            GivenUp(
                "the pod half-1 needed more memory than it may have; give more with "
                "--master_resource_limit=memory=AMOUNT, or leave the limit out"
            ),
        ),
        (
            [pod(1, "Pending", {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hr" not found'}})],
            GivenUp("the pod half-1 can't start: CreateContainerConfigError: secret \"hr\" not found"),
        ),
    ],
)  # fmt: skip
def test_what_the_pods_of_a_half_amount_to(found: list[dict[str, Any]], amounts: object) -> None:
    assert datapod.decide(found) == amounts


def test_few_rows_have_one_worker_unless_somebody_says_otherwise() -> None:
    assert jobs.workers(100_000) == (
        1,
        "1 worker: 100,000 rows take it seconds, and another one would take as long to start",
    )
    assert jobs.workers(100_001)[0] == 2
    half = Half(JobKind.PREDICT, "m", {}, {}, {}, reasons={"num_workers": "why"})
    assert half.reasons_of({}) == ["why"]
    assert half.reasons_of({"num_workers": Given("3", "--num_workers")}) == []
    assert replace(half, asked={"num_workers": 3}).reasons_of({}) == []
