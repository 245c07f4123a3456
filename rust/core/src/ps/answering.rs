//! What a server says to an ask: the rows at once, and what became of each part of a push when it is known. No sockets: `server.rs` carries
//! the packets.
use super::node::Node;
use super::slot::{Answer, Head, Ticket};
use super::wire::{self, Ask, Dense, Pull};
use crate::net::channel::Packet;
use crate::net::frame::Kind;

/// Apply the pushes of an ask; return the rows that it asks for, and what is known of the pushes. The others' answers will be told for
/// their slots' tickets.
pub fn answer(
    node: &Node,
    request: u32,
    ask: &Ask<'_>,
    ticket: impl Fn(u32) -> Ticket,
) -> Vec<Packet> {
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
    if !ask.pulls.is_empty() {
        packets.push(Packet {
            kind: Kind::Rows,
            number: request.into(),
            mark: node.me(),
            words: rows(node, ask),
        });
    }
    if !answers.is_empty() {
        packets.extend(report(node, request, &answers));
    }
    packets
}

fn rows(node: &Node, ask: &Ask<'_>) -> Vec<u64> {
    let catalog = node.catalog();
    let numbers = |pull: &Pull<'_>| -> usize {
        let rows = pull.rows.iter();
        rows.map(|(table, ids)| catalog.tables()[*table].width * ids.len())
            .sum()
    };
    // A slot's rows have a head of four words, and fill their last word perhaps by half.
    let room = ask.pulls.iter().map(|pull| 5 + numbers(pull) / 2).sum();
    let mut words = Vec::with_capacity(room);
    for pull in &ask.pulls {
        let found = node.look(pull.slot, |slot| {
            let (entry, data) = (slot.entry()?, slot.read()?);
            let has_chunk = ask.chunk.is_some_and(|stamp| slot.has(stamp, pull.term));
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
