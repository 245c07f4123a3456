//! Every reader of what parameter servers are sent or given, behind one door: what is no message is an error, whatever the bytes.
//!
//! Shared by the property tests, the replayed corpus and the fuzz target (`rust/fuzz`).
use elasticdl_core::net::frame::{HEADER, Header};
use elasticdl_core::ps::catalog::{Catalog, Table, Variable};
use elasticdl_core::ps::data::{Data, Pace};
use elasticdl_core::ps::initial::Initial;
use elasticdl_core::ps::node::Node;
use elasticdl_core::ps::optimizer::Rule;
use elasticdl_core::ps::part::Part;
use elasticdl_core::ps::placement::Entry;
use elasticdl_core::ps::slot::{Answer, Head, UNSEEN};
use elasticdl_core::ps::snapshot;
use elasticdl_core::ps::stamps::{Stamp, Stamps};
use elasticdl_core::ps::wire::{self, Ask, Known, Pull};
use elasticdl_core::ps::words::Reader;

pub const SLOTS: u32 = 4;

/// What is read; the number is the first byte of a file of the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    Header = 0,
    Ask = 1,
    Part = 2,
    Rows = 3,
    Answers = 4,
    Refusal = 5,
    Stream = 6,
    Stamps = 7,
    Piece = 8,
    Section = 9,
    Push = 10,
}

pub const ALL: [What; 11] = [
    What::Header,
    What::Ask,
    What::Part,
    What::Rows,
    What::Answers,
    What::Refusal,
    What::Stream,
    What::Stamps,
    What::Piece,
    What::Section,
    What::Push,
];

/// Two tables and two variables, one of which many slots do not have.
pub fn catalog() -> Catalog {
    let table = |name: &str, width, admission| Table {
        name: name.into(),
        width,
        initial: Initial::Constant(0.0),
        admission,
        decays: true,
    };
    let variable = |name: &str, length| Variable {
        name: name.into(),
        length,
        decays: false,
        adds: false,
    };
    let rule = Rule::Adagrad {
        initial_accumulator: 0.1,
        epsilon: 1e-7,
    };
    Catalog::new(
        3,
        SLOTS,
        vec![table("a", 3, 1), table("b", 1, 2)],
        vec![variable("kernel", 5), variable("bias", 2)],
        rule,
        0.0,
    )
}

/// The pulls that answers of `What::Rows` are read against.
pub fn asked() -> Vec<Pull<'static>> {
    let known = |variable| Known {
        variable,
        reign: 1,
        version: 2,
    };
    let pull = |slot, rows, dense| Pull {
        slot,
        term: 1,
        rows,
        dense,
        listed: None,
    };
    vec![
        pull(0, vec![(0, &[1, 2][..]), (1, &[9][..])], vec![known(0)]),
        pull(3, vec![], vec![known(1), known(0)]),
    ]
}

/// Return the words of bytes, without those of a last word that is not whole.
pub fn words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect()
}

/// Read a file of the corpus; tells whether it is a message. Panics if what was read is not what it is written as.
pub fn read(bytes: &[u8]) -> bool {
    let Some((which, bytes)) = bytes.split_first() else {
        return false;
    };
    match ALL.get(usize::from(*which)) {
        Some(What::Header) => bytes.first_chunk::<HEADER>().is_some_and(|bytes| {
            Header::decode(bytes).is_ok_and(|header| header.encode() == *bytes)
        }),
        Some(what) => read_words(*what, &words(bytes)),
        None => false,
    }
}

/// Read words; tells whether they are a message.
pub fn read_words(what: What, words: &[u64]) -> bool {
    let catalog = catalog();
    match what {
        What::Header => unreachable!("a header is no words"),
        What::Ask => is_ask(words, &catalog),
        What::Part => (0..SLOTS).any(|slot| is_part(words, &catalog, slot)),
        What::Rows => is_rows(words, &catalog),
        What::Answers => {
            let mut reader = Reader::new(words);
            while !reader.is_empty() {
                if wire::outcome(&mut reader).is_err() {
                    return false;
                }
            }
            true
        }
        What::Refusal => {
            let text = wire::read_text(words);
            assert!(text.starts_with(&wire::read_text(&wire::text(&text))));
            true
        }
        What::Stream => is_stream(words),
        What::Stamps => Stamps::decode(bytemuck::cast_slice(words)).is_ok_and(|stamps| {
            let mut again = Vec::new();
            stamps.encode(&mut again);
            again == bytemuck::cast_slice::<u64, u8>(words)
        }),
        What::Piece => Data::new(&catalog).take(&catalog, words).is_ok(),
        What::Section => (0..SLOTS).any(|slot| snapshot::take(words, slot, &catalog).is_ok()),
        What::Push => is_pushed(words, catalog),
    }
}

fn is_ask(words: &[u64], catalog: &Catalog) -> bool {
    let Ok(ask) = Ask::read(words, catalog) else {
        return false;
    };
    let written = ask.write();
    let again = Ask::read(&written, catalog).expect("what was written can be read");
    assert_eq!(format!("{ask:?}"), format!("{again:?}"));
    true
}

fn is_part(words: &[u64], catalog: &Catalog, slot: u32) -> bool {
    let Ok(part) = Part::read(words, catalog, slot) else {
        return false;
    };
    let mut written = Vec::new();
    part.write(&mut written);
    assert_eq!(Part::read(&written, catalog, slot).as_ref(), Ok(&part));
    true
}

fn is_rows(words: &[u64], catalog: &Catalog) -> bool {
    let mut reader = Reader::new(words);
    for asked in asked() {
        match wire::pulled(&mut reader, catalog, &asked) {
            Ok(Some(found)) => assert_eq!(found.dense.len(), asked.dense.len()),
            Ok(None) => {}
            Err(_) => return false,
        }
    }
    reader.end().is_ok()
}

fn is_stream(words: &[u64]) -> bool {
    let mut reader = Reader::new(words);
    while !reader.is_empty() {
        let Ok(message) = wire::message(&mut reader) else {
            return false;
        };
        let mut written = Vec::new();
        wire::put_message(&mut written, &message);
        let again =
            wire::message(&mut Reader::new(&written)).expect("what was written can be read");
        // By its text: numbers that are none are not equal to themselves.
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
    true
}

/// Apply words to a slot that waits for them, as a push of the first words' chunk.
fn is_pushed(words: &[u64], catalog: Catalog) -> bool {
    let [slot, task, step, part @ ..] = words else {
        return false;
    };
    let node = Node::new(0, catalog);
    let entry = Entry {
        term: 1,
        reign: 1,
        primary: 0,
        backup: None,
        restored: 0,
    };
    node.learn((0..SLOTS).map(|slot| (slot, entry)))
        .expect("first entries");
    let head = Head {
        seen: UNSEEN,
        stamp: Some(Stamp {
            task: *task,
            chunk: 0,
        }),
        low: 0,
        roll_back: 0,
        pace: Pace {
            rate: 0.5,
            step: *step,
        },
    };
    let slot = (*slot % u64::from(SLOTS + 1)) as u32;
    let version = |node: &Node| node.look(slot, |slot| slot.data().map(|data| data.version));
    let before = version(&node);
    match node.push(slot, &head, 1, part, 0) {
        Some(Answer::Applied) => true,
        answer => {
            assert!(
                matches!(answer, Some(Answer::Refused(_) | Answer::Held)),
                "{answer:?}"
            );
            assert_eq!(version(&node), before, "something of it was applied");
            false
        }
    }
}
