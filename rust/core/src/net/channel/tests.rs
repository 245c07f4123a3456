//! Messages of a channel, over TCP, over a Unix socket and in shared memory.
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;

use super::*;
use crate::net::address::Listener;
use crate::net::shared::mailbox::ROOM;
use crate::net::sink::Sink;

/// Both ends of a connection: who has dialled, and a Unix socket's directory.
fn ends(address: &str) -> (Channel, Channel, Option<tempfile::TempDir>) {
    let directory = (address == "unix").then(|| tempfile::tempdir().unwrap());
    let address = match &directory {
        Some(directory) => format!("unix:{}/socket", directory.path().display()),
        None => address.into(),
    };
    let listener = Listener::bind(&address.parse().unwrap()).unwrap();
    let dialled = Stream::connect(listener.address()).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some((stream, _)) = listener.accept().unwrap() {
            return (Channel::dialled(dialled), Channel::new(stream), directory);
        }
        assert!(Instant::now() < until);
    }
}

fn message(number: u64, length: u64) -> Packet {
    Packet {
        kind: Kind::Ask,
        number,
        mark: 1,
        words: (0..length).map(|word| word * 7 + number).collect(),
    }
}

/// Bring a message over, which is the next of the receiver's.
fn next(sender: &mut Channel, receiver: &mut Channel) -> Result<Packet, Lost> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        sender.flush()?;
        if let Some(packet) = receiver.receive()? {
            return Ok(packet);
        }
        assert!(Instant::now() < until);
    }
}

/// Say something each way, so that both ends have each other's memory if there is any.
fn meet(left: &mut Channel, right: &mut Channel) {
    left.send(message(1, 1)).unwrap();
    next(left, right).unwrap();
    right.send(message(2, 1)).unwrap();
    next(right, left).unwrap();
}

#[test]
fn memory_of_one_message_serves_the_next() {
    for address in ["tcp:127.0.0.1:0", "unix"] {
        let (mut sender, mut receiver, _directory) = ends(address);
        meet(&mut sender, &mut receiver);
        for length in [
            50_000, 3, 0, 49_999, 50_001, 20_000, 400_000, 600_000, 50_000, 1_500_000, 50_000,
        ] {
            let sent = message(length, length);
            sender.send(sent.clone()).unwrap();
            let packet = next(&mut sender, &mut receiver).unwrap();
            assert_eq!(packet, sent);
            receiver.reuse(packet.words);
        }
    }
}

#[test]
fn large_messages_of_one_host_lie_in_shared_memory_as_long_as_there_is_room() {
    let (mut left, mut right, _directory) = ends("unix");
    meet(&mut left, &mut right);
    let (sender, receiver) = (&mut left, &mut right);
    for _ in 0..2 {
        let sent: Vec<Packet> = (0..6).map(|number| message(number, ROOM / 4)).collect();
        for packet in &sent {
            sender.send(packet.clone()).unwrap();
        }
        let placed = sender.leaving.iter().filter(|one| one.words.len() == 3);
        assert_eq!(placed.count(), 4);
        for packet in &sent {
            assert_eq!(&next(sender, receiver).unwrap(), packet);
        }
        // What has been read serves again.
        sender.send(sent[5].clone()).unwrap();
        assert_eq!(sender.leaving.back().unwrap().words.len(), 3);
        assert_eq!(next(sender, receiver).unwrap(), sent[5]);
        std::mem::swap(sender, receiver);
    }
}

/// Put a message out that is written in two halves, the second one as room.
fn written(sender: &mut Channel, sent: &Packet, room: usize) -> Result<(), Lost> {
    sender.send_by((sent.kind, sent.number, sent.mark), room, |draft| {
        let (first, second) = sent.words.split_at(sent.words.len() / 2);
        draft.extend_from_slice(first);
        draft.append_room(second.len()).copy_from_slice(second);
    })
}

#[test]
fn a_message_is_written_where_it_goes_out_from_whatever_its_estimate() {
    for (address, is_placed) in [("tcp:127.0.0.1:0", false), ("unix", true)] {
        let (mut sender, mut receiver, _directory) = ends(address);
        meet(&mut sender, &mut receiver);
        let large = LARGE as u64 / 8;
        for (length, room, own) in [
            (0, 0, false),
            (3, 3, false),
            (3, large, true),
            (large, large, true),
            (large, 5 * large, true),
            // Too small an estimate: the message is sent as one of which all is known.
            (5 * large, large, true),
            (5 * large, 0, true),
            (large - 1, 0, false),
            // More than the place can have.
            (large, ROOM + 1, true),
            (ROOM + 1, large, false),
            (ROOM, ROOM, true),
        ] {
            let sent = message(length, length);
            written(&mut sender, &sent, room as usize).unwrap();
            let found = sender.leaving.back().unwrap().words.len();
            if is_placed && own {
                assert_eq!(found, 3, "{length} in {room}");
            } else {
                assert_eq!(found, length as usize, "{length} in {room}");
            }
            let other = message(1, 2 * large);
            sender.send(other.clone()).unwrap();
            for sent in [&sent, &other] {
                let packet = next(&mut sender, &mut receiver).unwrap();
                assert_eq!(&packet, sent);
                receiver.reuse(packet.words);
            }
            meet(&mut sender, &mut receiver);
        }
    }
}

#[test]
fn a_message_that_finds_the_memory_full_or_is_too_long_takes_none_of_it() {
    let (mut sender, mut receiver, _directory) = ends("unix");
    meet(&mut sender, &mut receiver);
    let sent: Vec<Packet> = (0..6).map(|number| message(number, ROOM / 4)).collect();
    for packet in &sent {
        written(&mut sender, packet, packet.words.len()).unwrap();
        // Of what a server has to say, this is far too much.
        let longest = Packet {
            kind: Kind::Waits,
            ..message(9, 4096)
        };
        let end = written(&mut sender, &longest, 4096);
        assert!(matches!(end, Err(Lost::Malformed(Malformed::Length))));
    }
    let placed = sender.leaving.iter().filter(|one| one.words.len() == 3);
    assert_eq!(placed.count(), 4);
    for packet in &sent {
        assert_eq!(&next(&mut sender, &mut receiver).unwrap(), packet);
    }
}

#[test]
fn who_has_been_offered_no_memory_gets_all_through_the_socket() {
    let (mut left, mut right, _directory) = ends("unix");
    left.leaving.clear();
    meet(&mut left, &mut right);
    let (sender, receiver) = (&mut left, &mut right);
    for _ in 0..2 {
        let sent = message(5, ROOM / 4);
        sender.send(sent.clone()).unwrap();
        assert_eq!(sender.leaving.back().unwrap().words.len(), sent.words.len());
        assert_eq!(next(sender, receiver).unwrap(), sent);
        std::mem::swap(sender, receiver);
    }
}

#[test]
fn a_confused_end_s_memory_and_places_are_malformed() {
    let ask = Kind::Ask as u64;
    let largest = ROOM + 1;
    for words in [
        vec![],
        vec![ask, 1],
        vec![ask, largest, 0],
        vec![ask, 2, ROOM - 1],
        vec![ask, u64::MAX, 0],
        vec![ask, 1, u64::MAX],
        vec![Kind::Waits as u64, 1, 0],
        vec![255, 1, 0],
        vec![u64::MAX, 1, 0],
    ] {
        let (mut left, mut right, _directory) = ends("unix");
        meet(&mut left, &mut right);
        left.put(Kind::Placed, 1, 1, words.clone(), None);
        let end = next(&mut left, &mut right);
        assert!(matches!(end, Err(Lost::Malformed(_))), "{words:?}");
    }
    let another = || {
        let file = rustix::fs::memfd_create("another", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8 * ROOM + 4096).unwrap();
        file
    };
    for (offers, file) in [
        (false, None),
        (false, Some(another())),
        (true, Some(Outbox::create().unwrap().1)),
    ] {
        let (mut left, mut right, _directory) = ends("unix");
        if !offers {
            left.leaving.clear();
        }
        left.put(Kind::Share, 0, 0, Vec::new(), file);
        let end = next(&mut left, &mut right);
        assert!(matches!(end, Err(Lost::Malformed(_))), "{end:?}");
    }
    // Places mean nothing where no memory was shared.
    let (mut left, mut right, _) = ends("tcp:127.0.0.1:0");
    left.put(Kind::Placed, 1, 1, vec![ask, 1, 0], None);
    let end = next(&mut left, &mut right);
    assert!(matches!(end, Err(Lost::Malformed(_))), "{end:?}");
}
