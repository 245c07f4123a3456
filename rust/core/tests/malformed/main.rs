//! Malformed messages to parameter servers: read by every reader without a panic or much memory, and sent to a server that continues.
//!
//! The files of `corpus` are what fuzzing (`rust/fuzz`) and these tests have found worth keeping: a byte for the reader, then what it reads.
//! Those whose name begins with `refused` are no messages.
mod damage;
mod messages;
mod peers;
#[path = "../readers/mod.rs"]
mod readers;
mod reading;
mod streams;
mod workers;

use elasticdl_core::ps::protocol::placement::Entry;

const TOKEN: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Of the job of the servers that are sent something.
const TASKS: u64 = 2000;

const ENTRY: Entry = Entry {
    term: 1,
    primary_epoch: 1,
    primary: 0,
    backup: None,
    restored: 0,
};
