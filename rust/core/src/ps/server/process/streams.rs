//! Streams between parameter servers, both ends: what a slot's primary has applied goes to its backup, and copies go where they are ordered.
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{HALF_SILENCE, Shared, name_of};
use crate::net::channel::{Channel, Packet};
use crate::net::dial::Dialer;
use crate::net::endpoint::lock;
use crate::net::frame::{Kind, Lost, Malformed};
use crate::net::handshake::{Hello, Purpose};
use crate::net::sink::Sink;
use crate::net::tls::Role;
use crate::net::wake::{ignore_signals, readable, wait};
use crate::ps::protocol::stream::Message;
use crate::ps::protocol::words::Reader;
use crate::ps::protocol::{error, placement, wire};
use crate::ps::server::node::{PACKET, Unheard, Way};
use crate::ps::server::slot::Progress;

/// Packets of a stream under way in the kernel and here; the rest waits as messages.
const UNDER_WAY: usize = 4;

const ATTEMPT: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(50);

/// A server that has accepted nothing for so long, although there is something, may be lost.
const SILENCE: Duration = Duration::from_secs(1);

impl Shared {
    /// Hear another server's stream until its connection ends.
    pub(super) fn hear(
        &self,
        from: placement::Server,
        channel: &mut Channel,
    ) -> std::result::Result<(), Lost> {
        self.acknowledge(from, 0, channel)?;
        while !self.closed.is_raised() {
            let mut known = None;
            while let Some(packet) = channel.receive()? {
                if packet.kind != Kind::Stream {
                    return Err(Malformed::Content.into());
                }
                known = Some(packet.mark);
                let words = Arc::new(packet.words);
                let mut reader = Reader::new(&words);
                let mut number = packet.number;
                while !reader.is_empty() {
                    if let Err(unheard) = self.hear_next(from, number, &mut reader, &words) {
                        // Whether the sender is confused or this server, what it has accepted so far stays, and the sender has no answer
                        // to the rest: if it can't go on, it says so to the master, who has the slots copied elsewhere (rule R6).
                        let why = format!("its stream ends at message {number}: {unheard}");
                        self.refusals.tell(name_of(from), why);
                        return Ok(());
                    }
                    number = number.saturating_add(1);
                }
                reuse(channel, words);
            }
            if let Some(known) = known {
                self.acknowledge(from, known, channel)?;
            }
            channel.flush()?;
            let mut polls = [channel.interest(), readable(&self.closed)];
            if wait(&mut polls, None, &ignore_signals).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hear the next message of another server's stream.
    fn hear_next(
        &self,
        from: placement::Server,
        number: u64,
        reader: &mut Reader<'_>,
        packet: &Arc<Vec<u64>>,
    ) -> std::result::Result<(), Unheard> {
        let message = wire::message(reader, packet)?;
        if message.entry.primary != from {
            return Err(error::Malformed("it is of a slot whose primary is another server").into());
        }
        let mut told = Vec::new();
        let heard = self.node.hear(from, number, &message, &mut told);
        self.dispatch(Ok(told));
        heard
    }

    fn acknowledge(
        &self,
        from: placement::Server,
        known: u64,
        channel: &mut Channel,
    ) -> std::result::Result<(), Lost> {
        let (next, refused) = self.node.heard(from, known);
        channel.send(Packet {
            kind: Kind::Accepted,
            number: next,
            mark: 0,
            words: refused,
        })
    }

    /// Send what is in the stream to another server, over one connection after the other.
    pub(super) fn send_to(self: &Arc<Self>, peer: placement::Server) {
        let way = self.node.way(peer);
        while !self.closed.is_raised() {
            let address = lock(&self.addresses).get(&peer).cloned();
            if let Some(address) = address {
                let hello = Hello {
                    purpose: Purpose::Stream,
                    member: name_of(self.node.me()),
                    view: self.node.me(),
                    digest: peer,
                };
                let identity = self
                    .identity
                    .clone()
                    .map(|identity| (identity, Role::Worker));
                let dialer = Dialer::new(
                    address,
                    self.token.clone(),
                    hello,
                    name_of(peer),
                    identity,
                    ATTEMPT,
                );
                if let Ok(Ok(stream)) = dialer.run(&self.closed, &ignore_signals) {
                    let _ = self.stream_to(peer, &way, Channel::dialled(stream));
                }
                lock(&self.news).lost.insert(peer);
            }
            let _ = wait(&mut [readable(&self.closed)], Some(PAUSE), &ignore_signals);
        }
    }

    fn stream_to(
        &self,
        peer: placement::Server,
        way: &Way,
        mut channel: Channel,
    ) -> std::result::Result<(), Lost> {
        // The receiver says first where to go on.
        let mut next = None;
        let mut heard = Instant::now();
        while !self.closed.is_raised() {
            while let Some(packet) = channel.receive()? {
                // Nobody has accepted what was never said.
                if packet.kind != Kind::Accepted || packet.number > way.outgoing().end() {
                    return Err(Malformed::Content.into());
                }
                heard = Instant::now();
                next = next.max(Some(packet.number));
                let told = self.node.accepted(peer, packet.number, &packet.words);
                self.dispatch(Ok(told));
                // There may be room for more of a copy.
                self.copier.raise();
            }
            way.wake.lower();
            if let Some(next) = next.as_mut() {
                while channel.backlog() < UNDER_WAY
                    && let Some(sent) = pack(way, next, PACKET, |number, mark, room, messages| {
                        channel.send_by((Kind::Stream, number, mark), room, |draft| {
                            put_all(draft, messages);
                        })
                    })
                {
                    sent?;
                    channel.flush()?;
                }
            }
            channel.flush()?;
            let is_waiting = way.outgoing().words() > 0;
            if !is_waiting {
                heard = Instant::now();
            } else if heard.elapsed() >= SILENCE {
                lock(&self.news).lost.insert(peer);
            }
            let limit = is_waiting.then_some(HALF_SILENCE);
            let mut polls = [
                channel.interest(),
                readable(&way.wake),
                readable(&self.closed),
            ];
            if wait(&mut polls, limit, &ignore_signals).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Go on with all copies under way, a piece of each in turn.
    pub(super) fn copy_slots(self: &Arc<Self>) {
        while !self.closed.is_raised() {
            self.copier.lower();
            let mut is_moving = true;
            while is_moving && !self.closed.is_raised() {
                is_moving = false;
                // Taken out first: a copy that is ordered meanwhile puts its slot in again.
                let slots = std::mem::take(&mut *lock(&self.copies));
                for slot in slots {
                    let progress = self.node.go_on_copying(slot);
                    is_moving |= progress == Progress::More;
                    if progress != Progress::Over {
                        lock(&self.copies).insert(slot);
                    }
                }
            }
            let _ = wait(
                &mut [readable(&self.copier), readable(&self.closed)],
                None,
                &ignore_signals,
            );
        }
    }
}

/// Let a connection use the memory of a message again, unless a part of it is still needed.
pub(super) fn reuse(channel: &mut Channel, message: Arc<Vec<u64>>) {
    if let Ok(words) = Arc::try_unwrap(message) {
        channel.reuse(words);
    }
}

/// Let `send` have the next messages of a stream, which are about so many words, and go on behind them: the number of the first, that of the
/// first which has not been accepted, their words, and the messages.
pub(in crate::ps::server) fn pack<R>(
    way: &Way,
    next: &mut u64,
    room: usize,
    send: impl FnOnce(u64, u64, usize, &[&Message]) -> R,
) -> Option<R> {
    let outgoing = way.outgoing();
    let number = *next;
    let mut taken: usize = 0;
    let mut messages = Vec::new();
    while taken < room
        && let Some(message) = outgoing.get(number.saturating_add(messages.len() as u64))
    {
        taken = taken.saturating_add(message.room());
        messages.push(message);
    }
    *next = next.saturating_add(messages.len() as u64);
    (!messages.is_empty()).then(|| send(number, outgoing.first(), taken, &messages[..]))
}

/// Write the messages of a packet.
pub(in crate::ps::server) fn put_all(words: &mut impl Sink, messages: &[&Message]) {
    for message in messages {
        wire::put_message(words, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::protocol::catalog::Catalog;
    use crate::ps::protocol::placement::Entry;
    use crate::ps::protocol::stamps::{Stamp, Stamps};
    use crate::ps::protocol::stream::Deed;
    use crate::ps::server::data::Pace;
    use crate::ps::server::node::Node;

    #[test]
    fn packets_have_as_much_as_they_should_and_no_more_than_was_said() {
        let rule = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        let node = Node::new(0, Catalog::new(0, 1, vec![], vec![], rule, 0.0));
        let way = node.way(1);
        let entry = Entry {
            term: 1,
            primary_epoch: 1,
            primary: 0,
            backup: Some(1),
            restored: 0,
        };
        let mut stamps = Stamps::default();
        for task in 0..100 {
            stamps.add(Stamp { task, chunk: 0 });
        }
        let piece = |words| Deed::CopyPiece(vec![7; words]);
        let end = || Deed::CopyEnd(stamps.clone());
        for deed in [
            piece(30),
            piece(30),
            piece(30),
            piece(500),
            piece(500),
            end(),
            end(),
            Deed::CopyBegin,
            Deed::Expire(3),
            Deed::Step(4),
            Deed::Push {
                stamp: None,
                low: 0,
                roll_back: 0,
                pace: Pace { rate: 1.0, step: 0 },
                part: vec![1; 5].into(),
            },
        ] {
            way.outgoing().push(Message {
                slot: 0,
                entry,
                version: 1,
                deed,
            });
        }
        let (mut next, mut counts, mut written) = (0, Vec::new(), Vec::new());
        while let Some(found) = pack(&way, &mut next, 100, |number, mark, room, messages| {
            let mut words = Vec::new();
            put_all(&mut words, messages);
            assert_eq!((number, mark), (counts.iter().sum::<usize>() as u64, 0));
            assert_eq!(words.len(), room);
            (messages.len(), words)
        }) {
            counts.push(found.0);
            written.extend(found.1);
        }
        assert_eq!(counts, [3, 1, 1, 1, 1, 4]);
        let packet = Arc::new(written);
        let mut reader = Reader::new(&packet);
        for number in 0..11 {
            let message = wire::message(&mut reader, &packet).unwrap();
            assert_eq!(Some(&message), way.outgoing().get(number));
        }
        assert!(reader.is_empty());
    }
}
