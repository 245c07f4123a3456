//! An operation of the ring in shared memory: all members on one host.
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{End, Inner, Job, Ring, Stop, check_opening};
use crate::net::error::Error;
use crate::net::ring::plan::Plan;
use crate::net::ring::sum::Element;
use crate::net::shared::area::Area;
use crate::net::shared::progress::{Exchange, Progress};
use crate::net::wake::{Interrupt, readable, wait};

/// How long to look again before sleeping.
const SPIN: Duration = Duration::from_micros(50);
static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Since when peers have made no progress that they could make, and which have closed their connection after their part.
struct Watch {
    since: Vec<Instant>,
    seen: Vec<Progress>,
    guilty: Vec<bool>,
    gone: Vec<bool>,
}

impl Ring {
    /// Go through an operation in shared memory, once all connections stand.
    pub(super) fn run_shared<T: Element>(
        &self,
        inner: &mut Inner,
        job: &mut Job<'_, T>,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let plan = job.plan;
        let Inner {
            ends,
            area,
            blocks: base,
            ..
        } = inner;
        // Taken out for the operation, so that links can be moved on while their memory is read.
        let areas: Vec<Option<Area>> = ends
            .iter_mut()
            .map(|end| end.link_mut().and_then(|link| link.area.take()))
            .collect();
        let Some(own) = area.as_ref() else {
            return Err(Error::BadArgument("the ring has no shared memory".into()).into());
        };
        let peers = areas.iter().map(Option::as_ref).collect();
        let mut exchange = Exchange::begin(plan, *base, own, peers, job.operation.step, job.prefix);
        let outcome = self.exchange(ends, own, &mut exchange, job, interrupt);
        drop(exchange);
        own.set_asleep(false);
        *base = base.saturating_add(plan.blocks as u64);
        for (end, area) in ends.iter_mut().zip(areas) {
            if let Some(link) = end.link_mut() {
                link.area = area;
            }
        }
        outcome
    }

    fn exchange<T: Element>(
        &self,
        ends: &mut [End],
        own: &Area,
        exchange: &mut Exchange<'_>,
        job: &mut Job<'_, T>,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let plan = job.plan;
        let mut opened = false;
        let mut watch = Watch {
            since: vec![Instant::now(); plan.parties],
            seen: exchange.everybody(),
            guilty: vec![false; plan.parties],
            gone: vec![false; plan.parties],
        };
        loop {
            self.check_cancelled()?;
            if !opened {
                opened = self.open(ends, exchange, job)?;
            }
            if exchange.advance(job.contribution, job.result, opened) {
                continue;
            }
            if opened && exchange.is_complete() {
                return Ok(());
            }
            if self.spin(ends, exchange, job, &mut opened)? {
                continue;
            }
            own.set_asleep(true);
            // A look after the flag is up: what was published before it would ring no bell.
            opened = opened || self.open(ends, exchange, job)?;
            if exchange.advance(job.contribution, job.result, opened)
                || (opened && exchange.is_complete())
            {
                own.set_asleep(false);
                continue;
            }
            let outcome = self.sleep(ends, own, exchange, &plan, &mut watch, interrupt);
            own.set_asleep(false);
            own.bell().silence();
            outcome?;
        }
    }

    /// Take over how the others begin, and compare it with this member's beginning; true when all have begun.
    fn open<T: Element>(
        &self,
        ends: &mut [End],
        exchange: &mut Exchange<'_>,
        job: &Job<'_, T>,
    ) -> std::result::Result<bool, Stop> {
        exchange
            .open(|rank, step, prefix| {
                check_opening(job.operation.step, job.prefix, step, prefix)
                    .map_err(|fault| (rank, fault))?;
                if let Some(link) = ends.get_mut(rank).and_then(End::link_mut) {
                    link.set_prefix(prefix);
                }
                Ok(())
            })
            .map_err(|(rank, fault)| self.blame(rank, fault))
    }

    /// Look again for a moment before sleeping, where every member can have a core: to be woken costs more than most waits.
    fn spin<T: Element>(
        &self,
        ends: &mut [End],
        exchange: &mut Exchange<'_>,
        job: &mut Job<'_, T>,
        opened: &mut bool,
    ) -> std::result::Result<bool, Stop> {
        if self.peers.len() > *CORES {
            return Ok(false);
        }
        let end = Instant::now() + SPIN;
        while Instant::now() < end {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            *opened = *opened || self.open(ends, exchange, job)?;
            if exchange.advance(job.contribution, job.result, *opened) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "ranks are this ring's own, of which each has an end and a place in all that is watched"
    )]
    fn sleep(
        &self,
        ends: &mut [End],
        own: &Area,
        exchange: &Exchange<'_>,
        plan: &Plan,
        watch: &mut Watch,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let now = Instant::now();
        let blocks = plan.blocks as u64;
        let everybody = exchange.everybody();
        let mut overdue: Option<(Instant, usize)> = None;
        for (rank, end) in ends.iter().enumerate() {
            if end.link().is_none() {
                continue;
            }
            let others: Vec<_> = (0..plan.parties)
                .filter(|other| *other != rank)
                .map(|other| everybody[other])
                .collect();
            // Who waits for others, or has not begun, is never silent.
            let guilty = exchange.has_opened(rank) && everybody[rank].can_go_on(&others, blocks);
            // Who could not go on until now has just become able to: its time begins here, however long this member has slept.
            if !guilty || !watch.guilty[rank] || watch.seen[rank] != everybody[rank] {
                watch.since[rank] = now;
            }
            watch.guilty[rank] = guilty;
            watch.seen[rank] = everybody[rank];
            if guilty {
                let at = (watch.since[rank] + self.silence, rank);
                overdue = Some(overdue.map_or(at, |other| other.min(at)));
            }
        }
        let mut polls = vec![readable(&self.wake), readable(own.bell())];
        let mut ranks = Vec::with_capacity(plan.parties);
        for (rank, end) in ends.iter().enumerate() {
            if let Some(link) = end.link().filter(|_| !watch.gone[rank]) {
                let mut flags = PollFlags::RDHUP;
                // Who has begun may already say something of its next operation there.
                flags.set(PollFlags::IN, !exchange.has_opened(rank));
                polls.push(PollFd::new(&link.stream, flags));
                ranks.push(rank);
            }
        }
        let limit = overdue.map(|(at, _)| at.saturating_duration_since(now));
        let ready = wait(&mut polls, limit, interrupt)?;
        let told: Vec<usize> = ranks
            .iter()
            .zip(&polls[2..])
            .filter(|(_, poll)| !poll.revents().is_empty())
            .map(|(rank, _)| *rank)
            .collect();
        for rank in told {
            let Some(link) = ends[rank].link() else {
                continue;
            };
            if exchange.has_begun(rank) && !exchange.has_opened(rank) {
                // It began between our last look and its next word, which is not of this operation.
                continue;
            }
            if exchange.everybody()[rank].is_complete(blocks) {
                // It has done its part, and its memory stays.
                watch.gone[rank] = true;
            } else {
                return Err(self.blame(rank, link.farewell(self.view)));
            }
        }
        match overdue {
            Some((at, rank))
                if ready == 0
                    && Instant::now() >= at
                    && exchange.everybody()[rank] == watch.seen[rank] =>
            {
                Err(self.silent(rank))
            }
            _ => Ok(()),
        }
    }
}
