//! One member's progress in the memory of its host, where the host's first member exchanges with other hosts. Copies, sums and counters;
//! connections and waiting are the ring's affair.
//!
//! For each block the others put their contributions in their slots; the first member takes them: it adds them to its own, in the order of ranks,
//! and the sum is its host's contribution. When it has the total, it puts that in its own slots, and the others copy it. As everywhere
//! in shared memory, a slot is used again when the counters of those who read it say that they need it no more.
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
use crate::net::ring::plan::Plan;
use crate::net::ring::sum::{self, Element};
use crate::net::shared::area::{Area, Count, DEPTH, published};
use crate::net::shared::progress::Progress;

/// What another member of this host has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// Put its contributions in its slots and copy totals; `owes`: it could do one of them.
    Contributes { owes: bool },
    /// Exchange with other hosts; `owes`: it could take contributions, which depends on no other host.
    Leads { owes: bool },
}

/// An operation under way.
pub struct Within<'a> {
    plan: Plan,
    /// The ring's count of blocks before this operation.
    base: u64,
    own: &'a Area,
    /// The other members of this host, in the order of ranks.
    mates: Vec<(usize, &'a Area)>,
    leads: bool,
    /// Scattered: taken by the first member, put in slots by the others. Reduced: totals in the first member's slots.
    done: Progress,
}

impl<'a> Within<'a> {
    /// Begin; `mates`: the others by rank, and `leads`: this is the first member, whose rank is lower than all theirs.
    pub fn begin(
        plan: Plan,
        base: u64,
        own: &'a Area,
        mates: Vec<(usize, &'a Area)>,
        leads: bool,
    ) -> Within<'a> {
        Within {
            plan,
            base,
            own,
            mates,
            leads,
            done: Progress::default(),
        }
    }

    /// This member's memory.
    pub fn own(&self) -> &Area {
        self.own
    }

    /// Whether this member exchanges with other hosts.
    pub fn leads(&self) -> bool {
        self.leads
    }

    fn blocks(&self) -> u64 {
        self.plan.blocks as u64
    }

    /// Whether this member has done its part in its host and has everything.
    pub fn is_complete(&self) -> bool {
        self.done.scattered == self.blocks()
            && if self.leads {
                self.done.reduced == self.blocks()
            } else {
                self.done.copied == self.blocks()
            }
    }

    /// Count blocks of this operation over the ring's whole life.
    fn absolutely(&self, block: u64) -> u64 {
        self.base.saturating_add(block)
    }

    /// Return up to which block of this operation those who count this have come: the others, or the first member; below 0 it is 0.
    fn of_mates(&self, what: Count) -> u64 {
        let of = |area: &Area| area.count(what).saturating_sub(self.base);
        self.counting().map(of).min().unwrap_or(u64::MAX)
    }

    /// Whether the slot of a block is free: those who read what was in it say with this counter that they need it no more.
    fn is_free(&self, block: u64, what: Count) -> bool {
        let least = self.counting().map(|area| area.count(what)).min();
        least.is_none_or(|least| self.absolutely(block) < least.saturating_add(DEPTH))
    }

    /// Those whose counters this member goes by: the others of the first member, and the first member of the others.
    fn counting(&self) -> impl Iterator<Item = &'a Area> + '_ {
        let count = if self.leads { usize::MAX } else { 1 };
        self.mates.iter().take(count).map(|(_, area)| *area)
    }

    fn publish(&self, what: Count, blocks: u64) {
        self.own.publish(what, self.absolutely(blocks));
        published();
        self.counting().for_each(Area::wake_if_asleep);
    }

    /// The parts of a block, with their places in memory.
    fn parts(&self, block: u64) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + use<> {
        let plan = self.plan;
        (0..plan.parties).map(move |party| (party, plan.range(block as usize, party)))
    }

    /// As the first member, take all contributions to the next block, if they are there; the sum goes to its place in `result`.
    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    pub fn take<T: Element>(&mut self, contribution: &[T], result: &mut [T]) -> bool {
        let block = self.done.scattered;
        // What the others see of this member tells them whether it could go on: it is that far ahead of its totals. Who is alone on its host
        // depends on nobody for what it sends first.
        let ahead = self.done.reduced.saturating_add(DEPTH);
        if block >= self.blocks().min(self.of_mates(Count::Scattered))
            || (!self.mates.is_empty() && block >= ahead)
        {
            return false;
        }
        for (party, range) in self.parts(block) {
            let own = &contribution[range.clone()];
            let others = self
                .mates
                .iter()
                .map(|(_, area)| area.read(self.absolutely(block), party, own.len()));
            sum::in_order(&mut result[range], std::iter::once(own).chain(others));
        }
        self.done.scattered = block.saturating_add(1);
        self.publish(Count::Scattered, self.done.scattered);
        true
    }

    /// Return how many blocks the first member has taken.
    pub fn taken(&self) -> usize {
        self.done.scattered as usize
    }

    /// As the first member, put the total of the next block in memory; `totals`: so many are in `result`.
    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    pub fn hand_on<T: Element>(&mut self, result: &[T], totals: usize) -> bool {
        let block = self.done.reduced;
        if block >= totals as u64 || !self.is_free(block, Count::Copied) {
            return false;
        }
        if !self.mates.is_empty() {
            for (party, range) in self.parts(block) {
                self.own
                    .write(self.absolutely(block), party, &result[range]);
            }
        }
        self.done.reduced = block.saturating_add(1);
        self.publish(Count::Reduced, self.done.reduced);
        true
    }

    /// As another member, put the contribution to the next block in memory, if there is room.
    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    pub fn scatter<T: Element>(&mut self, contribution: &[T]) -> bool {
        let block = self.done.scattered;
        if block == self.blocks() || !self.is_free(block, Count::Scattered) {
            return false;
        }
        for (party, range) in self.parts(block) {
            self.own
                .write(self.absolutely(block), party, &contribution[range]);
        }
        self.done.scattered = block.saturating_add(1);
        self.publish(Count::Scattered, self.done.scattered);
        true
    }

    /// As another member, copy the total of the next block, if it is there.
    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    pub fn copy<T: Element>(&mut self, result: &mut [T]) -> bool {
        let block = self.done.copied;
        let Some((_, first)) = self.mates.first() else {
            return false;
        };
        if block >= self.blocks().min(self.of_mates(Count::Reduced)) {
            return false;
        }
        for (party, range) in self.parts(block) {
            let part = &mut result[range];
            part.copy_from_slice(first.read(self.absolutely(block), party, part.len()));
        }
        self.done.copied = block.saturating_add(1);
        self.publish(Count::Copied, self.done.copied);
        true
    }

    /// Return what this member waits for from another one of its host, if for anything, and a number that changes when that one moves on.
    pub fn watch(&self, rank: usize) -> Option<(Watched, u64)> {
        let (_, area) = self.mates.iter().find(|(mate, _)| *mate == rank)?;
        let progress = |area| Progress::of(area, self.base, self.blocks());
        let seen = progress(area);
        let watched = if self.leads {
            Watched::Contributes {
                owes: seen.scattered < self.blocks().min(self.done.scattered.saturating_add(DEPTH))
                    || seen.copied < self.done.reduced,
            }
        } else if self.mates.first().map(|(first, _)| *first) == Some(rank) {
            let others = self.mates.iter().skip(1);
            let contributed = others
                .map(|(_, area)| progress(area).scattered)
                .fold(self.done.scattered, u64::min);
            Watched::Leads {
                owes: seen.scattered < contributed.min(seen.reduced.saturating_add(DEPTH)),
            }
        } else {
            return None;
        };
        let moved = area.count(Count::Moved);
        let number = [seen.scattered, seen.reduced, seen.copied, moved];
        Some((watched, number.into_iter().fold(0, u64::wrapping_add)))
    }

    /// Let the others of this host see that this member's connections move on.
    pub fn tell_moved(&self, moved: u64) {
        self.own.publish(Count::Moved, moved);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::net::place::Place;
    use crate::net::ring::hosts::Hosts;
    use crate::net::ring::plan::{PART, Way};

    const MATES: usize = 3;
    const BLOCK: usize = 2 * PART / size_of::<f32>();

    /// Three members of one host beside another host.
    fn plan(elements: usize) -> Plan {
        let places: Vec<Place> = ["a/0", "a/1", "a/2", "b/0"]
            .iter()
            .map(|path| format!("tcp:h:1+unix:/{path}").parse().unwrap())
            .collect();
        let plan = Plan::new(&Hosts::new(&places), 0, elements, size_of::<f32>(), true);
        assert_eq!((plan.way, plan.parties), (Way::Hosts, 2));
        plan
    }

    /// By rank the areas that a member sees: its own, and what the others sent.
    fn areas() -> Vec<Vec<Area>> {
        let own: Vec<Area> = (0..MATES)
            .map(|_| Area::create(MATES + 1).unwrap())
            .collect();
        let sent = |area: &Area| {
            let [file, bell] = area
                .descriptors()
                .map(|sent: BorrowedFd<'_>| sent.try_clone_to_owned().unwrap());
            Area::open(file, bell, MATES + 1).unwrap()
        };
        let seen: Vec<Vec<Area>> = (0..MATES)
            .map(|me| {
                (0..MATES)
                    .filter(|rank| *rank != me)
                    .map(|rank| sent(&own[rank]))
                    .collect()
            })
            .collect();
        let mut all = Vec::new();
        for (rank, (own, mut others)) in own.into_iter().zip(seen).enumerate() {
            others.insert(rank, own);
            all.push(others);
        }
        all
    }

    fn within(plan: Plan, base: u64, areas: &[Area], me: usize) -> Within<'_> {
        let mates = areas
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != me)
            .collect();
        Within::begin(plan, base, &areas[me], mates, me == 0)
    }

    struct Member<'a> {
        within: Within<'a>,
        contribution: Vec<f32>,
        result: Vec<f32>,
        totals: usize,
    }

    impl Member<'_> {
        fn take(&mut self) -> bool {
            self.within.take(&self.contribution, &mut self.result)
        }

        /// Do one thing of this number; true if there was something to do.
        fn act(&mut self, which: usize) -> bool {
            match (self.within.leads(), which) {
                (true, 0) => self.take(),
                (true, 1) => self.within.hand_on(&self.result, self.totals),
                // The other host has nothing to add.
                (true, _) => {
                    let more = self.totals < self.within.taken();
                    self.totals += usize::from(more);
                    more
                }
                (false, 0) => self.within.scatter(&self.contribution),
                (false, _) => self.within.copy(&mut self.result),
            }
        }
    }

    /// Whatever order members act in, all get the sum, and who is said to owe something can do it.
    #[test]
    fn members_of_a_host_meet_in_any_order() {
        for (seed, elements) in [
            (1, BLOCK * 9 + 5),
            (2, BLOCK * 6),
            (3, BLOCK * 5 + 1),
            (4, BLOCK),
        ] {
            let areas = areas();
            let plan = plan(elements);
            let mut base = 0;
            let mut random: u64 = seed;
            for _ in 0..2 {
                let mut members: Vec<Member> = (0..MATES)
                    .map(|me| Member {
                        within: within(plan, base, &areas[me], me),
                        contribution: (0..elements).map(|at| (at % 100 + me) as f32).collect(),
                        result: vec![0.0; elements],
                        totals: 0,
                    })
                    .collect();
                while !members.iter().all(|member| member.within.is_complete()) {
                    random = random
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let (who, which) =
                        ((random >> 33) as usize % MATES, (random >> 40) as usize % 3);
                    let others: Vec<usize> = (0..MATES).filter(|rank| *rank != who).collect();
                    let owes = others.iter().any(|other| {
                        matches!(
                            members[*other].within.watch(who),
                            Some((
                                Watched::Leads { owes: true } | Watched::Contributes { owes: true },
                                _
                            ))
                        )
                    });
                    if owes {
                        let member = &mut members[who];
                        assert!(if who == 0 {
                            member.take()
                        } else {
                            member.act(0) || member.act(1)
                        });
                    } else {
                        members[who].act(which);
                    }
                }
                for member in &members {
                    let sums = (0..elements).map(|at| (3 * (at % 100) + 3) as f32);
                    assert!(member.result.iter().copied().eq(sums));
                }
                base += plan.blocks as u64;
            }
        }
    }

    /// A member of this host that counts what is not so can make sums wrong, as with what it contributes, and nothing else.
    #[test]
    fn no_counter_leads_out_of_memory() {
        let plan = plan(BLOCK * 6 + 1);
        let contribution = vec![1.0_f32; plan.elements];
        let mut result = contribution.clone();
        let lies = [0, 1, 6, 7, 1 << 40, u64::MAX];
        for base in [0, 7, u64::MAX - 3] {
            for (scattered, other) in lies.iter().flat_map(|one| lies.map(|two| (*one, two))) {
                let areas = areas();
                for (rank, of) in areas.iter().enumerate() {
                    of[rank].publish(Count::Scattered, scattered);
                    of[rank].publish(Count::Reduced, other);
                    of[rank].publish(Count::Copied, other);
                    of[rank].publish(Count::Moved, other);
                }
                for (me, seen) in areas.iter().enumerate() {
                    let mut within = within(plan, base, seen, me);
                    for _ in 0..plan.blocks + 2 {
                        if within.leads() {
                            within.take(&contribution, &mut result);
                            within.hand_on(&result, within.taken());
                        } else {
                            within.scatter(&contribution);
                            within.copy(&mut result);
                        }
                        for rank in 0..MATES {
                            within.watch(rank);
                        }
                    }
                }
            }
        }
    }
}
