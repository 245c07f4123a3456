//! With which versions of slots rows came, so that a chunk's gradients can say of which weights they are.
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
use std::collections::VecDeque;

use crate::ps::protocol::stamps::Stamp;
use crate::ps::server::slot::UNSEEN;

/// Chunks of which is remembered with which versions their rows came: more than a worker has under way.
const CHUNKS: usize = 16;

/// The versions of slots with which rows came, by slot; `UNSEEN` where none did.
#[derive(Debug, Default)]
pub(super) struct Seen {
    chunks: VecDeque<(Stamp, Vec<u64>)>,
    /// Whatever it was for.
    last: Vec<u64>,
}

impl Seen {
    pub(super) fn note(&mut self, chunk: Option<Stamp>, slot: u32, version: u64) {
        put(&mut self.last, slot, version);
        let Some(chunk) = chunk else {
            return;
        };
        if let Some((_, versions)) = self.chunks.iter_mut().rfind(|(of, _)| *of == chunk) {
            return put(versions, slot, version);
        }
        if self.chunks.len() == CHUNKS {
            self.chunks.pop_front();
        }
        let mut versions = Vec::with_capacity(self.last.len());
        put(&mut versions, slot, version);
        self.chunks.push_back((chunk, versions));
    }

    /// Return the version of which a chunk's gradient for a slot is: that of its rows, or of what was pulled last.
    pub(super) fn version(&self, chunk: Option<Stamp>, slot: u32) -> u64 {
        let Some(chunk) = chunk else {
            return UNSEEN;
        };
        let own = self.chunks.iter().rfind(|(of, _)| *of == chunk);
        let of_slot = |versions: &Vec<u64>| versions.get(slot as usize).copied().unwrap_or(UNSEEN);
        let version = own.map_or(UNSEEN, |(_, versions)| of_slot(versions));
        if version == UNSEEN {
            of_slot(&self.last)
        } else {
            version
        }
    }
}

fn put(versions: &mut Vec<u64>, slot: u32, version: u64) {
    let slot = slot as usize;
    if versions.len() <= slot {
        versions.resize(slot.saturating_add(1), UNSEEN);
    }
    if let Some(place) = versions.get_mut(slot) {
        *place = version;
    }
}
