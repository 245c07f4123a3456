//! What a server says to an ask: the rows at once, and what became of each part of a push when it is known. No sockets: `server.rs` carries
//! the packets.
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
use std::sync::Arc;

use crate::net::channel::Packet;
use crate::net::frame::{Kind, MESSAGE};
use crate::net::sink::Sink;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::excerpt::Arrived;
use crate::ps::protocol::wire::{self, Ask, Dense, Pull};
use crate::ps::server::data::Data;
use crate::ps::server::node::Node;
use crate::ps::server::slot::{Answer, Broken, Head, Ticket};

/// Apply the pushes of an ask, which came in a message; return what is known of them, which `report` says. The other pushes' answers will be told
/// for their slots' tickets.
pub fn answer(
    node: &Node,
    message: &Arc<Vec<u64>>,
    ask: &Ask<'_>,
    ticket: impl Fn(u32) -> Ticket,
) -> Result<Vec<(u32, Answer)>, Broken> {
    node.step(ask.pushes.iter().map(|push| push.slot))?;
    let mut pushes = node.pushes();
    // A part that is needed for longer keeps the whole message, which is fair only where there is little else in it.
    let parts: usize = ask.pushes.iter().map(|push| push.words.len()).sum();
    let is_mostly_parts = parts >= message.capacity() / 2;
    let answers = ask
        .pushes
        .iter()
        .filter_map(|push| {
            let ticket = ticket(push.slot);
            let head = Head {
                seen: push.seen,
                ..ask.head
            };
            let part = if is_mostly_parts {
                Arrived::within(message, push.words)
            } else {
                push.words.into()
            };
            let answer = pushes.push(push.slot, &head, push.term, part, ticket)?;
            Some((push.slot, answer))
        })
        .collect();
    Ok(answers)
}

/// What is to be done about the rows that an ask wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// They may not be read yet: steps before theirs are not complete, or required servers have not accepted them.
    Wait,
    /// It wants none.
    Nothing,
    /// `read` them now.
    Now,
}

/// Tell whether the rows that an ask wants may be read (rules A2 and A4).
pub fn reading(node: &Node, ask: &Ask<'_>) -> Result<Reading, Broken> {
    if ask.pulls.is_empty() {
        return Ok(Reading::Nothing);
    }
    if node.believes(&ask.need, &ask.confirmed) && !node.meets(&ask.need, ask.confirmed.roll_back())
    {
        return Ok(Reading::Wait);
    }
    node.step(ask.pulls.iter().map(|pull| pull.slot))?;
    if node.is_unread(ask.pulls.iter().map(|pull| pull.slot)) {
        return Ok(Reading::Wait);
    }
    Ok(Reading::Now)
}

/// Return how many words the answer to an ask takes at most, without the ids of a list.
pub fn room(node: &Node, ask: &Ask<'_>) -> usize {
    let pulls = ask.pulls.iter();
    pulls.map(|pull| pull.answer(node.catalog())).sum()
}

/// Write the rows that an ask wants, as they are now.
pub fn read(node: &Node, ask: &Ask<'_>, words: &mut impl Sink) {
    let catalog = node.catalog();
    let is_believed = node.believes(&ask.need, &ask.confirmed);
    // What the slots behind a list take at most has to find room in the message, too.
    let mut behind: usize = ask.pulls.iter().map(|pull| pull.answer(catalog)).sum();
    for pull in &ask.pulls {
        behind = behind.saturating_sub(pull.answer(catalog));
        let found = node.look(pull.slot, |slot| {
            let (entry, data) = (slot.entry()?, slot.read().filter(|_| is_believed)?);
            let listed = pull.listed.map(|table| data.trained(table));
            let ids = listed.as_ref().map_or(0, Vec::len);
            let (taken, own) = (
                words.len().saturating_add(behind),
                pull.answer(catalog).saturating_add(ids),
            );
            if own > MESSAGE / 8 && taken.saturating_add(wire::PULL_REFUSED) <= MESSAGE / 8 {
                wire::put_impossible(words, pull.slot, &too_long(ids, own));
                return Some(());
            }
            if taken.saturating_add(own) > MESSAGE / 8 {
                // It comes again, with fewer others.
                return None;
            }
            if catalog.policy().accumulates
                && (data.stamps.roll_back() != ask.confirmed.roll_back() || !slot.may_change())
            {
                // One of both has not heard of a roll-back, or another server may have gone on: these rows may be of another step.
                return None;
            }
            let has_chunk = ask.chunk.is_some_and(|stamp| slot.has(stamp, pull.term));
            let versions = (entry.primary_epoch, data.version);
            if pull.is_short {
                put_rows(
                    words,
                    catalog,
                    pull,
                    has_chunk,
                    versions,
                    data,
                    Data::pull_short,
                )?;
            } else {
                put_rows(words, catalog, pull, has_chunk, versions, data, Data::pull)?;
            }
            for known in &pull.dense {
                let dense = match data.variable(catalog, known.variable) {
                    None => Dense::Missing,
                    Some((_, version))
                        if (entry.primary_epoch, version)
                            == (known.primary_epoch, known.version) =>
                    {
                        Dense::Unchanged
                    }
                    Some((weights, version)) => Dense::Changed { version, weights },
                };
                wire::put_dense(words, known.variable, dense);
            }
            if let Some(ids) = listed {
                wire::put_listed(words, &ids);
            }
            Some(())
        });
        if found.flatten().is_none() {
            wire::put_elsewhere(words, pull.slot);
        }
    }
}

/// Append the rows of a pull as numbers of a kind; `take` puts those of a table where they belong.
fn put_rows<N: bytemuck::Pod>(
    words: &mut impl Sink,
    catalog: &Catalog,
    pull: &Pull<'_>,
    has_chunk: bool,
    versions: (u64, u64),
    data: &Data,
    take: impl Fn(&Data, &Catalog, usize, &[u64], &mut [N]),
) -> Option<()> {
    let count = pull.numbers(catalog);
    let mut numbers = wire::put_rows(words, pull.slot, has_chunk, versions, count);
    for (table, ids) in &pull.rows {
        let of_table;
        (of_table, numbers) = numbers.split_at_mut_checked(catalog.numbers(*table, ids))?;
        take(data, catalog, *table, ids, of_table);
    }
    Some(())
}

/// Say that a list is too long for any message, given how many ids and words its slot's answer has.
fn too_long(ids: usize, words: usize) -> String {
    let bytes = words.saturating_mul(8);
    format!(
        "{ids} rows of its table are in this slot: an answer with their ids takes {bytes} bytes, and a message holds {MESSAGE} (256 MiB). \
         With --embedding_expiry rows are forgotten that are not used any more"
    )
}

/// Return the packets that say what became of parts of a push, by slot.
pub fn report(node: &Node, request: u32, answers: &[(u32, Answer)]) -> Vec<Packet> {
    let mut words = Vec::with_capacity(answers.len());
    let mut packets = Vec::new();
    for (slot, answer) in answers {
        let entry = match answer {
            Answer::Moved => node.look(*slot, |slot| slot.entry()).flatten(),
            _ => None,
        };
        wire::put_outcome(&mut words, *slot, answer, entry);
        if let Answer::Refused(what) = answer {
            packets.push(Packet {
                kind: Kind::Refusal,
                number: request.into(),
                mark: (*slot).into(),
                words: wire::text(what),
            });
        }
    }
    packets.push(Packet {
        kind: Kind::Answers,
        number: request.into(),
        mark: node.me(),
        words,
    });
    packets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bfloat::BFloat16;
    use crate::ps::memory::initial::Initial;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::protocol::catalog::Table;
    use crate::ps::protocol::numbers::Numbers;
    use crate::ps::protocol::part::{Part, Rows};
    use crate::ps::protocol::placement::Entry;
    use crate::ps::protocol::stamps::Stamp;
    use crate::ps::protocol::steps::{Confirmed, Need};
    use crate::ps::protocol::wire::Pulled;
    use crate::ps::protocol::words::Reader;
    use crate::ps::server::data::Pace;
    use crate::ps::server::node::Bounds;
    use crate::ps::server::slot::UNSEEN;

    const NARROW: usize = 0;
    const WIDE: usize = 1;

    /// Two slots, a table of small rows, and one of which a single row nearly fills a message.
    fn catalog() -> Catalog {
        let table = |name: &str, width| Table {
            name: name.into(),
            width,
            initial: Initial::Constant(0.0),
            admission: 1,
            decays: false,
        };
        let tables = vec![table("narrow", 1), table("wide", MESSAGE / 4 - 64)];
        let rule = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        Catalog::new(3, 2, tables, vec![], rule, 0.0)
    }

    /// Be the primary of all slots.
    fn node(catalog: Catalog) -> Node {
        let slots = 0..catalog.slots();
        let node = Node::new(0, catalog);
        node.bound(&Bounds::NONE);
        let entry = Entry {
            term: 1,
            primary_epoch: 1,
            primary: 0,
            backup: None,
            restored: 0,
        };
        node.learn(slots.map(|slot| (slot, entry))).unwrap();
        node
    }

    fn rows_of(node: &Node, ask: &Ask<'_>) -> Vec<u64> {
        assert_eq!(reading(node, ask).unwrap(), Reading::Now);
        let mut words = Vec::new();
        read(node, ask, &mut words);
        words
    }

    fn nothing() -> Ask<'static> {
        let head = Head {
            stamp: Some(Stamp { task: 0, chunk: 0 }),
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 1.0, step: 0 },
            seen: UNSEEN,
        };
        Ask {
            head,
            chunk: None,
            need: Need::default(),
            confirmed: Confirmed::default(),
            pulls: vec![],
            pushes: vec![],
        }
    }

    #[test]
    fn short_rows_are_the_rounded_ones_and_take_as_much_room_as_is_said() {
        let initial = Initial::Uniform {
            low: -1.0,
            high: 1.0,
        };
        let tables = [3, 1].map(|width| Table {
            name: width.to_string(),
            width,
            initial,
            ..catalog().tables()[0].clone()
        });
        let catalog = Catalog::new(3, 1, tables.into(), vec![], catalog().rule(), 0.0);
        let node = node(catalog);
        let ids: Vec<u64> = (0..201).collect();
        let rows = |is_short| {
            let pull = Pull {
                term: 1,
                rows: vec![(0, &ids), (1, &ids[..3]), (0, &ids[5..6])],
                is_short,
                ..Pull::default()
            };
            let ask = Ask {
                pulls: vec![pull],
                ..nothing()
            };
            let words = rows_of(&node, &ask);
            let pull = &ask.pulls[0];
            assert_eq!(words.len(), pull.answer(node.catalog()));
            let mut reader = Reader::new(&words);
            let pulled = wire::pulled(&mut reader, node.catalog(), pull).unwrap();
            let Pulled::Rows(pulled) = pulled else {
                panic!("no rows");
            };
            assert_eq!(pulled.rows.is_short(), is_short);
            (pulled.rows.wide().into_owned(), words.len())
        };
        let ((long, most), (short, words)) = (rows(false), rows(true));
        let rounded = |number: &f32| f32::from(BFloat16::from(*number));
        assert_eq!(short, long.iter().map(rounded).collect::<Vec<_>>());
        assert!(long != short && words < most / 2 + 4, "{words} of {most}");
    }

    #[test]
    fn a_list_that_does_not_fit_comes_another_time_or_is_refused_for_good() {
        let node = node(catalog());
        let of_slot =
            |table, slot| (0..100).filter(move |id| catalog().slot_of_row(table, *id) == slot);
        let ids: Vec<u64> = of_slot(NARROW, 1).collect();
        let gradients = vec![1.0; ids.len()];
        let part = Part {
            rows: vec![Rows {
                table: NARROW,
                ids: &ids,
                gradients: Numbers::Long(&gradients),
            }],
            dense: vec![],
        };
        let mut words = Vec::new();
        part.write(&mut words);
        let head = nothing().head;
        assert_eq!(
            node.pushes().push(1, &head, 1, (&words).into(), 0),
            Some(Answer::Applied)
        );
        let large = of_slot(WIDE, 0).next().unwrap();
        let list = Pull {
            slot: 1,
            term: 1,
            listed: Some(NARROW),
            ..Pull::default()
        };
        let row = Pull {
            slot: 0,
            term: 1,
            rows: vec![(WIDE, std::slice::from_ref(&large))],
            ..Pull::default()
        };
        let answers = |pulls: Vec<Pull<'_>>| {
            let ask = Ask { pulls, ..nothing() };
            let words = rows_of(&node, &ask);
            assert!(words.len() <= MESSAGE / 8);
            let mut reader = Reader::new(&words);
            let found = ask.pulls.iter().map(|pull| {
                let pulled = wire::pulled(&mut reader, node.catalog(), pull).unwrap();
                match pulled {
                    Pulled::Rows(pulled) => Ok(pulled.listed.len()),
                    Pulled::Elsewhere => Err(String::new()),
                    Pulled::Refused(why) => Err(why),
                }
            });
            found.collect::<Vec<_>>()
        };
        let later = || Err(String::new());
        assert_eq!(answers(vec![list.clone(), row.clone()]), [later(), Ok(0)]);
        assert_eq!(answers(vec![row, list.clone()]), [Ok(0), later()]);
        assert_eq!(answers(vec![list.clone()]), [Ok(ids.len())]);
        // With a row that takes so much in its own slot there is never room for it: nobody has to ask again.
        let large = of_slot(WIDE, 1).next().unwrap();
        let both = Pull {
            rows: vec![(WIDE, std::slice::from_ref(&large))],
            ..list.clone()
        };
        let [Err(why), Ok(count)] = &answers(vec![both, list])[..] else {
            panic!("not refused");
        };
        assert!(why.contains("a message holds 268435456 (256 MiB)"), "{why}");
        assert_eq!(*count, ids.len());
    }
}
