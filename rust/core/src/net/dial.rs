//! Making an authenticated connection, again and again until it stands or its time is over. Non-blocking; the caller polls.
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::net::address::{Address, Stream, is_own_lack};
use crate::net::error::{Error, Result};
use crate::net::frame::{Inbound, Lost, Outbound};
use crate::net::handshake::{Caller, Denied, Hello, Said, Token, Verdict};
use crate::net::tls::{Identity, Role, Untrusted};
use crate::net::wake::{Interrupt, Wake, readable, wait};

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a member may stay in an earlier view while others wait for it there: its step may take long, and one that hangs is found by its
/// heartbeats.
pub const PARKED: Duration = Duration::from_secs(3600);

/// Why no connection could be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("no connection before the deadline; the last attempt said: {0}")]
    Unreachable(String),
    #[error("{0}")]
    Denied(Denied),
    #[error("{0}")]
    Untrusted(Untrusted),
    #[error("it refuses this member or this content of the view")]
    Refused,
    #[error("it has left that view")]
    Stale,
}

#[derive(Debug)]
enum State {
    Pausing {
        until: Instant,
    },
    Connecting {
        stream: Stream,
    },
    Shaking {
        stream: Stream,
        caller: Box<Caller>,
        inbound: Inbound,
        outbound: Outbound,
    },
}

/// One connection in the making.
#[derive(Debug)]
pub struct Dialer {
    address: Address,
    token: Token,
    hello: Hello,
    to: String,
    /// This end's certificate, and whose the other end must show; not on Unix sockets.
    identity: Option<(Identity, Role)>,
    deadline: Instant,
    pause: Duration,
    state: State,
    last: String,
}

impl Dialer {
    /// `patience`: how long attempts are repeated, and how long an attempt may be silent.
    pub fn new(
        address: Address,
        token: Token,
        hello: Hello,
        to: String,
        identity: Option<(Identity, Role)>,
        patience: Duration,
    ) -> Dialer {
        let now = Instant::now();
        Dialer {
            address,
            token,
            hello,
            to,
            identity,
            deadline: now + patience,
            pause: FIRST_PAUSE,
            state: State::Pausing { until: now },
            last: "nothing".into(),
        }
    }

    fn again(&mut self, why: String) {
        self.last = why;
        self.state = State::Pausing {
            until: Instant::now() + self.pause,
        };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Go on as far as possible; return the stream once the other end has said ok.
    pub fn advance(&mut self) -> Result<std::result::Result<Option<Stream>, Failure>> {
        loop {
            match &mut self.state {
                State::Pausing { until } => {
                    let (now, due) = (Instant::now(), *until);
                    if due > self.deadline && now >= self.deadline {
                        return Ok(Err(Failure::Unreachable(std::mem::take(&mut self.last))));
                    }
                    if now < due {
                        return Ok(Ok(None));
                    }
                    if now >= self.deadline {
                        // This process was stopped itself: an attempt that was due is made, however late.
                        self.deadline = now + LONGEST_PAUSE / 2;
                    }
                    match Stream::connect(&self.address) {
                        Ok(stream) => self.state = State::Connecting { stream },
                        Err(error) if is_own_lack(&error) => {
                            return Err(Error::io("no connection can be made", error));
                        }
                        Err(error) => self.again(error.to_string()),
                    }
                }
                State::Connecting { stream } => {
                    let mut poll = [PollFd::new(stream, PollFlags::OUT)];
                    wait(
                        &mut poll,
                        Some(Duration::ZERO),
                        &crate::net::wake::ignore_signals,
                    )?;
                    if poll[0].revents().is_empty() {
                        if Instant::now() >= self.deadline {
                            return Ok(Err(Failure::Unreachable(
                                "the connection attempt got no answer".into(),
                            )));
                        }
                        return Ok(Ok(None));
                    }
                    match stream.outcome() {
                        Err(error) => self.again(error.to_string()),
                        Ok(()) => {
                            let caller = Box::new(Caller::new(
                                self.token.clone(),
                                self.hello.clone(),
                                self.to.clone(),
                            )?);
                            let mut outbound = Outbound::default();
                            outbound.push(&caller.open());
                            let State::Connecting { mut stream } = std::mem::replace(
                                &mut self.state,
                                State::Pausing {
                                    until: Instant::now(),
                                },
                            ) else {
                                unreachable!("the state was matched above")
                            };
                            if let Some((identity, whom)) = &self.identity
                                && stream.is_tcp()
                            {
                                stream.secure(identity.dial(*whom)?);
                            }
                            self.state = State::Shaking {
                                stream,
                                caller,
                                inbound: Inbound::default(),
                                outbound,
                            };
                        }
                    }
                }
                State::Shaking {
                    stream,
                    caller,
                    inbound,
                    outbound,
                } => {
                    let sent = outbound.flush(stream);
                    let received = match inbound.receive(stream) {
                        // Who has gone may have said why: what it said is read first.
                        Ok(None) => sent.map(|_| None),
                        received => received,
                    };
                    match received {
                        Ok(None) => {
                            if Instant::now() >= self.deadline {
                                return Ok(Err(Failure::Unreachable(
                                    "it is silent in the handshake".into(),
                                )));
                            }
                            return Ok(Ok(None));
                        }
                        Ok(Some((header, payload))) => match caller.hear(&header, &payload) {
                            Ok(Said::Reply(frame)) => outbound.push(&frame),
                            Ok(Said::Verdict(Verdict::Parked)) => {
                                self.deadline = Instant::now() + PARKED
                            }
                            Ok(Said::Verdict(Verdict::Stale)) => return Ok(Err(Failure::Stale)),
                            Ok(Said::Verdict(Verdict::Refused)) => {
                                return Ok(Err(Failure::Refused));
                            }
                            Ok(Said::Verdict(Verdict::Ok)) => {
                                let State::Shaking { stream, .. } = std::mem::replace(
                                    &mut self.state,
                                    State::Pausing {
                                        until: self.deadline,
                                    },
                                ) else {
                                    unreachable!("the state was matched above")
                                };
                                return Ok(Ok(Some(stream)));
                            }
                            Err(denied) => return Ok(Err(Failure::Denied(denied))),
                        },
                        Err(lost @ (Lost::Eof | Lost::Io(_))) => match lost.untrusted() {
                            Some(untrusted) => {
                                return Ok(Err(Failure::Untrusted(untrusted.clone())));
                            }
                            // The other end may be going away or coming up: try again until the deadline.
                            None => self.again(lost.to_string()),
                        },
                        Err(Lost::Malformed(malformed)) => {
                            return Ok(Err(Failure::Denied(malformed.into())));
                        }
                    }
                }
            }
        }
    }

    /// Return what to poll for, if anything, and when to call `advance` at the latest.
    pub fn interest(&self) -> (Option<PollFd<'_>>, Instant) {
        match &self.state {
            State::Pausing { until } => (None, (*until).min(self.deadline)),
            State::Connecting { stream } => {
                (Some(PollFd::new(stream, PollFlags::OUT)), self.deadline)
            }
            State::Shaking {
                stream, outbound, ..
            } => {
                let flags = stream.interest(!outbound.is_empty());
                (Some(PollFd::new(stream, flags)), self.deadline)
            }
        }
    }

    /// Block until the connection stands.
    pub fn run(
        mut self,
        wake: &Wake,
        interrupt: Interrupt<'_>,
    ) -> Result<std::result::Result<Stream, Failure>> {
        loop {
            if wake.is_raised() {
                return Err(Error::Cancelled);
            }
            match self.advance()? {
                Ok(Some(stream)) => return Ok(Ok(stream)),
                Ok(None) => {}
                Err(failure) => return Ok(Err(failure)),
            }
            let (descriptor, until) = self.interest();
            let mut polls = vec![readable(wake)];
            polls.extend(descriptor);
            wait(
                &mut polls,
                Some(until.saturating_duration_since(Instant::now())),
                interrupt,
            )?;
        }
    }
}
