//! Memory through which two processes of one host pass large messages: each end writes an area of its own, which the other maps.
//!
//! As with a ring's areas, the memory is an anonymous file whose descriptor goes over the authenticated Unix socket, sealed so that nobody can
//! cut it or write to it but its owner. The socket says where a message lies, so messages keep their order, and one that finds no room
//! goes through the socket whole: nobody waits for memory.
//!
//! Positions count words over the life of the connection. Each end publishes in its own area how far it has read the other's; what it has
//! read may be written over.
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
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::net::frame::Malformed;
use crate::net::shared::area::SEALED;

/// Words of messages that an area holds: 8 MiB. The kernel gives memory for what was used of it.
pub const ROOM: u64 = 1 << 20;
/// Bytes before the messages; at their beginning is how far the owner has read the other's area.
const HEAD: usize = 4096;
const SIZE: usize = HEAD + 8 * ROOM as usize;

/// The area that this end writes.
#[derive(Debug)]
pub struct Outbox {
    map: MmapRaw,
    /// Where the next message begins.
    end: u64,
    /// All before is free, whatever the other end has said: nothing was written there.
    free: u64,
}

impl Outbox {
    /// Make one, and the descriptor that the other end needs.
    pub fn create() -> io::Result<(Outbox, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("elasticdl-messages", flags)?;
        rustix::fs::ftruncate(&file, SIZE as u64)?;
        let map = MmapOptions::new().len(SIZE).map_raw(&file)?;
        // The mapping above stays the only one that can be written to.
        rustix::fs::fcntl_add_seals(&file, SEALED | SealFlags::SEAL)?;
        let outbox = Outbox {
            map,
            end: 0,
            free: 0,
        };
        Ok((outbox, file))
    }

    /// Copy a message to where there is room and return its position, or nothing if there is none; `read`: so far the other end has read.
    pub fn put(&mut self, words: &[u64], read: u64) -> Option<u64> {
        let (position, place) = self.place(words.len(), read)?;
        place.copy_from_slice(words);
        self.keep(position, words.len());
        Some(position)
    }

    /// Return where a message of so many words has room, and its position, or nothing if there is none; `read` as above.
    pub fn place(&mut self, length: usize, read: u64) -> Option<(u64, &mut [u64])> {
        let (words, length) = (length, length as u64);
        // Who says more than was written gets no more messages in this way.
        let free = self.free.max(Some(read).filter(|read| *read <= self.end)?);
        if free == self.end {
            // Nothing waits: memory that has served lately is near, and no more of it is taken than needed.
            self.end = self.end.checked_next_multiple_of(ROOM)?;
            self.free = self.end;
        }
        let free = free.max(self.free);
        let mut begin = self.end;
        if begin.checked_rem(ROOM)?.checked_add(length)? > ROOM {
            begin = begin.checked_next_multiple_of(ROOM)?;
        }
        let end = begin.checked_add(length)?;
        if end.checked_sub(free)? > ROOM {
            return None;
        }
        let at = begin.checked_rem(ROOM)?.checked_mul(8)? as usize;
        // SAFETY: the place and the message's length lie inside the room, as has been checked, behind the head; it is aligned, any bits are a
        // u64, and the mapping is this end's own, to which nobody else writes, borrowed as long as the place. The other end, which has said that
        // it has read all that was there, copies what it reads there whenever it likes, and looks at nothing but its copy.
        let place = unsafe {
            let to = self.map.as_mut_ptr().add(HEAD).add(at).cast::<u64>();
            std::slice::from_raw_parts_mut(to, words)
        };
        Some((begin, place))
    }

    /// Take note that so many words of a message have been written to the place at this position.
    pub fn keep(&mut self, position: u64, length: usize) {
        self.end = position.saturating_add(length as u64);
    }

    /// Let the other end know how far its area has been read.
    pub fn publish(&self, read: u64) {
        cell(&self.map).store(read, Ordering::Release);
    }
}

/// The area that the other end writes.
#[derive(Debug)]
pub struct Inbox {
    map: MmapRaw,
}

impl Inbox {
    /// Map what the other end sent. `InvalidData`: it can be cut or written to by others, or has another size.
    pub fn open(file: OwnedFd) -> io::Result<Inbox> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALED);
        if !sealed || rustix::fs::fstat(&file)?.st_size != SIZE as i64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the other end's shared memory has another size, or can be cut or written to by others",
            ));
        }
        let map = MmapOptions::new().len(SIZE).map_raw_read_only(&file)?;
        Ok(Inbox { map })
    }

    /// Return how far the other end says that it has read this end's area.
    pub fn read(&self) -> u64 {
        cell(&self.map).load(Ordering::Acquire)
    }

    /// Copy a message of so many words into `words`, whose content is replaced, and return the position behind it.
    ///
    /// It is copied once and only the copy is looked at: the other end could change what lies there at any time.
    pub fn take(
        &self,
        position: u64,
        length: usize,
        words: &mut Vec<u64>,
    ) -> Result<u64, Malformed> {
        let at = position.checked_rem(ROOM).unwrap_or(0);
        let end = at.checked_add(length as u64).filter(|end| *end <= ROOM);
        let behind = position.checked_add(length as u64);
        let (Some(_), Some(behind)) = (end, behind) else {
            return Err(Malformed::Content);
        };
        words.clear();
        words.reserve_exact(length);
        // SAFETY: the message lies inside the mapping, which can't be cut, and is aligned; `words` has room for it, and any bits are a u64.
        // An owner that writes there meanwhile races with this copy: other numbers arrive, as it could have sent in the first place.
        unsafe {
            let from = self.map.as_ptr().add(HEAD).cast::<u64>().add(at as usize);
            std::ptr::copy_nonoverlapping(from, words.as_mut_ptr(), length);
            words.set_len(length);
        }
        Ok(behind)
    }
}

fn cell(map: &MmapRaw) -> &AtomicU64 {
    // SAFETY: the mapping begins with its head, pages are aligned, and it lives as long as the reference. Both processes use this word only as
    // an atomic, and only its owner, whose mapping can be written to, stores.
    unsafe { &*map.as_ptr().cast::<AtomicU64>() }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Each case moves up to 160 MB.
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Messages of any length, of which those that wait are read in order, now and then.
        #[test]
        fn messages_are_what_was_put_until_they_are_read(steps in prop::collection::vec((0_u64..ROOM / 2, 0_usize..3), 1..40)) {
            let (mut outbox, file) = Outbox::create().unwrap();
            let inbox = Inbox::open(file).unwrap();
            let (mut waiting, mut read, mut words) = (VecDeque::new(), 0, Vec::new());
            for (length, taken) in steps {
                let message = vec![length.wrapping_mul(31); length as usize];
                let held: usize = waiting.iter().map(|(_, message): &(u64, Vec<u64>)| message.len()).sum();
                match outbox.put(&message, read) {
                    Some(position) => waiting.push_back((position, message)),
                    // Half of the room may lie behind the last message that fits, and the room of what was read last may be due.
                    None => prop_assert!(held as u64 + length > ROOM / 2 - ROOM / 4 && !waiting.is_empty()),
                }
                for _ in 0..taken {
                    if let Some((position, message)) = waiting.pop_front() {
                        read = inbox.take(position, message.len(), &mut words).unwrap();
                        prop_assert_eq!(&words, &message);
                    }
                }
            }
        }
    }

    #[test]
    fn memory_that_is_read_serves_again_from_its_beginning() {
        let (mut outbox, _) = Outbox::create().unwrap();
        let first = outbox.put(&[1; 1000], 0).unwrap();
        assert_eq!(first % ROOM, 0);
        let second = outbox.put(&[2; 1000], 0).unwrap();
        assert_eq!(second, first + 1000);
        assert_eq!(outbox.put(&[3; 1000], second + 1000).unwrap() % ROOM, 0);
        // As long as it is not read there is no room for as much again.
        assert_eq!(outbox.put(&vec![4; ROOM as usize], second + 1000), None);
    }

    #[test]
    fn an_end_that_has_read_what_was_never_written_is_given_nothing() {
        let (mut outbox, _) = Outbox::create().unwrap();
        outbox.put(&[1], 0).unwrap();
        assert_eq!(outbox.put(&[1], u64::MAX), None);
        assert_eq!(outbox.put(&[1], ROOM + 2), None);
    }

    #[test]
    fn what_lies_outside_is_malformed() {
        let (_outbox, file) = Outbox::create().unwrap();
        let inbox = Inbox::open(file).unwrap();
        let mut words = Vec::new();
        for (position, length) in [
            (0, ROOM as usize + 1),
            (ROOM - 1, 2),
            (u64::MAX, 1),
            (u64::MAX, usize::MAX),
            (5, usize::MAX),
        ] {
            assert!(
                inbox.take(position, length, &mut words).is_err(),
                "{position}"
            );
        }
        assert_eq!(inbox.take(ROOM - 1, 1, &mut words).unwrap(), ROOM);
    }

    #[test]
    fn only_the_owner_writes_and_nobody_cuts() {
        let (outbox, file) = Outbox::create().unwrap();
        assert!(rustix::io::pwrite(&file, b"lie", 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(MmapOptions::new().len(SIZE).map_raw(&file).is_err());
        let inbox = Inbox::open(file).unwrap();
        outbox.publish(7);
        assert_eq!(inbox.read(), 7);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        for (seals, size) in [
            (SealFlags::empty(), SIZE),
            (SealFlags::SHRINK | SealFlags::GROW, SIZE),
            (SEALED, SIZE - 8),
        ] {
            let file = rustix::fs::memfd_create("another", flags).unwrap();
            rustix::fs::ftruncate(&file, size as u64).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            let error = Inbox::open(file.as_fd().try_clone_to_owned().unwrap()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{seals:?}");
        }
    }
}
