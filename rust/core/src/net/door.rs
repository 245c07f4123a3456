//! The listening side's reception: accepts, authenticates, times out. What becomes of an authenticated connection is its owner's affair.
//!
//! All handshakes go on side by side in one thread, so that a silent or slow stranger holds nobody else up.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::address::{Listener, Stream};
use super::endpoint::lock;
use super::error::{Error, Result};
use super::frame::{Inbound, Lost, Outbound};
use super::handshake::{Acceptor, Heard, Hello, Token};
use super::tls::Identity;
use super::wake::readable;

/// A stranger that has not passed by then is refused.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Most strangers at a time: the others wait in the kernel's queue.
const STRANGERS: usize = 128;
/// After this time a stranger has to make room for those who wait; before it, a crowd of members would only drive each other out.
const UNDISTURBED: Duration = Duration::from_secs(2);
/// After a connection that could not be accepted for lack of descriptors.
const EXHAUSTED: Duration = Duration::from_millis(50);
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

    /// Return whom the door has refused since the last call.
    pub fn take(&self) -> Told {
        std::mem::take(&mut lock(&self.told))
    }

    /// Count a connection that was refused behind the door.
    pub(crate) fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn tell(&self, from: String, why: String) {
        self.count();
        let mut told = lock(&self.told);
        if told.first.len() < REMEMBERED {
            told.first.push((from, why));
        } else {
            told.others += 1;
        }
    }
}

/// What has to be heard from a stranger before it is let in.
pub(crate) trait Examination {
    /// What is known then.
    type Passed;

    /// Whether something is to be sent to it.
    fn sends(&self) -> bool;

    /// Go on as far as that goes without waiting; an error is why it is refused.
    fn advance(&mut self, stream: &Stream) -> std::result::Result<Option<Self::Passed>, String>;
}

#[derive(Debug)]
struct Stranger<E> {
    stream: Stream,
    from: String,
    examination: E,
    since: Instant,
}

/// A listener and the strangers before it, each in the middle of its examination.
#[derive(Debug)]
pub(crate) struct Lobby<E> {
    listener: Listener,
    refusals: Arc<Refusals>,
    strangers: Vec<Stranger<E>>,
    /// Until then nobody is let in, because this process has no descriptors left.
    pause: Option<Instant>,
}

impl<E: Examination> Lobby<E> {
    pub fn new(listener: Listener, refusals: Arc<Refusals>) -> Lobby<E> {
        Lobby {
            listener,
            refusals,
            strangers: Vec::new(),
            pause: None,
        }
    }

    /// Return when the next connection may be accepted.
    fn room(&self) -> Option<Instant> {
        let oldest = self.strangers.first()?;
        (self.strangers.len() >= STRANGERS).then(|| oldest.since + UNDISTURBED)
    }

    /// Return the descriptors to poll and the time of the next deadline.
    pub fn interest(&self) -> (Vec<PollFd<'_>>, Option<Instant>) {
        let room = self
            .room()
            .max(self.pause)
            .filter(|room| *room > Instant::now());
        let mut polls = Vec::with_capacity(self.strangers.len() + 1);
        if room.is_none() {
            polls.push(readable(&self.listener));
        }
        polls.extend(self.strangers.iter().map(|stranger| {
            let sends = stranger.examination.sends();
            PollFd::new(&stranger.stream, stranger.stream.interest(sends))
        }));
        let deadline = self
            .strangers
            .iter()
            .map(|stranger| stranger.since + PATIENCE)
            .chain(room)
            .min();
        (polls, deadline)
    }

    /// Go on with everybody; `begin` with each that comes, and `admit` each that has passed. Who is refused is counted before its connection
    /// is closed, so that who sees the close also sees the count.
    pub fn serve(
        &mut self,
        mut begin: impl FnMut(&mut Stream) -> Result<E>,
        mut admit: impl FnMut(E::Passed, Stream, String),
    ) -> Result<()> {
        let now = Instant::now();
        while self.room().is_none_or(|room| room <= now) {
            let (mut stream, from) = match self.listener.accept() {
                Ok(Some(arrived)) => arrived,
                Ok(None) => break,
                Err(_) => {
                    // Descriptors exhausted: it passes when connections end, and those waiting stay in the backlog until then.
                    self.pause = Some(now + EXHAUSTED);
                    break;
                }
            };
            if self.strangers.len() == STRANGERS {
                let oldest = self.strangers.remove(0);
                self.refusals
                    .tell(oldest.from, "too many others wait at the door".into());
            }
            let examination = begin(&mut stream)?;
            self.strangers.push(Stranger {
                stream,
                from,
                examination,
                since: now,
            });
        }
        let mut waiting = Vec::with_capacity(self.strangers.len());
        for mut stranger in self.strangers.drain(..) {
            match stranger.examination.advance(&stranger.stream) {
                Ok(Some(passed)) => admit(passed, stranger.stream, stranger.from),
                Ok(None) if now < stranger.since + PATIENCE => waiting.push(stranger),
                Ok(None) => {
                    let why = format!("it did not say who it is within {} s", PATIENCE.as_secs());
                    self.refusals.tell(stranger.from, why);
                }
                Err(why) => self.refusals.tell(stranger.from, why),
            }
        }
        self.strangers = waiting;
        Ok(())
    }
}

/// Return why a stranger is refused whose connection failed.
pub(crate) fn why(lost: Lost) -> String {
    match lost.untrusted() {
        Some(untrusted) => untrusted.to_string(),
        None => lost.to_string(),
    }
}

/// The token's handshake, after TLS's if there is one.
#[derive(Debug)]
struct Introduction {
    acceptor: Acceptor,
    inbound: Inbound,
    outbound: Outbound,
}

impl Examination for Introduction {
    type Passed = Hello;

    fn sends(&self) -> bool {
        !self.outbound.is_empty()
    }

    fn advance(&mut self, stream: &Stream) -> std::result::Result<Option<Hello>, String> {
        loop {
            let received = self
                .outbound
                .flush(stream)
                .and_then(|_| self.inbound.receive(stream));
            match received.map_err(why)? {
                None => return Ok(None),
                Some((header, payload)) => {
                    match self
                        .acceptor
                        .hear(&header, &payload)
                        .map_err(|denied| denied.to_string())?
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
pub struct Door {
    lobby: Lobby<Introduction>,
    token: Token,
    member: String,
    identity: Option<Identity>,
}

impl Door {
    /// Without an identity a listener that other hosts can reach is a `BadSetting`.
    pub fn new(
        listener: Listener,
        token: Token,
        member: String,
        identity: Option<Identity>,
        refusals: Arc<Refusals>,
    ) -> Result<Door> {
        if identity.is_none() && !listener.is_local() {
            return Err(Error::BadSetting(format!(
                "the data plane leaves this machine only with the job's certificates; received {} without any",
                listener.address()
            )));
        }
        Ok(Door {
            lobby: Lobby::new(listener, refusals),
            token,
            member,
            identity,
        })
    }

    /// Return the descriptors to poll and the time of the next deadline.
    pub fn interest(&self) -> (Vec<PollFd<'_>>, Option<Instant>) {
        self.lobby.interest()
    }

    /// Go on with everybody; call `admit` for each that is authenticated.
    pub fn serve(&mut self, mut admit: impl FnMut(Hello, Stream)) -> Result<()> {
        let begin = |stream: &mut Stream| {
            if let Some(identity) = &self.identity
                && stream.is_tcp()
            {
                stream.secure(identity.answer()?);
            }
            Ok(Introduction {
                acceptor: Acceptor::new(self.token.clone(), self.member.clone())?,
                inbound: Inbound::default(),
                outbound: Outbound::default(),
            })
        };
        self.lobby
            .serve(begin, |hello, stream, _| admit(hello, stream))
    }
}
