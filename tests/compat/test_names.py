"""Each name that model files of ElasticDL 0.2 import is there, and is listed here."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from elasticdl.compat.finder import importable
from elasticdl.spec import earlier
from elasticdl.spec.earliernames import SERVED
from elasticdl.worker.modelfile import describe

NAMES = """
elasticdl.python.common.constants: Mode JobType MaxComputeConfig ReaderType
elasticdl.python.common.log_utils: default_logger
elasticdl.python.data.odps_io: ODPSReader ODPSWriter is_odps_configured
elasticdl.python.data.reader.data_reader: AbstractDataReader Metadata
elasticdl.python.data.reader.data_reader_factory: create_data_reader
elasticdl.python.data.reader.odps_reader: ODPSDataReader ParallelODPSDataReader
elasticdl.python.data.reader.recordio_reader: RecordIODataReader
elasticdl.python.data.reader.text_reader: TextDataReader
elasticdl.python.elasticdl.callbacks: LearningRateScheduler MaxStepsStopping SavedModelExporter
elasticdl.python.elasticdl.feature_column.feature_column: embedding_column
elasticdl.python.elasticdl.layers.embedding: Embedding
elasticdl.python.worker.prediction_outputs_processor: BasePredictionOutputsProcessor
elasticdl_preprocessing.feature_column.feature_column: concatenated_categorical_column
elasticdl_preprocessing.layers: ConcatenateWithOffset Discretization Embedding Hashing IndexLookup LogRound Normalizer RoundIdentity
elasticdl_preprocessing.layers: SparseEmbedding ToNumber ToRagged ToSparse
elasticdl_preprocessing.utils.analyzer_utils: get_avg get_bucket_boundaries get_distinct_count get_max get_min get_stddev get_vocabulary
elasticdl_preprocessing.utils.decorators: declare_model_inputs
"""
LISTED = [
    (module, name)
    for line in NAMES.strip().splitlines()
    for module, _, names in [line.partition(": ")]
    for name in names.split()
]


def test_each_old_name_is_listed() -> None:
    assert sorted(LISTED) == sorted((module, name) for module, names in SERVED.items() for name in names)


@pytest.mark.parametrize(("module", "name"), LISTED)
def test_an_old_name_can_be_imported(module: str, name: str) -> None:
    assert earlier.successor(module), "a name that is imported too late is answered with what serves instead"
    if not SERVED[module][name].startswith("elasticdl.keras"):  # the others are driven with their framework
        with importable():
            assert getattr(importlib.import_module(module), name) is not None


def test_inputs_of_a_class_are_declared() -> None:
    with importable():
        declare = importlib.import_module("elasticdl_preprocessing.utils.decorators").declare_model_inputs

    @declare("wide", "deep")
    class Model: ...

    assert Model._model_inputs == ["wide", "deep"]  # type: ignore[attr-defined]
    for names in ((), (3,), ("wide", None)):
        with pytest.raises(ValueError, match="takes the names of a model's inputs"):
            declare(*names)(Model)


def test_a_file_of_0_2_that_fails_with_keras_3_is_told_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text("from elasticdl.python.common.constants import Mode\n")
    new.write_text("from elasticdl import Mode\n")
    assert describe(ValueError("lr is unknown"), old).startswith(
        "ValueError: lr is unknown; the file imports names"
    )
    assert "add --framework=tf_keras" in earlier.hint(old)
    assert earlier.hint(new) == earlier.hint(tmp_path / "none.py") == ""
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert earlier.hint(old) == ""
