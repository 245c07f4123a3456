//! An operation of the ring in two levels: the members of each host meet in its memory, and the hosts' first members over connections.
//!
//! Each begins once all its connections stand: so a member that has heard how all others begin knows that nobody waits for a connection.
use super::{End, Inner, Job, Ring, Stop};
use crate::net::error::Error;
use crate::net::ring::link::Link;
use crate::net::ring::sum::{self, Element};
use crate::net::shared::area::Area;
use crate::net::shared::within::Within;
use crate::net::wake::Interrupt;

impl Ring {
    /// Go through an operation in two levels.
    pub(super) fn run_levels<T: Element>(
        &self,
        inner: &mut Inner,
        job: &mut Job<'_, T>,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        let mut connected = self.is_connected(inner);
        while !connected {
            self.check_cancelled()?;
            connected = self.connect::<T>(inner, job)?;
            let moved = self.move_all(inner, job, connected)?;
            if !connected && !moved.more {
                self.wait(inner, job, false, None, interrupt)?;
            }
        }
        // Taken out for the operation, so that links can be moved on while their memory is read.
        let mut areas: Vec<Option<Area>> = inner
            .ends
            .iter_mut()
            .map(|end| end.link_mut().and_then(|link| link.area.take()))
            .collect();
        let Some(own) = inner.area.take() else {
            return Err(Error::BadArgument("the ring has no shared memory".into()).into());
        };
        let mates = areas.iter().enumerate();
        let mates = mates
            .filter_map(|(rank, area)| Some((rank, area.as_ref()?)))
            .collect();
        let leads = self.hosts.is_first(self.rank);
        let mut within = Within::begin(job.plan, inner.blocks, &own, mates, leads);
        let outcome = self.meet_all(inner, &mut within, job, interrupt);
        drop(within);
        own.set_asleep(false);
        inner.area = Some(own);
        inner.blocks = inner.blocks.saturating_add(job.plan.blocks as u64);
        for (end, area) in inner.ends.iter_mut().zip(&mut areas) {
            if let Some(link) = end.link_mut() {
                link.area = area.take();
            }
        }
        outcome
    }

    fn meet_all<T: Element>(
        &self,
        inner: &mut Inner,
        within: &mut Within<'_>,
        job: &mut Job<'_, T>,
        interrupt: Interrupt<'_>,
    ) -> std::result::Result<(), Stop> {
        loop {
            self.check_cancelled()?;
            let moved = self.move_all(inner, job, true)?;
            if self.meet(inner, within, job) || moved.more {
                continue;
            }
            if moved.finished && within.is_complete() {
                return Ok(());
            }
            let links = inner.ends.iter().filter_map(End::link);
            within.tell_moved(links.fold(0, |moved, link| moved.wrapping_add(link.moved)));
            within.own().set_asleep(true);
            // A look after the flag is up: what was published before it would ring no bell.
            let outcome = if self.meet(inner, within, job) {
                Ok(())
            } else {
                self.wait(inner, job, true, Some(within), interrupt)
            };
            within.own().set_asleep(false);
            within.own().bell().silence();
            outcome?;
        }
    }

    /// Do what can be done in memory and with what has come; true if something was done.
    fn meet<T: Element>(
        &self,
        inner: &Inner,
        within: &mut Within<'_>,
        job: &mut Job<'_, T>,
    ) -> bool {
        let mates = inner.ends.iter().enumerate();
        let opened = mates
            .filter(|(rank, _)| self.hosts.are_together(self.rank, *rank))
            .filter_map(|(_, end)| end.link())
            .all(Link::has_opened);
        if !within.leads() {
            let scattered = within.scatter(job.contribution);
            return opened && within.copy(job.result) || scattered;
        }
        let took = opened && within.take(job.contribution, job.result);
        job.ready.taken = within.taken();
        let summed = sum_hosts(inner, job);
        let carrying = inner.ends.iter().filter_map(End::link);
        let totals = carrying
            .filter(|link| link.carries())
            .map(Link::gathered)
            .fold(job.ready.reduced, usize::min);
        within.hand_on(job.result, totals) || took || summed
    }
}

/// Add what other hosts contribute to this host's part of each block to its own sum, where all of it is there; true if there was one.
#[allow(
    clippy::indexing_slicing,
    reason = "ranges are of this member's own plan, which is of this many elements"
)]
fn sum_hosts<T: Element>(inner: &Inner, job: &mut Job<'_, T>) -> bool {
    let before = job.ready.reduced;
    let others = || {
        let links = inner.ends.iter().filter_map(End::link);
        links.filter(|link| link.carries())
    };
    while job.ready.reduced < job.ready.taken
        && others().all(|link| link.has_scattered(job.ready.reduced))
    {
        let block = job.ready.reduced;
        let part = &mut job.result[job.plan.range(block, job.plan.me)];
        for link in others() {
            sum::accumulate(part, bytemuck::cast_slice(link.staged::<T>(block)));
        }
        job.ready.reduced = block.saturating_add(1);
    }
    job.ready.reduced > before
}
