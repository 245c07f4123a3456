//! The push of one chunk: its gradients encoded, slot by slot, so that each part is a piece of memory that can go to any server, again and again.
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ps::client::batch::Batch;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::numbers::{flagged, put_as, words_of};
use crate::ps::protocol::words::pair;
use crate::ps::server::slot::Head;

/// A chunk's gradients, encoded.
#[derive(Debug)]
pub struct Pushed {
    pub(super) head: Head,
    /// So many chunks of its task are settled when it is, or 0 if nobody has to know (rule A3).
    pub(super) confirms: u16,
    words: Vec<u64>,
    /// Slots, and where their parts lie in the words.
    parts: Vec<(u32, std::ops::Range<usize>)>,
}

impl Pushed {
    /// Encode gradients: of batches, whose rows are given by distinct ids, and of dense variables, or their first values.
    ///
    /// `is_short`: gradients are rounded to bfloat16. First values and what is added keep all their bits: they are weights and statistics.
    pub fn new(
        catalog: &Catalog,
        is_short: bool,
        head: Head,
        rows: &[(Arc<Batch>, Cow<'_, [f32]>)],
        dense: &[(usize, &[f32])],
        is_first: bool,
    ) -> Pushed {
        let mut variables: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, (variable, _)) in dense.iter().enumerate() {
            variables
                .entry(catalog.slot_of_variable(*variable))
                .or_default()
                .push(at);
        }
        // Of each slot a head, and one for each table; a table's numbers fill their last word perhaps by half.
        let heads = catalog.slots() as usize * (1 + 2 * rows.len());
        let numbers = rows
            .iter()
            .map(|(batch, gradients)| batch.ids().len() + words_of(gradients.len(), is_short));
        let is_short_value =
            |variable: usize| is_short && !is_first && !catalog.variables()[variable].adds;
        let values = dense
            .iter()
            .map(|(variable, numbers)| 1 + words_of(numbers.len(), is_short_value(*variable)));
        let mut pushed = Pushed {
            head,
            confirms: 0,
            words: Vec::with_capacity(heads + numbers.chain(values).sum::<usize>()),
            parts: Vec::new(),
        };
        for slot in 0..catalog.slots() {
            let of_slot = variables.get(&slot).map_or(&[][..], Vec::as_slice);
            let touched: Vec<_> = rows
                .iter()
                .filter(|(batch, _)| !batch.of_slot(slot).is_empty())
                .collect();
            if of_slot.is_empty() && touched.is_empty() {
                continue;
            }
            let (words, begin) = (
                &mut pushed.words,
                pushed.parts.last().map_or(0, |(_, range)| range.end),
            );
            words.push(pair(touched.len() as u32, of_slot.len() as u32));
            for (batch, gradients) in touched {
                let (range, width) = (batch.of_slot(slot), catalog.tables()[batch.table()].width);
                let name = flagged(batch.table() as u32, is_short);
                words.push(pair(name, range.len() as u32));
                words.extend_from_slice(&batch.ids()[range.clone()]);
                let gradients = &gradients[range.start * width..range.end * width];
                put_as(words, gradients, is_short);
            }
            for at in of_slot {
                let (variable, numbers) = dense[*at];
                let is_short = is_short_value(variable);
                let name = flagged(variable as u32, is_short);
                words.push(pair(name, u32::from(is_first)));
                put_as(words, numbers, is_short);
            }
            pushed.parts.push((slot, begin..pushed.words.len()));
        }
        pushed
    }

    /// Let its stamp alone count in these slots too, where it changes nothing.
    pub fn marking(mut self, slots: &BTreeSet<u32>) -> Pushed {
        for slot in slots {
            if let Err(at) = self.parts.binary_search_by_key(slot, |(of, _)| *of) {
                let begin = self.words.len();
                self.words.push(pair(0, 0));
                self.parts.insert(at, (*slot, begin..begin + 1));
            }
        }
        self
    }

    /// Let all servers know, once it is settled, that so many chunks of its task are.
    pub fn confirming(self, confirms: u16) -> Pushed {
        Pushed { confirms, ..self }
    }

    /// Return the slots that it touches.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().map(|(slot, _)| *slot)
    }

    /// Return how many slots it touches.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Return how many words its parts have.
    pub fn room(&self) -> usize {
        self.words.len()
    }

    /// Whether it touches none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Return which part is a slot's.
    pub fn of_slot(&self, slot: u32) -> Option<usize> {
        self.parts.binary_search_by_key(&slot, |(of, _)| *of).ok()
    }

    /// Return the slot of a part, and its words.
    pub fn part(&self, at: usize) -> (u32, &[u64]) {
        let (slot, range) = &self.parts[at];
        (*slot, &self.words[range.clone()])
    }
}
