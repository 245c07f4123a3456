"""Writing the trained model for plain users of MXNet: a directory with its graph and its parameters, as `HybridBlock.export` names them.

`gluon.SymbolBlock.imports("DIR/model-symbol.json", ["data"], "DIR/model-0000.params")` makes a model of them, without the model file; the
inputs of a model with several are `data0`, `data1` and so on. The graph is found by calling the model with symbols, so no data is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx

from elasticdl.errors import BadModel
from elasticdl.files.output import made_beside
from elasticdl.mxnet.building import parameters_of
from elasticdl.worker.modelfile import describe

SYMBOL, PARAMETERS = "model-symbol.json", "model-0000.params"


def export(model: Any, path: str, inputs: int, source: Path) -> None:
    """Write the directory `path`; what was there is replaced at the end. `inputs`: of the model; `source`: the model file, for messages.

    Raises OSError with what was at `path` intact; BadModel for a model that can't be called with symbols.
    """
    names = ["data"] if inputs == 1 else [f"data{place}" for place in range(inputs)]
    try:
        with mx.name.NameManager():  # names of nodes end in numbers, which begin at 0 here
            made = model(*map(mx.sym.var, names))
        graph = mx.sym.Group(list(made)) if isinstance(made, list | tuple) else made
    except Exception as error:
        raise BadModel(
            f"{source}: the model can't be called with symbols, of which its graph is made: {describe(error, source)}; let hybrid_forward "
            "compute with F only"
        ) from error
    parameters = parameters_of(model)
    values = {f"arg:{name}": parameters[name].data() for name in graph.list_arguments() if name not in names}
    values |= {f"aux:{name}": parameters[name].data() for name in graph.list_auxiliary_states()}
    with made_beside(path, "model") as written:
        written.mkdir()
        graph.save(str(written / SYMBOL))
        mx.nd.save(str(written / PARAMETERS), values)
