"""The auditor: proves from the members' own records that each record of each epoch was trained exactly once.

It is not part of a job: it reads a directory that a job left behind (or is still writing) and shares no code with the bookkeeping
that it checks, neither the ledger nor the views nor the writers; that is why the format stands here in words, and the writers follow
these words. The proof for a synchronous job is about lineage (`lineage.py`): of each step the history is the highest view that committed
it, with the contributions of all members of that view, also of those that died. That for a job with parameter servers is about sums
(`stamps.py`): what each part of the model says to have applied is what the workers' lines add up to, each chunk taken once.

The directory
-------------

``manifest``, written by the master before any member starts, and ``finished``, written by the master after it has journalled the end
of the job, are each one JSON object with a ``checksum``: the CRC-32 (``zlib.crc32``), as eight lower-case hexadecimal digits, of
``json.dumps(body, sort_keys=True, separators=(",", ":"))`` in UTF-8, where ``body`` is the object without ``checksum``.
Both are written beside, synced and renamed. A directory that already holds a manifest belongs to another job: the master refuses it.

``manifest``::

    {"format": 1, "shards": [[name, start, count], …], "seed": 7, "records_per_task": 512, "minibatch_size": 64,
     "num_epochs": 2, "checksum": "…"}

``finished``: the state of the result, the number of the final view, and whether the data was used up (false after an early end)::

    {"format": 1, "view": 9, "step": 120, "state_view": 8, "complete": true, "checksum": "…"}

``NAME-MEMBERID.audit`` (``worker-3-2-0123….audit``), one per member, is text, one line per entry. Fields are separated by one space; the
last one is the line's running checksum: the CRC-32, eight lower-case hexadecimal digits, of all bytes of the line before the space
that precedes the checksum, begun with the checksum of the line before (0 for the first line), as in ``zlib.crc32(text, previous)``::

    elasticdl-audit 1 MEMBERID NAME CRC
    base VIEW STEP STATE_VIEW MEMBERID,MEMBERID,… CRC             the view was installed; it starts from state (STEP, STATE_VIEW)
    contributed VIEW STEP LANE EPOCH TASK CHUNK RECORDS BAD CRC   before the first byte is given to the ring, one for each chunk
    committed VIEW STEP RECORDS APPLIED CRC                       before the result is applied; RECORDS is the sum in the ring's trailer

Several shards may have one name: name and start tell them apart, and no record (name, index) is in two of them. An index counts inside
the source that the name stands for, so a shard has the records start to start + count - 1.

TASK is the number of the task in the order of the shards, each cut in tasks of ``records_per_task`` records and a shorter last one (an
empty shard has none); EPOCH and TASK count from 0, as do SLOT and CHUNK. RECORDS of a chunk are the records of its range, BAD of which
were skipped as corrupt. APPLIED is 1, or 0 if the step's loss or gradient was not finite and the step changed nothing. A chunk that is
empty because its task is short may be written with 0 records or left out. A line has less than 1 MiB. Lines are handed to the kernel
before what they announce happens, so that a killed process loses none that counts. A file may end in a line that was cut by its writer's
death; it counts for nothing.

A job that continued from a checkpoint has one more file, ``beginning``, written before anything is trained: its first view starts from
``step`` of view 0. Trained before were all epochs before ``epoch`` (0, 1, …), of that one the tasks in ``done``, and of those in ``begun``
so many first chunks. No line is of these::

    {"format": 1, "checkpoint": path, "step": 1200, "epoch": 2, "done": [0, 7, 9], "begun": [[4, 3]], "checksum": "…"}

With parameter servers
----------------------

``manifest`` has ``"serving": true``, lines are of one kind, and the master writes one file more before ``finished``. ``finished`` has 0 for
``view``, the number of chunks for ``step`` and that of the export for ``state_view``::

    chunk NUMBER CHUNK EPOCH TASK RECORDS BAD SLOTS CRC           before the first byte is pushed

NUMBER is the task's place in the order of training, counted through all epochs, and SLOTS the set of the slots that the chunk's gradient
goes to: bit n, of a number in hexadecimal digits, for slot n; 0 if the chunk changes nothing. ``accounts``: of each slot the number of
pushes that it has applied, and the sum of ``h(NUMBER, CHUNK)`` over them modulo 2**128, in 32 hexadecimal digits::

    {"format": 1, "slots": [[slot, pushes, sum], …], "checksum": "…"}

A job that continued from a checkpoint has one more file, ``beginning``, written before anything is trained: the tasks that were done then
(all before ``low``, and those in ``above``), and what each slot had applied of these. Its lines are of other tasks only, and what slots
have applied in the end is that and what the lines add up to. Lines of chunks that a slot held already are there, too: a worker that finds
that writes them. ``begun``, which may be missing, says of how many first chunks of tasks that were not done all slots held the gradients:
these count in the audits of both jobs, and were applied once. That the tasks done before are the ones of which no line is there follows
from their number::

    {"format": 1, "checkpoint": path, "low": 96, "above": [98, 99], "begun": [[97, 3]],
     "slots": [[slot, pushes, sum], …], "checksum": "…"}

``h(n, c)`` is ``b << 64 | a`` with ``a = mix(mix(n + G) ^ c)`` and ``b = mix(a + G)``, all modulo 2**64, where ``G`` is 0x9e3779b97f4a7c15
and ``mix`` the finaliser of SplitMix64.
"""

from __future__ import annotations

from pathlib import Path

from elasticdl.audit import lineage, stamps
from elasticdl.audit.records import FORMAT, read_finished, read_manifest
from elasticdl.audit.report import EpochReport, Report

__all__ = ["FORMAT", "EpochReport", "Report", "audit"]


def audit(directory: Path) -> Report:
    """Check the records that a job left in `directory`.

    A job that still runs may be audited; what its members write meanwhile is left for the next time.

    Raises AuditFailed, naming file and line or the record, if the proof does not hold; BadInput if there is nothing to audit.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    prove = stamps.prove if manifest.has_servers else lineage.prove
    return prove(directory, manifest, read_finished(directory))
