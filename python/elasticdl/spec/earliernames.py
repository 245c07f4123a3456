"""The names of ElasticDL 0.2 that model files can still import, and where each of them is now.

Values are modules; nothing here imports one, so the check of a model file knows the names without any framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CONSTANTS = "elasticdl.compat.constants"
_READERS = "elasticdl.compat.readers"
_TABLES = "elasticdl.compat.tables"
_MODELS = "elasticdl.keras.earlier"
_LAYERS = (
    "ConcatenateWithOffset Discretization Embedding Hashing IndexLookup LogRound Normalizer RoundIdentity SparseEmbedding ToNumber "
    "ToRagged ToSparse"
)
_STATISTICS = "get_avg get_bucket_boundaries get_distinct_count get_max get_min get_stddev get_vocabulary"
SERVED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "elasticdl.python.common.constants": {
            "Mode": "elasticdl.spec.jobspec",
            "JobType": _CONSTANTS,
            "MaxComputeConfig": _CONSTANTS,
            "ReaderType": _CONSTANTS,
        },
        "elasticdl.python.common.log_utils": {"default_logger": _CONSTANTS},
        "elasticdl.python.data.odps_io": {
            "ODPSReader": _TABLES,
            "ODPSWriter": _TABLES,
            "is_odps_configured": _READERS,
        },
        "elasticdl.python.data.reader.data_reader": {"AbstractDataReader": _READERS, "Metadata": _READERS},
        "elasticdl.python.data.reader.data_reader_factory": {"create_data_reader": _TABLES},
        "elasticdl.python.data.reader.odps_reader": {
            "ODPSDataReader": _TABLES,
            "ParallelODPSDataReader": _TABLES,
        },
        "elasticdl.python.data.reader.recordio_reader": {"RecordIODataReader": _READERS},
        "elasticdl.python.data.reader.text_reader": {"TextDataReader": _READERS},
        "elasticdl.python.elasticdl.callbacks": {
            "LearningRateScheduler": f"{_MODELS}.callbacks",
            "MaxStepsStopping": f"{_MODELS}.callbacks",
            "SavedModelExporter": f"{_MODELS}.callbacks",
        },
        "elasticdl.python.elasticdl.feature_column.feature_column": {
            "embedding_column": f"{_MODELS}.columns",
        },
        "elasticdl.python.elasticdl.layers.embedding": {"Embedding": f"{_MODELS}.layers"},
        "elasticdl.python.worker.prediction_outputs_processor": {
            "BasePredictionOutputsProcessor": "elasticdl.compat.processor",
        },
        "elasticdl_preprocessing.feature_column.feature_column": {
            "concatenated_categorical_column": f"{_MODELS}.concatenated",
        },
        "elasticdl_preprocessing.layers": dict.fromkeys(_LAYERS.split(), f"{_MODELS}.preprocessing"),
        "elasticdl_preprocessing.utils.analyzer_utils": dict.fromkeys(
            _STATISTICS.split(), "elasticdl.preprocessing.analyzer"
        ),
        "elasticdl_preprocessing.utils.decorators": {"declare_model_inputs": "elasticdl.compat.decorators"},
    }
)
"""Old module → its names → the module that has each of them."""
TOPS = ("elasticdl.python", "elasticdl_preprocessing", "elasticai_api")
"""What all old modules are below."""


def is_package(dotted: str) -> bool:
    """Tell whether there is a served module below this one."""
    return any(name.startswith(f"{dotted}.") for name in SERVED)


def is_served(dotted: str) -> bool:
    """Tell whether a module, or a name with its module, can be imported."""
    module, _, name = dotted.rpartition(".")
    if dotted in SERVED or is_package(dotted):
        return True
    return name == "*" or name in SERVED.get(module, ())
