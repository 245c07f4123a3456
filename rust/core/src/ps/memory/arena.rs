//! Memory of rows: blocks from areas that the kernel may back with huge pages.
//!
//! Rows are touched at random, and with pages of 4 KiB each touch costs a walk through page tables beside the row itself. The allocator of the
//! process gives a slab of a few KiB no huge page and keeps what lies between slabs. Here blocks of all slots and tables lie side by
//! side; one that is given back serves the next of its length. Areas are never given back: a process serves one job.
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{LazyLock, Mutex};

use memmap2::{Advice, MmapMut};

use crate::net::endpoint::lock;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Bytes of an area. It is small, because a limit on memory (`ulimit -d`) counts what no row has yet. The kernel puts areas side by
/// side and makes one of them, so huge pages may reach from one into the next.
const AREA: usize = 4 << 20;
const WORD: usize = size_of::<u32>();

static ARENA: LazyLock<Mutex<Arena>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Arena {
    /// What nobody has had yet of the present area.
    rest: &'static mut [u32],
    /// What was given back, by length.
    free: HashMap<usize, Vec<&'static mut [u32]>>,
}

impl Arena {
    fn take(&mut self, length: usize) -> &'static mut [u32] {
        if let Some(block) = self.free.get_mut(&length).and_then(Vec::pop) {
            return block;
        }
        if self.rest.len() < length {
            self.rest = area(length);
        }
        let (block, rest) = std::mem::take(&mut self.rest).split_at_mut(length);
        self.rest = rest;
        block
    }
}

/// Return a new area for at least one block.
fn area(length: usize) -> &'static mut [u32] {
    let size = AREA.max((length * WORD).next_multiple_of(HUGE));
    let Ok(map) = MmapMut::map_anon(size) else {
        // There may be less than an area; if not, the allocator says so, as of all memory.
        return vec![0; length].leak();
    };
    // A kernel without huge pages does as well, slower.
    let _ = map.advise(Advice::HugePage);
    bytemuck::cast_slice_mut(&mut Box::leak(Box::new(map))[..])
}

/// A block, given back when it is dropped. What it holds at first is undefined.
#[derive(Debug)]
pub struct Block(&'static mut [u32]);

impl Block {
    /// Take a block of so many words.
    pub fn new(length: usize) -> Block {
        Block(lock(&ARENA).take(length))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.0);
        lock(&ARENA)
            .free
            .entry(words.len())
            .or_default()
            .push(words);
    }
}

impl Clone for Block {
    fn clone(&self) -> Block {
        let mut block = Block::new(self.len());
        block.copy_from_slice(self);
        block
    }
}

impl Deref for Block {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        self.0
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u32] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_nobody_elses_and_serves_again() {
        // A length of no other test's blocks: they have the arena in common.
        const LENGTH: usize = 7919;
        let mut blocks: Vec<Block> = (0..20).map(|_| Block::new(LENGTH)).collect();
        for (number, block) in blocks.iter_mut().enumerate() {
            block.fill(number as u32);
        }
        let copy = blocks[3].clone();
        for (number, block) in blocks.iter().enumerate() {
            assert!(block.iter().all(|word| *word == number as u32));
        }
        assert_eq!(*copy, *blocks[3]);
        let place = blocks[19].as_ptr();
        blocks.pop();
        assert_eq!(Block::new(LENGTH).as_ptr(), place);
    }

    #[test]
    fn a_block_may_be_larger_than_an_area() {
        let mut block = Block::new(AREA / WORD + 1);
        block[AREA / WORD] = 1;
        assert_eq!(block[0], 0);
    }
}
