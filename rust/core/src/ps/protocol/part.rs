//! One chunk's gradient for one slot, as it travels: from the client to the primary, and unchanged from there to other servers.
//!
//! In words of 8 bytes: (number of tables, number of variables); for each table (table, number of ids), the ids, the gradients' numbers;
//! for each variable (variable, 0 for a gradient or 1 for its first value), its numbers. Pairs are two halves of a word. A table or variable
//! is named with a flag if its numbers are short (`numbers`): the words say so themselves, wherever they are kept or sent on to.
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

use crate::net::sink::Sink;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::numbers::{Numbers, flagged, unflagged};
use crate::ps::protocol::words::{Reader, pair};

/// Gradients of some rows of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rows<'a> {
    pub table: usize,
    pub ids: &'a [u64],
    pub gradients: Numbers<'a>,
}

/// A dense variable's gradient, or its first value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense<'a> {
    pub variable: usize,
    pub is_first: bool,
    pub numbers: Numbers<'a>,
}

/// A part that has been checked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Part<'a> {
    pub rows: Vec<Rows<'a>>,
    pub dense: Vec<Dense<'a>>,
}

impl<'a> Part<'a> {
    /// Read a part for a slot; says what is wrong with one that can't be applied as a whole.
    pub fn read(words: &'a [u64], catalog: &Catalog, slot: u32) -> Result<Part<'a>, String> {
        let mut reader = Reader::new(words);
        let part = Part::take(&mut reader, catalog, slot)?;
        reader
            .end()
            .map_err(|error| format!("a push can't be read: {error}"))?;
        Ok(part)
    }

    fn take(reader: &mut Reader<'a>, catalog: &Catalog, slot: u32) -> Result<Part<'a>, String> {
        let bad = |error| format!("a push can't be read: {error}");
        let (tables, variables) = reader.pair().map_err(bad)?;
        let mut part = Part::default();
        for _ in 0..tables {
            let (name, count) = reader.pair().map_err(bad)?;
            let (table, is_short) = unflagged(name);
            let table = table as usize;
            let described = catalog.tables().get(table).ok_or_else(|| {
                format!(
                    "a push names table {table}, and there are {}",
                    catalog.tables().len()
                )
            })?;
            let ids = reader.words(count as usize).map_err(bad)?;
            let gradients = reader
                .numbers_as(ids.len().saturating_mul(described.width), is_short)
                .map_err(bad)?;
            if let Some(id) = ids
                .iter()
                .find(|id| catalog.slot_of_row(table, **id) != slot)
            {
                return Err(format!(
                    "row {id} of table {} is not one of slot {slot}",
                    described.name
                ));
            }
            if let Some((at, number)) = gradients.not_finite()
                && let Some(id) = at.checked_div(described.width).and_then(|row| ids.get(row))
            {
                return Err(format!(
                    "the gradient of row {id} of table {} holds {number}",
                    described.name
                ));
            }
            part.rows.push(Rows {
                table,
                ids,
                gradients,
            });
        }
        for _ in 0..variables {
            let (name, kind) = reader.pair().map_err(bad)?;
            let (variable, is_short) = unflagged(name);
            let variable = variable as usize;
            let described = catalog.variables().get(variable).ok_or_else(|| {
                format!(
                    "a push names variable {variable}, and there are {}",
                    catalog.variables().len()
                )
            })?;
            let numbers = reader.numbers_as(described.length, is_short).map_err(bad)?;
            if catalog.slot_of_variable(variable) != slot {
                return Err(format!("variable {} is not in slot {slot}", described.name));
            }
            if kind > 1 {
                return Err(format!(
                    "variable {} comes as {kind}, neither gradient nor value",
                    described.name
                ));
            }
            if let Some((_, number)) = numbers.not_finite() {
                let what = if kind == 1 { "first value" } else { "gradient" };
                return Err(format!(
                    "the {what} of variable {} holds {number}",
                    described.name
                ));
            }
            part.dense.push(Dense {
                variable,
                is_first: kind == 1,
                numbers,
            });
        }
        Ok(part)
    }

    /// Append the part as `read` reads it.
    pub fn write(&self, words: &mut impl Sink) {
        words.push(pair(self.rows.len() as u32, self.dense.len() as u32));
        for rows in &self.rows {
            let name = flagged(rows.table as u32, rows.gradients.is_short());
            words.push(pair(name, rows.ids.len() as u32));
            words.extend_from_slice(rows.ids);
            rows.gradients.put(words);
        }
        for dense in &self.dense {
            let name = flagged(dense.variable as u32, dense.numbers.is_short());
            words.push(pair(name, u32::from(dense.is_first)));
            dense.numbers.put(words);
        }
    }
}

/// The gradients of several parts for one slot, added up in the order in which they come.
#[derive(Debug, Default)]
pub struct Sum {
    rows: BTreeMap<usize, BTreeMap<u64, Vec<f32>>>,
    dense: BTreeMap<usize, Vec<f32>>,
}

impl Sum {
    /// Add a part, which has no first values.
    pub fn add(&mut self, part: &Part<'_>) {
        for rows in &part.rows {
            let sums = self.rows.entry(rows.table).or_default();
            let gradients = rows.gradients.wide();
            let width = gradients.len().checked_div(rows.ids.len()).unwrap_or(0);
            for (id, gradient) in rows.ids.iter().zip(gradients.chunks_exact(width.max(1))) {
                sums.entry(*id)
                    .and_modify(|sum| add(sum, gradient))
                    .or_insert_with(|| gradient.to_vec());
            }
        }
        for dense in &part.dense {
            let numbers = dense.numbers.wide();
            self.dense
                .entry(dense.variable)
                .and_modify(|sum| add(sum, &numbers))
                .or_insert_with(|| numbers.to_vec());
        }
    }

    /// Call `take` with the sum as one part.
    pub fn with<R>(&self, take: impl FnOnce(&Part<'_>) -> R) -> R {
        let rows: Vec<(usize, Vec<u64>, Vec<f32>)> = self
            .rows
            .iter()
            .map(|(table, sums)| {
                (
                    *table,
                    sums.keys().copied().collect(),
                    sums.values().flatten().copied().collect(),
                )
            })
            .collect();
        take(&Part {
            rows: rows
                .iter()
                .map(|(table, ids, gradients)| Rows {
                    table: *table,
                    ids,
                    gradients: Numbers::Long(gradients),
                })
                .collect(),
            dense: self
                .dense
                .iter()
                .map(|(variable, numbers)| Dense {
                    variable: *variable,
                    is_first: false,
                    numbers: Numbers::Long(numbers),
                })
                .collect(),
        })
    }
}

fn add(sum: &mut [f32], numbers: &[f32]) {
    sum.iter_mut()
        .zip(numbers)
        .for_each(|(sum, number)| *sum += number);
}
