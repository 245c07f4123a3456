//! A server for the simulator: the real slots and streams, without sockets, with what travels as bytes going in and out; and the mistakes
//! that are made in it on purpose. Only with the feature `simulation`, which no wheel has.
use std::str::FromStr;

use std::sync::Arc;

use crate::net::channel::Packet;
use crate::net::frame::Kind;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::placement::{Entry, Server};
use crate::ps::protocol::stream::{Deed, Message};
use crate::ps::protocol::wire::{self, Ask};
use crate::ps::protocol::words::Reader;
use crate::ps::server::answering::{self, Reading};
use crate::ps::server::data::Data;
use crate::ps::server::node::{Bounds, Limits, Node, Unheard};
use crate::ps::server::process;
use crate::ps::server::slot::{Broken, Progress, Slot, Told};
use crate::ps::server::snapshot;

/// A rule that a server breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    HeldEarly,
    AcknowledgedEarly,
    ReceiverNotRequired,
    NoFreeze,
    CopyWithoutStamps,
    TakesOlderEpoch,
    RefusesNewerEpoch,
    ReadsEarly,
}

impl FromStr for Mistake {
    type Err = String;

    fn from_str(name: &str) -> Result<Mistake, String> {
        Ok(match name {
            "held early" => Mistake::HeldEarly,
            "acknowledged early" => Mistake::AcknowledgedEarly,
            "receiver not required" => Mistake::ReceiverNotRequired,
            "no freeze" => Mistake::NoFreeze,
            "copy without stamps" => Mistake::CopyWithoutStamps,
            "takes older epoch" => Mistake::TakesOlderEpoch,
            "refuses newer epoch" => Mistake::RefusesNewerEpoch,
            "reads early" => Mistake::ReadsEarly,
            _ => return Err(format!("no mistake is called {name:?}")),
        })
    }
}

/// What others must be told.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Packets, each for the connection of this number.
    pub packets: Vec<(u32, Packet)>,
    /// Slot, term, receiver, and whether it is a hand-over.
    pub ready: Vec<(u32, u64, Server, bool)>,
}

/// Why a server can't go on.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    #[error("{0}")]
    Broken(#[from] Broken),
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

impl From<Unheard> for Stopped {
    fn from(unheard: Unheard) -> Stopped {
        match unheard {
            Unheard::Malformed(malformed) => malformed.into(),
            Unheard::Broken(broken) => broken.into(),
        }
    }
}

/// A server without sockets.
#[derive(Debug)]
pub struct Peer {
    node: Node,
    /// Asks whose rows wait: connection, request, words.
    parked: Vec<(u32, u32, Arc<Vec<u64>>)>,
    mistake: Option<Mistake>,
}

/// Return bytes as words; what is left of a word at the end is dropped.
pub fn words(bytes: &[u8]) -> Vec<u64> {
    let whole = bytes.as_chunks::<8>().0;
    whole.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

impl Peer {
    /// Hold nothing yet; `mistake`: which rule is broken.
    pub fn new(me: Server, catalog: Catalog, mistake: Option<Mistake>) -> Peer {
        Peer {
            node: Node::new(me, catalog),
            parked: Vec::new(),
            mistake,
        }
    }

    /// Return what it holds.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Take an ask that came on a connection.
    pub fn ask(&mut self, queue: u32, request: u32, bytes: &[u8]) -> Result<Outcome, Stopped> {
        let words = Arc::new(words(bytes));
        let ask = Ask::read(&words, self.node.catalog())?;
        let tickets = |slot| process::workers::ticket(queue, request, slot);
        let is_new = self.node.confirm(&ask.confirmed);
        let answers = answering::answer(&self.node, &words, &ask, tickets)?;
        let mut packets = Vec::new();
        match self.rows(request, &ask)? {
            Some(rows) => packets.extend(rows),
            None => self.parked.push((queue, request, words.clone())),
        }
        if !answers.is_empty() {
            packets.extend(answering::report(&self.node, request, &answers));
        }
        let mut outcome = self.outcome(Vec::new())?;
        let packets = packets.into_iter().map(|packet| (queue, packet));
        outcome.packets.splice(0..0, packets);
        if is_new {
            self.answer_parked(&mut outcome)?;
        }
        Ok(outcome)
    }

    /// Send the rows of asks that need not wait any more.
    fn answer_parked(&mut self, outcome: &mut Outcome) -> Result<(), Stopped> {
        for (queue, request, words) in std::mem::take(&mut self.parked) {
            let ask = Ask::read(&words, self.node.catalog())?;
            match self.rows(request, &ask)? {
                None => self.parked.push((queue, request, words)),
                Some(rows) => outcome
                    .packets
                    .extend(rows.into_iter().map(|packet| (queue, packet))),
            }
        }
        Ok(())
    }

    /// Return the rows that an ask wants, in a message if it wants any; nothing if they may not be read yet.
    fn rows(&self, request: u32, ask: &Ask<'_>) -> Result<Option<Vec<Packet>>, Stopped> {
        let mut reading = answering::reading(&self.node, ask)?;
        if reading == Reading::Wait && self.makes(Mistake::ReadsEarly) {
            self.alter(Slot::let_read);
            reading = answering::reading(&self.node, ask)?;
        }
        let mut words = Vec::new();
        Ok(match reading {
            Reading::Wait => None,
            Reading::Nothing => Some(Vec::new()),
            Reading::Now => {
                answering::read(&self.node, ask, &mut words);
                Some(vec![Packet {
                    kind: Kind::Rows,
                    number: request.into(),
                    mark: self.node.me(),
                    words,
                }])
            }
        })
    }

    /// Learn entries of the journal, and how far the master has let the job come.
    pub fn learn(
        &mut self,
        entries: Vec<(u32, Entry)>,
        bounds: Bounds,
    ) -> Result<Outcome, Stopped> {
        self.node.bound(&bounds);
        let told = self.node.learn(entries)?;
        self.outcome(told)
    }

    /// Learn which tasks are done, and how many steps can be complete.
    pub fn limit(&mut self, limits: &Limits) -> Result<Outcome, Stopped> {
        let mut outcome = self.outcome(Vec::new())?;
        if self.node.limit(limits) {
            self.answer_parked(&mut outcome)?;
        }
        Ok(outcome)
    }

    /// Return the next messages of the stream to another server: the number of the first, up to where the receiver is known to have heard,
    /// the bytes, and the number to go on with.
    pub fn stream(&self, to: Server, next: u64, room: usize) -> Option<(u64, u64, Vec<u64>, u64)> {
        let (way, mut next) = (self.node.way(to), next);
        let (number, mark, words) =
            process::streams::pack(&way, &mut next, room, |number, mark, room, messages| {
                let mut words = Vec::with_capacity(room);
                process::streams::put_all(&mut words, messages);
                (number, mark, words)
            })?;
        Some((number, mark, words, next))
    }

    /// Hear messages of another server's stream.
    pub fn hear(&mut self, from: Server, number: u64, bytes: &[u8]) -> Result<Outcome, Stopped> {
        let words = Arc::new(words(bytes));
        let mut reader = Reader::new(&words);
        let mut told = Vec::new();
        let mut number = number;
        while !reader.is_empty() {
            let mut message = wire::message(&mut reader, &words)?;
            self.mistake_message(&mut message);
            self.node.hear(from, number, &message, &mut told)?;
            self.mistake_copy(&message);
            number += 1;
        }
        self.outcome(told)
    }

    /// Take note of what a server has accepted.
    pub fn accepted(&mut self, by: Server, next: u64, refused: &[u64]) -> Result<Outcome, Stopped> {
        let told = self.node.accepted(by, next, refused);
        self.outcome(told)
    }

    /// Begin a copy that the master has ordered; false if it can't be.
    pub fn copy(&mut self, slot: u32, to: Server, term: u64, hands_over: bool) -> bool {
        self.node.copy(slot, to, term, hands_over)
    }

    /// Put the next piece of a copy under way into its stream; tell whether there is more of it.
    pub fn go_on_copying(&mut self, slot: u32) -> Result<(bool, Outcome), Stopped> {
        let progress = self.node.go_on_copying(slot);
        Ok((progress != Progress::Over, self.outcome(Vec::new())?))
    }

    /// Give up copies to a server that is dead.
    pub fn give_up_copies(&mut self, to: Server) -> Result<Outcome, Stopped> {
        let told = self.node.give_up_copies(to);
        self.outcome(told)
    }

    /// Return a slot as a snapshot has it, with the first task of which and of all later ones it has nothing; none if it is not whole, of
    /// another primary epoch, or keeps what is not applied once so many steps are.
    pub fn cut(
        &self,
        number: u32,
        primary_epoch: u64,
        steps: u64,
    ) -> Result<Option<(Vec<u64>, u64)>, Stopped> {
        self.node.step_for_cut(number, primary_epoch, steps)?;
        let cut = self.node.look(number, |slot| {
            let data = slot
                .cut(primary_epoch)
                .filter(|data| !data.lags(u64::MAX))?;
            let mut words = Vec::new();
            snapshot::put(data, self.node.catalog(), number, &mut words);
            Some((words, data.stamps.until()))
        });
        Ok(cut.flatten())
    }

    /// Let a slot that waits for its content have what `cut` returned, or nothing.
    pub fn restore(&mut self, number: u32, bytes: Option<&[u8]>) -> Result<(), Stopped> {
        let catalog = self.node.catalog();
        let data = match bytes {
            Some(bytes) => snapshot::take(&words(bytes), number, catalog)?,
            None => Data::new(catalog),
        };
        self.node.load(number, data);
        Ok(())
    }

    // ------------------------------------------------------------------ mistakes

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn alter(&self, mut alter: impl FnMut(&mut Slot, &mut Vec<Told>)) -> Vec<Told> {
        let mut told = Vec::new();
        for number in 0..self.node.catalog().slots() {
            self.node.alter(number, |slot| alter(slot, &mut told));
        }
        told
    }

    /// Return what has to be told, after whatever this server does wrong at every moment.
    fn outcome(&mut self, mut told: Vec<Told>) -> Result<Outcome, Stopped> {
        told.extend(match self.mistake {
            Some(Mistake::HeldEarly) => self.alter(|slot, _| slot.forget_pending()),
            Some(Mistake::AcknowledgedEarly) => self.alter(Slot::trust_backup),
            Some(Mistake::ReceiverNotRequired) => self.alter(Slot::pass_over_receiver),
            Some(Mistake::NoFreeze) => self.alter(|slot, _| slot.thaw()),
            _ => Vec::new(),
        });
        let mut outcome = Outcome::default();
        let is_readable = told.contains(&Told::Readable);
        for one in told {
            match one {
                Told::Readable => {}
                Told::Answered(ticket, answer) => {
                    let (queue, request) =
                        ((ticket >> 40) as u32, (ticket >> 16) as u32 & 0xff_ffff);
                    let answers = [(ticket as u32 & 0xffff, answer)];
                    let packets = answering::report(&self.node, request, &answers);
                    outcome
                        .packets
                        .extend(packets.into_iter().map(|packet| (queue, packet)));
                }
                Told::Ready {
                    slot,
                    term,
                    to,
                    hands_over,
                } => outcome.ready.push((slot, term, to, hands_over)),
            }
        }
        if is_readable {
            self.answer_parked(&mut outcome)?;
        }
        Ok(outcome)
    }

    fn mistake_message(&self, message: &mut Message) {
        let found = self.node.look(message.slot, |slot| {
            slot.entry().zip(slot.data().map(|data| data.version))
        });
        let Some((known, version)) = found.flatten() else {
            return;
        };
        let sent = message.entry.primary_epoch;
        match self.mistake {
            Some(Mistake::TakesOlderEpoch) if sent < known.primary_epoch => {
                message.entry = known;
                message.version = version + 1;
            }
            Some(Mistake::RefusesNewerEpoch) if sent > known.primary_epoch => {
                message.entry.primary_epoch = 0
            }
            _ => {}
        }
    }

    fn mistake_copy(&mut self, message: &Message) {
        if matches!(message.deed, Deed::CopyEnd(_)) && self.makes(Mistake::CopyWithoutStamps) {
            self.node.alter(message.slot, Slot::forget_stamps);
        }
    }
}

/// Return the kind of a packet that goes from a server to a worker, by its number.
pub fn kind(number: u8) -> Option<Kind> {
    [Kind::Rows, Kind::Answers, Kind::Refusal]
        .into_iter()
        .find(|kind| *kind as u8 == number)
}
