//! Who may wait in a handshake, and who goes when there is no room.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use elasticdl_core::net::admission::{Admission, Dismissal, PATIENCE, Source, Ticket};
use proptest::prelude::*;

/// With these there is room for 64, and for 16 of one source.
const DESCRIPTORS: Option<u64> = Some(256);
const ROOM: usize = 64;
const SHARE: usize = 16;

fn source(number: u8) -> Source {
    SocketAddr::from(([10, 0, 0, number], 1)).into()
}

/// Let so many in, none of whom costs another its place.
fn fill(admission: &mut Admission, now: Instant, from: u8, count: usize) -> Vec<Ticket> {
    (0..count)
        .map(|_| {
            let (ticket, dismissed) = admission.arrive(now, source(from));
            assert_eq!(dismissed, None);
            ticket
        })
        .collect()
}

fn dismissed(arrived: (Ticket, Option<Dismissal>)) -> Ticket {
    arrived.1.expect("somebody has to go").ticket
}

#[test]
fn a_source_makes_room_for_itself_and_the_silent_go_first() {
    let (mut admission, now) = (Admission::new(DESCRIPTORS), Instant::now());
    let tickets = fill(&mut admission, now, 1, SHARE);
    admission.speak(tickets[0]);
    admission.speak(tickets[2]);
    assert_eq!(dismissed(admission.arrive(now, source(1))), tickets[1]);
    assert_eq!(dismissed(admission.arrive(now, source(1))), tickets[3]);
    // Others have their share.
    fill(&mut admission, now, 2, SHARE);
}

#[test]
fn when_all_of_a_source_have_spoken_the_oldest_goes() {
    let (mut admission, now) = (Admission::new(DESCRIPTORS), Instant::now());
    let tickets = fill(&mut admission, now, 1, SHARE);
    for ticket in &tickets {
        admission.speak(*ticket);
    }
    assert_eq!(dismissed(admission.arrive(now, source(1))), tickets[0]);
}

#[test]
fn without_room_the_most_frequent_source_gives_some() {
    let (mut admission, now) = (Admission::new(DESCRIPTORS), Instant::now());
    let few = fill(&mut admission, now, 1, SHARE - 1);
    let many = fill(&mut admission, now, 2, SHARE);
    for from in 3..5 {
        fill(&mut admission, now, from, SHARE);
    }
    fill(&mut admission, now, 5, 1);
    admission.speak(many[0]);
    assert_eq!(dismissed(admission.arrive(now, source(6))), many[1]);
    admission.leave(few[0]);
    let (_, nobody) = admission.arrive(now, source(7));
    assert_eq!(nobody, None);
}

#[test]
fn time_is_over_for_who_does_not_say_who_it_is() {
    let (mut admission, now) = (Admission::new(DESCRIPTORS), Instant::now());
    assert_eq!(admission.deadline(now), None);
    let old = fill(&mut admission, now, 1, 2);
    admission.speak(old[0]);
    let later = now + Duration::from_secs(1);
    fill(&mut admission, later, 1, 1);
    assert_eq!(admission.deadline(later), Some(now + PATIENCE));
    assert_eq!(admission.expire(now + PATIENCE / 2), []);
    let over: Vec<Ticket> = admission
        .expire(now + PATIENCE)
        .into_iter()
        .map(|one| one.ticket)
        .collect();
    assert_eq!(over, old);
    assert_eq!(admission.deadline(later), Some(later + PATIENCE));
}

#[test]
fn without_descriptors_the_silent_go_and_then_nobody_comes_for_a_while() {
    let (mut admission, now) = (Admission::new(DESCRIPTORS), Instant::now());
    let tickets = fill(&mut admission, now, 1, 2);
    admission.speak(tickets[0]);
    let gone = admission.lack_descriptors(now).map(|one| one.ticket);
    assert_eq!(gone, Some(tickets[1]));
    assert!(admission.accepts(now));
    assert_eq!(admission.lack_descriptors(now), None);
    assert!(!admission.accepts(now));
    let again = admission.deadline(now).unwrap();
    assert!(again < now + PATIENCE && admission.accepts(again));
}

#[test]
fn a_network_of_ipv6_is_one_source() {
    let from = |text: &str| Source::from(text.parse::<SocketAddr>().unwrap());
    assert_eq!(from("[2001:db8:0:1::1]:1"), from("[2001:db8:0:1:f::2]:2"));
    assert_ne!(from("[2001:db8:0:1::1]:1"), from("[2001:db8:0:2::1]:1"));
    assert_eq!(from("[::ffff:10.0.0.1]:1"), from("10.0.0.1:2"));
    assert_ne!(from("10.0.0.1:1"), from("10.0.0.2:1"));
}

#[test]
fn the_room_follows_the_limit_of_descriptors() {
    for (descriptors, share) in [
        (Some(0), 4),
        (Some(1024), 64),
        (Some(1 << 40), 256),
        (None, 256),
    ] {
        let (mut admission, now) = (Admission::new(descriptors), Instant::now());
        fill(&mut admission, now, 1, share);
        assert!(admission.arrive(now, source(1)).1.is_some());
    }
}

proptest! {
    /// Whatever comes and goes: no source has more than its share, all together no more than there is room for, and nobody is forgotten.
    #[test]
    fn places_are_bounded_and_accounted_for(events in prop::collection::vec((0u8..5, 0u8..8), 0..600)) {
        let start = Instant::now();
        let mut admission = Admission::new(DESCRIPTORS);
        let mut waiting: BTreeMap<Ticket, u8> = BTreeMap::new();
        for (step, (event, number)) in events.into_iter().enumerate() {
            let now = start + Duration::from_millis(20) * step as u32;
            let some = waiting.keys().nth(usize::from(number)).copied();
            match (event, some) {
                (0, Some(ticket)) => {
                    admission.leave(ticket);
                    waiting.remove(&ticket);
                }
                (1, Some(ticket)) => admission.speak(ticket),
                (2, _) => {
                    for one in admission.expire(now) {
                        prop_assert!(waiting.remove(&one.ticket).is_some());
                    }
                }
                _ => {
                    let (ticket, gone) = admission.arrive(now, source(number));
                    if let Some(gone) = gone {
                        prop_assert!(waiting.remove(&gone.ticket).is_some());
                    }
                    prop_assert!(waiting.insert(ticket, number).is_none());
                }
            }
            prop_assert!(waiting.len() <= ROOM);
            for of in 0..8 {
                prop_assert!(waiting.values().filter(|source| **source == of).count() <= SHARE);
            }
        }
        let end = start + Duration::from_secs(3600);
        let left: Vec<Ticket> = admission.expire(end).into_iter().map(|one| one.ticket).collect();
        prop_assert_eq!(left, waiting.into_keys().collect::<Vec<_>>());
        prop_assert_eq!(admission.deadline(end), None);
    }
}
