"""What a person's own files and environment add to a job's pods, found out once, where the job is submitted.

The master makes pods long after, elsewhere, so what it needs travels with the settings as plain values: variables as `envs`, and what
else the person's Python file changes as the patch that makes the same change. That file is never run in the cluster.
"""

from __future__ import annotations

import importlib.util
import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.attributes import plain, with_attributes
from elasticdl.cluster.kubernetes.manifests import Object
from elasticdl.errors import BadSetting
from elasticdl.spec import fragments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.pods import checked_environment

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def settle(spec: JobSpec, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """Return the settings with what `populate_env_names` and `cluster_spec` stand for in their place.

    Raises BadSetting if the file can't be used, or changes what is ElasticDL's own.
    """
    if spec.populate_env_names:
        wanted = re.compile(spec.populate_env_names)
        copied = {
            name: value
            for name, value in sorted(environment.items())
            if wanted.fullmatch(name) and _NAME.fullmatch(name)
        }
        spec = replace(spec, envs={**copied, **spec.envs}, populate_env_names="")
    if not spec.cluster_spec:
        return spec
    cluster = _load(spec.cluster_spec)
    # What is sent replaces cluster_spec_json, so the patch begins at what is made without it.
    bare = replace(spec, cluster_spec_json={})
    pods, variables = {}, {}
    for role in manifests.roles(spec):
        pod = _changed(spec, cluster, "with_pod", manifests.pod_of(spec, role))
        variables[role.value] = _take_variables(manifests.pod_of(spec, role), pod)
        pods[role.value] = fragments.difference(manifests.pod_of(bare, role), pod)
    service = _changed(spec, cluster, "with_service", _service(spec))
    try:
        checked = fragments.cluster_fragments(
            {"pod_spec": pods, "service_spec": fragments.difference(_service(bare), service)}
        )
        added = _of_all(variables)
    except ValueError as error:
        raise BadSetting(f"--cluster_spec={spec.cluster_spec}: {error}") from None
    return replace(spec, cluster_spec="", cluster_spec_json=checked, envs={**spec.envs, **added})


def _service(spec: JobSpec) -> Object:
    return manifests.service(spec, manifests.UID_TO_COME)


def _changed(spec: JobSpec, cluster: Any, method: str, body: Object) -> Object:
    """Return what the person's method makes of a manifest."""
    where = f"--cluster_spec={spec.cluster_spec}: cluster.{method}"
    change = getattr(cluster, method, lambda body: body)
    try:
        changed = plain(change(with_attributes(body)))
    except Exception as error:
        raise BadSetting(
            f"{where} failed{_line(spec.cluster_spec, error)}: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(changed, dict):
        raise BadSetting(f"{where} has to return the manifest that it got, changed; it returned {changed!r}")
    return changed


def _take_variables(before: Object, pod: Object) -> dict[str, str]:
    """Take the variables that were added to a pod's container out of it and return them; whatever else has changed there is left."""
    try:
        own, container = before["spec"]["containers"][0]["env"], pod["spec"]["containers"][0]
        added = [one for one in container["env"] if one not in own]
        variables = {one["name"]: one["value"] for one in added}
        simple = all(one.keys() == {"name", "value"} and isinstance(one["value"], str) for one in added)
        whole = len(variables) == len(added) and all(one in container["env"] for one in own)
    except (AttributeError, IndexError, KeyError, TypeError):
        return {}
    if not simple or not whole or any(one["name"] in variables for one in own):
        return {}
    container["env"] = own
    return variables


def _of_all(variables: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that were added to the pods of each role. Raises ValueError if they are not the same, or no variables."""
    one, first = next(iter(variables.items()))
    for role, added in variables.items():
        if added != first:
            raise ValueError(
                f"with_pod adds other variables to pods of the role {role} than to those of the role {one}; all pods of a job have the "
                "same, so add the same to each"
            )
    return checked_environment(first.items())


def _load(path: str) -> Any:
    file = Path(path)
    if not file.is_file():
        raise BadSetting(f"--cluster_spec: {path!r} is not a file (looked from {Path.cwd()})")
    found = importlib.util.spec_from_file_location("elasticdl_cluster_spec", file)
    if found is None or found.loader is None:
        raise BadSetting(f"--cluster_spec: {path!r} is no Python file; its name has to end in .py")
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise BadSetting(
            f"--cluster_spec={path} failed{_line(path, error)}: {type(error).__name__}: {error}"
        ) from None
    cluster = getattr(module, "cluster", None)
    if cluster is None or not (hasattr(cluster, "with_pod") or hasattr(cluster, "with_service")):
        raise BadSetting(
            f"--cluster_spec: {path} has to define `cluster`, an object with with_pod(pod) or with_service(service) or both"
        )
    return cluster


def _line(path: str, error: Exception) -> str:
    """Return where in the person's file it happened: ` at line 7`, or nothing."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == Path(path)
    ]
    return f" at line {lines[-1]}" if lines else ""
