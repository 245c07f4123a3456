//! The listening side's reception: accepts, authenticates, times out. What becomes of an authenticated connection is its owner's affair.
//!
//! All handshakes go on side by side in one thread, so that a silent or slow stranger holds nobody else up.
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::address::{Listener, Stream};
use super::error::Result;
use super::frame::{Inbound, Lost, Outbound};
use super::handshake::{Acceptor, Heard, Hello, Token};
use super::wake::readable;

const PATIENCE: Duration = Duration::from_secs(5);
const STRANGERS: usize = 128;

#[derive(Debug)]
struct Stranger {
    stream: Stream,
    acceptor: Acceptor,
    inbound: Inbound,
    outbound: Outbound,
    deadline: Instant,
}

/// A listener and the strangers before it.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    token: Token,
    member: String,
    strangers: Vec<Stranger>,
}

impl Door {
    pub fn new(listener: Listener, token: Token, member: String) -> Door {
        Door {
            listener,
            token,
            member,
            strangers: Vec::new(),
        }
    }

    /// Return the descriptors to poll and the time of the next deadline.
    pub fn interest(&self) -> (Vec<PollFd<'_>>, Option<Instant>) {
        let mut polls = vec![readable(&self.listener)];
        polls.extend(
            self.strangers
                .iter()
                .map(|stranger| readable(&stranger.stream)),
        );
        (
            polls,
            self.strangers
                .iter()
                .map(|stranger| stranger.deadline)
                .min(),
        )
    }

    /// Go on with everybody; call `admit` for each that is authenticated; return the connections to close.
    pub fn serve(&mut self, mut admit: impl FnMut(Hello, Stream)) -> Result<Vec<Stream>> {
        let now = Instant::now();
        let mut refused = Vec::new();
        // An error here (descriptors exhausted) passes when connections end; those waiting stay in the backlog.
        while let Ok(Some(stream)) = self.listener.accept() {
            if self.strangers.len() == STRANGERS {
                refused.push(self.strangers.remove(0).stream);
            }
            self.strangers.push(Stranger {
                stream,
                acceptor: Acceptor::new(self.token.clone(), self.member.clone())?,
                inbound: Inbound::default(),
                outbound: Outbound::default(),
                deadline: now + PATIENCE,
            });
        }
        let mut waiting = Vec::with_capacity(self.strangers.len());
        for mut stranger in self.strangers.drain(..) {
            match stranger.advance() {
                Ok(Some(hello)) => admit(hello, stranger.stream),
                Ok(None) if now < stranger.deadline => waiting.push(stranger),
                Ok(None) | Err(()) => refused.push(stranger.stream),
            }
        }
        self.strangers = waiting;
        Ok(refused)
    }
}

impl Stranger {
    fn advance(&mut self) -> std::result::Result<Option<Hello>, ()> {
        loop {
            let received = self
                .outbound
                .flush(&self.stream)
                .and_then(|_| self.inbound.receive(&self.stream));
            match received.map_err(|_: Lost| ())? {
                None => return Ok(None),
                Some((header, payload)) => {
                    match self.acceptor.hear(&header, &payload).map_err(|_| ())? {
                        Heard::Reply(frame) => self.outbound.push(&frame),
                        Heard::Hello(hello) => return Ok(Some(hello)),
                    }
                }
            }
        }
    }
}
