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

use crate::bfloat::BFloat16;
use crate::net::address::Stream;
use crate::net::dial::Dialer;
use crate::net::endpoint::{Endpoint, Inbox, lock};
use crate::net::error::{Error, How, Result};
use crate::net::frame::{PREFIX, TRAILER};
use crate::net::handshake::Purpose;
use crate::net::place::Place;
use crate::net::ring::hosts::Hosts;
use crate::net::ring::link::{
    Course, Fault, Link, Operation, Ready, Received, differs, give_up, leave,
};
use crate::net::ring::plan::{Piece, Plan, Way};
use crate::net::shared::area::{Area, LONGEST_OPENING};
use crate::net::wake::{Interrupt, Wake};
use sum::Element;

mod connecting;
mod farewell;
pub mod hosts;
mod levels;
pub(crate) mod link;
mod memory;
pub mod plan;
mod short;
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
    peers: Vec<(String, Place)>,
    hosts: Hosts,
    silence: Duration,
    inbox: Arc<Inbox>,
    wake: Wake,
    cancelled: AtomicBool,
    inner: Mutex<Inner>,
    digest: u64,
    /// Known once a connection stands.
    transport: Mutex<Option<String>>,
    /// What a member contributes, and the sum, in the type in which they travel.
    scratch: Mutex<Vec<BFloat16>>,
}

#[derive(Debug)]
struct Inner {
    /// By rank; this member's own entry stays `Absent`.
    ends: Vec<End>,
    started: bool,
    over: bool,
    /// This member's shared memory, if any host of the ring has several members.
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

/// What came of moving all links on.
struct Moved {
    /// There may be more to do at once.
    more: bool,
    /// Everything has gone out and come in.
    finished: bool,
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
    plan: Plan,
    operation: Operation,
    prefix: &'a [u8],
    contribution: &'a [T],
    result: &'a mut [T],
    /// In shared memory: see `Exchange`.
    ready: Ready,
}

impl<T: Element> Job<'_, T> {
    /// Send what can be sent to the member at the other end of a link.
    fn send(&self, link: &mut Link) -> std::result::Result<(), Fault> {
        link.send(
            &self.operation,
            self.prefix,
            self.contribution,
            self.result,
            self.ready,
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
            .collect::<Result<Vec<(String, Place)>>>()?;
        let hosts = Hosts::new(peers.iter().map(|(_, place)| place));
        let inbox = endpoint.inbox(Purpose::Ring, view)?;
        let ends = (0..count).map(|_| End::Absent).collect();
        Ok(Ring {
            endpoint,
            view,
            rank,
            peers,
            hosts,
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
            scratch: Mutex::default(),
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
        let plan = Plan::new(
            &self.hosts,
            self.rank,
            contribution.len(),
            size_of::<T>(),
            beginning(trailer) <= LONGEST_OPENING,
        );
        let operation = Operation {
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

        // Where blocks go over connections as they are, all of the contribution is there.
        let taken = if plan.way == Way::Direct {
            plan.blocks
        } else {
            0
        };
        let mut job = Job {
            plan,
            operation,
            prefix: &prefix,
            contribution,
            result,
            ready: Ready { taken, reduced: 0 },
        };
        match self.run(&mut inner, &mut job, interrupt) {
            Ok(()) => {}
            Err(stop) => {
                let accused = match &stop {
                    Stop::Broken(broken) => broken.accused,
                    Stop::Other(_) => None,
                };
                self.abort(&mut inner, &give_up(self.view, accused), |link| {
                    let _ = job.send(link);
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
        self.abort(&mut inner, &leave(self.view), |_| {});
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
            Some((_, place)) if place.is_unix() => "unix".into(),
            _ => "tcp".into(),
        }
    }

    fn run<T: Element>(
        &self,
        inner: &mut Inner,
        job: &mut Job<'_, T>,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let plan = job.plan;
        if self.peers.len() == 1 {
            job.result.copy_from_slice(job.contribution);
            return Ok(());
        }
        self.start(inner)?;
        for (rank, end) in inner.ends.iter_mut().enumerate() {
            if let Some(link) = end.link_mut() {
                link.begin::<T>(self.course(&plan, rank), job.prefix.len());
            }
        }
        if plan.way == Way::Hosts {
            return self.run_levels(inner, job, interrupt);
        }
        let mut connected = self.is_connected(inner);
        while plan.way == Way::Memory && !connected {
            self.check_cancelled()?;
            connected = self.connect::<T>(inner, job)?;
            if !connected {
                self.wait(inner, job, false, None, interrupt)?;
            }
        }
        if plan.way == Way::Memory {
            return self.run_shared(inner, job, interrupt);
        }
        loop {
            self.check_cancelled()?;
            if !connected {
                connected = self.connect::<T>(inner, job)?;
            }
            let moved = self.move_all(inner, job, connected)?;
            if connected && sum_ready(inner, job) || moved.more {
                continue;
            }
            if connected && moved.finished {
                if plan.blocks == 0 {
                    sum_whole(inner, job);
                }
                return Ok(());
            }
            self.wait(inner, job, connected, None, interrupt)?;
        }
    }

    /// Return what goes over the link with a member.
    fn course(&self, plan: &Plan, rank: usize) -> Course {
        if plan.way != Way::Hosts {
            return Course {
                plan: *plan,
                peer: rank,
                alone: true,
            };
        }
        let carries = self.hosts.is_first(self.rank) && self.hosts.is_first(rank);
        Course {
            plan: Plan {
                way: if carries { Way::Hosts } else { Way::Opening },
                ..*plan
            },
            peer: self.hosts.of(rank),
            alone: self.hosts.is_alone(rank),
        }
    }

    /// Whether memory comes over the link with a member.
    fn is_beside(&self, rank: usize) -> bool {
        self.hosts.are_together(self.rank, rank)
    }

    fn is_connected(&self, inner: &Inner) -> bool {
        let ends = inner.ends.iter().enumerate();
        let ready = ends.filter(|(rank, end)| {
            let link = end.link();
            link.is_some_and(|link| link.area.is_some() || !self.is_beside(*rank))
        });
        ready.count() == inner.ends.len().saturating_sub(1)
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.cancelled.load(Ordering::SeqCst) {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Move what can be moved on all links.
    fn move_all<T: Element>(
        &self,
        inner: &mut Inner,
        job: &mut Job<'_, T>,
        connected: bool,
    ) -> std::result::Result<Moved, Stop> {
        // In two levels nobody says anything before all connections stand.
        let sends = connected || job.plan.way != Way::Hosts;
        let mut moved = Moved {
            more: false,
            finished: true,
        };
        // Members of the own host first: who hangs between two of them has said to its first member that it begins, and that one knows
        // best who is awaited.
        for beside in [true, false] {
            for (rank, end) in inner.ends.iter_mut().enumerate() {
                // The peer's shared memory comes before its first frame.
                let ready = |link: &&mut Link| connected || link.area.is_some() || !beside;
                if self.is_beside(rank) == beside
                    && let Some(link) = end.link_mut().filter(ready)
                {
                    moved.more |= self
                        .pump(link, job, sends)
                        .map_err(|fault| self.blame(rank, fault))?;
                    moved.finished &= link.is_sent() && link.is_received();
                }
            }
        }
        Ok(moved)
    }

    /// Move what can be moved on one link; true if more may be there.
    fn pump<T: Element>(
        &self,
        link: &mut Link,
        job: &mut Job<'_, T>,
        sends: bool,
    ) -> std::result::Result<bool, Fault> {
        loop {
            // A peer that has left may have said why before it closed: whom it lost is the one to accuse.
            if sends {
                job.send(link)
                    .map_err(|fault| link.last_word(self.view).unwrap_or(fault))?;
            }
            match link.receive(&job.operation, job.prefix, job.result, job.ready.reduced)? {
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
    let plan = job.plan;
    let before = job.ready.reduced;
    while job.ready.reduced < plan.blocks
        && inner
            .ends
            .iter()
            .filter_map(End::link)
            .all(|link| link.has_scattered(job.ready.reduced))
    {
        let block = job.ready.reduced;
        let range = plan.range(block, plan.me);
        let own = &job.contribution[range.clone()];
        let parts = inner.ends.iter().map(|end| {
            end.link()
                .map_or(own, |link| bytemuck::cast_slice(link.staged::<T>(block)))
        });
        sum::in_order(&mut job.result[range], parts);
        job.ready.reduced = block.saturating_add(1);
    }
    job.ready.reduced > before
}

/// Sum contributions that came whole.
fn sum_whole<T: Element>(inner: &Inner, job: &mut Job<'_, T>) {
    let own = job.contribution;
    let parts = inner.ends.iter().map(|end| {
        end.link()
            .map_or(own, |link| bytemuck::cast_slice(link.staged::<T>(0)))
    });
    sum::in_order(job.result, parts);
}

/// Return how many bytes a member's beginning has.
fn beginning(trailer: &[f64]) -> usize {
    size_of_val(trailer).saturating_add(PREFIX)
}
