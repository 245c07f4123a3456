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

use super::plan::PART;
use super::sum::Element;
use super::wake::Bell;

/// Blocks that can be under way at a time.
pub const DEPTH: u64 = 4;
const HEAD: usize = 4096;
/// Distance between counters: they change in different moments, and neighbours in a cache line would slow each other down.
const STRIDE: usize = 128;
const ASLEEP: usize = 3;
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
    /// Operations that the owner has begun; the last one's beginning stands in the head.
    Opened = 4,
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
    /// Make an area of one's own, for a ring of `members`.
    pub fn create(members: usize) -> io::Result<Area> {
        let file = rustix::fs::memfd_create(
            "elasticdl-ring",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, size(members) as u64)?;
        // A peer that cut the file would kill its readers.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = MmapOptions::new().len(size(members)).map_raw(&file)?;
        Ok(Area {
            map,
            file,
            bell: Bell::new()?,
            members,
        })
    }

    /// Map what a peer sent: its file and its bell.
    pub fn open(file: OwnedFd, bell: OwnedFd, members: usize) -> io::Result<Area> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(&file)?.st_size != size(members) as i64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer's shared memory has another size or can be cut",
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
        // SAFETY: the head has room for the five cells at multiples of STRIDE, mapped pages are aligned, and the memory lives as long as
        // `self`. All processes use these cells only as atomics.
        unsafe { &*self.map.as_ptr().add(index * STRIDE).cast::<AtomicU64>() }
    }

    /// Return a counter; what it counts is visible to the caller from then on.
    pub fn count(&self, what: Count) -> u64 {
        self.cell(what as usize).load(Ordering::Acquire)
    }

    /// Set a counter of one's own area, after the memory that it speaks of.
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

    /// Return step and bytes of the beginning of the owner's operation.
    pub fn read_opening(&self) -> (u64, &[u8]) {
        // SAFETY: as in `write_opening`; the length is cut to the head's size whatever the owner wrote.
        unsafe {
            let at = self.map.as_ptr().add(OPENING);
            let length = at.add(8).cast::<u64>().read().min(LONGEST_OPENING as u64) as usize;
            (
                at.cast::<u64>().read(),
                std::slice::from_raw_parts(at.add(16), length),
            )
        }
    }

    fn place(&self, block: u64, index: usize) -> usize {
        debug_assert!(index <= self.members);
        HEAD + ((block % DEPTH) as usize * (self.members + 1) + index) * PART
    }

    /// Return `count` elements of a slot: the owner's contribution to the part of rank `index`, or at index `members` its sum.
    pub fn read<T: Element>(&self, block: u64, index: usize, count: usize) -> &[T] {
        assert!(count * size_of::<T>() <= PART && index <= self.members);
        // SAFETY: the place lies inside the mapping and is aligned to PART; any bits are a T. The counters tell the caller that the owner
        // has written it and will not write it again before the caller's own counter moves on.
        unsafe {
            std::slice::from_raw_parts(
                self.map.as_ptr().add(self.place(block, index)).cast(),
                count,
            )
        }
    }

    /// Fill a slot of one's own area.
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
