//! How much one message asks for: what is too large for one goes in several.
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
use crate::net::frame::MESSAGE;
use crate::ps::client::push::Pushed;
use crate::ps::client::wanted::{Came, Wanted, pull_of};
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::numbers::words_of;

/// Words that one message asks for and brings at most, unless a single slot takes more: it has room for twice as many.
pub(super) const ROOM: usize = MESSAGE / 16;

/// Return how many words all of an ask and its answer have about.
pub(super) fn room(catalog: &Catalog, wanted: Option<&Wanted>, pushed: Option<&Pushed>) -> usize {
    let batches = wanted.iter().flat_map(|wanted| &wanted.batches);
    let rows = batches.map(|batch| {
        let numbers = catalog.numbers(batch.table(), batch.ids());
        let is_short = wanted.is_some_and(|wanted| wanted.is_short);
        batch
            .ids()
            .len()
            .saturating_add(words_of(numbers, is_short))
    });
    let variables = wanted.iter().flat_map(|wanted| &wanted.variables);
    let dense = variables.map(|variable| catalog.length(*variable).div_ceil(2));
    let push = pushed.map_or(0, Pushed::room);
    rows.chain(dense).fold(push, usize::saturating_add)
}

/// Slots to be pulled, and places in a push's parts.
pub(super) type Load = (Vec<u32>, Vec<usize>);

/// Share out what is asked of one server to messages that are not too large.
pub(super) fn split(
    catalog: &Catalog,
    came: &[Option<Came>],
    wanted: Option<&Wanted>,
    pushed: Option<&Pushed>,
    pulls: Vec<u32>,
    pushes: Vec<usize>,
) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    let (mut load, mut used) = (Load::default(), 0_usize);
    let mut make_room = |words: usize, load: &mut Load| {
        if used > 0 && used.saturating_add(words) > ROOM {
            loads.push(std::mem::take(load));
            used = 0;
        }
        used = used.saturating_add(words);
    };
    for slot in pulls {
        let pull = wanted.map(|wanted| pull_of(catalog, wanted, slot, came));
        let words = pull.map_or(0, |pull| {
            let ids = pull.rows.iter().map(|(_, ids)| ids.len().saturating_add(1));
            ids.fold(pull.answer(catalog), usize::saturating_add)
        });
        make_room(words, &mut load);
        load.0.push(slot);
    }
    for part in pushes {
        let words = pushed.map_or(0, |pushed| pushed.part(part).1.len().saturating_add(3));
        make_room(words, &mut load);
        load.1.push(part);
    }
    loads.push(load);
    loads
}
