//! A worker's connection to a parameter server: its asks are answered, each as soon as what it waits for is there.
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::streams::reuse;
use super::{HALF_SILENCE, Shared};
use crate::net::channel::{Channel, Packet};
use crate::net::endpoint::lock;
use crate::net::frame::{Kind, Lost, Malformed};
use crate::net::wake::{Wake, ignore_signals, readable, wait};
use crate::ps::protocol::steps::Need;
use crate::ps::protocol::wire::Ask;
use crate::ps::server::answering::{self, Reading};
use crate::ps::server::slot::Answer;

/// Messages that may wait for a client that does not read before it is left alone.
const BACKLOG: usize = 64;

/// Bytes that may wait for a client before nothing more is read from it: then its own window stops it.
const UNSENT: usize = 64 << 20;

/// Answers for one connection, until its thread comes for them.
#[derive(Debug)]
pub(super) struct ResponseQueue {
    pub(super) answers: Mutex<Vec<(u32, u32, Answer)>>,
    pub(super) wake: Wake,
}

/// An ask whose rows may not be read yet.
#[derive(Debug)]
struct Parked {
    request: u32,
    need: Need,
    roll_back: u64,
    message: Arc<Vec<u64>>,
}

/// What became of the rows that an ask wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// All that it wants, perhaps none, are on their way.
    Sent,
    /// They may not be read yet.
    Wait,
    /// This server can't go on.
    Broken,
}

/// Name the part of a push for a slot that came with a request of a connection.
pub(in crate::ps::server) fn ticket(queue: u32, request: u32, slot: u32) -> u64 {
    u64::from(queue & 0xff_ffff) << 40
        | u64::from(request & 0xff_ffff) << 16
        | u64::from(slot & 0xffff)
}

impl Shared {
    /// Wake the threads of all workers: what their asks wait for may have come.
    pub(super) fn wake_queues(&self) {
        for queue in lock(&self.queues).values() {
            queue.wake.raise();
        }
    }

    pub(super) fn attend(self: &Arc<Self>, mut channel: Channel) {
        let Ok(wake) = Wake::new() else {
            return;
        };
        let number = self.next_queue.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let queue = Arc::new(ResponseQueue {
            answers: Mutex::default(),
            wake,
        });
        lock(&self.queues).insert(number, queue.clone());
        let end = self.serve(number, &queue, &mut channel);
        self.count(&end);
        lock(&self.queues).remove(&number);
    }

    fn serve(
        self: &Arc<Self>,
        number: u32,
        queue: &ResponseQueue,
        channel: &mut Channel,
    ) -> std::result::Result<(), Lost> {
        let mut parked: Vec<Parked> = Vec::new();
        let mut said = Instant::now();
        while !self.closed.is_raised() {
            while channel.unsent() < UNSENT
                && let Some(packet) = channel.receive()?
            {
                let backlog = channel.backlog().saturating_add(parked.len());
                if packet.kind != Kind::Ask || backlog > BACKLOG {
                    return Err(Malformed::Content.into());
                }
                let message = Arc::new(packet.words);
                let ask =
                    Ask::read(&message, self.node.catalog()).map_err(|_| Malformed::Content)?;
                let request = packet.number as u32;
                if self.node.confirm(&ask.confirmed) {
                    self.wake_queues();
                }
                let tickets = |slot| ticket(number, request, slot);
                let answers = match answering::answer(&self.node, &message, &ask, tickets) {
                    Ok(answers) => answers,
                    Err(broken) => {
                        self.dispatch(Err(broken));
                        return Ok(());
                    }
                };
                let rows = self.send_rows(request, &ask, channel)?;
                if rows == Rows::Broken {
                    return Ok(());
                }
                if !answers.is_empty() {
                    for packet in answering::report(&self.node, request, &answers) {
                        channel.send(packet)?;
                    }
                }
                if rows == Rows::Wait {
                    parked.push(Parked {
                        request,
                        need: ask.need,
                        roll_back: ask.confirmed.roll_back(),
                        message,
                    });
                } else {
                    reuse(channel, message);
                }
                if self.see_to_streams().is_err() {
                    return Ok(());
                }
            }
            queue.wake.lower();
            if !self.answer_parked(&mut parked, channel)? {
                return Ok(());
            }
            if parked.is_empty() {
                said = Instant::now();
            } else if said.elapsed() >= HALF_SILENCE && channel.backlog() == 0 {
                // Who waits for another worker is not to take this server for lost; who does not read does not.
                said = Instant::now();
                for one in &parked {
                    channel.send(Packet {
                        kind: Kind::Waits,
                        number: one.request.into(),
                        mark: self.node.me(),
                        words: Vec::new(),
                    })?;
                }
            }
            let mut answers = std::mem::take(&mut *lock(&queue.answers));
            answers.sort_by_key(|(request, slot, _)| (*request, *slot));
            for group in answers.chunk_by(|one, other| one.0 == other.0) {
                let answers: Vec<(u32, Answer)> = group
                    .iter()
                    .map(|(_, slot, answer)| (*slot, answer.clone()))
                    .collect();
                let request = group.first().map_or(0, |(request, _, _)| *request);
                for packet in answering::report(&self.node, request, &answers) {
                    channel.send(packet)?;
                }
            }
            let was_full = channel.unsent() >= UNSENT;
            channel.flush()?;
            let is_full = channel.unsent() >= UNSENT;
            if was_full && !is_full {
                // What was not taken up may be here already, and no poll tells of it.
                continue;
            }
            let interest = if is_full {
                channel.interest_to_send()
            } else {
                channel.interest()
            };
            let mut polls = [interest, readable(&queue.wake), readable(&self.closed)];
            let limit = (!parked.is_empty()).then_some(HALF_SILENCE);
            if wait(&mut polls, limit, &ignore_signals).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Send the rows that an ask wants, if they may be read.
    fn send_rows(
        &self,
        request: u32,
        ask: &Ask<'_>,
        channel: &mut Channel,
    ) -> std::result::Result<Rows, Lost> {
        match answering::reading(&self.node, ask) {
            Ok(Reading::Wait) => return Ok(Rows::Wait),
            Ok(Reading::Nothing) => {}
            Ok(Reading::Now) => channel.send_by(
                (Kind::Rows, request.into(), self.node.me()),
                answering::room(&self.node, ask),
                |draft| answering::read(&self.node, ask, draft),
            )?,
            Err(broken) => {
                self.dispatch(Err(broken));
                return Ok(Rows::Broken);
            }
        }
        Ok(Rows::Sent)
    }

    /// Send the rows of asks that need not wait any more, as long as few wait to go out; false if this server can't go on.
    fn answer_parked(
        self: &Arc<Self>,
        parked: &mut Vec<Parked>,
        channel: &mut Channel,
    ) -> std::result::Result<bool, Lost> {
        if parked.is_empty() {
            return Ok(true);
        }
        let all = std::mem::take(parked);
        for one in all {
            if channel.unsent() >= UNSENT || !self.node.meets(&one.need, one.roll_back) {
                parked.push(one);
                continue;
            }
            let ask =
                Ask::read(&one.message, self.node.catalog()).map_err(|_| Malformed::Content)?;
            match self.send_rows(one.request, &ask, channel)? {
                Rows::Wait => parked.push(one),
                Rows::Sent => reuse(channel, one.message),
                Rows::Broken => return Ok(false),
            }
        }
        // A step that was made now may be the first that goes to a server.
        Ok(self.see_to_streams().is_ok())
    }
}
