//! What a server holds of a slot: rows, dense variables, and the memory of the chunks that are in them.
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
use std::collections::BTreeMap;

use crate::bfloat::{BFloat16, convert};
use crate::ps::memory::table::{GROUP, Table};
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::excerpt::Excerpt;
use crate::ps::protocol::part::{Part, Sum};
use crate::ps::protocol::stamps::{Stamp, Stamps};
use crate::ps::protocol::words::{Reader, pair, put_halves, put_numbers};

/// Numbers in a piece: 256 KiB of rows.
const PIECE: usize = 64 * 1024;
const ROWS: u32 = 1;
const SIGHTINGS: u32 = 2;
const DENSE: u32 = 3;

/// A dense variable with its optimizer's state.
#[derive(Debug, Clone, PartialEq)]
struct Variable {
    numbers: Vec<f32>,
    /// The slot's version of the last change.
    changed: u64,
}

/// A push that waits for the others of its step.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    pub pace: Pace,
    /// Of its part.
    pub words: Excerpt,
}

/// The content of a slot.
#[derive(Debug, Clone)]
pub struct Data {
    tables: Vec<Table>,
    variables: BTreeMap<usize, Variable>,
    /// By step and stamp, in the order in which they are added up.
    kept: BTreeMap<(u64, Stamp), Kept>,
    /// Changes so far, the same number at all replicas. No job comes near the last number; a snapshot or a copy may say that it has.
    pub version: u64,
    pub stamps: Stamps,
}

/// At which step of the optimizer's schedule a push is applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub rate: f32,
    pub step: u64,
}

/// How far a copy of a slot has come: what was there when it began and has not been read.
#[derive(Debug)]
pub struct Cursor {
    ids: Vec<(usize, Vec<u64>)>,
    /// Variables, and how many elements of the last one have been read.
    variables: Vec<usize>,
    read: usize,
}

impl Data {
    /// Hold nothing.
    pub fn new(catalog: &Catalog) -> Data {
        Data {
            tables: (0..catalog.tables().len())
                .map(|table| Table::new(catalog.stride(table)))
                .collect(),
            variables: BTreeMap::new(),
            kept: BTreeMap::new(),
            version: 0,
            stamps: Stamps::default(),
        }
    }

    /// Return how many rows it has.
    pub fn rows(&self) -> usize {
        self.tables.iter().map(Table::count).sum()
    }

    /// Return the memory it takes for rows and variables, in bytes.
    pub fn bytes(&self) -> usize {
        let dense: usize = self
            .variables
            .values()
            .map(|one| one.numbers.capacity())
            .sum();
        let tables: usize = self.tables.iter().map(Table::bytes).sum();
        tables.saturating_add(dense.saturating_mul(size_of::<f32>()))
    }

    /// Return the ids of a table that have a row.
    pub fn trained(&self, table: usize) -> Vec<u64> {
        self.tables.get(table).map_or_else(Vec::new, Table::trained)
    }

    /// Write the weights of rows of a table to `out`.
    pub fn pull(&self, catalog: &Catalog, table: usize, ids: &[u64], out: &mut [f32]) {
        if let Some(rows) = self.tables.get(table) {
            rows.pull(catalog, table, ids, out);
        }
    }

    /// Write the weights of rows of a table to `out`, rounded to bfloat16.
    pub fn pull_short(&self, catalog: &Catalog, table: usize, ids: &[u64], out: &mut [BFloat16]) {
        // As many rows at a time as the table brings near together: they are rounded while they are in the first cache.
        let width = catalog.numbers(table, &[0]);
        let mut weights = vec![0.0; width.saturating_mul(GROUP.min(ids.len()))];
        let places = out.chunks_mut(width.saturating_mul(GROUP).max(1));
        for (ids, out) in ids.chunks(GROUP).zip(places) {
            if let Some(weights) = weights.get_mut(..out.len()) {
                self.pull(catalog, table, ids, weights);
                convert(weights, out);
            }
        }
    }

    /// Return a dense variable's weights and the version of its last change, or nothing before its first value.
    pub fn variable(&self, catalog: &Catalog, variable: usize) -> Option<(&[f32], u64)> {
        let held = self.variables.get(&variable)?;
        let weights = held.numbers.get(..catalog.length(variable))?;
        Some((weights, held.changed))
    }

    /// Tell whether a variable of a part has no first value yet, and is not given one by it.
    pub fn lacks(&self, part: &Part<'_>) -> bool {
        let given = |variable| {
            part.dense
                .iter()
                .any(|dense| dense.is_first && dense.variable == variable)
        };
        let mut named = part.dense.iter().map(|dense| dense.variable);
        named.any(|variable| !self.variables.contains_key(&variable) && !given(variable))
    }

    /// Whether a part would change anything: first values of variables that have theirs do not.
    pub fn is_changed_by(&self, part: &Part<'_>) -> bool {
        let known = |dense: &crate::ps::protocol::part::Dense<'_>| {
            dense.is_first && self.variables.contains_key(&dense.variable)
        };
        !part.rows.is_empty() || !part.dense.iter().all(known)
    }

    /// Apply a part. A gradient for a variable that is not there is for one that a copy under way will bring.
    pub fn apply(&mut self, catalog: &Catalog, part: &Part<'_>, stamp: Option<Stamp>, pace: Pace) {
        self.count_change();
        if let Some(stamp) = stamp {
            self.stamps.add(stamp);
        }
        let time = u32::try_from(pace.step).unwrap_or(u32::MAX);
        let updates = catalog.updates(pace.rate, pace.step);
        for rows in &part.rows {
            let (Some(table), Some(described)) = (
                self.tables.get_mut(rows.table),
                catalog.tables().get(rows.table),
            ) else {
                continue;
            };
            let [plain, decaying] = &updates;
            let update = if described.decays { decaying } else { plain };
            let gradients = rows.gradients.wide();
            table.push(catalog, rows.table, rows.ids, &gradients, update, time);
        }
        for dense in &part.dense {
            let numbers = dense.numbers.wide();
            if dense.is_first {
                let version = self.version;
                self.variables
                    .entry(dense.variable)
                    .or_insert_with(|| Variable {
                        numbers: catalog.begin_variable(&numbers),
                        changed: version,
                    });
            } else if let Some(held) = self.variables.get_mut(&dense.variable) {
                catalog.change(dense.variable, &mut held.numbers, &numbers, &updates);
                held.changed = self.version;
            }
        }
    }

    fn count_change(&mut self) {
        self.version = self.version.saturating_add(1);
    }

    /// Keep a push for its step, which is that of its pace (rule A2).
    pub fn keep(&mut self, stamp: Stamp, pace: Pace, words: Excerpt) {
        self.count_change();
        self.stamps.add(stamp);
        self.kept.insert((pace.step, stamp), Kept { pace, words });
    }

    /// Return what is kept, by step and stamp.
    pub fn kept(&self) -> impl Iterator<Item = (&(u64, Stamp), &Kept)> {
        self.kept.iter()
    }

    /// Whether anything is kept for a step before this one.
    pub fn lags(&self, step: u64) -> bool {
        self.kept
            .first_key_value()
            .is_some_and(|((of, _), _)| *of < step)
    }

    /// Apply what is kept for the steps before this one, each as one push that is the sum of its own (rule A3); all of it or, if anything
    /// can't be read, nothing.
    pub fn step(&mut self, catalog: &Catalog, slot: u32, step: u64) -> Result<(), String> {
        let first_later = (step, Stamp { task: 0, chunk: 0 });
        let mut due: Vec<(u64, Pace, Sum)> = Vec::new();
        for ((of, _), kept) in self.kept.range(..first_later) {
            let part = Part::read(&kept.words, catalog, slot)?;
            match due.last_mut().filter(|(last, _, _)| last == of) {
                Some((_, _, sum)) => sum.add(&part),
                None => {
                    let mut sum = Sum::default();
                    sum.add(&part);
                    due.push((*of, kept.pace, sum));
                }
            }
        }
        self.kept = self.kept.split_off(&first_later);
        // One change, of however many steps.
        let before = self.version;
        for (_, pace, sum) in due {
            self.version = before;
            sum.with(|part| self.apply(catalog, part, None, pace));
        }
        self.version = before;
        self.count_change();
        Ok(())
    }

    /// Forget rows that were pushed last before step `time`, and all sightings of ids without a row.
    pub fn expire(&mut self, time: u32) {
        self.count_change();
        self.tables.iter_mut().for_each(|table| table.expire(time));
    }

    /// Begin a copy.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            ids: self.tables.iter().map(Table::ids).enumerate().collect(),
            variables: self.variables.keys().copied().collect(),
            read: 0,
        }
    }

    /// Return the next piece of a copy, of at most 256 KiB unless one row is larger, or `None` when all that was there has been read.
    ///
    /// In words: (1, table), number of rows, their ids, their times (halves), their numbers; (2, table), number of ids, the ids, how often
    /// they were seen (halves); or (3, variable), (first element, count), version of the last change, the elements' weights, and each part
    /// of their optimizer's state. So an element comes with all of its state: a push that the receiver hears between two pieces finds both
    /// or neither.
    pub fn piece(&self, catalog: &Catalog, cursor: &mut Cursor) -> Option<Vec<u64>> {
        while let Some((table, ids)) = cursor.ids.last_mut() {
            let words = self.rows_piece(catalog, *table, ids);
            if ids.is_empty() {
                cursor.ids.pop();
            }
            if words.is_some() {
                return words;
            }
        }
        while let Some(variable) = cursor.variables.last() {
            if let Some(words) = self.variable_piece(catalog, *variable, &mut cursor.read) {
                return Some(words);
            }
            cursor.variables.pop();
            cursor.read = 0;
        }
        None
    }

    /// Return a piece of a variable from the element `read` on, which is moved behind it; nothing behind the last one.
    fn variable_piece(
        &self,
        catalog: &Catalog,
        variable: usize,
        read: &mut usize,
    ) -> Option<Vec<u64>> {
        let held = self.variables.get(&variable)?;
        let (parts, length) = (parts(catalog), catalog.length(variable));
        let most = PIECE.checked_div(parts).unwrap_or(0).max(1);
        let count = length.checked_sub(*read)?.min(most);
        if count == 0 {
            return None;
        }
        let mut words = vec![
            pair(DENSE, variable as u32),
            pair(*read as u32, count as u32),
            held.changed,
        ];
        let mut numbers = Vec::with_capacity(parts.saturating_mul(count));
        for part in held.numbers.chunks_exact(length) {
            numbers.extend_from_slice(part.get(*read..)?.get(..count)?);
        }
        put_numbers(&mut words, &numbers);
        *read = read.saturating_add(count);
        Some(words)
    }

    /// Return a piece of rows, or of sightings, of the last of these ids, which are taken away.
    fn rows_piece(&self, catalog: &Catalog, table: usize, ids: &mut Vec<u64>) -> Option<Vec<u64>> {
        let stride = catalog.stride(table);
        let most = PIECE.checked_div(stride).unwrap_or(0).min(ids.len());
        let (mut taken, mut metas) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let (mut numbers, mut kind) = (Vec::with_capacity(most.saturating_mul(stride)), None);
        let rows = self.tables.get(table)?;
        let room = PIECE.checked_sub(stride);
        while let Some(id) = ids.last() {
            // What has expired since the copy began is not there any more.
            if let Some((meta, row)) = rows.kept(*id) {
                let this = if row.is_empty() { SIGHTINGS } else { ROWS };
                let is_full =
                    room.is_none_or(|room| numbers.len() > room) || taken.len() == PIECE / 2;
                if kind.is_some_and(|kind| kind != this) || (is_full && !taken.is_empty()) {
                    break;
                }
                kind = Some(this);
                taken.push(*id);
                metas.push(meta);
                numbers.extend_from_slice(row);
            }
            ids.pop();
        }
        let mut words = vec![pair(kind?, table as u32), taken.len() as u64];
        words.extend_from_slice(&taken);
        put_halves(&mut words, &metas);
        put_numbers(&mut words, &numbers);
        Some(words)
    }

    /// Take a piece in, over what is there; nothing of one that is malformed.
    pub fn take(&mut self, catalog: &Catalog, words: &[u64]) -> Result<(), Malformed> {
        let mut reader = Reader::new(words);
        let (kind, which) = reader.pair()?;
        let which = which as usize;
        match kind {
            ROWS | SIGHTINGS => {
                let table = self
                    .tables
                    .get_mut(which)
                    .ok_or(Malformed("it names a table that is not there"))?;
                let stride = if kind == ROWS {
                    catalog.stride(which)
                } else {
                    0
                };
                let count = usize::try_from(reader.word()?).unwrap_or(usize::MAX);
                let ids = reader.words(count)?;
                let metas = reader.halves(count)?;
                let numbers = reader.numbers(count.saturating_mul(stride))?;
                reader.end()?;
                let mut rows = numbers.chunks_exact(stride.max(1));
                for (id, meta) in ids.iter().zip(metas) {
                    table.keep(*id, *meta, rows.next().unwrap_or(&[]));
                }
            }
            DENSE => {
                if which >= catalog.variables().len() {
                    return Err(Malformed("it names a variable that is not there"));
                }
                let (parts, length) = (parts(catalog), catalog.length(which));
                let (from, count) = reader.pair()?;
                let (from, count) = (from as usize, count as usize);
                let changed = reader.word()?;
                let end = from.saturating_add(count);
                if end > length {
                    return Err(Malformed("a variable is longer than it should be"));
                }
                let numbers = reader.numbers(count.saturating_mul(parts))?;
                reader.end()?;
                let held = self.variables.entry(which).or_insert_with(|| Variable {
                    numbers: vec![0.0; length.saturating_mul(parts)],
                    changed,
                });
                held.changed = changed;
                let wholes = held.numbers.chunks_exact_mut(length.max(1));
                for (whole, part) in wholes.zip(numbers.chunks_exact(count.max(1))) {
                    if let Some(place) = whole.get_mut(from..end) {
                        place.copy_from_slice(part);
                    }
                }
            }
            _ => return Err(Malformed("it is no piece of a slot")),
        }
        Ok(())
    }
}

/// Return how many numbers a variable has for each element: its weight, and its optimizer's state.
fn parts(catalog: &Catalog) -> usize {
    catalog.rule().state().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::protocol::catalog::Variable as Described;
    use crate::ps::protocol::numbers::Numbers;
    use crate::ps::protocol::part::Dense;

    #[test]
    fn a_copy_of_a_large_variable_is_whole_though_pushes_come_between_its_pieces() {
        let length = 70_000;
        let variable = Described {
            name: "kernel".into(),
            length,
            decays: false,
            adds: false,
        };
        let rule = Rule::Adagrad {
            initial_accumulator: 0.1,
            epsilon: 1e-7,
        };
        let catalog = Catalog::new(0, 1, vec![], vec![variable], rule, 0.0);
        let push = |data: &mut Data, number: f32, is_first: bool| {
            let numbers = vec![number; length];
            let dense = Dense {
                variable: 0,
                is_first,
                numbers: Numbers::Long(&numbers),
            };
            let part = Part {
                dense: vec![dense],
                ..Part::default()
            };
            data.apply(&catalog, &part, None, Pace { rate: 0.5, step: 1 });
        };
        let (mut primary, mut receiver) = (Data::new(&catalog), Data::new(&catalog));
        push(&mut primary, 1.0, true);
        push(&mut primary, 3.0, false);
        let mut cursor = primary.cursor();
        let mut pieces = 0;
        while let Some(piece) = primary.piece(&catalog, &mut cursor) {
            receiver.take(&catalog, &piece).expect("a piece");
            pieces += 1;
            for data in [&mut primary, &mut receiver] {
                push(data, 2.0, false);
            }
        }
        assert!(pieces > 2, "{pieces} pieces");
        assert_eq!(
            receiver.variables[&0].numbers,
            primary.variables[&0].numbers
        );
    }
}
