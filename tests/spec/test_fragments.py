"""Fragments of manifests: how they are merged, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.errors import BadSetting
from elasticdl.spec import fragments
from elasticdl.spec.edge import Given, build
from elasticdl.spec.jobspec import JobSpec, from_json

leaves = st.booleans() | st.integers() | st.text(max_size=3)
objects = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner)
    ),
)


@given(objects, objects)
def test_a_difference_makes_the_one_from_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert fragments.merge(before, fragments.difference(before, after)) == after


def test_the_examples_of_the_rfc() -> None:
    assert fragments.merge({"a": "b", "c": {"d": "e", "f": "g"}}, {"a": "z", "c": {"f": None}}) == {
        "a": "z",
        "c": {"d": "e"},
    }
    assert fragments.merge({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}
    assert fragments.merge({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}


def spec(**settings: object) -> JobSpec:
    known: dict[str, object] = {"model_def": "m.model", "training_data": "/data", **settings}
    return build({name: Given(value, f"--{name}") for name, value in known.items()})


def test_yaml_a_mapping_a_file_and_what_is_sent_are_the_same(tmp_path: Path) -> None:
    text = "metadata:\n  labels: {team: vision}\nworker:\n  spec:\n    nodeSelector: {disk: fast}\n"
    (tmp_path / "pods.yaml").write_text(text)
    wanted = {
        "metadata": {"labels": {"team": "vision"}},
        "worker": {"spec": {"nodeSelector": {"disk": "fast"}}},
    }
    for value in (text, wanted, str(tmp_path / "pods.yaml")):
        read = spec(pod_template=value)
        assert read.pod_template == wanted
        assert from_json(read.to_json()) == read
    assert spec(cluster_spec_json='{"pod_spec": {"spec": {"hostNetwork": true}}}').cluster_spec_json == {
        "pod_spec": {"spec": {"hostNetwork": True}}
    }


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pod_template", "{spec: {nodeSelecter: {a: b}}}", "spec.nodeSelecter is unknown, did you mean nodeSelector?"),
        ("pod_template", "{sepc: {}}", "sepc is unknown, did you mean spec?"),
        ("pod_template", "{wroker: {spec: {}}}", "wroker is unknown, did you mean worker?"),
        ("pod_template", "{worker: {spce: {}}}", "worker.spce is unknown, did you mean spec?"),
        ("pod_template", "{spec: {containers: []}}", "spec.containers is ElasticDL's own: --envs, --volume"),
        ("pod_template", "{master: {spec: {volumes: []}}}", "master.spec.volumes is ElasticDL's own: use --volume"),
        ("pod_template", "{metadata: {name: x}}", "metadata.name is ElasticDL's own"),
        ("pod_template", "{metadata: {labels: {elasticdl.org/role: ps}}}", "'elasticdl.org/role' belongs to ElasticDL"),
        ("pod_template", "{spec: []}", "spec: expected a mapping, received []"),
        ("pod_template", "{metadata: {annotations: {day: 2026-01-01}}}", "metadata.annotations.day: datetime.date"),
        ("pod_template", "a: [", "line 1"),
        ("pod_template", "missing.yaml", "--pod_template: 'missing.yaml' can't be read: No such file"),
        ("cluster_spec_json", '{"pod_specs": {}}', "pod_specs is unknown, did you mean pod_spec?"),
        ("cluster_spec_json", '{"service_spec": {"spec": {"ports": []}}}', "service_spec.spec.ports is ElasticDL's own"),
        ("cluster_spec_json", '{"pod_spec": {"kind": "Pod"}}', "pod_spec.kind is unknown"),
        ("populate_env_names", "(", "--populate_env_names: expected a regular expression"),
    ],
)  # fmt: skip
def test_mistakes_are_named(name: str, value: str, said: str) -> None:
    with pytest.raises(BadSetting) as error:
        spec(**{name: value})
    assert said in str(error.value)
    assert f"--{name}" in str(error.value)


def test_what_yaml_leaves_empty_removes_nothing() -> None:
    body = {"metadata": {"labels": None}, "spec": None, "worker": {"spec": None}, "master": None}
    assert fragments.pod_fragments(body, "") == {"metadata": {}, "worker": {}}
