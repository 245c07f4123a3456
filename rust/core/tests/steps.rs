//! Synchronous accumulation (rules A1 to A5) under a seeded scheduler: real servers and workers' machines, messages that are late or lost,
//! and servers and workers that are killed. Each chunk adds 1 to every row, so a row says of which step it is.
//!
//! The mistakes of the protocol's page that a worker or the master can make are made on purpose: each has to show.
#![cfg(feature = "simulation")]
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use elasticdl_core::net::frame::Kind;
use elasticdl_core::ps::client::batch::Batch;
use elasticdl_core::ps::client::push::Pushed;
use elasticdl_core::ps::client::tracker::{End, RequestTracker};
use elasticdl_core::ps::client::wanted::{Found, Wanted};
use elasticdl_core::ps::memory::initial::Initial;
use elasticdl_core::ps::memory::optimizer::Rule;
use elasticdl_core::ps::protocol::catalog::{Catalog, Policy, Table};
use elasticdl_core::ps::protocol::placement::{Entry, Server};
use elasticdl_core::ps::protocol::stamps::{Memory, Stamp};
use elasticdl_core::ps::protocol::steps::{Need, WHOLE};
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::node::Bounds;
use elasticdl_core::ps::server::simulation::{Mistake, Outcome, Peer};
use elasticdl_core::ps::server::slot::{Answer, Head, UNSEEN};

const SLOTS: u32 = 4;
const WORKERS: usize = 3;
/// Chunks of each task; a wave is `WAVE` of them, the last one shorter.
const TASKS: [u16; 7] = [3, 1, 2, 2, 2, 3, 1];
const WAVE: u64 = 3;
/// Moments after which a job hangs.
const MOST: usize = 60_000;

/// What is on its way between a worker and a server.
type Lines<T> = BTreeMap<(u32, Server), VecDeque<T>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    No,
    /// A worker confirms what it has only begun to push.
    ConfirmEarly,
    /// A worker that waits for a step does not take what is wanted first.
    NoPutBack,
    /// Nobody repeats what a dead worker knew.
    NoMasterWord,
    /// A pull waits for nothing.
    NoNeed,
    /// A server lets a step be read that its backup has not accepted.
    ReadsEarly,
}

fn total() -> u64 {
    TASKS.len() as u64
}

fn wave(task: u64) -> std::ops::Range<u64> {
    let first = task / WAVE * WAVE;
    first..(first + WAVE).min(total())
}

fn length(task: u64) -> u64 {
    let chunks = wave(task).map(|task| u64::from(TASKS[task as usize]));
    chunks.max().unwrap_or(0)
}

/// Steps of the waves before the one of a task.
fn before(task: u64) -> u64 {
    (0..wave(task).start / WAVE)
        .map(|index| length(index * WAVE))
        .sum()
}

fn step(stamp: Stamp) -> u64 {
    before(stamp.task) + u64::from(stamp.chunk)
}

fn steps() -> u64 {
    before(total() - 1) + length(total() - 1)
}

fn all() -> impl Iterator<Item = Stamp> {
    (0..total()).flat_map(|task| (0..TASKS[task as usize]).map(move |chunk| Stamp { task, chunk }))
}

fn need(stamp: Stamp) -> Need {
    let tasks = wave(stamp.task);
    let (tasks, chunks) = if stamp.chunk > 0 {
        (tasks, stamp.chunk)
    } else if tasks.start > 0 {
        (wave(tasks.start - 1), WHOLE)
    } else {
        (0..0, WHOLE)
    };
    Need {
        number: step(stamp),
        first: tasks.start,
        end: tasks.end,
        chunks,
    }
}

fn catalog() -> Catalog {
    let table = Table {
        name: "ids".into(),
        width: 1,
        initial: Initial::Constant(0.0),
        admission: 1,
        decays: false,
    };
    let rule = Rule::Sgd {
        momentum: 0.0,
        nesterov: false,
    };
    Catalog::new(0, SLOTS, vec![table], vec![], rule, 0.0).with_policy(Policy {
        accumulates: true,
        ..Policy::default()
    })
}

/// The ids that a chunk touches: not those of all slots.
fn ids(stamp: Stamp) -> Vec<u64> {
    let turn = (stamp.task + u64::from(stamp.chunk)) % 4;
    (0..8).filter(|id| id % 4 != turn).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Pulls(u32, Stamp),
    Pushes(u32, Stamp),
}

struct Worker {
    number: u32,
    tracker: RequestTracker,
    doing: Doing,
    /// Tasks, and how many chunks of each it knows to be settled.
    tasks: BTreeMap<u64, u16>,
    /// What it has told nobody yet.
    unreported: VecDeque<(u64, u16)>,
    ticket: u32,
    found: BTreeMap<u32, Found>,
    ended: BTreeMap<u32, End>,
    learned: usize,
    /// How many tasks it learned to be done.
    heard: usize,
}

struct World {
    random: u64,
    bug: Bug,
    now: Instant,
    catalog: Catalog,
    peers: BTreeMap<Server, Peer>,
    /// Entries in the order of the journal.
    journal: Vec<(u32, Entry)>,
    entries: Vec<Entry>,
    learned: BTreeMap<Server, usize>,
    next_server: Server,
    streams: BTreeMap<(Server, Server), u64>,
    receipts: VecDeque<(Server, Server, u64, Vec<u64>)>,
    copies: BTreeSet<(Server, u32)>,
    ready: Vec<(u32, u64, Server)>,
    workers: Vec<Worker>,
    next_worker: u32,
    /// (worker, server) → words.
    asks: Lines<(u32, Vec<u64>)>,
    answers: Lines<(Kind, u64, Vec<u64>)>,
    /// What the master knows: settled chunks, and who has which task.
    settled: BTreeMap<u64, u16>,
    leases: BTreeMap<u64, u32>,
    done: Vec<u64>,
    faults: u32,
    /// No worker is started for one that is killed.
    is_last: bool,
}

impl World {
    fn new(seed: u64, bug: Bug) -> World {
        let catalog = catalog();
        let mut world = World {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            bug,
            now: Instant::now(),
            peers: BTreeMap::new(),
            journal: Vec::new(),
            entries: Vec::new(),
            learned: BTreeMap::new(),
            next_server: 0,
            streams: BTreeMap::new(),
            receipts: VecDeque::new(),
            copies: BTreeSet::new(),
            ready: Vec::new(),
            workers: Vec::new(),
            next_worker: 0,
            asks: BTreeMap::new(),
            answers: BTreeMap::new(),
            settled: BTreeMap::new(),
            leases: BTreeMap::new(),
            done: Vec::new(),
            faults: 2,
            is_last: seed.is_multiple_of(3),
            catalog,
        };
        world.start_server();
        world.start_server();
        for slot in 0..SLOTS {
            let primary = Server::from(slot % 2);
            world.entries.push(Entry {
                term: 1,
                primary_epoch: 1,
                primary,
                backup: Some(1 - primary),
                restored: 0,
            });
        }
        world.journal = (0..).zip(world.entries.iter().copied()).collect();
        for _ in 0..WORKERS {
            world.start_worker();
        }
        world
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % end.max(1)
    }

    fn start_server(&mut self) {
        let number = self.next_server;
        self.next_server += 1;
        let mistake = (self.bug == Bug::ReadsEarly).then_some(Mistake::ReadsEarly);
        let peer = Peer::new(number, self.catalog.clone(), mistake);
        self.peers.insert(number, peer);
        self.learned.insert(number, 0);
    }

    fn start_worker(&mut self) {
        let number = self.next_worker;
        self.next_worker += 1;
        self.workers.push(Worker {
            number,
            tracker: RequestTracker::new(self.catalog.clone()),
            doing: Doing::Nothing,
            tasks: BTreeMap::new(),
            unreported: VecDeque::new(),
            ticket: 0,
            found: BTreeMap::new(),
            ended: BTreeMap::new(),
            learned: 0,
            heard: 0,
        });
    }

    fn is_over(&self) -> bool {
        self.done.len() as u64 == total()
    }

    /// Let something happen.
    fn go_on(&mut self) {
        self.now += Duration::from_millis(1);
        match self.below(20) {
            0..4 => self.carry_ask(),
            4..8 => self.carry_answer(),
            8..10 => self.carry_stream(),
            10 => self.carry_receipt(),
            11 => self.learn(),
            12..16 => self.work(),
            16 => self.lease(),
            17 => self.tell_done(),
            18 => self.copy(),
            _ => match self.below(12) {
                0 => self.kill_worker(),
                1 => self.lose_server(true),
                2 => self.lose_server(false),
                _ => {}
            },
        }
    }

    fn pick<K: Clone, V>(&mut self, of: impl Fn(&World) -> &BTreeMap<K, VecDeque<V>>) -> Option<K> {
        let full = of(self).iter().filter(|(_, queue)| !queue.is_empty());
        let keys: Vec<K> = full.map(|(key, _)| key.clone()).collect();
        let at = self.below(keys.len());
        keys.get(at).cloned()
    }

    fn carry_ask(&mut self) {
        let Some((worker, server)) = self.pick(|world| &world.asks) else {
            return;
        };
        let one = self
            .asks
            .get_mut(&(worker, server))
            .and_then(VecDeque::pop_front);
        if let (Some((request, words)), Some(peer)) = (one, self.peers.get_mut(&server)) {
            let outcome = peer
                .ask(worker, request, bytemuck::cast_slice(&words))
                .unwrap();
            self.dispatch(server, outcome);
        }
    }

    fn dispatch(&mut self, server: Server, outcome: Outcome) {
        for (worker, packet) in outcome.packets {
            self.answers
                .entry((worker, server))
                .or_default()
                .push_back((packet.kind, packet.number, packet.words));
        }
        let ready = outcome
            .ready
            .into_iter()
            .map(|(slot, term, to, _)| (slot, term, to));
        self.ready.extend(ready);
    }

    fn carry_answer(&mut self) {
        let Some((worker, server)) = self.pick(|world| &world.answers) else {
            return;
        };
        let packet = self
            .answers
            .get_mut(&(worker, server))
            .and_then(VecDeque::pop_front);
        let (now, worker) = (
            self.now,
            self.workers.iter_mut().find(|one| one.number == worker),
        );
        if let (Some((kind, number, words)), Some(worker)) = (packet, worker) {
            let taken = worker.tracker.take(now, server, kind, number, &words);
            assert!(taken.is_some(), "an answer makes no sense");
        }
    }

    fn carry_stream(&mut self) {
        let pairs: Vec<(Server, Server)> = self
            .peers
            .iter()
            .flat_map(|(from, peer)| peer.node().peers().into_iter().map(|to| (*from, to)))
            .collect();
        let at = self.below(pairs.len());
        let Some((from, to)) = pairs.get(at).copied() else {
            return;
        };
        let next = self.streams.get(&(from, to)).copied().unwrap_or(0);
        let Some((number, known, words, next)) = self.peers[&from].stream(to, next, 64) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        self.streams.insert((from, to), next);
        let outcome = peer
            .hear(from, number, bytemuck::cast_slice(&words))
            .unwrap();
        let (heard, refused) = peer.node().heard(from, known);
        self.receipts.push_back((from, to, heard, refused));
        self.dispatch(to, outcome);
    }

    fn carry_receipt(&mut self) {
        if let Some((from, to, next, refused)) = self.receipts.pop_front()
            && let Some(peer) = self.peers.get_mut(&from)
        {
            let outcome = peer.accepted(to, next, &refused).unwrap();
            self.dispatch(from, outcome);
        }
    }

    /// Let a server or a worker learn what the journal says by now.
    fn learn(&mut self) {
        let at = self.below(self.peers.len() + self.workers.len());
        if let Some(server) = self.peers.keys().nth(at).copied() {
            let is_named = self.entries.iter().any(|entry| entry.names(server));
            if !is_named && server + 1 != self.next_server && self.below(16) > 0 {
                // Who was taken for dead hears of it last.
                return;
            }
            let known = self.learned.insert(server, self.journal.len()).unwrap_or(0);
            let entries = self.journal[known..].to_vec();
            let peer = self.peers.get_mut(&server).expect("it is there");
            let outcome = peer.learn(entries, Bounds::NONE).unwrap();
            self.dispatch(server, outcome);
        } else {
            let at = at - self.peers.len();
            if at == 0 && self.below(16) > 0 {
                // One worker is behind the others.
                return;
            }
            let worker = &mut self.workers[at];
            let entries = self.journal[worker.learned..].to_vec();
            worker.learned = self.journal.len();
            worker.tracker.learn(entries, 0);
            let gone: Vec<Server> = (0..self.next_server)
                .filter(|server| !self.peers.contains_key(server))
                .collect();
            for server in gone {
                worker.tracker.lose(self.now, server);
                self.asks.remove(&(worker.number, server));
            }
        }
    }

    /// Let a worker do what it can.
    fn work(&mut self) {
        let at = self.below(self.workers.len());
        let (now, bug) = (self.now, self.bug);
        let Some(worker) = self.workers.get_mut(at) else {
            return;
        };
        let news = worker.tracker.take_news();
        worker.found.extend(news.found);
        worker.ended.extend(news.ended);
        let first = worker
            .tasks
            .iter()
            .map(|(task, chunk)| Stamp {
                task: *task,
                chunk: *chunk,
            })
            .min_by_key(|stamp| (step(*stamp), stamp.task));
        let batch = |stamp| Arc::new(Batch::new(&self.catalog, 0, &ids(stamp)));
        let mut to_be_held = None;
        match (worker.doing, first) {
            (Doing::Nothing, Some(stamp)) => {
                worker.ticket += 1;
                worker.doing = Doing::Pulls(worker.ticket, stamp);
                let need = if bug == Bug::NoNeed {
                    Need::default()
                } else {
                    need(stamp)
                };
                let wanted = Wanted {
                    chunk: Some(stamp),
                    need,
                    batches: vec![batch(stamp)],
                    // Counts have all their bits either way.
                    is_short: stamp.task % 3 == 1,
                    ..Wanted::default()
                };
                worker.tracker.begin(now, worker.ticket, Some(wanted), None);
            }
            (Doing::Pulls(ticket, stamp), first) => {
                if let Some(found) = worker.found.remove(&ticket) {
                    if !batch(stamp).slots().all(|slot| found.held.contains(&slot)) {
                        // A slot may be past its step and not say so, for the sake of a copy: it takes nothing then.
                        if found.rows[0] != seen_by(stamp) {
                            to_be_held = Some(stamp);
                        }
                        push(worker, now, &self.catalog, stamp);
                        if bug == Bug::ConfirmEarly {
                            let confirms = confirms(stamp);
                            worker.tracker.confirm(0, 0, [(stamp.task, confirms)]);
                        }
                    } else {
                        worker
                            .tracker
                            .confirm(0, 0, [(stamp.task, confirms(stamp))]);
                        settled(worker, stamp);
                    }
                } else if let Some(first) = first
                    && step(first) < step(stamp)
                    && bug != Bug::NoPutBack
                {
                    worker.tracker.forget();
                    worker.doing = Doing::Nothing;
                }
            }
            (Doing::Pushes(ticket, stamp), _) => {
                if let Some(end) = worker.ended.remove(&ticket) {
                    assert_eq!(end, End::Settled);
                    settled(worker, stamp);
                }
            }
            (Doing::Nothing, None) => {}
        }
        let number = worker.number;
        if let Some(stamp) = to_be_held {
            let batch = Batch::new(&self.catalog, 0, &ids(stamp));
            for slot in batch.slots() {
                let primary = &self.peers[&self.entries[slot as usize].primary];
                let is_held = primary.node().look(slot, |slot| {
                    slot.data()
                        .is_some_and(|data| data.stamps.look(stamp) != Memory::Unknown)
                });
                let of = step(stamp);
                assert_eq!(
                    is_held,
                    Some(true),
                    "{stamp:?} of step {of} has rows of another one"
                );
            }
        }
        let worker = &mut self.workers[at];
        let (requests, _) = worker.tracker.due(now);
        for request in requests {
            let server = request.server;
            if let Some((request, ask)) = worker.tracker.ask(now, request) {
                let words = ask.words();
                self.asks
                    .entry((number, server))
                    .or_default()
                    .push_back((request, words));
            }
        }
        // Sooner or later the master hears of it.
        if self.below(3) == 0
            && let Some((task, chunks)) = self.workers[at].unreported.pop_front()
        {
            let known = self.settled.entry(task).or_default();
            *known = chunks.max(*known);
            if *known == TASKS[task as usize] && !self.done.contains(&task) {
                self.done.push(task);
                self.leases.remove(&task);
            }
        }
    }

    /// Lease a free task of the first wave that is not done, or of the next, to somebody.
    fn lease(&mut self) {
        let low = (0..total()).find(|task| !self.done.contains(task));
        let Some(low) = low else {
            return;
        };
        let mut tasks = wave(low).start..wave(low).end;
        if self.below(2) == 0 {
            tasks.end = (tasks.end + WAVE).min(total());
        }
        let free = tasks
            .clone()
            .find(|task| !self.done.contains(task) && !self.leases.contains_key(task));
        let at = self.below(self.workers.len());
        if let (Some(task), Some(worker)) = (free, self.workers.get_mut(at)) {
            let chunk = self.settled.get(&task).copied().unwrap_or(0);
            worker.tasks.insert(task, chunk);
            if self.bug != Bug::NoMasterWord {
                worker.tracker.confirm(0, 0, [(task, chunk)]);
            }
            self.leases.insert(task, worker.number);
        }
    }

    /// Let a worker hear which tasks are done.
    fn tell_done(&mut self) {
        let at = self.below(self.workers.len());
        if self.bug != Bug::NoMasterWord
            && let Some(worker) = self.workers.get_mut(at)
            && worker.heard < self.done.len()
        {
            let done = self.done[worker.heard..].iter().map(|task| (*task, WHOLE));
            worker.tracker.confirm(0, 0, done);
            worker.heard = self.done.len();
        }
    }

    fn kill_worker(&mut self) {
        if self.faults == 0 || self.workers.is_empty() {
            return;
        }
        if self.is_last && self.workers.len() == 1 {
            return;
        }
        self.faults -= 1;
        let at = self.below(self.workers.len());
        let worker = self.workers.remove(at);
        self.leases.retain(|_, holder| *holder != worker.number);
        // What it has sent may still arrive, or not.
        let arrives = self.below(2);
        for queue in self
            .asks
            .iter_mut()
            .filter(|((of, _), _)| *of == worker.number)
        {
            queue.1.truncate(arrives);
        }
        if !self.is_last {
            self.start_worker();
        }
    }

    /// Kill a server, or take it for dead by mistake, if each slot has two; its slots are promoted, and copied to a new one.
    fn lose_server(&mut self, is_dead: bool) {
        if self.faults == 0 || self.entries.iter().any(|entry| entry.backup.is_none()) {
            return;
        }
        self.faults -= 1;
        let at = self.below(self.peers.len());
        let dead = *self.peers.keys().nth(at).expect("servers are there");
        if is_dead {
            self.peers.remove(&dead);
            self.learned.remove(&dead);
        }
        self.start_server();
        for slot in 0..SLOTS {
            let entry = self.entries[slot as usize];
            let term = entry.term + 1;
            let after = match entry {
                Entry {
                    primary,
                    backup: Some(backup),
                    ..
                } if primary == dead => Entry {
                    term,
                    primary_epoch: term,
                    primary: backup,
                    backup: None,
                    restored: 0,
                },
                Entry { backup, .. } if backup == Some(dead) => Entry {
                    term,
                    backup: None,
                    ..entry
                },
                entry => entry,
            };
            if after != entry {
                self.entries[slot as usize] = after;
                self.journal.push((slot, after));
            }
        }
    }

    /// Go on with copies, and journal those that are ready.
    fn copy(&mut self) {
        let newest = self.next_server - 1;
        for slot in 0..SLOTS {
            let entry = self.entries[slot as usize];
            let Some(peer) = self.peers.get_mut(&entry.primary) else {
                continue;
            };
            if entry.backup.is_none()
                && entry.primary != newest
                && peer.copy(slot, newest, entry.term, false)
            {
                self.copies.insert((entry.primary, slot));
            }
        }
        for (server, slot) in self.copies.clone() {
            let Some(peer) = self.peers.get_mut(&server) else {
                self.copies.remove(&(server, slot));
                continue;
            };
            let (goes_on, outcome) = peer.go_on_copying(slot).unwrap();
            if !goes_on {
                self.copies.remove(&(server, slot));
            }
            self.dispatch(server, outcome);
        }
        for (slot, term, to) in std::mem::take(&mut self.ready) {
            let entry = &mut self.entries[slot as usize];
            if entry.term == term && self.peers.contains_key(&to) {
                *entry = Entry {
                    term: term + 1,
                    backup: Some(to),
                    ..*entry
                };
                self.journal.push((slot, *entry));
            }
        }
    }

    /// Look at the result: each chunk is in it once.
    fn check(&mut self) {
        for id in 0..8 {
            let slot = self.catalog.slot_of_row(0, id);
            let peer = &self.peers[&self.entries[slot as usize].primary];
            peer.node()
                .learn([(slot, self.entries[slot as usize])])
                .unwrap();
            let primary_epoch = self.entries[slot as usize].primary_epoch;
            peer.node()
                .step_for_cut(slot, primary_epoch, steps())
                .unwrap();
            let weight = peer.node().look(slot, |slot| {
                let mut out = [0.0];
                slot.read()
                    .expect("its primary has it")
                    .pull(&self.catalog, 0, &[id], &mut out);
                out[0]
            });
            let count = all().filter(|stamp| ids(*stamp).contains(&id)).count();
            assert_eq!(weight, Some(-(count as f32)), "row {id}");
        }
    }
}

/// The rows that a chunk has to see.
fn seen_by(stamp: Stamp) -> Vec<f32> {
    let batch = Batch::new(&catalog(), 0, &ids(stamp));
    let earlier: Vec<Stamp> = all().filter(|one| step(*one) < step(stamp)).collect();
    let count = |id: &u64| earlier.iter().filter(|one| ids(**one).contains(id)).count() as f32;
    batch.ids().iter().map(|id| 0.0 - count(id)).collect()
}

fn confirms(stamp: Stamp) -> u16 {
    if stamp.chunk + 1 == TASKS[stamp.task as usize] {
        WHOLE
    } else {
        stamp.chunk + 1
    }
}

fn push(worker: &mut Worker, now: Instant, catalog: &Catalog, stamp: Stamp) {
    worker.ticket += 1;
    worker.doing = Doing::Pushes(worker.ticket, stamp);
    let batch = Arc::new(Batch::new(catalog, 0, &ids(stamp)));
    let gradients = vec![1.0; batch.ids().len()];
    let head = Head {
        stamp: Some(stamp),
        low: 0,
        roll_back: 0,
        pace: Pace {
            rate: 1.0,
            step: step(stamp),
        },
        seen: UNSEEN,
    };
    let pushed = Pushed::new(
        catalog,
        stamp.task % 2 == 1,
        head,
        &[(batch, gradients.into())],
        &[],
        false,
    );
    let pushed = pushed.confirming(confirms(stamp));
    worker.tracker.begin(now, worker.ticket, None, Some(pushed));
}

fn settled(worker: &mut Worker, stamp: Stamp) {
    worker.doing = Doing::Nothing;
    worker.unreported.push_back((stamp.task, stamp.chunk + 1));
    if stamp.chunk + 1 == TASKS[stamp.task as usize] {
        worker.tasks.remove(&stamp.task);
    } else if let Some(chunk) = worker.tasks.get_mut(&stamp.task) {
        *chunk = stamp.chunk + 1;
    }
}

fn run(seed: u64, bug: Bug) {
    let mut world = World::new(seed, bug);
    for _ in 0..MOST {
        if world.is_over() {
            return world.check();
        }
        world.go_on();
    }
    panic!(
        "seed {seed}: it stands still with {} tasks done",
        world.done.len()
    );
}

#[test]
fn every_gradient_is_of_its_step_whoever_is_killed() {
    for seed in 0..2_000 {
        if let Err(why) = catch_unwind(|| run(seed, Bug::No)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(why);
        }
    }
}

#[test]
fn mistakes_show() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let bugs = [
        Bug::ConfirmEarly,
        Bug::NoPutBack,
        Bug::NoMasterWord,
        Bug::NoNeed,
        Bug::ReadsEarly,
    ];
    let missed: Vec<Bug> = bugs
        .into_iter()
        .filter(|bug| {
            (0..20_000).all(|seed| catch_unwind(AssertUnwindSafe(|| run(seed, *bug))).is_ok())
        })
        .collect();
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn rows_from_before_a_roll_back_are_not_read_after_it() {
    let mut peer = Peer::new(0, catalog(), None);
    let entry = |term, restored| Entry {
        term,
        primary_epoch: term,
        primary: 0,
        backup: None,
        restored,
    };
    let bounds = |roll_back| Bounds {
        roll_back,
        tasks: 1,
        ..Bounds::default()
    };
    peer.learn(
        (0..SLOTS).map(|slot| (slot, entry(1, 0))).collect(),
        bounds(0),
    )
    .unwrap();
    let stamp = Stamp { task: 0, chunk: 0 };
    let ask = |peer: &mut Peer, roll_back| {
        let mut tracker = RequestTracker::new(catalog());
        tracker.learn((0..SLOTS).map(|slot| (slot, entry(1, 0))), roll_back);
        let now = Instant::now();
        let wanted = Wanted {
            chunk: Some(stamp),
            batches: vec![Arc::new(Batch::new(&catalog(), 0, &ids(stamp)))],
            ..Wanted::default()
        };
        tracker.begin(now, 1, Some(wanted), None);
        let request = tracker.due(now).0.remove(0);
        let (number, ask) = tracker.ask(now, request).unwrap();
        let words = ask.words();
        let outcome = peer.ask(1, number, bytemuck::cast_slice(&words)).unwrap();
        for (_, packet) in outcome.packets {
            let taken = tracker.take(now, 0, packet.kind, packet.number, &packet.words);
            assert!(taken.is_some());
        }
        tracker.take_news().found.len()
    };
    assert_eq!(ask(&mut peer, 0), 1);
    // The worker has heard of a roll-back, the server has not.
    assert_eq!(ask(&mut peer, 1), 0);
    peer.learn(
        (0..SLOTS).map(|slot| (slot, entry(2, 1))).collect(),
        bounds(1),
    )
    .unwrap();
    assert_eq!(ask(&mut peer, 1), 0);
    for slot in 0..SLOTS {
        peer.restore(slot, None).unwrap();
    }
    assert_eq!(ask(&mut peer, 1), 1);
    assert_eq!(ask(&mut peer, 0), 0);
    // An order to cut from before the roll-back says nothing of what is complete after it.
    let slot = catalog().slot_of_row(0, ids(stamp)[0]);
    let head = Head {
        stamp: Some(stamp),
        low: 0,
        roll_back: 1,
        pace: Pace { rate: 1.0, step: 0 },
        seen: UNSEEN,
    };
    let batch = Arc::new(Batch::new(&catalog(), 0, &ids(stamp)[..1]));
    let pushed = Pushed::new(
        &catalog(),
        false,
        head,
        &[(batch, vec![1.0].into())],
        &[],
        false,
    );
    assert_eq!(
        peer.node()
            .pushes()
            .push(slot, &head, 2, pushed.part(0).1.into(), 1),
        Some(Answer::Applied)
    );
    let lags = |peer: &Peer| peer.node().look(slot, |slot| slot.data().unwrap().lags(9));
    for (primary_epoch, lagging) in [(1, true), (2, false)] {
        peer.node().step_for_cut(slot, primary_epoch, 9).unwrap();
        assert_eq!(lags(&peer), Some(lagging));
    }
}
