//! A parameter server's process: connections of workers and of other servers around a `Node`.
//!
//! A thread for each connection, which never waits for another one's peer: what happens elsewhere and concerns a connection is put into
//! its response queue, and its wake is raised. Python tells what the master has decided, and asks what the master must know.
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
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::net::acceptor::{Acceptor, Refusals};
use crate::net::address::{Address, Listener, Stream};
use crate::net::channel::{Channel, Packet};
use crate::net::dial::{Dialer, PARKED};
use crate::net::endpoint::{check_member, lock};
use crate::net::error::{Error, Result};
use crate::net::frame::{Kind, Lost, Malformed, Outbound};
use crate::net::handshake::{Hello, Purpose, Token, Verdict};
use crate::net::tls::{Identity, Role};
use crate::net::wake::{Wake, ignore_signals, readable, wait};
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::error;
use crate::ps::protocol::placement::{self, Entry};
use crate::ps::protocol::stamps::Proof;
use crate::ps::protocol::steps::Need;
use crate::ps::protocol::wire::{self, Ask};
use crate::ps::protocol::words::Reader;
use crate::ps::server::answering;
use crate::ps::server::data::Data;
use crate::ps::server::node::{Bounds, Limits, Node, Unheard};
use crate::ps::server::slot::{Answer, Broken, Progress, Told};
use crate::ps::server::snapshot::{self, Position, Section, Unreadable};

/// Messages that may wait for a client that does not read before it is left alone.
const BACKLOG: usize = 64;
/// Bytes that may wait for a client before nothing more is read from it: then its own window stops it.
const UNSENT: usize = 64 << 20;
/// Workers that may wait for the master to name them.
const WAITING: usize = 1024;
/// Words of one packet of a stream: messages are put together up to 256 KiB.
const PACKET: usize = 32 * 1024;
/// Packets of a stream under way in the kernel and here; the rest waits as messages.
const UNDER_WAY: usize = 4;
const ATTEMPT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// A server that has accepted nothing for so long, although there is something, may be lost.
const SILENCE: Duration = Duration::from_secs(1);
const HALF_SILENCE: Duration = Duration::from_millis(500);

/// A copy whose receiver has everything, for the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    pub slot: u32,
    pub term: u64,
    pub to: placement::Server,
    pub hands_over: bool,
}

/// What a server has to do with, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    pub rows: usize,
    /// Memory of rows, their index and variables.
    pub bytes: usize,
    /// Slots with content.
    pub slots: usize,
}

/// Answers for one connection, until its thread comes for them.
#[derive(Debug)]
struct ResponseQueue {
    answers: Mutex<Vec<(u32, u32, Answer)>>,
    wake: Wake,
}

/// An ask whose rows are of a step that is not complete.
#[derive(Debug)]
struct Parked {
    request: u32,
    need: Need,
    roll_back: u64,
    words: Vec<u64>,
}

/// The job's workers, and processes with a worker's key that the master has not named yet: a new worker may come here before its name does.
#[derive(Debug, Default)]
struct Guests {
    workers: BTreeSet<String>,
    waiting: Vec<(String, Stream, Instant)>,
}

#[derive(Debug, Default)]
struct News {
    ready: Vec<Ready>,
    /// Servers that could not be reached.
    lost: BTreeSet<placement::Server>,
    broken: Option<String>,
}

#[derive(Debug)]
struct Shared {
    node: Node,
    token: Token,
    identity: Option<Identity>,
    refusals: Arc<Refusals>,
    queues: Mutex<HashMap<u32, Arc<ResponseQueue>>>,
    next_queue: AtomicU32,
    guests: Mutex<Guests>,
    addresses: Mutex<BTreeMap<placement::Server, Address>>,
    /// Other servers to which a thread sends.
    streams: Mutex<BTreeSet<placement::Server>>,
    copies: Mutex<BTreeSet<u32>>,
    copier: Wake,
    news: Mutex<News>,
    told: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    closed: Wake,
}

/// A listening parameter server.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: String,
}

/// Return the name by which a server is known to those that connect to it.
pub fn name_of(server: placement::Server) -> String {
    format!("ps-{server}")
}

/// Send a verdict; false if it can't be sent: a fresh socket's buffer holds these few bytes, and where it does not, the other end is broken.
fn say(stream: &Stream, verdict: Verdict) -> bool {
    let mut outbound = Outbound::default();
    outbound.push(&verdict.frame());
    outbound.flush(stream).unwrap_or(false)
}

impl Server {
    /// Serve those who come to `listener` as the server of this number; with an identity all TCP connections are between workers'
    /// certificates.
    pub fn open(
        listener: Listener,
        me: placement::Server,
        token: &[u8],
        identity: Option<Identity>,
        catalog: Catalog,
    ) -> Result<Server> {
        let name = name_of(me);
        check_member(&name)?;
        let token = Token::of_server(token)?;
        let address = listener.address().to_string();
        let refusals = Arc::new(Refusals::default());
        let acceptor = Acceptor::new(
            listener,
            token.clone(),
            name,
            identity.clone(),
            refusals.clone(),
        )?;
        let shared = Arc::new(Shared {
            node: Node::new(me, catalog),
            token,
            identity,
            refusals,
            queues: Mutex::default(),
            next_queue: AtomicU32::new(0),
            guests: Mutex::default(),
            addresses: Mutex::default(),
            streams: Mutex::default(),
            copies: Mutex::default(),
            copier: Wake::new()?,
            news: Mutex::default(),
            told: Condvar::new(),
            threads: Mutex::default(),
            closed: Wake::new()?,
        });
        shared.spawn("edl-ps-acceptor", move |shared| shared.receive(acceptor))?;
        shared.spawn("edl-ps-copy", |shared| shared.copy_slots())?;
        Ok(Server { shared, address })
    }

    /// Return where it listens in fact.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Return what it holds.
    pub fn node(&self) -> &Node {
        &self.shared.node
    }

    /// What was refused so far.
    pub fn refusals(&self) -> &Refusals {
        &self.shared.refusals
    }

    /// Learn where other servers are, and entries of the journal, and how far the master has let the job come.
    pub fn learn(
        &self,
        addresses: impl IntoIterator<Item = (placement::Server, Address)>,
        entries: impl IntoIterator<Item = (u32, Entry)>,
        bounds: Bounds,
    ) -> Result<()> {
        self.shared.node.bound(&bounds);
        lock(&self.shared.addresses).extend(addresses);
        let told = self.shared.node.learn(entries);
        self.shared.dispatch(told);
        self.shared.see_to_streams()
    }

    /// Learn which tasks are done, and how many steps can be complete; rows that waited for it are sent.
    pub fn limit(&self, limits: &Limits) {
        if self.shared.node.limit(limits) {
            self.shared.wake_queues();
        }
    }

    /// Learn the names of the job's workers: others are not served. Those who came before their names did are served now.
    pub fn know(&self, workers: BTreeSet<String>) {
        let mut guests = lock(&self.shared.guests);
        guests.workers = workers;
        let (known, unknown): (Vec<_>, Vec<_>) = std::mem::take(&mut guests.waiting)
            .into_iter()
            .partition(|(name, ..)| guests.workers.contains(name));
        guests.waiting = unknown;
        drop(guests);
        for (_, stream, _) in known {
            self.shared.attend_to(stream);
        }
    }

    /// Begin a copy that the master has ordered in this term; false if it can't be.
    pub fn copy(
        &self,
        slot: u32,
        to: placement::Server,
        term: u64,
        hands_over: bool,
    ) -> Result<bool> {
        let begun = self.shared.node.copy(slot, to, term, hands_over);
        if begun {
            lock(&self.shared.copies).insert(slot);
            self.shared.copier.raise();
            self.shared.see_to_streams()?;
        }
        Ok(begun)
    }

    /// Give up all copies to a server that is dead.
    pub fn give_up_copies(&self, to: placement::Server) {
        let told = self.shared.node.give_up_copies(to);
        self.shared.dispatch(Ok(told));
    }

    /// Return what the master must know, after at most `limit`; raises why this server can't go on, if it can't.
    pub fn take_ready(&self, limit: Duration) -> Result<Vec<Ready>> {
        let news = lock(&self.shared.news);
        let (mut news, _) = self
            .shared
            .told
            .wait_timeout_while(news, limit, |news| {
                news.ready.is_empty() && news.broken.is_none()
            })
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match &news.broken {
            Some(why) => Err(Error::BadArgument(why.clone())),
            None => Ok(std::mem::take(&mut news.ready)),
        }
    }

    /// Return the servers that could not be reached since the last call.
    pub fn take_lost(&self) -> BTreeSet<placement::Server> {
        std::mem::take(&mut lock(&self.shared.news).lost)
    }

    /// Write slots, each if it has this primary epoch, to a new file; returns where each lies.
    ///
    /// `steps`: so many are complete, and are applied before; a slot that holds more than these is left out (rule A6).
    pub fn cut(
        &self,
        path: &Path,
        slots: &[(u32, u64)],
        position: &Position,
        steps: u64,
    ) -> std::io::Result<Vec<Section>> {
        for (slot, primary_epoch) in slots {
            if let Err(broken) = self.shared.node.step_for_cut(*slot, *primary_epoch, steps) {
                self.shared.dispatch(Err(broken));
                return Ok(Vec::new());
            }
        }
        snapshot::write(&self.shared.node, path, slots, position)
    }

    /// Let a slot that waits for its content have what lies in a file; one that waits for nothing stays as it is.
    ///
    /// `renumbered`: tasks have other numbers than there, and those before this one are done.
    pub fn restore(
        &self,
        path: &Path,
        section: &Section,
        renumbered: Option<u64>,
    ) -> std::result::Result<(), Unreadable> {
        let node = &self.shared.node;
        if node.look(section.slot, |slot| slot.is_restoring()) == Some(true) {
            let mut data = snapshot::read(path, section, node.catalog())?;
            if let Some(low) = renumbered {
                data.stamps.renumber(low);
            }
            node.load(section.slot, data);
        }
        Ok(())
    }

    /// Let slots that wait for their content begin with nothing: there is no snapshot.
    pub fn begin_anew(&self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            let node = &self.shared.node;
            node.load(slot, Data::new(node.catalog()));
        }
    }

    /// Return what the slots of which this server is the primary have applied, with their primary epochs.
    pub fn accounts(&self) -> Vec<(u32, u64, Proof)> {
        let account = |number| {
            self.shared.node.look(number, |slot| {
                let (entry, data) = (slot.entry()?, slot.read()?);
                Some((number, entry.primary_epoch, data.stamps.proof()))
            })
        };
        (0..self.shared.node.catalog().slots())
            .filter_map(|number| account(number)?)
            .collect()
    }

    /// Return the last roll-back that it has heard of, and how many steps it knows to be complete in it.
    pub fn complete(&self) -> (u64, u64) {
        self.shared.node.complete()
    }

    /// Return what it holds, counted slot by slot.
    pub fn load(&self) -> Load {
        let mut load = Load::default();
        for slot in 0..self.shared.node.catalog().slots() {
            self.shared.node.look(slot, |slot| {
                if let Some(data) = slot.data() {
                    load.rows = load.rows.saturating_add(data.rows());
                    load.bytes = load.bytes.saturating_add(data.bytes());
                    load.slots = load.slots.saturating_add(1);
                }
            });
        }
        load
    }

    /// Stop; what it holds is gone.
    pub fn close(&self) {
        self.shared.closed.raise();
        loop {
            let threads = std::mem::take(&mut *lock(&self.shared.threads));
            if threads.is_empty() {
                return;
            }
            for thread in threads {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

/// Name the part of a push for a slot that came with a request of a connection.
pub(super) fn ticket(queue: u32, request: u32, slot: u32) -> u64 {
    u64::from(queue & 0xff_ffff) << 40
        | u64::from(request & 0xff_ffff) << 16
        | u64::from(slot & 0xffff)
}

impl Shared {
    fn spawn(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<()> {
        let shared = self.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&shared))
            .map_err(|error| Error::io("no thread for a parameter server", error))?;
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Tell those whom it concerns what came of something.
    fn dispatch(&self, told: std::result::Result<Vec<Told>, Broken>) {
        let told = match told {
            Ok(told) => told,
            Err(broken) => {
                lock(&self.news).broken.get_or_insert(broken.to_string());
                self.told.notify_all();
                return;
            }
        };
        for one in told {
            match one {
                Told::Answered(ticket, answer) => {
                    let queue = lock(&self.queues).get(&((ticket >> 40) as u32)).cloned();
                    if let Some(queue) = queue {
                        let (request, slot) =
                            ((ticket >> 16) as u32 & 0xff_ffff, ticket as u32 & 0xffff);
                        lock(&queue.answers).push((request, slot, answer));
                        queue.wake.raise();
                    }
                }
                Told::Ready {
                    slot,
                    term,
                    to,
                    hands_over,
                } => {
                    lock(&self.news).ready.push(Ready {
                        slot,
                        term,
                        to,
                        hands_over,
                    });
                    self.told.notify_all();
                }
            }
        }
    }

    /// See to it that a thread sends to each server to which there is a stream.
    fn see_to_streams(self: &Arc<Self>) -> Result<()> {
        for peer in self.node.peers() {
            if lock(&self.streams).insert(peer) {
                let begun = self.spawn("edl-ps-stream", move |shared| shared.send_to(peer));
                if begun.is_err() {
                    lock(&self.streams).remove(&peer);
                }
                begun?;
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------------ the acceptor

    fn receive(self: &Arc<Self>, mut acceptor: Acceptor) {
        while !self.closed.is_raised() {
            let mut arrived = Vec::new();
            if acceptor
                .serve(|hello, stream| arrived.push((hello, stream)))
                .is_err()
            {
                break;
            }
            for (hello, stream) in arrived {
                self.admit(hello, stream);
            }
            let (mut polls, deadline) = acceptor.interest();
            polls.push(readable(&self.closed));
            let limit = deadline.map(|until| until.saturating_duration_since(Instant::now()));
            if wait(&mut polls, limit, &ignore_signals).is_err() {
                break;
            }
        }
    }

    fn admit(self: &Arc<Self>, hello: Hello, stream: Stream) {
        match hello.purpose {
            Purpose::Parameters => self.admit_worker(hello.member, stream),
            Purpose::Stream if hello.digest == self.node.me() => {
                self.begin(stream, "edl-ps-hear", move |shared, mut channel| {
                    let end = shared.hear(hello.view, &mut channel);
                    shared.count(&end);
                });
            }
            _ => {
                say(&stream, Verdict::Refused);
                self.refusals.count();
            }
        }
    }

    /// Serve a worker that the master has named; others wait for their names.
    fn admit_worker(self: &Arc<Self>, name: String, stream: Stream) {
        let mut guests = lock(&self.guests);
        if guests.workers.contains(&name) {
            drop(guests);
            return self.attend_to(stream);
        }
        let before = guests.waiting.len();
        guests
            .waiting
            .retain(|(_, _, since)| since.elapsed() < PARKED);
        let mut refused = before.saturating_sub(guests.waiting.len());
        if guests.waiting.len() < WAITING && say(&stream, Verdict::Parked) {
            guests.waiting.push((name, stream, Instant::now()));
        } else {
            refused = refused.saturating_add(1);
        }
        drop(guests);
        (0..refused).for_each(|_| self.refusals.count());
    }

    fn attend_to(self: &Arc<Self>, stream: Stream) {
        self.begin(stream, "edl-ps-serve", |shared, channel| {
            shared.attend(channel);
        });
    }

    /// Let somebody in, and begin a thread for it.
    fn begin(
        self: &Arc<Self>,
        stream: Stream,
        thread: &str,
        work: impl FnOnce(&Arc<Self>, Channel) + Send + 'static,
    ) {
        let is_in = say(&stream, Verdict::Ok);
        if !is_in
            || self
                .spawn(thread, move |shared| work(shared, Channel::new(stream)))
                .is_err()
        {
            self.refusals.count();
        }
    }

    /// Wake the threads of all workers: what their asks wait for may have come.
    fn wake_queues(&self) {
        for queue in lock(&self.queues).values() {
            queue.wake.raise();
        }
    }

    /// Count a connection that did not speak the protocol.
    fn count(&self, end: &std::result::Result<(), Lost>) {
        if matches!(end, Err(Lost::Malformed(_))) {
            self.refusals.count();
        }
    }

    // ------------------------------------------------------------------ workers

    fn attend(self: &Arc<Self>, mut channel: Channel) {
        let Ok(wake) = Wake::new() else {
            return;
        };
        let number = self.next_queue.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let queue = Arc::new(ResponseQueue {
            answers: Mutex::default(),
            wake,
        });
        lock(&self.queues).insert(number, queue.clone());
        let end = self.serve(number, &queue, &mut channel);
        self.count(&end);
        lock(&self.queues).remove(&number);
    }

    fn serve(
        self: &Arc<Self>,
        number: u32,
        queue: &ResponseQueue,
        channel: &mut Channel,
    ) -> std::result::Result<(), Lost> {
        let mut parked: Vec<Parked> = Vec::new();
        let mut said = Instant::now();
        while !self.closed.is_raised() {
            while channel.unsent() < UNSENT
                && let Some(packet) = channel.receive()?
            {
                let backlog = channel.backlog().saturating_add(parked.len());
                if packet.kind != Kind::Ask || backlog > BACKLOG {
                    return Err(Malformed::Content.into());
                }
                let ask = Ask::read(&packet.words, self.node.catalog())
                    .map_err(|_| Malformed::Content)?;
                let request = packet.number as u32;
                if self.node.confirm(&ask.confirmed) {
                    self.wake_queues();
                }
                let tickets = |slot| ticket(number, request, slot);
                let answered = answering::answer(&self.node, request, &ask, tickets);
                let (packets, waits) = match answered {
                    Ok(answered) => answered,
                    Err(broken) => {
                        self.dispatch(Err(broken));
                        return Ok(());
                    }
                };
                for packet in packets {
                    channel.send(packet)?;
                }
                if waits {
                    parked.push(Parked {
                        request,
                        need: ask.need,
                        roll_back: ask.confirmed.roll_back(),
                        words: packet.words,
                    });
                } else {
                    channel.reuse(packet.words);
                }
                if self.see_to_streams().is_err() {
                    return Ok(());
                }
            }
            queue.wake.lower();
            if !self.answer_parked(&mut parked, channel)? {
                return Ok(());
            }
            if parked.is_empty() {
                said = Instant::now();
            } else if said.elapsed() >= HALF_SILENCE && channel.backlog() == 0 {
                // Who waits for another worker is not to take this server for lost; who does not read does not.
                said = Instant::now();
                for one in &parked {
                    channel.send(Packet {
                        kind: Kind::Waits,
                        number: one.request.into(),
                        mark: self.node.me(),
                        words: Vec::new(),
                    })?;
                }
            }
            let mut answers = std::mem::take(&mut *lock(&queue.answers));
            answers.sort_by_key(|(request, slot, _)| (*request, *slot));
            for group in answers.chunk_by(|one, other| one.0 == other.0) {
                let answers: Vec<(u32, Answer)> = group
                    .iter()
                    .map(|(_, slot, answer)| (*slot, answer.clone()))
                    .collect();
                let request = group.first().map_or(0, |(request, _, _)| *request);
                for packet in answering::report(&self.node, request, &answers) {
                    channel.send(packet)?;
                }
            }
            let was_full = channel.unsent() >= UNSENT;
            channel.flush()?;
            let is_full = channel.unsent() >= UNSENT;
            if was_full && !is_full {
                // What was not taken up may be here already, and no poll tells of it.
                continue;
            }
            let interest = if is_full {
                channel.interest_to_send()
            } else {
                channel.interest()
            };
            let mut polls = [interest, readable(&queue.wake), readable(&self.closed)];
            let limit = (!parked.is_empty()).then_some(HALF_SILENCE);
            if wait(&mut polls, limit, &ignore_signals).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Send the rows of asks that need not wait any more, as long as few wait to go out; false if this server can't go on.
    fn answer_parked(
        &self,
        parked: &mut Vec<Parked>,
        channel: &mut Channel,
    ) -> std::result::Result<bool, Lost> {
        let all = std::mem::take(parked);
        for one in all {
            if channel.unsent() >= UNSENT || !self.node.meets(&one.need, one.roll_back) {
                parked.push(one);
                continue;
            }
            let Parked { request, words, .. } = one;
            let ask = Ask::read(&words, self.node.catalog()).map_err(|_| Malformed::Content)?;
            match answering::rows(&self.node, request, &ask) {
                Ok(packet) => packet
                    .into_iter()
                    .try_for_each(|packet| channel.send(packet))?,
                Err(broken) => {
                    self.dispatch(Err(broken));
                    return Ok(false);
                }
            }
            channel.reuse(words);
        }
        Ok(true)
    }

    // ------------------------------------------------------------------ other servers

    /// Hear another server's stream until its connection ends.
    fn hear(
        &self,
        from: placement::Server,
        channel: &mut Channel,
    ) -> std::result::Result<(), Lost> {
        self.acknowledge(from, 0, channel)?;
        while !self.closed.is_raised() {
            let mut known = None;
            while let Some(packet) = channel.receive()? {
                if packet.kind != Kind::Stream {
                    return Err(Malformed::Content.into());
                }
                known = Some(packet.mark);
                let mut reader = Reader::new(&packet.words);
                let mut number = packet.number;
                while !reader.is_empty() {
                    if let Err(unheard) = self.hear_next(from, number, &mut reader) {
                        // Whether the sender is confused or this server, what it has accepted so far stays, and the sender has no answer
                        // to the rest: if it can't go on, it says so to the master, who has the slots copied elsewhere (rule R6).
                        let why = format!("its stream ends at message {number}: {unheard}");
                        self.refusals.tell(name_of(from), why);
                        return Ok(());
                    }
                    number = number.saturating_add(1);
                }
            }
            if let Some(known) = known {
                self.acknowledge(from, known, channel)?;
            }
            channel.flush()?;
            let mut polls = [channel.interest(), readable(&self.closed)];
            if wait(&mut polls, None, &ignore_signals).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hear the next message of another server's stream.
    fn hear_next(
        &self,
        from: placement::Server,
        number: u64,
        reader: &mut Reader<'_>,
    ) -> std::result::Result<(), Unheard> {
        let message = wire::message(reader)?;
        if message.entry.primary != from {
            return Err(error::Malformed("it is of a slot whose primary is another server").into());
        }
        let mut told = Vec::new();
        let heard = self.node.hear(from, number, &message, &mut told);
        self.dispatch(Ok(told));
        heard
    }

    fn acknowledge(
        &self,
        from: placement::Server,
        known: u64,
        channel: &mut Channel,
    ) -> std::result::Result<(), Lost> {
        let (next, refused) = self.node.heard(from, known);
        channel.send(Packet {
            kind: Kind::Accepted,
            number: next,
            mark: 0,
            words: refused,
        })
    }

    /// Send what is in the stream to another server, over one connection after the other.
    fn send_to(self: &Arc<Self>, peer: placement::Server) {
        let way = self.node.way(peer);
        while !self.closed.is_raised() {
            let address = lock(&self.addresses).get(&peer).cloned();
            if let Some(address) = address {
                let hello = Hello {
                    purpose: Purpose::Stream,
                    member: name_of(self.node.me()),
                    view: self.node.me(),
                    digest: peer,
                };
                let identity = self
                    .identity
                    .clone()
                    .map(|identity| (identity, Role::Worker));
                let dialer = Dialer::new(
                    address,
                    self.token.clone(),
                    hello,
                    name_of(peer),
                    identity,
                    ATTEMPT,
                );
                if let Ok(Ok(stream)) = dialer.run(&self.closed, &ignore_signals) {
                    let _ = self.stream_to(peer, &way, Channel::new(stream));
                }
                lock(&self.news).lost.insert(peer);
            }
            let _ = wait(&mut [readable(&self.closed)], Some(PAUSE), &ignore_signals);
        }
    }

    fn stream_to(
        &self,
        peer: placement::Server,
        way: &crate::ps::server::node::Way,
        mut channel: Channel,
    ) -> std::result::Result<(), Lost> {
        // The receiver says first where to go on.
        let mut next = None;
        let mut heard = Instant::now();
        while !self.closed.is_raised() {
            while let Some(packet) = channel.receive()? {
                // Nobody has accepted what was never said.
                if packet.kind != Kind::Accepted || packet.number > way.outgoing().end() {
                    return Err(Malformed::Content.into());
                }
                heard = Instant::now();
                next = next.max(Some(packet.number));
                let told = self.node.accepted(peer, packet.number, &packet.words);
                self.dispatch(Ok(told));
                // There may be room for more of a copy.
                self.copier.raise();
            }
            way.wake.lower();
            if let Some(next) = next.as_mut() {
                while channel.backlog() < UNDER_WAY
                    && let Some(packet) = packet(way, next, PACKET)
                {
                    channel.send(packet)?;
                    channel.flush()?;
                }
            }
            channel.flush()?;
            let is_waiting = way.outgoing().words() > 0;
            if !is_waiting {
                heard = Instant::now();
            } else if heard.elapsed() >= SILENCE {
                lock(&self.news).lost.insert(peer);
            }
            let limit = is_waiting.then_some(HALF_SILENCE);
            let mut polls = [
                channel.interest(),
                readable(&way.wake),
                readable(&self.closed),
            ];
            if wait(&mut polls, limit, &ignore_signals).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Go on with all copies under way, a piece of each in turn.
    fn copy_slots(self: &Arc<Self>) {
        while !self.closed.is_raised() {
            self.copier.lower();
            let mut is_moving = true;
            while is_moving && !self.closed.is_raised() {
                is_moving = false;
                // Taken out first: a copy that is ordered meanwhile puts its slot in again.
                let slots = std::mem::take(&mut *lock(&self.copies));
                for slot in slots {
                    let progress = self.node.go_on_copying(slot);
                    is_moving |= progress == Progress::More;
                    if progress != Progress::Over {
                        lock(&self.copies).insert(slot);
                    }
                }
            }
            let _ = wait(
                &mut [readable(&self.copier), readable(&self.closed)],
                None,
                &ignore_signals,
            );
        }
    }
}

/// Return the next messages of a stream as one packet of about so many words, and go on behind them.
pub(super) fn packet(
    way: &crate::ps::server::node::Way,
    next: &mut u64,
    room: usize,
) -> Option<Packet> {
    let outgoing = way.outgoing();
    let number = *next;
    let mut words = Vec::new();
    while words.len() < room
        && let Some(message) = outgoing.get(*next)
    {
        wire::put_message(&mut words, message);
        *next = next.saturating_add(1);
    }
    let mark = outgoing.first();
    (*next > number).then_some(Packet {
        kind: Kind::Stream,
        number,
        mark,
        words,
    })
}
