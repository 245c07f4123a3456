//! Messages as they should be: what proptest draws, for every reader.
use elasticdl_core::bfloat::BFloat16;
use elasticdl_core::ps::protocol::catalog::Catalog;
use elasticdl_core::ps::protocol::numbers::Numbers;
use elasticdl_core::ps::protocol::part::{self, Part, Rows};
use elasticdl_core::ps::protocol::placement::Entry;
use elasticdl_core::ps::protocol::stamps::{Stamp, Stamps};
use elasticdl_core::ps::protocol::steps::{Confirmed, Need};
use elasticdl_core::ps::protocol::stream::{Deed, Message};
use elasticdl_core::ps::protocol::wire::{self, Ask, Dense, Known, Pull, Push};
use elasticdl_core::ps::server::data::{Data, Pace};
use elasticdl_core::ps::server::node::{Bounds, Node};
use elasticdl_core::ps::server::slot::{Answer, Head, UNSEEN};
use elasticdl_core::ps::server::snapshot::{self, Position, Section};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::ENTRY;
use crate::readers::{SLOTS, What, asked, catalog, words};

fn stamp() -> impl Strategy<Value = Option<Stamp>> {
    prop::option::of((any::<u64>(), any::<u16>()).prop_map(|(task, chunk)| Stamp { task, chunk }))
}

fn head() -> impl Strategy<Value = Head> {
    (
        stamp(),
        any::<u64>(),
        any::<u64>(),
        -9.0_f32..9.0,
        any::<u64>(),
    )
        .prop_map(|(stamp, low, roll_back, rate, step)| Head {
            seen: UNSEEN,
            stamp,
            low,
            roll_back,
            pace: Pace { rate, step },
        })
}

/// The words of a part of a slot that can be applied.
pub fn part_of(
    catalog: &Catalog,
    slot: u32,
    ids: &[u64],
    is_first: bool,
    is_short: bool,
) -> Vec<u64> {
    let (long, short) = ([0.5; 400], [BFloat16::from(0.5); 400]);
    let numbers = |count| match is_short {
        true => Numbers::Short(&short[..count]),
        false => Numbers::Long(&long[..count]),
    };
    let of_slot = |table| -> Vec<u64> {
        let is_here = |id: &&u64| catalog.slot_of_row(table, **id) == slot;
        ids.iter().filter(is_here).copied().collect()
    };
    let of_tables = [of_slot(0), of_slot(1)];
    let mut part = Part::default();
    for (table, ids) in of_tables.iter().enumerate() {
        let gradients = numbers(ids.len() * catalog.tables()[table].width);
        part.rows.push(Rows {
            table,
            ids,
            gradients,
        });
    }
    for variable in 0..2 {
        if catalog.slot_of_variable(variable) == slot {
            part.dense.push(part::Dense {
                variable,
                is_first,
                numbers: numbers(catalog.variables()[variable].length),
            });
        }
    }
    let mut words = Vec::new();
    part.write(&mut words);
    words
}

pub fn ask() -> impl Strategy<Value = Vec<u64>> {
    let ids = || prop::collection::vec(0_u64..100, 0..9);
    let rows = prop::collection::vec((0_usize..2, ids()), 0..4);
    let known = (0_usize..2, any::<u64>(), any::<u64>());
    let pull = (
        0..SLOTS,
        any::<u64>(),
        rows,
        any::<bool>(),
        prop::collection::vec(known, 0..3),
    );
    let push = (0..SLOTS, any::<u64>(), ids(), any::<bool>());
    let (pulls, pushes) = (
        prop::collection::vec(pull, 0..4),
        prop::collection::vec(push, 0..4),
    );
    let need = (any::<u64>(), 0_u64..1000, 1_u64..1000, any::<u16>());
    let confirmed = (
        0_u64..3,
        0_u64..9,
        prop::collection::vec((0_u64..20, any::<u16>()), 0..5),
    );
    (head(), stamp(), need, confirmed, pulls, pushes).prop_map(
        |(head, chunk, need, heard, pulls, pushes)| {
            let catalog = catalog();
            let parts: Vec<_> = pushes
                .into_iter()
                .map(|(slot, term, ids, is_short)| {
                    (slot, term, part_of(&catalog, slot, &ids, true, is_short))
                })
                .collect();
            let known = |(variable, primary_epoch, version): &(usize, u64, u64)| Known {
                variable: *variable,
                primary_epoch: *primary_epoch,
                version: *version,
            };
            let ask = Ask {
                head,
                chunk,
                need: Need {
                    number: need.0,
                    first: need.1,
                    end: need.1 + need.2,
                    chunks: need.3,
                },
                confirmed: {
                    let mut confirmed = Confirmed::new(heard.0);
                    confirmed.raise_low(heard.1);
                    for (task, chunks) in heard.2 {
                        confirmed.confirm(task, chunks);
                    }
                    confirmed
                },
                pulls: pulls
                    .iter()
                    .map(|(slot, term, rows, is_short, dense)| Pull {
                        slot: *slot,
                        term: *term,
                        rows: rows.iter().map(|(table, ids)| (*table, &ids[..])).collect(),
                        is_short: *is_short,
                        dense: dense.iter().map(known).collect(),
                        listed: (*slot as usize % 3).checked_sub(1),
                    })
                    .collect(),
                pushes: parts
                    .iter()
                    .map(|(slot, term, words)| Push {
                        slot: *slot,
                        term: *term,
                        seen: UNSEEN,
                        words,
                    })
                    .collect(),
            };
            ask.words()
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    (any::<[u64; 4]>(), prop::option::of(0_u64..99)).prop_map(|(words, backup)| Entry {
        term: words[0],
        primary_epoch: words[1],
        primary: words[2],
        backup,
        restored: words[3],
    })
}

fn memory() -> impl Strategy<Value = Stamps> {
    prop::collection::btree_set((0_u64..9, 0_u16..200), 0..30).prop_map(|held| {
        let mut stamps = Stamps::default();
        for (task, chunk) in held {
            stamps.add(Stamp { task, chunk });
        }
        stamps
    })
}

fn deed() -> impl Strategy<Value = Deed> {
    let some_words = || prop::collection::vec(any::<u64>(), 0..9);
    prop_oneof![
        (head(), some_words()).prop_map(|(head, part)| Deed::Push {
            stamp: head.stamp,
            low: head.low,
            roll_back: head.roll_back,
            pace: head.pace,
            part: part.into(),
        }),
        Just(Deed::CopyBegin),
        some_words().prop_map(Deed::CopyPiece),
        memory().prop_map(Deed::CopyEnd),
        any::<u32>().prop_map(Deed::Expire),
        any::<u64>().prop_map(Deed::Step),
    ]
}

fn stream() -> impl Strategy<Value = Vec<u64>> {
    let message =
        (any::<u32>(), entry(), any::<u64>(), deed()).prop_map(|(slot, entry, version, deed)| {
            Message {
                slot,
                entry,
                version,
                deed,
            }
        });
    prop::collection::vec(message, 0..4).prop_map(|messages| {
        let mut words = Vec::new();
        for message in &messages {
            wire::put_message(&mut words, message);
        }
        words
    })
}

/// The answer to `readers::asked`.
fn rows() -> impl Strategy<Value = Vec<u64>> {
    (
        prop::collection::vec(0..4, 3),
        any::<(u64, u64)>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(kinds, versions, has_chunk, is_short)| {
            let catalog = catalog();
            let mut words = Vec::new();
            let mut kinds = kinds.into_iter();
            for pull in asked(is_short) {
                let count = pull
                    .rows
                    .iter()
                    .map(|(table, ids)| catalog.tables()[*table].width * ids.len())
                    .sum();
                let (words, slot) = (&mut words, pull.slot);
                if is_short {
                    wire::put_rows(words, slot, has_chunk, versions, count)
                        .fill(BFloat16::from(0.25));
                } else {
                    wire::put_rows(words, slot, has_chunk, versions, count).fill(0.25_f32);
                }
                for known in &pull.dense {
                    let weights = &[1.5; 5][..catalog.variables()[known.variable].length];
                    let dense = match kinds.next() {
                        Some(0) => Dense::Missing,
                        Some(1) => Dense::Unchanged,
                        _ => Dense::Changed {
                            version: versions.1,
                            weights,
                        },
                    };
                    wire::put_dense(words, known.variable, dense);
                }
            }
            words
        })
}

fn answers() -> impl Strategy<Value = Vec<u64>> {
    let answer = prop_oneof![
        Just(Answer::Applied),
        Just(Answer::Closed),
        Just(Answer::Moved),
        Just(Answer::Busy),
        Just(Answer::Stale),
        Just(Answer::Refused("no".into())),
    ];
    let one = (any::<u32>(), answer, prop::option::of(entry()));
    prop::collection::vec(one, 0..5).prop_map(|answers| {
        let mut words = Vec::new();
        for (slot, answer, entry) in &answers {
            wire::put_outcome(&mut words, *slot, answer, *entry);
        }
        words
    })
}

fn node(ids: &[u64]) -> Node {
    let node = Node::new(0, catalog());
    node.bound(&Bounds::NONE);
    node.learn((0..SLOTS).map(|slot| (slot, ENTRY)))
        .expect("first entries");
    let head = |task| Head {
        seen: UNSEEN,
        stamp: Some(Stamp { task, chunk: 1 }),
        low: 0,
        roll_back: 0,
        pace: Pace { rate: 0.5, step: 3 },
    };
    for slot in 0..SLOTS {
        for (task, is_first) in [(0, true), (1, false)] {
            let words = part_of(&catalog(), slot, ids, is_first, is_first);
            let answer = node.pushes().push(slot, &head(task), 1, (&words).into(), 0);
            assert!(
                matches!(answer, Some(Answer::Applied | Answer::Held)),
                "{answer:?}"
            );
        }
    }
    node
}

fn some_ids() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0_u64..100, 0..30)
}

fn piece() -> impl Strategy<Value = Vec<u64>> {
    (some_ids(), any::<Index>()).prop_map(|(ids, which)| {
        let node = node(&ids);
        let pieces = |data: &Data| {
            let mut cursor = data.cursor();
            std::iter::from_fn(|| data.piece(node.catalog(), &mut cursor)).collect::<Vec<_>>()
        };
        let all: Vec<_> = (0..SLOTS)
            .flat_map(|slot| {
                node.look(slot, |slot| pieces(slot.data().unwrap()))
                    .unwrap()
            })
            .collect();
        all[which.index(all.len())].clone()
    })
}

/// Write slots into a file, and return its words and where they lie.
pub fn sections(ids: &[u64]) -> (Vec<u64>, Vec<Section>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slots");
    let slots: Vec<(u32, u64)> = (0..SLOTS).map(|slot| (slot, 1)).collect();
    let sections = snapshot::write(&node(ids), &path, &slots, &Position::default()).unwrap();
    (words(&std::fs::read(&path).unwrap()), sections)
}

fn section() -> impl Strategy<Value = Vec<u64>> {
    (some_ids(), 0..SLOTS as usize).prop_map(|(ids, which)| {
        let (words, sections) = sections(&ids);
        let one = sections[which];
        words[one.offset as usize / 8..][..one.length as usize / 8].to_vec()
    })
}

fn push() -> impl Strategy<Value = Vec<u64>> {
    let drawn = (0..SLOTS, any::<[u64; 2]>(), some_ids(), any::<bool>());
    drawn.prop_map(|(slot, head, ids, is_short)| {
        let mut words = vec![slot.into(), head[0], head[1]];
        words.extend(part_of(&catalog(), slot, &ids, true, is_short));
        words
    })
}

pub fn message() -> impl Strategy<Value = (What, Vec<u64>)> {
    prop_oneof![
        ask().prop_map(|words| (What::Ask, words)),
        (0..SLOTS, some_ids(), any::<bool>()).prop_map(|(slot, ids, is_short)| (
            What::Part,
            part_of(&catalog(), slot, &ids, true, is_short)
        )),
        rows().prop_map(|words| (What::Rows, words)),
        answers().prop_map(|words| (What::Answers, words)),
        ".{0,600}".prop_map(|text| (What::Refusal, wire::text(&text))),
        stream().prop_map(|words| (What::Stream, words)),
        memory().prop_map(|stamps| {
            let mut bytes = Vec::new();
            stamps.encode(&mut bytes);
            (What::Stamps, words(&bytes))
        }),
        piece().prop_map(|words| (What::Piece, words)),
        section().prop_map(|words| (What::Section, words)),
        push().prop_map(|words| (What::Push, words)),
    ]
}
