"""What goes wrong in a world, and when: who is killed, paused, cut off or asked to leave, by its seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticdl.master.core import events as to_master
from elasticdl.worker import events as to_member
from tests.simulation.processes import MasterProcess, Worker

if TYPE_CHECKING:
    from tests.simulation.world import World


class Faults:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        plan = world.plan
        self._world = world
        self._export_faults = plan.export_faults
        self._gate_faults = plan.gate_faults
        self._part_faults = plan.part_faults

    def plan(self) -> None:
        """Let each fault of the plan happen at a random event."""
        plan = self._world.plan
        for count, fault in (
            (plan.kills, self._kill_somebody),
            (plan.pauses, self._pause_somebody),
            (plan.drains, self._drain_somebody),
            (plan.errors, self.break_program),
            (plan.glitches, self._break_link),
            (plan.disconnects, self._disconnect_somebody),
            (plan.partitions, self._partition_somebody),
            (plan.master_kills, self._kill_master),
            (plan.master_pauses, self._pause_master),
            (plan.second_masters, self._world.start_master),
            (plan.stops, self._ask_stop),
            (plan.hangs, self._hang_somebody),
            (plan.stuck, self._stick_somebody),
        ):
            for _ in range(count):
                self._world.at_event(fault)

    def _someone(self) -> Worker | None:
        alive = [worker for worker in self._world.workers if worker.lives]
        return self._world.random.choice(alive) if alive else None

    def _kill_somebody(self) -> None:
        worker = self._someone()
        if worker is not None:
            self._world.oracle.faultless = False
            self._world.kill(worker, "killed by SIGKILL")

    def _pause_somebody(self) -> None:
        worker = self._someone()
        if worker is not None:
            self.pause(worker)

    def pause(self, worker: Worker) -> None:
        if worker.status == "up":
            self._world.oracle.faultless = False
            self._world.say(f"{worker.name} is paused")
            worker.status = "paused"
            self._world.after(
                self._world.random.choice((0.3, 3.0, 5.0, 30.0)) * self._world.random.random(),
                f"{worker.name} wakes up",
                lambda: self.wake(worker),
            )

    def _hang_somebody(self) -> None:
        worker = self._someone()
        if worker is not None:
            self._world.oracle.faultless = False
            self._world.say(f"{worker.name} hangs for ever")
            worker.status = "paused"
            worker.hangs = True

    def _stick_somebody(self) -> None:
        worker = self._someone()
        if worker is not None:
            self._world.oracle.faultless = False
            self._world.say(f"the program of {worker.name} hangs for ever")
            worker.stuck = True

    def wake(self, process: Worker | MasterProcess) -> None:
        if process.status != "paused" or (isinstance(process, Worker) and process.hangs):
            return
        process.status = "up"
        stash, process.stash = process.stash, []
        for event in stash:
            if isinstance(process, Worker):
                self._world.feed(process, event)
            else:
                self._world.feed_master(process, event)

    def _drain_somebody(self) -> None:
        worker = self._someone()
        if worker is not None:
            self._world.say(f"{worker.name} gets SIGTERM")
            self._world.feed(worker, to_member.DrainRequested())

    def break_program(self) -> None:
        worker = self._someone()
        if worker is not None:
            self._world.oracle.faultless = False
            self._world.oracle.erred = True
            self._world.say(f"{worker.name} hits a program error")
            signature = self._world.random.choice(("A", "B", "C"))
            self._world.feed(worker, to_member.ProgramError("program", signature, "", "Traceback"))

    def _break_link(self) -> None:
        rings = [(r, m) for r in self._world.rings.values() for m in r.waiting if not r.waiting[m][1].done]
        if rings:
            self._world.oracle.faultless = False
            ring, member = self._world.random.choice(rings)
            others = [peer.id for peer in ring.view.members if peer.id != member]
            self._world.fail_ring(ring, member, self._world.random.choice(others) if others else None)

    def _disconnect_somebody(self) -> None:
        worker = self._someone()
        if worker is not None and worker.connection is not None:
            self._world.oracle.faultless = False
            self._world.cut(worker.connection)

    def _partition_somebody(self) -> None:
        worker = self._someone()
        if worker is not None:
            self.partition(worker)

    def partition(self, worker: Worker) -> None:
        self._world.oracle.faultless = False
        self._world.say(f"{worker.name} can't reach any master")
        worker.unreachable_until = self._world.now + self._world.random.uniform(1.0, 6.0)
        if worker.connection is not None:
            self._world.cut(worker.connection)

    def break_exporter(self, worker: Worker) -> None:
        if self._export_faults:
            self._export_faults -= 1
            fault = self._world.random.choice(
                (self.partition, self.pause, lambda w: self._world.kill(w, "killed by SIGKILL"))
            )
            self._world.after(
                self._world.delay("file"),
                f"something happens to {worker.name}",
                lambda: fault(worker) if worker.lives else None,
            )

    def _kill_master(self) -> None:
        alive = self._world.live_masters()
        if alive:
            self._world.end_master(self._world.random.choice(alive), "dead")

    def _pause_master(self) -> None:
        alive = [master for master in self._world.masters if master.status == "up"]
        if alive:
            master = self._world.random.choice(alive)
            self._world.say(f"master {master.number} is paused")
            self._world.oracle.faultless = False
            master.status = "paused"
            self._world.after(
                self._world.delay("pause"), f"master {master.number} wakes up", lambda: self.wake(master)
            )

    def _ask_stop(self) -> None:
        if self._world.stop_reply is None:
            self._world.stop_reply = False
        if self._world.stop_reply or self._world.ended is not None:
            return
        alive = self._world.live_masters()
        if alive:
            self._world.feed_master(self._world.random.choice(alive), to_master.StopAsked(1, "asked"))
        self._world.after(0.5, "the client asks again", self._ask_stop)

    def end(self) -> None:
        """From here on nothing breaks any more: the job must end."""
        self._world.faulty = False
        self._world.say("faults are over")
        for process in (*self._world.workers, *self._world.masters):
            self.wake(process)

    def break_at_gate(self, worker: Worker) -> None:
        """Let something happen when a result is there and nobody has heard of it yet, or soon after."""
        if not self._gate_faults or self._world.random.random() < 0.5:
            return
        self._gate_faults -= 1
        faults: dict[str, Callable[[], None]] = {
            "kill": lambda: self._world.kill(worker, "killed by SIGKILL"),
            "drain": lambda: self._world.feed(worker, to_member.DrainRequested()),
            "join": lambda: self._world.start_worker(200 + len(self._world.workers), 0),
            "stop": self._ask_stop,
            "master": self._kill_master,
            "second master": self._world.start_master,
            "pause": lambda: self.pause(worker),
            "cut": self._disconnect_somebody,
        }
        fault = self._world.random.choice(tuple(faults))
        self._world.say(f"at the gate: {fault}")
        self._world.after(self._world.delay("message"), fault, faults[fault])

    def break_at_part(self, worker: Worker | None) -> None:
        """Let something happen when a part or a manifest is written and nobody has heard of it yet, or soon after."""
        if not self._part_faults or self._world.random.random() < 0.5:
            return
        self._part_faults -= 1
        faults: dict[str, Callable[[], None]] = {
            "kill": self._kill_somebody,
            "kill all": lambda: (
                [self._world.kill(one, "killed by SIGKILL") for one in list(self._world.workers)] and None
            ),
            "join": lambda: self._world.start_worker(300 + len(self._world.workers), 0),
            "drain": self._drain_somebody,
            "stop": self._ask_stop,
            "master": self._kill_master,
            "second master": self._world.start_master,
            "cut": self._disconnect_somebody,
            "break": self._break_link,
        }
        if worker is not None:
            faults["kill it"] = lambda: self._world.kill(worker, "killed by SIGKILL")
            faults["pause"] = lambda: self.pause(worker)
        fault = self._world.random.choice(tuple(faults))
        self._world.say(f"at a part: {fault}")
        self._world.after(self._world.delay("message"), fault, faults[fault])
