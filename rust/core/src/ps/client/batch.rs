//! One minibatch's ids of a table: each once, those of a slot together, so that what goes to or comes from a slot is one piece of memory.
use crate::ps::memory::hash::GOLDEN;
use crate::ps::memory::prefetch::prefetch;
use crate::ps::protocol::catalog::Catalog;

/// The distinct ids of a minibatch, and where each of its ids is among them.
#[derive(Debug, Clone)]
pub struct Batch {
    table: usize,
    ids: Vec<u64>,
    /// Of each slot, the place of its first id; one more at the end.
    starts: Vec<u32>,
    inverse: Vec<u32>,
}

const NOBODY: u32 = u32::MAX;
/// Ids whose cells are brought near together.
const GROUP: usize = 16;

/// Return a number whose high bits depend on all of the id's: Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
#[inline]
fn spread(id: u64) -> u64 {
    id.wrapping_mul(GOLDEN)
}

/// The ids found so far, to each the place where it was found first.
struct Seen {
    /// Id and place; a power of two of them, a quarter of them free at least.
    cells: Vec<(u64, u32)>,
    ids: Vec<u64>,
}

impl Seen {
    /// Expect some ids, of which many are the same.
    fn new(count: usize) -> Seen {
        Seen {
            cells: vec![(0, NOBODY); (count / 2).next_power_of_two().max(GROUP)],
            ids: Vec::with_capacity(count / 2),
        }
    }

    #[inline]
    fn cell(&self, hash: u64) -> usize {
        (hash >> (u64::BITS - self.cells.len().trailing_zeros())) as usize
    }

    /// Return the place of an id, a new one if it was not found before.
    #[inline]
    fn place(&mut self, id: u64, hash: u64) -> u32 {
        let mut at = self.cell(hash);
        loop {
            match self.cells[at] {
                (_, NOBODY) => return self.add(at, id),
                (found, place) if found == id => return place,
                _ => at = (at + 1) & (self.cells.len() - 1),
            }
        }
    }

    /// Append the places of a group of ids.
    ///
    /// Most were found before, in the first cell that is looked at, but which of them nobody can guess: that is found out for all
    /// without a branch, and those that are left come afterwards, in their order.
    #[inline]
    fn places(&mut self, group: &[u64], hashes: &[u64; GROUP], inverse: &mut Vec<u32>) {
        let (mut places, mut left, mut count) = ([0; GROUP], [0_u8; GROUP], 0);
        for (at, (id, hash)) in group.iter().zip(hashes).enumerate() {
            let (found, place) = self.cells[self.cell(*hash)];
            places[at] = place;
            left[count & (GROUP - 1)] = at as u8;
            count += usize::from((found != *id) | (place == NOBODY));
        }
        for at in &left[..count] {
            let at = usize::from(*at) & (GROUP - 1);
            places[at] = self.place(group[at], hashes[at]);
        }
        inverse.extend_from_slice(&places[..group.len()]);
    }

    fn add(&mut self, at: usize, id: u64) -> u32 {
        let place = self.ids.len() as u32;
        self.cells[at] = (id, place);
        self.ids.push(id);
        if self.ids.len() > self.cells.len() / 4 * 3 {
            self.grow();
        }
        place
    }

    fn grow(&mut self) {
        let size = self.cells.len() * 2;
        self.cells.clear();
        self.cells.resize(size, (0, NOBODY));
        for (place, id) in self.ids.iter().enumerate() {
            let mut at = self.cell(spread(*id));
            while self.cells[at].1 != NOBODY {
                at = (at + 1) & (size - 1);
            }
            self.cells[at] = (*id, place as u32);
        }
    }
}

impl Batch {
    /// Sort the ids of a table.
    pub fn new(catalog: &Catalog, table: usize, ids: &[u64]) -> Batch {
        let mut seen = Seen::new(ids.len());
        let mut inverse = Vec::with_capacity(ids.len());
        for group in ids.chunks(GROUP) {
            let mut hashes = [0; GROUP];
            for (id, hash) in group.iter().zip(&mut hashes) {
                *hash = spread(*id);
                prefetch(&seen.cells[seen.cell(*hash)]);
            }
            seen.places(group, &hashes, &mut inverse);
        }
        let found = seen.ids;
        let slots: Vec<u32> = found
            .iter()
            .map(|id| catalog.slot_of_row(table, *id))
            .collect();
        let mut starts = vec![0; catalog.slots() as usize + 1];
        for slot in &slots {
            starts[*slot as usize + 1] += 1;
        }
        for slot in 1..starts.len() {
            starts[slot] += starts[slot - 1];
        }
        let mut next = starts.clone();
        let mut sorted = vec![0; found.len()];
        let mut moved = vec![0; found.len()];
        for (place, (id, slot)) in found.iter().zip(&slots).enumerate() {
            let to = &mut next[*slot as usize];
            sorted[*to as usize] = *id;
            moved[place] = *to;
            *to += 1;
        }
        for place in &mut inverse {
            *place = moved[*place as usize];
        }
        Batch {
            table,
            ids: sorted,
            starts,
            inverse,
        }
    }

    /// Return the table.
    pub fn table(&self) -> usize {
        self.table
    }

    /// Return the slots in which its rows live.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let pairs = self.starts.windows(2).enumerate();
        pairs.filter_map(|(slot, starts)| (starts[0] < starts[1]).then_some(slot as u32))
    }

    /// Return the distinct ids.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Return the place of each id of the minibatch among the distinct ones.
    pub fn inverse(&self) -> &[u32] {
        &self.inverse
    }

    /// Return the places of a slot's ids among the distinct ones.
    pub fn of_slot(&self, slot: u32) -> std::ops::Range<usize> {
        self.starts[slot as usize] as usize..self.starts[slot as usize + 1] as usize
    }

    /// Return the gradients of the distinct ids, each the sum over its places in the minibatch.
    pub fn sum(&self, width: usize, gradients: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; self.ids.len() * width];
        for (place, gradient) in self.inverse.iter().zip(gradients.chunks_exact(width)) {
            let sum = &mut sums[*place as usize * width..][..width];
            for (sum, number) in sum.iter_mut().zip(gradient) {
                *sum += number;
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::ps::memory::initial::Initial;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::protocol::catalog::Table;

    /// Ids of one form: multiples of a power of two, and the bits of floating-point numbers.
    fn forms() -> impl Iterator<Item = Box<dyn Fn(u64) -> u64>> {
        let shifted =
            (0..=48).map(|shift| Box::new(move |id| id << shift) as Box<dyn Fn(u64) -> u64>);
        let floats = [
            Box::new(|id: u64| (id as f64).to_bits()) as Box<dyn Fn(u64) -> u64>,
            Box::new(|id: u64| u64::from((id as f32).to_bits())),
        ];
        shifted.chain(floats)
    }

    #[test]
    fn ids_of_any_form_are_found_within_a_few_cells() {
        for size in [1 << 8, 1 << 12, 1 << 16] {
            for (form, id) in forms().enumerate() {
                let mut seen = Seen::new(2 * size);
                let ids: Vec<u64> = (0..size as u64 * 7 / 10).map(id).collect();
                ids.iter().for_each(|id| {
                    seen.place(*id, spread(*id));
                });
                assert_eq!(seen.cells.len(), size);
                let far = |(at, cell): (usize, &(u64, u32))| match cell {
                    (_, NOBODY) => 0,
                    (id, _) => (at + size - seen.cell(spread(*id))) % size,
                };
                let all: usize = seen.cells.iter().enumerate().map(far).sum();
                // Ids by chance are 1.2 cells away from the first one where they are looked for.
                assert!(
                    all < 6 * ids.len(),
                    "form {form}, {size} cells: {all} for {} ids",
                    ids.len()
                );
            }
        }
    }

    proptest! {
        #[test]
        fn ids_are_sorted_by_slot_and_gradients_are_summed(ids in prop::collection::vec(0_u64..50, 0..200)) {
            let table = Table { name: "t".into(), width: 2, initial: Initial::Constant(0.0), admission: 1, decays: false };
            let rule = Rule::Sgd { momentum: 0.0, nesterov: false };
            let catalog = Catalog::new(0, 8, vec![table], vec![], rule, 0.0);
            let batch = Batch::new(&catalog, 0, &ids);
            let mut counts = BTreeMap::new();
            for (id, place) in ids.iter().zip(batch.inverse()) {
                prop_assert_eq!(batch.ids()[*place as usize], *id);
                *counts.entry(*id).or_insert(0.0) += 1.0;
            }
            prop_assert_eq!(batch.ids().len(), counts.len());
            for slot in 0..8 {
                for place in batch.of_slot(slot) {
                    prop_assert_eq!(catalog.slot_of_row(0, batch.ids()[place]), slot);
                }
            }
            let sums = batch.sum(2, &vec![1.0; ids.len() * 2]);
            for (id, sum) in batch.ids().iter().zip(sums.chunks(2)) {
                prop_assert_eq!(sum, &[counts[id], counts[id]]);
            }
        }
    }
}
