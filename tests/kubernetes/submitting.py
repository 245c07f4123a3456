"""What people submit: the settings of a job that the tests share."""

from __future__ import annotations

from pathlib import Path

from elasticdl.cluster.kubernetes.api import Api
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec


def spec(api: Api, zoo: Path, **settings: object) -> JobSpec:
    given = {
        "model_zoo": str(zoo),
        "model_def": "model.custom_model",
        "training_data": "/data/train",
        "job_name": "test-job",
        "image_name": "elasticdl:test",
        "namespace": api.namespace,
    }
    return build(from_arguments(given | settings))
