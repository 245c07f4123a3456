//! Which row an id has: open addressing with linear probing, 4 bytes a cell.
//!
//! A cell has the row's number and eight bits of the id's hash, by which nearly all other rows are passed over; the id itself stands with
//! the row, which the caller wants anyway. Cells are found by a hash of the id alone: that by which rows come to slots is nearly the
//! same for all ids of a slot. Deleting moves later cells back, so that no dead ones are left behind.
use crate::ps::memory::hash::mix;
use crate::ps::memory::prefetch::prefetch;

const VACANT: u32 = u32::MAX;
/// Bits of a cell that are the row's number; the others are of the hash.
const BITS: u32 = 24;
const LEAST: usize = 8;

/// The rows of one table in one slot, by id. Each call that has to compare ids receives how to find a row's.
#[derive(Debug, Default, Clone)]
pub struct Index {
    cells: Vec<u32>,
    used: usize,
}

impl Index {
    /// Return the memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }

    /// Begin to bring the cells near where a hash is looked for.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(cell) = self.cells.get(self.home(hash)) {
            prefetch(cell);
        }
    }

    /// Return the row that an id with this hash has most likely, without a look at ids.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<u32> {
        self.candidates(hash).next().map(|(_, row)| row)
    }

    /// Return the row of an id.
    #[inline]
    pub fn get(&self, id: u64, id_of: impl Fn(u32) -> u64) -> Option<u32> {
        self.candidates(mix(id))
            .map(|(_, row)| row)
            .find(|row| id_of(*row) == id)
    }

    /// Let an id that has none have a row.
    pub fn put(&mut self, id: u64, row: u32, id_of: impl Fn(u32) -> u64) {
        if self.used + 1 > self.cells.len() / 8 * 7 {
            self.grow(id_of);
        }
        self.used += 1;
        self.place(mix(id), row);
    }

    /// Forget an id; returns its row.
    pub fn remove(&mut self, id: u64, id_of: impl Fn(u32) -> u64) -> Option<u32> {
        let (mut hole, removed) = self
            .candidates(mix(id))
            .find(|(_, row)| id_of(*row) == id)?;
        self.used -= 1;
        let size = self.cells.len();
        let mut at = hole;
        loop {
            at = (at + 1) % size;
            let cell = self.cells[at];
            if cell == VACANT {
                break;
            }
            // It may move to the hole if that lies on its way: between where it begins and where it is.
            let home = self.home(mix(id_of(row(cell))));
            if (at + size - home) % size >= (at + size - hole) % size {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = VACANT;
        Some(removed)
    }

    /// Return all rows, in no order.
    pub fn rows(&self) -> impl Iterator<Item = u32> {
        let taken = self.cells.iter().filter(|cell| **cell != VACANT);
        taken.map(|cell| row(*cell))
    }

    /// Return the cells, and the rows in them, that a hash may be that of.
    #[inline]
    fn candidates(&self, hash: u64) -> impl Iterator<Item = (usize, u32)> {
        let size = self.cells.len();
        let mut at = self.home(hash);
        std::iter::from_fn(move || {
            loop {
                let (here, cell) = (at, *self.cells.get(at)?);
                if cell == VACANT {
                    return None;
                }
                at = if at + 1 == size { 0 } else { at + 1 };
                if cell >> BITS == tag(hash) {
                    return Some((here, row(cell)));
                }
            }
        })
    }

    /// Write a row into the first vacant cell for a hash.
    fn place(&mut self, hash: u64, row: u32) {
        // The last of these numbers would look like a vacant cell.
        assert!(
            row < (1 << BITS) - 1,
            "a slot with more rows of a table than it can name"
        );
        let mut at = self.home(hash);
        while self.cells[at] != VACANT {
            at = if at + 1 == self.cells.len() {
                0
            } else {
                at + 1
            };
        }
        self.cells[at] = tag(hash) << BITS | row;
    }

    /// Take half as many cells again: small steps, because memory is what a table costs.
    fn grow(&mut self, id_of: impl Fn(u32) -> u64) {
        let size = (self.cells.len() / 8 * 12).max(LEAST).next_multiple_of(8);
        let old = std::mem::replace(&mut self.cells, vec![VACANT; size]);
        for cell in old.into_iter().filter(|cell| *cell != VACANT) {
            self.place(mix(id_of(row(cell))), row(cell));
        }
    }

    /// Return the cell where the search for a hash begins.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.cells.len() as u64) >> 32) as usize
    }
}

fn tag(hash: u64) -> u32 {
    hash as u32 >> BITS
}

fn row(cell: u32) -> u32 {
    cell & ((1 << BITS) - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Ids are few, so that they meet and are removed from the middle of runs. Row n is the n-th that was put in.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0_u64..40, any::<bool>()), 0..300)) {
            let (mut index, mut map, mut ids) = (Index::default(), HashMap::new(), Vec::new());
            for (id, keep) in steps {
                if keep && !map.contains_key(&id) {
                    let row = ids.len() as u32;
                    ids.push(id);
                    index.put(id, row, |row| ids[row as usize]);
                    map.insert(id, row);
                } else if !keep {
                    prop_assert_eq!(index.remove(id, |row| ids[row as usize]), map.remove(&id));
                }
                prop_assert_eq!(index.used, map.len());
                for id in 0..40 {
                    prop_assert_eq!(index.get(id, |row| ids[row as usize]), map.get(&id).copied());
                }
            }
            let mut left: Vec<u32> = index.rows().collect();
            let mut right: Vec<u32> = map.into_values().collect();
            left.sort_unstable();
            right.sort_unstable();
            prop_assert_eq!(left, right);
        }
    }

    #[test]
    fn it_is_never_full_and_never_half_empty() {
        let mut index = Index::default();
        for id in 0..100_000 {
            index.put(id, id as u32, u64::from);
            if id > 100 {
                let load = index.used as f64 / (index.bytes() / size_of::<u32>()) as f64;
                assert!((0.5..0.9).contains(&load), "{load} with {id} ids");
            }
        }
    }

    #[test]
    fn a_guess_is_nearly_always_right() {
        let mut index = Index::default();
        for id in 0..10_000 {
            index.put(id, id as u32, u64::from);
        }
        let right = (0..10_000).filter(|id| index.guess(mix(*id)) == Some(*id as u32));
        assert!(right.count() > 9_900);
    }
}
