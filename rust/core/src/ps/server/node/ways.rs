//! The streams from one server to the others: what waits in each, and when who sends it is woken.
// What is read here comes from others.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::Node;
use crate::net::endpoint::lock;
use crate::net::wake::Wake;
use crate::ps::protocol::placement::Server;
use crate::ps::protocol::stream::{Message, Outgoing, Streams};

/// Words that may wait for one server's acceptance: 64 MiB. Pushes are asked to come again then, and copies wait.
const ROOM: usize = 8 << 20;

/// Words of one packet of a stream: messages are put together up to 256 KiB.
pub const PACKET: usize = 32 * 1024;

/// The stream to another server, and who is to be woken when something is put into it.
#[derive(Debug)]
pub struct Way {
    outgoing: Mutex<Outgoing>,
    pub wake: Wake,
}

impl Way {
    /// Have nothing to send yet.
    pub(super) fn new() -> Way {
        Way {
            outgoing: Mutex::default(),
            wake: Wake::wait_for_one(),
        }
    }

    /// Return what waits for being accepted.
    pub fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        lock(&self.outgoing)
    }
}

/// The streams to other servers, for changes that come one after the other. Who sends a stream is woken when there is enough for a packet,
/// and when the changes end: woken for each it would send hardly more than one at a time.
#[derive(Debug)]
pub(super) struct Ways<'a> {
    pub(super) node: &'a Node,
    /// The stream that was used last, which is mostly the next one too.
    last: Option<(Server, Arc<Way>)>,
    /// Words that were put into it since its sender was woken; none if nothing was.
    unannounced: Option<usize>,
    /// Whether servers had room when it was asked for first: of one message all parts are taken or none, because each of them keeps all of it.
    room: BTreeMap<Server, bool>,
}

impl<'a> Ways<'a> {
    /// Have woken nobody yet.
    pub(super) fn of(node: &'a Node) -> Ways<'a> {
        Ways {
            node,
            last: None,
            unannounced: None,
            room: BTreeMap::new(),
        }
    }

    fn way(&mut self, to: Server) -> Arc<Way> {
        match &self.last {
            Some((server, way)) if *server == to => way.clone(),
            _ => {
                self.wake_sender();
                let way = self.node.way(to);
                self.last = Some((to, way.clone()));
                way
            }
        }
    }

    /// Wake the sender of the stream that was used last, if there is anything new for it.
    fn wake_sender(&mut self) {
        if let (Some(_), Some((_, way))) = (self.unannounced.take(), &self.last) {
            way.wake.raise();
        }
    }
}

impl Streams for Ways<'_> {
    fn put(&mut self, to: Server, message: Message) -> u64 {
        let (way, size) = (self.way(to), message.size());
        let number = way.outgoing().push(message);
        let unannounced = self.unannounced.unwrap_or(0).saturating_add(size);
        self.unannounced = Some(unannounced);
        if unannounced >= PACKET {
            self.wake_sender();
        }
        number
    }

    fn has_room(&mut self, to: Server) -> bool {
        if let Some(has_room) = self.room.get(&to) {
            return *has_room;
        }
        let has_room = self.way(to).outgoing().words() < ROOM;
        self.room.insert(to, has_room);
        has_room
    }
}

impl Drop for Ways<'_> {
    fn drop(&mut self) {
        self.wake_sender();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bounds, Pushes};
    use super::*;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::protocol::catalog::{Catalog, Variable};
    use crate::ps::protocol::numbers::Numbers;
    use crate::ps::protocol::part::{Dense, Part};
    use crate::ps::protocol::placement::Entry;
    use crate::ps::protocol::stamps::Stamp;
    use crate::ps::server::data::Pace;
    use crate::ps::server::slot::{Answer, Head, UNSEEN};

    /// Words of a push: a third of a packet.
    const THIRD: usize = PACKET / 3;
    const BACKUPS: [Server; 2] = [1, 2];

    /// Be the primary of two slots, each with a variable and a backup of its own; with the pushes that give each its first value.
    fn primary() -> (Node, Vec<(u32, Vec<u64>)>) {
        let variable = |name: &String| Variable {
            name: name.clone(),
            length: 2 * THIRD,
            decays: false,
            adds: false,
        };
        let rule = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        let catalog = |names: &[String]| {
            let variables = names.iter().map(variable).collect();
            Catalog::new(0, 2, vec![], variables, rule, 0.0)
        };
        let of_slot = |slot| {
            let mut names = (0..).map(|number| format!("variable {number}"));
            names.find(|name| catalog(std::slice::from_ref(name)).slot_of_variable(0) == slot)
        };
        let names = [0, 1].map(|slot| of_slot(slot).unwrap());
        let node = Node::new(0, catalog(&names));
        node.bound(&Bounds::NONE);
        let entries = BACKUPS.map(|backup| Entry {
            term: 1,
            primary_epoch: 1,
            primary: 0,
            backup: Some(backup),
            restored: 0,
        });
        node.learn((0..).zip(entries)).unwrap();
        let part = |variable: usize| {
            let first = Dense {
                variable,
                is_first: true,
                numbers: Numbers::Long(&[1.0; 2 * THIRD]),
            };
            let mut words = Vec::new();
            let part = Part {
                dense: vec![first],
                ..Part::default()
            };
            part.write(&mut words);
            words
        };
        (node, vec![(0, part(0)), (1, part(1))])
    }

    fn head(task: u64) -> Head {
        Head {
            stamp: Some(Stamp { task, chunk: 0 }),
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 1.0, step: 0 },
            seen: UNSEEN,
        }
    }

    #[test]
    fn the_sender_of_a_stream_is_woken_for_a_packet_for_another_stream_and_at_the_end() {
        let (node, parts) = primary();
        let wakes = || BACKUPS.map(|backup| node.way(backup).wake.lower());
        let mut pushes = node.pushes();
        let mut push = |slot: usize, task| {
            let (number, words) = &parts[slot];
            let answer = pushes.push(*number, &head(task), 1, words.into(), task);
            assert_eq!(answer, None);
            wakes()
        };
        let found: Vec<[bool; 2]> = (0..5).map(|task| push(0, task)).collect();
        let (quiet, first) = ([false; 2], [true, false]);
        assert_eq!(found, [quiet, quiet, first, quiet, quiet]);
        assert_eq!(push(1, 0), first);
        drop(pushes);
        assert_eq!(wakes(), [false, true]);
        assert_eq!(node.way(1).outgoing().end(), 5);
        assert_eq!(node.way(2).outgoing().end(), 1);
    }

    #[test]
    fn all_parts_of_one_message_find_room_or_none_does() {
        let (node, parts) = primary();
        let (slot, words) = &parts[0];
        let mut tasks = 0..;
        let mut push = |pushes: &mut Pushes<'_>| {
            let task = tasks.next().unwrap();
            pushes.push(*slot, &head(task), 1, words.into(), task)
        };
        let mut early = node.pushes();
        assert_eq!(push(&mut early), None);
        while node.way(1).outgoing().words() < ROOM {
            assert_eq!(push(&mut early), None);
        }
        assert_eq!(push(&mut early), None);
        let mut late = node.pushes();
        assert_eq!(push(&mut late), Some(Answer::Busy));
        let end = node.way(1).outgoing().end();
        node.accepted(1, end, &[]);
        assert_eq!(push(&mut late), Some(Answer::Busy));
        assert_eq!(push(&mut node.pushes()), None);
    }
}
