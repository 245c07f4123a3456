//! What another server's connection may bring: the stream to a backup, and a copy of a slot.
use std::io::Write;
use std::time::Duration;

use elasticdl_core::net::address::Listener;
use elasticdl_core::net::handshake::Purpose;
use elasticdl_core::ps::protocol::excerpt::Excerpt;
use elasticdl_core::ps::protocol::placement::Entry;
use elasticdl_core::ps::protocol::stamps::{Stamp, Stamps};
use elasticdl_core::ps::protocol::stream::{Deed, Message};
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::node::Bounds;
use elasticdl_core::ps::server::process::{Server, name_of};
use elasticdl_core::ps::server::slot::Slot;

use crate::messages::part_of;
use crate::peers::{STRANGER, Worker, accepted, server, stranger, streamed, wait_for_end};
use crate::readers::{SLOTS, catalog};
use crate::{ENTRY, TOKEN};

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
    let part: Excerpt = part_of(&catalog(), slot, &ids, true, true).into();
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
    let lying = vec![1, 1 << 32, *elsewhere.unwrap(), 0, 0].into();
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
