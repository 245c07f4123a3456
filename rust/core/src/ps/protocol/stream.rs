//! What one server puts into its stream to another, and the bookkeeping of both ends: nothing is sent twice or left out (rule R6).
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
use std::collections::VecDeque;
use std::sync::Arc;

use crate::net::sink::Sink;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::excerpt::Excerpt;
use crate::ps::protocol::placement::{ENTRY, Entry, Server};
use crate::ps::protocol::stamps::{Stamp, Stamps};
use crate::ps::protocol::words::{Reader, pair};
use crate::ps::server::data::Pace;

/// What happens to a slot, in the order in which its primary did it.
#[derive(Debug, Clone, PartialEq)]
pub enum Deed {
    /// A push was applied; the words are its part's.
    Push {
        stamp: Option<Stamp>,
        low: u64,
        roll_back: u64,
        pace: Pace,
        part: Excerpt,
    },
    /// The receiver is to hold a copy, and begins with nothing.
    CopyBegin,
    /// A piece of the slot's content.
    CopyPiece(Vec<u64>),
    /// All that was there when the copy began has been sent; the memory of stamps as it is now.
    CopyEnd(Stamps),
    /// Rows that were pushed last before a step were forgotten.
    Expire(u32),
    /// The pushes that were kept for the steps before this one were applied.
    Step(u64),
}

/// A deed, with what the receiver needs to judge it.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub slot: u32,
    /// The slot's servers, as the sender knows them: a receiver that has not heard of them learns them from here (rule R5).
    pub entry: Entry,
    /// The slot's version after the deed.
    pub version: u64,
    pub deed: Deed,
}

const PUSH: u32 = 1;
const COPY_BEGIN: u32 = 2;
const COPY_PIECE: u32 = 3;
const COPY_END: u32 = 4;
const EXPIRE: u32 = 5;
const STEP: u32 = 6;
const NO_STAMP: u64 = 1 << 16;
/// Words of a message's header, with its length before it.
const HEAD: usize = ENTRY + 3;
/// Words of a push before its part.
const PUSHED: usize = 6;

impl Message {
    /// Return how many words of a packet it takes.
    pub fn room(&self) -> usize {
        let beside = match &self.deed {
            Deed::Push { .. } => PUSHED,
            Deed::CopyBegin | Deed::CopyPiece(_) => 0,
            Deed::CopyEnd(stamps) => {
                let mut bytes = Vec::new();
                stamps.encode(&mut bytes);
                bytes.len() / 8
            }
            Deed::Expire(_) | Deed::Step(_) => 1,
        };
        self.size().saturating_add(beside).saturating_add(HEAD)
    }

    /// Return how many words `write` appends, without the few of the header.
    pub fn size(&self) -> usize {
        match &self.deed {
            Deed::Push { part, .. } => part.len(),
            Deed::CopyPiece(words) => words.len(),
            _ => 0,
        }
    }

    /// Append it in words: (kind, slot), the entry, version, then what the kind needs.
    pub fn write(&self, words: &mut impl Sink) {
        let kind = match self.deed {
            Deed::Push { .. } => PUSH,
            Deed::CopyBegin => COPY_BEGIN,
            Deed::CopyPiece(_) => COPY_PIECE,
            Deed::CopyEnd(_) => COPY_END,
            Deed::Expire(_) => EXPIRE,
            Deed::Step(_) => STEP,
        };
        words.push(pair(kind, self.slot));
        self.entry.write(words);
        words.push(self.version);
        match &self.deed {
            Deed::Push {
                stamp,
                low,
                roll_back,
                pace,
                part,
            } => {
                let (task, chunk) =
                    stamp.map_or((0, NO_STAMP), |stamp| (stamp.task, stamp.chunk.into()));
                words.extend_from_slice(&[
                    task,
                    chunk,
                    *low,
                    *roll_back,
                    pace.rate.to_bits().into(),
                    pace.step,
                ]);
                words.extend_from_slice(part);
            }
            Deed::CopyBegin => {}
            Deed::CopyPiece(piece) => words.extend_from_slice(piece),
            Deed::CopyEnd(stamps) => {
                let mut bytes = Vec::new();
                stamps.encode(&mut bytes);
                let whole = bytes.as_chunks::<8>().0;
                words.extend_by(whole.iter().map(|word| u64::from_le_bytes(*word)));
            }
            Deed::Expire(time) => words.push((*time).into()),
            Deed::Step(step) => words.push(*step),
        }
    }

    /// Read what `write` wrote, all of `words`, which are of a packet.
    pub fn read(words: &[u64], packet: &Arc<Vec<u64>>) -> Result<Message, Malformed> {
        let mut reader = Reader::new(words);
        let (kind, slot) = reader.pair()?;
        let entry = Entry::read(&mut reader)?;
        let version = reader.word()?;
        let deed = match kind {
            PUSH => {
                let [task, chunk, low, roll_back, rate, step] = *reader.array()?;
                let stamp = match chunk {
                    NO_STAMP => None,
                    chunk => Some(Stamp {
                        task,
                        chunk: u16::try_from(chunk)
                            .map_err(|_| Malformed("a stamp names no chunk"))?,
                    }),
                };
                let rate =
                    u32::try_from(rate).map_err(|_| Malformed("a learning rate is no number"))?;
                Deed::Push {
                    stamp,
                    low,
                    roll_back,
                    pace: Pace {
                        rate: f32::from_bits(rate),
                        step,
                    },
                    part: Excerpt::of(packet, reader.rest()),
                }
            }
            COPY_BEGIN => Deed::CopyBegin,
            COPY_PIECE => Deed::CopyPiece(reader.rest().into()),
            COPY_END => Deed::CopyEnd(Stamps::decode(bytemuck::cast_slice(reader.rest()))?),
            EXPIRE => Deed::Expire(
                u32::try_from(reader.word()?)
                    .map_err(|_| Malformed("a time of expiry is no step"))?,
            ),
            STEP => Deed::Step(reader.word()?),
            _ => return Err(Malformed("no such message between servers")),
        };
        reader.end()?;
        Ok(Message {
            slot,
            entry,
            version,
            deed,
        })
    }
}

/// What a sender needs to know of a message that has been accepted or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Its place in the stream.
    pub number: u64,
    pub slot: u32,
    pub primary_epoch: u64,
    pub version: u64,
}

impl Receipt {
    fn of(number: u64, message: &Message) -> Receipt {
        Receipt {
            number,
            slot: message.slot,
            primary_epoch: message.entry.primary_epoch,
            version: message.version,
        }
    }
}

/// The sender's end of a stream: what the other server has not accepted yet.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Number of the first message in the queue.
    first: u64,
    queue: VecDeque<Message>,
    words: usize,
}

impl Outgoing {
    /// Add a message, and return its number.
    pub fn push(&mut self, message: Message) -> u64 {
        let number = self.end();
        self.words = self.words.saturating_add(message.size());
        self.queue.push_back(message);
        number
    }

    /// Return how many words wait for being accepted.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Return the number of the first message that has not been accepted.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Return the number after the last message.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.queue.len() as u64)
    }

    /// Return a message that has not been accepted, by its number.
    pub fn get(&self, number: u64) -> Option<&Message> {
        self.queue
            .get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Drop what has been accepted, all before number `next`, and return what it was.
    pub fn accepted(&mut self, next: u64) -> Vec<Receipt> {
        let count = usize::try_from(next.saturating_sub(self.first))
            .map_or(0, |count| count.min(self.queue.len()));
        let receipts: Vec<Receipt> = (self.first..)
            .zip(self.queue.drain(..count))
            .map(|(number, message)| {
                self.words = self.words.saturating_sub(message.size());
                Receipt::of(number, &message)
            })
            .collect();
        self.first = self.first.saturating_add(receipts.len() as u64);
        receipts
    }
}

/// Where a slot's primary puts what the slot's other servers must hear.
pub trait Streams {
    /// Put a message into the stream to a server; return its number there.
    fn put(&mut self, to: Server, message: Message) -> u64;

    /// Whether a server has accepted so much that more may be put into its stream.
    fn has_room(&mut self, to: Server) -> bool;
}
