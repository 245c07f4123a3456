//! Where a member listens: sorts authenticated connections by view and purpose, and keeps those that come too early.
//!
//! One thread, started by `Endpoint::open`, never at import. It moves no payload: rings and transfers take the connections over.
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
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::net::acceptor::{Acceptor, Refusals};
use crate::net::address::Stream;
use crate::net::dial::{Dialer, PARKED};
use crate::net::error::{Error, Result};
use crate::net::frame::{HEADER, Outbound};
use crate::net::handshake::{Hello, MEMBER, Purpose, Token, Verdict};
use crate::net::place::Place;
use crate::net::ring::link::leave;
use crate::net::tls::{Identity, Role};
use crate::net::wake::{Wake, readable};

/// Connections that have come for one ring or one state server.
#[derive(Debug)]
pub struct Inbox {
    /// Raised when a connection has come.
    pub wake: Wake,
    queue: Mutex<Option<Vec<(String, Stream)>>>,
    /// The last word to who has come and was not taken.
    goodbye: Option<[u8; HEADER]>,
}

impl Inbox {
    fn new(purpose: Purpose, view: u64) -> Result<Inbox> {
        Ok(Inbox {
            wake: Wake::new()?,
            queue: Mutex::new(Some(Vec::new())),
            goodbye: (purpose == Purpose::Ring).then(|| leave(view)),
        })
    }

    /// Take what has come.
    pub fn take(&self) -> Vec<(String, Stream)> {
        self.wake.lower();
        lock(&self.queue)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    fn push(&self, member: String, stream: Stream) -> bool {
        let mut queue = lock(&self.queue);
        let Some(queue) = queue.as_mut() else {
            return false;
        };
        // Its first attempt may have broken off without our noticing.
        queue.retain(|(other, _)| *other != member);
        queue.push((member, stream));
        self.wake.raise();
        true
    }

    /// Drop what is in it and take nothing more. A member that waits for a ring learns that this member leaves it: an end without a word would be
    /// this member's fault.
    pub fn close(&self) {
        let left = lock(&self.queue).take();
        for (_, stream) in left.into_iter().flatten() {
            if let Some(goodbye) = &self.goodbye {
                let _ = stream.send(&[IoSlice::new(goodbye)]);
                stream.finish();
            }
        }
    }

    fn is_closed(&self) -> bool {
        lock(&self.queue).is_none()
    }
}

/// Lock, also after a panic elsewhere: what is behind these locks is valid at every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[derive(Debug)]
struct Views {
    current: u64,
    digest: u64,
    sealed: u64,
    inboxes: HashMap<(Purpose, u64), Arc<Inbox>>,
}

#[derive(Debug)]
struct Shared {
    token: Token,
    member: String,
    identity: Option<Identity>,
    views: Mutex<Views>,
    refusals: Arc<Refusals>,
    /// Raised for the thread: views have changed, or it is to end.
    wake: Wake,
    closed: Wake,
}

/// A member's listening data plane.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    place: Place,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Parked {
    hello: Hello,
    stream: Stream,
    deadline: Instant,
}

impl Endpoint {
    /// Listen at `address` (see `Place`) as `member`; with an identity all TCP connections, to here and from here, are between workers' certificates.
    pub fn open(
        address: &str,
        member: &str,
        token: &[u8],
        identity: Option<Identity>,
    ) -> Result<Endpoint> {
        check_member(member)?;
        let token = Token::new(token)?;
        let place: Place = address.parse()?;
        let listeners = place.listen()?;
        let place = Place::of(&listeners).unwrap_or(place);
        let shared = Arc::new(Shared {
            token: token.clone(),
            member: member.into(),
            identity: identity.clone(),
            views: Mutex::new(Views {
                current: 0,
                digest: 0,
                sealed: 0,
                inboxes: HashMap::new(),
            }),
            refusals: Arc::default(),
            wake: Wake::new()?,
            closed: Wake::new()?,
        });
        let acceptor = Acceptor::new(
            listeners,
            token,
            member.into(),
            identity,
            shared.refusals.clone(),
        )?;
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("edl-endpoint".into())
                .spawn(move || shared.serve(acceptor))
                .map_err(|error| Error::io("no thread for the endpoint", error))?
        };
        Ok(Endpoint {
            shared,
            place,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Return where it listens in fact.
    pub fn address(&self) -> String {
        self.place.to_string()
    }

    /// Return this member's id.
    pub fn member(&self) -> &str {
        &self.shared.member
    }

    /// What was refused so far.
    pub fn refusals(&self) -> &Refusals {
        &self.shared.refusals
    }

    /// Make `view` the current one: lower ones are stale from now on.
    pub fn enter(&self, view: u64, digest: u64) -> Result<()> {
        let mut views = lock(&self.shared.views);
        if view <= views.sealed
            || view < views.current
            || (view == views.current && digest != views.digest)
        {
            return Err(Error::BadArgument(format!(
                "view {view} can't be entered: the current view is {}, sealed up to {}",
                views.current, views.sealed
            )));
        }
        views.current = view;
        views.digest = digest;
        views.drop_below(view);
        drop(views);
        self.shared.wake.raise();
        Ok(())
    }

    /// Refuse views up to `view` from now on.
    pub fn seal(&self, view: u64) {
        let mut views = lock(&self.shared.views);
        views.sealed = views.sealed.max(view);
        let first = views.sealed.saturating_add(1);
        views.drop_below(first);
        drop(views);
        self.shared.wake.raise();
    }

    /// Return the inbox of a view, for the ring or the state server that serves it.
    pub(crate) fn inbox(&self, purpose: Purpose, view: u64) -> Result<Arc<Inbox>> {
        lock(&self.shared.views).inbox(purpose, view)
    }

    /// Prepare a connection to a peer.
    pub(crate) fn dialer(
        &self,
        purpose: Purpose,
        view: u64,
        digest: u64,
        peer: &(String, Place),
        patience: Duration,
    ) -> Dialer {
        let hello = Hello {
            purpose,
            member: self.shared.member.clone(),
            view,
            digest,
        };
        Dialer::new(
            self.place.way_to(&peer.1).clone(),
            self.shared.token.clone(),
            hello,
            peer.0.clone(),
            self.shared
                .identity
                .clone()
                .map(|identity| (identity, Role::Worker)),
            patience,
        )
    }

    /// Stop to listen; connections already handed over live on.
    pub fn close(&self) {
        self.shared.closed.raise();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) fn check_member(member: &str) -> Result<()> {
    if member.is_empty() || member.len() > MEMBER {
        return Err(Error::BadArgument(format!(
            "a member id has 1 to {MEMBER} bytes, this one has {}",
            member.len()
        )));
    }
    Ok(())
}

impl Views {
    fn judge(&self, hello: &Hello) -> Verdict {
        if hello.purpose == Purpose::Heart {
            Verdict::Refused
        } else if hello.view < self.current || hello.view <= self.sealed {
            Verdict::Stale
        } else if hello.view > self.current {
            Verdict::Parked
        } else if hello.digest != self.digest {
            Verdict::Refused
        } else if self
            .inboxes
            .get(&(hello.purpose, hello.view))
            .is_some_and(|inbox| inbox.is_closed())
        {
            // Its ring has broken or its server has closed: for this member the view is over, though it has not sealed it yet.
            Verdict::Stale
        } else {
            Verdict::Ok
        }
    }

    fn inbox(&mut self, purpose: Purpose, view: u64) -> Result<Arc<Inbox>> {
        if let Some(inbox) = self.inboxes.get(&(purpose, view)) {
            return Ok(inbox.clone());
        }
        let inbox = Arc::new(Inbox::new(purpose, view)?);
        if view <= self.sealed || view < self.current {
            // Over before it began: nothing will come, and nothing need be remembered.
            inbox.close();
            return Ok(inbox);
        }
        self.inboxes.insert((purpose, view), inbox.clone());
        Ok(inbox)
    }

    fn drop_below(&mut self, view: u64) {
        self.inboxes.retain(|(_, of), inbox| {
            if *of < view {
                inbox.close();
            }
            *of >= view
        });
    }
}

impl Shared {
    fn serve(&self, mut acceptor: Acceptor) {
        let mut parked: Vec<Parked> = Vec::new();
        while !self.closed.is_raised() {
            let Ok(arrived) = acceptor.serve() else {
                break;
            };
            for (hello, stream) in arrived {
                if let Some(waiting) = self.admit(hello, stream, true) {
                    parked.push(waiting);
                }
            }
            self.wake.lower();
            let now = Instant::now();
            parked = parked
                .into_iter()
                .filter_map(|waiting| {
                    if now >= waiting.deadline || is_gone(&waiting.stream) {
                        return None;
                    }
                    let deadline = waiting.deadline;
                    let waiting = self.admit(waiting.hello, waiting.stream, false)?;
                    Some(Parked {
                        deadline,
                        ..waiting
                    })
                })
                .collect();
            let until = parked.iter().map(|waiting| waiting.deadline).min();
            let wakes = [readable(&self.wake), readable(&self.closed)];
            if acceptor.wait(wakes, until).is_err() {
                break;
            }
        }
    }

    /// Judge a connection and hand it over; returns it if it must wait.
    fn admit(&self, hello: Hello, stream: Stream, first: bool) -> Option<Parked> {
        let mut views = lock(&self.views);
        let verdict = views.judge(&hello);
        if verdict == Verdict::Parked && !first {
            return Some(Parked {
                hello,
                stream,
                deadline: Instant::now(),
            });
        }
        let inbox = match verdict {
            // Without descriptors for an inbox it is closed without a verdict, and comes again.
            Verdict::Ok => Some(views.inbox(hello.purpose, hello.view).ok()?),
            _ => None,
        };
        drop(views);
        if matches!(verdict, Verdict::Stale | Verdict::Refused) {
            self.refusals.count();
        }
        // A fresh socket's buffer holds these few bytes; where it does not, the stranger is broken.
        let mut outbound = Outbound::default();
        outbound.push(&verdict.frame());
        let told = outbound.flush(&stream).unwrap_or(false);
        match (verdict, inbox) {
            (Verdict::Parked, _) if told => {
                return Some(Parked {
                    hello,
                    stream,
                    deadline: Instant::now() + PARKED,
                });
            }
            (Verdict::Ok, Some(inbox)) if told && !inbox.push(hello.member, stream) => {
                self.refusals.count()
            }
            _ => {}
        }
        None
    }
}

/// Whether a parked dialer has closed its end; it says nothing while it waits.
fn is_gone(stream: &Stream) -> bool {
    let mut byte = [0];
    match stream.receive(&mut [std::io::IoSliceMut::new(&mut byte)]) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}
