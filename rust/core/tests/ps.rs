//! Servers under a seeded scheduler: every order of messages, losses of servers, false suspicions, migrations, late and repeated pushes.
//!
//! With two replicas nothing that was acknowledged is lost. With one, slots come back from the last snapshot, and what was done since is done
//! again; a task that counts as done is in every slot once.
//!
//! Each chunk's gradient counts it in a column of its own, so that a row shows how often each chunk was applied to it. The master here is
//! the least that the protocol needs; the real one is simulated with the real servers elsewhere.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use elasticdl_core::bfloat::{BFloat16, convert};
use elasticdl_core::ps::memory::initial::Initial;
use elasticdl_core::ps::memory::optimizer::Rule;
use elasticdl_core::ps::protocol::catalog::{Catalog, Table, Variable};
use elasticdl_core::ps::protocol::numbers::Numbers;
use elasticdl_core::ps::protocol::part::{Dense, Part, Rows};
use elasticdl_core::ps::protocol::placement::{Entry, Server};
use elasticdl_core::ps::protocol::stamps::Stamp;
use elasticdl_core::ps::protocol::stream::Message;
use elasticdl_core::ps::server::data::{Data, Pace};
use elasticdl_core::ps::server::node::{Bounds, Node};
use elasticdl_core::ps::server::slot::{Answer, Head, Told, UNSEEN};

const SLOTS: u32 = 3;
const TASKS: u64 = 5;
const CHUNKS: u16 = 2;
const COLUMNS: usize = TASKS as usize * CHUNKS as usize;

/// A server of a job whose master says nothing of how far it may come.
fn unbounded(me: Server, catalog: &Catalog) -> Node {
    let node = Node::new(me, catalog.clone());
    node.bound(&Bounds::NONE);
    node
}

fn catalog() -> Catalog {
    let table = Table {
        name: "ids".into(),
        width: COLUMNS,
        initial: Initial::Constant(0.0),
        admission: 1,
        decays: false,
    };
    let variable = Variable {
        name: "bias".into(),
        length: COLUMNS,
        decays: false,
        adds: false,
    };
    let rule = Rule::Sgd {
        momentum: 0.0,
        nesterov: false,
    };
    Catalog::new(0, SLOTS, vec![table], vec![variable], rule, 0.0)
}

/// SplitMix64, as everywhere; a test that fails names its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_add(elasticdl_core::ps::memory::hash::GOLDEN);
        (elasticdl_core::ps::memory::hash::mix(self.0) % end as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.below(from.len())])
    }
}

struct Worker {
    task: u64,
    chunk: u16,
    /// Slots that have not answered.
    open: BTreeSet<u32>,
    /// The entries that it goes by.
    entries: Vec<Entry>,
    low: u64,
    /// The roll-back that it had heard of when it began its task.
    roll_back: u64,
}

/// A snapshot: the tasks that were done when it was begun, and the slots that have been cut.
#[derive(Clone)]
struct Snapshot {
    position: BTreeSet<u64>,
    slots: BTreeMap<u32, Data>,
}

struct World {
    dice: Dice,
    seed: u64,
    catalog: Catalog,
    ids: Vec<Vec<u64>>,
    nodes: BTreeMap<Server, Node>,
    dead: BTreeSet<Server>,
    next_server: Server,
    /// What dead senders had sent.
    left: BTreeMap<(Server, Server), Vec<(u64, Message)>>,
    journal: Vec<Vec<Entry>>,
    ready: Vec<Told>,
    workers: Vec<Option<Worker>>,
    done: BTreeSet<u64>,
    sent: Vec<(Asked, u64)>,
    acknowledged: BTreeSet<(u32, Stamp)>,
    tickets: BTreeMap<u64, Asked>,
    /// Answers on their way: settled.
    answers: Vec<Asked>,
    next_ticket: u64,
    faults: usize,
    log: Vec<String>,
    bug: Bug,
    replicas: usize,
    roll_back: u64,
    /// The last complete one, and the one under way.
    snapshot: Snapshot,
    cutting: Option<Snapshot>,
}

/// A push that was sent: by which worker (or nobody any more), for which slot, and the roll-back that the worker went by.
#[derive(Clone, Copy)]
struct Asked {
    worker: usize,
    slot: u32,
    stamp: Stamp,
    roll_back: u64,
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// The receiver of a copy is promoted although the journal does not name it.
    PromoteReceiver,
    /// A refused message counts as accepted.
    RefusedIsAccepted,
    /// A worker says of a task that it has just begun that it is done.
    LowTooHigh,
    /// A task counts as done that was begun before a roll-back.
    DoneUngated,
    /// An answer counts that was asked for before a roll-back.
    OldAnswer,
    /// A snapshot's position is that of its end.
    PositionLate,
    /// A server applies what comes by an entry of which it has not heard.
    NoTerm,
}

impl World {
    fn new(seed: u64, replicas: usize, bug: Bug) -> World {
        let catalog = catalog();
        let ids = (0..SLOTS)
            .map(|slot| {
                (0..1000)
                    .filter(|id| catalog.slot_of_row(0, *id) == slot)
                    .take(2)
                    .collect()
            })
            .collect();
        let slots = (0..SLOTS).map(|slot| (slot, Data::new(&catalog))).collect();
        let mut world = World {
            replicas,
            roll_back: 0,
            snapshot: Snapshot {
                position: BTreeSet::new(),
                slots,
            },
            cutting: None,
            dice: Dice(seed),
            seed,
            ids,
            nodes: (0..3).map(|me| (me, unbounded(me, &catalog))).collect(),
            catalog,
            dead: BTreeSet::new(),
            next_server: 3,
            left: BTreeMap::new(),
            journal: Vec::new(),
            ready: Vec::new(),
            workers: vec![None, None, None],
            done: BTreeSet::new(),
            sent: Vec::new(),
            acknowledged: BTreeSet::new(),
            tickets: BTreeMap::new(),
            answers: Vec::new(),
            next_ticket: 0,
            faults: if replicas == 1 { 8 } else { 4 },
            log: Vec::new(),
            bug,
        };
        for slot in 0..u64::from(SLOTS) {
            world.journal.push(vec![Entry {
                term: 1,
                primary_epoch: 1,
                primary: slot % 3,
                backup: (replicas > 1).then_some((slot + 1) % 3),
                restored: 0,
            }]);
        }
        world
    }

    fn say(&mut self, text: String) {
        self.log.push(text);
    }

    fn fail(&self, text: &str) -> ! {
        let from = self.log.len().saturating_sub(60);
        panic!(
            "seed {}: {text}\n{}",
            self.seed,
            self.log[from..].join("\n")
        );
    }

    fn now(&self, slot: u32) -> Entry {
        *self.journal[slot as usize].last().expect("an entry")
    }

    fn append(
        &mut self,
        slot: u32,
        primary: Server,
        backup: Option<Server>,
        new_primary_epoch: bool,
    ) {
        let old = self.now(slot);
        let term = old.term + 1;
        let entry = Entry {
            term,
            primary_epoch: if new_primary_epoch {
                term
            } else {
                old.primary_epoch
            },
            primary,
            backup,
            restored: if new_primary_epoch { 0 } else { old.restored },
        };
        self.say(format!("journal: slot {slot} {entry:?}"));
        self.journal[slot as usize].push(entry);
    }

    fn is_alive(&self, server: Server) -> bool {
        self.nodes.contains_key(&server)
    }

    // ------------------------------------------------------------------ what can happen

    fn step(&mut self, calm: bool) {
        match self.dice.below(if calm { 17 } else { 22 }) {
            0 | 1 => self.deliver(),
            2 => self.acknowledge(),
            3 | 4 => self.learn(calm),
            5 | 6 => self.work(calm),
            7 => self.decide(),
            8 => self.be_ready(),
            9 => self.go_on_copying(),
            10..=12 => self.push(),
            13 => self.late_push(),
            14 => self.restore(),
            15 | 16 => self.receive(),
            17 if self.is_time_for_a_fault() => self.fault(),
            18 => self.migrate(),
            19 => self.cut(),
            // In half of the worlds snapshots are quick.
            20 if self.seed.is_multiple_of(2) => self.cut(),
            _ => {}
        }
    }

    fn pairs(&self) -> Vec<(Server, Server)> {
        let mut pairs: Vec<_> = self.left.keys().copied().collect();
        for (from, node) in &self.nodes {
            pairs.extend(node.peers().into_iter().map(|to| (*from, to)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    fn deliver(&mut self) {
        let pairs = self.pairs();
        let Some((from, to)) = self.dice.pick(&pairs).copied() else {
            return;
        };
        if !self.is_alive(to) {
            return;
        }
        let (number, _) = self.nodes[&to].heard(from, 0);
        let message = match self.nodes.get(&from) {
            Some(node) => node.way(to).outgoing().get(number).cloned(),
            None => self.left.get(&(from, to)).and_then(|left| {
                let found = left.iter().find(|(n, _)| *n == number);
                found.map(|(_, message)| message.clone())
            }),
        };
        let Some(message) = message else {
            return;
        };
        // What travels is bytes.
        let mut words = Vec::new();
        message.write(&mut words);
        assert_eq!(Message::read(&words, &Arc::default()).unwrap(), message);
        self.say(format!("{to} hears {number} from {from}: {message:?}"));
        let mut told = Vec::new();
        match self.nodes[&to].hear(from, number, &message, &mut told) {
            Ok(()) => self.hear(to, told),
            Err(broken) => self.fail(&broken.to_string()),
        }
    }

    fn acknowledge(&mut self) {
        let pairs = self.pairs();
        let Some((from, to)) = self.dice.pick(&pairs).copied() else {
            return;
        };
        if !self.is_alive(from) || !self.is_alive(to) {
            return;
        }
        let (next, mut refused) = self.nodes[&to].heard(from, 0);
        if self.bug == Bug::RefusedIsAccepted {
            refused.clear();
        }
        let told = self.nodes[&from].accepted(to, next, &refused);
        self.hear(from, told);
    }

    fn hear(&mut self, at: Server, told: Vec<Told>) {
        for one in told {
            match one {
                Told::Readable => {}
                Told::Answered(ticket, answer) => self.answered(at, ticket, &answer),
                Told::Ready { .. } => {
                    self.say(format!("{at} is ready: {one:?}"));
                    self.ready.push(one);
                }
            }
        }
    }

    fn learn(&mut self, calm: bool) {
        let servers: Vec<Server> = self.nodes.keys().copied().collect();
        let Some(server) = self.dice.pick(&servers).copied() else {
            return;
        };
        let slot = self.dice.below(SLOTS as usize);
        let history = &self.journal[slot];
        let at = if calm {
            history.len() - 1
        } else {
            self.dice.below(history.len())
        };
        let entry = history[at];
        match self.nodes[&server].learn([(slot as u32, entry)]) {
            Ok(told) => self.hear(server, told),
            Err(broken) => self.fail(&broken.to_string()),
        }
    }

    fn low(&self) -> u64 {
        (0..TASKS)
            .find(|task| !self.done.contains(task))
            .unwrap_or(TASKS)
    }

    /// Workers take tasks, finish chunks, and go.
    fn work(&mut self, calm: bool) {
        let at = self.dice.below(self.workers.len());
        match self.workers[at].take() {
            None => {
                // Also a task that another one has: it was taken for dead.
                let open: Vec<u64> = (0..TASKS)
                    .filter(|task| !self.done.contains(task))
                    .collect();
                let Some(task) = self.dice.pick(&open).copied() else {
                    return;
                };
                self.workers[at] = Some(self.begin(task));
            }
            Some(mut worker) => {
                if worker.open.is_empty() {
                    worker.chunk += 1;
                    if worker.chunk == CHUNKS {
                        if worker.roll_back < self.roll_back && self.bug != Bug::DoneUngated {
                            // The master refuses it, and the worker begins its task again (rule R22).
                            self.workers[at] = Some(self.begin(worker.task));
                            return;
                        }
                        self.done.insert(worker.task);
                        self.say(format!("task {} is done", worker.task));
                        return;
                    }
                    worker.open = slots_of(worker.task, worker.chunk);
                } else if worker.roll_back < self.roll_back && (calm || self.dice.below(10) == 0) {
                    worker = self.begin(worker.task);
                } else if !calm && self.dice.below(20) == 0 {
                    return; // it dies
                } else {
                    let slot = self.dice.below(SLOTS as usize);
                    let history = &self.journal[slot];
                    // Nothing older than the last restore that it has heard of (rule R24).
                    let heard = worker.roll_back;
                    let from = history
                        .iter()
                        .rposition(|entry| entry.restored != 0 && entry.restored <= heard)
                        .unwrap_or(0);
                    worker.entries[slot] = if calm {
                        *history.last().unwrap()
                    } else {
                        history[from + self.dice.below(history.len() - from)]
                    };
                }
                self.workers[at] = Some(worker);
            }
        }
    }

    fn begin(&self, task: u64) -> Worker {
        Worker {
            task,
            chunk: 0,
            open: slots_of(task, 0),
            entries: (0..SLOTS).map(|slot| self.now(slot)).collect(),
            low: if self.bug == Bug::LowTooHigh {
                task + 1
            } else {
                self.low()
            },
            roll_back: self.roll_back,
        }
    }

    fn push(&mut self) {
        let at = self.dice.below(self.workers.len());
        let Some(worker) = &self.workers[at] else {
            return;
        };
        let open: Vec<u32> = worker.open.iter().copied().collect();
        let stamp = Stamp {
            task: worker.task,
            chunk: worker.chunk,
        };
        let (low, roll_back) = (worker.low, worker.roll_back);
        let entries = worker.entries.clone();
        if let Some(slot) = self.dice.pick(&open).copied() {
            let asked = Asked {
                worker: at,
                slot,
                stamp,
                roll_back,
            };
            self.sent.push((asked, low));
            let entry = entries[slot as usize];
            self.push_to(entry.primary, asked, low, entry.term);
        }
    }

    /// What was sent may arrive at any time, anywhere, any number of times.
    fn late_push(&mut self) {
        let sent = self.sent.clone();
        let Some((asked, low)) = self.dice.pick(&sent).copied() else {
            return;
        };
        let servers: Vec<Server> = self.nodes.keys().copied().collect();
        if let Some(server) = self.dice.pick(&servers).copied() {
            self.push_to(
                server,
                Asked {
                    worker: usize::MAX,
                    ..asked
                },
                low,
                1,
            );
        }
    }

    fn push_to(&mut self, server: Server, asked: Asked, low: u64, term: u64) {
        let Asked {
            slot,
            stamp,
            roll_back,
            ..
        } = asked;
        let mut words = Vec::new();
        let mut gradient = [0.0; COLUMNS];
        gradient[column(stamp)] = -1.0;
        // A one has all its bits either way.
        let mut short = [BFloat16::from(0.0); 2 * COLUMNS];
        let both = [gradient, gradient].concat();
        convert(&both, &mut short);
        let is_short = stamp.task % 2 == 1;
        let numbers = |rows: usize| match is_short {
            true => Numbers::Short(&short[..rows * COLUMNS]),
            false => Numbers::Long(&both[..rows * COLUMNS]),
        };
        let mut part = Part {
            rows: vec![Rows {
                table: 0,
                ids: &self.ids[slot as usize],
                gradients: numbers(2),
            }],
            dense: vec![],
        };
        let zeros = [0.0; COLUMNS];
        if self.catalog.slot_of_variable(0) == slot {
            part.dense.push(Dense {
                variable: 0,
                is_first: true,
                numbers: Numbers::Long(&zeros),
            });
            part.dense.push(Dense {
                variable: 0,
                is_first: false,
                numbers: numbers(1),
            });
        }
        part.write(&mut words);
        let Some(node) = self.nodes.get(&server) else {
            return;
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(ticket, asked);
        let head = Head {
            seen: UNSEEN,
            stamp: Some(stamp),
            low,
            roll_back,
            pace: Pace { rate: 1.0, step: 0 },
        };
        let term = if self.bug == Bug::NoTerm { 1 } else { term };
        let answer = node
            .pushes()
            .push(slot, &head, term, (&words).into(), ticket);
        self.say(format!(
            "{stamp:?} for slot {slot} comes to {server}: {answer:?} (ticket {ticket})"
        ));
        if let Some(answer) = answer {
            self.answered(server, ticket, &answer);
        }
    }

    fn answered(&mut self, by: Server, ticket: u64, answer: &Answer) {
        let Asked {
            worker,
            slot,
            stamp,
            roll_back,
        } = self
            .tickets
            .remove(&ticket)
            .expect("a ticket is answered once");
        self.say(format!("{by} answers ticket {ticket}: {answer:?}"));
        if let Answer::Refused(what) = answer {
            self.fail(what);
        }
        if !matches!(answer, Answer::Applied | Answer::Held | Answer::Closed) {
            return;
        }
        // With one replica an acknowledgement promises nothing: only what is done does.
        if self.replicas > 1 {
            self.acknowledged.insert((slot, stamp));
        }
        self.answers.push(Asked {
            worker,
            slot,
            stamp,
            roll_back,
        });
    }

    /// An answer reaches the worker that waits for it, if it still does.
    fn receive(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let at = self.dice.below(self.answers.len());
        let answer = self.answers.swap_remove(at);
        if let Some(Some(worker)) = self.workers.get_mut(answer.worker)
            && (worker.task, worker.chunk) == (answer.stamp.task, answer.stamp.chunk)
            && (worker.roll_back == answer.roll_back || self.bug == Bug::OldAnswer)
        {
            worker.open.remove(&answer.slot);
        }
    }

    /// The master deals with the dead, and sees to backups.
    fn decide(&mut self) {
        let slot = self.dice.below(SLOTS as usize) as u32;
        let entry = self.now(slot);
        match (self.is_alive(entry.primary), entry.backup) {
            (false, Some(backup)) => {
                let mut next = backup;
                if self.bug == Bug::PromoteReceiver {
                    let receiver = self.nodes.iter().find(|(id, node)| {
                        **id != backup
                            && node.look(slot, |slot| slot.data().is_some()) == Some(true)
                    });
                    next = receiver.map_or(backup, |(id, _)| *id);
                }
                self.append(slot, next, None, true);
            }
            (true, Some(backup)) if !self.is_alive(backup) => {
                self.append(slot, entry.primary, None, false)
            }
            // After a hand-over the one before is the backup, which nobody wants here.
            (true, Some(_)) if self.replicas == 1 => self.append(slot, entry.primary, None, false),
            (false, None) => self.give_up(slot),
            (true, None) if self.replicas > 1 => {
                let others: Vec<Server> = self
                    .nodes
                    .keys()
                    .copied()
                    .filter(|id| *id != entry.primary)
                    .collect();
                let to = *self.dice.pick(&others).unwrap();
                self.order_copy(slot, to, false);
            }
            _ => {}
        }
        // A dead receiver: its primary gives it up, or the master voids its readiness.
        let dead = self.dead.clone();
        let Some(node) = self.nodes.get(&entry.primary) else {
            return;
        };
        let told: Vec<Told> = dead
            .iter()
            .flat_map(|dead| node.give_up_copies(*dead))
            .collect();
        self.hear(entry.primary, told);
        let void = self.ready.iter().any(|told| matches!(told, Told::Ready { slot: of, term, to, .. } if *of == slot && *term == entry.term && dead.contains(to)));
        if void && self.is_alive(entry.primary) {
            self.append(slot, entry.primary, entry.backup, false);
        }
    }

    /// All copies of a slot are lost: somebody takes the last snapshot's (rule R24).
    fn give_up(&mut self, slot: u32) {
        let old = self.now(slot);
        let living: Vec<Server> = self
            .nodes
            .keys()
            .copied()
            .filter(|id| *id != old.primary)
            .collect();
        let term = old.term + 1;
        let primary = *self.dice.pick(&living).unwrap();
        self.roll_back += 1;
        let entry = Entry {
            term,
            primary_epoch: term,
            primary,
            backup: None,
            restored: self.roll_back,
        };
        self.say(format!(
            "roll-back {}: slot {slot} {entry:?}",
            self.roll_back
        ));
        self.journal[slot as usize].push(entry);
        let position = self.snapshot.position.clone();
        self.done.retain(|task| position.contains(task));
        self.cutting = None;
    }

    /// A server that restores a slot reads it.
    fn restore(&mut self) {
        let slot = self.dice.below(SLOTS as usize) as u32;
        for node in self.nodes.values() {
            if node.look(slot, |slot| slot.is_restoring()) == Some(true) {
                node.load(slot, self.snapshot.slots[&slot].clone());
            }
        }
    }

    /// A snapshot is begun, or continues: any slot at any time, of its present primary epoch (rule R26).
    fn cut(&mut self) {
        let Some(mut cutting) = self.cutting.take() else {
            if self.dice.below(4) == 0 {
                self.cutting = Some(Snapshot {
                    position: self.done.clone(),
                    slots: BTreeMap::new(),
                });
            }
            return;
        };
        let slot = self.dice.below(SLOTS as usize) as u32;
        let entry = self.now(slot);
        let server = if self.dice.below(2) == 0 {
            entry.backup
        } else {
            None
        }
        .unwrap_or(entry.primary);
        if let Some(node) = self.nodes.get(&server)
            && let Some(data) = node
                .look(slot, |slot| slot.cut(entry.primary_epoch).cloned())
                .flatten()
        {
            cutting.slots.entry(slot).or_insert(data);
        }
        if cutting.slots.len() < SLOTS as usize {
            self.cutting = Some(cutting);
            return;
        }
        if self.bug == Bug::PositionLate {
            cutting.position = self.done.clone();
        }
        self.say(format!("a snapshot of {:?} is complete", cutting.position));
        self.snapshot = cutting;
    }

    fn order_copy(&mut self, slot: u32, to: Server, hands_over: bool) {
        let entry = self.now(slot);
        if let Some(node) = self.nodes.get(&entry.primary)
            && node.copy(slot, to, entry.term, hands_over)
        {
            self.say(format!(
                "slot {slot} is copied to {to} (hand over: {hands_over})"
            ));
        }
    }

    fn migrate(&mut self) {
        if self.dice.below(10) != 0 {
            return;
        }
        let slot = self.dice.below(SLOTS as usize) as u32;
        let entry = self.now(slot);
        let others: Vec<Server> = self
            .nodes
            .keys()
            .copied()
            .filter(|id| !entry.names(*id))
            .collect();
        if let Some(to) = self.dice.pick(&others).copied() {
            self.order_copy(slot, to, true);
        }
    }

    fn be_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let at = self.dice.below(self.ready.len());
        let Told::Ready {
            slot,
            term,
            to,
            hands_over,
        } = self.ready[at].clone()
        else {
            return;
        };
        let entry = self.now(slot);
        if term != entry.term {
            self.ready.remove(at);
        } else if self.is_alive(to) && self.is_alive(entry.primary) {
            self.ready.remove(at);
            // Either is allowed: all three hold the same.
            match (hands_over, entry.backup, self.dice.below(2)) {
                (true, Some(backup), 0) => self.append(slot, to, Some(backup), true),
                (true, _, _) => self.append(slot, to, Some(entry.primary), true),
                (false, _, _) => self.append(slot, entry.primary, Some(to), false),
            }
        }
    }

    fn go_on_copying(&mut self) {
        let servers: Vec<Server> = self.nodes.keys().copied().collect();
        if let Some(server) = self.dice.pick(&servers).copied() {
            let slot = self.dice.below(SLOTS as usize) as u32;
            self.nodes[&server].go_on_copying(slot);
        }
    }

    /// One copy of each slot stays: "at most one server lost at a time, until its slots have a backup again".
    fn is_expendable(&self, server: Server) -> bool {
        self.replicas == 1
            || (0..SLOTS).all(|slot| {
                let entry = self.now(slot);
                let other = if entry.primary == server {
                    entry.backup
                } else {
                    Some(entry.primary)
                };
                !entry.names(server) || other.is_some_and(|other| self.is_alive(other))
            })
    }

    /// A roll-back of a job that has done nothing shows nothing.
    fn is_time_for_a_fault(&mut self) -> bool {
        self.faults > 0 && self.dice.below(12) == 0 && (self.replicas > 1 || !self.done.is_empty())
    }

    fn fault(&mut self) {
        let servers: Vec<Server> = self.nodes.keys().copied().collect();
        let mut server = *self.dice.pick(&servers).unwrap();
        let again = self.now(0).primary;
        if self.replicas == 1 && self.is_alive(again) && self.dice.below(2) == 0 {
            // The same slot again and again: that is how a bad snapshot shows.
            server = again;
        }
        if !self.is_expendable(server) {
            return;
        }
        self.faults -= 1;
        if self.dice.below(2) == 0 {
            self.say(format!("{server} dies"));
            let node = self.nodes.remove(&server).unwrap();
            self.dead.insert(server);
            for to in node.peers() {
                let way = node.way(to);
                let stream = way.outgoing();
                // Some of what it had sent is still on its way.
                let keep = self.dice.below(4) as u64;
                let from = self.nodes.get(&to).map_or(0, |to| to.heard(server, 0).0);
                let left = (from..from + keep)
                    .filter_map(|n| stream.get(n).map(|message| (n, message.clone())));
                self.left.insert((server, to), left.collect());
            }
            let next = self.next_server;
            self.next_server += 1;
            self.nodes.insert(next, unbounded(next, &self.catalog));
        } else {
            let slot = self.dice.below(SLOTS as usize) as u32;
            let entry = self.now(slot);
            self.say(format!("somebody of slot {slot} is suspected and lives"));
            match entry.backup {
                Some(backup) if self.is_alive(backup) && self.dice.below(2) == 0 => {
                    self.append(slot, backup, None, true)
                }
                None if self.replicas == 1 => self.give_up(slot),
                Some(_) if self.is_alive(entry.primary) => {
                    self.append(slot, entry.primary, None, false)
                }
                _ => {}
            }
        }
    }

    // ------------------------------------------------------------------ what must hold

    fn counts(&self, server: Server, slot: u32) -> Option<Vec<f32>> {
        let ids = &self.ids[slot as usize];
        let mut rows = vec![0.0; ids.len() * COLUMNS];
        self.nodes.get(&server)?.look(slot, |one| {
            let data = one.data()?;
            data.pull(&self.catalog, 0, ids, &mut rows);
            if let Some((weights, _)) = data.variable(&self.catalog, 0) {
                rows.extend_from_slice(weights);
            }
            Some(())
        })??;
        Some(rows)
    }

    fn check(&self) {
        for slot in 0..SLOTS {
            for server in self.nodes.keys() {
                let rows = self.counts(*server, slot).unwrap_or_default();
                if rows.iter().any(|count| *count > 1.0) {
                    self.fail(&format!(
                        "server {server} has a chunk in slot {slot} twice: {rows:?}"
                    ));
                }
            }
            let entry = self.now(slot);
            for server in [Some(entry.primary), entry.backup]
                .into_iter()
                .flatten()
                .filter(|id| self.is_alive(*id))
            {
                let is_there =
                    self.nodes[&server].look(slot, |slot| slot.cut(entry.primary_epoch).is_some());
                let rows = self.counts(server, slot).unwrap_or_default();
                for stamp in all_stamps().filter(|stamp| self.done.contains(&stamp.task)) {
                    let touches = slots_of(stamp.task, stamp.chunk).contains(&slot);
                    let mut rows = rows.chunks(COLUMNS);
                    if touches
                        && is_there == Some(true)
                        && !rows.all(|row| row[column(stamp)] == 1.0)
                    {
                        self.fail(&format!(
                            "task {} is done, and slot {slot} of server {server} has it not once",
                            stamp.task
                        ));
                    }
                }
                for (_, stamp) in self.acknowledged.iter().filter(|(of, _)| *of == slot) {
                    let has = rows
                        .chunks(COLUMNS)
                        .map(|row| row[column(*stamp)])
                        .collect::<Vec<_>>();
                    if has.is_empty() || has.iter().any(|count| *count != 1.0) {
                        self.fail(&format!("slot {slot} of server {server} lost {stamp:?}, which was acknowledged: {has:?}"));
                    }
                }
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.done.len() == TASKS as usize
            && (0..SLOTS).all(|slot| {
                let entry = self.now(slot);
                let is_kept =
                    self.replicas == 1 || entry.backup.is_some_and(|backup| self.is_alive(backup));
                let primary = self.nodes.get(&entry.primary);
                let has_all = |primary: &Node| {
                    primary.look(slot, |slot| slot.cut(entry.primary_epoch).is_some())
                };
                is_kept && primary.and_then(has_all) == Some(true)
            })
    }

    fn run(&mut self) {
        for _ in 0..if self.replicas == 1 { 3000 } else { 1500 } {
            self.step(false);
            self.check();
        }
        let mut steps = 0;
        while !self.is_finished() {
            self.step(true);
            steps += 1;
            if steps > 200_000 {
                self.fail("the job does not end");
            }
        }
        // All that is under way arrives.
        for _ in 0..3000 {
            self.step(true);
        }
        self.check();
        for slot in 0..SLOTS {
            let entry = self.now(slot);
            let proofs: Vec<_> = [Some(entry.primary), entry.backup]
                .into_iter()
                .flatten()
                .map(|server| {
                    let proof = self.nodes[&server].look(slot, |slot| {
                        slot.data().map(|data| (data.version, data.stamps.proof()))
                    });
                    (self.counts(server, slot), proof)
                })
                .collect();
            if proofs[0] != proofs[proofs.len() - 1] {
                self.fail(&format!(
                    "primary and backup of slot {slot} differ: {proofs:?}"
                ));
            }
            let expected: BTreeSet<Stamp> = all_stamps()
                .filter(|stamp| slots_of(stamp.task, stamp.chunk).contains(&slot))
                .collect();
            let held: BTreeSet<Stamp> = self
                .acknowledged
                .iter()
                .filter(|(of, _)| *of == slot)
                .map(|(_, stamp)| *stamp)
                .collect();
            assert!(self.replicas == 1 || expected == held);
        }
    }
}

fn column(stamp: Stamp) -> usize {
    stamp.task as usize * CHUNKS as usize + usize::from(stamp.chunk)
}

fn all_stamps() -> impl Iterator<Item = Stamp> {
    (0..TASKS).flat_map(|task| (0..CHUNKS).map(move |chunk| Stamp { task, chunk }))
}

/// The slots that a chunk touches: not all chunks touch all.
fn slots_of(task: u64, chunk: u16) -> BTreeSet<u32> {
    (0..SLOTS)
        .filter(|slot| !(task + u64::from(chunk) + u64::from(*slot)).is_multiple_of(4))
        .collect()
}

fn seeds() -> u64 {
    std::env::var("PS_SEEDS").map_or(60, |seeds| seeds.parse().expect("a number"))
}

#[test]
fn nothing_acknowledged_is_lost_or_applied_twice() {
    for seed in 0..seeds() {
        World::new(seed, 2, Bug::None).run();
    }
}

#[test]
fn with_one_replica_what_is_done_is_in_every_slot_once() {
    for seed in 0..seeds() {
        World::new(seed, 1, Bug::None).run();
    }
}

/// A slot that was never pushed has version 0, which its receiver has not accepted by having accepted nothing.
#[test]
fn the_copy_of_an_empty_slot_is_ready_when_its_end_has_been_accepted() {
    let catalog = catalog();
    let node = unbounded(0, &catalog);
    let entry = Entry {
        term: 1,
        primary_epoch: 1,
        primary: 0,
        backup: Some(2),
        restored: 0,
    };
    let slot = catalog.slot_of_variable(0);
    node.learn([(slot, entry)]).unwrap();
    assert!(node.copy(slot, 1, 1, false));
    node.go_on_copying(slot);
    let first = Part {
        rows: vec![],
        dense: vec![Dense {
            variable: 0,
            is_first: true,
            numbers: Numbers::Long(&[0.0; COLUMNS]),
        }],
    };
    let mut words = Vec::new();
    first.write(&mut words);
    let pace = Pace { rate: 1.0, step: 0 };
    let head = Head {
        seen: UNSEEN,
        stamp: None,
        low: 0,
        roll_back: 0,
        pace,
    };
    assert_eq!(node.pushes().push(slot, &head, 1, (&words).into(), 7), None);
    assert_eq!(node.accepted(2, 1, &[]), vec![]);
    let ready = Told::Ready {
        slot,
        term: 1,
        to: 1,
        hands_over: false,
    };
    assert_eq!(node.accepted(1, 2, &[]), vec![ready]);
    let answered = Told::Answered(7, Answer::Applied);
    assert_eq!(node.accepted(1, 3, &[]), vec![answered]);
}

/// A world that finds nothing wrong proves nothing unless it finds what is wrong.
#[test]
fn mistakes_are_found() {
    let bugs = [
        (2, Bug::PromoteReceiver),
        (2, Bug::RefusedIsAccepted),
        (2, Bug::LowTooHigh),
        (1, Bug::DoneUngated),
        (1, Bug::OldAnswer),
        (1, Bug::PositionLate),
        (1, Bug::NoTerm),
    ];
    for (replicas, bug) in bugs {
        let finds =
            |seed| std::panic::catch_unwind(|| World::new(seed, replicas, bug).run()).is_err();
        assert!((0..300).any(finds), "{bug:?} was not found");
    }
}
