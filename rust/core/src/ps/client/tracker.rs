//! What a worker has asked of servers, as a state machine: each part is asked of the present primary, again and again, until it is
//! settled (rule R9). No sockets, no threads, no clock: the caller has them.
//!
//! What is due is asked for with `due`, sent with `ask`, and answered with `take`; a server that can't be reached is reported with `lose`. What
//! came of it all is fetched with `take_news`.
//!
//! One file because asking, answers, moved slots and lost servers all change the state of the same parts, and the tests look into it.
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
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::net::frame::Kind;
use crate::ps::client::loads::{ROOM, room, split};
use crate::ps::client::push::Pushed;
use crate::ps::client::seen::Seen;
use crate::ps::client::wanted::{Came, Found, Wanted, pull_of, take_rows};
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::placement::{Entry, Server};
use crate::ps::protocol::steps::{Confirmed, Need};
use crate::ps::protocol::wire::{self, Ask, Outcome, Pull, Push};
use crate::ps::protocol::words::Reader;
use crate::ps::server::data::Pace;
use crate::ps::server::slot::{Head, UNSEEN};

/// Before a part is sent again to a server that was busy.
const BUSY: Duration = Duration::from_millis(5);
/// Before a part is sent again that no server known wants.
const MOVED: Duration = Duration::from_millis(20);
/// Rows are sent at once, whatever a push has to wait for: a server that sends none for so long may be lost.
const SILENCE: Duration = Duration::from_secs(1);
const HALF_SILENCE: Duration = Duration::from_millis(500);

/// Names what was asked.
pub type Ticket = u32;

/// How a push ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All parts are settled.
    Settled,
    /// All parts are answered, and some are too stale to be applied: the chunk has to be computed again.
    Stale,
    /// A server says why a part can't be applied.
    Refused(String),
    /// A roll-back came between: the chunk's task begins anew.
    RolledBack,
}

/// What has come of what was asked since the last look.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct News {
    pub found: Vec<(Ticket, Found)>,
    /// Why a server can't answer what was wanted; nothing more comes of it.
    pub refused: Vec<(Ticket, String)>,
    pub ended: Vec<(Ticket, End)>,
    /// Servers that could not be reached or are silent.
    pub lost: BTreeSet<Server>,
    /// Parts wait for newer entries of the journal than are known here.
    pub is_astray: bool,
}

/// Parts of one ask that go to one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboundRequest {
    pub server: Server,
    /// Nothing, if it only says what is confirmed.
    ticket: Option<Ticket>,
    /// Slots.
    pulls: Vec<u32>,
    /// Places in the push's parts.
    pushes: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be sent, not before this time.
    Due(Instant),
    Asked(Server),
    Done,
}

impl State {
    /// Be due again if it is this server that was asked: another one may have been asked since, or have answered.
    fn again(&mut self, of: Server, at: Instant) {
        if *self == State::Asked(of) {
            *self = State::Due(at);
        }
    }
}

#[derive(Debug)]
struct Job {
    wanted: Option<Wanted>,
    found: Found,
    /// By slot, ascending.
    pulls: Vec<(u32, State)>,
    pushed: Option<Pushed>,
    pushes: Vec<State>,
    /// It may take several messages to a server.
    is_large: bool,
    /// Whether any part may be due; there are many, and mostly all of them have been asked.
    may_be_due: bool,
    is_stale: bool,
}

/// One message that was sent, until all of it is answered.
#[derive(Debug)]
struct Request {
    job: Ticket,
    server: Server,
    asked: Instant,
    pulls: Vec<u32>,
    /// Places in the job's parts.
    pushes: BTreeSet<usize>,
}

/// All that a worker has asked and that is not settled.
#[derive(Debug)]
pub struct RequestTracker {
    catalog: Catalog,
    entries: Vec<Option<Entry>>,
    roll_back: u64,
    /// Slots that have another primary since something was last due.
    moved: BTreeSet<u32>,
    jobs: BTreeMap<Ticket, Job>,
    requests: HashMap<u32, Request>,
    next_request: u32,
    /// Each variable as it came last, with whatever ticket.
    came: Vec<Option<Came>>,
    seen: Seen,
    confirmed: Confirmed,
    /// Counts what was learned of settled chunks since the beginning.
    learned: u64,
    /// How much of that each server has been told.
    told: HashMap<Server, u64>,
    news: News,
}

impl RequestTracker {
    /// Know no servers yet.
    pub fn new(catalog: Catalog) -> RequestTracker {
        RequestTracker {
            entries: vec![None; catalog.slots() as usize],
            roll_back: 0,
            moved: BTreeSet::new(),
            jobs: BTreeMap::new(),
            requests: HashMap::new(),
            next_request: 0,
            came: vec![None; catalog.variables().len()],
            seen: Seen::default(),
            confirmed: Confirmed::default(),
            learned: 0,
            told: HashMap::new(),
            news: News::default(),
            catalog,
        }
    }

    /// Learn which servers have which slots, and how often the job was rolled back: what was asked before a later roll-back is given up.
    pub fn learn(&mut self, entries: impl IntoIterator<Item = (u32, Entry)>, roll_back: u64) {
        for (slot, entry) in entries {
            self.see(slot, entry);
        }
        if roll_back <= self.roll_back {
            return;
        }
        // Answers to what was asked before mean nothing any more (rule R24).
        self.roll_back = roll_back;
        self.requests.clear();
        self.seen = Seen::default();
        self.confirmed = Confirmed::new(roll_back);
        self.told.clear();
        // What came is no more.
        self.came.fill(None);
        let jobs = std::mem::take(&mut self.jobs);
        let ended = jobs.into_keys().map(|ticket| (ticket, End::RolledBack));
        self.news.ended.extend(ended);
    }

    /// Take an entry if it is newer than what is known; tell whether it is.
    fn see(&mut self, slot: u32, entry: Entry) -> bool {
        let Some(known) = self.entries.get_mut(slot as usize) else {
            return false;
        };
        let is_newer = known.is_none_or(|known| known.term < entry.term);
        if is_newer {
            if known.is_some_and(|known| known.primary != entry.primary) {
                self.moved.insert(slot);
            }
            if known.is_none_or(|known| known.primary != entry.primary) {
                // What the one before knew is gone with it (rule A3).
                self.told.remove(&entry.primary);
            }
            *known = Some(entry);
        }
        is_newer
    }

    /// Learn how far tasks are settled on all servers in a roll-back: all before `low`, and so many chunks of others.
    pub fn confirm(
        &mut self,
        roll_back: u64,
        low: u64,
        tasks: impl IntoIterator<Item = (u64, u16)>,
    ) {
        if roll_back != self.roll_back {
            return;
        }
        let mut is_new = self.confirmed.raise_low(low);
        for (task, chunks) in tasks {
            is_new |= self.confirmed.confirm(task, chunks);
        }
        self.learned = self.learned.saturating_add(is_new.into());
    }

    /// Want no rows of what was asked for; pushes go on.
    pub fn forget(&mut self) {
        let tickets: Vec<Ticket> = self.jobs.keys().copied().collect();
        for ticket in tickets {
            if let Some(job) = self.jobs.get_mut(&ticket) {
                job.wanted = None;
                job.pulls.clear();
            }
            self.settle(ticket);
        }
    }

    /// Want rows, and a push to be applied; both go to a server in one message. A push of an attempt that a
    /// roll-back has ended is given up at once, with what was wanted along with it (rule R24).
    pub fn begin(
        &mut self,
        now: Instant,
        ticket: Ticket,
        wanted: Option<Wanted>,
        pushed: Option<Pushed>,
    ) {
        if pushed
            .as_ref()
            .is_some_and(|one| one.head.roll_back < self.roll_back)
        {
            self.news.ended.push((ticket, End::RolledBack));
            return;
        }
        let catalog = &self.catalog;
        let is_large = room(catalog, wanted.as_ref(), pushed.as_ref()) > ROOM;
        let mut found = Found::default();
        let mut slots: Vec<u32> = Vec::new();
        for batch in wanted.iter().flat_map(|wanted| &wanted.batches) {
            let numbers = catalog.numbers(batch.table(), batch.ids());
            found.rows.push(vec![0.0; numbers]);
            slots.extend(batch.slots());
        }
        for variable in wanted.iter().flat_map(|wanted| &wanted.variables) {
            slots.push(catalog.slot_of_variable(*variable));
        }
        for (_, listed) in wanted.iter().flat_map(|wanted| &wanted.listed) {
            slots.extend(listed.clone());
        }
        slots.sort_unstable();
        slots.dedup();
        let pulls = slots.into_iter().map(|slot| (slot, State::Due(now)));
        let pushes = vec![State::Due(now); pushed.as_ref().map_or(0, Pushed::len)];
        let job = Job {
            wanted,
            found,
            pulls: pulls.collect(),
            pushed,
            pushes,
            is_large,
            may_be_due: true,
            is_stale: false,
        };
        self.jobs.insert(ticket, job);
        // Who wants nothing has it.
        self.settle(ticket);
    }

    /// Return what may be sent now, and when more may be.
    pub fn due(&mut self, now: Instant) -> (Vec<OutboundRequest>, Option<Instant>) {
        self.follow_moved(now);
        let mut later: Option<Instant> = None;
        let mut requests = Vec::new();
        for (ticket, job) in self.jobs.iter_mut().filter(|(_, job)| job.may_be_due) {
            job.may_be_due = false;
            let mut of_server: BTreeMap<Server, (Vec<u32>, Vec<usize>)> = BTreeMap::new();
            let mut primary = |slot: u32, state: &State| match state {
                State::Due(time) if *time <= now => {
                    job.may_be_due = true;
                    let entry = of_slot(&self.entries, slot);
                    self.news.is_astray |= entry.is_none();
                    entry.map(|entry| entry.primary)
                }
                State::Due(time) => {
                    job.may_be_due = true;
                    later = Some(later.map_or(*time, |later| later.min(*time)));
                    None
                }
                _ => None,
            };
            for (slot, state) in &job.pulls {
                if let Some(server) = primary(*slot, state) {
                    of_server.entry(server).or_default().0.push(*slot);
                }
            }
            let slots = job.pushed.iter().flat_map(Pushed::slots);
            for (at, (slot, state)) in slots.zip(&job.pushes).enumerate() {
                if let Some(server) = primary(slot, state) {
                    of_server.entry(server).or_default().1.push(at);
                }
            }
            for (server, (pulls, pushes)) in of_server {
                let loads = if job.is_large {
                    split(
                        &self.catalog,
                        &self.came,
                        job.wanted.as_ref(),
                        job.pushed.as_ref(),
                        pulls,
                        pushes,
                    )
                } else {
                    vec![(pulls, pushes)]
                };
                requests.extend(loads.into_iter().map(|(pulls, pushes)| OutboundRequest {
                    server,
                    ticket: Some(*ticket),
                    pulls,
                    pushes,
                }));
            }
        }
        if self.learned > 0 {
            self.pass_on(&mut requests);
        }
        (requests, later)
    }

    /// Let all servers know what is confirmed, also those of which nothing is wanted: others wait there (rule A3).
    fn pass_on(&self, requests: &mut Vec<OutboundRequest>) {
        let mut unaware: BTreeSet<Server> = self
            .entries
            .iter()
            .flatten()
            .map(|entry| entry.primary)
            .filter(|server| self.told.get(server) != Some(&self.learned))
            .collect();
        for request in requests.iter() {
            unaware.remove(&request.server);
        }
        requests.extend(unaware.into_iter().map(|server| OutboundRequest {
            server,
            ticket: None,
            pulls: Vec::new(),
            pushes: Vec::new(),
        }));
    }

    /// Ask again what was asked of servers that are no primaries any more: they may never answer.
    fn follow_moved(&mut self, now: Instant) {
        let moved = std::mem::take(&mut self.moved);
        if moved.is_empty() {
            return;
        }
        for job in self.jobs.values_mut() {
            let slots = job.pushed.iter().flat_map(Pushed::slots);
            let pushes = slots.zip(&mut job.pushes);
            let pulls = job.pulls.iter_mut().map(|(slot, state)| (*slot, state));
            for (slot, state) in pulls.chain(pushes) {
                let primary = of_slot(&self.entries, slot).map(|entry| entry.primary);
                if let State::Asked(server) = *state
                    && moved.contains(&slot)
                    && primary != Some(server)
                {
                    *state = State::Due(now);
                    job.may_be_due = true;
                }
            }
        }
    }

    /// Return the number and the content of the message that a request is, which is sent now; `None` if it means nothing any more.
    pub fn ask(&mut self, now: Instant, request: OutboundRequest) -> Option<(u32, Ask<'_>)> {
        let OutboundRequest {
            server,
            ticket,
            pulls,
            pushes,
        } = request;
        let number = self.next_request;
        // A server has 24 bits for it.
        self.next_request = number.wrapping_add(1) & 0xff_ffff;
        self.told.insert(server, self.learned);
        let Some(ticket) = ticket else {
            let ask = Ask {
                head: NOTHING,
                chunk: None,
                need: Need::default(),
                confirmed: self.confirmed.clone(),
                pulls: Vec::new(),
                pushes: Vec::new(),
            };
            return Some((number, ask));
        };
        let job = self.jobs.get_mut(&ticket)?;
        for slot in &pulls {
            if let Some(state) = of_pull(&mut job.pulls, *slot) {
                *state = State::Asked(server);
            }
        }
        for at in &pushes {
            if let Some(state) = job.pushes.get_mut(*at) {
                *state = State::Asked(server);
            }
        }
        let (job, entries) = (&*job, &self.entries);
        let term = |slot| of_slot(entries, slot).map_or(0, |entry| entry.term);
        let wanted = job.wanted.as_ref();
        let pulled = wanted.iter().flat_map(|wanted| {
            pulls.iter().map(|slot| Pull {
                term: term(*slot),
                ..pull_of(&self.catalog, wanted, *slot, &self.came)
            })
        });
        let seen = &self.seen;
        let parts = job.pushed.iter().flat_map(|pushed| {
            pushes.iter().map(move |at| {
                let (slot, words) = pushed.part(*at);
                Push {
                    slot,
                    term: term(slot),
                    seen: seen.version(pushed.head.stamp, slot),
                    words,
                }
            })
        });
        let ask = Ask {
            head: job.pushed.as_ref().map_or(NOTHING, |pushed| pushed.head),
            chunk: wanted.and_then(|wanted| wanted.chunk),
            need: wanted.map_or_else(Need::default, |wanted| wanted.need),
            confirmed: self.confirmed.clone(),
            pulls: pulled.collect(),
            pushes: parts.collect(),
        };
        let request = Request {
            job: ticket,
            server,
            asked: now,
            pulls,
            pushes: pushes.into_iter().collect(),
        };
        self.requests.insert(number, request);
        Some((number, ask))
    }

    /// Take an answer in; nothing if it makes no sense: whatever is there is not one of this job's servers.
    pub fn take(
        &mut self,
        now: Instant,
        server: Server,
        kind: Kind,
        number: u64,
        words: &[u64],
    ) -> Option<()> {
        let number = u32::try_from(number).ok()?;
        let Some(request) = self.requests.get_mut(&number) else {
            return Some(()); // of before a roll-back
        };
        if request.server != server {
            return None;
        }
        let ticket = request.job;
        let Some(job) = self.jobs.get_mut(&ticket) else {
            // Another server has answered meanwhile.
            self.requests.remove(&number);
            return Some(());
        };
        job.may_be_due = true;
        match kind {
            Kind::Rows if job.wanted.is_none() => request.pulls.clear(),
            Kind::Answers if job.pushed.is_none() => request.pushes.clear(),
            Kind::Rows => {
                let pulls = std::mem::take(&mut request.pulls);
                let mut reader = Reader::new(words);
                let mut refused = None;
                for slot in pulls {
                    let wanted = job.wanted.as_ref()?;
                    let asked = pull_of(&self.catalog, wanted, slot, &self.came);
                    let pulled = wire::pulled(&mut reader, &self.catalog, &asked).ok()?;
                    let state = of_pull(&mut job.pulls, slot)?;
                    if *state == State::Done {
                        continue; // another server has answered meanwhile
                    }
                    let primary = of_slot(&self.entries, slot).map(|entry| entry.primary);
                    if self.learned > 0 && primary != Some(server) {
                        continue; // the other one may have gone on by a step; it is asked
                    }
                    match pulled {
                        wire::Pulled::Rows(pulled) => {
                            self.seen.note(wanted.chunk, slot, pulled.version);
                            // Who answers knows that all before is settled.
                            let is_new = self.confirmed.raise_steps(wanted.need.number);
                            self.learned = self.learned.saturating_add(is_new.into());
                            *state = State::Done;
                            let (found, came) = (&mut job.found, &mut self.came);
                            take_rows(&self.catalog, wanted, &asked, pulled, found, came);
                        }
                        wire::Pulled::Elsewhere => {
                            state.again(server, now + MOVED);
                            self.news.is_astray = true;
                        }
                        wire::Pulled::Refused(why) => {
                            refused = Some(format!("server {server}, slot {slot}: {why}"));
                        }
                    }
                }
                reader.end().ok()?;
                if let Some(why) = refused {
                    job.wanted = None;
                    job.pulls.clear();
                    self.news.refused.push((ticket, why));
                }
            }
            Kind::Answers => {
                let mut reader = Reader::new(words);
                let mut moved = Vec::new();
                while !reader.is_empty() {
                    let (slot, outcome) = wire::outcome(&mut reader).ok()?;
                    let at = job.pushed.as_ref()?.of_slot(slot)?;
                    if !request.pushes.remove(&at) {
                        return None;
                    }
                    let state = job.pushes.get_mut(at)?;
                    match outcome {
                        Outcome::Settled | Outcome::Closed | Outcome::Refused => {
                            *state = State::Done;
                        }
                        Outcome::Stale => {
                            *state = State::Done;
                            job.is_stale = true;
                        }
                        Outcome::Busy => state.again(server, now + BUSY),
                        Outcome::Moved(entry) => {
                            let known = of_slot(&self.entries, slot).map_or(0, |known| known.term);
                            let newer = entry.filter(|entry| entry.term > known);
                            let pause = if newer.is_some() {
                                Duration::ZERO
                            } else {
                                MOVED
                            };
                            state.again(server, now + pause);
                            self.news.is_astray |= newer.is_none();
                            moved.extend(newer.map(|entry| (slot, entry)));
                        }
                    }
                }
                for (slot, entry) in moved {
                    self.see(slot, entry);
                }
            }
            Kind::Waits => request.asked = now,
            Kind::Refusal => {
                let why = wire::read_text(words);
                self.news.ended.push((ticket, End::Refused(why)));
            }
            _ => return None,
        }
        let request = self.requests.get(&number)?;
        if request.pulls.is_empty() && request.pushes.is_empty() {
            self.requests.remove(&number);
        }
        self.settle(ticket);
        Some(())
    }

    /// Tell what is complete of a job.
    fn settle(&mut self, ticket: Ticket) {
        let Some(job) = self.jobs.get_mut(&ticket) else {
            return;
        };
        let is_found = job.pulls.iter().all(|(_, state)| *state == State::Done);
        let is_pushed = job.pushes.iter().all(|state| *state == State::Done);
        if is_found && job.wanted.take().is_some() {
            let found = std::mem::take(&mut job.found);
            self.news.found.push((ticket, found));
        }
        if is_pushed && let Some(pushed) = job.pushed.take() {
            let end = if job.is_stale {
                End::Stale
            } else {
                End::Settled
            };
            // A slot for which it was stale has nothing of it yet.
            let settled = pushed.head.stamp.filter(|_| end == End::Settled);
            if let Some(stamp) = settled.filter(|_| pushed.confirms > 0) {
                let is_new = self.confirmed.confirm(stamp.task, pushed.confirms);
                self.learned = self.learned.saturating_add(is_new.into());
            }
            self.news.ended.push((ticket, end));
        }
        if is_found && is_pushed {
            self.jobs.remove(&ticket);
        }
    }

    /// Note that a server can't be reached: its parts are asked again, of the primary by then.
    pub fn lose(&mut self, now: Instant, server: Server) {
        self.told.remove(&server);
        self.requests.retain(|_, request| request.server != server);
        for job in self.jobs.values_mut() {
            job.may_be_due = true;
            let pulls = job.pulls.iter_mut().map(|(_, state)| state);
            for state in pulls.chain(&mut job.pushes) {
                state.again(server, now);
            }
        }
        self.news.lost.insert(server);
        self.news.is_astray = true;
    }

    /// Note servers that send no rows; returns when to look again.
    pub fn doubt(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for request in self.requests.values().filter(|one| !one.pulls.is_empty()) {
            let is_silent = now >= request.asked + SILENCE;
            if is_silent {
                self.news.lost.insert(request.server);
            }
            let at = if is_silent {
                now + HALF_SILENCE
            } else {
                request.asked + SILENCE
            };
            next = Some(next.map_or(at, |next: Instant| next.min(at)));
        }
        next
    }

    /// Return what has come of what was asked since the last call.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }
}

/// Return how far the pull of a slot is.
fn of_pull(pulls: &mut [(u32, State)], slot: u32) -> Option<&mut State> {
    let at = pulls.binary_search_by_key(&slot, |(of, _)| *of).ok()?;
    pulls.get_mut(at).map(|(_, state)| state)
}

/// Return the entry of a slot, if it is known.
fn of_slot(entries: &[Option<Entry>], slot: u32) -> Option<Entry> {
    entries.get(slot as usize).copied().flatten()
}

const NOTHING: Head = Head {
    stamp: None,
    low: 0,
    roll_back: 0,
    pace: Pace { rate: 0.0, step: 0 },
    seen: UNSEEN,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::frame::MESSAGE;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::protocol::catalog::Variable;
    use crate::ps::protocol::stamps::Stamp;
    use crate::ps::protocol::wire::Dense;
    use crate::ps::server::slot::Answer;

    const ENTRY: Entry = Entry {
        term: 1,
        primary_epoch: 1,
        primary: 1,
        backup: None,
        restored: 0,
    };

    /// Describe variables of one length under plain SGD.
    fn catalog(slots: u32, names: &[&str], length: usize) -> Catalog {
        let variable = |name: &&str| Variable {
            name: (*name).into(),
            length,
            decays: false,
            adds: false,
        };
        let rule = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        let variables = names.iter().map(variable).collect();
        Catalog::new(0, slots, vec![], variables, rule, 0.0)
    }

    /// Ask for the one variable; return the message's number and what the server hears that is known of it.
    fn ask(tracker: &mut RequestTracker, catalog: &Catalog, ticket: Ticket) -> (u32, (u64, u64)) {
        let now = Instant::now();
        let wanted = Wanted {
            variables: vec![0],
            ..Wanted::default()
        };
        tracker.begin(now, ticket, Some(wanted), None);
        let request = tracker.due(now).0.remove(0);
        let (number, ask) = tracker.ask(now, request).expect("it is asked");
        let known = Ask::read(&ask.words(), catalog).expect("an ask").pulls[0].dense[0];
        (number, (known.primary_epoch, known.version))
    }

    /// Answer, and return what came for whom.
    fn answer(
        tracker: &mut RequestTracker,
        number: u32,
        dense: Dense<'_>,
    ) -> Vec<(Ticket, Vec<f32>)> {
        let mut words = Vec::new();
        wire::put_rows::<f32>(&mut words, 0, false, (1, 5), 0);
        wire::put_dense(&mut words, 0, dense);
        tracker
            .take(Instant::now(), 1, Kind::Rows, number.into(), &words)
            .expect("an answer");
        let found = tracker.take_news().found.into_iter();
        let weights = |found: Found| found.variables[0].1.clone().expect("a value").weights;
        found
            .map(|(ticket, found)| (ticket, weights(found).to_vec()))
            .collect()
    }

    #[test]
    fn a_variable_that_came_with_another_ticket_is_told_with_each() {
        let catalog = catalog(1, &["bias"], 1);
        let mut tracker = RequestTracker::new(catalog.clone());
        tracker.learn([(0, ENTRY)], 0);
        let (first, _) = ask(&mut tracker, &catalog, 1);
        let (second, known) = ask(&mut tracker, &catalog, 2);
        assert_eq!(known, (0, 0));
        let weights = &[2.0][..];
        let changed = Dense::Changed {
            version: 5,
            weights,
        };
        assert_eq!(answer(&mut tracker, second, changed), [(2, vec![2.0])]);
        // The slot was elsewhere at first, and is asked for again.
        let mut words = Vec::new();
        wire::put_elsewhere(&mut words, 0);
        let now = Instant::now();
        tracker.take(now, 1, Kind::Rows, first.into(), &words);
        let request = tracker.due(now + MOVED).0.remove(0);
        let (first, asked) = tracker.ask(now + MOVED, request).expect("it is asked");
        let known = Ask::read(&asked.words(), &catalog).expect("an ask").pulls[0].dense[0];
        assert_eq!((known.primary_epoch, known.version), (1, 5));
        let found = answer(&mut tracker, first, Dense::Unchanged);
        assert_eq!(found, [(1, vec![2.0])]);
        // What is forgotten has come all the same.
        tracker.forget();
        let (third, known) = ask(&mut tracker, &catalog, 3);
        assert_eq!(known, (1, 5));
        let found = answer(&mut tracker, third, Dense::Unchanged);
        assert_eq!(found, [(3, vec![2.0])]);
        // After a roll-back it is another one's.
        let entry = Entry {
            term: 2,
            primary_epoch: 2,
            restored: 1,
            ..ENTRY
        };
        tracker.learn([(0, entry)], 1);
        assert_eq!(ask(&mut tracker, &catalog, 4).1, (0, 0));
    }

    #[test]
    fn what_can_never_be_answered_is_asked_for_once() {
        let catalog = catalog(2, &["a", "b", "c", "d", "e", "f", "g", "h"], 1);
        let mut tracker = RequestTracker::new(catalog.clone());
        let of = |primary| Entry { primary, ..ENTRY };
        tracker.learn([(0, of(1)), (1, of(2))], 0);
        let now = Instant::now();
        let wanted = Wanted {
            variables: (0..8).collect(),
            ..Wanted::default()
        };
        tracker.begin(now, 7, Some(wanted), None);
        let sent: Vec<_> = tracker.due(now).0.into_iter().collect();
        let numbers: Vec<u32> = sent
            .into_iter()
            .map(|request| tracker.ask(now, request).expect("it is asked").0)
            .collect();
        let [first, second] = numbers[..] else {
            panic!("one server has all variables: {numbers:?}");
        };
        let mut words = Vec::new();
        wire::put_impossible(&mut words, 0, "too long");
        let number = u64::from(first);
        tracker.take(now, 1, Kind::Rows, number, &words).unwrap();
        let why = "server 1, slot 0: too long";
        assert_eq!(tracker.take_news().refused, [(7, why.to_string())]);
        // What another server has still to say of it is passed over, and nothing is due.
        let number = u64::from(second);
        tracker.take(now, 2, Kind::Rows, number, &[]).unwrap();
        assert_eq!(tracker.take_news(), News::default());
        let (requests, later) = tracker.due(now + SILENCE);
        assert!(requests.is_empty() && later.is_none());
        assert!(tracker.doubt(now + SILENCE).is_none());
    }

    #[test]
    fn what_is_too_large_for_a_message_goes_in_several() {
        let length = 10 << 20;
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        let catalog = catalog(64, &names, length);
        let mut tracker = RequestTracker::new(catalog.clone());
        tracker.learn((0..64).map(|slot| (slot, ENTRY)), 0);
        let now = Instant::now();
        let numbers = vec![1.0; length];
        let dense: Vec<(usize, &[f32])> =
            (0..12).map(|variable| (variable, &numbers[..])).collect();
        let head = Head {
            stamp: Some(Stamp { task: 0, chunk: 0 }),
            ..NOTHING
        };
        let pushed = Pushed::new(&catalog, false, head, &[], &dense, false);
        let wanted = Wanted {
            variables: (0..12).collect(),
            ..Wanted::default()
        };
        tracker.begin(now, 1, Some(wanted), Some(pushed));
        let (requests, _) = tracker.due(now);
        let (mut pulls, mut pushes) = (Vec::new(), Vec::new());
        for request in requests {
            pulls.extend(request.pulls.iter().copied());
            pushes.extend(request.pushes.iter().copied());
            let (_, ask) = tracker.ask(now, request).expect("it is asked");
            let words = ask.words();
            assert!(words.len() * 8 <= MESSAGE);
            let ask = Ask::read(&words, &catalog).expect("a server answers it");
            let answer: usize = ask.pulls.iter().map(|pull| pull.answer(&catalog)).sum();
            assert!(answer * 8 <= MESSAGE);
        }
        let slots: BTreeSet<u32> = (0..12)
            .map(|variable| catalog.slot_of_variable(variable))
            .collect();
        assert_eq!(pulls, slots.iter().copied().collect::<Vec<_>>());
        assert_eq!(pushes, (0..slots.len()).collect::<Vec<_>>());
    }

    #[test]
    fn a_push_of_an_attempt_from_before_a_roll_back_reaches_no_server() {
        let catalog = catalog(1, &["bias"], 1);
        let entry = Entry {
            term: 2,
            primary_epoch: 2,
            restored: 1,
            ..ENTRY
        };
        let mut tracker = RequestTracker::new(catalog.clone());
        tracker.learn([(0, entry)], 1);
        let now = Instant::now();
        for roll_back in [0, 1] {
            let head = Head {
                stamp: Some(Stamp { task: 0, chunk: 0 }),
                roll_back,
                ..NOTHING
            };
            let pushed = Pushed::new(&catalog, false, head, &[], &[(0, &[1.0])], false);
            tracker.begin(now, roll_back as u32, None, Some(pushed));
        }
        assert_eq!(tracker.take_news().ended, [(0, End::RolledBack)]);
        let (requests, _) = tracker.due(now);
        let tickets: Vec<Option<Ticket>> = requests.iter().map(|request| request.ticket).collect();
        assert_eq!(tickets, [Some(1)]);
    }

    /// A step with such a chunk would be applied without what the stale part would have added (rule A3).
    #[test]
    fn a_chunk_of_which_a_part_is_stale_is_not_confirmed() {
        let catalog = catalog(2, &["a", "b", "c", "d", "e", "f", "g", "h"], 1);
        let mut tracker = RequestTracker::new(catalog.clone());
        tracker.learn([(0, ENTRY), (1, ENTRY)], 0);
        let now = Instant::now();
        let dense: Vec<(usize, &[f32])> = (0..8).map(|one| (one, &[1.0][..])).collect();
        for (ticket, second) in [(1, Answer::Stale), (2, Answer::Held)] {
            let head = Head {
                stamp: Some(Stamp { task: 0, chunk: 0 }),
                ..NOTHING
            };
            let pushed = Pushed::new(&catalog, false, head, &[], &dense, false).confirming(1);
            let is_stale = second == Answer::Stale;
            tracker.begin(now, ticket, None, Some(pushed));
            let request = tracker.due(now).0.remove(0);
            let (number, ask) = tracker.ask(now, request).expect("it is asked");
            let words = ask.words();
            let ask = Ask::read(&words, &catalog).expect("an ask");
            assert_eq!(ask.pushes.len(), 2);
            assert_eq!(ask.confirmed, Confirmed::default());
            let mut words = Vec::new();
            wire::put_outcome(&mut words, 0, &Answer::Applied, None);
            wire::put_outcome(&mut words, 1, &second, None);
            tracker.take(now, 1, Kind::Answers, number.into(), &words);
            let end = if is_stale { End::Stale } else { End::Settled };
            assert_eq!(tracker.take_news().ended, [(ticket, end)]);
            let mut confirmed = Confirmed::default();
            if !is_stale {
                confirmed.confirm(0, 1);
            }
            assert_eq!(tracker.confirmed, confirmed);
        }
    }
}
