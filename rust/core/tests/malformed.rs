//! Malformed messages to parameter servers: read by every reader without a panic or much memory, and sent to a server that continues.
//!
//! The files of `corpus` are what fuzzing (`rust/fuzz`) and these tests have found worth keeping: a byte for the reader, then what it reads.
//! Those whose name begins with `refused` are no messages.
mod readers;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use elasticdl_core::net::address::{Address, Listener};
use elasticdl_core::net::frame::{HEADER, Header, Kind};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use elasticdl_core::net::handshake::{Caller, Hello, Purpose, Said, Token, Verdict};
use elasticdl_core::ps::client::batch::Batch;
use elasticdl_core::ps::client::connections::Client;
use elasticdl_core::ps::client::push::Pushed;
use elasticdl_core::ps::client::tracker::End;
use elasticdl_core::ps::client::wanted::Wanted;
use elasticdl_core::ps::protocol::catalog::{Catalog, Variable};
use elasticdl_core::ps::protocol::part::{self, Part, Rows};
use elasticdl_core::ps::protocol::placement::Entry;
use elasticdl_core::ps::protocol::stamps::{Stamp, Stamps};
use elasticdl_core::ps::protocol::steps::{Confirmed, Need};
use elasticdl_core::ps::protocol::stream::{Deed, Message};
use elasticdl_core::ps::protocol::wire::{self, Ask, Dense, Known, Outcome, Pull, Pulled, Push};
use elasticdl_core::ps::protocol::words::Reader;
use elasticdl_core::ps::server::data::{Data, Pace};
use elasticdl_core::ps::server::node::{Bounds, Limits, Node};
use elasticdl_core::ps::server::process::{Server, name_of};
use elasticdl_core::ps::server::slot::{Answer, Head, Slot, UNSEEN};
use elasticdl_core::ps::server::snapshot::{self, Position, Section};
use proptest::prelude::*;
use proptest::sample::Index;
use readers::{ALL, SLOTS, What, asked, catalog, read, read_words, words};

const TOKEN: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Of the job of the servers that are sent something.
const TASKS: u64 = 2000;

const ENTRY: Entry = Entry {
    term: 1,
    primary_epoch: 1,
    primary: 0,
    backup: None,
    restored: 0,
};

// ---------------------------------------------------------------------------- messages as they should be

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
fn part_of(catalog: &Catalog, slot: u32, ids: &[u64], is_first: bool) -> Vec<u64> {
    let numbers = [0.5; 400];
    let of_slot = |table| -> Vec<u64> {
        let is_here = |id: &&u64| catalog.slot_of_row(table, **id) == slot;
        ids.iter().filter(is_here).copied().collect()
    };
    let of_tables = [of_slot(0), of_slot(1)];
    let mut part = Part::default();
    for (table, ids) in of_tables.iter().enumerate() {
        let gradients = &numbers[..ids.len() * catalog.tables()[table].width];
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
                numbers: &numbers[..catalog.variables()[variable].length],
            });
        }
    }
    let mut words = Vec::new();
    part.write(&mut words);
    words
}

fn ask() -> impl Strategy<Value = Vec<u64>> {
    let ids = || prop::collection::vec(0_u64..100, 0..9);
    let rows = prop::collection::vec((0_usize..2, ids()), 0..4);
    let known = (0_usize..2, any::<u64>(), any::<u64>());
    let pull = (
        0..SLOTS,
        any::<u64>(),
        rows,
        prop::collection::vec(known, 0..3),
    );
    let push = (0..SLOTS, any::<u64>(), ids());
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
                .map(|(slot, term, ids)| (slot, term, part_of(&catalog, slot, &ids, true)))
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
                    .map(|(slot, term, rows, dense)| Pull {
                        slot: *slot,
                        term: *term,
                        rows: rows.iter().map(|(table, ids)| (*table, &ids[..])).collect(),
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
            ask.write()
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
        any::<[u64; 2]>(),
        any::<bool>(),
    )
        .prop_map(|(kinds, [primary_epoch, version], has_chunk)| {
            let catalog = catalog();
            let mut words = Vec::new();
            let mut kinds = kinds.into_iter();
            for pull in asked() {
                let count = pull
                    .rows
                    .iter()
                    .map(|(table, ids)| catalog.tables()[*table].width * ids.len())
                    .sum();
                wire::put_rows(
                    &mut words,
                    pull.slot,
                    has_chunk,
                    (primary_epoch, version),
                    count,
                )
                .fill(0.25);
                for known in &pull.dense {
                    let weights = &[1.5; 5][..catalog.variables()[known.variable].length];
                    let dense = match kinds.next() {
                        Some(0) => Dense::Missing,
                        Some(1) => Dense::Unchanged,
                        _ => Dense::Changed { version, weights },
                    };
                    wire::put_dense(&mut words, known.variable, dense);
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
            let words = part_of(&catalog(), slot, ids, is_first);
            let answer = node.push(slot, &head(task), 1, &words, 0);
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
fn sections(ids: &[u64]) -> (Vec<u64>, Vec<Section>) {
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
    (0..SLOTS, any::<[u64; 2]>(), some_ids()).prop_map(|(slot, head, ids)| {
        let mut words = vec![slot.into(), head[0], head[1]];
        words.extend(part_of(&catalog(), slot, &ids, true));
        words
    })
}

fn message() -> impl Strategy<Value = (What, Vec<u64>)> {
    prop_oneof![
        ask().prop_map(|words| (What::Ask, words)),
        (0..SLOTS, some_ids())
            .prop_map(|(slot, ids)| (What::Part, part_of(&catalog(), slot, &ids, true))),
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

// ---------------------------------------------------------------------------- and as they should not

/// What may happen to a message.
#[derive(Debug, Clone)]
enum Damage {
    Cut(Index),
    Flip(Index, u32),
    /// A number of something that is not there.
    Lie(Index, u64),
    LieInHalf(Index, bool, u32),
    More(Vec<u64>),
    Twice(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let lies = prop_oneof![
        Just(u64::MAX),
        Just(1 << 63),
        Just(u64::from(u32::MAX)),
        Just(1 << 61),
        Just(1 << 16),
        0_u64..300
    ];
    let halves = prop_oneof![Just(u32::MAX), Just(1 << 31), Just(1 << 30), 0_u32..300];
    prop_oneof![
        any::<Index>().prop_map(Damage::Cut),
        (any::<Index>(), 0_u32..64).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (any::<Index>(), lies).prop_map(|(at, word)| Damage::Lie(at, word)),
        (any::<Index>(), any::<bool>(), halves)
            .prop_map(|(at, high, half)| Damage::LieInHalf(at, high, half)),
        prop::collection::vec(any::<u64>(), 1..4).prop_map(Damage::More),
        any::<Index>().prop_map(Damage::Twice),
    ]
}

fn do_damage(words: &mut Vec<u64>, damage: &Damage) {
    let place = |at: &Index| (!words.is_empty()).then(|| at.index(words.len()));
    match damage {
        Damage::Cut(at) => {
            if let Some(at) = place(at) {
                words.truncate(at);
            }
        }
        Damage::Flip(at, bit) => {
            if let Some(at) = place(at) {
                words[at] ^= 1 << bit;
            }
        }
        Damage::Lie(at, word) => {
            if let Some(at) = place(at) {
                words[at] = *word;
            }
        }
        Damage::LieInHalf(at, high, half) => {
            if let Some(at) = place(at) {
                let shift = if *high { 32 } else { 0 };
                words[at] = words[at] & !(0xffff_ffff << shift) | u64::from(*half) << shift;
            }
        }
        Damage::More(more) => words.extend(more),
        Damage::Twice(from) => {
            if let Some(from) = place(from) {
                words.extend_from_within(from..);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_written_is_read((what, words) in message()) {
        // Nothing that a push could change is no push.
        let is_empty = what == What::Push && words.get(3) == Some(&2) && words[4..] == [0, 1];
        prop_assert!(is_empty || read_words(what, &words), "{what:?}");
    }

    #[test]
    fn damaged_messages_are_read_or_refused((what, mut words) in message(), damages in prop::collection::vec(damage(), 1..4)) {
        for damage in &damages {
            do_damage(&mut words, damage);
        }
        read_words(what, &words);
    }

    #[test]
    fn a_message_that_was_cut_off_is_refused(mut words in ask(), at: Index) {
        words.truncate(at.index(words.len()));
        prop_assert!(Ask::read(&words, &catalog()).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(which in 0..=What::Push as u8, mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        bytes.insert(0, which);
        read(&bytes);
    }

    #[test]
    fn small_numbers_are_read_or_refused(which in 0..=What::Push as u8, halves in prop::collection::vec(0_u32..7, 0..80)) {
        let mut bytes = vec![which];
        bytes.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
        read(&bytes);
    }
}

#[test]
fn an_answer_larger_than_a_message_is_not_asked_for() {
    let catalog = catalog();
    // Each time that a variable is named it comes whole.
    let known = Known {
        variable: 0,
        primary_epoch: 0,
        version: 0,
    };
    let ask = |times| Ask {
        head: Head {
            seen: UNSEEN,
            stamp: None,
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 0.0, step: 0 },
        },
        chunk: None,
        need: Need::default(),
        confirmed: Confirmed::default(),
        pulls: vec![Pull {
            slot: 0,
            term: 1,
            rows: vec![],
            dense: vec![known; times],
            listed: None,
        }],
        pushes: vec![],
    };
    assert!(Ask::read(&ask(1_000_000).write(), &catalog).is_ok());
    let error = Ask::read(&ask(8_000_000).write(), &catalog).unwrap_err();
    assert!(
        error.to_string().contains("more than one message"),
        "{error}"
    );
}

#[test]
fn the_corpus_is_read() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut seen = [0; ALL.len()];
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let is_message = read(&bytes);
        let name = path.file_name().unwrap().to_string_lossy();
        let is_refused = name.starts_with("refused");
        // Rows are read as answers to one question, which those of the corpus need not be.
        let is_any = name == "rows";
        assert!(is_any || is_message != is_refused, "{name}");
        if let Some(count) = bytes
            .first()
            .and_then(|which| seen.get_mut(usize::from(*which)))
        {
            *count += 1;
        }
    }
    let without: Vec<What> = ALL
        .into_iter()
        .filter(|what| seen[*what as usize] == 0)
        .collect();
    assert!(without.is_empty(), "no files for the readers {without:?}");
}

// ---------------------------------------------------------------------------- slots in files

#[test]
fn a_slot_of_another_model_or_another_slot_is_refused() {
    let (words, sections) = sections(&(0..60).collect::<Vec<_>>());
    let one = sections[1];
    let of_slot = &words[one.offset as usize / 8..][..one.length as usize / 8];
    assert!(snapshot::take(of_slot, 1, &catalog()).is_ok());
    let error = snapshot::take(of_slot, 2, &catalog()).unwrap_err();
    assert_eq!(error.to_string(), "it is another slot");
    let other = Catalog::new(
        3,
        SLOTS,
        vec![catalog().tables()[1].clone()],
        vec![],
        catalog().rule(),
        0.0,
    );
    for (slot, one) in (0..).zip(&sections) {
        let of_slot = &words[one.offset as usize / 8..][..one.length as usize / 8];
        assert!(snapshot::take(of_slot, slot, &other).is_err());
    }
}

// ---------------------------------------------------------------------------- a server, and who sends it that

/// What a master says that lets a step be complete, and all tasks before `low` be done.
fn limits(low: u64) -> Limits {
    Limits {
        roll_back: 0,
        low,
        above: vec![],
        steps: 1,
        end: TASKS,
    }
}

/// A server with all slots, and its address.
fn server() -> (Server, Address) {
    server_of(catalog())
}

fn server_of(catalog: Catalog) -> (Server, Address) {
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    let server = Server::open(listener, 0, TOKEN, None, catalog).unwrap();
    let address: Address = server.address().parse().unwrap();
    let entries = (0..SLOTS).map(|slot| (slot, ENTRY));
    let bounds = Bounds {
        tasks: TASKS,
        ..Bounds::default()
    };
    server
        .learn([(0, address.clone())], entries, bounds)
        .unwrap();
    server.limit(&limits(0));
    server.know(["stranger", "worker"].map(String::from).into());
    (server, address)
}

/// The key that follows from the servers': HMAC-SHA256, as in `elasticdl.control.transport.keys`.
fn worker_key() -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(TOKEN).unwrap();
    mac.update(b"elasticdl key data\x01");
    mac.finalize().into_bytes().to_vec()
}

/// Read a whole frame.
fn frame(stream: &mut TcpStream) -> (Header, Vec<u8>) {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).unwrap();
    let header = Header::decode(&head).unwrap();
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).unwrap();
    (header, payload)
}

/// The number of the server that a stranger says that it is.
const STRANGER: u64 = 7;

/// A message of a stream as it travels.
fn streamed(number: u64, message: &Message) -> Vec<u8> {
    let mut words = Vec::new();
    wire::put_message(&mut words, message);
    Header::frame(Kind::Stream, number, 0, bytemuck::cast_slice(&words))
}

/// Read up to where a server has accepted a stream.
fn accepted(stream: &mut TcpStream) -> u64 {
    let (header, _) = frame(stream);
    assert_eq!(header.kind, Kind::Accepted);
    header.view
}

/// Be let in as a worker, or as another server's stream.
fn stranger(server: &Server, purpose: Purpose) -> TcpStream {
    let place = server.address().strip_prefix("tcp:").unwrap();
    let mut stream = TcpStream::connect(place).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let hello = Hello {
        purpose,
        member: "stranger".into(),
        view: STRANGER,
        digest: 0,
    };
    let mut caller = Caller::new(Token::of_server(TOKEN).unwrap(), hello, name_of(0)).unwrap();
    stream.write_all(&caller.open()).unwrap();
    loop {
        let (header, payload) = frame(&mut stream);
        match caller.hear(&header, &payload).unwrap() {
            Said::Reply(reply) => stream.write_all(&reply).unwrap(),
            Said::Verdict(verdict) => {
                assert_eq!(verdict, Verdict::Ok);
                return stream;
            }
        }
    }
}

/// Wait until the other end has closed the connection.
fn wait_for_end(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the server keeps the connection: {error}"),
        }
    }
}

/// A worker that counts: SGD would do, and Adagrad's accumulators are as good.
struct Worker {
    client: Client,
    batch: Arc<Batch>,
    task: u64,
    last: Vec<f32>,
}

impl Worker {
    fn new(address: &Address) -> Worker {
        let client = Client::open("worker", &worker_key(), None, catalog()).unwrap();
        client.learn(
            [(0, address.clone())],
            (0..SLOTS).map(|slot| (slot, ENTRY)),
            0,
        );
        let ids: Vec<u64> = (0..40).collect();
        let batch = Arc::new(Batch::new(&catalog(), 0, &ids));
        let last = vec![0.0; 120];
        Worker {
            client,
            batch,
            task: 0,
            last,
        }
    }

    /// Push once, and see that exactly that has happened: each weight falls, by less each time.
    fn push(&mut self) {
        let head = Head {
            seen: UNSEEN,
            stamp: Some(Stamp {
                task: self.task,
                chunk: 0,
            }),
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 1.0, step: 0 },
        };
        let rows = [(self.batch.clone(), vec![1.0; 120].into())];
        let pushed = Pushed::new(self.client.catalog(), head, &rows, &[], false);
        let limit = Duration::from_secs(60);
        let ticket = self.client.ask(None, Some(pushed));
        assert_eq!(self.client.take_end(ticket, limit), Some(End::Settled));
        self.task += 1;
        let wanted = Wanted {
            chunk: None,
            batches: vec![self.batch.clone()],
            ..Wanted::default()
        };
        let ticket = self.client.ask(Some(wanted), None);
        let found = self
            .client
            .take_found(ticket, limit)
            .unwrap()
            .expect("rows");
        let expected = 1.0 / (self.task as f32 + 0.1).sqrt();
        for (before, after) in self.last.iter().zip(&found.rows[0]) {
            assert!(
                (before - after - expected).abs() < 1e-4,
                "{before} {after} {expected}"
            );
        }
        self.last.clone_from(&found.rows[0]);
    }
}

#[test]
fn malformed_messages_end_their_connection_and_nothing_else() {
    let (server, address) = server();
    let mut worker = Worker::new(&address);
    worker.push();
    let message = |kind, length: usize, payload: &[u64]| {
        let header = Header {
            kind,
            length: length as u32,
            view: 1,
            step: 0,
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend(payload.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut draw = || {
        use proptest::strategy::ValueTree;
        loop {
            let mut words = ask().new_tree(&mut runner).unwrap().current();
            let damage = damage().new_tree(&mut runner).unwrap().current();
            do_damage(&mut words, &damage);
            if Ask::read(&words, &catalog()).is_err() {
                return words;
            }
        }
    };
    let mut cases = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0; 4096],
        message(Kind::Ask, usize::MAX & 0xffff_fff8, &[]),
        message(Kind::Ask, 12, &[1]),
        message(Kind::Ask, 0, &[]),
        message(Kind::Beat, 8, &[1]),
        message(Kind::Rows, 8, &[1]),
        message(Kind::Stream, 8, &[1]),
    ];
    for _ in 0..40 {
        let words = draw();
        cases.push(message(Kind::Ask, words.len() * 8, &words));
    }
    for (number, case) in (1..).zip(&cases) {
        let mut stream = stranger(&server, Purpose::Parameters);
        // The server may have closed it before all is out.
        let _ = stream.write_all(case);
        wait_for_end(stream);
        assert_eq!(
            server.refusals().total(),
            number,
            "case {number} is not counted"
        );
        if number % 4 == 0 {
            worker.push();
        }
    }
    // One that ends in the middle is no fault of its bytes.
    let mut cut = stranger(&server, Purpose::Parameters);
    cut.write_all(&message(Kind::Ask, 1 << 20, &[1, 2, 3]))
        .unwrap();
    drop(cut);
    // Of another server, which may only send a stream.
    let mut stream = stranger(&server, Purpose::Stream);
    let _ = stream.write_all(&message(Kind::Stream, 24, &[2, u64::MAX, 0]));
    wait_for_end(stream);
    assert_eq!(server.refusals().total(), cases.len() as u64 + 1);
    worker.push();
    assert!(
        server.take_ready(Duration::ZERO).is_ok(),
        "the server is broken"
    );
    // Somebody new is served as before, and finds what the worker has pushed.
    let mut other = Worker::new(&address);
    (other.task, other.last) = (worker.task, worker.last.clone());
    other.push();
}

/// More answers, and more bytes, than a server keeps for one connection: all of them in memory would be 400 MiB.
#[test]
fn a_worker_that_reads_later_gets_all_answers_as_there_is_room() {
    const ASKS: u64 = 100;
    const LENGTH: usize = 1 << 20;
    let variable = Variable {
        name: "kernel".into(),
        length: LENGTH,
        decays: false,
        adds: false,
    };
    let catalog = Catalog::new(0, SLOTS, vec![], vec![variable], catalog().rule(), 0.0);
    let (server, _) = server_of(catalog.clone());
    let slot = catalog.slot_of_variable(0);
    let numbers = vec![1.0; LENGTH];
    let first = Part {
        rows: vec![],
        dense: vec![part::Dense {
            variable: 0,
            is_first: true,
            numbers: &numbers,
        }],
    };
    let mut words = Vec::new();
    first.write(&mut words);
    let head = Head {
        stamp: None,
        low: 0,
        roll_back: 0,
        pace: Pace { rate: 1.0, step: 0 },
        seen: UNSEEN,
    };
    let applied = server.node().push(slot, &head, 1, &words, 0);
    assert_eq!(applied, Some(Answer::Applied));
    let known = Known {
        variable: 0,
        primary_epoch: 0,
        version: 0,
    };
    let pull = Pull {
        slot,
        term: 1,
        dense: vec![known],
        ..Pull::default()
    };
    let ask = Ask {
        head,
        chunk: None,
        need: Need::default(),
        confirmed: Confirmed::default(),
        pulls: vec![pull],
        pushes: vec![],
    };
    let words = ask.write();
    let asked: Vec<u8> = (0..ASKS)
        .flat_map(|number| Header::frame(Kind::Ask, number, 0, bytemuck::cast_slice(&words)))
        .collect();
    let mut stream = stranger(&server, Purpose::Parameters);
    stream.write_all(&asked).unwrap();
    for number in 0..ASKS {
        let (header, payload) = frame(&mut stream);
        assert_eq!((header.kind, header.view), (Kind::Rows, number));
        assert!(payload.len() > LENGTH * size_of::<f32>());
    }
    assert_eq!(server.refusals().total(), 0);
}

/// What it says of the job's progress would close all tasks, apply steps that are not complete, or void all that is settled.
#[test]
fn a_client_that_is_further_than_the_master_says_is_not_believed() {
    let (server, address) = server();
    let mut worker = Worker::new(&address);
    worker.push();
    let confirmed = |roll_back, low, steps, task| {
        let mut confirmed = Confirmed::new(roll_back);
        confirmed.raise_low(low);
        confirmed.raise_steps(steps);
        confirmed.confirm(task, 1);
        confirmed
    };
    let need = |number, end| Need {
        number,
        first: end - 1,
        end,
        chunks: 1,
    };
    let head = |roll_back, low, task| Head {
        seen: UNSEEN,
        stamp: Some(Stamp { task, chunk: 0 }),
        low,
        roll_back,
        pace: Pace { rate: 1.0, step: 0 },
    };
    let (nothing, no_need) = (Confirmed::default(), Need::default());
    let most = u64::MAX;
    let mut stream = stranger(&server, Purpose::Parameters);
    let slot = catalog().slot_of_row(0, 1);
    let part = part_of(&catalog(), slot, &[1], false);
    for (head, confirmed, need, is_push) in [
        (head(0, most, 0), nothing.clone(), no_need, true),
        (head(0, TASKS + 1, 0), nothing.clone(), no_need, true),
        (head(most, 0, 0), nothing.clone(), no_need, true),
        (head(1, 1, 0), nothing.clone(), no_need, true),
        (head(0, 0, most), nothing.clone(), no_need, true),
        (head(0, 0, 0), confirmed(most, 0, 0, 0), no_need, false),
        (head(0, 0, 0), confirmed(1, 0, 0, 0), no_need, false),
        (head(0, 0, 0), confirmed(0, most, 0, 0), no_need, false),
        (head(0, 0, 0), confirmed(0, 0, most, 0), no_need, false),
        (head(0, 0, 0), confirmed(0, 0, 0, most), no_need, false),
        (head(0, 0, 0), nothing.clone(), need(most, 9), false),
        (head(0, 0, 0), nothing.clone(), need(1, TASKS + 1), false),
    ] {
        let pull = Pull {
            slot,
            term: 1,
            rows: vec![(0, &[1])],
            ..Pull::default()
        };
        let push = Push {
            slot,
            term: 1,
            seen: UNSEEN,
            words: &part,
        };
        let ask = Ask {
            head,
            chunk: None,
            need,
            confirmed,
            pulls: if is_push { vec![] } else { vec![pull] },
            pushes: if is_push { vec![push] } else { vec![] },
        };
        let words = ask.write();
        let bytes = Header::frame(Kind::Ask, 5, 0, bytemuck::cast_slice(&words));
        stream.write_all(&bytes).unwrap();
        let (header, payload) = frame(&mut stream);
        let words = readers::words(&payload);
        let mut reader = Reader::new(&words);
        if is_push {
            assert_eq!(header.kind, Kind::Answers);
            assert_eq!(wire::outcome(&mut reader), Ok((slot, Outcome::Busy)));
        } else {
            assert_eq!(header.kind, Kind::Rows);
            let pulled = wire::pulled(&mut reader, &catalog(), &ask.pulls[0]);
            assert_eq!(pulled, Ok(Pulled::Elsewhere), "{ask:?}");
        }
    }
    // A job's own worker continues: no task of its is closed, and the server knows nothing that is not so.
    worker.push();
    assert_eq!(server.complete(), (0, 0));
    assert!(
        server.take_ready(Duration::ZERO).is_ok(),
        "the server is broken"
    );
    assert_eq!(server.refusals().total(), 0);
}

#[test]
fn a_stream_that_skips_or_names_no_slot_ends_and_its_server_goes_on() {
    let (server, address) = server();
    let mut worker = Worker::new(&address);
    for (number, slot) in [(u64::MAX, 0), (7, 0), (0, SLOTS)] {
        let mut stream = stranger(&server, Purpose::Stream);
        let message = Message {
            slot,
            entry: Entry {
                primary: STRANGER,
                ..ENTRY
            },
            version: 1,
            deed: Deed::CopyBegin,
        };
        stream.write_all(&streamed(number, &message)).unwrap();
        wait_for_end(stream);
    }
    worker.push();
    assert_eq!(server.refusals().total(), 3);
    assert!(
        server.take_ready(Duration::ZERO).is_ok(),
        "the server is broken"
    );
}

/// As the backup of another server it has accepted two pushes; what can't come next changes nothing, and is never acknowledged (rule R6).
#[test]
fn a_stream_with_wrong_versions_ends_and_its_server_goes_on() {
    let slot = SLOTS - 1;
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    let backup = Server::open(listener, 0, TOKEN, None, catalog()).unwrap();
    let entry = Entry {
        primary: STRANGER,
        backup: Some(0),
        ..ENTRY
    };
    backup.learn([], [(slot, entry)], Bounds::NONE).unwrap();
    let ids: Vec<u64> = (0..100).collect();
    let part: Arc<[u64]> = part_of(&catalog(), slot, &ids, true).into();
    let push = |task| Deed::Push {
        stamp: Some(Stamp { task, chunk: 0 }),
        low: 0,
        roll_back: 0,
        pace: Pace { rate: 1.0, step: 0 },
        part: part.clone(),
    };
    let message = |version, deed| Message {
        slot,
        entry,
        version,
        deed,
    };
    // Where to go on is said first.
    let begin = |next| {
        let mut stream = stranger(&backup, Purpose::Stream);
        assert_eq!(accepted(&mut stream), next);
        stream
    };
    let go_on = |number, task| {
        let mut stream = begin(number);
        let next = message(number + 1, push(task));
        stream.write_all(&streamed(number, &next)).unwrap();
        assert_eq!(accepted(&mut stream), number + 1);
    };
    go_on(0, 0);
    go_on(1, 1);
    let content = || {
        let found = backup.node().look(slot, |slot| {
            let data = slot.data().expect("what it has accepted");
            let mut rows = vec![0.0; 300];
            data.pull(&catalog(), 0, &ids, &mut rows);
            (data.version, data.stamps.clone(), rows)
        });
        found.unwrap()
    };
    let before = content();
    let elsewhere = ids.iter().find(|id| catalog().slot_of_row(0, **id) != slot);
    let lying: Arc<[u64]> = [1, 1 << 32, *elsewhere.unwrap(), 0, 0].into();
    let lies = Deed::Push {
        stamp: Some(Stamp { task: 2, chunk: 0 }),
        low: 9,
        roll_back: 0,
        pace: Pace { rate: 1.0, step: 0 },
        part: lying,
    };
    let newer = |primary, backup| Message {
        entry: Entry {
            term: 2,
            primary_epoch: 2,
            primary,
            backup,
            restored: 0,
        },
        ..message(9, push(2))
    };
    let cases = [
        (message(9, push(2)), "version 9 follows 2"),
        (message(2, push(2)), "version 2 follows 2"),
        (message(0, push(2)), "version 0 follows 2"),
        (message(u64::MAX, push(2)), "follows 2"),
        (message(3, push(1)), "it has chunk 0 of task 1 already"),
        (message(3, lies), "is not one of slot"),
        (message(9, Deed::Step(7)), "version 9 follows 2"),
        (message(9, Deed::Expire(7)), "version 9 follows 2"),
        (
            message(3, Deed::CopyPiece(vec![1, 0])),
            "version 3 follows 2",
        ),
        (
            message(2, Deed::CopyEnd(Stamps::default())),
            "version 2 follows 2",
        ),
        (newer(0, None), "primary is another server"),
    ];
    for (number, (message, why)) in (1..).zip(&cases) {
        let mut stream = begin(2);
        stream.write_all(&streamed(2, message)).unwrap();
        wait_for_end(stream);
        let told = backup.refusals().take().first;
        let [(from, said)] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(from, &name_of(STRANGER));
        assert!(said.contains(why), "{said}");
        assert_eq!(backup.refusals().total(), number);
        assert_eq!(content(), before, "{message:?}");
        assert!(
            backup.take_ready(Duration::ZERO).is_ok(),
            "the server is broken"
        );
    }
    // The same stream continues where it should have, over a new connection.
    go_on(2, 2);
    assert_eq!(content().0, 3);
}

/// It may say of a slot that is copied to it what it likes: the copy is never whole, and others' streams and workers go on.
#[test]
fn a_copy_with_wrong_versions_ends_and_its_server_goes_on() {
    let entry = Entry {
        primary: STRANGER,
        ..ENTRY
    };
    let slot = SLOTS - 1;
    let message = |version, deed| Message {
        slot,
        entry,
        version,
        deed,
    };
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    let receiver = Server::open(listener, 0, TOKEN, None, catalog()).unwrap();
    let mut stream = stranger(&receiver, Purpose::Stream);
    let begin = streamed(0, &message(5, Deed::CopyBegin));
    stream.write_all(&begin).unwrap();
    assert_eq!(accepted(&mut stream), 0);
    assert_eq!(accepted(&mut stream), 1);
    let early = Message {
        entry: Entry {
            term: 2,
            backup: Some(0),
            ..entry
        },
        ..message(5, Deed::CopyPiece(vec![1, 0]))
    };
    let cases = [
        (
            message(7, Deed::CopyEnd(Stamps::default())),
            "version 7 follows 5",
        ),
        (
            message(4, Deed::CopyPiece(vec![1, 0])),
            "version 4 follows 5",
        ),
        (
            message(5, Deed::CopyPiece(vec![9, 0])),
            "it is no piece of a slot",
        ),
        (message(5, Deed::Step(3)), "version 5 follows 5"),
        (message(u64::MAX, Deed::Expire(3)), "follows 5"),
        (early, "it became backup without all rows"),
    ];
    for (message, why) in cases {
        let mut stream = stranger(&receiver, Purpose::Stream);
        stream.write_all(&streamed(1, &message)).unwrap();
        wait_for_end(stream);
        let told = receiver.refusals().take().first;
        assert!(
            matches!(&told[..], [(_, said)] if said.contains(why)),
            "{told:?}"
        );
        let version = |slot: &Slot| slot.data().map(|data| data.version);
        let version = receiver.node().look(slot, version).flatten();
        assert_eq!(version, Some(5), "{message:?}");
        assert!(
            receiver.take_ready(Duration::ZERO).is_ok(),
            "the server is broken"
        );
    }
    let end = streamed(1, &message(5, Deed::CopyEnd(Stamps::default())));
    let mut stream = stranger(&receiver, Purpose::Stream);
    stream.write_all(&end).unwrap();
    assert_eq!(accepted(&mut stream), 1);
    assert_eq!(accepted(&mut stream), 2);
}

#[test]
fn a_part_that_lies_is_refused_with_its_reason_and_the_connection_goes_on() {
    let (server, address) = server();
    let mut worker = Worker::new(&address);
    worker.push();
    let mut stream = stranger(&server, Purpose::Parameters);
    let mut ask_with = |slot, part: &[u64]| {
        let head = Head {
            seen: UNSEEN,
            stamp: Some(Stamp {
                task: 999,
                chunk: 9,
            }),
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 1.0, step: 0 },
        };
        let push = Push {
            slot,
            term: 1,
            seen: UNSEEN,
            words: part,
        };
        let ask = Ask {
            head,
            chunk: None,
            need: Need::default(),
            confirmed: Confirmed::default(),
            pulls: vec![],
            pushes: vec![push],
        };
        let words = ask.write();
        let bytes = Header::frame(Kind::Ask, 5, 0, bytemuck::cast_slice(&words));
        stream.write_all(&bytes).unwrap();
        let (header, payload) = frame(&mut stream);
        assert_eq!(header.kind, Kind::Refusal);
        assert_eq!(frame(&mut stream).0.kind, Kind::Answers);
        wire::read_text(&readers::words(&payload))
    };
    let nobody = catalog();
    let elsewhere = (0..SLOTS)
        .find(|slot| nobody.slot_of_row(0, 1) != *slot)
        .unwrap();
    let here = nobody.slot_of_row(0, 1);
    let nan = u64::from(f32::NAN.to_bits());
    for (slot, part, said) in [
        (here, vec![1, 7], "names table 7, and there are 2"),
        (here, vec![1, 1 << 32, 1, 0], "it ends in the middle"),
        (
            here,
            vec![1, u64::from(u32::MAX) << 32, 1],
            "it ends in the middle",
        ),
        (
            here,
            vec![1, 1 << 32, 1, nan, 0],
            "the gradient of row 1 of table a holds NaN",
        ),
        (
            here,
            vec![1, 1 << 32, 1, 0, 0, 5],
            "it has more than it says",
        ),
        (
            elsewhere,
            vec![1, 1 << 32, 1, 0, 0],
            "row 1 of table a is not one of slot",
        ),
        (here, vec![1 << 32, 9], "names variable 9, and there are 2"),
        (SLOTS, vec![0], "there is no slot 4"),
    ] {
        let text = ask_with(slot, &part);
        assert!(text.contains(said), "{text:?} for {said:?}");
    }
    worker.push();
    assert_eq!(server.refusals().total(), 0);
}
