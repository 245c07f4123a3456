"""Flags, job files and Python arguments: what becomes of them, and what is said about mistakes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import IO, Any

import pytest

from elasticdl.errors import BadData, BadSetting
from elasticdl.spec import refused
from elasticdl.spec.edge import Given, absolute, build, check_paths, from_arguments, from_file, notes
from elasticdl.spec.grammar import WorkerRange
from elasticdl.spec.jobspec import (
    SETTINGS,
    JitCompile,
    JobKind,
    JobSpec,
    OnNaN,
    Strategy,
    from_json,
    settings_of,
)

LEAST: dict[str, Any] = {"model_def": "mnist.mnist_functional_api.custom_model", "training_data": "data"}
SYNCHRONOUS = {"num_ps_pods": 2, "use_async": False, "grads_to_wait": 4}


def job(**settings: object) -> JobSpec:
    return build(from_arguments(LEAST | settings))


def refusal(**settings: object) -> str:
    with pytest.raises(BadSetting) as caught:
        job(**settings)
    return str(caught.value)


def flag(name: str, text: str) -> JobSpec:
    return build(from_arguments(LEAST) | {name: Given(text, f"--{name}")})


def test_defaults() -> None:
    spec = job()
    assert spec.job_name == "mnist-functional-api"
    assert spec.num_workers == WorkerRange(1, 2)
    assert spec.minibatch_size == 64
    assert spec.shuffle is True
    assert spec.on_nan is OnNaN.FAIL
    assert (spec.heartbeat_seconds, spec.witness_seconds, spec.silence_seconds) == (0.5, 5.0, 5.0)
    assert (spec.stall_seconds, spec.stall_steps, spec.moment_seconds) == (60.0, 10.0, 0.05)
    assert spec.start_seconds == 600.0


def test_the_three_ways_agree(tmp_path: Path) -> None:
    settings = {
        "num_workers": "2:4",
        "minibatch_size": 32,
        "global_batch_size": 128,
        "model_params": "units=3; name='a;b'",
        "shuffle": False,
        "jit_compile": "off",
        "stall_seconds": 90,
    }
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(LEAST | settings))  # JSON is YAML
    by_file = build(from_file(file))
    by_argument = job(**settings)
    by_flag = build({name: Given(str(value), f"--{name}") for name, value in (LEAST | settings).items()})
    assert by_file == by_argument == by_flag
    assert by_flag.num_workers == WorkerRange(2, 4)
    assert by_flag.model_params == {"units": 3, "name": "a;b"}
    assert by_flag.jit_compile is JitCompile.OFF


def test_a_metric_by_which_checkpoints_are_chosen_says_which_way_is_better() -> None:
    least = {"checkpoint_dir": "c", "validation_data": "v"}
    for text, more in (("val_loss", False), ("val_loss:min", False), ("val_accuracy:max", True)):
        spec = job(**least, checkpoint_best=text)
        assert spec.checkpoint_best is not None
        assert spec.checkpoint_best.is_better(2.0, 1.0) == more
        assert spec.checkpoint_best.is_better(1.0, 2.0) != more
        assert from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert job().checkpoint_best is None


def test_yaml_words_and_numbers(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "model_def: a.b\ntraining-data: data\njit_compile: on\nnum_workers: 3\nmodel_params: {units: 3, shape: [2, 3]}\nseed:\n"
    )
    spec = build(from_file(file))
    assert spec.jit_compile is JitCompile.ON
    assert spec.num_workers == WorkerRange(1, 3)
    assert spec.model_params == {"units": 3, "shape": [2, 3]}


def test_json_and_back() -> None:
    spec = job(
        num_workers="1:3",
        model_params={"a": (1, 2), "b": None},
        output="x.keras",
        threads_per_worker="auto",
        on_nan="skip_step",
    )
    assert from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_another_format_is_refused_with_both_numbers() -> None:
    body = job().to_json() | {"format": 7}
    with pytest.raises(BadSetting, match=r"format 7, this version of elasticdl reads format 2"):
        from_json(body)


def test_json_of_another_version_is_refused() -> None:
    body = job().to_json()
    del body["settings"]["seed"]
    with pytest.raises(BadSetting, match="not those of this version"):
        from_json(body)


def test_every_setting_says_what_it_is_for() -> None:
    assert [field.name for field in dataclasses.fields(JobSpec)] == ["kind", *SETTINGS]
    assert set(SETTINGS) == {name for kind in JobKind for name in settings_of(kind)}
    for setting in SETTINGS.values():
        assert setting.what.endswith("."), setting.name
        assert setting.why.endswith("."), setting.name
        if not setting.required:
            assert setting.kind.read(setting.kind.write(setting.default)) == setting.default


def test_no_setting_is_both_known_and_refused() -> None:
    assert not SETTINGS.keys() & {**refused.SETTINGS, **refused.ACCEPTED}.keys()


@pytest.mark.parametrize("name", refused.ACCEPTED)
def test_what_changed_nothing_is_accepted_with_a_note(name: str) -> None:
    given = from_arguments({**LEAST, name: "Never"})
    assert build(given) == job()
    (note,) = notes(given)
    assert note.startswith(f"{name}= is accepted")
    assert notes(from_arguments(LEAST)) == []


def test_another_restart_policy_is_refused() -> None:
    assert "relaunch_on_worker_failure" in refusal(restart_policy="Always")
    assert notes(from_arguments({"restart_policy": "Always"})) == []


@pytest.mark.parametrize(
    ("name", "needs", "meanwhile"),
    [
        ("lr_scaling", "learning rates that follow", "--global_batch_size"),
    ],
)
def test_a_refused_setting_has_a_reason_of_its_own(name: str, needs: str, meanwhile: str) -> None:
    sentence = refusal(**{name: name})
    assert needs in sentence
    assert meanwhile in sentence


@pytest.mark.parametrize(
    ("word", "value"),
    [("y", True), ("t", True), ("Yes", True), ("n", False), ("f", False), ("F", False)],
)
def test_short_words_for_true_and_false(word: str, value: bool) -> None:
    assert job(use_async=word, num_ps_pods=1).use_async is value


@pytest.mark.parametrize("word", ["CRITICAL", "critical", "INFO"])
def test_every_level_is_one_of_python(word: str) -> None:
    level = job(log_level=word).log_level
    assert isinstance(logging.getLevelName(level.value.upper()), int)


@pytest.mark.parametrize("name", refused.SETTINGS)
def test_refused_settings_say_why(name: str) -> None:
    sentence = refusal(**{name: "1"})
    assert sentence.startswith(f"{name}= ")
    assert re.search("which this version does not have|setting|not needed|is now --[a-z]", sentence)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"minibatchsize": 3}, "minibatchsize= is not a setting; did you mean minibatch_size?"),
        ({"zzz": 3}, "zzz= is not a setting"),
        ({"minibatch_size": "x"}, "minibatch_size=: expected a whole number of at least 1, received 'x'"),
        ({"minibatch_size": 0}, "minibatch_size=: expected a whole number of at least 1, received 0"),
        ({"minibatch_size": True}, "minibatch_size=: expected a whole number of at least 1, received True"),
        ({"minibatch_size": 1.5}, "minibatch_size=: expected a whole number of at least 1, received 1.5"),
        ({"stall_seconds": "nan"}, "stall_seconds=: expected a number above 0, received 'nan'"),
        ({"stall_seconds": 10**400}, "stall_seconds=: expected a number above 0, received 1000"),
        ({"start_seconds": 0}, "start_seconds=: expected a number above 0, received 0"),
        ({"moment_seconds": -1}, "moment_seconds=: expected a number of at least 0, received -1"),
        ({"shuffle": "maybe"}, "shuffle=: expected true or false, received 'maybe'"),
        ({"on_nan": "fial"}, "on_nan=: expected fail or skip_step, received 'fial'; did you mean fail?"),
        ({"num_workers": "4:2"}, "the minimum is larger than the maximum"),
        ({"model_params": "a=b"}, "text needs quotes: a='b'"),
        ({"model_params": {"a": object()}}, "is not a Python literal"),
        ({"model_params": {"a-b": 1}}, "'a-b' is no name of a parameter"),
        ({"data_reader_params": {"": None}}, "'' is no name of a parameter"),
        ({"model_def": "model"}, "--model_def: expected MODULE.SYMBOL, such as"),
        ({"model_def": ""}, "--model_def is required"),
        ({"global_batch_size": 100}, "100 is not a multiple of minibatch_size 64; use 64 or 128"),
        ({"global_batch_size": 10}, "10 is not a multiple of minibatch_size 64; use 64"),
        ({"job_name": "a/b"}, "job_name=: expected at most 63 letters"),
        ({"job_name": "-a"}, "job_name=: expected at most 63 letters"),
        (
            {"distribution_strategy": "ParameterServerStrategy"},
            "needs servers; say how many with --num_ps_pods",
        ),
        ({"num_ps_pods": 2, "distribution_strategy": "AllreduceStrategy"}, "has no parameter servers"),
        (
            {"num_ps_pods": 1, "ps_replicas": 2},
            "2 servers are to hold each part of the model, and --num_ps_pods is 1",
        ),
        ({"num_ps_pods": 3, "ps_replicas": 3}, "by 1 server or 2, received 3"),
        ({"num_ps_pods": 2, "num_workers": "2:4"}, "there is no minimum"),
        ({"num_ps_pods": 2, "global_batch_size": 64}, "a step has the records of one minibatch"),
        ({"grads_to_wait": 3}, "--grads_to_wait: is for parameter servers, of which there are none"),
        ({"sync_version_tolerance": 1}, "--sync_version_tolerance: is for parameter servers, of which there"),
        ({"num_ps_pods": 2, "grads_to_wait": 3}, "each is applied by itself here; add --use_async=false"),
        (
            {"num_ps_pods": 2, "sync_version_tolerance": 1},
            "--sync_version_tolerance: is for steps of several",
        ),
        (
            SYNCHRONOUS | {"grads_to_wait": 0},
            "grads_to_wait=: expected a whole number of at least 1, received 0",
        ),
        (
            SYNCHRONOUS | {"grads_to_wait": 70_000},
            "--grads_to_wait: a step is made of 65,536 minibatches at most",
        ),
        (
            SYNCHRONOUS | {"max_staleness": 3},
            "--max_staleness: with --use_async=false nothing is staler than",
        ),
        (
            SYNCHRONOUS | {"lr_staleness_modulation": True},
            "--lr_staleness_modulation: with --use_async=false",
        ),
        (SYNCHRONOUS | {"ps_restore": "skip"}, "all parts of the model are of the same step"),
        ({"max_staleness": 3}, "--max_staleness: is for parameter servers, of which there are none"),
        ({"get_model_steps": 4}, "--get_model_steps: is for parameter servers, of which there are none"),
        ({"get_model_steps": 0}, "get_model_steps=: expected a whole number of at least 1, received 0"),
        (
            {"num_ps_pods": 2, "get_model_steps": 4, "max_staleness": 3},
            "--get_model_steps: a worker changes its copy of the weights itself, so --max_staleness has",
        ),
        (
            {"num_ps_pods": 2, "get_model_steps": 4, "lr_staleness_modulation": True},
            "so --lr_staleness_modulation has no one time from which to count; leave one of the two out",
        ),
        ({"ps_restore": "stop"}, "--ps_restore: is for parameter servers, of which there are none"),
        ({"ps_replicas": 2}, "--ps_replicas: is for parameter servers, of which there are none"),
        (
            {"embedding_admission": 2},
            "--embedding_admission: is for parameter servers, of which there are none",
        ),
        ({"embedding_expiry": -1}, "embedding_expiry"),
        (
            {"keep_checkpoint_max": 1},
            "--keep_checkpoint_max: only jobs with --checkpoint_dir keep checkpoints",
        ),
        ({"checkpoint_best": "val_loss"}, "--checkpoint_best: there is no place for checkpoints"),
        (
            {"checkpoint_best": "val_loss", "checkpoint_dir": "c"},
            "--checkpoint_best: nothing is evaluated; name data with --validation_data",
        ),
        ({"checkpoint_best": "val_loss:most"}, "expected the name of a metric, or METRIC:max"),
        ({"checkpoint_best": ":max"}, "expected the name of a metric, or METRIC:max"),
        ({"distribution_strategy": "local", "num_workers": 3}, "the Local strategy trains with one member"),
        ({"restart_policy": "Always"}, "restart_policy= is no longer a setting"),
    ],
)
def test_mistakes(settings: dict[str, object], said: str) -> None:
    assert said in refusal(**settings)


def test_a_flag_is_named_as_a_flag() -> None:
    with pytest.raises(BadSetting, match=r"^--seed: expected a whole number of at least 0, received 'x'$"):
        flag("seed", "x")


def test_gradients_are_summed_up_by_servers_only() -> None:
    assert job(**SYNCHRONOUS, sync_version_tolerance=1).accumulates
    assert not job(num_ps_pods=2).accumulates
    assert not job(use_async=False).accumulates


def test_local_has_one_worker() -> None:
    spec = job(distribution_strategy="Local")
    assert spec.distribution_strategy is Strategy.LOCAL
    assert spec.num_workers == WorkerRange(1, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "line 1: is not YAML"),
        ("- a", "expected one mapping from setting to value"),
        ("x: 1", "x in "),
        ("model_def: a.b\ntraining_data: d\nseed: x", "seed in "),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(BadSetting) as caught:
        build(from_file(file))
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="can't be read: No such file"):
        from_file(tmp_path / "job.yaml")


# ------------------------------------------------------------------ paths


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("a,b\n1,2\n")
    return tmp_path


def paths_refusal(**settings: object) -> str:
    with pytest.raises((BadSetting, BadData)) as caught:
        check_paths(job(**settings), custom_reader=False, directory="output_format" in settings)
    return str(caught.value)


def test_good_paths_leave_nothing(here: Path) -> None:
    before = sorted(here.rglob("*"))
    check_paths(
        job(output="new/model.keras", summary="s.json", audit="audit"), custom_reader=False, directory=False
    )
    check_paths(job(training_data="data/*.csv"), custom_reader=False, directory=False)
    assert sorted(here.rglob("*")) == before


def test_bad_paths(here: Path) -> None:
    (here / "empty").mkdir()
    (here / "zero").touch()
    (here / "dir.keras").mkdir()
    (here / "old").mkdir()
    (here / "old" / "x").touch()
    assert "does not exist (looked from" in paths_refusal(training_data="nothing")
    assert "the directory 'empty' is empty" in paths_refusal(training_data="empty")
    assert "the file 'zero' is empty" in paths_refusal(training_data="zero")
    assert "no file matches 'data/*.tfrecord'" in paths_refusal(training_data="data/*.tfrecord")
    (here / "pets" / "cat").mkdir(parents=True)
    (here / "pets" / "cat" / "1.jpg").touch()
    (here / "pets" / "labels.csv").touch()
    beside = "--training_data: pets has directories with images, cat, and beside them labels.csv"
    assert beside in paths_refusal(training_data="pets")
    named = job(training_data="pets", data_reader_params="classes=['cat']")
    check_paths(named, custom_reader=False, directory=False)
    assert "a server would be behind two slashes" in paths_refusal(training_data="sqlite://x.db?table=t")
    assert "'dir.keras' is a directory; name a file in it" in paths_refusal(output="dir.keras")
    assert "'zero' is a file; name a directory" in paths_refusal(output="zero", output_format="saved_model")
    assert "'zero' is a file; name a directory" in paths_refusal(audit="zero")
    assert "'old' is not empty" in paths_refusal(audit="old")
    assert "'./m.keras' is --output or lies in it" in paths_refusal(output="m.keras", summary="./m.keras")
    into = paths_refusal(output="new", output_format="saved_model", checkpoint_dir="new/checkpoints")
    assert "'new/checkpoints' is --output or lies in it" in into
    assert "'audit' is --output or lies in it" in paths_refusal(
        output="audit", output_format="saved_model", audit="audit"
    )


@pytest.mark.parametrize("flag", ["output", "summary"])
def test_no_file_is_written_among_the_data(flag: str, here: Path) -> None:
    (here / "link").symlink_to("data")
    for path in ("data/x.keras", "link/x.keras", "data/../data/x.keras"):
        assert (
            f"--{flag}: {path!r} lies in the directory of --training_data, so the next job would read it as data"
            in paths_refusal(**{flag: path})
        )
    assert "the directory of --validation_data" in paths_refusal(
        training_data="data/a.csv", validation_data="data", **{flag: "data/x.keras"}
    )
    for data, path in (("data/a.csv", "data/x.keras"), ("data", "data/models/x.keras")):
        check_paths(job(training_data=data, **{flag: path}), custom_reader=False, directory=False)
    check_paths(job(training_data="data", output="data/model"), custom_reader=False, directory=True)


@pytest.mark.parametrize("flag", ["output", "summary"])
def test_a_device_or_a_pipe_is_not_replaced(flag: str, here: Path) -> None:
    os.mkfifo(here / "pipe")
    (here / "link").symlink_to("/dev/full")
    for path in ("pipe", "link", "/dev/full", "/dev/null"):
        assert "which a file would replace; name another place" in paths_refusal(**{flag: path})


def test_a_directory_of_other_things_is_no_output(here: Path) -> None:
    (here / "mine").mkdir()
    check_paths(job(output="mine"), custom_reader=False, directory=True)
    (here / "mine" / "thesis.txt").touch()
    for form in ("saved_model", "parquet"):
        refused = paths_refusal(output="mine", output_format=form, num_ps_pods="1")
        assert (
            "'mine' can't be replaced: it is a directory with other things in it, such as 'thesis.txt'"
            in refused
        )
    for mark, part in (("saved_model.pb", "variables"), ("variables.parquet", "tables")):
        earlier = here / mark[-8:]
        (earlier / part).mkdir(parents=True)
        (earlier / mark).touch()
        check_paths(job(output=earlier.name), custom_reader=False, directory=True)
        (earlier / "notes").touch()
        assert "such as 'notes'" in paths_refusal(output=earlier.name, output_format="saved_model")


def test_an_output_that_cannot_be_written_is_refused_at_once(here: Path) -> None:
    assert "can't be written: no file can be made in /proc" in paths_refusal(output="/proc/model.keras")
    (here / "file").touch()
    assert "can't be written" in paths_refusal(summary="file/summary.json")


def test_a_directory_that_is_there_need_not_lie_in_one_that_can_be_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the place where a volume of its own is mounted in a pod; a result replaces what has its name."""
    probed: list[Path] = []
    probe = tempfile.TemporaryFile

    def record(dir: Path) -> IO[bytes]:
        probed.append(dir)
        return probe(dir=dir)

    monkeypatch.setattr("elasticdl.spec.edge.tempfile.TemporaryFile", record)
    (here / "kept").mkdir()
    (here / "old").mkdir()
    check_paths(job(checkpoint_dir="kept", audit="new/audit"), custom_reader=False, directory=False)
    check_paths(job(output="old", output_format="saved_model"), custom_reader=False, directory=True)
    assert probed == [here, here / "kept", here]


def test_a_custom_reader_knows_what_data_is(here: Path) -> None:
    check_paths(job(training_data="table:users"), custom_reader=True, directory=False)


def test_absolute(here: Path) -> None:
    spec = absolute(job(output="m.keras"))
    assert spec.output == str(here / "m.keras")
    assert spec.training_data == str(here / "data")
    assert spec.model_zoo == str(here)
    assert spec.summary == ""
    assert absolute(job(training_data="table:users")).training_data == "table:users"
    assert absolute(job(training_data="s3://bucket/*")).training_data == "s3://bucket/*"


def test_the_package_offers_a_few_names() -> None:
    import elasticdl

    assert elasticdl.__all__ == [
        *("History", "Job", "JobStatus", "Mode", "WorkerStatus"),
        *("analyze", "evaluate", "init", "job", "predict", "shards", "sql", "train"),
    ]
    assert all(callable(getattr(elasticdl, name)) for name in elasticdl.__all__)
    assert (elasticdl.Mode.TRAINING, elasticdl.Mode.EVALUATION, elasticdl.Mode.PREDICTION) == (
        "training",
        "evaluation",
        "prediction",
    )
    assert elasticdl.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="has no attribute 'tran'"):
        elasticdl.tran  # noqa: B018


def test_a_port_is_one_of_this_machine() -> None:
    assert job(status_port="any").status_port == 0
    assert "65535" in refusal(status_port="65536")
    said = refusal(status_port="8400", image_name="image")
    assert "--open" in said
    assert job(metrics_port="9464", image_name="image").metrics_port == 9464
    assert "--status_port" in refusal(metrics_port="9464")
    for port in ("80", "65536"):
        assert "from 1,024 to 65,535" in refusal(metrics_port=port, image_name="image")


@pytest.mark.parametrize("name", ["output", "audit", "checkpoint_dir", "data_cache", "tensorboard_log_dir"])
def test_only_data_is_read_from_urls(name: str) -> None:
    assert f"--{name}: it is a path of this file system" in refusal(**{name: "s3://bucket/x.keras"})
    assert job(training_data="s3://bucket/x", output="m.keras").training_data == "s3://bucket/x"


def test_tensorboard_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_text("1,2\n")
    spec = job(training_data=str(tmp_path / "data"), tensorboard_log_dir=str(tmp_path / "board"))
    check_paths(spec, custom_reader=False, directory=False)
    assert not (tmp_path / "board").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadSetting, match=r"elasticdl\[tensorboard\]"):
        check_paths(spec, custom_reader=False, directory=False)


def test_a_flag_says_whose_weights_are_used_before_the_job_file_of_the_training() -> None:
    given = {
        name: Given(value, name, in_file=True)
        for name, value in {
            "model_def": "a.b",
            "checkpoint_dir_for_init": "c",
            "validation_data": "v",
        }.items()
    }
    assert build(given, JobKind.EVALUATE).checkpoint_dir_for_init == "c"
    spec = build({**given, "trained_model": Given("m.keras", "--trained_model")}, JobKind.EVALUATE)
    assert (spec.trained_model, spec.checkpoint_dir_for_init) == ("m.keras", "")


@pytest.mark.parametrize("kind", [JobKind.EVALUATE, JobKind.PREDICT])
def test_weights_are_of_one_place(kind: JobKind) -> None:
    data = {"validation_data": "v"} if kind is JobKind.EVALUATE else {"prediction_data": "v", "output": "o"}
    given = {"model_def": "a.b", **data}
    with pytest.raises(BadSetting, match="--trained_model or --checkpoint_dir_for_init is required"):
        build(from_arguments(given), kind)
    both = {"trained_model": "m.keras", "checkpoint_dir_for_init": "c"}
    with pytest.raises(BadSetting, match="those of --trained_model already; leave one of the two out"):
        build(from_arguments({**given, **both}), kind)
