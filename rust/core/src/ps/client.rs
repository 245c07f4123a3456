//! A worker's end: splits what it asks by server, keeps each part until it is settled, and sends it again to whoever is the primary by then
//! (rule R9).
//!
//! One thread has all connections. It never waits for one server with another one's parts; Python waits for what it has asked.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::catalog::Catalog;
use super::placement::{Entry, Server};
use super::server::name_of;
use super::slot::Head;
use super::stamps::Stamp;
use super::wire::{self, Ask, Dense, Known, Outcome, Pull, PulledRows, Push};
use super::words::{Reader, pair, put_numbers};
use crate::net::address::Address;
use crate::net::channel::{Channel, Packet};
use crate::net::dial::Dialer;
use crate::net::endpoint::{check_member, lock};
use crate::net::error::{Error, Result};
use crate::net::frame::Kind;
use crate::net::handshake::{Hello, Purpose, Token};
use crate::net::tls::{Identity, Role};
use crate::net::wake::{Wake, ignore_signals, readable, wait};

/// Before a part is sent again to a server that was busy.
const BUSY: Duration = Duration::from_millis(5);
/// Before a part is sent again that no server known wants.
const MOVED: Duration = Duration::from_millis(20);
/// Before a server that could not be reached is tried again.
const UNREACHABLE: Duration = Duration::from_millis(50);
const ATTEMPT: Duration = Duration::from_secs(2);
/// Rows are sent at once, whatever a push has to wait for: a server that sends none for so long may be lost.
const SILENCE: Duration = Duration::from_secs(1);

/// Names what was asked.
pub type Ticket = u32;

/// The rows and variables that a worker wants.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The chunk that they are for.
    pub chunk: Option<Stamp>,
    pub batches: Vec<Arc<Batch>>,
    pub variables: Vec<usize>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// Weights of each batch's distinct ids.
    pub rows: Vec<Vec<f32>>,
    /// Dense variables that are not as they were when they came last; `None` before the first value.
    pub changed: Vec<(usize, Option<Vec<f32>>)>,
    /// Slots that hold the chunk already, as all servers do that must.
    pub held: BTreeSet<u32>,
}

/// A chunk's gradients, encoded.
#[derive(Debug)]
pub struct Pushed {
    head: Head,
    words: Vec<u64>,
    /// Slots, and where their parts lie in the words.
    parts: Vec<(u32, std::ops::Range<usize>)>,
}

impl Pushed {
    /// Encode gradients: of batches, whose rows are given by distinct ids, and of dense variables, or their first values.
    pub fn new(
        catalog: &Catalog,
        head: Head,
        rows: &[(Arc<Batch>, Vec<f32>)],
        dense: &[(usize, &[f32])],
        is_first: bool,
    ) -> Pushed {
        let mut variables: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, (variable, _)) in dense.iter().enumerate() {
            variables
                .entry(catalog.slot_of_variable(*variable))
                .or_default()
                .push(at);
        }
        let mut pushed = Pushed {
            head,
            words: Vec::new(),
            parts: Vec::new(),
        };
        for slot in 0..catalog.slots() {
            let of_slot = variables.get(&slot).map_or(&[][..], Vec::as_slice);
            let touched: Vec<_> = rows
                .iter()
                .filter(|(batch, _)| !batch.of_slot(slot).is_empty())
                .collect();
            if of_slot.is_empty() && touched.is_empty() {
                continue;
            }
            let (words, begin) = (
                &mut pushed.words,
                pushed.parts.last().map_or(0, |(_, range)| range.end),
            );
            words.push(pair(touched.len() as u32, of_slot.len() as u32));
            for (batch, gradients) in touched {
                let (range, width) = (batch.of_slot(slot), catalog.tables()[batch.table()].width);
                words.push(pair(batch.table() as u32, range.len() as u32));
                words.extend_from_slice(&batch.ids()[range.clone()]);
                put_numbers(words, &gradients[range.start * width..range.end * width]);
            }
            for at in of_slot {
                let (variable, numbers) = dense[*at];
                words.push(pair(variable as u32, u32::from(is_first)));
                put_numbers(words, numbers);
            }
            pushed.parts.push((slot, begin..pushed.words.len()));
        }
        pushed
    }

    /// Return the slots that it touches.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().map(|(slot, _)| *slot)
    }
}

/// How a push ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All parts are settled.
    Settled,
    /// A server says why a part can't be applied.
    Refused(String),
    /// A roll-back came between: the chunk's task begins anew.
    RolledBack,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be sent, not before this time.
    Due(Instant),
    Asked(Server),
    Done,
}

#[derive(Debug)]
struct Job {
    wanted: Option<Wanted>,
    found: Found,
    pulls: BTreeMap<u32, State>,
    pushed: Option<Pushed>,
    pushes: Vec<State>,
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

#[derive(Debug, Default)]
struct Board {
    entries: Vec<Option<Entry>>,
    addresses: BTreeMap<Server, Address>,
    roll_back: u64,
    /// Slots that have another primary since the thread looked last.
    moved: BTreeSet<u32>,
    jobs: Vec<(Ticket, Job)>,
    next: Ticket,
    found: HashMap<Ticket, Option<Found>>,
    ended: HashMap<Ticket, Option<End>>,
    /// Servers that could not be reached since the last look, and whether newer entries are needed.
    lost: BTreeSet<Server>,
    is_astray: bool,
}

#[derive(Debug)]
struct Shared {
    catalog: Catalog,
    name: String,
    token: Token,
    identity: Option<Identity>,
    board: Mutex<Board>,
    changed: Condvar,
    wake: Wake,
    closed: Wake,
}

/// A worker's connections to all parameter servers.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a client has noticed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Noticed {
    /// Servers whose connection broke or could not be made, or that are silent.
    pub lost: BTreeSet<Server>,
    /// Parts wait for newer entries of the journal than are known here.
    pub is_astray: bool,
}

impl Client {
    /// Be the worker of this name; connections are made when they are needed.
    pub fn open(
        name: &str,
        token: &[u8],
        identity: Option<Identity>,
        catalog: Catalog,
    ) -> Result<Client> {
        check_member(name)?;
        let board = Board {
            entries: vec![None; catalog.slots() as usize],
            ..Board::default()
        };
        let shared = Arc::new(Shared {
            catalog,
            name: name.into(),
            token: Token::new(token)?,
            identity,
            board: Mutex::new(board),
            changed: Condvar::new(),
            wake: Wake::new()?,
            closed: Wake::new()?,
        });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("edl-ps-client".into())
                .spawn(move || Hand::new(&shared).run())
                .map_err(|error| Error::io("no thread for a client of parameter servers", error))?
        };
        Ok(Client {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Return what the job's model has.
    pub fn catalog(&self) -> &Catalog {
        &self.shared.catalog
    }

    /// Learn where servers are, which have which slots, and how often the job was rolled back: what was asked before a later roll-back is
    /// given up.
    pub fn learn(
        &self,
        addresses: impl IntoIterator<Item = (Server, Address)>,
        entries: impl IntoIterator<Item = (u32, Entry)>,
        roll_back: u64,
    ) {
        let mut board = lock(&self.shared.board);
        board.addresses.extend(addresses);
        for (slot, entry) in entries {
            board.see(slot, entry);
        }
        board.roll_back = board.roll_back.max(roll_back);
        board.is_astray = false;
        drop(board);
        self.shared.wake.raise();
    }

    /// Ask for rows, and for a push to be applied; both go to a server in one message.
    pub fn ask(&self, wanted: Option<Wanted>, pushed: Option<Pushed>) -> Ticket {
        let now = Instant::now();
        let catalog = &self.shared.catalog;
        let mut found = Found::default();
        let mut pulls = BTreeMap::new();
        for batch in wanted.iter().flat_map(|wanted| &wanted.batches) {
            found.rows.push(vec![
                0.0;
                batch.ids().len()
                    * catalog.tables()[batch.table()].width
            ]);
            let touched = (0..catalog.slots()).filter(|slot| !batch.of_slot(*slot).is_empty());
            pulls.extend(touched.map(|slot| (slot, State::Due(now))));
        }
        for variable in wanted.iter().flat_map(|wanted| &wanted.variables) {
            pulls.insert(catalog.slot_of_variable(*variable), State::Due(now));
        }
        let pushes = vec![State::Due(now); pushed.as_ref().map_or(0, |pushed| pushed.parts.len())];
        let mut board = lock(&self.shared.board);
        let ticket = board.next;
        board.next += 1;
        if wanted.is_some() {
            board.found.insert(ticket, None);
        }
        if pushed.is_some() {
            board.ended.insert(ticket, None);
        }
        board.jobs.push((
            ticket,
            Job {
                wanted,
                found,
                pulls,
                pushed,
                pushes,
            },
        ));
        drop(board);
        self.shared.wake.raise();
        ticket
    }

    /// Return the rows that were asked for, once, or nothing if they have not all come within `limit` or the job was rolled back.
    pub fn take_found(&self, ticket: Ticket, limit: Duration) -> Option<Found> {
        let mut board = self.wait(limit, |board| {
            !matches!(board.found.get(&ticket), Some(None))
        });
        match board.found.remove(&ticket)? {
            Some(found) => Some(found),
            None => {
                board.found.insert(ticket, None);
                None
            }
        }
    }

    /// Return how a push ended, once, or nothing if it has not ended within `limit`.
    pub fn take_end(&self, ticket: Ticket, limit: Duration) -> Option<End> {
        let mut board = self.wait(limit, |board| {
            !matches!(board.ended.get(&ticket), Some(None))
        });
        match board.ended.remove(&ticket)? {
            Some(end) => Some(end),
            None => {
                board.ended.insert(ticket, None);
                None
            }
        }
    }

    fn wait(
        &self,
        limit: Duration,
        is_there: impl Fn(&Board) -> bool,
    ) -> std::sync::MutexGuard<'_, Board> {
        let board = lock(&self.shared.board);
        self.shared
            .changed
            .wait_timeout_while(board, limit, |board| !is_there(board))
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0
    }

    /// Return what has been noticed of servers since the last call.
    pub fn notice(&self) -> Noticed {
        let mut board = lock(&self.shared.board);
        Noticed {
            lost: std::mem::take(&mut board.lost),
            is_astray: board.is_astray,
        }
    }

    /// Give everything up.
    pub fn close(&self) {
        self.shared.closed.raise();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

impl Board {
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
            *known = Some(entry);
        }
        is_newer
    }
}

enum Line {
    Dialing(Box<Dialer>),
    Standing(Box<Channel>),
    Broken(Instant),
}

/// The thread's own: connections, and what is under way.
struct Hand<'a> {
    shared: &'a Shared,
    lines: BTreeMap<Server, Line>,
    jobs: BTreeMap<Ticket, Job>,
    requests: HashMap<u32, Request>,
    next_request: u32,
    /// Reign and version of each variable as it came last.
    known: Vec<Known>,
    roll_back: u64,
}

impl<'a> Hand<'a> {
    fn new(shared: &'a Shared) -> Hand<'a> {
        Hand {
            shared,
            lines: BTreeMap::new(),
            jobs: BTreeMap::new(),
            requests: HashMap::new(),
            next_request: 0,
            known: (0..shared.catalog.variables().len())
                .map(|variable| Known {
                    variable,
                    reign: 0,
                    version: 0,
                })
                .collect(),
            roll_back: 0,
        }
    }

    fn run(&mut self) {
        while !self.shared.closed.is_raised() {
            self.shared.wake.lower();
            self.take_jobs();
            self.advance();
            let due = self.send();
            if self.receive() {
                // What came may be due again, sooner than anything that was known before.
                continue;
            }
            let doubt = self.doubt();
            let mut polls = vec![readable(&self.shared.wake), readable(&self.shared.closed)];
            let mut until = due.into_iter().chain(doubt).min();
            for line in self.lines.values() {
                match line {
                    Line::Dialing(dialer) => {
                        let (poll, deadline) = dialer.interest();
                        polls.extend(poll);
                        until = Some(until.map_or(deadline, |until| until.min(deadline)));
                    }
                    Line::Standing(channel) => polls.push(channel.interest()),
                    Line::Broken(_) => {}
                }
            }
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
            if wait(&mut polls, limit, &ignore_signals).is_err() {
                return;
            }
        }
    }

    fn take_jobs(&mut self) {
        let mut board = lock(&self.shared.board);
        let jobs = std::mem::take(&mut board.jobs);
        self.jobs.extend(jobs);
        if board.roll_back > self.roll_back {
            // Answers to what was asked before mean nothing any more (rule R24).
            self.roll_back = board.roll_back;
            self.requests.clear();
            // What came and is dropped now would not come again.
            for known in &mut self.known {
                (known.reign, known.version) = (0, 0);
            }
            for (ticket, _) in std::mem::take(&mut self.jobs) {
                board.found.remove(&ticket);
                if let Some(end) = board.ended.get_mut(&ticket) {
                    *end = Some(End::RolledBack);
                }
            }
            self.shared.changed.notify_all();
        }
        let moved = std::mem::take(&mut board.moved);
        let now = Instant::now();
        for job in self.jobs.values_mut().filter(|_| !moved.is_empty()) {
            // Whoever was asked may never answer.
            let slots = job.pushed.iter().flat_map(|pushed| pushed.slots());
            let pushes = slots.zip(&mut job.pushes);
            let pulls = job.pulls.iter_mut().map(|(slot, state)| (*slot, state));
            for (slot, state) in pulls.chain(pushes) {
                if let State::Asked(server) = *state
                    && moved.contains(&slot)
                    && board.entries[slot as usize].is_some_and(|entry| entry.primary != server)
                {
                    *state = State::Due(now);
                }
            }
        }
    }

    /// Note servers that send no rows; returns when to look again.
    fn doubt(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for request in self.requests.values().filter(|one| !one.pulls.is_empty()) {
            let is_silent = now >= request.asked + SILENCE;
            if is_silent {
                lock(&self.shared.board).lost.insert(request.server);
            }
            let at = if is_silent {
                now + SILENCE / 2
            } else {
                request.asked + SILENCE
            };
            next = Some(next.map_or(at, |next: Instant| next.min(at)));
        }
        next
    }

    /// Go on with connections that are being made.
    fn advance(&mut self) {
        let mut failed = Vec::new();
        for (server, line) in &mut self.lines {
            match line {
                Line::Dialing(dialer) => match dialer.advance() {
                    Ok(Ok(Some(stream))) => *line = Line::Standing(Box::new(Channel::new(stream))),
                    Ok(Ok(None)) => {}
                    Ok(Err(_)) | Err(_) => failed.push(*server),
                },
                Line::Standing(_) | Line::Broken(_) => {}
            }
        }
        for server in failed {
            self.lose(server);
        }
    }

    /// Send what is due to servers that can be reached; returns when something will be due.
    fn send(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut later: Option<Instant> = None;
        let mut wait_until =
            |time: Instant| later = Some(later.map_or(time, |later| later.min(time)));
        let mut asked: Vec<(Ticket, Server, Vec<u32>, Vec<usize>)> = Vec::new();
        let mut board = lock(&self.shared.board);
        for (ticket, job) in &self.jobs {
            let mut of_server: BTreeMap<Server, (Vec<u32>, Vec<usize>)> = BTreeMap::new();
            let mut primary = |slot: u32, state: &State| match state {
                State::Due(time) if *time <= now => {
                    let entry = board.entries[slot as usize];
                    board.is_astray |= entry.is_none();
                    entry.map(|entry| entry.primary)
                }
                State::Due(time) => {
                    wait_until(*time);
                    None
                }
                _ => None,
            };
            for (slot, state) in &job.pulls {
                if let Some(server) = primary(*slot, state) {
                    of_server.entry(server).or_default().0.push(*slot);
                }
            }
            let parts = job.pushed.iter().flat_map(|pushed| &pushed.parts);
            for (at, ((slot, _), state)) in parts.zip(&job.pushes).enumerate() {
                if let Some(server) = primary(*slot, state) {
                    of_server.entry(server).or_default().1.push(at);
                }
            }
            asked.extend(
                of_server
                    .into_iter()
                    .map(|(server, (pulls, pushes))| (*ticket, server, pulls, pushes)),
            );
        }
        drop(board);
        for (ticket, server, pulls, pushes) in asked {
            match self.reach(server) {
                Ok(()) => self.ask(ticket, server, pulls, pushes),
                Err(Some(time)) => later = Some(later.map_or(time, |later| later.min(time))),
                Err(None) => {}
            }
        }
        later
    }

    /// Succeed if a connection stands; otherwise begin one, or say when.
    fn reach(&mut self, server: Server) -> std::result::Result<(), Option<Instant>> {
        match self.lines.get(&server) {
            Some(Line::Standing(_)) => return Ok(()),
            Some(Line::Dialing(_)) => return Err(None),
            Some(Line::Broken(until)) if *until > Instant::now() => return Err(Some(*until)),
            _ => {}
        }
        let address = lock(&self.shared.board).addresses.get(&server).cloned();
        let Some(address) = address else {
            lock(&self.shared.board).is_astray = true;
            return Err(None);
        };
        let hello = Hello {
            purpose: Purpose::Parameters,
            member: self.shared.name.clone(),
            view: 0,
            digest: 0,
        };
        let identity = self
            .shared
            .identity
            .clone()
            .map(|identity| (identity, Role::Worker));
        let dialer = Dialer::new(
            address,
            self.shared.token.clone(),
            hello,
            name_of(server),
            identity,
            ATTEMPT,
        );
        self.lines.insert(server, Line::Dialing(Box::new(dialer)));
        // It is advanced at once.
        self.shared.wake.raise();
        Err(None)
    }

    fn ask(&mut self, ticket: Ticket, server: Server, pulls: Vec<u32>, pushes: Vec<usize>) {
        let (Some(job), Some(Line::Standing(channel))) =
            (self.jobs.get_mut(&ticket), self.lines.get_mut(&server))
        else {
            return;
        };
        let number = self.next_request;
        // A server has 24 bits for it.
        self.next_request = (number + 1) & 0xff_ffff;
        let entries = lock(&self.shared.board).entries.clone();
        let term = |slot: u32| entries[slot as usize].map_or(0, |entry| entry.term);
        let nothing = Wanted::default();
        let wanted = job.wanted.as_ref().unwrap_or(&nothing);
        let pulled = pulls
            .iter()
            .map(|slot| Pull {
                term: term(*slot),
                ..pull_of(&self.shared.catalog, wanted, *slot, &self.known)
            })
            .collect();
        let head = job.pushed.as_ref().map_or(NOTHING, |pushed| pushed.head);
        let parts = job.pushed.iter().flat_map(|pushed| {
            pushes.iter().map(|at| {
                let (slot, range) = &pushed.parts[*at];
                Push {
                    slot: *slot,
                    term: term(*slot),
                    words: &pushed.words[range.clone()],
                }
            })
        });
        let ask = Ask {
            head,
            chunk: wanted.chunk,
            pulls: pulled,
            pushes: parts.collect(),
        };
        let words = ask.write();
        for slot in &pulls {
            job.pulls.insert(*slot, State::Asked(server));
        }
        for at in &pushes {
            job.pushes[*at] = State::Asked(server);
        }
        channel.send(Packet {
            kind: Kind::Ask,
            number: number.into(),
            mark: 0,
            words,
        });
        let request = Request {
            job: ticket,
            server,
            asked: Instant::now(),
            pulls,
            pushes: pushes.into_iter().collect(),
        };
        self.requests.insert(number, request);
    }

    /// Send what waits for room and take in what has come; tells whether anything has, or was lost.
    fn receive(&mut self) -> bool {
        let mut is_news = false;
        let servers: Vec<Server> = self.lines.keys().copied().collect();
        for server in servers {
            while let Some(Line::Standing(channel)) = self.lines.get_mut(&server) {
                let came = channel.flush().and_then(|()| channel.receive());
                is_news |= !matches!(came, Ok(None));
                match came {
                    Ok(Some(packet)) => {
                        if self.take(server, &packet).is_none() {
                            // It does not speak the protocol: whatever is there is not one of this job's servers.
                            self.lose(server);
                        }
                    }
                    Ok(None) => break,
                    Err(_) => self.lose(server),
                }
            }
        }
        is_news
    }

    /// Take an answer in; nothing if it makes no sense.
    fn take(&mut self, server: Server, packet: &Packet) -> Option<()> {
        let number = u32::try_from(packet.number).ok()?;
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
        match packet.kind {
            Kind::Rows if job.wanted.is_none() => request.pulls.clear(),
            Kind::Answers if job.pushed.is_none() => request.pushes.clear(),
            Kind::Rows => {
                let pulls = std::mem::take(&mut request.pulls);
                let mut reader = Reader::new(&packet.words);
                for slot in pulls {
                    let wanted = job.wanted.as_ref()?;
                    let asked = pull_of(&self.shared.catalog, wanted, slot, &self.known);
                    let pulled = wire::pulled(&mut reader, &self.shared.catalog, &asked).ok()?;
                    let is_found = pulled.is_some();
                    if let Some(pulled) = pulled {
                        take_rows(
                            &self.shared.catalog,
                            wanted,
                            &asked,
                            pulled,
                            &mut job.found,
                            &mut self.known,
                        );
                    }
                    let state = if is_found {
                        State::Done
                    } else {
                        State::Due(Instant::now() + MOVED)
                    };
                    job.pulls.insert(slot, state);
                    if !is_found {
                        lock(&self.shared.board).is_astray = true;
                    }
                }
                reader.end().ok()?;
            }
            Kind::Answers => {
                let mut reader = Reader::new(&packet.words);
                while !reader.is_empty() {
                    let (slot, outcome) = wire::outcome(&mut reader).ok()?;
                    let pushed = job.pushed.as_ref()?;
                    let at = pushed.parts.iter().position(|(of, _)| *of == slot)?;
                    if !request.pushes.remove(&at) {
                        return None;
                    }
                    let now = Instant::now();
                    job.pushes[at] = match outcome {
                        Outcome::Settled | Outcome::Closed | Outcome::Refused => State::Done,
                        Outcome::Busy => State::Due(now + BUSY),
                        Outcome::Moved(entry) => {
                            let mut board = lock(&self.shared.board);
                            let is_newer = entry.is_some_and(|entry| board.see(slot, entry));
                            board.is_astray |= !is_newer;
                            State::Due(if is_newer { now } else { now + MOVED })
                        }
                    };
                }
            }
            Kind::Refusal => {
                if let Some(end) = lock(&self.shared.board).ended.get_mut(&ticket) {
                    *end = Some(End::Refused(wire::read_text(&packet.words)));
                }
            }
            _ => return None,
        }
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
        let is_found = job.pulls.values().all(|state| *state == State::Done);
        let is_pushed = job.pushes.iter().all(|state| *state == State::Done);
        let mut board = lock(&self.shared.board);
        if is_found
            && job.wanted.take().is_some()
            && let Some(found) = board.found.get_mut(&ticket)
        {
            *found = Some(std::mem::take(&mut job.found));
        }
        if is_pushed
            && job.pushed.take().is_some()
            && let Some(end) = board.ended.get_mut(&ticket)
        {
            end.get_or_insert(End::Settled);
        }
        drop(board);
        if is_found && is_pushed {
            self.jobs.remove(&ticket);
        }
        self.shared.changed.notify_all();
    }

    /// Note that a server can't be reached: its parts are sent again, to whoever is the primary by then.
    fn lose(&mut self, server: Server) {
        let now = Instant::now();
        self.lines.insert(server, Line::Broken(now + UNREACHABLE));
        self.requests.retain(|_, request| request.server != server);
        for job in self.jobs.values_mut() {
            for state in job.pulls.values_mut().chain(&mut job.pushes) {
                if *state == State::Asked(server) {
                    *state = State::Due(now);
                }
            }
        }
        let mut board = lock(&self.shared.board);
        board.lost.insert(server);
        board.is_astray = true;
    }
}

const NOTHING: Head = Head {
    stamp: None,
    low: 0,
    roll_back: 0,
    pace: super::data::Pace { rate: 0.0, step: 0 },
};

/// Return what is asked of one slot, but for the term.
fn pull_of<'a>(catalog: &Catalog, wanted: &'a Wanted, slot: u32, known: &[Known]) -> Pull<'a> {
    let rows = wanted
        .batches
        .iter()
        .map(|batch| (batch.table(), &batch.ids()[batch.of_slot(slot)]))
        .filter(|(_, ids)| !ids.is_empty())
        .collect();
    let dense = wanted
        .variables
        .iter()
        .filter(|variable| catalog.slot_of_variable(**variable) == slot)
        .map(|variable| known[*variable])
        .collect();
    Pull {
        slot,
        term: 0,
        rows,
        dense,
    }
}

/// Put what was pulled of a slot where it belongs.
fn take_rows(
    catalog: &Catalog,
    wanted: &Wanted,
    asked: &Pull<'_>,
    pulled: PulledRows<'_>,
    found: &mut Found,
    known: &mut [Known],
) {
    let mut rows = pulled.rows;
    for (batch, out) in wanted.batches.iter().zip(&mut found.rows) {
        let (range, width) = (
            batch.of_slot(asked.slot),
            catalog.tables()[batch.table()].width,
        );
        let of_batch;
        (of_batch, rows) = rows.split_at(range.len() * width);
        out[range.start * width..range.end * width].copy_from_slice(of_batch);
    }
    for (asked, dense) in asked.dense.iter().zip(pulled.dense) {
        match dense {
            Dense::Missing => found.changed.push((asked.variable, None)),
            Dense::Unchanged => {}
            Dense::Changed { version, weights } => {
                known[asked.variable] = Known {
                    variable: asked.variable,
                    reign: pulled.reign,
                    version,
                };
                found.changed.push((asked.variable, Some(weights.to_vec())));
            }
        }
    }
    if pulled.has_chunk {
        found.held.insert(asked.slot);
    }
}
