//! Which servers hold a slot, in the words of the master's journal.
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
use crate::net::sink::Sink;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::words::Reader;

/// A server's number: given at registration, never again.
pub type Server = u64;

/// A slot's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Counts the entries of this slot, from 1.
    pub term: u64,
    /// The term in which this primary took over.
    pub primary_epoch: u64,
    pub primary: Server,
    pub backup: Option<Server>,
    /// The roll-back by which the primary has restored the slot from a snapshot, 0 if it did not.
    pub restored: u64,
}

/// Words of an entry.
pub const ENTRY: usize = 5;
const NOBODY: u64 = u64::MAX;

impl Entry {
    /// Whether a server is primary or backup.
    pub fn names(&self, server: Server) -> bool {
        self.primary == server || self.backup == Some(server)
    }

    /// Append it: term, primary epoch, primary, backup (all bits set for none), restored.
    pub fn write(&self, words: &mut impl Sink) {
        words.extend_from_slice(&[
            self.term,
            self.primary_epoch,
            self.primary,
            self.backup.unwrap_or(NOBODY),
            self.restored,
        ]);
    }

    /// Read what `write` wrote.
    pub fn read(reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
        let [term, primary_epoch, primary, backup, restored] = *reader.array::<ENTRY>()?;
        Ok(Entry {
            term,
            primary_epoch,
            primary,
            backup: (backup != NOBODY).then_some(backup),
            restored,
        })
    }
}
