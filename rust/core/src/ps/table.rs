//! One table's rows in one slot.
use super::catalog::Catalog;
use super::index::{Index, SIGHTED};
use super::optimizer::Update;
use super::rows::Rows;

/// The rows, and which ids they are of.
#[derive(Debug, Clone)]
pub struct Table {
    index: Index,
    rows: Rows,
}

impl Table {
    /// Hold rows of `stride` numbers.
    pub fn new(stride: usize) -> Table {
        Table {
            index: Index::default(),
            rows: Rows::new(stride),
        }
    }

    /// Return how many rows it has.
    pub fn count(&self) -> usize {
        self.rows.count()
    }

    /// Return the memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.rows.bytes()
    }

    /// Append the weights of rows to `out`; a row that is not there has its initial ones, and stays away (rule R7).
    pub fn pull(&self, catalog: &Catalog, table: usize, ids: &[u64], out: &mut [f32]) {
        let width = catalog.tables()[table].width;
        for (id, weights) in ids.iter().zip(out.chunks_exact_mut(width)) {
            match self.index.get(*id) {
                Some(cell) if cell.row != SIGHTED => {
                    weights.copy_from_slice(&self.rows.get(cell.row)[..width])
                }
                _ => catalog.begin_row(table, *id, weights),
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
        for (id, gradient) in ids.iter().zip(gradients.chunks_exact(described.width)) {
            let cell = self.index.entry(*id);
            if cell.row == SIGHTED {
                cell.meta += 1;
                if cell.meta < described.admission {
                    continue;
                }
                cell.row = self.rows.take();
                catalog.begin_row(table, *id, self.rows.get_mut(cell.row));
            }
            cell.meta = time;
            update.apply(self.rows.get_mut(cell.row), gradient);
        }
    }

    /// Forget rows that were pushed last before `time`, and all sightings.
    pub fn expire(&mut self, time: u32) {
        let old: Vec<(u64, u32)> = self
            .index
            .iter()
            .filter(|cell| cell.row == SIGHTED || cell.meta < time)
            .map(|cell| (cell.id, cell.row))
            .collect();
        for (id, row) in old {
            self.index.remove(id);
            if row != SIGHTED {
                self.rows.give(row);
            }
        }
    }

    /// Return the ids that it knows, with or without a row.
    pub fn ids(&self) -> Vec<u64> {
        self.index.iter().map(|cell| cell.id).collect()
    }

    /// Return what is kept of an id: when it was pushed last and its row, or how often it was seen and nothing.
    pub fn kept(&self, id: u64) -> Option<(u32, &[f32])> {
        let cell = self.index.get(id)?;
        let row = if cell.row == SIGHTED {
            &[]
        } else {
            self.rows.get(cell.row)
        };
        Some((cell.meta, row))
    }

    /// Set what is kept of an id, as `kept` returned it.
    pub fn keep(&mut self, id: u64, meta: u32, row: &[f32]) {
        let cell = self.index.entry(id);
        cell.meta = meta;
        if row.is_empty() {
            if cell.row != SIGHTED {
                self.rows.give(cell.row);
                cell.row = SIGHTED;
            }
            return;
        }
        if cell.row == SIGHTED {
            cell.row = self.rows.take();
        }
        self.rows.get_mut(cell.row).copy_from_slice(row);
    }
}
