"""What the tools write is what TensorFlow reads, and what comes out again here."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl._core import TFRecordFile, index_tfrecord
from elasticdl.data.readers.writing import encode_example, write_tfrecord
from model_zoo.iris import make_data as iris
from model_zoo.mnist import make_data as mnist


def read(path: Path, index: Path) -> list[bytes]:
    count = index_tfrecord(str(path), str(index))
    return TFRecordFile(str(path), str(index)).read(range(count))


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_records_come_out_again(records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        assert write_tfrecord(path, records) == len(records)
        assert read(path, Path(folder, "index")) == records


def test_an_example_is_encoded_as_by_tensorflow() -> None:
    expected = "0a210a0a0a016112050a030a01780a130a0162120e1a0c0a0affffffffffffffffff01"
    assert encode_example({"a": b"x", "b": -1}).hex() == expected


def test_nothing_stays_behind_when_writing_fails(tmp_path: Path) -> None:
    def records() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_tfrecord(tmp_path / "file", records())
    assert list(tmp_path.iterdir()) == []


def test_tensorflow_reads_what_is_written(tmp_path: Path) -> None:
    import tensorflow

    features = {"image": bytes(range(256)) * 3, "label": -7, "ünïcode": 2**62, "empty": b""}
    write_tfrecord(tmp_path / "file", [encode_example(features), b""])
    first, second = (record.numpy() for record in tensorflow.data.TFRecordDataset(str(tmp_path / "file")))
    assert second == b""
    parsed = tensorflow.train.Example.FromString(first).features.feature
    assert parsed["image"].bytes_list.value[:] == [features["image"]]
    assert parsed["label"].int64_list.value[:] == [-7]
    assert parsed["ünïcode"].int64_list.value[:] == [2**62]
    assert parsed["empty"].bytes_list.value[:] == [b""]


def test_what_tensorflow_writes_is_read(tmp_path: Path) -> None:
    import tensorflow

    records = [bytes([i]) * i * 100 for i in range(20)]
    with tensorflow.io.TFRecordWriter(str(tmp_path / "file")) as writer:
        for record in records:
            writer.write(record)
    assert read(tmp_path / "file", tmp_path / "index") == records


def test_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mnist.main([str(tmp_path), "--files=3"]) == 0
    assert "1438 digits in 3 files" in capsys.readouterr().out
    train = sorted((tmp_path / "train").iterdir())
    held_out = sorted((tmp_path / "heldout").iterdir())
    counts = [len(read(path, tmp_path / f"{path.name}.index")) for path in [*train, *held_out]]
    assert counts == [479, 479, 480, 359]
    before = [path.read_bytes() for path in train]
    assert mnist.main([str(tmp_path), "--files=2"]) == 0
    assert len(list((tmp_path / "train").iterdir())) == 2, "files of the earlier run are gone"
    assert mnist.main([str(tmp_path), "--files=3"]) == 0
    assert [path.read_bytes() for path in train] == before


def test_enlarging_keeps_constant_images_and_the_order_of_brightness() -> None:
    flat = np.full((2, 8, 8), 255.0)
    assert (mnist.enlarge(flat) == 255).all()
    ramp = np.tile(np.arange(8) * 30.0, (1, 8, 1))
    big = mnist.enlarge(ramp)
    assert big.shape == (1, 28, 28)
    assert big.dtype == np.uint8
    assert (np.diff(big[0, 0].astype(int)) >= 0).all()
    assert (big[0, 0, 0], big[0, 0, -1]) == (0, 210)


def write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    content = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_idx_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "idx", tmp_path / "out"
    source.mkdir()
    images = np.arange(6 * 784).reshape(6, 28, 28) % 251
    write_idx(source / "train-images-idx3-ubyte", images)
    write_idx(source / "train-labels-idx1-ubyte.gz", np.arange(6))
    write_idx(source / "t10k-images-idx3-ubyte.gz", images[:2])
    write_idx(source / "t10k-labels-idx1-ubyte", np.arange(2))
    assert mnist.main([str(out), "--idx", str(source), "--files=1"]) == 0
    records = read(out / "train/digits-00-of-01.tfrecord", tmp_path / "index")
    assert records == [
        encode_example({"image": images[i].astype(np.uint8).tobytes(), "label": i}) for i in range(6)
    ]
    capsys.readouterr()

    write_idx(source / "t10k-labels-idx1-ubyte", np.arange(3))
    assert mnist.main([str(out), "--idx", str(source)]) == 2
    assert "3 labels" in capsys.readouterr().err
    (source / "t10k-labels-idx1-ubyte").write_bytes(b"nonsense")
    assert mnist.main([str(out), "--idx", str(source)]) == 2
    assert "no IDX file" in capsys.readouterr().err
    assert mnist.main([str(out), "--idx", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_iris(tmp_path: Path) -> None:
    assert iris.main([str(tmp_path)]) == 0
    train = (tmp_path / "train/iris.csv").read_text().splitlines()
    held_out = (tmp_path / "heldout/iris.csv").read_text().splitlines()
    assert train[0] == held_out[0] == "sepal_length,sepal_width,petal_length,petal_width,class"
    assert (len(train), len(held_out)) == (121, 31)
    assert {row[-1] for row in train[1:]} == {row[-1] for row in held_out[1:]} == set("012")


def test_the_tools_explain_themselves() -> None:
    for tool in (mnist, iris):
        shown = subprocess.run(
            [sys.executable, str(tool.__file__), "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "DIR/train" in shown.stdout
