//! What a server says to an ask: the rows at once, and what became of each part of a push when it is known. No sockets: `server.rs` carries
//! the packets.
use super::node::Node;
use super::slot::{Answer, Broken, Head, Ticket};
use super::wire::{self, Ask, Dense, Pull};
use crate::net::channel::Packet;
use crate::net::frame::Kind;

/// Apply the pushes of an ask; return what is known of them, behind the rows that it asks for, and whether these may not be read yet: then
/// they are for `rows` later. The other pushes' answers will be told for their slots' tickets.
pub fn answer(
    node: &Node,
    request: u32,
    ask: &Ask<'_>,
    ticket: impl Fn(u32) -> Ticket,
) -> Result<(Vec<Packet>, bool), Broken> {
    node.step(ask.pushes.iter().map(|push| push.slot))?;
    let answers: Vec<(u32, Answer)> = ask
        .pushes
        .iter()
        .filter_map(|push| {
            let ticket = ticket(push.slot);
            let head = Head {
                seen: push.seen,
                ..ask.head
            };
            let answer = node.push(push.slot, &head, push.term, push.words, ticket)?;
            Some((push.slot, answer))
        })
        .collect();
    let mut packets = Vec::new();
    let waits = !ask.pulls.is_empty() && !node.meets(&ask.need, ask.confirmed.roll_back());
    if !waits {
        packets.extend(rows(node, request, ask)?);
    }
    if !answers.is_empty() {
        packets.extend(report(node, request, &answers));
    }
    Ok((packets, waits))
}

/// Return the rows that an ask wants, as they are now; nothing if it wants none.
pub fn rows(node: &Node, request: u32, ask: &Ask<'_>) -> Result<Option<Packet>, Broken> {
    if ask.pulls.is_empty() {
        return Ok(None);
    }
    node.step(ask.pulls.iter().map(|pull| pull.slot))?;
    Ok(Some(Packet {
        kind: Kind::Rows,
        number: request.into(),
        mark: node.me(),
        words: read(node, ask),
    }))
}

fn read(node: &Node, ask: &Ask<'_>) -> Vec<u64> {
    let catalog = node.catalog();
    let numbers = |pull: &Pull<'_>| -> usize {
        let rows = pull.rows.iter();
        rows.map(|(table, ids)| catalog.tables()[*table].width * ids.len())
            .sum()
    };
    // A slot's rows have a head of four words, and fill their last word perhaps by half.
    let room = ask.pulls.iter().map(|pull| 5 + numbers(pull) / 2).sum();
    let mut words = Vec::with_capacity(room);
    // A slot that is past a chunk's step says so (rule A2).
    let is_past = ask
        .chunk
        .is_some_and(|stamp| node.is_confirmed(stamp, ask.confirmed.roll_back()));
    for pull in &ask.pulls {
        let found = node.look(pull.slot, |slot| {
            let (entry, data) = (slot.entry()?, slot.read()?);
            if catalog.policy().accumulates
                && (data.stamps.roll_back() != ask.confirmed.roll_back() || !slot.may_change())
            {
                // One of both has not heard of a roll-back, or another server may have gone on: these rows may be of another step.
                return None;
            }
            let has_chunk = is_past || ask.chunk.is_some_and(|stamp| slot.has(stamp, pull.term));
            let count = numbers(pull);
            let mut numbers = wire::put_rows(
                &mut words,
                pull.slot,
                has_chunk,
                (entry.reign, data.version),
                count,
            );
            for (table, ids) in &pull.rows {
                let of_table;
                (of_table, numbers) =
                    numbers.split_at_mut(catalog.tables()[*table].width * ids.len());
                data.pull(catalog, *table, ids, of_table);
            }
            for known in &pull.dense {
                let dense = match data.variable(catalog, known.variable) {
                    None => Dense::Missing,
                    Some((_, version))
                        if (entry.reign, version) == (known.reign, known.version) =>
                    {
                        Dense::Unchanged
                    }
                    Some((weights, version)) => Dense::Changed { version, weights },
                };
                wire::put_dense(&mut words, known.variable, dense);
            }
            if let Some(table) = pull.listed {
                wire::put_listed(&mut words, &data.trained(table));
            }
            Some(())
        });
        if found.flatten().is_none() {
            wire::put_elsewhere(&mut words, pull.slot);
        }
    }
    words
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
