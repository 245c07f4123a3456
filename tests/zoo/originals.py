"""Small files in the formats in which data sets are published, with something in them that can be learned."""

from __future__ import annotations

import csv
import gzip
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from model_zoo.census.fields import COLUMNS, NUMBERS


def census(folder: Path) -> None:
    """Write 400 and 100 persons of the KDD census: who worked all year with a degree earns much."""
    for name, count in (("census-income.data", 400), ("census-income.test", 100)):
        draw = np.random.default_rng(count)
        persons = []
        for _ in range(count):
            educated, weeks = bool(draw.integers(2)), int(draw.integers(53))
            person = {column: f"some {draw.integers(5)}" for column in COLUMNS}
            person |= {column: str(draw.integers(100)) for column in NUMBERS}
            person |= {
                "education": "Masters degree(MA MS)" if educated else " Children",
                "weeks_worked": str(weeks),
            }
            person |= {
                "instance_weight": "1700.09",
                "income": "50000+." if educated and weeks > 26 else "- 50000.",
            }
            persons.append(person)
        lines(folder / name, (", ".join(person.values()) for person in persons))


def heart(folder: Path) -> None:
    """Write 300 patients of processed.cleveland.data: who has no pain is ill; some values are unknown."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(300):
        pain, ages = int(draw.integers(1, 5)), draw.integers(30, 80, 5)
        unknown = "?" if number % 9 == 0 else "3.0"
        rows.append(
            f"{ages[0]}.0,1.0,{pain}.0,{ages[1]}.0,{ages[2]}.0,0.0,2.0,{ages[3]}.0,0.0,2.3,3.0,{unknown},6.0,{pain // 4 * 2}"
        )
    lines(folder / "processed.cleveland.data", rows)


def churn(folder: Path) -> None:
    """Write 400 customers of WA_Fn-UseC_-Telco-Customer-Churn.csv: who has no long contract leaves; the new have no bill."""
    draw = np.random.default_rng(0)
    columns = (
        "customerID", "gender", "SeniorCitizen", "Partner", "Dependents", "tenure", "PhoneService", "MultipleLines", "InternetService",
        "OnlineSecurity", "OnlineBackup", "DeviceProtection", "TechSupport", "StreamingTV", "StreamingMovies", "Contract",
        "PaperlessBilling", "PaymentMethod", "MonthlyCharges", "TotalCharges", "Churn",
    )  # fmt: skip
    rows = []
    for number in range(400):
        row = dict.fromkeys(columns, "No") | {
            "gender": "Female",
            "SeniorCitizen": "0",
            "MonthlyCharges": "29.85",
        }
        tenure, leaves = int(draw.integers(60)), bool(draw.integers(2))
        row |= {
            "customerID": f"{number}-A",
            "tenure": str(tenure),
            "TotalCharges": str(30 * tenure) if tenure else " ",
        }
        row |= {"Contract": "Month-to-month" if leaves else "Two year", "Churn": "Yes" if leaves else "No"}
        rows.append(list(row.values()))
    with (folder / "WA_Fn-UseC_-Telco-Customer-Churn.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def cifar(folder: Path) -> None:
    """Write 20 records for each of CIFAR-10's binary files: how bright a picture is says its class."""
    for number, name in enumerate([*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin"]):
        labels = np.random.default_rng(number).integers(0, 10, 20)
        planes = np.repeat((25 * labels)[:, None] + [1, 2, 3], 32 * 32, axis=1)
        np.concatenate([labels[:, None], planes], axis=1).astype(np.uint8).tofile(folder / name)


def fashion(folder: Path) -> None:
    """Write 60 and 20 pictures as the IDX files of Fashion-MNIST, gzipped: how bright a picture is says its class."""
    for prefix, count in (("train", 60), ("t10k", 20)):
        labels = np.arange(count) % 10
        images = np.repeat(25 * labels, 28 * 28)
        for kind, shape, values in (
            ("images-idx3", (count, 28, 28), images),
            ("labels-idx1", (count,), labels),
        ):
            head = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
            with gzip.open(folder / f"{prefix}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + values.astype(np.uint8).tobytes())


def wordnet(folder: Path) -> None:
    """Write 200 glosses for each of WordNet's files: a word says the topic."""
    topics = {"noun": range(3, 29), "verb": range(29, 44), "adj": (0, 1, 44), "adv": (2,)}
    for part, (name, numbers) in enumerate(topics.items()):
        draw = np.random.default_rng(part)
        found = draw.choice(numbers, 200)
        entries = (
            f'{place:08d} {topic:02d} {name[0]} 01 word 0 000 | being word{chr(97 + topic % 26)}{chr(97 + topic // 26)}; "an example"  '
            for place, topic in enumerate(found)
        )
        lines(folder / f"data.{name}", ["  1 This software and database is being provided to you", *entries])


def lines(path: Path, content: Iterable[str] | Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
