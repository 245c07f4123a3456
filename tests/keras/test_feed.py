"""What becomes of records: the user's `feed`, its errors."""

from __future__ import annotations

import re
import tempfile
import textwrap
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.models import feeds
from elasticdl.data.readers.writing import encode_example
from elasticdl.errors import BadData, BadModel
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.feed import FeedPipeline
from elasticdl.worker.contract.records import Columns, Records
from elasticdl.worker.raised import program_error, remove_generated
from tests.keras.conftest import records

Make = Callable[..., KerasAdapter]


def feed(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"usual = feed\ndef feed(dataset, mode, metadata):\n    dataset = usual(dataset, mode, metadata)\n{lines}\n"


def test_a_chunk_is_one_batch(adapter: Make) -> None:
    batch = adapter().convert(records(5, 2))
    assert batch.examples == 5
    features, labels = batch.data
    expected = np.array([list(map(float, record.split(b","))) for record in records(5, 2)])
    np.testing.assert_array_equal(features, expected[:, :3])
    np.testing.assert_array_equal(labels, expected[:, 3:])


def test_feed_may_shuffle(adapter: Make) -> None:
    made = adapter(feed("return dataset.shuffle(100)"))
    batch = made.convert(records(8))
    plain = adapter().convert(records(8))
    assert sorted(map(tuple, batch.data[0].numpy())) == sorted(map(tuple, plain.data[0].numpy()))


def test_examples_are_what_the_filter_leaves(adapter: Make) -> None:
    made = adapter(feed("return dataset.filter(lambda x, y: x[0] > 0)"))
    rows = np.array([list(map(float, record.split(b","))) for record in records(20)])
    kept = int((rows[:, 0] > 0).sum())
    batch = made.convert(records(20))
    assert 0 < batch.examples == kept < 20
    assert made.compute(batch, 1, 0).examples == kept
    nothing = made.convert([b"-1,2,3,4", b"-2,2,3,4"])
    assert nothing.examples == 0
    made.zero()
    assert made.compute(nothing, 1, 0).loss == 0.0


def test_feed_may_parse_whole_batches_inside(adapter: Make) -> None:
    made = adapter(feed("return dataset.batch(3).map(lambda x, y: (2 * x, y)).unbatch()"))
    plain = adapter()
    np.testing.assert_array_equal(
        made.convert(records(8)).data[0], 2 * plain.convert(records(8)).data[0].numpy()
    )


OF_COLUMNS = """
def feed(dataset, mode, metadata):
    def parse(record):
        bags = tf.reduce_sum(record["bag"]) + tf.cast(tf.size(record["words"]), tf.float32)
        length = tf.strings.length(record["name"]) + tf.strings.length(record["raw"])
        return tf.stack([record["number"], record["pair"][1], bags]), tf.cast(length, tf.float32)[None]
    return dataset.map(parse)
"""


def columns(count: int) -> Columns:
    """Return columns of each kind; the first vector of each ragged one is empty."""

    def ragged(of: type, value: object) -> np.ndarray:
        vectors = np.empty(count, object)
        for i in range(count):
            vectors[i] = np.full(i, value, of)
        return vectors

    numbers = np.arange(count, dtype=np.float32)
    return Columns(
        count,
        {
            "bag": ragged(np.float32, 2.0),
            "words": ragged(object, "word"),
            "number": numbers,
            "pair": np.stack([numbers, -numbers], axis=1),
            "name": np.array(["é" * i for i in range(count)], object),
            "raw": np.array([b"\xff"] * count, object),
        },
    )


def test_columns_are_one_dictionary_for_each_record(adapter: Make) -> None:
    made = adapter(OF_COLUMNS, sample=columns(5))
    for count in (7, 1):
        features, labels = made.convert(columns(count)).data
        expected = [[i, -i, 2 * i + i] for i in range(count)]
        np.testing.assert_array_equal(features, expected)
        np.testing.assert_array_equal(labels, [[2 * i + 1] for i in range(count)])


OF_BOXES = """
def feed(dataset, mode, metadata):
    def parse(record):
        boxes = tf.ensure_shape(record["boxes"], [None, 4])
        sums = tf.reduce_sum(boxes * tf.cast(record["classes"], tf.float32)[:, None], axis=0)
        return sums[:3], sums[3:]
    return dataset.map(parse)
"""


def boxes(*counts: int) -> Columns:
    """Return images with so many boxes each."""
    columns = {"boxes": np.empty(len(counts), object), "classes": np.empty(len(counts), object)}
    for row, count in enumerate(counts):
        columns["boxes"][row] = np.tile(np.arange(4, dtype=np.float32), (count, 1))
        columns["classes"][row] = np.full(count, 2)
    return Columns(len(counts), columns)


def test_boxes_of_an_image_have_a_row_each(adapter: Make) -> None:
    made = adapter(OF_BOXES, sample=boxes(1, 2))
    for counts in ((0, 3, 1), (0,), (2,)):
        features, labels = made.convert(boxes(*counts)).data
        np.testing.assert_array_equal(features, [[0, 2 * count, 4 * count] for count in counts])
        np.testing.assert_array_equal(labels, [[6 * count] for count in counts])


PLAIN = {
    "cond": "def f(x, y):\n    return tf.cond(x[0] > 0, lambda: x, lambda: -x), y\nreturn dataset.map(f)",
    "if": "def f(x, y):\n    if x[0] > 0:\n        x = -x\n    return x, y\nreturn dataset.map(f)",
    "while": "def f(x, y):\n    while x[0] > 1:\n        x = x - 1\n    return x, y\nreturn dataset.map(f)",
    "for": "def f(x, y):\n    for i in tf.range(3):\n        x = x * y + tf.cast(i, tf.float32)\n    return x, y\nreturn dataset.map(f)",
    "compiled": "@tf.function\ndef f(x):\n    if x[0] > 0:\n        return x\n    return -x\nreturn dataset.map(lambda x, y: (f(x), y))",
    "assertion": "def f(x, y):\n    tf.debugging.assert_less(x, 100.0)\n    return x, y\nreturn dataset.map(f)",
    "map_fn": "return dataset.map(lambda x, y: (tf.map_fn(lambda v: 2 * v, x), y))",
    "parallel": "return dataset.map(lambda x, y: (2 * x, y), num_parallel_calls=4)",
    "parallel if": "def f(x, y):\n    if x[0] > 0:\n        x = -x\n    return x, y\n"
    "return dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE)",
    "filter": "def f(x, y):\n    if x[0] > 0:\n        return y[0] > 0\n    return True\nreturn dataset.filter(f)",
    "scan": "return dataset.scan(0.0, lambda s, one: (tf.cond(s > 3, lambda: 0.0, lambda: s + one[1][0]), one))",
    "interleave": "def f(x, y):\n    one = tf.data.Dataset.from_tensors((x, y))\n"
    "    return one.filter(lambda x, y: tf.cond(x[0] > 0, lambda: True, lambda: y[0] > 0))\n"
    "return dataset.interleave(f, cycle_length=3)",
    "parallel interleave": "def f(x, y):\n    if x[0] > 0:\n        x = -x\n    return tf.data.Dataset.from_tensors((x, y))\n"
    "return dataset.interleave(f, cycle_length=3, num_parallel_calls=2)",
    "layer": "layer = keras.layers.Discretization([-1.0, 1.0])\nreturn dataset.map(lambda x, y: (tf.cast(layer(x), tf.float32), y))",
}
"""Ends of `feed` that a pipeline outside of a job takes."""


@pytest.mark.parametrize("body", PLAIN.values(), ids=PLAIN.keys())
def test_feed_gives_what_a_plain_pipeline_gives(adapter: Make, body: str) -> None:
    made = adapter(feed(body))
    expected = list(
        made._user.feed(tf.data.Dataset.from_tensor_slices(records(20)), "training", None).as_numpy_iterator()
    )
    batch = made.convert(records(20))
    assert batch.examples == len(expected) > 0
    for place, column in enumerate(batch.data):
        np.testing.assert_array_equal(column, [element[place] for element in expected])


def test_rows_of_csv_are_vectors_of_strings(adapter: Make) -> None:
    source = """
    def feed(dataset, mode, metadata):
        assert mode == "training"
        def parse(row):
            numbers = tf.strings.to_number(tf.ensure_shape(row, [4]))
            return numbers[:3], numbers[3:]
        return dataset.map(parse)
    """
    rows = [["1", "2", "3", "4"], ["5", "6", "7", "8"]]
    batch = adapter(source, sample=rows).convert(rows)
    np.testing.assert_array_equal(batch.data[0], [[1, 2, 3], [5, 6, 7]])


def test_feed_gets_the_readers_metadata(model_file: Callable[..., tuple]) -> None:
    made = KerasAdapter(
        *model_file(feed("assert metadata == {'column_names': ['a']}\nreturn dataset")),
        {"column_names": ["a"]},
    )
    made.prepare(records(4))


def test_feed_is_traced_once_and_serves_other_threads(adapter: Make) -> None:
    made = adapter("calls = []\n" + feed("calls.append(1)\nreturn dataset"))
    user = made._user
    before = len(user.feed.__globals__["calls"])
    sizes: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: sizes.append(made.convert(records(n)).examples))
        for n in (1, 5, 8, 8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(sizes) == [1, 5, 8, 8]
    assert len(user.feed.__globals__["calls"]) == before == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return dataset.batch(4)", r"feed batched its examples: it returned \(float32 \[None, 3\], float32 \[None, 1\]\)"),
        ("return dataset.repeat(2)", r"more examples than the 8 records it was given; it may shuffle, filter and map, but not repeat"),
        ("return dataset.repeat()", "but not repeat"),
        ("return dataset.map(lambda x, y: x)", r"structure float32 \[3\]; expected a tf.data.Dataset of \(features, labels\)"),
        ("return dataset.map(lambda x, y: {'x': x, 'y': y})", r"structure \{'x': float32 \[3\], 'y': float32 \[1\]\}"),
        ("return [1, 2]", "feed returned list; expected a tf.data.Dataset"),
        ("return None", "feed returned NoneType"),
        ("raise KeyError('image')", r"feed failed: KeyError: 'image' \(line \d+\)"),
        ("return dataset.map(lambda x, y: (x[:2], y))", r"expected features float32 \[None, 3\], received float32 \[None, 2\]"),
        ("return dataset.map(lambda x, y: (tf.expand_dims(x, 0), y))", r"received float32 \[None, 1, 3\]"),
        ("return dataset.filter(lambda x, y: x[0] > 100)", "feed made no example of the first 8 records"),
    ],
)  # fmt: skip
def test_what_feed_must_not_do(adapter: Make, body: str, message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        adapter(feed(body))
    assert "model_file_" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "if tf.constant(1) > 0:\n    dataset = dataset.take(5)\nreturn dataset",
        "number = tf.constant(3)\nwhile number > 0:\n    number -= 1\nreturn dataset",
        "return dataset.take(int(tf.constant(5)))",
        "if dataset.cardinality() > 5:\n    dataset = dataset.take(5)\nreturn dataset",
        "for number in tf.range(3):\n    dataset = dataset.skip(1)\nreturn dataset",
        "for number in range(tf.constant(3)):\n    dataset = dataset.skip(1)\nreturn dataset",
        "return dataset.take(tf.constant(5).numpy())",
        "return dataset.take(np.sum(tf.constant(5)))",
        "number = 0\nfor x, y in dataset:\n    number += 1\nreturn dataset.take(number)",
    ],
)
def test_a_value_that_the_body_of_feed_can_not_see(adapter: Make, body: str) -> None:
    advice = "the body of feed is run once, in a graph, .*: move the condition or loop into a function that map is given"
    with pytest.raises(
        BadData, match=rf"model_file_.*: feed (failed: .* \(line \d+\)|loops over .*); {advice}$"
    ):
        adapter("import numpy as np\n" + feed(body))


@pytest.mark.parametrize(
    "body",
    [
        "return dataset.map(lambda x, y: (np.sum(x), y))",
        "return dataset.map(lambda x, y: (x.numpy(), y))",
        "@tf.autograph.experimental.do_not_convert\ndef f(x, y):\n    return (x if x[0] > 0 else -x), y\nreturn dataset.map(f)",
    ],
)
def test_who_is_in_map_already_is_not_sent_there(adapter: Make, body: str) -> None:
    with pytest.raises(BadData, match=r"feed failed: .* \(line \d+\)$"):
        adapter("import numpy as np\n" + feed(body))


def test_the_body_of_feed_may_take_elements(adapter: Make) -> None:
    made = adapter(feed("first, _ = next(iter(dataset))\nreturn dataset.map(lambda x, y: (x - first, y))"))
    batch, plain = made.convert(records(8)), adapter().convert(records(8))
    np.testing.assert_array_equal(batch.data[0], plain.data[0] - plain.data[0][0])


def inline(made: KerasAdapter) -> list[bool]:
    """Return of each transformation in the compiled feed whether its function runs on the thread that pulls."""
    operations = made._pipeline._traced._concrete.graph.get_operations()
    return [
        not operation.get_attr("use_inter_op_parallelism")
        for operation in operations
        if "use_inter_op_parallelism" in operation.node_def.attr
    ]


def test_simple_functions_run_on_the_thread_that_pulls(adapter: Make) -> None:
    """A handing over between threads for each record is most of what such functions cost."""
    plain = adapter()
    plain.convert(records(8))
    assert inline(plain) == [True]
    twice = adapter(feed("return dataset.map(lambda x, y: (2 * x, y)).map(lambda x, y: (x + 1, y))"))
    twice.convert(records(8))
    assert inline(twice) == [True] * 3
    branching = adapter(feed(PLAIN["if"]))
    branching.convert(records(8))
    assert inline(branching) == [True, False]


TWO = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(2)(inputs))
"""


def test_labels_that_do_not_fit(adapter: Make) -> None:
    with pytest.raises(BadModel, match="the first training step failed") as caught:
        adapter(feed("return dataset.map(lambda x, y: (x, tf.zeros([7])))") + TWO)
    assert "float32 [None, 7]" in str(caught.value)
    assert "float32 [None, 2]" in str(caught.value)


def test_the_users_traceback_is_kept(adapter: Make) -> None:
    with pytest.raises(BadData) as caught:
        adapter(feed("def parse(x, y):\n    return x.no_such_thing, y\nreturn dataset.map(parse)"))
    text = "".join(traceback.format_exception(caught.value.__cause__))
    assert "no_such_thing" in text
    assert "model_file_" in text


@pytest.mark.parametrize("call", ["py_function", "numpy_function"])
@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        ("KeyError('image')", "KeyError: 'image'"),
        ("ValueError('Dataset was empty')", "ValueError: Dataset was empty"),
        ("MemoryError('more than one element')", "MemoryError: more than one element"),
    ],
)
def test_what_a_python_function_of_feed_raises_is_an_error_of_feed(
    adapter: Make, call: str, raised: str, sentence: str
) -> None:
    source = f"def read(x):\n    if x[0] == 0:\n        raise {raised}\n    return x\n"
    body = f"return dataset.map(lambda x, y: (tf.ensure_shape(tf.{call}(read, [x], tf.float32), [3]), y))"
    made = adapter(source + feed(body), sample=[b"1,2,3,4"])
    with pytest.raises(BadData, match=r"feed failed on a chunk of 2 records: ") as caught:
        made.convert([b"1,2,3,4", b"0,2,3,4"])
    line = made._user.path.read_text().splitlines().index(f"        raise {raised}") + 1
    assert str(caught.value).endswith(f" records: {sentence} (line {line})")
    said = program_error(caught.value)
    assert said.kind == "bad-input"
    assert f"line {line}, in read" in said.traceback
    assert "tensorflow" not in said.traceback
    assert made.convert([b"1,2,3,4"]).examples == 1


def test_a_record_that_the_traced_feed_can_not_read(adapter: Make) -> None:
    made = adapter()
    with pytest.raises(
        BadData,
        match=r"feed failed on a chunk of 2 records: .*: StringToNumberOp could not correctly convert string: x",
    ):
        made.convert([b"1,2,3,4", b"x,2,3,4"])
    assert made.convert(records(2)).examples == 2


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "model-file.md"


def whole(parse: str, after: str = "") -> str:
    """Return a feed of whole chunks: its `parse` gets the chunk's records."""
    lines = textwrap.indent(textwrap.dedent(parse), " " * 8)
    return (
        f"def feed(dataset, mode, metadata):\n    def parse(records):\n{lines}\n    return dataset.map(parse){after}\n"
        "feed.whole_chunks = True\n"
    )


OF_ROWS = """
values = tf.strings.to_number(tf.io.decode_csv(records, [""] * 4))
return tf.transpose(values[:3]), values[3][:, None]
"""
"""What the usual feed makes of records, of all of a chunk at once."""


def test_a_whole_chunk_is_parsed_at_once_to_the_same_bits(adapter: Make) -> None:
    made, plain = adapter(whole(OF_ROWS)), adapter()
    assert made._pipeline.spec == plain._pipeline.spec
    for count in (8, 3, 1):
        batch, expected = made.convert(records(count)), plain.convert(records(count))
        assert batch.examples == count
        for mine, other in zip(batch.data, expected.data, strict=True):
            np.testing.assert_array_equal(mine, other)
    loss = made.compute(made.convert(records(8)), 1, 0).loss
    assert loss == plain.compute(plain.convert(records(8)), 1, 0).loss


def test_rows_and_columns_of_a_whole_chunk(adapter: Make) -> None:
    rows = [["1", "2", "3", "4"], ["5", "6", "7", "8"]]
    of_strings = "numbers = tf.strings.to_number(tf.ensure_shape(records, [None, 4]))\nreturn numbers[:, :3], numbers[:, 3:]"
    batch = adapter(whole(of_strings), sample=rows).convert(rows)
    np.testing.assert_array_equal(batch.data[0], [[1, 2, 3], [5, 6, 7]])
    of_columns = """
    bags = tf.reduce_sum(records["bag"], axis=1) + tf.cast(records["words"].row_lengths(), tf.float32)
    length = tf.strings.length(records["name"]) + tf.strings.length(records["raw"])
    features = tf.stack([records["number"], records["pair"][:, 1], bags], axis=1)
    return features, tf.cast(length, tf.float32)[:, None]
    """
    made, plain = adapter(whole(of_columns), sample=columns(5)), adapter(OF_COLUMNS, sample=columns(5))
    for count in (7, 1):
        mine, other = made.convert(columns(count)), plain.convert(columns(count))
        for place in (0, 1):
            np.testing.assert_array_equal(mine.data[place], other.data[place])


def test_a_whole_chunk_may_be_taken_apart_shuffled_and_put_together(adapter: Make) -> None:
    made = adapter(whole(OF_ROWS, ".unbatch().shuffle(100).batch(100)"))
    batch, plain = made.convert(records(8)), adapter().convert(records(8))
    assert batch.examples == 8
    assert sorted(map(tuple, batch.data[0].numpy())) == sorted(map(tuple, plain.data[0].numpy()))


def test_ragged_and_sparse_features_and_sample_weights_of_a_whole_chunk(
    model_file: Callable[..., tuple],
) -> None:
    """Each has the chunk's rows, however many values these have."""
    source = whole("""
    words = tf.strings.split(records, ",")
    numbers = tf.strings.to_number(words)
    features = {"ragged": numbers, "sparse": numbers.to_sparse()}
    first = numbers.to_tensor()[:, 0]
    return features, first[:, None], first
    """)
    user, _ = model_file(source)
    pipeline = FeedPipeline(user.feed, "training", None, user.path)
    for rows in ([b"1,2", b"3", b"4,5,6"], [b"1"]):
        batch = pipeline(rows)
        features, labels, weights = batch.data
        assert batch.examples == len(rows)
        assert features["ragged"].to_list() == [[float(value) for value in row.split(b",")] for row in rows]
        assert features["sparse"].shape[0] == len(labels) == len(weights) == len(rows)
    ragged, sparse = pipeline.spec[0]["ragged"], pipeline.spec[0]["sparse"]
    assert ragged.is_compatible_with(features["ragged"])
    assert (ragged.shape[0], sparse.shape[0]) == (None, None)


def test_a_whole_chunk_in_prediction_and_evaluation(model_file: Callable[..., tuple]) -> None:
    user, spec = model_file(whole(OF_ROWS))
    expected = FeedPipeline(user.feed, "training", None, user.path)(records(5))
    predicts = FeedPipeline(user.feed, "prediction", None, user.path)
    batch = predicts(records(5))
    assert len(batch.data) == len(predicts.spec) == 1
    np.testing.assert_array_equal(batch.data[0], expected.data[0])
    made = KerasAdapter(user, spec, None)
    made.prepare(records(8))
    evaluator = made.evaluator(None)
    evaluator.prepare(records(8))
    assert evaluator.evaluate(evaluator.convert(records(5))) == 5


ONE = r"expected with feed.whole_chunks a tf.data.Dataset of one element, .* as many rows as the chunk has records$"


@pytest.mark.parametrize(
    ("parse", "after", "message"),
    [
        (OF_ROWS, ".unbatch()", r"\(float32 \[3\], float32 \[1\]\)"),
        (OF_ROWS, ".repeat(2)", "more than one element for a chunk of 8 records"),
        (OF_ROWS, ".filter(lambda x, y: x[0][0] > 100)", "no element for a chunk of 8 records"),
        (OF_ROWS, ".batch(1)", r"\(float32 \[1, 8, 3\], float32 \[1, 8, 1\]\) for a chunk of 8 records"),
        (OF_ROWS, ".map(lambda x, y: (x[1:], y[1:]))", r"\(float32 \[7, 3\], float32 \[7, 1\]\) for a chunk of 8 records"),
        (OF_ROWS, ".map(lambda x, y: (x, y[1:]))", r"\(float32 \[8, 3\], float32 \[7, 1\]\) for a chunk of 8 records"),
        (OF_ROWS, ".map(lambda x, y: (x, tf.reduce_mean(y)))", r"\(float32 \[None, 3\], float32 \[\]\)"),
        (OF_ROWS, ".map(lambda x, y: x)", r"structure float32 \[None, 3\]"),
    ],
)  # fmt: skip
def test_what_a_feed_of_whole_chunks_must_not_do(adapter: Make, parse: str, after: str, message: str) -> None:
    with pytest.raises(BadData, match=rf"model_file_.*: feed returned .*{message}; {ONE}"):
        adapter(whole(parse, after))


def test_whole_chunks_is_true_or_false(adapter: Make) -> None:
    with pytest.raises(BadModel, match=r"model_file_.*: feed.whole_chunks is 'yes'; expected True or False"):
        adapter("feed.whole_chunks = 'yes'")


def test_the_guides_example_of_whole_chunks(adapter: Make) -> None:
    example = re.search(
        r"^### Whole chunks\n.*?^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S
    )
    assert example is not None
    images = [bytes([i] * 784) for i in range(8)]
    rows = [encode_example({"image": image, "label": i % 3}) for i, image in enumerate(images)]
    model = "def custom_model():\n    return keras.Sequential([keras.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(3)])\n"
    loss = "loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
    batch = adapter(example[1] + model + loss, sample=rows).convert(rows[:5])
    np.testing.assert_array_equal(batch.data[0][4], np.full((28, 28), np.float32(4) / np.float32(255)))
    np.testing.assert_array_equal(batch.data[1], [0, 1, 2, 0, 1])


NAMED = [*feeds.NAMES, *feeds.NUMBERS, "late"]


@pytest.mark.parametrize(
    ("by_record", "whole", "records"),
    [
        (
            feeds.digits,
            feeds.digits_whole,
            [encode_example({"image": bytes(range(i, i + 196)) * 4, "label": i}) for i in range(8)],
        ),
        (feeds.rows, feeds.whole(feeds.rows), [[str(i + j) for j in range(len(NAMED))] for i in range(8)]),
        (feeds.columns, feeds.whole(feeds.columns), Columns(8, {name: np.arange(8) for name in NAMED})),
    ],
    ids=["digits", "rows", "columns"],
)
def test_the_forms_that_the_benchmark_compares_make_the_same_batches(
    by_record: Callable[..., object], whole: Callable[..., object], records: Records
) -> None:
    """A form that is not marked parses record by record, and would be measured as if it parsed whole chunks."""
    assert whole.whole_chunks
    metadata = SimpleNamespace(column_names=NAMED)
    mine, other = (FeedPipeline(one, "training", metadata, Path(__file__)) for one in (whole, by_record))
    tf.nest.map_structure(np.testing.assert_array_equal, mine(records).data, other(records).data)


def test_files_of_converted_functions_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(value: float) -> float:
        return 2 * value

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert tf.autograph.to_graph(doubled)(1.0) == 2.0
    assert [path.name[:11] for path in tmp_path.iterdir() if path.is_file()] == ["__autograph"]
    remove_generated()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
