//! What servers do beyond applying pushes: staleness and expiry, the same at both replicas.
use std::sync::Arc;

use elasticdl_core::ps::memory::initial::Initial;
use elasticdl_core::ps::memory::optimizer::Rule;
use elasticdl_core::ps::protocol::catalog::{Catalog, Policy, Table};
use elasticdl_core::ps::protocol::numbers::Numbers;
use elasticdl_core::ps::protocol::part::{Part, Rows};
use elasticdl_core::ps::protocol::placement::Entry;
use elasticdl_core::ps::protocol::stamps::Stamp;
use elasticdl_core::ps::protocol::stream::Message;
use elasticdl_core::ps::server::data::{Data, Pace};
use elasticdl_core::ps::server::node::{Bounds, Node};
use elasticdl_core::ps::server::slot::{Answer, Head, UNSEEN};

/// One slot at a primary and its backup, under SGD at a rate of 1.
struct Pair {
    primary: Node,
    backup: Node,
    task: u64,
}

impl Pair {
    fn new(policy: Policy) -> Pair {
        let table = Table {
            name: "ids".into(),
            width: 1,
            initial: Initial::Constant(0.0),
            admission: 1,
            decays: false,
        };
        let rule = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        let catalog = Catalog::new(0, 1, vec![table], vec![], rule, 0.0);
        let entry = Entry {
            term: 1,
            primary_epoch: 1,
            primary: 0,
            backup: Some(1),
            restored: 0,
        };
        let node = |me, catalog: &Catalog| {
            let node = Node::new(me, catalog.clone());
            node.bound(&Bounds::NONE);
            node.learn([(0, entry)]).unwrap();
            node
        };
        Pair {
            primary: node(0, &catalog.clone().with_policy(policy)),
            // It does what its primary does, whatever its own policy is.
            backup: node(1, &catalog),
            task: 0,
        }
    }

    /// Push 1 to a row as of a version, and let the backup hear of it; returns the answer.
    fn push(&mut self, id: u64, step: u64, seen: u64) -> Answer {
        self.task += 1;
        self.push_again(id, step, seen)
    }

    fn push_again(&mut self, id: u64, step: u64, seen: u64) -> Answer {
        let mut part = Part::default();
        let ids = [id];
        part.rows.push(Rows {
            table: 0,
            ids: &ids,
            gradients: Numbers::Long(&[-1.0]),
        });
        self.push_part(&part, step, seen)
    }

    fn push_part(&mut self, part: &Part<'_>, step: u64, seen: u64) -> Answer {
        let head = Head {
            stamp: Some(Stamp {
                task: self.task,
                chunk: 0,
            }),
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 1.0, step },
            seen,
        };
        let mut words = Vec::new();
        part.write(&mut words);
        let mut answer = self.primary.pushes().push(0, &head, 1, (&words).into(), 7);
        let way = self.primary.way(1);
        let first = way.outgoing().first();
        let end = way.outgoing().end();
        for number in first..end {
            let mut words = Vec::new();
            way.outgoing().get(number).unwrap().write(&mut words);
            let message = Message::read(&words, &Arc::default()).unwrap();
            let mut told = Vec::new();
            self.backup.hear(0, number, &message, &mut told).unwrap();
        }
        for told in self.primary.accepted(1, end, &[]) {
            if let elasticdl_core::ps::server::slot::Told::Answered(7, late) = told {
                answer = Some(late);
            }
        }
        answer.expect("both have it")
    }

    fn read<R>(&self, read: impl Fn(&Data, &Catalog) -> R) -> [R; 2] {
        [&self.primary, &self.backup].map(|node| {
            node.look(0, |slot| read(slot.data().unwrap(), node.catalog()))
                .unwrap()
        })
    }

    fn version(&self) -> u64 {
        let [one, other] = self.read(|data, _| data.version);
        assert_eq!(one, other);
        one
    }

    fn weight(&self, id: u64) -> f32 {
        let [one, other] = self.read(|data, catalog| {
            let mut out = [0.0];
            data.pull(catalog, 0, &[id], &mut out);
            out[0]
        });
        assert_eq!(one, other);
        one
    }

    fn rows(&self) -> usize {
        let [one, other] = self.read(|data, _| data.rows());
        assert_eq!(one, other);
        one
    }
}

#[test]
fn a_stale_push_has_a_smaller_rate_at_both_replicas() {
    let mut pair = Pair::new(Policy {
        modulates: true,
        ..Policy::default()
    });
    for (seen, expected) in [
        (0, 1.0),
        (0, 1.0),
        (0, 0.5),
        (0, 1.0 / 3.0),
        (4, 1.0),
        (9, 1.0),
    ] {
        let before = pair.weight(5);
        assert_eq!(pair.push(5, 0, seen), Answer::Applied);
        assert!(
            (pair.weight(5) - before - expected).abs() < 1e-6,
            "{seen} {expected}"
        );
    }
    let before = pair.weight(5);
    pair.push(5, 0, UNSEEN);
    assert!((pair.weight(5) - before - 1.0).abs() < 1e-6);
}

/// A gradient that was no number: another attempt of its chunk, which might be one, finds it done.
#[test]
fn a_stamp_alone_changes_no_row_and_is_held_by_both_replicas() {
    let mut pair = Pair::new(Policy::default());
    assert_eq!(pair.push(5, 0, UNSEEN), Answer::Applied);
    pair.task += 1;
    assert_eq!(pair.push_part(&Part::default(), 0, UNSEEN), Answer::Applied);
    assert_eq!((pair.version(), pair.weight(5), pair.rows()), (2, 1.0, 1));
    let counted = pair.read(|data, _| data.stamps.proof().count);
    assert_eq!(counted, [2, 2]);
    assert_eq!(pair.push_again(5, 0, UNSEEN), Answer::Held);
    assert_eq!(pair.weight(5), 1.0);
}

#[test]
fn a_push_that_is_too_stale_changes_nothing_until_it_is_computed_again() {
    let mut pair = Pair::new(Policy {
        max_staleness: Some(2),
        ..Policy::default()
    });
    for _ in 0..3 {
        assert_eq!(pair.push(5, 0, UNSEEN), Answer::Applied);
    }
    assert_eq!(pair.push(5, 0, 0), Answer::Stale);
    assert_eq!((pair.version(), pair.weight(5)), (3, 3.0));
    // The same chunk, from newer rows; and once more, which it holds by then.
    assert_eq!(pair.push_again(5, 0, 1), Answer::Applied);
    assert_eq!(pair.push_again(5, 0, 0), Answer::Held);
    assert_eq!((pair.version(), pair.weight(5)), (4, 4.0));
    // What changes nothing need not be computed again.
    pair.task += 1;
    assert_eq!(pair.push_part(&Part::default(), 0, 0), Answer::Applied);
    // A backup that has taken over may be behind what a client has seen.
    assert_eq!(pair.push(5, 0, 100), Answer::Applied);
}

#[test]
fn rows_that_nobody_touches_are_forgotten_at_both_replicas() {
    let mut pair = Pair::new(Policy {
        expiry: Some(80),
        ..Policy::default()
    });
    for id in 0..10 {
        pair.push(id, id, UNSEEN);
    }
    // One that is kept alive, by steps that come in no order.
    for step in (20..200).step_by(2) {
        pair.push(3, step ^ 2, UNSEEN);
        assert!(pair.weight(3) > 1.0);
        assert!(step > 79 || pair.rows() == 10);
    }
    assert_eq!(pair.rows(), 1, "only the one that is pushed to is there");
    assert_eq!(pair.weight(7), 0.0);
    assert_eq!(pair.push(7, 200, UNSEEN), Answer::Applied);
    assert_eq!((pair.weight(7), pair.rows()), (1.0, 2));
}
