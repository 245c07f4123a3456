//! The wait of a ring: for bytes, for room, for connections, and for the moment when a silent member is lost.
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::silence::{Awaited, Suspects, patience, patience_within};
use super::{End, Inner, Job, Ring, Stop};
use crate::net::ring::link::Seen;
use crate::net::ring::plan::Way;
use crate::net::ring::sum::Element;
use crate::net::shared::within::Within;
use crate::net::wake::{Interrupt, readable, wait};

impl Ring {
    /// Wait until there is something to do; a member that is overdue meanwhile is silent. `within`: the memory of this host, if the operation
    /// has come to it.
    pub(super) fn wait<T: Element>(
        &self,
        inner: &mut Inner,
        job: &Job<'_, T>,
        connected: bool,
        within: Option<&Within<'_>>,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let reduced = job.ready.reduced;
        let now = Instant::now();
        let all_begun = inner
            .ends
            .iter()
            .filter_map(End::link)
            .filter(|link| link.has_begun())
            .count()
            == self.peers.len().saturating_sub(1);
        let mut until: Option<Instant> = None;
        let mut sooner = |at: Instant| until = Some(until.map_or(at, |until| until.min(at)));
        let mut awaited = Vec::new();
        let mut polls = Vec::with_capacity(self.peers.len().saturating_add(2));
        polls.push(readable(&self.wake));
        if !connected {
            polls.push(readable(&self.inbox.wake));
        }
        polls.extend(within.map(|within| readable(within.own().bell())));
        for (rank, end) in inner.ends.iter_mut().enumerate() {
            if let End::Up(link) = end {
                let watched = within.and_then(|within| within.watch(rank));
                let (moved, patience) = match &watched {
                    Some((watched, moved)) => (
                        link.moved.wrapping_add(*moved),
                        patience_within(watched, link, all_begun, self.silence),
                    ),
                    None => (link.moved, patience(link, reduced, all_begun, self.silence)),
                };
                // A time begins when bytes moved last, or when the peer became able to move some, however long this member has slept.
                if link.seen.moved != moved || link.seen.patience != patience {
                    link.seen = Seen {
                        moved,
                        patience,
                        since: now,
                    };
                }
                if let Some(patience) = patience {
                    awaited.push(Awaited {
                        rank,
                        since: link.seen.since,
                        patience,
                        received: link.received(),
                    });
                }
            }
        }
        let suspects = Suspects::new(awaited, self.silence);
        if let Some(at) = suspects.first() {
            sooner(at);
        }
        let mut idle: Vec<(usize, usize)> = Vec::new();
        for (rank, end) in inner.ends.iter().enumerate() {
            match end {
                End::Absent => {}
                End::Dialing(dialer) => {
                    let (descriptor, at) = dialer.interest();
                    polls.extend(descriptor);
                    sooner(at);
                }
                End::Up(link) => {
                    let mut flags = PollFlags::empty();
                    let lacks_memory = !connected && link.area.is_none() && self.is_beside(rank);
                    flags.set(PollFlags::IN, link.has_place(reduced) || lacks_memory);
                    flags.set(PollFlags::OUT, link.is_full());
                    // Where nothing more is awaited the end can still come.
                    flags.set(
                        PollFlags::RDHUP,
                        link.is_received() && !link.gone && !lacks_memory,
                    );
                    if !flags.is_empty() {
                        if flags.contains(PollFlags::RDHUP) {
                            idle.push((polls.len(), rank));
                        }
                        polls.push(PollFd::new(&link.stream, flags));
                    }
                }
            }
        }
        let limit = until.map(|until| until.saturating_duration_since(now));
        let ready = wait(&mut polls, limit, interrupt)?;
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let ended: Vec<usize> = idle
            .iter()
            .filter(|(at, _)| {
                let poll = polls.get(*at);
                poll.is_some_and(|poll| poll.revents().intersects(ended))
            })
            .map(|(_, rank)| *rank)
            .collect();
        for rank in ended {
            let Some(link) = inner.ends.get_mut(rank).and_then(End::link_mut) else {
                continue;
            };
            if job.plan.way == Way::Memory {
                // In shared memory nobody has anything to say on a connection before all have begun.
                return Err(self.blame(rank, link.farewell(self.view)));
            }
            link.look(self.view)
                .map_err(|fault| self.blame(rank, fault))?;
        }
        if ready > 0 {
            return Ok(());
        }
        // Nothing came, also not while this process was itself stopped: a member that is overdue is silent.
        let Some(rank) = suspects.accused(Instant::now()) else {
            return Ok(());
        };
        // What moves in memory wakes nobody who waits for something else.
        let link = inner.ends.get(rank).and_then(End::link);
        let moved = within.and_then(|within| within.watch(rank));
        if let (Some(link), Some((_, moved))) = (link, moved)
            && link.seen.moved != link.moved.wrapping_add(moved)
        {
            return Ok(());
        }
        Err(self.silent(rank))
    }
}
