//! The control plane's acceptor: TLS towards other machines, and behind it the Unix socket on which gRPC listens without.
//!
//! gRPC turns strangers away without a word to anybody; here they are refused like those at the data plane's acceptor, with a reason and a count.
//! Only who has shown a worker's certificate of the job reaches gRPC, over a connection of its own that is called as the address that it comes
//! from. One thread carries for all; it holds no more than one chunk for each direction, and takes the next one when that is gone.
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
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::net::acceptor::{Examination, Failure, Refusals, Unauthenticated, why};
use crate::net::address::{Address, Listener, Stream, is_own_lack};
use crate::net::admission::PATIENCE;
use crate::net::endpoint::lock;
use crate::net::error::{Error, Result};
use crate::net::tls::Identity;
use crate::net::wake::{Crowd, Wake, ignore_signals, readable, wait};

/// Most bytes that wait here in one direction.
const CHUNK: usize = 64 * 1024;
/// Chunks that one connection may move in one direction before it is the others' turn.
const TURN: usize = 16;
/// Until the next attempt when too many others wait before the socket, or descriptors are short; neither can be polled for.
const CROWDED: Duration = Duration::from_millis(10);
/// Time for what was sent before `close`.
const FLUSH: Duration = Duration::from_secs(2);
/// Bytes of the longest path of a Unix socket, and of the longest address with a scope and a port.
const PATH: usize = 107;
const CALLED: usize = 64;
/// Bytes of the longest path of a folder for them.
const FOLDER: usize = PATH - 1 - CALLED;

#[derive(Debug)]
struct Shared {
    to: PathBuf,
    identity: Identity,
    refusals: Arc<Refusals>,
    stop: Wake,
    /// How long connections may still carry what was sent, once `stop` is raised.
    until: Mutex<Option<Instant>>,
}

/// Where other machines reach the master's gRPC.
#[derive(Debug)]
pub struct TlsProxy {
    shared: Arc<Shared>,
    address: Address,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl TlsProxy {
    /// Listen at `address` for workers of the job, and connect each to the Unix socket `to`, whose folder nobody else can enter.
    pub fn open(address: &str, to: &Path, identity: Identity) -> Result<TlsProxy> {
        let folder = to.parent().unwrap_or(to);
        if folder.as_os_str().len() > FOLDER {
            return Err(Error::BadSetting(format!(
                "{}: the path of a folder for the proxy's sockets has at most {FOLDER} bytes",
                folder.display(),
            )));
        }
        let listener = Listener::bind(&address.parse()?)?;
        let address = listener.address().clone();
        let shared = Arc::new(Shared {
            to: to.into(),
            identity,
            refusals: Arc::default(),
            stop: Wake::new()?,
            until: Mutex::new(None),
        });
        let unauthenticated = Unauthenticated::new(vec![listener], shared.refusals.clone());
        let carried = Carried::new()?;
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("edl-proxy".into())
                .spawn(move || shared.run(unauthenticated, carried))
                .map_err(|error| Error::io("no thread for the control plane", error))?
        };
        Ok(TlsProxy {
            shared,
            address,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Return where it listens in fact.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// What was refused so far.
    pub fn refusals(&self) -> &Refusals {
        &self.shared.refusals
    }

    /// Stop to listen, and close all connections once each has carried what was sent; gRPC has closed its ends before.
    pub fn close(&self) {
        self.end(FLUSH);
    }

    fn end(&self, time: Duration) {
        *lock(&self.shared.until) = Some(Instant::now() + time);
        self.shared.stop.raise();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// A stranger has to get through TLS's handshake, and through nothing else: the token is gRPC's affair.
struct Shake;

impl Examination for Shake {
    type Passed = ();

    fn sends(&self) -> bool {
        false
    }

    fn advance(&mut self, stream: &Stream) -> std::result::Result<Option<()>, Failure> {
        match stream.shake() {
            Ok(()) => Ok(Some(())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // gRPC's clients give no reason.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Failure::Refused(
                "it left before it had shown a certificate: perhaps it does not accept this end's"
                    .into(),
            )),
            Err(error) => Err(Failure::Refused(why(error.into()))),
        }
    }
}

/// Who was let in and has no place before gRPC yet.
struct Arrived {
    outer: Stream,
    from: String,
    since: Instant,
}

impl Shared {
    fn run(&self, mut unauthenticated: Unauthenticated<Shake>, mut carried: Carried) {
        let mut arrived: Vec<Arrived> = Vec::new();
        while !self.stop.is_raised() {
            let now = Instant::now();
            let begin = |stream: &mut Stream| {
                stream.secure(self.identity.answer_web()?);
                Ok(Shake)
            };
            let served = unauthenticated.serve(begin, |(), outer, from| {
                arrived.push(Arrived {
                    outer,
                    from,
                    since: now,
                });
            });
            if served.is_err() {
                break;
            }
            for one in std::mem::take(&mut arrived) {
                match Stream::connect_as(&self.to.with_file_name(&one.from), &self.to) {
                    Ok(inner) => carried.begin(Pair::new(one.outer, inner)),
                    Err(error)
                        if (error.kind() == io::ErrorKind::WouldBlock || is_own_lack(&error))
                            && now < one.since + PATIENCE =>
                    {
                        arrived.push(one);
                    }
                    // gRPC has stopped: who has come sees an end, as of a master that is gone.
                    Err(_) => {}
                }
            }
            carried.advance();
            let again = (!arrived.is_empty()).then(|| now + CROWDED);
            let until = carried.until().into_iter().chain(again).min();
            let others = [readable(&carried.crowd), readable(&self.stop)];
            if unauthenticated.wait(others, until).is_err() || carried.note().is_err() {
                break;
            }
        }
        drop((unauthenticated, arrived));
        // There is none after an error: then nothing more can be done.
        let Some(until) = *lock(&self.until) else {
            return;
        };
        loop {
            carried.advance();
            if carried.pairs.is_empty() || Instant::now() >= until {
                return;
            }
            let next = carried.until().map_or(until, |next| next.min(until));
            let limit = next.saturating_duration_since(Instant::now());
            let waited = wait(
                &mut [readable(&carried.crowd)],
                Some(limit),
                &ignore_signals,
            );
            if waited.is_err() || carried.note().is_err() {
                return;
            }
        }
    }
}

/// The connections that are carried. Of a thousand few have something to do at any moment, and only those are looked at.
struct Carried {
    crowd: Crowd,
    pairs: BTreeMap<u64, Pair>,
    /// The next one's number.
    next: u64,
    /// Of which there may be something to do.
    due: BTreeSet<u64>,
    /// Which end at the latest when.
    ending: BTreeSet<(Instant, u64)>,
    /// Where bytes are read to.
    room: Vec<u8>,
}

impl Carried {
    fn new() -> Result<Carried> {
        Ok(Carried {
            crowd: Crowd::new()?,
            pairs: BTreeMap::new(),
            next: 0,
            due: BTreeSet::new(),
            ending: BTreeSet::new(),
            room: vec![0; CHUNK],
        })
    }

    fn begin(&mut self, pair: Pair) {
        // The first words may have come with the last of the handshake: no poll sees those.
        self.due.insert(self.next);
        self.pairs.insert(self.next, pair);
        self.next = self.next.saturating_add(1);
    }

    /// Go on with all for which there is something to do.
    fn advance(&mut self) {
        let now = Instant::now();
        while let Some(&(until, number)) = self.ending.first().filter(|(until, _)| *until <= now) {
            self.ending.remove(&(until, number));
            self.due.insert(number);
        }
        for number in std::mem::take(&mut self.due) {
            let Some(pair) = self.pairs.get_mut(&number) else {
                continue;
            };
            let more = pair.carry(&mut self.room);
            if pair.is_over(now) || pair.watch(&self.crowd, number).is_err() {
                self.pairs.remove(&number);
                continue;
            }
            if more {
                self.due.insert(number);
            }
            self.ending.extend(pair.until.map(|until| (until, number)));
        }
    }

    /// Return when to go on at the latest.
    fn until(&self) -> Option<Instant> {
        let first = self.ending.first().map(|(until, _)| *until);
        if self.due.is_empty() {
            first
        } else {
            Some(Instant::now())
        }
    }

    /// Note what is ready.
    fn note(&mut self) -> Result<()> {
        for (key, hung) in self.crowd.ready()? {
            let number = key >> 1;
            if let Some(pair) = self.pairs.get_mut(&number) {
                pair.hung |= hung && key & 1 == INNER;
                self.due.insert(number);
            }
        }
        Ok(())
    }
}

/// What a pair's two ends have as their keys' last bit.
const OUTER: u64 = 0;
const INNER: u64 = 1;

/// A worker's connection and the one to gRPC.
struct Pair {
    outer: Stream,
    inner: Stream,
    forth: Way,
    back: Way,
    /// What is awaited of either end.
    watched: (Option<PollFlags>, Option<PollFlags>),
    /// gRPC has closed its end in both directions.
    hung: bool,
    /// When it ends at the latest: nothing is left to carry, but the worker has not closed its end.
    until: Option<Instant>,
}

impl Pair {
    fn new(outer: Stream, inner: Stream) -> Pair {
        Pair {
            outer,
            inner,
            forth: Way::default(),
            back: Way::default(),
            watched: (None, None),
            hung: false,
            until: None,
        }
    }

    /// Carry what goes without waiting; true if there may be more.
    fn carry(&mut self, room: &mut [u8]) -> bool {
        let forth = self.forth.carry(&self.outer, &self.inner, room);
        let back = self.back.carry(&self.inner, &self.outer, room);
        let mut more = forth || back;
        if !self.forth.deaf && (self.back.torn || (self.back.over && self.hung)) {
            self.forth.deaf = true;
            more = true;
        }
        if self.forth.deaf && self.back.over && self.until.is_none() {
            self.until = Some(Instant::now() + PATIENCE);
        }
        more
    }

    /// Have a crowd await what there is to await now.
    fn watch(&mut self, crowd: &Crowd, number: u64) -> Result<()> {
        let (outer, inner) = self.interest();
        let key = number << 1;
        crowd.watch(&self.outer, key | OUTER, self.watched.0, outer)?;
        crowd.watch(&self.inner, key | INNER, self.watched.1, inner)?;
        self.watched = (outer, inner);
        Ok(())
    }

    /// Whether both ends may be closed. What a worker says to a gRPC that is gone is received all the same: a socket that is closed with
    /// something unread in it takes back what it has sent.
    fn is_over(&self, now: Instant) -> bool {
        (self.forth.over && (self.back.over || self.forth.torn))
            || self.until.is_some_and(|until| now >= until)
    }

    /// Return what to poll for at either end, `None` where nothing is awaited: an end that is gone would be reported for ever.
    fn interest(&self) -> (Option<PollFlags>, Option<PollFlags>) {
        let flags = |receives: bool, sends: bool, stream: &Stream| match (receives, sends) {
            (true, _) => Some(stream.interest(sends)),
            (false, true) => Some(PollFlags::OUT),
            (false, false) => None,
        };
        let outer = flags(self.forth.receives(), self.back.sends(), &self.outer);
        let inner = flags(self.back.receives(), self.forth.sends(), &self.inner);
        // Who has half-closed may close wholly, which is reported unasked.
        let hangs = self.back.over && !self.hung && !self.forth.over;
        (outer, inner.or(hangs.then(PollFlags::empty)))
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// What has come and is not sent on.
    held: Vec<u8>,
    sent: usize,
    /// Nothing more comes; `torn`: because the connection broke.
    ended: bool,
    torn: bool,
    /// Nobody takes it any more.
    deaf: bool,
    /// The end is passed on.
    over: bool,
}

impl Way {
    fn receives(&self) -> bool {
        !self.sends() && !self.ended
    }

    fn sends(&self) -> bool {
        !self.held.is_empty()
    }

    /// Carry what goes without waiting; true if there may be more.
    fn carry(&mut self, from: &Stream, to: &Stream, room: &mut [u8]) -> bool {
        for _ in 0..TURN {
            if !self.flush(to) {
                return false;
            }
            if self.ended {
                if !self.over {
                    to.finish();
                    self.over = true;
                }
                return false;
            }
            match from.receive(&mut [IoSliceMut::new(room)]) {
                Ok(0) => self.ended = true,
                Ok(got) => self.held.extend_from_slice(room.get(..got).unwrap_or(room)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    self.ended = true;
                    self.torn = true;
                }
            }
        }
        true
    }

    /// Send what is held; true if nothing is left of it.
    fn flush(&mut self, to: &Stream) -> bool {
        while !self.deaf
            && let Some(left) = self.held.get(self.sent..).filter(|left| !left.is_empty())
        {
            match to.send(&[IoSlice::new(left)]) {
                Ok(sent) => self.sent = self.sent.saturating_add(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.deaf = true,
            }
        }
        // Who is idle keeps no memory.
        self.held = Vec::new();
        self.sent = 0;
        true
    }
}
