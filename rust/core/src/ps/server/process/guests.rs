//! Who comes to a parameter server: workers that the master has named are served, others wait for their names, and servers are heard.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use crate::net::acceptor::Acceptor;
use crate::net::address::Stream;
use crate::net::channel::Channel;
use crate::net::dial::PARKED;
use crate::net::endpoint::lock;
use crate::net::frame::{Lost, Outbound};
use crate::net::handshake::{Hello, Purpose, Verdict};
use crate::net::wake::readable;

/// Workers that may wait for the master to name them.
const WAITING: usize = 1024;

/// The job's workers, and processes with a worker's key that the master has not named yet: a new worker may come here before its name does.
#[derive(Debug, Default)]
pub(super) struct Guests {
    pub(super) workers: BTreeSet<String>,
    pub(super) waiting: Vec<(String, Stream, Instant)>,
}

/// Send a verdict; false if it can't be sent: a fresh socket's buffer holds these few bytes, and where it does not, the other end is broken.
fn say(stream: &Stream, verdict: Verdict) -> bool {
    let mut outbound = Outbound::default();
    outbound.push(&verdict.frame());
    outbound.flush(stream).unwrap_or(false)
}

impl Shared {
    pub(super) fn receive(self: &Arc<Self>, mut acceptor: Acceptor) {
        while !self.closed.is_raised() {
            let Ok(arrived) = acceptor.serve() else {
                break;
            };
            for (hello, stream) in arrived {
                self.admit(hello, stream);
            }
            if acceptor.wait([readable(&self.closed)], None).is_err() {
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

    pub(super) fn attend_to(self: &Arc<Self>, stream: Stream) {
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

    /// Count a connection that did not speak the protocol.
    pub(super) fn count(&self, end: &std::result::Result<(), Lost>) {
        if matches!(end, Err(Lost::Malformed(_))) {
            self.refusals.count();
        }
    }
}
