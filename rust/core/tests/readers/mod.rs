//! Every reader of what a peer sends or a file holds, behind one acceptor: what is no message is an error, whatever the bytes.
//!
//! Shared by the property tests, the replayed corpus and the fuzz target (`rust/fuzz`).
use std::sync::Arc;

use elasticdl_core::net::frame::{HEADER, Header, Kind};
use elasticdl_core::net::handshake::{Caller, Heard, Hello, Purpose, Responder, Said, Token};
use elasticdl_core::ps::memory::initial::Initial;
use elasticdl_core::ps::memory::optimizer::Rule;
use elasticdl_core::ps::protocol::catalog::{Catalog, Table, Variable};
use elasticdl_core::ps::protocol::part::Part;
use elasticdl_core::ps::protocol::placement::Entry;
use elasticdl_core::ps::protocol::stamps::{Stamp, Stamps};
use elasticdl_core::ps::protocol::wire::{self, Ask, Known, Pull, Pulled};
use elasticdl_core::ps::protocol::words::Reader;
use elasticdl_core::ps::server::data::{Data, Pace};
use elasticdl_core::ps::server::node::{Bounds, Node};
use elasticdl_core::ps::server::slot::{Answer, Head, UNSEEN};
use elasticdl_core::ps::server::snapshot;
use elasticdl_core::records::csv::{self, CsvFile};
use elasticdl_core::records::lines::{self, LinesFile};
use elasticdl_core::records::recordio::RecordIoFile;
use elasticdl_core::records::tfrecord::{self, TFRecordFile, masked_crc};
use elasticdl_core::records::{Error, Stop, checksum};

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
    Handshake = 11,
    Index = 12,
    TfRecord = 13,
    Csv = 14,
    Lines = 15,
    RecordIo = 16,
}

pub const ALL: [What; 17] = [
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
    What::Handshake,
    What::Index,
    What::TfRecord,
    What::Csv,
    What::Lines,
    What::RecordIo,
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

/// The pulls that answers of `What::Rows` are read against, of rows of either kind.
pub fn asked(is_short: bool) -> Vec<Pull<'static>> {
    let known = |variable| Known {
        variable,
        primary_epoch: 1,
        version: 2,
    };
    let pull = |slot, rows, dense| Pull {
        slot,
        term: 1,
        rows,
        is_short,
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
        Some(What::Handshake) => is_heard(bytes),
        Some(What::Index) => is_index(bytes),
        Some(What::TfRecord) => is_tfrecord(bytes),
        Some(What::Csv) => is_csv(bytes),
        Some(What::Lines) => is_lines(bytes),
        Some(What::RecordIo) => is_recordio(bytes),
        Some(what) => read_words(*what, &words(bytes)),
        None => false,
    }
}

/// Read words; tells whether they are a message.
pub fn read_words(what: What, words: &[u64]) -> bool {
    let catalog = catalog();
    match what {
        What::Header
        | What::Handshake
        | What::Index
        | What::TfRecord
        | What::Csv
        | What::Lines
        | What::RecordIo => {
            unreachable!("these are no words")
        }
        What::Ask => is_ask(words, &catalog),
        What::Part => (0..SLOTS).any(|slot| is_part(words, &catalog, slot)),
        What::Rows => [false, true]
            .map(|is_short| is_rows(words, &catalog, is_short))
            .contains(&true),
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
    let written = ask.words();
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

fn is_rows(words: &[u64], catalog: &Catalog, is_short: bool) -> bool {
    let mut reader = Reader::new(words);
    for asked in asked(is_short) {
        match wire::pulled(&mut reader, catalog, &asked) {
            Ok(Pulled::Rows(found)) => assert_eq!(found.dense.len(), asked.dense.len()),
            Ok(Pulled::Elsewhere | Pulled::Refused(_)) => {}
            Err(_) => return false,
        }
    }
    reader.end().is_ok()
}

fn is_stream(words: &[u64]) -> bool {
    let packet = Arc::new(words.to_vec());
    let mut reader = Reader::new(&packet);
    while !reader.is_empty() {
        let Ok(message) = wire::message(&mut reader, &packet) else {
            return false;
        };
        let mut written = Vec::new();
        wire::put_message(&mut written, &message);
        let written = Arc::new(written);
        let again = wire::message(&mut Reader::new(&written), &written)
            .expect("what was written can be read");
        // By its text: numbers that are none are not equal to themselves.
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
    true
}

/// Apply words to a slot that waits for them, as a push of the first words' chunk; a gradient of a variable without a first value is stale.
fn is_pushed(words: &[u64], catalog: Catalog) -> bool {
    let [slot, task, step, part @ ..] = words else {
        return false;
    };
    let node = Node::new(0, catalog);
    node.bound(&Bounds::NONE);
    let entry = Entry {
        term: 1,
        primary_epoch: 1,
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
    match node.pushes().push(slot, &head, 1, part.into(), 0) {
        Some(Answer::Applied) => true,
        answer => {
            assert!(
                matches!(
                    answer,
                    Some(Answer::Refused(_) | Answer::Held | Answer::Stale)
                ),
                "{answer:?}"
            );
            assert_eq!(version(&node), before, "something of it was applied");
            false
        }
    }
}

/// Say the bytes, a head and what follows, to both ends of a handshake at each of its stages, and what they hold as the name of a member
/// that knows the token; tells whether anybody understood the frame.
fn is_heard(bytes: &[u8]) -> bool {
    let token = Token::new(b"token").expect("it is not empty");
    let responder = || Responder::new(token.clone(), "acceptor".into()).expect("random bytes");
    let caller = |member: String| {
        let hello = Hello {
            purpose: Purpose::Heal,
            member,
            view: 1,
            digest: 2,
        };
        Caller::new(token.clone(), hello, "acceptor".into()).expect("random bytes")
    };
    let payload = |frame: &[u8]| frame[HEADER..].to_vec();
    let header = |kind, frame: &[u8]| Header {
        kind,
        length: (frame.len() - HEADER) as u32,
        view: 1,
        step: 0,
    };
    let shake = |member: &str| {
        let (mut responder, mut caller) = (responder(), caller(member.into()));
        let nonce = caller.open();
        let challenge = match responder.hear(&header(Kind::Nonce, &nonce), &payload(&nonce)) {
            Ok(Heard::Reply(challenge)) => challenge,
            other => panic!("no challenge: {other:?}"),
        };
        let hello = match caller.hear(&header(Kind::Challenge, &challenge), &payload(&challenge)) {
            Ok(Said::Reply(hello)) => hello,
            other => panic!("no hello: {other:?}"),
        };
        (responder, caller, hello)
    };
    let (mut named, _, hello) = shake(&String::from_utf8_lossy(bytes));
    let _ = named.hear(&header(Kind::Hello, &hello), &payload(&hello));
    let Some((Ok(head), rest)) = bytes
        .split_first_chunk()
        .map(|(head, rest)| (Header::decode(head), rest))
    else {
        return false;
    };
    let (mut challenging, mut challenged, _) = shake("caller");
    let (mut fresh, mut calling) = (responder(), caller("caller".into()));
    let heard = [fresh.hear(&head, rest), challenging.hear(&head, rest)];
    let said = [calling.hear(&head, rest), challenged.hear(&head, rest)];
    heard.iter().any(Result::is_ok) || said.iter().any(Result::is_ok)
}

fn quiet(_: u64, _: u64) -> Result<(), Stop> {
    Ok(())
}

/// The first records: what is read of all others is the same.
fn some(count: u64) -> Vec<u64> {
    (0..count.min(64)).collect()
}

/// Read records by an index that somebody has made up, whose checksums hold and that is of the file as it is.
fn is_index(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, index) = (folder.path().join("data"), folder.path().join("index"));
    let mut data = Vec::new();
    for record in [&b"one"[..], b"", b"three"] {
        let length = (record.len() as u64).to_le_bytes();
        data.extend(length);
        data.extend(masked_crc(&length).to_le_bytes());
        data.extend(record);
        data.extend(masked_crc(record).to_le_bytes());
    }
    std::fs::write(&path, &data).expect("a file");
    tfrecord::index(&path, &index, &mut quiet).expect("it is one");
    let right = std::fs::read(&index).expect("an index");
    let mut made_up = bytes.to_vec();
    // Size, time and sample of the file, and the checksums of the offsets and of what is before them.
    if let Some((head, offsets)) = made_up.split_first_chunk_mut::<64>() {
        head[16..36].copy_from_slice(&right[16..36]);
        head[48..52].copy_from_slice(&checksum(offsets).to_le_bytes());
        let crc = checksum(&head[..52]);
        head[52..56].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::remove_file(&index).expect("it is there");
    std::fs::write(&index, &made_up).expect("a file");
    TFRecordFile::open(&path, &index)
        .and_then(|file| file.read(&some(file.count()), None))
        .is_ok()
}

fn is_tfrecord(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, index) = (folder.path().join("data"), folder.path().join("index"));
    std::fs::write(&path, bytes).expect("a file");
    let indexed = tfrecord::index(&path, &index, &mut quiet);
    indexed
        .and_then(|count| {
            let file = TFRecordFile::open(&path, &index)?;
            assert_eq!(file.count(), count);
            let read = file.read(&some(count), None);
            let span = file.span(0, count);
            let within = TFRecordFile::within(&path, Box::new(bytes.to_vec()))?;
            said(&read, &file.read(&some(count), span.as_ref()));
            said(&read, &within.read(&some(count), None));
            read
        })
        .is_ok()
}

/// Compare what was read in two ways.
fn said<T: PartialEq + std::fmt::Debug>(one: &Result<T, Error>, other: &Result<T, Error>) {
    match (one, other) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
        _ => panic!("{one:?} and {other:?}"),
    }
}

fn is_csv(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, index) = (folder.path().join("data"), folder.path().join("index"));
    std::fs::write(&path, bytes).expect("a file");
    csv::index(&path, &index, b',', &mut quiet)
        .and_then(|_| CsvFile::open(&path, &index, b',', csv::Header::Auto))
        .and_then(|file| {
            let some = some(file.count());
            let read = file.read(&some, None);
            let span = file.span(0, file.count());
            let within = CsvFile::within(&path, Box::new(bytes.to_vec()), b',', csv::Header::Auto)?;
            said(&read, &file.read(&some, span.as_ref()));
            said(&read, &within.read(&some, None));
            read
        })
        .is_ok()
}

fn is_lines(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, index) = (folder.path().join("data"), folder.path().join("index"));
    std::fs::write(&path, bytes).expect("a file");
    lines::index(&path, &index, &mut quiet)
        .and_then(|count| {
            let file = LinesFile::open(&path, &index)?;
            assert_eq!(file.count(), count);
            let read = file.read(&some(count), None);
            let span = file.span(0, count);
            let within = LinesFile::within(&path, Box::new(bytes.to_vec()))?;
            said(&read, &file.read(&some(count), span.as_ref()));
            said(&read, &within.read(&some(count), None));
            read
        })
        .is_ok()
}

fn is_recordio(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    std::fs::write(&path, bytes).expect("a file");
    RecordIoFile::open(&path)
        .and_then(|file| {
            for (number, records) in file.chunks().into_iter().enumerate() {
                assert_eq!(file.read(number)?.len() as u64, records);
            }
            Ok(())
        })
        .is_ok()
}
