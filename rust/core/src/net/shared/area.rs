//! A member's outgoing memory, which its peers on the same host map: slots for contributions and sums, and counters that say what is in
//! them.
//!
//! The memory is an anonymous file whose descriptor goes to each peer over the authenticated Unix socket; it has no name that could stay
//! behind. Sockets move the same bytes with two copies through the kernel, where this needs one and a half and no system call.
//!
//! The owner writes, peers read. Counters only grow and count blocks over the ring's whole life; a slot is written again only after all
//! peers' counters say that they are through with it (see `shared`). That rule, and nothing in this file, keeps readers and the writer
//! of a slot apart.
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::net::ring::plan::PART;
use crate::net::ring::sum::Element;
use crate::net::wake::Bell;

/// Blocks that can be under way at a time.
pub const DEPTH: u64 = 4;
const HEAD: usize = 4096;
/// Distance between counters: they change in different moments, and neighbours in a cache line would slow each other down.
const STRIDE: usize = 128;
const ASLEEP: usize = 3;
/// What nobody can do with the file once others have it.
pub(super) const SEALED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);
/// Where the beginning of an operation lies: its step, its length, and its bytes.
const OPENING: usize = 1024;
/// Longest beginning of an operation: element kind and count, and a trailer.
pub const LONGEST_OPENING: usize = HEAD - OPENING - 16;

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Blocks of the owner's contribution that are in its slots.
    Scattered = 0,
    /// Blocks whose part the owner has summed; it is in its slot, and the others' contributions to it are used.
    Reduced = 1,
    /// Blocks whose parts the owner has copied from all others.
    Copied = 2,
    /// Operations that the owner has begun; the last one's beginning is in the head.
    Opened = 4,
    /// Bytes that the owner has moved on its connections in this operation.
    Moved = 5,
}

/// One member's area, its own or a peer's.
#[derive(Debug)]
pub struct Area {
    map: MmapRaw,
    file: OwnedFd,
    bell: Bell,
    members: usize,
}

fn size(members: usize) -> usize {
    HEAD + DEPTH as usize * (members + 1) * PART
}

impl Area {
    /// Make this member's own area, for a ring of `members`.
    pub fn create(members: usize) -> io::Result<Area> {
        let file = rustix::fs::memfd_create(
            "elasticdl-ring",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, size(members) as u64)?;
        let map = MmapOptions::new().len(size(members)).map_raw(&file)?;
        // A peer that cut the file would kill its readers, and one that could write in it would change what others read as the owner's: the
        // mapping above stays the only one that can be written to (`F_SEAL_FUTURE_WRITE`, Linux 5.1).
        rustix::fs::fcntl_add_seals(&file, SEALED | SealFlags::SEAL)?;
        Ok(Area {
            map,
            file,
            bell: Bell::new()?,
            members,
        })
    }

    /// Map what a peer sent: its file and its bell.
    pub fn open(file: OwnedFd, bell: OwnedFd, members: usize) -> io::Result<Area> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALED);
        if !sealed || rustix::fs::fstat(&file)?.st_size != size(members) as i64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer's shared memory has another size, or can be cut or written to by others",
            ));
        }
        let map = MmapOptions::new()
            .len(size(members))
            .map_raw_read_only(&file)?;
        Ok(Area {
            map,
            file,
            bell: Bell::from(bell),
            members,
        })
    }

    /// Return the descriptors that a peer needs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.file.as_fd(), self.bell.as_fd()]
    }

    /// The descriptor that others ring.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    fn cell(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the head has room for the six cells at multiples of STRIDE, mapped pages are aligned, and the memory lives as long as
        // `self`. All processes use these cells only as atomics.
        unsafe { &*self.map.as_ptr().add(index * STRIDE).cast::<AtomicU64>() }
    }

    /// Return a counter; what it counts is visible to the caller from then on.
    pub fn count(&self, what: Count) -> u64 {
        self.cell(what as usize).load(Ordering::Acquire)
    }

    /// Set a counter of the own area, after the memory that it speaks of.
    pub fn publish(&self, what: Count, blocks: u64) {
        self.cell(what as usize).store(blocks, Ordering::Release);
    }

    /// Say that the owner is about to sleep, or is awake. What others published before is visible to the owner's next look.
    pub fn set_asleep(&self, asleep: bool) {
        self.cell(ASLEEP).store(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ring this peer's bell if it sleeps; the caller has published something and issued a `SeqCst` fence.
    pub fn wake_if_asleep(&self) {
        if self.cell(ASLEEP).load(Ordering::Relaxed) != 0 {
            self.bell.ring();
        }
    }

    /// Write the beginning of an operation into one's own area; `Count::Opened` publishes it.
    pub fn write_opening(&self, step: u64, opening: &[u8]) {
        assert!(opening.len() <= LONGEST_OPENING);
        // SAFETY: the range lies inside the head of the writable mapping (own area), behind the cells; peers read it only between the
        // publication of this operation and the publication of their own sums in it, without which the owner does not come here again.
        unsafe {
            let at = self.map.as_mut_ptr().add(OPENING);
            at.cast::<u64>().write(step);
            at.add(8).cast::<u64>().write(opening.len() as u64);
            std::ptr::copy_nonoverlapping(opening.as_ptr(), at.add(16), opening.len());
        }
    }

    /// Return step and bytes of the beginning of the owner's operation, as a copy: it is compared and believed, and must not change after that.
    pub fn read_opening(&self) -> (u64, Vec<u8>) {
        // SAFETY: the range lies inside the head, whatever length the owner wrote, and is aligned for a u64. An owner that breaks the rule of
        // `write_opening` may write meanwhile: the reads are volatile and each byte is read once, so that what is checked is what is used.
        unsafe {
            let at = self.map.as_ptr().add(OPENING);
            let step = at.cast::<u64>().read_volatile();
            let length = at.add(8).cast::<u64>().read_volatile();
            let length = length.min(LONGEST_OPENING as u64) as usize;
            let bytes = (0..length).map(|byte| at.add(16 + byte).read_volatile());
            (step, bytes.collect())
        }
    }

    fn place(&self, block: u64, index: usize) -> usize {
        debug_assert!(index <= self.members);
        HEAD + ((block % DEPTH) as usize * (self.members + 1) + index) * PART
    }

    /// Return `count` elements of a slot: the owner's contribution to the part of rank `index`, or at index `members` its sum.
    pub fn read<T: Element>(&self, block: u64, index: usize, count: usize) -> &[T] {
        assert!(count * size_of::<T>() <= PART && index <= self.members);
        // SAFETY: the place lies inside the mapping, which can't be cut, and is aligned to PART; any bits are a T. The counters tell the caller
        // that the owner has written it and will not write it again before the caller's own counter moves on, and nobody else can write.
        // An owner that breaks this rule races with the caller. That is contained, not excluded: callers only add these numbers up or copy
        // them, once, into their own memory; nothing is decided by one, no length or index comes from here. So another number arrives, as
        // that owner could have sent in the first place. To copy it first would be the same race.
        unsafe {
            std::slice::from_raw_parts(
                self.map.as_ptr().add(self.place(block, index)).cast(),
                count,
            )
        }
    }

    /// Fill a slot of the own area.
    pub fn write<T: Element>(&self, block: u64, index: usize, elements: &[T]) {
        assert!(size_of_val(elements) <= PART && index <= self.members);
        // SAFETY: the place lies inside the writable mapping (own area), is aligned, and the counters tell the caller that nobody reads it
        // any more; `elements` is other memory, since no reference into an own area's slot is ever given out.
        unsafe {
            let to = self
                .map
                .as_mut_ptr()
                .add(self.place(block, index))
                .cast::<T>();
            std::ptr::copy_nonoverlapping(elements.as_ptr(), to, elements.len());
        }
    }
}

/// Order what was published before what is read next.
pub fn published() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: usize = 2;

    fn open(area: &Area) -> io::Result<Area> {
        let [file, bell] = area
            .descriptors()
            .map(|descriptor| descriptor.try_clone_to_owned().unwrap());
        Area::open(file, bell, MEMBERS)
    }

    #[test]
    fn peers_see_what_the_owner_writes_and_can_write_nothing() {
        let own = Area::create(MEMBERS).unwrap();
        let peer = open(&own).unwrap();
        own.write(5, 1, &[1.0_f32, 2.0]);
        own.write_opening(9, b"prefix");
        own.publish(Count::Opened, 1);
        assert_eq!(peer.count(Count::Opened), 1);
        assert_eq!(peer.read::<f32>(5, 1, 2), [1.0, 2.0]);
        assert_eq!(peer.read_opening(), (9, b"prefix".to_vec()));
        let [file, _] = own.descriptors();
        assert!(rustix::io::pwrite(file, b"lie", 0).is_err());
        assert!(rustix::fs::ftruncate(file, 0).is_err());
        let writable = MmapOptions::new().len(size(MEMBERS)).map_raw(&file);
        assert!(writable.is_err(), "it can be mapped for writing");
    }

    #[test]
    fn memory_that_others_can_write_to_or_cut_is_refused() {
        for seals in [
            SealFlags::empty(),
            SealFlags::SHRINK | SealFlags::GROW,
            SealFlags::FUTURE_WRITE,
        ] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("another", flags).unwrap();
            rustix::fs::ftruncate(&file, size(MEMBERS) as u64).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            let bell = Bell::new().unwrap().as_fd().try_clone_to_owned().unwrap();
            assert!(Area::open(file, bell, MEMBERS).is_err(), "{seals:?}");
        }
    }
}
