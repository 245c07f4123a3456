//! What a worker's connection may bring: asks, pulls and pushes.
use std::io::Write;
use std::time::Duration;

use elasticdl_core::net::frame::{Header, Kind};
use elasticdl_core::net::handshake::Purpose;
use elasticdl_core::ps::protocol::catalog::{Catalog, Variable};
use elasticdl_core::ps::protocol::numbers::Numbers;
use elasticdl_core::ps::protocol::part::{self, Part};
use elasticdl_core::ps::protocol::stamps::Stamp;
use elasticdl_core::ps::protocol::steps::{Confirmed, Need};
use elasticdl_core::ps::protocol::wire::{self, Ask, Known, Outcome, Pull, Pulled, Push};
use elasticdl_core::ps::protocol::words::Reader;
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::slot::{Answer, Head, UNSEEN};
use proptest::strategy::Strategy as _;

use crate::damage::{damage, do_damage};
use crate::messages::{ask, part_of};
use crate::peers::{Worker, frame, server, server_of, stranger, wait_for_end};
use crate::readers::{SLOTS, catalog};
use crate::{TASKS, readers};

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
            numbers: Numbers::Long(&numbers),
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
    let applied = server
        .node()
        .pushes()
        .push(slot, &head, 1, (&words).into(), 0);
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
    let words = ask.words();
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
    let part = part_of(&catalog(), slot, &[1], false, false);
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
        let words = ask.words();
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
        let words = ask.words();
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
