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
use std::collections::{HashMap, VecDeque};

use crate::ps::protocol::stamps::Stamp;
use crate::ps::server::slot::UNSEEN;

/// Chunks of which is remembered with which versions their rows came: more than a worker has under way.
const CHUNKS: usize = 16;

/// The versions of slots with which rows came.
#[derive(Debug, Default)]
pub(super) struct Seen {
    chunks: VecDeque<(Stamp, HashMap<u32, u64>)>,
    /// Of slots, whatever it was for.
    last: HashMap<u32, u64>,
}

impl Seen {
    pub(super) fn note(&mut self, chunk: Option<Stamp>, slot: u32, version: u64) {
        self.last.insert(slot, version);
        let Some(chunk) = chunk else {
            return;
        };
        if !self.chunks.iter().any(|(of, _)| *of == chunk) {
            if self.chunks.len() == CHUNKS {
                self.chunks.pop_front();
            }
            self.chunks.push_back((chunk, HashMap::new()));
        }
        let found = self.chunks.iter_mut().rfind(|(of, _)| *of == chunk);
        if let Some((_, versions)) = found {
            versions.insert(slot, version);
        }
    }

    /// Return the version of which a chunk's gradient for a slot is: that of its rows, or of what was pulled last.
    pub(super) fn version(&self, chunk: Option<Stamp>, slot: u32) -> u64 {
        let Some(chunk) = chunk else {
            return UNSEEN;
        };
        let own = self.chunks.iter().rfind(|(of, _)| *of == chunk);
        let version = own.and_then(|(_, versions)| versions.get(&slot));
        version.or(self.last.get(&slot)).copied().unwrap_or(UNSEEN)
    }
}
