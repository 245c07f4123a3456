//! Which row an id has: open addressing with linear probing, 16 bytes a cell.
//!
//! Cells are found by a hash of the id alone: that by which rows come to slots is nearly the same for all ids of a slot. Deleting moves
//! later cells back, so that no dead ones are left behind.
use super::hash::mix;

/// One cell: an id, its row, and what the table remembers of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Cell {
    pub id: u64,
    /// The number of its row, or `SIGHTED` for an id that has no row yet.
    pub row: u32,
    /// The time of the last push to the row, or how often an id without one was seen.
    pub meta: u32,
}

/// Of a cell whose id has been seen, but not often enough for a row.
pub const SIGHTED: u32 = u32::MAX - 1;
const NOBODY: u32 = u32::MAX;
const VACANT: Cell = Cell {
    id: 0,
    row: NOBODY,
    meta: 0,
};
const LEAST: usize = 8;

/// The ids of one table in one slot.
#[derive(Debug, Default, Clone)]
pub struct Index {
    cells: Vec<Cell>,
    used: usize,
}

impl Index {
    /// Return the memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>()
    }

    /// Return the cell of an id.
    pub fn get(&self, id: u64) -> Option<&Cell> {
        let at = self.find(id)?;
        let cell = &self.cells[at];
        (cell.row != NOBODY).then_some(cell)
    }

    /// Return the cell of an id; a new one is `SIGHTED` with meta 0.
    pub fn entry(&mut self, id: u64) -> &mut Cell {
        if self.used + 1 > self.cells.len() / 8 * 7 {
            self.grow();
        }
        let at = self.find(id).expect("an index with room");
        let cell = &mut self.cells[at];
        if cell.row == NOBODY {
            *cell = Cell {
                id,
                row: SIGHTED,
                meta: 0,
            };
            self.used += 1;
        }
        cell
    }

    /// Forget an id.
    pub fn remove(&mut self, id: u64) {
        let Some(mut hole) = self.find(id) else {
            return;
        };
        if self.cells[hole].row == NOBODY {
            return;
        }
        self.used -= 1;
        let size = self.cells.len();
        let mut at = hole;
        loop {
            at = (at + 1) % size;
            let cell = self.cells[at];
            if cell.row == NOBODY {
                break;
            }
            // It may move to the hole if that lies on its way: between where it begins and where it is.
            let home = home(cell.id, size);
            if (at + size - home) % size >= (at + size - hole) % size {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = VACANT;
    }

    /// Return all cells that are taken, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.row != NOBODY)
    }

    /// Return where an id is, or where it would be put; `None` without any cell.
    fn find(&self, id: u64) -> Option<usize> {
        let size = self.cells.len();
        if size == 0 {
            return None;
        }
        let mut at = home(id, size);
        while self.cells[at].row != NOBODY && self.cells[at].id != id {
            at = if at + 1 == size { 0 } else { at + 1 };
        }
        Some(at)
    }

    /// Take half as many cells again: small steps, because memory is what a table costs.
    fn grow(&mut self) {
        let size = (self.cells.len() / 8 * 12).max(LEAST).next_multiple_of(8);
        let old = std::mem::replace(&mut self.cells, vec![VACANT; size]);
        for cell in old.into_iter().filter(|cell| cell.row != NOBODY) {
            let at = self.find(cell.id).expect("an index with room");
            self.cells[at] = cell;
        }
    }
}

/// Return the cell where the search for an id begins, of `size`.
fn home(id: u64, size: usize) -> usize {
    (((mix(id) >> 32) * size as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Ids are few, so that they meet and are removed from the middle of runs.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0_u64..40, any::<bool>(), any::<u32>()), 0..300)) {
            let (mut index, mut map) = (Index::default(), HashMap::new());
            for (id, keep, meta) in steps {
                if keep {
                    index.entry(id).meta = meta;
                    map.insert(id, meta);
                } else {
                    index.remove(id);
                    map.remove(&id);
                }
                prop_assert_eq!(index.used, map.len());
                for id in 0..40 {
                    prop_assert_eq!(index.get(id).map(|cell| cell.meta), map.get(&id).copied());
                }
            }
            let mut left: Vec<u64> = index.iter().map(|cell| cell.id).collect();
            let mut right: Vec<u64> = map.into_keys().collect();
            left.sort_unstable();
            right.sort_unstable();
            prop_assert_eq!(left, right);
        }
    }

    #[test]
    fn it_is_never_full_and_never_half_empty() {
        let mut index = Index::default();
        for id in 0..100_000 {
            index.entry(id);
            if id > 100 {
                let load = index.used as f64 / (index.bytes() / size_of::<Cell>()) as f64;
                assert!((0.5..0.9).contains(&load), "{load} with {id} ids");
            }
        }
    }
}
