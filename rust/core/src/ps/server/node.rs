//! All slots of one server and its streams to the others, behind locks: a slot's, then a stream's, never the other way round.
//!
//! Nothing in here waits for anybody, so any number of threads may call; what must be told to others comes back from each call.
// What is read here comes from others.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::net::endpoint::lock;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::excerpt::Arrived;
use crate::ps::protocol::placement::{Entry, Server};
use crate::ps::protocol::steps::{Confirmed, Need, WHOLE};
use crate::ps::protocol::stream::{Deed, Message};
use crate::ps::server::data::Data;
use crate::ps::server::slot::{Answer, Broken, Head, Heard, Progress, Slot, Ticket, Told};

mod ways;

use ways::Ways;
pub use ways::{PACKET, Way};

/// Slots in which a push makes its server look for old rows, if it is time to.
const SWEPT: usize = 16;

/// Why a message of another server's stream is not heard.
#[derive(Debug, thiserror::Error)]
pub enum Unheard {
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Broken(#[from] Broken),
}

/// The receiving end of another server's stream.
#[derive(Debug, Default)]
struct Incoming {
    /// The number of the next message.
    next: u64,
    /// What was refused, until the sender knows.
    refused: Vec<u64>,
}

/// How far the master has let the job come. What clients say beyond it is not believed: they may be ahead of this server for a moment, or
/// confused for ever, and with a watermark or a roll-back from nowhere every later push would be answered as done, or never applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// How often the job was rolled back.
    pub roll_back: u64,
    /// How many tasks there are in all epochs.
    pub tasks: u64,
    /// All tasks before are done, in the last roll-back.
    pub low: u64,
    /// So many steps can be complete, in the last roll-back.
    pub steps: u64,
    /// Of the steps of several tasks: where the tasks end that may be under way, in the last roll-back.
    pub end: u64,
}

impl Bounds {
    /// Of a job whose master says nothing.
    pub const NONE: Bounds = Bounds {
        roll_back: u64::MAX,
        tasks: u64::MAX,
        low: u64::MAX,
        steps: u64::MAX,
        end: u64::MAX,
    };

    /// Add what the master says next; but for the number of tasks, what it said before a roll-back means nothing after it.
    fn raise(&mut self, other: &Bounds) {
        if other.roll_back > self.roll_back {
            *self = Bounds {
                roll_back: other.roll_back,
                tasks: self.tasks,
                ..Bounds::default()
            };
        }
        if other.roll_back == self.roll_back {
            self.low = self.low.max(other.low);
            self.steps = self.steps.max(other.steps);
            self.end = self.end.max(other.end);
        }
        self.tasks = self.tasks.max(other.tasks);
    }
}

/// What the master says of the tasks of a roll-back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub roll_back: u64,
    /// All tasks before are done.
    pub low: u64,
    /// Of others these are, where a step waits for several tasks.
    pub above: Vec<u64>,
    /// So many steps can be complete, with the tasks that workers may have by now.
    pub steps: u64,
    /// Where these tasks end.
    pub end: u64,
}

/// A server's memory.
#[derive(Debug)]
pub struct Node {
    me: Server,
    catalog: Catalog,
    slots: Vec<Mutex<Slot>>,
    /// The slot in which old rows are looked for next.
    turn: AtomicUsize,
    /// Both only rise.
    bounds: Mutex<Bounds>,
    /// What is known of chunks that are settled everywhere; in memory only, because those who know it say it again (rule A3).
    settled: Mutex<Confirmed>,
    ways: Mutex<BTreeMap<Server, Arc<Way>>>,
    incoming: Mutex<BTreeMap<Server, Arc<Mutex<Incoming>>>>,
}

/// Parts of pushes that are applied one after the other.
#[derive(Debug)]
pub struct Pushes<'a> {
    ways: Ways<'a>,
    /// As they were at the beginning.
    bounds: Bounds,
}

impl Node {
    /// Hold nothing yet.
    pub fn new(me: Server, catalog: Catalog) -> Node {
        Node {
            me,
            slots: (0..catalog.slots())
                .map(|number| Mutex::new(Slot::new(me, number)))
                .collect(),
            turn: AtomicUsize::new(0),
            bounds: Mutex::default(),
            settled: Mutex::default(),
            catalog,
            ways: Mutex::default(),
            incoming: Mutex::default(),
        }
    }

    /// Return this server's number.
    pub fn me(&self) -> Server {
        self.me
    }

    /// Return what the job's model has.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Return the stream to another server.
    pub fn way(&self, to: Server) -> Arc<Way> {
        lock(&self.ways)
            .entry(to)
            .or_insert_with(|| Arc::new(Way::new()))
            .clone()
    }

    /// Return the servers to which there is a stream.
    pub fn peers(&self) -> Vec<Server> {
        lock(&self.ways).keys().copied().collect()
    }

    /// Take note of how far the master has let the job come.
    pub fn bound(&self, bounds: &Bounds) {
        lock(&self.bounds).raise(bounds);
    }

    /// Take note of which tasks are done, as the master says, and of how many steps can be complete; tell whether it is new that any is
    /// done: rows may have waited for it.
    pub fn limit(&self, limits: &Limits) -> bool {
        self.bound(&Bounds {
            roll_back: limits.roll_back,
            low: limits.low,
            steps: limits.steps,
            end: limits.end,
            ..Bounds::default()
        });
        let mut confirmed = Confirmed::new(limits.roll_back);
        confirmed.raise_low(limits.low);
        for task in &limits.above {
            confirmed.confirm(*task, WHOLE);
        }
        lock(&self.settled).merge(&confirmed)
    }

    fn bounds(&self) -> Bounds {
        *lock(&self.bounds)
    }

    /// Tell whether a client is no further than the master has let the job come, as far as this server knows.
    pub fn believes(&self, need: &Need, confirmed: &Confirmed) -> bool {
        let bounds = self.bounds();
        confirmed.roll_back() <= bounds.roll_back
            && need.end.max(confirmed.end()) <= bounds.end
            && need.number.max(confirmed.steps()) <= bounds.steps
    }

    /// Learn what a client knows of settled chunks, if that can be; tell whether anything of it is new. Where each push is applied by itself
    /// nobody waits for what is settled elsewhere, and no client's word counts.
    pub fn confirm(&self, confirmed: &Confirmed) -> bool {
        let low = self.bounds().low;
        self.catalog.policy().accumulates
            && self.believes(&Need::default(), confirmed)
            && lock(&self.settled).merge(&confirmed.held_to(low))
    }

    /// Tell whether rows may be read by one who needs this, in this roll-back; one from before a later roll-back waits for nothing.
    pub fn meets(&self, need: &Need, roll_back: u64) -> bool {
        let settled = &mut lock(&self.settled);
        roll_back < settled.roll_back() || settled.meets(need)
    }

    /// Return the last roll-back that this server has heard of, and how many steps it knows to be complete in it.
    pub fn complete(&self) -> (u64, u64) {
        let settled = lock(&self.settled);
        (settled.roll_back(), settled.steps())
    }

    /// Take note that so many steps are complete, as the primary of a slot knows: this server may follow it.
    fn follow(&self, steps: u64, roll_back: u64) {
        let is_possible = steps <= self.bounds().steps;
        let settled = &mut lock(&self.settled);
        if is_possible && settled.roll_back() == roll_back {
            settled.raise_steps(steps);
        }
    }

    /// Apply the steps that are complete in slots (rule A3); nothing where each push is applied by itself.
    pub fn step(&self, slots: impl Iterator<Item = u32>) -> std::result::Result<(), Broken> {
        if !self.catalog.policy().accumulates {
            return Ok(());
        }
        let (roll_back, steps) = self.complete();
        for slot in slots {
            self.step_to(slot, roll_back, steps)?;
        }
        Ok(())
    }

    fn step_to(&self, slot: u32, roll_back: u64, steps: u64) -> std::result::Result<(), Broken> {
        match self.slots.get(slot as usize) {
            Some(slot) => lock(slot).step(&self.catalog, roll_back, steps, &mut Ways::of(self)),
            None => Ok(()),
        }
    }

    /// Tell whether rows of any of these slots are not to be read yet: not all required servers have accepted its last step (rule A4).
    pub fn is_unread(&self, mut slots: impl Iterator<Item = u32>) -> bool {
        slots.any(|slot| self.look(slot, Slot::is_unread) == Some(true))
    }

    /// Apply the steps before this one in a slot, as the master orders it for a snapshot (rule A6); nothing if the slot has another primary epoch
    /// by now: after a roll-back those steps are not complete.
    pub fn step_for_cut(
        &self,
        slot: u32,
        primary_epoch: u64,
        steps: u64,
    ) -> std::result::Result<(), Broken> {
        let roll_back = self.look(slot, |slot| {
            Some(slot.cut(primary_epoch)?.stamps.roll_back())
        });
        match roll_back.flatten() {
            Some(roll_back) => self.step_to(slot, roll_back, steps),
            None => Ok(()),
        }
    }

    /// Begin to apply parts of pushes.
    pub fn pushes(&self) -> Pushes<'_> {
        Pushes {
            ways: Ways::of(self),
            bounds: self.bounds(),
        }
    }

    /// Call `look` with a slot, `None` if there is no such; nobody else has it meanwhile.
    pub fn look<R>(&self, slot: u32, look: impl FnOnce(&Slot) -> R) -> Option<R> {
        Some(look(&lock(self.slots.get(slot as usize)?)))
    }

    /// Call `alter` with a slot, to do something wrong with it.
    #[cfg(feature = "simulation")]
    pub fn alter(&self, slot: u32, alter: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.slots.get(slot as usize) {
            alter(&mut lock(slot));
        }
    }

    /// Learn entries of the journal.
    pub fn learn(
        &self,
        entries: impl IntoIterator<Item = (u32, Entry)>,
    ) -> std::result::Result<Vec<Told>, Broken> {
        let mut told = Vec::new();
        for (slot, entry) in entries {
            if let Some(slot) = self.slots.get(slot as usize) {
                lock(slot).learn(entry, &self.catalog, &mut told)?;
            }
        }
        Ok(told)
    }

    /// Take in a slot's content from a snapshot.
    pub fn load(&self, slot: u32, data: Data) {
        if let Some(slot) = self.slots.get(slot as usize) {
            lock(slot).load(data);
        }
    }

    /// Hear a message of another server's stream; one that has been heard before is passed over, and one that can't be the next, or is of
    /// no slot, is malformed: it says nothing of what is held here. Of one that is not heard nothing is accepted, but `told` says what came
    /// of its entry.
    pub fn hear(
        &self,
        from: Server,
        number: u64,
        message: &Message,
        told: &mut Vec<Told>,
    ) -> std::result::Result<(), Unheard> {
        let incoming = self.incoming(from);
        // Two connections of one server may stand for a moment: the later one waits here.
        let mut incoming = lock(&incoming);
        if number < incoming.next {
            return Ok(());
        }
        let slot = self
            .slots
            .get(message.slot as usize)
            .filter(|_| number == incoming.next)
            .ok_or(Malformed(
                "a message is not the stream's next, or of no slot",
            ))?;
        let mut slot = lock(slot);
        let heard = slot.hear(message, &self.catalog, told)?;
        let roll_back = slot.data().map(|data| data.stamps.roll_back());
        drop(slot);
        match (heard, &message.deed, roll_back) {
            (Heard::Fenced, ..) => incoming.refused.push(number),
            (Heard::Accepted, Deed::Step(steps), Some(roll_back)) => self.follow(*steps, roll_back),
            (Heard::Accepted, ..) => {}
        }
        incoming.next = number.saturating_add(1);
        Ok(())
    }

    /// Return the number of the next message of another server's stream to here, and those that were refused; the sender has heard of all
    /// before number `known`.
    pub fn heard(&self, from: Server, known: u64) -> (u64, Vec<u64>) {
        let incoming = self.incoming(from);
        let mut incoming = lock(&incoming);
        incoming.refused.retain(|number| *number >= known);
        (incoming.next, incoming.refused.clone())
    }

    fn incoming(&self, from: Server) -> Arc<Mutex<Incoming>> {
        lock(&self.incoming).entry(from).or_default().clone()
    }

    /// Take note that a server has accepted all messages before number `next`, but refused these of them.
    pub fn accepted(&self, by: Server, next: u64, refused: &[u64]) -> Vec<Told> {
        let mut told = Vec::new();
        let receipts = self.way(by).outgoing().accepted(next);
        for receipt in receipts {
            let Some(slot) = self.slots.get(receipt.slot as usize) else {
                continue;
            };
            let mut slot = lock(slot);
            if refused.contains(&receipt.number) {
                slot.depose(&receipt, &mut told);
            } else {
                slot.accepted(by, &receipt, &mut told);
            }
        }
        told
    }

    /// Begin a copy that the master has ordered in this term; false if it can't be.
    pub fn copy(&self, slot: u32, to: Server, term: u64, hands_over: bool) -> bool {
        self.slots
            .get(slot as usize)
            .is_some_and(|slot| lock(slot).copy(to, term, hands_over, &mut Ways::of(self)))
    }

    /// Put the next piece of a copy under way into its stream.
    pub fn go_on_copying(&self, slot: u32) -> Progress {
        self.slots
            .get(slot as usize)
            .map_or(Progress::Over, |slot| {
                lock(slot).go_on_copying(&self.catalog, &mut Ways::of(self))
            })
    }

    /// Give up all copies to a server that is dead.
    pub fn give_up_copies(&self, to: Server) -> Vec<Told> {
        let mut told = Vec::new();
        for slot in &self.slots {
            lock(slot).give_up_copy(to, &mut told);
        }
        told
    }

    /// Forget rows of a slot that were pushed last before a step; false if this server can't.
    pub fn expire(&self, slot: u32, time: u32) -> bool {
        self.slots
            .get(slot as usize)
            .is_some_and(|slot| lock(slot).expire(time, &mut Ways::of(self)))
    }
}

impl Pushes<'_> {
    /// Apply a part of a push that came by an entry of this term; without an answer now, some call will tell one for the ticket.
    pub fn push(
        &mut self,
        slot: u32,
        head: &Head,
        term: u64,
        part: Arrived<'_>,
        ticket: Ticket,
    ) -> Option<Answer> {
        let node = self.ways.node;
        let Some(one) = node.slots.get(slot as usize) else {
            return Some(Answer::Refused(format!("there is no slot {slot}")));
        };
        let bounds = self.bounds;
        let task = head.stamp.map_or(0, |stamp| stamp.task.saturating_add(1));
        if head.roll_back > bounds.roll_back || head.low.max(task) > bounds.tasks {
            return Some(Answer::Busy);
        }
        // A lower watermark closes fewer tasks: a push may always have been sent before its client knew of more (R10).
        let head = &Head {
            low: head.low.min(bounds.low),
            ..*head
        };
        let answer = lock(one).push(&node.catalog, head, term, part, ticket, &mut self.ways);
        if let Some(expiry) = node.catalog.policy().expiry {
            // Other slots at each push, in turn: one whose rows nobody touches has no pushes of its own.
            let turn = node.turn.fetch_add(SWEPT, Ordering::Relaxed);
            let turns = node.slots.iter().cycle();
            for slot in turns
                .skip(turn.checked_rem(node.slots.len()).unwrap_or(0))
                .take(SWEPT.min(node.slots.len()))
            {
                lock(slot).sweep(expiry, head.pace.step, &mut self.ways);
            }
        }
        answer
    }
}
