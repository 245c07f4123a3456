"""Types of the Rust core's binding; a test checks this file against the binary."""

from collections.abc import Callable, Sequence, Set
from typing import Protocol, final

from elasticdl.control.transport.tls import Identity

class ReadableBuffer(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Endpoint:
    """Where a member's data plane listens: accepts connections for all views, authenticates both ends, sorts them by `hello`.

    One thread, started here (never at import). Addresses: `unix:PATH`, `tcp:HOST:PORT` (port 0 = any), or both as
    `tcp:HOST:PORT+unix:PATH`: members whose sockets are in one folder are of one host, and reach each other there.
    """

    def __init__(self, address: str, member: str, token: bytes, identity: Identity | None = None) -> None:
        """`identity`: a worker's; then all TCP connections are TLS between workers' certificates. Raises BadSetting for what can't be
        used, and for an address that other machines reach where there is none.
        """
    @property
    def address(self) -> str:
        """Where it listens in fact."""
    @property
    def refused(self) -> int:
        """Connections refused so far: wrong certificate or token, malformed or oversized frame, stale view."""
    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """Return refusals since the last call: where each of the first few came from and why, and the number of others."""
    def enter(self, view: int, digest: int) -> None:
        """From now on `view` is current: lower views are stale, a higher one waits for its own `enter`."""
    def seal(self, view: int) -> None:
        """Refuse views up to `view` from now on, and close what is parked for them."""
    def close(self) -> None: ...

@final
class Ring:
    """The ring of one view. All calls that block release the GIL and end with Cancelled after `cancel`."""

    def __init__(
        self,
        endpoint: Endpoint,
        view: int,
        digest: int,
        rank: int,
        peers: Sequence[tuple[str, str]],
        silence: float,
    ) -> None:
        """`peers`: (member id, address) in ring order; `silence`: seconds without a byte in mid-transfer before a peer counts as lost."""
    def reduce(
        self,
        step: int,
        contribution: ReadableBuffer,
        result: ReadableBuffer,
        trailer: Sequence[float],
        short: int = 0,
    ) -> list[float]:
        """Sum `contribution` (float32 or float64, C-contiguous, left intact) over all members into `result`; return the summed trailer.

        The first `short` elements, of float32, travel as bfloat16: each contribution is rounded, and the sum.

        Connects on the first call. Every member gets the same bits. Raises RingBroken(rank, how) or Cancelled.
        Waiting for a peer's contribution is never a fault; silence counts only in the middle of a transfer.
        """
    def cancel(self) -> None:
        """Make a blocked call return, from any thread, and tear the connections so that the others notice."""
    def close(self, linger: bool) -> None:
        """Close the connections; `linger`: flush and half-close first, so that neighbours still get all bytes (after a completed ring)."""
    @property
    def transport(self) -> str:
        """For people: `unix`, `tcp/reno` with the congestion control in force, or `tls+tcp/reno`."""

@final
class StateServer:
    """Serves one state image to the members that heal from this one, on a thread of its own."""

    def __init__(
        self, endpoint: Endpoint, view: int, digest: int, state: tuple[int, int], image: ReadableBuffer
    ) -> None:
        """`image` stays borrowed until `close`."""
    def wait(self, seconds: float) -> list[tuple[str, bool]]:
        """Wait until some transfer has ended (or the time is over): (member id, acknowledged?) of those ended since the last call."""
    def close(self) -> None: ...

@final
class StateTransfer:
    """Fetches a state image from a donor; all or nothing, checksummed, acknowledged."""

    def __init__(
        self,
        endpoint: Endpoint,
        view: int,
        digest: int,
        state: tuple[int, int],
        donor: tuple[str, str],
        silence: float,
    ) -> None: ...
    def run(self) -> bytearray:
        """Return the image. Raises TransferFailed or Cancelled."""
    def acknowledge(self) -> None:
        """Tell the donor that the state is in place."""
    def cancel(self) -> None: ...

@final
class Heart:
    """Sends heartbeats to the master from a Rust thread, so that a long step or the GIL can't silence a healthy member."""

    def __init__(
        self, address: str, member: str, token: bytes, interval: float, identity: Identity | None = None
    ) -> None:
        """Connects, and connects again, by itself; a missing master is no error. `identity`: a worker's, as in `Endpoint`."""
    def set(self, view: int, step: int, progress: int) -> None:
        """What the next beats say: current view, step under way, and a counter that grows with every piece of work done."""
    def close(self) -> None: ...

@final
class HeartMonitor:
    """The master's end of the heartbeats."""

    def __init__(self, address: str, token: bytes, identity: Identity | None = None) -> None:
        """`identity`: the master's, as in `Endpoint`."""
    @property
    def address(self) -> str: ...
    @property
    def refused(self) -> int:
        """Connections refused so far."""
    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """As `Endpoint.refusals`."""
    def poll(self) -> list[tuple[str, int, int, int, float, bool]]:
        """Return (member id, view, step, progress, seconds since the last beat, connected?) of every member ever seen and not forgotten."""
    def forget(self, member: str) -> None: ...
    def close(self) -> None: ...

@final
class TlsProxy:
    """Where other machines reach the master's gRPC: TLS here, and behind it a Unix socket on which gRPC listens without.

    Only workers' certificates are let in. gRPC sees a caller as `unix:FOLDER/HOST:PORT`: the socket's folder, and where it comes from.
    """

    def __init__(self, address: str, to: str, identity: Identity) -> None:
        """`to`: path of the Unix socket; `identity`: the master's. Raises BadSetting for an address that is in use or can't be had."""
    @property
    def address(self) -> str:
        """Where it listens in fact."""
    @property
    def refused(self) -> int:
        """Connections refused so far."""
    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """As `Endpoint.refusals`."""
    def close(self) -> None:
        """Stop listening, and close the connections once they have carried what was sent, after two seconds at the latest."""

@final
class Span:
    """Bytes of a file that were read at once; its length is their number."""

    def __len__(self) -> int: ...

@final
class TFRecordFile:
    """Random access to a TFRecord file through its index (see `index_tfrecord`); CRC checked on every read.

    Errors of the file are BadData and name it: unreadable, changed since it was indexed, a corrupt record (with its number,
    from 0, and byte offset).
    """

    def __init__(self, path: str, index: str) -> None: ...
    @staticmethod
    def within(name: str, content: bytes) -> TFRecordFile:
        """Find the records of `content`, without an index; errors call it `name`. Raises BadData."""
    def span(self, first: int, end: int) -> Span | None:
        """Read the bytes of the records from `first` to before `end` at once, for reads of them that follow.

        None if that is not worth it (long records, too many), or can't be.
        """
    def __len__(self) -> int: ...
    @property
    def fingerprint(self) -> str:
        """Names the state of the file's content; equal or not is all that it says."""
    def read(self, records: Sequence[int], span: Span | None = None) -> list[bytes]:
        """Return the records in the order asked; the first corrupt one raises BadData. Those that `span` has are taken from it."""
    def read_good(
        self, records: Sequence[int], span: Span | None = None
    ) -> tuple[list[bytes], list[tuple[int, str]]]:
        """Return the good ones of the records in the order asked, and (number, what is wrong) of each corrupt one."""

def index_tfrecord(path: str, index: str, progress: Callable[[int, int], None] | None = None) -> int:
    """Write the index file, unless it is there and fits; return the number of records.

    It is written beside and renamed, with checksums and a fingerprint of the file inside. `progress` gets bytes scanned and bytes
    in all; what it raises ends the scan. Raises BadData for a corrupt or cut file, OSError if the index can't be written.
    """

@final
class CSVFile:
    """Random access to the data rows of a CSV file (RFC 4180: quotes, embedded line ends) through its index.

    `header`: whether the first row names the columns; None: it does if none of its fields is empty or reads as a number.
    Lines with nothing on them are skipped. Errors as with TFRecordFile; corrupt means a number of fields that is not the
    first row's, or text that is not UTF-8.
    """

    def __init__(self, path: str, index: str, delimiter: str = ",", header: bool | None = None) -> None: ...
    @staticmethod
    def within(name: str, content: bytes, delimiter: str = ",", header: bool | None = None) -> CSVFile:
        """Find the rows of `content`, without an index; errors call it `name`. Raises BadData."""
    def span(self, first: int, end: int) -> Span | None:
        """Do what that of TFRecordFile does, for data rows."""
    def __len__(self) -> int:
        """Return the number of data rows (the header excluded)."""
    @property
    def header(self) -> list[str] | None:
        """Names of the columns, None if the file has no header."""
    @property
    def columns(self) -> int:
        """Number of fields of the first row; 0 in a file without rows."""
    @property
    def fingerprint(self) -> str:
        """Names the state of the file's content; equal or not is all that it says."""
    def read(self, records: Sequence[int], span: Span | None = None) -> list[list[str]]:
        """Return the data rows in the order asked; the first corrupt one raises BadData."""
    def read_good(
        self, records: Sequence[int], span: Span | None = None
    ) -> tuple[list[list[str]], list[tuple[int, str]]]:
        """Return the good ones of the data rows in the order asked, and (number, what is wrong) of each corrupt one."""

def index_csv(
    path: str, index: str, delimiter: str = ",", progress: Callable[[int, int], None] | None = None
) -> int:
    """Do for CSV what `index_tfrecord` does; return the number of rows, a header included."""

@final
class LinesFile:
    """Random access to the lines of a file through its index. Lines of white space only are skipped, a byte order mark is left out.

    Errors as with TFRecordFile; what is in a line is not looked at.
    """

    def __init__(self, path: str, index: str) -> None: ...
    @staticmethod
    def within(name: str, content: bytes) -> LinesFile:
        """Find the lines of `content`, without an index; errors call it `name`. Raises BadData."""
    def span(self, first: int, end: int) -> Span | None:
        """Read the bytes of the lines from `first` to before `end` at once, for reads of them that follow.

        None if that is not worth it (long lines, too many), or can't be.
        """
    def __len__(self) -> int: ...
    @property
    def fingerprint(self) -> str:
        """Names the state of the file's content; equal or not is all that it says."""
    def read(self, records: Sequence[int], span: Span | None = None) -> list[bytes]:
        """Return the lines in the order asked, without white space around them. Those that `span` has are taken from it."""

def index_lines(path: str, index: str, progress: Callable[[int, int], None] | None = None) -> int:
    """Do for lines what `index_tfrecord` does; a line of more than 64 MiB is corrupt."""

@final
class RecordIOFile:
    """The chunks of a RecordIO file, whose heads say where they are. Errors as with TFRecordFile."""

    def __init__(self, path: str) -> None: ...
    @property
    def chunks(self) -> list[int]:
        """Number of records of each chunk."""
    @property
    def fingerprint(self) -> str:
        """Names the state of the file's content; equal or not is all that it says."""
    def read(self, chunk: int) -> list[bytes]:
        """Return the records of a chunk, decompressed and checked."""

def recordio_chunk(records: Sequence[bytes], compressor: int) -> bytes:
    """Return a chunk of RecordIO with these records, less than 32 MiB in all (else ValueError).

    `compressor`: 0 none, 1 Snappy, 2 gzip.
    """

def fingerprint(path: str) -> str:
    """Return what names the state of a file's content. Raises BadData if it can't be read."""

def looks_like_tfrecord(start: bytes) -> bool:
    """Tell whether the first bytes of a file (12 at least) are the head of a TFRecord."""

def crc32c(data: ReadableBuffer, before: int = 0) -> int:
    """Return the CRC32C (Castagnoli) of bytes; `before`: that of those before them, if they are the rest."""

def all_finite(values: ReadableBuffer) -> bool:
    """Tell whether an array (float32 or float64, C-contiguous, aligned) has no NaN and no infinity.

    Raises TypeError for one of another type, and ValueError for one that is not contiguous.
    """

def version() -> str:
    """Return the version of the Rust core."""

def exit_without_memory(code: int) -> None:
    """Let this process say so and end with `code` when the core gets no memory, where it would be killed by SIGABRT."""

@final
class Catalog:
    """What a model has on parameter servers; `elasticdl.catalog.catalog` has it with names for everything."""

    def __init__(
        self,
        *,
        seed: int,
        slots: int,
        tables: Sequence[tuple[str, int, tuple[str, float, float], int, bool]],
        variables: Sequence[tuple[str, int, bool, bool]],
        optimizer: str,
        parameters: dict[str, float],
        weight_decay: float,
    ) -> None:
        """`tables`: (name, width, (kind of initial weights, first, second), admission, decays); `variables`: (name, length, decays,
        what is pushed is added).

        Raises ValueError for a kind or an optimizer that is not known, or one of its parameters that is missing.
        """
    def with_policy(
        self, modulates: bool, max_staleness: int | None, expiry: int | None, accumulates: bool
    ) -> Catalog:
        """Return it for a server that divides a push's learning rate by its staleness, does not apply one that is staler than
        `max_staleness` versions, forgets rows to which nobody has pushed for `expiry` steps, and keeps the pushes of a step until all of
        them are settled."""
    def slot_of_row(self, table: int, id: int) -> int:
        """Return where a row lives."""
    def slot_of_variable(self, variable: int) -> int:
        """Return where a dense variable lives."""
    def initial(self, table: int, ids: ReadableBuffer) -> bytearray:
        """Return the weights (float32) that rows have before their first push, one after the other."""
    def read_slot(
        self, path: str, slot: int, place: tuple[int, int, int]
    ) -> tuple[list[tuple[bytearray, bytearray]], list[tuple[int, bytearray]]]:
        """Return what a file of a checkpoint has of a slot at (offset, length, checksum): of each table the ids (uint64) that have a row
        and their weights (float32), and the variables that have a value. Raises ValueError if it can't be read.
        """

@final
class Listener:
    """A place where somebody listens already, so that its address can be told; who comes waits until a parameter server takes it."""

    def __init__(self, address: str) -> None:
        """`address`: `unix:PATH`, or `tcp:HOST:PORT` with 0 for any port. Raises BadSetting for one that can't be used."""
    @property
    def address(self) -> str:
        """Where it listens in fact."""

@final
class ParameterServer:
    """A parameter server: listens, holds slots, replicates them. Threads are started here, never at import."""

    def __init__(
        self,
        listener: Listener,
        number: int,
        token: bytes,
        catalog: Catalog,
        identity: Identity | None = None,
    ) -> None:
        """`listener` serves one server, ValueError for a second; `number`: given by the master, never again to another process."""
    @property
    def address(self) -> str:
        """Where it listens in fact."""
    @property
    def refused(self) -> int:
        """Connections refused so far."""
    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """As `Endpoint.refusals`."""
    def learn(
        self,
        addresses: dict[int, str],
        entries: Sequence[tuple[int, int, int, int, int | None, int]],
        roll_back: int,
        tasks: int,
    ) -> None:
        """Take in the other servers' addresses, and entries: (slot, term, primary epoch, primary, backup, roll-back that restored it).

        Nothing is believed of clients that know of a later roll-back, or of tasks beyond the job's number.
        """
    def limit(self, roll_back: int, low: int, above: Sequence[int], steps: int, end: int) -> None:
        """Take in which tasks are done, how many steps can be complete, and where the tasks end that may be under way, as of a roll-back;
        clients are not believed beyond it."""
    def know(self, workers: set[str]) -> None:
        """Take in the names of the job's workers; clients of other names wait until they are named."""
    def copy(self, slot: int, to: int, term: int, hands_over: bool) -> bool:
        """Begin a copy that was ordered in this term; false if it can't be begun."""
    def give_up_copies(self, to: int) -> None:
        """Give up all copies to a server that is dead."""
    def take_ready(self, timeout: float) -> list[tuple[int, int, int, bool]]:
        """Return copies whose receiver has everything: (slot, term, receiver, hands over). Raises ValueError if this server can't go on."""
    def take_lost(self) -> list[int]:
        """Return the servers that could not be reached since the last call."""
    def cut(
        self, path: str, slots: Sequence[tuple[int, int]], position: tuple[int, Sequence[int]], steps: int
    ) -> list[tuple[int, tuple[int, int, int], tuple[int, int, int, int], tuple[int, str]]]:
        """Write slots, each if it has this primary epoch, to a new file, while pushes go on; raises OSError with nothing left.

        `position`: the tasks done when it was begun, all before the first number and those in the list. `steps`: of synchronous
        accumulation so many are complete, and are applied first; a slot that holds pushes of later ones is left out. Returns of each slot
        its number; offset, length and CRC32C in the file; version, low, the task from which on it holds nothing, and number of rows; pushes
        of the position's tasks and the sum of their stamps' hashes.
        """
    def restore(self, path: str, slot: int, place: tuple[int, int, int], renumbered: int | None) -> None:
        """Let a slot that this server is to restore have what lies in a file. Raises ValueError if that can't be read.

        `place`: offset, length and CRC32C. `renumbered`: tasks have other numbers than there, and those before this one are done.
        """
    def begin_anew(self, slots: Sequence[int]) -> None:
        """Let slots that this server is to restore begin with nothing: there is no snapshot."""
    def accounts(self) -> list[tuple[int, int, int, str]]:
        """Return (slot, primary epoch, pushes applied, sum of their stamps' hashes) of the slots of which this server is the primary."""
    def complete(self) -> tuple[int, int]:
        """Return the last roll-back that it has heard of, and how many steps it knows to be complete in it."""
    def load(self) -> tuple[int, int, int]:
        """Return the number of rows, the bytes that rows and variables take, and the number of slots."""
    def close(self) -> None: ...

@final
class Batch:
    """The ids of one table in a minibatch: each once, those of a slot together."""

    def __init__(self, catalog: Catalog, table: int, ids: ReadableBuffer) -> None:
        """`ids`: 64-bit integers, C-contiguous. Raises ValueError for a table that is not there, TypeError for other items."""
    def __len__(self) -> int: ...
    def slots(self) -> list[int]:
        """Return the slots in which its rows live."""
    def ids(self) -> bytearray:
        """Return the distinct ids, uint64."""
    def inverse(self) -> bytearray:
        """Return the place of each id among the distinct ones, uint32."""

@final
class ParameterClient:
    """A worker's connections to all parameter servers; one thread, started here."""

    def __init__(
        self,
        name: str,
        token: bytes,
        catalog: Catalog,
        identity: Identity | None = None,
        *,
        short_gradients: bool = False,
        short_rows: bool = False,
    ) -> None:
        """Connect when it is needed; gradients, and rows, travel as bfloat16 if they are to be short."""
    def learn(
        self,
        addresses: dict[int, str],
        entries: Sequence[tuple[int, int, int, int, int | None, int]],
        roll_back: int,
    ) -> None:
        """Take in what the master says; what was asked before a later roll-back is given up."""
    def pull(
        self,
        chunk: tuple[int, int] | None,
        batches: Sequence[Batch],
        variables: Sequence[int],
        need: tuple[int, int, int, int] | None = None,
        *,
        exact: bool = False,
    ) -> int:
        """Ask for rows and variables for a chunk (task, chunk); return a ticket.

        `exact`: the rows are to have all their bits, also where others travel as bfloat16.
        `need`: they come once so many steps are complete, which is when in all tasks from a first one up to an end so many chunks are
        settled: (steps, first, end, chunks).
        """
    def push(
        self,
        head: tuple[tuple[int, int] | None, int, int, float, int],
        rows: Sequence[tuple[Batch, ReadableBuffer, bool]],
        dense: Sequence[tuple[int, ReadableBuffer]],
        is_first: bool = False,
        wanted: tuple[tuple[int, int] | None, Sequence[Batch], Sequence[int]] | None = None,
        need: tuple[int, int, int, int] | None = None,
        confirms: int = 0,
        marks: Set[int] = frozenset(),
    ) -> int:
        """Push gradients, and pull in the same messages; return a ticket for both.

        `head`: (task, chunk) or none, low, roll-back, learning rate, schedule step. `rows`: float32 gradients of a batch, of its distinct
        ids if the flag is true, else of each id, which are summed. `is_first`: `dense` are first values, which only count once.
        `need` is that of what is pulled. `confirms`: so many chunks of its task are settled once the push is; all servers learn that.
        `marks`: slots in which the stamp counts although nothing changes; only without rows and dense variables.
        """
    def confirm(self, roll_back: int, low: int, tasks: Sequence[tuple[int, int]]) -> None:
        """Tell all servers how far tasks are settled: all before `low`, and of others (task, chunks)."""
    def forget(self) -> None:
        """Give up waiting for all rows that were asked for; variables that came with them come again."""
    def rows(
        self, ticket: int, timeout: float
    ) -> tuple[list[bytearray], list[tuple[int, bytearray | None]], list[int]] | None:
        """Return, once, the weights of each batch's distinct ids, the variables that have changed since they came last (none without a
        first value), and the slots that hold the chunk already; none if they have not all come. Raises ValueError if a server can't answer.
        """
    def ask_ids(self, table: int, first: int, end: int, need: tuple[int, int, int, int] | None = None) -> int:
        """Ask for the ids of a table that have a row in the slots from `first` up to `end`; return a ticket. `need`: as for a pull."""
    def ids(self, ticket: int, timeout: float) -> bytearray | None:
        """Return, once, the ids (uint64) that were asked for, in no order; none if they have not all come.

        Raises ValueError if a server can't answer.
        """
    def settled(self, ticket: int, timeout: float) -> str | None:
        """Return, once, `settled`, `stale` or `rolled back`; none if a push has not ended. Raises ValueError if a server refuses it."""
    def notice(self) -> tuple[list[int], bool]:
        """Return the servers that were lost since the last call, and whether newer entries than known are needed."""
    def close(self) -> None: ...

@final
class LocalVariables:
    """A worker's own copy of the dense variables, with an optimizer of its own; it begins with none."""

    def __init__(self, catalog: Catalog) -> None: ...
    def take(self, variable: int, weights: ReadableBuffer) -> None:
        """Replace a variable's weights (float32); the optimizer's state is kept. Raises ValueError for another number of them."""
    def change(self, pushed: Sequence[tuple[int, ReadableBuffer]], rate: float) -> None:
        """Change variables as a server does, by what is pushed for them (float32); those that were never taken are passed over."""
    def weights(self, variable: int) -> bytearray | None:
        """Return a variable's weights (float32), none if it was never taken."""
