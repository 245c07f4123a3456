//! A worker's end: the connections to all parameter servers, around the machine in `tracker.rs`.
//!
//! One thread has all connections and the machine. It never waits for one server with another one's parts; Python waits for what it has
//! asked. What is between them lies in `Shared`.
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
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::net::address::Address;
use crate::net::channel::{Channel, Packet};
use crate::net::dial::Dialer;
use crate::net::endpoint::{check_member, lock};
use crate::net::error::{Error, Result};
use crate::net::frame::Kind;
use crate::net::handshake::{Hello, Purpose, Token};
use crate::net::tls::{Identity, Role};
use crate::net::wake::{Wake, ignore_signals, readable, wait};
use crate::ps::client::push::Pushed;
use crate::ps::client::tracker::{End, News, RequestTracker, Ticket};
use crate::ps::client::wanted::{Found, Wanted};
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::placement::{Entry, Server};
use crate::ps::server::process::name_of;

/// Before a server that could not be reached is tried again.
const UNREACHABLE: Duration = Duration::from_millis(50);
const ATTEMPT: Duration = Duration::from_secs(2);

/// What is said to the thread.
#[derive(Debug)]
enum Said {
    Learn(Vec<(u32, Entry)>, u64),
    Confirm(u64, u64, Vec<(u64, u16)>),
    Forget,
    Begin(Ticket, Option<Box<Wanted>>, Option<Pushed>),
}

#[derive(Debug, Default)]
struct Exchange {
    said: Vec<Said>,
    addresses: BTreeMap<Server, Address>,
    next: Ticket,
    /// What came, or why it can't.
    found: HashMap<Ticket, Option<std::result::Result<Found, String>>>,
    /// PrimaryEpoch and version of each variable as it was taken last.
    taken: HashMap<usize, (u64, u64)>,
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
    exchange: Mutex<Exchange>,
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
        let shared = Arc::new(Shared {
            catalog,
            name: name.into(),
            token: Token::new(token)?,
            identity,
            exchange: Mutex::default(),
            changed: Condvar::new(),
            wake: Wake::new()?,
            closed: Wake::new()?,
        });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("edl-ps-client".into())
                .spawn(move || ClientThread::new(&shared).run())
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
        let mut exchange = lock(&self.shared.exchange);
        exchange.addresses.extend(addresses);
        let entries = entries.into_iter().collect();
        exchange.said.push(Said::Learn(entries, roll_back));
        exchange.is_astray = false;
        drop(exchange);
        self.shared.wake.raise();
    }

    /// Let all servers know how far tasks are settled in a roll-back: all before `low`, and so many chunks of others.
    pub fn confirm(&self, roll_back: u64, low: u64, tasks: Vec<(u64, u16)>) {
        lock(&self.shared.exchange)
            .said
            .push(Said::Confirm(roll_back, low, tasks));
        self.shared.wake.raise();
    }

    /// Give up waiting for all rows that were asked for.
    pub fn forget(&self) {
        let mut exchange = lock(&self.shared.exchange);
        exchange.found.clear();
        exchange.said.push(Said::Forget);
        drop(exchange);
        self.shared.wake.raise();
    }

    /// Ask for rows, and for a push to be applied; both go to a server in one message.
    pub fn ask(&self, wanted: Option<Wanted>, pushed: Option<Pushed>) -> Ticket {
        let mut exchange = lock(&self.shared.exchange);
        let ticket = exchange.next;
        exchange.next = ticket.wrapping_add(1);
        if wanted.is_some() {
            exchange.found.insert(ticket, None);
        }
        if pushed.is_some() {
            exchange.ended.insert(ticket, None);
        }
        exchange
            .said
            .push(Said::Begin(ticket, wanted.map(Box::new), pushed));
        drop(exchange);
        self.shared.wake.raise();
        ticket
    }

    /// Return the rows that were asked for, with those variables that are newer than what was taken before, once, or nothing if they have not all come within `limit` or the job was rolled back. `BadArgument`: a server can't answer, and says why.
    pub fn take_found(&self, ticket: Ticket, limit: Duration) -> Result<Option<Found>> {
        let mut exchange = self.wait(limit, |exchange| {
            !matches!(exchange.found.get(&ticket), Some(None))
        });
        match exchange.found.remove(&ticket) {
            None => Ok(None),
            Some(Some(Ok(found))) => Ok(Some(exchange.take(found))),
            Some(Some(Err(why))) => Err(Error::BadArgument(why)),
            Some(None) => {
                exchange.found.insert(ticket, None);
                Ok(None)
            }
        }
    }

    /// Return how a push ended, once, or nothing if it has not ended within `limit`.
    pub fn take_end(&self, ticket: Ticket, limit: Duration) -> Option<End> {
        let mut exchange = self.wait(limit, |exchange| {
            !matches!(exchange.ended.get(&ticket), Some(None))
        });
        match exchange.ended.remove(&ticket)? {
            Some(end) => Some(end),
            None => {
                exchange.ended.insert(ticket, None);
                None
            }
        }
    }

    fn wait(
        &self,
        limit: Duration,
        is_there: impl Fn(&Exchange) -> bool,
    ) -> std::sync::MutexGuard<'_, Exchange> {
        let exchange = lock(&self.shared.exchange);
        self.shared
            .changed
            .wait_timeout_while(exchange, limit, |exchange| !is_there(exchange))
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0
    }

    /// Return what has been noticed of servers since the last call.
    pub fn notice(&self) -> Noticed {
        let mut exchange = lock(&self.shared.exchange);
        Noticed {
            lost: std::mem::take(&mut exchange.lost),
            is_astray: exchange.is_astray,
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

impl Exchange {
    /// Leave out variables of which the same or something newer has been taken, whatever it was asked for.
    fn take(&mut self, mut found: Found) -> Found {
        found.variables.retain(|(variable, came)| {
            let Some(came) = came else { return true };
            let taken = self.taken.entry(*variable).or_default();
            let is_newer = *taken < (came.primary_epoch, came.version);
            *taken = (came.primary_epoch, came.version).max(*taken);
            is_newer
        });
        found
    }

    fn put_up(&mut self, news: News) {
        let found = news
            .found
            .into_iter()
            .map(|(ticket, found)| (ticket, Ok(found)));
        let refused = news
            .refused
            .into_iter()
            .map(|(ticket, why)| (ticket, Err(why)));
        for (ticket, found) in found.chain(refused) {
            if let Some(place) = self.found.get_mut(&ticket) {
                *place = Some(found);
            }
        }
        for (ticket, end) in news.ended {
            if end == End::RolledBack {
                self.found.remove(&ticket);
            }
            match self.ended.get_mut(&ticket) {
                Some(place) if matches!(end, End::Settled | End::Stale) => {
                    _ = place.get_or_insert(end)
                }
                Some(place) => *place = Some(end),
                None => {}
            }
        }
        self.lost.extend(news.lost);
        self.is_astray |= news.is_astray;
    }
}

enum Line {
    Dialing(Box<Dialer>),
    Standing(Box<Channel>),
    Broken(Instant),
}

/// The thread's own.
struct ClientThread<'a> {
    shared: &'a Shared,
    lines: BTreeMap<Server, Line>,
    tracker: RequestTracker,
}

impl<'a> ClientThread<'a> {
    fn new(shared: &'a Shared) -> ClientThread<'a> {
        ClientThread {
            shared,
            lines: BTreeMap::new(),
            tracker: RequestTracker::new(shared.catalog.clone()),
        }
    }

    fn run(&mut self) {
        while !self.shared.closed.is_raised() {
            self.shared.wake.lower();
            self.listen();
            self.advance();
            let due = self.send();
            let is_news = self.receive();
            let doubt = self.tracker.doubt(Instant::now());
            let news = self.tracker.take_news();
            self.tell(news);
            if is_news {
                // What came may be due again, sooner than anything that was known before.
                continue;
            }
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

    /// Let the machine know what was said.
    fn listen(&mut self) {
        let said = std::mem::take(&mut lock(&self.shared.exchange).said);
        for one in said {
            match one {
                Said::Learn(entries, roll_back) => self.tracker.learn(entries, roll_back),
                Said::Confirm(roll_back, low, tasks) => self.tracker.confirm(roll_back, low, tasks),
                Said::Forget => self.tracker.forget(),
                Said::Begin(ticket, wanted, pushed) => {
                    let wanted = wanted.map(|wanted| *wanted);
                    self.tracker.begin(Instant::now(), ticket, wanted, pushed);
                }
            }
        }
    }

    /// Tell those who wait what has come of what they asked.
    fn tell(&self, news: News) {
        let is_awaited =
            !news.found.is_empty() || !news.refused.is_empty() || !news.ended.is_empty();
        lock(&self.shared.exchange).put_up(news);
        if is_awaited {
            self.shared.changed.notify_all();
        }
    }

    /// Go on with connections that are being made.
    fn advance(&mut self) {
        let mut failed = Vec::new();
        for (server, line) in &mut self.lines {
            match line {
                Line::Dialing(dialer) => match dialer.advance() {
                    Ok(Ok(Some(stream))) => {
                        *line = Line::Standing(Box::new(Channel::dialled(stream)))
                    }
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
        let (requests, mut later) = self.tracker.due(now);
        for request in requests {
            let server = request.server;
            match self.reach(server) {
                Ok(()) => {}
                Err(Some(time)) => {
                    later = Some(later.map_or(time, |later| later.min(time)));
                    continue;
                }
                Err(None) => continue,
            }
            if let Some(Line::Standing(channel)) = self.lines.get_mut(&server)
                && let Some((number, ask)) = self.tracker.ask(now, request)
            {
                let head = (Kind::Ask, number.into(), 0);
                let sent = channel.send_by(head, ask.room(), |draft| ask.write(draft));
                if sent.is_err() {
                    self.lose(server);
                }
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
        let address = lock(&self.shared.exchange).addresses.get(&server).cloned();
        let Some(address) = address else {
            lock(&self.shared.exchange).is_astray = true;
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
                        let Packet {
                            kind,
                            number,
                            words,
                            ..
                        } = packet;
                        let now = Instant::now();
                        let taken = self.tracker.take(now, server, kind, number, &words);
                        if taken.is_none() {
                            self.lose(server);
                        } else if let Some(Line::Standing(channel)) = self.lines.get_mut(&server) {
                            channel.reuse(words);
                        }
                    }
                    Ok(None) => break,
                    Err(_) => self.lose(server),
                }
            }
        }
        is_news
    }

    fn lose(&mut self, server: Server) {
        let now = Instant::now();
        self.lines.insert(server, Line::Broken(now + UNREACHABLE));
        self.tracker.lose(now, server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::client::wanted::Came;

    #[test]
    fn a_variable_is_taken_once_and_nothing_older_after_it() {
        let mut exchange = Exchange::default();
        let mut take = |primary_epoch, version| {
            let came = Came {
                primary_epoch,
                version,
                weights: Arc::new([1.0]),
            };
            let found = Found {
                variables: vec![(0, Some(came))],
                ..Found::default()
            };
            exchange.take(found).variables.len() == 1
        };
        assert!(take(1, 7));
        assert!(!take(1, 7) && !take(1, 6));
        assert!(take(2, 3) && !take(1, 9) && !take(2, 3));
        assert!(take(2, 4));
    }
}
