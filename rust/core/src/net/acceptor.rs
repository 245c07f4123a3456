//! The listening side's reception: accepts, authenticates, times out. What becomes of an authenticated connection is its owner's affair.
//!
//! All handshakes go on side by side in one thread, so that a silent or slow stranger holds nobody else up.
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
use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, getrlimit};

use crate::net::address::{Listener, Origin, Stream};
use crate::net::admission::{Admission, Dismissal, Ticket};
use crate::net::endpoint::lock;
use crate::net::error::{Error, Result};
use crate::net::frame::{Inbound, Lost, Outbound};
use crate::net::handshake::{Heard, Hello, Responder, Token};
use crate::net::tls::Identity;
use crate::net::wake::{ignore_signals, readable, wait};

/// Connections that are accepted before it is the turn of those that came earlier.
const TURN: usize = 64;
/// How many refusals are remembered until somebody asks.
const REMEMBERED: usize = 8;

/// What was refused: a number, and for people who came and why it was sent away.
#[derive(Debug, Default)]
pub struct Refusals {
    count: AtomicU64,
    told: Mutex<Told>,
}

/// The first few refusals since the last look.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Told {
    /// Where they came from, and why they were refused.
    pub first: Vec<(String, String)>,
    /// How many others there were.
    pub others: u64,
}

impl Refusals {
    /// Return how many connections were refused so far, also those of members that came too late for a view.
    pub fn total(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Return whom the acceptor has refused since the last call.
    pub fn take(&self) -> Told {
        std::mem::take(&mut lock(&self.told))
    }

    /// Count a connection that was refused behind the acceptor.
    pub(crate) fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Count a connection that was refused, and remember why.
    pub(crate) fn tell(&self, from: String, why: String) {
        self.count();
        let mut told = lock(&self.told);
        if told.first.len() < REMEMBERED {
            told.first.push((from, why));
        } else {
            told.others = told.others.saturating_add(1);
        }
    }
}

/// What has to be heard from a stranger before it is let in.
pub(crate) trait Examination {
    /// What is known then.
    type Passed;

    /// Whether something is to be sent to it.
    fn sends(&self) -> bool;

    /// Go on as far as that goes without waiting; an error is why it does not pass.
    fn advance(&mut self, stream: &Stream) -> std::result::Result<Option<Self::Passed>, Failure>;
}

/// Why a stranger does not pass its examination.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It is refused, for this reason.
    Refused(String),
    /// It has left and had said nothing wrong, as a member does that was not answered in time and tries again.
    Left,
}

#[derive(Debug)]
struct Stranger<E> {
    stream: Stream,
    from: String,
    examination: E,
}

impl<E: Examination> Stranger<E> {
    fn interest(&self) -> PollFd<'_> {
        let sends = self.examination.sends();
        PollFd::new(&self.stream, self.stream.interest(sends))
    }
}

/// Listeners and the strangers before them, each in the middle of its examination.
#[derive(Debug)]
pub(crate) struct Unauthenticated<E> {
    listeners: Vec<Listener>,
    refusals: Arc<Refusals>,
    admission: Admission,
    /// Those that `admission` knows.
    strangers: BTreeMap<Ticket, Stranger<E>>,
}

impl<E: Examination> Unauthenticated<E> {
    pub fn new(listeners: Vec<Listener>, refusals: Arc<Refusals>) -> Unauthenticated<E> {
        Unauthenticated {
            listeners,
            refusals,
            admission: Admission::new(getrlimit(Resource::Nofile).current),
            strangers: BTreeMap::new(),
        }
    }

    /// Wait until it is time to go on with somebody, one of `others` is ready, or it is `until`; return what each of `others` is ready for.
    pub fn wait<'a>(
        &'a self,
        others: impl IntoIterator<Item = PollFd<'a>>,
        until: Option<Instant>,
    ) -> Result<Vec<PollFlags>> {
        let (mut polls, deadline) = self.interest();
        let own = polls.len();
        polls.extend(others);
        let until = until.into_iter().chain(deadline).min();
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
        wait(&mut polls, limit, &ignore_signals)?;
        let others = polls.iter().skip(own);
        Ok(others.map(PollFd::revents).collect())
    }

    /// Return the descriptors to poll and the time of the next deadline.
    fn interest(&self) -> (Vec<PollFd<'_>>, Option<Instant>) {
        let now = Instant::now();
        let mut polls = Vec::with_capacity(self.strangers.len().saturating_add(1));
        if self.admission.accepts(now) {
            polls.extend(self.listeners.iter().map(readable));
        }
        polls.extend(self.strangers.values().map(Stranger::interest));
        (polls, self.admission.deadline(now))
    }

    /// Go on with everybody; `begin` with each that comes, and `admit` each that has passed. Who is refused is counted before its connection
    /// is closed, so that who sees the close also sees the count.
    pub fn serve(
        &mut self,
        mut begin: impl FnMut(&mut Stream) -> Result<E>,
        mut admit: impl FnMut(E::Passed, Stream, String),
    ) -> Result<()> {
        let now = Instant::now();
        for _ in 0..TURN {
            if !self.admission.accepts(now) {
                break;
            }
            let (mut stream, origin) = match self.accept() {
                Ok(Some(arrived)) => arrived,
                Ok(None) => break,
                Err(_) => {
                    // Descriptors exhausted, mostly: it passes when connections end.
                    let dismissal = self.admission.lack_descriptors(now);
                    self.dismiss(dismissal);
                    continue;
                }
            };
            let (ticket, dismissal) = self.admission.arrive(now, origin.source());
            self.dismiss(dismissal);
            match begin(&mut stream) {
                Ok(examination) => {
                    let from = origin.to_string();
                    let stranger = Stranger {
                        stream,
                        from,
                        examination,
                    };
                    self.strangers.insert(ticket, stranger);
                    // Who has said something already is not to go for the next one as if it were silent.
                    self.advance(vec![ticket], &mut admit)?;
                }
                Err(error) => {
                    self.admission.leave(ticket);
                    self.refusals.tell(origin.to_string(), error.to_string());
                }
            }
        }
        self.advance(self.strangers.keys().copied().collect(), &mut admit)?;
        let expired = self.admission.expire(now);
        self.dismiss(expired);
        Ok(())
    }

    /// Return a connection that has come to one of the listeners, the first of them first.
    fn accept(&self) -> std::io::Result<Option<(Stream, Origin)>> {
        for listener in &self.listeners {
            if let Some(arrived) = listener.accept()? {
                return Ok(Some(arrived));
            }
        }
        Ok(None)
    }

    /// Go on with those of these that have something to say or can take something.
    fn advance(
        &mut self,
        tickets: Vec<Ticket>,
        admit: &mut impl FnMut(E::Passed, Stream, String),
    ) -> Result<()> {
        // One call to the kernel for all: most say nothing.
        let mut polls: Vec<PollFd<'_>> = tickets
            .iter()
            .filter_map(|ticket| self.strangers.get(ticket))
            .map(Stranger::interest)
            .collect();
        wait(&mut polls, Some(Duration::ZERO), &ignore_signals)?;
        let ready: Vec<(Ticket, PollFlags)> = tickets
            .into_iter()
            .zip(polls.iter().map(|poll| poll.revents()))
            .filter(|(_, flags)| !flags.is_empty())
            .collect();
        for (ticket, flags) in ready {
            let Some(stranger) = self.strangers.get_mut(&ticket) else {
                continue;
            };
            match stranger.examination.advance(&stranger.stream) {
                Ok(None) if flags.contains(PollFlags::IN) => self.admission.speak(ticket),
                Ok(None) => {}
                Ok(Some(passed)) => {
                    self.admission.leave(ticket);
                    if let Some(stranger) = self.strangers.remove(&ticket) {
                        admit(passed, stranger.stream, stranger.from);
                    }
                }
                Err(failure) => {
                    self.admission.leave(ticket);
                    match failure {
                        Failure::Refused(why) => self.dismiss([Dismissal { ticket, why }]),
                        Failure::Left => drop(self.strangers.remove(&ticket)),
                    }
                }
            }
        }
        Ok(())
    }

    fn dismiss(&mut self, dismissals: impl IntoIterator<Item = Dismissal>) {
        for Dismissal { ticket, why } in dismissals {
            if let Some(stranger) = self.strangers.remove(&ticket) {
                self.refusals.tell(stranger.from, why);
            }
        }
    }
}

/// Return why a stranger is refused whose connection failed.
pub(crate) fn why(lost: Lost) -> String {
    match lost.untrusted() {
        Some(untrusted) => untrusted.to_string(),
        None => lost.to_string(),
    }
}

/// Return what it means that the connection of a stranger failed before it had passed.
fn failure(lost: Lost) -> Failure {
    let left = match &lost {
        Lost::Eof => true,
        Lost::Io(error) => matches!(error.kind(), BrokenPipe | ConnectionReset),
        Lost::Malformed(_) => false,
    };
    if left && lost.untrusted().is_none() {
        Failure::Left
    } else {
        Failure::Refused(why(lost))
    }
}

/// The token's handshake, after TLS's if there is one.
#[derive(Debug)]
struct Introduction {
    responder: Responder,
    inbound: Inbound,
    outbound: Outbound,
    /// It has said who it is, and was answered.
    heard: bool,
}

impl Examination for Introduction {
    type Passed = Hello;

    fn sends(&self) -> bool {
        !self.outbound.is_empty()
    }

    fn advance(&mut self, stream: &Stream) -> std::result::Result<Option<Hello>, Failure> {
        loop {
            // A reply that nobody takes any more was too late; who leaves after one may not believe this end's token.
            self.outbound.flush(stream).map_err(failure)?;
            let received = self.inbound.receive(stream);
            match received.map_err(|lost| {
                if self.heard {
                    Failure::Refused(why(lost))
                } else {
                    failure(lost)
                }
            })? {
                None => return Ok(None),
                Some((header, payload)) => {
                    self.heard = true;
                    match self
                        .responder
                        .hear(&header, &payload)
                        .map_err(|denied| Failure::Refused(denied.to_string()))?
                    {
                        Heard::Reply(frame) => self.outbound.push(&frame),
                        Heard::Hello(hello) => return Ok(Some(hello)),
                    }
                }
            }
        }
    }
}

/// The reception of those who know the job's token.
#[derive(Debug)]
pub struct Acceptor {
    unauthenticated: Unauthenticated<Introduction>,
    token: Token,
    member: String,
    identity: Option<Identity>,
}

impl Acceptor {
    /// Without an identity a listener that other hosts can reach is a `BadSetting`.
    pub fn new(
        listeners: Vec<Listener>,
        token: Token,
        member: String,
        identity: Option<Identity>,
        refusals: Arc<Refusals>,
    ) -> Result<Acceptor> {
        let exposed = listeners.iter().find(|listener| !listener.is_local());
        if let Some(listener) = exposed.filter(|_| identity.is_none()) {
            return Err(Error::BadSetting(format!(
                "the data plane leaves this machine only with the job's certificates; received {} without any",
                listener.address()
            )));
        }
        Ok(Acceptor {
            unauthenticated: Unauthenticated::new(listeners, refusals),
            token,
            member,
            identity,
        })
    }

    /// Wait until it is time to go on with somebody, one of `others` is ready, or it is `until`; return what each of `others` is ready for.
    pub fn wait<'a>(
        &'a self,
        others: impl IntoIterator<Item = PollFd<'a>>,
        until: Option<Instant>,
    ) -> Result<Vec<PollFlags>> {
        self.unauthenticated.wait(others, until)
    }

    /// Go on with everybody; return those that are authenticated now.
    pub fn serve(&mut self) -> Result<Vec<(Hello, Stream)>> {
        let mut arrived = Vec::new();
        let begin = |stream: &mut Stream| {
            if let Some(identity) = &self.identity
                && stream.is_tcp()
            {
                stream.secure(identity.answer()?);
            }
            Ok(Introduction {
                responder: Responder::new(self.token.clone(), self.member.clone())?,
                inbound: Inbound::default(),
                outbound: Outbound::default(),
                heard: false,
            })
        };
        self.unauthenticated
            .serve(begin, |hello, stream, _| arrived.push((hello, stream)))?;
        Ok(arrived)
    }
}
