//! One table's rows in one slot.
use std::collections::BTreeMap;

use crate::ps::memory::hash::mix;
use crate::ps::memory::index::Index;
use crate::ps::memory::optimizer::Update;
use crate::ps::memory::rows::Rows;
use crate::ps::protocol::catalog::Catalog;

/// Ids that are looked for together: their waits for memory pass at the same time.
pub const GROUP: usize = 64;

/// The rows, and which ids they are of.
#[derive(Debug, Clone)]
pub struct Table {
    index: Index,
    rows: Rows,
    /// How often ids were seen that have no row yet.
    sighted: BTreeMap<u64, u32>,
}

impl Table {
    /// Hold rows of `stride` numbers.
    pub fn new(stride: usize) -> Table {
        Table {
            index: Index::default(),
            rows: Rows::new(stride),
            sighted: BTreeMap::new(),
        }
    }

    /// Return how many rows it has.
    pub fn count(&self) -> usize {
        self.rows.count()
    }

    /// Return the memory it takes, in bytes; of sightings about that.
    pub fn bytes(&self) -> usize {
        let sighted = self.sighted.len() * 2 * size_of::<(u64, u32)>();
        self.index.bytes() + self.rows.bytes() + sighted
    }

    /// Append the weights of rows to `out`; a row that is not there has its initial ones, and stays away (rule R7).
    pub fn pull(&self, catalog: &Catalog, table: usize, ids: &[u64], out: &mut [f32]) {
        let width = catalog.tables()[table].width;
        for (ids, out) in ids.chunks(GROUP).zip(out.chunks_mut(GROUP * width)) {
            self.prefetch(ids, width);
            for (id, weights) in ids.iter().zip(out.chunks_exact_mut(width)) {
                match self.row(*id) {
                    Some(row) => weights.copy_from_slice(&self.rows.get(row)[..width]),
                    None => catalog.begin_row(table, *id, weights),
                }
            }
        }
    }

    /// Apply gradients to rows; `time` is remembered for expiry.
    pub fn push(
        &mut self,
        catalog: &Catalog,
        table: usize,
        ids: &[u64],
        gradients: &[f32],
        update: &Update,
        time: u32,
    ) {
        let described = &catalog.tables()[table];
        let (width, stride) = (described.width, catalog.stride(table));
        for (ids, gradients) in ids.chunks(GROUP).zip(gradients.chunks(GROUP * width)) {
            self.prefetch(ids, stride);
            for (id, gradient) in ids.iter().zip(gradients.chunks_exact(width)) {
                let row = match self.row(*id) {
                    Some(row) => row,
                    None if !self.is_admitted(*id, described.admission) => continue,
                    None => {
                        let row = self.make(*id);
                        let (last, numbers) = self.rows.get_mut(row);
                        *last = 0;
                        catalog.begin_row(table, *id, numbers);
                        row
                    }
                };
                let (last, numbers) = self.rows.get_mut(row);
                // Workers' tasks are not in order.
                *last = time.max(*last);
                update.apply(numbers, gradient);
            }
        }
    }

    /// Forget rows that were pushed last before `time`, and all sightings.
    pub fn expire(&mut self, time: u32) {
        self.sighted.clear();
        let old: Vec<u32> = self
            .index
            .rows()
            .filter(|row| self.rows.time(*row) < time)
            .collect();
        for row in old {
            self.remove(self.rows.id(row));
        }
    }

    /// Return the ids that it knows, with or without a row; the former in the order of their rows.
    pub fn ids(&self) -> Vec<u64> {
        let mut ids = self.trained();
        ids.extend(self.sighted.keys());
        ids
    }

    /// Return the ids that have a row, in the order in which these lie in memory: to read them so is twice as fast.
    pub fn trained(&self) -> Vec<u64> {
        let mut rows: Vec<u32> = self.index.rows().collect();
        rows.sort_unstable();
        rows.into_iter().map(|row| self.rows.id(row)).collect()
    }

    /// Return what is kept of an id: when it was pushed last and its row, or how often it was seen and nothing.
    pub fn kept(&self, id: u64) -> Option<(u32, &[f32])> {
        match self.row(id) {
            Some(row) => Some((self.rows.time(row), self.rows.get(row))),
            None => Some((*self.sighted.get(&id)?, &[])),
        }
    }

    /// Set what is kept of an id, as `kept` returned it.
    pub fn keep(&mut self, id: u64, meta: u32, row: &[f32]) {
        if row.is_empty() {
            self.remove(id);
            self.sighted.insert(id, meta);
            return;
        }
        self.sighted.remove(&id);
        let number = self.row(id).unwrap_or_else(|| self.make(id));
        let (time, numbers) = self.rows.get_mut(number);
        *time = meta;
        numbers.copy_from_slice(row);
    }

    #[inline]
    fn row(&self, id: u64) -> Option<u32> {
        self.index.get(id, |row| self.rows.id(row))
    }

    /// Count a sighting of an id without a row; tell whether it may have one now.
    fn is_admitted(&mut self, id: u64, admission: u32) -> bool {
        if admission <= 1 {
            return true;
        }
        let seen = self.sighted.entry(id).or_default();
        *seen += 1;
        if *seen < admission {
            return false;
        }
        self.sighted.remove(&id);
        true
    }

    /// Give a row to an id that has none.
    fn make(&mut self, id: u64) -> u32 {
        let row = self.rows.take(id);
        self.index.put(id, row, |row| self.rows.id(row));
        row
    }

    fn remove(&mut self, id: u64) {
        if let Some(row) = self.index.remove(id, |row| self.rows.id(row)) {
            self.rows.give(row);
        }
    }

    /// Begin to bring the rows of some ids near, of each so many numbers: first their cells, all at once, then the rows.
    fn prefetch(&self, ids: &[u64], numbers: usize) {
        let mut hashes = [0; GROUP];
        for (id, hash) in ids.iter().zip(&mut hashes) {
            *hash = mix(*id);
            self.index.prefetch(*hash);
        }
        for hash in &hashes[..ids.len()] {
            if let Some(row) = self.index.guess(*hash) {
                self.rows.prefetch(row, numbers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_in_the_order_of_their_rows() {
        let mut table = Table::new(2);
        let ids: Vec<u64> = (0..100).map(|number| mix(number) >> 40).collect();
        for id in &ids {
            table.keep(*id, 1, &[0.5, 0.5]);
        }
        assert_eq!(table.trained(), ids);
        // What is forgotten makes room for the next row.
        table.remove(ids[7]);
        table.keep(5, 1, &[0.5, 0.5]);
        let moved = [&ids[..7], &[5], &ids[8..]].concat();
        assert_eq!(table.trained(), moved);
        table.keep(6, 2, &[]);
        assert_eq!(table.ids(), [&moved[..], &[6]].concat());
    }
}
