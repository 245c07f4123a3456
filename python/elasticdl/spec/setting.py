"""What a setting is: a kind that reads and writes it, a unit, a default and a reason.

Click options, keys of the job file, Python arguments, `spec.json` and the reference page are all made from these values. Not a
place for what settings exist: that is `jobspec.py`. The kinds are written here and not taken from a validation library because
reading a job must cost next to nothing: it lies on the way to the first step, in every process of the job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field
from enum import StrEnum
from typing import Any

from elasticdl.spec import fragments, grammar, pods
from elasticdl.spec.grammar import BestMetric, WorkerRange


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting is read from text or a Python value, and written to JSON.

    Attributes:
        expected: completes "expected …".
        metavar: what `--help` shows in place of a value.
        read: value of the edge → value of the setting; raises ValueError or TypeError.
        write: value of the setting → plain JSON value, which `read` reads back.
        boolean: the flag may stand without a value.
        choices: the allowed words, if they are few.
        document: people write a document, or the name of a file with it.
    """

    expected: str
    metavar: str
    read: Callable[[object], Any]
    write: Callable[[Any], Any] = lambda value: value
    boolean: bool = False
    choices: tuple[str, ...] = ()
    document: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a job, for everything that is made from it.

    Attributes:
        name: its canonical name, with underscores.
        kind: how it is read and written.
        default: its default, or None with `required`.
        required: it has no default.
        group: heading in `--help` and in the reference.
        unit: what a number counts, or empty.
        what: one sentence for `--help`.
        why: the reason for the default, or for the setting.
    """

    name: str
    kind: Kind
    default: Any
    required: bool
    group: str
    unit: str
    what: str
    why: str


def setting(kind: Kind, default: Any = MISSING, *, group: str, what: str, why: str, unit: str = "") -> Any:
    """Declare a field of `JobSpec`."""
    metadata = {"kind": kind, "group": group, "unit": unit, "what": what, "why": why}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def setting_of(declared: Field[Any]) -> Setting:
    """Return what `setting` declared."""
    required = declared.default is MISSING and declared.default_factory is MISSING
    default = None
    if not required:
        default = declared.default_factory() if declared.default_factory is not MISSING else declared.default
    return Setting(declared.name, default=default, required=required, **declared.metadata)


def text(metavar: str = "TEXT") -> Kind:
    """Any text."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        return value

    return Kind("text", metavar, read)


def names(metavar: str = "NAME,…") -> Kind:
    """Names, as a list or as text with commas between."""

    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            value = value.split(",") if value else []
        if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
            raise TypeError
        names = tuple(name.strip() for name in value)
        if not all(names) or len(set(names)) < len(names):
            raise ValueError("each name once, and none empty")
        return names

    return Kind("names with commas between", metavar, read, ",".join)


def words(metavar: str = "COMMAND") -> Kind:
    """Words of a command, as a list or as text that is split like in a shell."""

    def read(value: object) -> tuple[str, ...]:
        import shlex

        if isinstance(value, str):
            return tuple(shlex.split(value))
        if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
            raise TypeError
        return tuple(value)

    def write(value: tuple[str, ...]) -> str:
        import shlex

        return shlex.join(value)

    return Kind("a command", metavar, read, write)


def path(metavar: str = "PATH") -> Kind:
    """A path; `~` is the home directory. Path objects are accepted from Python."""

    def read(value: object) -> str:
        import os

        if not isinstance(value, (str, os.PathLike)):
            raise TypeError
        return os.path.expanduser(os.fspath(value))  # noqa: PTH111 (a URL must keep its double slash)

    return Kind("a path", metavar, read)


def integer(minimum: int, zero: str = "") -> Kind:
    """A whole number; `zero` is a word that people may write for 0."""
    expected = f"a whole number of at least {minimum}" + (f", or {zero!r}" if zero else "")

    def read(value: object) -> int:
        if zero and value == zero:
            return 0
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise TypeError
        number = int(value)
        if number < minimum:
            raise ValueError
        return number

    return Kind(expected, "N", read)


def number(above: float, *, inclusive: bool = False) -> Kind:
    """A finite number above a bound."""
    expected = f"a number {'of at least' if inclusive else 'above'} {above:g}"

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise TypeError
        try:
            real = float(value)
        except OverflowError:  # an integer of hundreds of digits
            raise ValueError from None
        if not math.isfinite(real) or real < above or (real == above and not inclusive):
            raise ValueError
        return real

    return Kind(expected, "X", read)


def flag() -> Kind:
    """True or false."""
    true, false = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")
    words = dict.fromkeys(true, True) | dict.fromkeys(false, False)

    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise TypeError
        return words[value.lower()] if value.lower() in words else _refuse()

    return Kind("true or false", "[true|false]", read, boolean=True)


def choice(of: type[StrEnum]) -> Kind:
    """One of a few words; case does not matter."""
    words = tuple(member.value for member in of)

    def read(value: object) -> StrEnum:
        if isinstance(value, bool):  # YAML reads a bare on/off as a boolean
            value = "on" if value else "off"
        if not isinstance(value, str):
            raise TypeError
        return next((member for member in of if member.value.lower() == value.lower()), None) or _refuse()

    return Kind(_alternatives(words), f"[{'|'.join(words)}]", read, str, choices=words)


def workers() -> Kind:
    """`N` or `MIN:MAX`."""

    def read(value: object) -> WorkerRange:
        if isinstance(value, WorkerRange):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise TypeError
        return grammar.worker_range(str(value))

    return Kind("N or MIN:MAX, both at least 1", "N|MIN:MAX", read, str)


def best_metric() -> Kind:
    """`METRIC` or `METRIC:max`; nothing: none."""

    def read(value: object) -> BestMetric | None:
        if value is None or isinstance(value, BestMetric):
            return value
        if not isinstance(value, str):
            raise TypeError
        return grammar.best_metric(value) if value else None

    return Kind(
        "the name of a metric, or METRIC:max",
        "METRIC[:max]",
        read,
        lambda value: "" if value is None else str(value),
    )


def parameters() -> Kind:
    """`k=v; k=v`, or a mapping from Python and job files."""

    def read(value: object) -> dict[str, object]:
        if isinstance(value, str):
            return grammar.parameters(value)
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise TypeError
        # What a process of the job can't read back must not leave this one.
        if wrong := [name for name in value if not name.isidentifier()]:
            raise ValueError(f"{wrong[0]!r} is no name of a parameter")
        return {name: grammar.literal(name, repr(content)) for name, content in value.items()}

    return Kind("k=v; k=v with Python literals as values", "K=V;K=V", read, grammar.parameters_text)


def resources() -> Kind:
    """Amounts of a pod's resources; a mapping from Python and job files."""
    return _pairs(pods.resources, "amounts such as cpu=500m,memory=2Gi,gpu=1", "cpu=N,memory=N,…")


def memory() -> Kind:
    """An amount of memory."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        if value and pods.amount(value) < 1:
            raise ValueError(f"{value!r} is less than a byte")
        return value

    return Kind("an amount of memory such as 8Gi", "AMOUNT", read, str)


def environment() -> Kind:
    """Environment variables; a mapping from Python and job files, which is also how they are written: values may be any text."""
    expected = "variables such as NAME=value,OTHER=value"

    def read(value: object) -> dict[str, str]:
        if isinstance(value, str):
            return pods.environment(value)
        if not isinstance(value, Mapping) or any(_is_no_scalar(one) for one in value.values()):
            raise TypeError
        return pods.checked_environment((str(name), str(one)) for name, one in value.items())

    return Kind(expected, "NAME=VALUE,…", read, dict)


def pod_fragments() -> Kind:
    """Fragments of pods' manifests, as YAML or as a mapping."""
    expected = "YAML with `metadata` and `spec` of pods, or the name of a file with it"
    return _document(fragments.pod_fragments, expected, "YAML|FILE")


def cluster_fragments() -> Kind:
    """Fragments of the pods' and the Service's manifests, as JSON or as a mapping."""
    expected = 'JSON such as {"pod_spec": {"spec": …}, "service_spec": …}, or the name of a file with it'
    return _document(fragments.cluster_fragments, expected, "JSON|FILE")


def pattern() -> Kind:
    """A regular expression."""

    def read(value: object) -> str:
        import re

        if not isinstance(value, str):
            raise TypeError
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(str(error)) from None
        return value

    return Kind("a regular expression", "REGEX", read)


def volumes() -> Kind:
    """Volumes of pods; from Python and job files also a list of them."""

    def read(value: object) -> tuple[pods.Volume, ...]:
        if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
            value = ";".join(value)
        if not isinstance(value, str):
            raise TypeError
        return pods.volumes(value)

    expected = "volumes such as claim_name=NAME,mount_path=/data; host_path=/x,mount_path=/y"
    return Kind(expected, "KIND=NAME,mount_path=PATH;…", read, pods.volumes_text)


def priority() -> Kind:
    """The name of a priority class, or a share."""

    def read(value: object) -> pods.Priority:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise TypeError
        return pods.priority(str(value))

    return Kind("the name of a PriorityClass, or a share such as 0.5", "CLASS|SHARE", read, str)


def _pairs(read_text: Callable[[str], dict[str, str]], expected: str, metavar: str) -> Kind:
    def read(value: object) -> dict[str, str]:
        if isinstance(value, Mapping) and not any(_is_no_scalar(one) for one in value.values()):
            value = pods.resources_text({str(name): str(one) for name, one in value.items()})
        if not isinstance(value, str):
            raise TypeError
        return read_text(value)

    return Kind(expected, metavar, read, pods.resources_text)


def _document(check: Callable[[Mapping[str, Any]], dict[str, Any]], expected: str, metavar: str) -> Kind:
    def read(value: object) -> dict[str, Any]:
        if isinstance(value, str):
            import yaml

            try:
                value = yaml.safe_load(value)  # JSON is YAML
            except yaml.YAMLError as error:
                mark = getattr(error, "problem_mark", None)
                line = f"line {mark.line + 1}: " if mark is not None else ""
                raise ValueError(f"{line}{getattr(error, 'problem', None) or error}") from None
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise TypeError
        return check(value)

    return Kind(expected, metavar, read, dict, document=True)


def _is_no_scalar(value: object) -> bool:
    return isinstance(value, (bool, Mapping, list))


def _alternatives(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _refuse() -> Any:
    raise ValueError
