//! What a server holds of a slot: rows, dense variables, and the memory of the chunks that are in them.
use std::collections::BTreeMap;
use std::sync::Arc;

use super::catalog::Catalog;
use super::error::Malformed;
use super::part::{Part, Sum};
use super::stamps::{Stamp, Stamps};
use super::table::Table;
use super::words::{Reader, pair, put_halves, put_numbers};

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
    pub words: Arc<[u64]>,
}

/// The content of a slot.
#[derive(Debug, Clone)]
pub struct Data {
    tables: Vec<Table>,
    variables: BTreeMap<usize, Variable>,
    /// By step and stamp, in the order in which they are added up.
    kept: BTreeMap<(u64, Stamp), Kept>,
    /// Changes so far, the same number at all replicas.
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
        self.tables.iter().map(Table::bytes).sum::<usize>() + dense * size_of::<f32>()
    }

    /// Return the ids of a table that have a row.
    pub fn trained(&self, table: usize) -> Vec<u64> {
        self.tables[table].trained()
    }

    /// Write the weights of rows of a table to `out`.
    pub fn pull(&self, catalog: &Catalog, table: usize, ids: &[u64], out: &mut [f32]) {
        self.tables[table].pull(catalog, table, ids, out);
    }

    /// Return a dense variable's weights and the version of its last change, or nothing before its first value.
    pub fn variable(&self, catalog: &Catalog, variable: usize) -> Option<(&[f32], u64)> {
        let held = self.variables.get(&variable)?;
        Some((
            &held.numbers[..catalog.variables()[variable].length],
            held.changed,
        ))
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
        let known = |dense: &super::part::Dense<'_>| {
            dense.is_first && self.variables.contains_key(&dense.variable)
        };
        !part.rows.is_empty() || !part.dense.iter().all(known)
    }

    /// Apply a part. A gradient for a variable that is not there is for one that a copy under way will bring.
    pub fn apply(&mut self, catalog: &Catalog, part: &Part<'_>, stamp: Option<Stamp>, pace: Pace) {
        self.version += 1;
        if let Some(stamp) = stamp {
            self.stamps.add(stamp);
        }
        let time = u32::try_from(pace.step).unwrap_or(u32::MAX);
        let updates = catalog.updates(pace.rate, pace.step);
        for rows in &part.rows {
            let update = &updates[usize::from(catalog.tables()[rows.table].decays)];
            self.tables[rows.table].push(
                catalog,
                rows.table,
                rows.ids,
                rows.gradients,
                update,
                time,
            );
        }
        for dense in &part.dense {
            if dense.is_first {
                let version = self.version;
                self.variables
                    .entry(dense.variable)
                    .or_insert_with(|| Variable {
                        numbers: catalog.begin_variable(dense.numbers),
                        changed: version,
                    });
            } else if let Some(held) = self.variables.get_mut(&dense.variable) {
                catalog.change(dense.variable, &mut held.numbers, dense.numbers, &updates);
                held.changed = self.version;
            }
        }
    }

    /// Keep a push for its step, which is that of its pace (rule A2).
    pub fn keep(&mut self, stamp: Stamp, pace: Pace, words: Arc<[u64]>) {
        self.version += 1;
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

    /// Apply what is kept for the steps before this one, each as one push that is the sum of its own (rule A3).
    pub fn step(&mut self, catalog: &Catalog, slot: u32, step: u64) -> Result<(), String> {
        let version = self.version + 1;
        let later = self.kept.split_off(&(step, Stamp { task: 0, chunk: 0 }));
        let mut due = std::mem::replace(&mut self.kept, later);
        while let Some(((of, _), first)) = due.first_key_value() {
            let (of, pace) = (*of, first.pace);
            let rest = due.split_off(&(of + 1, Stamp { task: 0, chunk: 0 }));
            let mut sum = Sum::default();
            for kept in std::mem::replace(&mut due, rest).values() {
                sum.add(&Part::read(&kept.words, catalog, slot)?);
            }
            // One change, of however many steps.
            self.version = version - 1;
            sum.with(|part| self.apply(catalog, part, None, pace));
        }
        self.version = version;
        Ok(())
    }

    /// Forget rows that were pushed last before step `time`, and all sightings of ids without a row.
    pub fn expire(&mut self, time: u32) {
        self.version += 1;
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
            let held = &self.variables[variable];
            let parts = 1 + catalog.rule().state();
            let length = held.numbers.len() / parts;
            let (from, end) = (cursor.read, length.min(cursor.read + PIECE / parts));
            if from < end {
                let mut words = vec![
                    pair(DENSE, *variable as u32),
                    pair(from as u32, (end - from) as u32),
                    held.changed,
                ];
                let mut numbers = Vec::with_capacity(parts * (end - from));
                for part in held.numbers.chunks_exact(length) {
                    numbers.extend_from_slice(&part[from..end]);
                }
                put_numbers(&mut words, &numbers);
                cursor.read = end;
                return Some(words);
            }
            cursor.variables.pop();
            cursor.read = 0;
        }
        None
    }

    /// Return a piece of rows, or of sightings, of the last of these ids, which are taken away.
    fn rows_piece(&self, catalog: &Catalog, table: usize, ids: &mut Vec<u64>) -> Option<Vec<u64>> {
        let (mut taken, mut metas, mut numbers, mut kind) =
            (Vec::new(), Vec::new(), Vec::new(), None);
        while let Some(id) = ids.last() {
            // What has expired since the copy began is not there any more.
            if let Some((meta, row)) = self.tables[table].kept(*id) {
                let this = if row.is_empty() { SIGHTINGS } else { ROWS };
                let is_full =
                    numbers.len() + catalog.stride(table) > PIECE || taken.len() == PIECE / 2;
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

    /// Take a piece in, over what is there.
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
                let count = reader.word()? as usize;
                let ids = reader.words(count)?;
                let metas = reader.halves(count)?;
                let numbers = reader.numbers(count * stride)?;
                for (at, (id, meta)) in ids.iter().zip(metas).enumerate() {
                    table.keep(*id, *meta, &numbers[at * stride..][..stride]);
                }
            }
            DENSE => {
                let described = catalog
                    .variables()
                    .get(which)
                    .ok_or(Malformed("it names a variable that is not there"))?;
                let parts = 1 + catalog.rule().state();
                let whole = described.length * parts;
                let (from, count) = reader.pair()?;
                let (from, count) = (from as usize, count as usize);
                let changed = reader.word()?;
                if from + count > described.length {
                    return Err(Malformed("a variable is longer than it should be"));
                }
                let numbers = reader.numbers(count * parts)?;
                let held = self.variables.entry(which).or_insert_with(|| Variable {
                    numbers: vec![0.0; whole],
                    changed,
                });
                held.changed = changed;
                for part in 0..parts {
                    let at = part * described.length + from;
                    held.numbers[at..at + count].copy_from_slice(&numbers[part * count..][..count]);
                }
            }
            _ => return Err(Malformed("it is no piece of a slot")),
        }
        reader.end()
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::Variable as Described;
    use super::super::optimizer::Rule;
    use super::super::part::Dense;
    use super::*;

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
                numbers: &numbers,
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
