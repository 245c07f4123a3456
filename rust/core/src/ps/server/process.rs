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
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::net::acceptor::{Acceptor, Refusals};
use crate::net::address::{Address, Listener};
use crate::net::endpoint::{check_member, lock};
use crate::net::error::{Error, Result};
use crate::net::handshake::Token;
use crate::net::tls::Identity;
use crate::net::wake::Wake;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::placement::{self, Entry};
use crate::ps::protocol::stamps::Proof;
use crate::ps::server::data::Data;
use crate::ps::server::node::{Bounds, Limits, Node};
use crate::ps::server::slot::{Answer, Broken, Told};
use crate::ps::server::snapshot::{self, Position, Section, Unreadable};

const HALF_SILENCE: Duration = Duration::from_millis(500);

mod guests;
pub(super) mod streams;
pub(super) mod workers;

use guests::Guests;
use workers::ResponseQueue;

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
            vec![listener],
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
        if told.contains(&Told::Readable) {
            self.wake_queues();
        }
        // Mostly those of one push: its connection is looked up and woken once.
        let mut answers: BTreeMap<u32, Vec<(u32, u32, Answer)>> = BTreeMap::new();
        for one in told {
            match one {
                Told::Readable => {}
                Told::Answered(ticket, answer) => {
                    let (request, slot) =
                        ((ticket >> 16) as u32 & 0xff_ffff, ticket as u32 & 0xffff);
                    let of_queue = answers.entry((ticket >> 40) as u32).or_default();
                    of_queue.push((request, slot, answer));
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
        for (number, answers) in answers {
            let queue = lock(&self.queues).get(&number).cloned();
            if let Some(queue) = queue {
                lock(&queue.answers).extend(answers);
                queue.wake.raise();
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
}
