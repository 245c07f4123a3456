//! The wait of a ring: for bytes, for room, for connections, and for the moment when a silent member is lost.
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::silence::{Awaited, Suspects, patience};
use super::{End, Inner, Job, Ring, Stop};
use crate::net::ring::link::Seen;
use crate::net::ring::sum::Element;
use crate::net::wake::{Interrupt, readable, wait};

impl Ring {
    /// Wait until there is something to do; a member that is overdue meanwhile is silent.
    pub(super) fn wait<T: Element>(
        &self,
        inner: &mut Inner,
        job: &Job<'_, T>,
        connected: bool,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let plan = &job.operation.plan;
        let now = Instant::now();
        let all_begun = inner
            .ends
            .iter()
            .filter_map(End::link)
            .filter(|link| link.has_begun())
            .count()
            == plan.members.saturating_sub(1);
        let mut until: Option<Instant> = None;
        let mut sooner = |at: Instant| until = Some(until.map_or(at, |until| until.min(at)));
        let mut awaited = Vec::new();
        let mut polls = Vec::with_capacity(plan.members.saturating_add(1));
        polls.push(readable(&self.wake));
        if !connected {
            polls.push(readable(&self.inbox.wake));
        }
        for (rank, end) in inner.ends.iter_mut().enumerate() {
            if let End::Up(link) = end {
                let patience = patience(link, plan, job.reduced, all_begun, self.silence);
                // A time begins when bytes moved last, or when the peer became able to move some, however long this member has slept.
                if link.seen.moved != link.moved || link.seen.patience != patience {
                    link.seen = Seen {
                        moved: link.moved,
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
                    flags.set(
                        PollFlags::IN,
                        link.has_place(plan, job.reduced)
                            || (self.is_shared() && link.area.is_none()),
                    );
                    flags.set(PollFlags::OUT, link.is_full());
                    // Where nothing more is awaited the end can still come.
                    flags.set(
                        PollFlags::RDHUP,
                        link.is_received(plan)
                            && !link.gone
                            && (link.area.is_some() || !plan.shared),
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
            if plan.shared {
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
        suspects
            .accused(Instant::now())
            .map_or(Ok(()), |rank| Err(self.silent(rank)))
    }
}
