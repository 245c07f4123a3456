//! One member's progress in an operation whose bytes go through shared memory. Copies, sums and counters; waiting is the ring's affair.
//!
//! First each writes how it begins (step, sizes, trailer), which is compared before a byte is believed. Then, for each block: all members put their contributions to the others' parts in their slots (scatter), each sums its part straight from
//! the others' slots (reduce) and puts the sum in a slot, and all copy the others' sums (gather). A slot is used again when the counters
//! of all peers say that they need it no more. Since every member sees everybody's counters, it also sees who could go on and does not.
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
use crate::net::ring::plan::{Piece, Plan};
use crate::net::ring::sum::{self, Element};
use crate::net::shared::area::{Area, Count, DEPTH, published};

/// Counters of one member, from the operation's first block on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    pub scattered: u64,
    pub reduced: u64,
    pub copied: u64,
}

impl Progress {
    /// Read a member's counters.
    pub fn of(area: &Area, base: u64, blocks: u64) -> Progress {
        let count = |what| area.count(what).saturating_sub(base).min(blocks);
        Progress {
            scattered: count(Count::Scattered),
            reduced: count(Count::Reduced),
            copied: count(Count::Copied),
        }
    }

    /// Whether a member with these counters could go on, given all others'.
    pub fn can_go_on(&self, others: &[Progress], blocks: u64) -> bool {
        let least = |count: fn(&Progress) -> u64| others.iter().map(count).min().unwrap_or(blocks);
        let scatter = self.scattered < blocks
            && self.scattered < least(|other| other.reduced).saturating_add(DEPTH);
        let reduce = self.reduced < least(|other| other.scattered)
            && self.reduced < least(|other| other.copied).saturating_add(DEPTH);
        let copy = self.copied < least(|other| other.reduced);
        scatter || reduce || copy
    }

    /// Whether nothing is left to do.
    pub fn is_complete(&self, blocks: u64) -> bool {
        self.scattered == blocks && self.reduced == blocks && self.copied == blocks
    }
}

/// An operation under way.
pub struct Exchange<'a> {
    plan: Plan,
    /// The ring's count of blocks before this operation.
    base: u64,
    own: &'a Area,
    /// By rank; this member's entry is `None`.
    peers: Vec<Option<&'a Area>>,
    done: Progress,
    /// Per rank: blocks whose sum was copied.
    copied: Vec<u64>,
    /// Number of this operation.
    number: u64,
    /// Per rank: its beginning was read.
    opened: Vec<bool>,
}

impl<'a> Exchange<'a> {
    /// Begin: `prefix` is what the others get of this member beside its contribution.
    pub fn begin(
        plan: Plan,
        base: u64,
        own: &'a Area,
        peers: Vec<Option<&'a Area>>,
        step: u64,
        prefix: &[u8],
    ) -> Exchange<'a> {
        let number = own.count(Count::Opened).saturating_add(1);
        let (copied, opened) = (
            vec![0; peers.len()],
            peers.iter().map(Option::is_none).collect(),
        );
        let exchange = Exchange {
            plan,
            base,
            own,
            peers,
            done: Progress::default(),
            copied,
            number,
            opened,
        };
        own.write_opening(step, prefix);
        own.publish(Count::Opened, number);
        published();
        exchange
            .peers
            .iter()
            .flatten()
            .for_each(|area| area.wake_if_asleep());
        exchange
    }

    /// Whether a peer's beginning was read.
    pub fn has_opened(&self, rank: usize) -> bool {
        self.opened.get(rank).is_some_and(|opened| *opened)
    }

    /// Whether a peer has begun, read or not.
    pub fn has_begun(&self, rank: usize) -> bool {
        let peer = self.peers.get(rank).copied().flatten();
        peer.is_none_or(|area| area.count(Count::Opened) >= self.number)
    }

    /// Read the beginnings that are new; `check` gets rank, step and prefix of each. True when all have been read.
    pub fn open<E>(
        &mut self,
        mut check: impl FnMut(usize, u64, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let peers = self.peers.iter().zip(&mut self.opened);
        for (rank, (peer, opened)) in peers.enumerate() {
            if let Some(area) = peer
                && !*opened
                && area.count(Count::Opened) >= self.number
            {
                let (step, prefix) = area.read_opening();
                check(rank, step, &prefix)?;
                *opened = true;
            }
        }
        Ok(self.opened.iter().all(|opened| *opened))
    }

    fn blocks(&self) -> u64 {
        self.plan.blocks as u64
    }

    /// Whether this member has done its part and has everything.
    pub fn is_complete(&self) -> bool {
        self.done.is_complete(self.blocks())
    }

    fn least(&self, what: Count) -> u64 {
        let of = |area: &Area| area.count(what).saturating_sub(self.base);
        self.peers
            .iter()
            .flatten()
            .map(|area| of(area))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Count blocks of this operation over the ring's whole life.
    fn absolutely(&self, blocks: u64) -> u64 {
        self.base.saturating_add(blocks)
    }

    /// Whether the slot of a block is free: all peers need what was in it no more, as they say with this counter.
    fn is_free(&self, block: u64, what: Count) -> bool {
        self.absolutely(block) < self.absolute(what).saturating_add(DEPTH)
    }

    fn publish(&self, what: Count, blocks: u64) {
        self.own.publish(what, self.absolutely(blocks));
        published();
        self.peers
            .iter()
            .flatten()
            .for_each(|area| area.wake_if_asleep());
    }

    /// Do what can be done now; `opened`: all members have begun the operation, with the same sizes. True if something was done.
    pub fn advance<T: Element>(
        &mut self,
        contribution: &[T],
        result: &mut [T],
        opened: bool,
    ) -> bool {
        let scattered = self.scatter(contribution);
        if !opened {
            return scattered;
        }
        let reduced = self.reduce(contribution, result);
        self.copy(result) || reduced || scattered
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    fn scatter<T: Element>(&mut self, contribution: &[T]) -> bool {
        let block = self.done.scattered;
        // The slot is free once all peers have summed the block that was in it.
        if block == self.blocks() || !self.is_free(block, Count::Reduced) {
            return false;
        }
        for rank in (0..self.plan.parties).filter(|rank| *rank != self.plan.me) {
            self.own.write(
                self.absolutely(block),
                rank,
                &contribution[self
                    .plan
                    .piece(Piece::Scatter(block as usize), self.plan.me, rank)],
            );
        }
        self.done.scattered = block.saturating_add(1);
        self.publish(Count::Scattered, self.done.scattered);
        true
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    fn reduce<T: Element>(&mut self, contribution: &[T], result: &mut [T]) -> bool {
        let block = self.done.reduced;
        if block >= self.least(Count::Scattered).min(self.blocks())
            || !self.is_free(block, Count::Copied)
        {
            return false;
        }
        let range = self.plan.range(block as usize, self.plan.me);
        let own = &contribution[range.clone()];
        let count = own.len();
        let parts = self.peers.iter().map(|peer| {
            peer.map_or(own, |area| {
                area.read(self.absolutely(block), self.plan.me, count)
            })
        });
        let part = &mut result[range];
        sum::in_order(part, parts);
        self.own
            .write(self.absolutely(block), self.plan.parties, part);
        self.done.reduced = block.saturating_add(1);
        self.publish(Count::Reduced, self.done.reduced);
        true
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    fn copy<T: Element>(&mut self, result: &mut [T]) -> bool {
        let mut any = false;
        let base = self.base;
        let peers = self.peers.iter().zip(&mut self.copied);
        for (rank, (area, copied)) in peers.enumerate() {
            let Some(area) = area else { continue };
            let ready = area
                .count(Count::Reduced)
                .saturating_sub(base)
                .min(self.plan.blocks as u64);
            while *copied < ready {
                let block = *copied;
                let part = &mut result[self.plan.range(block as usize, rank)];
                part.copy_from_slice(area.read(
                    base.saturating_add(block),
                    self.plan.parties,
                    part.len(),
                ));
                *copied = block.saturating_add(1);
                any = true;
            }
        }
        let of_peers = self.copied.iter().enumerate();
        let least = of_peers
            .filter(|(rank, _)| *rank != self.plan.me)
            .map(|(_, copied)| *copied)
            .min()
            .unwrap_or(0);
        if least > self.done.copied {
            self.done.copied = least;
            self.publish(Count::Copied, least);
        }
        any
    }

    // Counted over the ring's whole life: a peer that is still in an earlier operation holds slots of that.
    fn absolute(&self, what: Count) -> u64 {
        self.peers
            .iter()
            .flatten()
            .map(|area| area.count(what))
            .min()
            .unwrap_or(u64::MAX - DEPTH)
    }

    /// Return the progress of all members by rank, as this one sees it.
    pub fn everybody(&self) -> Vec<Progress> {
        self.peers
            .iter()
            .map(|peer| {
                peer.map_or(self.done, |area| {
                    Progress::of(area, self.base, self.blocks())
                })
            })
            .collect()
    }
}
