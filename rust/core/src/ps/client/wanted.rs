//! The rows and variables that a worker wants, how a slot is asked for its part of them, and where what comes is put.
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
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::ps::client::batch::Batch;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::stamps::Stamp;
use crate::ps::protocol::steps::Need;
use crate::ps::protocol::wire::{Dense, Known, Pull, PulledRows};

/// The rows and variables that a worker wants.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The chunk that they are for.
    pub chunk: Option<Stamp>,
    /// What must be settled before they may be read.
    pub need: Need,
    pub batches: Vec<Arc<Batch>>,
    /// Rows are to come as bfloat16.
    pub is_short: bool,
    pub variables: Vec<usize>,
    /// A table of which all ids are wanted that have a row, in these slots.
    pub listed: Option<(usize, Range<u32>)>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// Weights of each batch's distinct ids.
    pub rows: Vec<Vec<f32>>,
    /// Dense variables as they are; `None` before the first value.
    pub variables: Vec<(usize, Option<Came>)>,
    /// Slots that hold the chunk already, as all servers do that must.
    pub held: BTreeSet<u32>,
    /// The ids that were to be listed, in no order.
    pub listed: Vec<u64>,
}

/// A dense variable as it came last: servers say only that it is unchanged, until it is not.
#[derive(Debug, Clone, PartialEq)]
pub struct Came {
    pub primary_epoch: u64,
    pub version: u64,
    pub weights: Arc<[f32]>,
}

/// Return what is asked of one slot, but for the term.
pub(super) fn pull_of<'a>(
    catalog: &Catalog,
    wanted: &'a Wanted,
    slot: u32,
    came: &[Option<Came>],
) -> Pull<'a> {
    let rows = wanted
        .batches
        .iter()
        .filter_map(|batch| Some((batch.table(), batch.ids().get(batch.of_slot(slot))?)))
        .filter(|(_, ids)| !ids.is_empty())
        .collect();
    let dense = wanted
        .variables
        .iter()
        .filter(|variable| catalog.slot_of_variable(**variable) == slot)
        .map(|variable| known(*variable, came.get(*variable).and_then(Option::as_ref)))
        .collect();
    let listed = wanted.listed.as_ref();
    Pull {
        slot,
        term: 0,
        rows,
        is_short: wanted.is_short,
        dense,
        listed: listed.and_then(|(table, slots)| slots.contains(&slot).then_some(*table)),
    }
}

/// Return what a server has to know of a variable so that it need not come again.
fn known(variable: usize, came: Option<&Came>) -> Known {
    let (primary_epoch, version) = came.map_or((0, 0), |came| (came.primary_epoch, came.version));
    Known {
        variable,
        primary_epoch,
        version,
    }
}

/// Put what was pulled of a slot where it belongs.
pub(super) fn take_rows(
    catalog: &Catalog,
    wanted: &Wanted,
    asked: &Pull<'_>,
    pulled: PulledRows<'_>,
    found: &mut Found,
    came: &mut [Option<Came>],
) {
    let mut rows = pulled.rows;
    for (batch, out) in wanted.batches.iter().zip(&mut found.rows) {
        let range = batch.of_slot(asked.slot);
        let numbers = |ids: std::ops::RangeTo<usize>| {
            let ids = batch.ids().get(ids).unwrap_or_default();
            catalog.numbers(batch.table(), ids)
        };
        let (start, end) = (numbers(..range.start), numbers(..range.end));
        let of_batch;
        (of_batch, rows) = rows.split_at(end.saturating_sub(start));
        if let Some(place) = out.get_mut(start..end) {
            of_batch.copy_to(place);
        }
    }
    for (asked, dense) in asked.dense.iter().zip(pulled.dense) {
        let Some(came) = came.get_mut(asked.variable) else {
            continue;
        };
        match dense {
            Dense::Missing => *came = None,
            // It may have come for another ticket, of which nothing was taken yet: so it is sent with each.
            Dense::Unchanged => {}
            Dense::Changed { version, weights } => {
                *came = Some(Came {
                    primary_epoch: pulled.primary_epoch,
                    version,
                    weights: weights.into(),
                });
            }
        }
        found.variables.push((asked.variable, came.clone()));
    }
    found.listed.extend_from_slice(pulled.listed);
    if pulled.has_chunk {
        found.held.insert(asked.slot);
    }
}
