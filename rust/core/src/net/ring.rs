//! The ring of one view: all-reduce over all its members, or nothing.
//!
//! Not a communicator that heals: any fault ends it for all members (rule S1), within milliseconds, because each member that notices says
//! so to the others and closes its connections. No threads: a call polls its own connections, which costs nothing when processes
//! outnumber cores.
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
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::net::address::{Address, Stream};
use crate::net::dial::Dialer;
use crate::net::endpoint::{Endpoint, Inbox, lock};
use crate::net::error::{Error, How, Result};
use crate::net::frame::{PREFIX, TRAILER};
use crate::net::handshake::Purpose;
use crate::net::ring::link::{Fault, Link, Operation, Received, differs, give_up, leave};
use crate::net::ring::plan::{Piece, Plan};
use crate::net::shared::area::{Area, LONGEST_OPENING};
use crate::net::wake::{Interrupt, Wake};
use sum::Element;

mod connecting;
mod farewell;
pub(crate) mod link;
mod memory;
pub mod plan;
mod silence;
pub mod sum;
mod waiting;

use farewell::{Broken, drain};

/// A member's place in the ring of one view.
#[derive(Debug)]
pub struct Ring {
    endpoint: Arc<Endpoint>,
    view: u64,
    rank: usize,
    peers: Vec<(String, Address)>,
    silence: Duration,
    inbox: Arc<Inbox>,
    wake: Wake,
    cancelled: AtomicBool,
    inner: Mutex<Inner>,
    digest: u64,
    /// Known once a connection stands.
    transport: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Inner {
    /// By rank; this member's own entry stays `Absent`.
    ends: Vec<End>,
    started: bool,
    over: bool,
    /// This member's shared memory, if all members are on this host.
    area: Option<Area>,
    /// Blocks of all operations in shared memory so far.
    blocks: u64,
}

#[derive(Debug)]
enum End {
    Absent,
    Dialing(Box<Dialer>),
    Up(Box<Link>),
}

impl End {
    fn link(&self) -> Option<&Link> {
        match self {
            End::Up(link) => Some(link),
            _ => None,
        }
    }

    fn link_mut(&mut self) -> Option<&mut Link> {
        match self {
            End::Up(link) => Some(link),
            _ => None,
        }
    }
}

impl Inner {
    fn is_connected(&self, shared: bool) -> bool {
        let ready = |link: &&Link| link.area.is_some() || !shared;
        self.ends.iter().filter_map(End::link).filter(ready).count()
            == self.ends.len().saturating_sub(1)
    }
}

/// Why an operation ended early.
enum Stop {
    Broken(Broken),
    Other(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Other(error)
    }
}

struct Job<'a, T> {
    operation: Operation,
    prefix: &'a [u8],
    contribution: &'a [T],
    result: &'a mut [T],
    /// Blocks whose part is summed (in shared memory: see `Exchange`).
    reduced: usize,
}

impl<T: Element> Job<'_, T> {
    /// Send what can be sent to the member at the other end of a link.
    fn send(&self, link: &mut Link, rank: usize) -> std::result::Result<(), Fault> {
        link.send(
            &self.operation,
            rank,
            self.prefix,
            self.contribution,
            self.result,
            self.reduced,
        )
    }
}

impl Ring {
    /// `peers`: member ids and addresses in ring order, this member among them at `rank`.
    pub fn new(
        endpoint: Arc<Endpoint>,
        view: u64,
        digest: u64,
        rank: usize,
        peers: &[(String, String)],
        silence: Duration,
    ) -> Result<Ring> {
        let count = peers.len();
        if peers
            .get(rank)
            .is_none_or(|(member, _)| member != endpoint.member())
        {
            return Err(Error::BadArgument(format!(
                "rank {rank} of {count} peers is not this endpoint's member"
            )));
        }
        let peers = peers
            .iter()
            .map(|(member, address)| Ok((member.clone(), address.parse()?)))
            .collect::<Result<Vec<_>>>()?;
        let inbox = endpoint.inbox(Purpose::Ring, view)?;
        let ends = (0..count).map(|_| End::Absent).collect();
        Ok(Ring {
            endpoint,
            view,
            rank,
            peers,
            silence,
            inbox,
            wake: Wake::new()?,
            cancelled: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                ends,
                started: false,
                over: false,
                area: None,
                blocks: 0,
            }),
            digest,
            transport: Mutex::new(None),
        })
    }

    /// Sum `contribution` over all members into `result`; return the summed trailer.
    ///
    /// # Errors
    /// `RingBroken`, `Cancelled`, `Interrupted`; after any of them the ring is over. `BadArgument` leaves it as it is.
    pub fn reduce<T: Element>(
        &self,
        step: u64,
        contribution: &[T],
        result: &mut [T],
        trailer: &[f64],
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<f64>> {
        if contribution.len() != result.len() {
            return Err(Error::BadArgument(format!(
                "the contribution has {} elements, the result {}",
                contribution.len(),
                result.len()
            )));
        }
        if trailer.len() > TRAILER {
            return Err(Error::BadArgument(format!(
                "a trailer has at most {TRAILER} values, this one has {}",
                trailer.len()
            )));
        }
        let mut inner = lock(&self.inner);
        if self.cancelled.load(Ordering::SeqCst) {
            return Err(Error::Cancelled);
        }
        if inner.over {
            return Err(Error::RingBroken {
                message: format!("the ring of view {} is over", self.view),
                rank: None,
                how: How::Stale,
            });
        }
        let shared = self.is_shared() && beginning(trailer) <= LONGEST_OPENING;
        let plan = Plan::new(
            self.peers.len(),
            self.rank,
            contribution.len(),
            size_of::<T>(),
            shared,
        );
        let operation = Operation {
            plan,
            view: self.view,
            step,
        };
        let mut prefix = Vec::with_capacity(beginning(trailer));
        prefix.extend_from_slice(&T::CODE.to_le_bytes());
        prefix.extend_from_slice(&(trailer.len() as u32).to_le_bytes());
        prefix.extend_from_slice(&(contribution.len() as u64).to_le_bytes());
        trailer
            .iter()
            .for_each(|value| prefix.extend_from_slice(&value.to_le_bytes()));

        let mut job = Job {
            operation,
            prefix: &prefix,
            contribution,
            result,
            reduced: 0,
        };
        match self.run(&mut inner, &mut job, interrupt) {
            Ok(()) => {}
            Err(stop) => {
                let accused = match &stop {
                    Stop::Broken(broken) => broken.accused,
                    Stop::Other(_) => None,
                };
                self.abort(&mut inner, &give_up(self.view, accused), |link, rank| {
                    let _ = job.send(link, rank);
                });
                return Err(match stop {
                    Stop::Broken(broken) => Error::RingBroken {
                        message: broken.message,
                        // Somebody accuses this member: it knows nothing of that, and can name nobody.
                        rank: broken
                            .accused
                            .map(|(rank, _)| rank)
                            .filter(|rank| *rank != self.rank),
                        how: broken.how,
                    },
                    Stop::Other(error) => error,
                });
            }
        }
        let mut trailers: Vec<Vec<f64>> = inner
            .ends
            .iter()
            .map(|end| {
                end.link()
                    .map(|link| link.trailer().collect())
                    .unwrap_or_default()
            })
            .collect();
        if let Some(own) = trailers.get_mut(self.rank) {
            *own = trailer.to_vec();
        }
        let mut sums = vec![0.0; trailer.len()];
        sum::in_order(&mut sums, trailers.iter().map(Vec::as_slice));
        Ok(sums)
    }

    /// Make a blocked call return, and leave the ring.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.wake.raise();
        // A call under way notices and aborts by itself before it lets go of the lock.
        let mut inner = lock(&self.inner);
        self.abort(&mut inner, &leave(self.view), |_, _| {});
    }

    /// Close the connections; `linger`: so that neighbours still get all bytes of a completed ring.
    pub fn close(&self, linger: bool) {
        let inner = if linger {
            self.inner.try_lock().ok()
        } else {
            None
        };
        let Some(mut inner) = inner.filter(|inner| !inner.over) else {
            // Nothing completed, or a call is under way in another thread.
            self.cancel();
            return;
        };
        inner.over = true;
        self.inbox.close();
        let streams: Vec<Stream> = inner
            .ends
            .iter_mut()
            .filter_map(|end| match std::mem::replace(end, End::Absent) {
                End::Up(link) => {
                    let _ = link
                        .stream
                        .send(&[std::io::IoSlice::new(&leave(self.view))]);
                    link.stream.finish();
                    Some(link.stream)
                }
                _ => None,
            })
            .collect();
        if !streams.is_empty() {
            // Closing at once would reset a TCP connection on which something unread has come, and so tear what the peer still needs.
            let drained = std::thread::Builder::new()
                .name("edl-linger".into())
                .spawn(move || drain(streams));
            drop(drained);
        }
    }

    /// Return the transport for people.
    pub fn transport(&self) -> String {
        if let Some(transport) = lock(&self.transport).as_ref() {
            return transport.clone();
        }
        match self.peers.get(self.rank) {
            Some((_, Address::Unix(_))) => "unix".into(),
            _ => "tcp".into(),
        }
    }

    fn run<T: Element>(
        &self,
        inner: &mut Inner,
        job: &mut Job<'_, T>,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let plan = job.operation.plan;
        if plan.members == 1 {
            job.result.copy_from_slice(job.contribution);
            return Ok(());
        }
        self.start(inner)?;
        for end in &mut inner.ends {
            if let Some(link) = end.link_mut() {
                link.begin::<T>(&plan, job.prefix.len());
            }
        }
        let mut connected = inner.is_connected(self.is_shared());
        while plan.shared && !connected {
            self.check_cancelled()?;
            connected = self.connect::<T>(inner, job)?;
            if !connected {
                self.wait(inner, job, false, interrupt)?;
            }
        }
        if plan.shared {
            return self.run_shared(inner, job, interrupt);
        }
        loop {
            self.check_cancelled()?;
            if !connected {
                connected = self.connect::<T>(inner, job)?;
            }
            let mut finished = connected;
            let mut more = false;
            for rank in 0..plan.members {
                // The peer's shared memory comes before its first frame.
                let end = inner.ends.get_mut(rank).and_then(End::link_mut);
                if let Some(link) = end.filter(|link| link.area.is_some() || !self.is_shared()) {
                    more |= self
                        .pump(link, rank, job)
                        .map_err(|fault| self.blame(rank, fault))?;
                    finished &= link.is_sent(&plan) && link.is_received(&plan);
                }
            }
            if connected && sum_ready(inner, job) || more {
                continue;
            }
            if finished {
                if plan.blocks == 0 {
                    sum_whole(inner, job);
                }
                return Ok(());
            }
            self.wait(inner, job, connected, interrupt)?;
        }
    }

    fn is_shared(&self) -> bool {
        self.peers.len() > 1
            && self
                .peers
                .iter()
                .all(|(_, address)| matches!(address, Address::Unix(_)))
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.cancelled.load(Ordering::SeqCst) {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Move what can be moved on one link; true if more may be there.
    fn pump<T: Element>(
        &self,
        link: &mut Link,
        rank: usize,
        job: &mut Job<'_, T>,
    ) -> std::result::Result<bool, Fault> {
        loop {
            // A peer that has left may have said why before it closed: whom it lost is the one to accuse.
            job.send(link, rank)
                .map_err(|fault| link.last_word(self.view).unwrap_or(fault))?;
            match link.receive(&job.operation, rank, job.prefix, job.result, job.reduced)? {
                Received::Piece(Piece::Gather(_)) => {}
                // A contribution may complete a sum, which comes first: it frees its place and lets its piece go out.
                Received::Piece(_) => return Ok(true),
                Received::Drained | Received::NoPlace | Received::Finished => return Ok(false),
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.close(false);
    }
}

/// Compare how a peer begins with how this member does.
fn check_opening(
    step: u64,
    prefix: &[u8],
    their_step: u64,
    theirs: &[u8],
) -> std::result::Result<(), Fault> {
    if their_step != step {
        return Err(Fault::Link(
            How::Stale,
            format!("it begins step {their_step} where this member is at step {step}"),
        ));
    }
    if theirs.len() != prefix.len() || theirs.get(..PREFIX) != prefix.get(..PREFIX) {
        return Err(Fault::Link(How::Malformed, differs(theirs, prefix)));
    }
    Ok(())
}

/// Sum the blocks for which all contributions are there; true if there was one.
#[allow(
    clippy::indexing_slicing,
    reason = "ranges are of this member's own plan, which is of this many elements"
)]
fn sum_ready<T: Element>(inner: &Inner, job: &mut Job<'_, T>) -> bool {
    let plan = job.operation.plan;
    let before = job.reduced;
    while job.reduced < plan.blocks
        && inner
            .ends
            .iter()
            .filter_map(End::link)
            .all(|link| link.has_scattered(job.reduced))
    {
        let block = job.reduced;
        let range = plan.range(block, plan.me);
        let own = &job.contribution[range.clone()];
        let parts = inner.ends.iter().map(|end| {
            end.link().map_or(own, |link| {
                bytemuck::cast_slice(link.staged::<T>(&plan, block))
            })
        });
        sum::in_order(&mut job.result[range], parts);
        job.reduced = block.saturating_add(1);
    }
    job.reduced > before
}

/// Sum contributions that came whole.
fn sum_whole<T: Element>(inner: &Inner, job: &mut Job<'_, T>) {
    let plan = job.operation.plan;
    let own = job.contribution;
    let parts = inner.ends.iter().map(|end| {
        end.link()
            .map_or(own, |link| bytemuck::cast_slice(link.staged::<T>(&plan, 0)))
    });
    sum::in_order(job.result, parts);
}

/// Return how many bytes a member's beginning has.
fn beginning(trailer: &[f64]) -> usize {
    size_of_val(trailer).saturating_add(PREFIX)
}
