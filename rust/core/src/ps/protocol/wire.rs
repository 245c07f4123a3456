//! What clients and servers say to each other, in words of 8 bytes. A pair is two halves of a word, the lower one first.
//!
//! An ask carries pulls and pushes together: a minibatch's push and the next one's pull share a round trip. Its answers: the rows at once,
//! what became of the pushes as it is known, in one message or in several.
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
use std::sync::Arc;

use crate::net::frame::MESSAGE;
use crate::net::sink::Sink;
use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::numbers::{Numbers, flagged, make_room, unflagged, words_of};
use crate::ps::protocol::placement::Entry;
use crate::ps::protocol::stamps::Stamp;
use crate::ps::protocol::steps::{Confirmed, Need};
use crate::ps::protocol::stream::Message;
use crate::ps::protocol::words::{Reader, pair, put_numbers};
use crate::ps::server::data::Pace;
use crate::ps::server::slot::{Answer, Head, UNSEEN};

/// Add up sizes that others have chosen: one that is beyond all others stays so.
fn sum(sizes: impl IntoIterator<Item = usize>) -> usize {
    sizes.into_iter().fold(0, usize::saturating_add)
}

const NO_STAMP: u64 = 1 << 16;
/// Bytes of a refusal's text.
const TEXT: usize = 480;
/// Words of a pull that is refused, at most.
pub const PULL_REFUSED: usize = 2 + TEXT / 8;

/// One slot's part of a pull.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pull<'a> {
    pub slot: u32,
    /// Of the entry by which the server was chosen.
    pub term: u64,
    /// Tables, and the ids of each.
    pub rows: Vec<(usize, &'a [u64])>,
    /// The rows are wanted as bfloat16.
    pub is_short: bool,
    pub dense: Vec<Known>,
    /// The table of which all ids are wanted that have a row.
    pub listed: Option<usize>,
}

/// What a client has of a dense variable: the primary epoch and the version of its last change, zeros for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    pub variable: usize,
    pub primary_epoch: u64,
    pub version: u64,
}

/// One slot's part of a push, unread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Push<'a> {
    pub slot: u32,
    /// Of the entry by which the server was chosen.
    pub term: u64,
    /// The slot's version with which the rows came, or `slot::UNSEEN`.
    pub seen: u64,
    pub words: &'a [u64],
}

/// A whole ask.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// What the pushes are.
    pub head: Head,
    /// The chunk that the pulled rows are for, if any.
    pub chunk: Option<Stamp>,
    /// What must be settled before they may be read; nothing where pushes are applied as they come.
    pub need: Need,
    /// What the client knows of settled chunks.
    pub confirmed: Confirmed,
    pub pulls: Vec<Pull<'a>>,
    pub pushes: Vec<Push<'a>>,
}

fn put_stamp(words: &mut impl Sink, stamp: Option<Stamp>) {
    let (task, chunk) = stamp.map_or((0, NO_STAMP), |stamp| (stamp.task, stamp.chunk.into()));
    words.extend_from_slice(&[task, chunk]);
}

fn stamp(reader: &mut Reader<'_>) -> Result<Option<Stamp>, Malformed> {
    let (task, chunk) = (reader.word()?, reader.word()?);
    if chunk == NO_STAMP {
        return Ok(None);
    }
    let chunk = u16::try_from(chunk).map_err(|_| Malformed("a stamp names no chunk"))?;
    Ok(Some(Stamp { task, chunk }))
}

impl<'a> Ask<'a> {
    /// Write it: the pushes' stamp, low, roll-back, rate (bits of an f32), step; the pulls' stamp, and their need (`steps`); what is confirmed (`steps`);
    /// (pulls, pushes); for each pull (slot, tables, flagged if rows are wanted short), term, (variables, number behind the table of which ids are listed, or 0), for each table (table, ids) and the ids, for each variable itself, primary epoch, version;
    /// for each push (slot, words), term, version with which its rows came, and the words.
    pub fn write(&self, words: &mut impl Sink) {
        put_stamp(words, self.head.stamp);
        words.extend_from_slice(&[
            self.head.low,
            self.head.roll_back,
            self.head.pace.rate.to_bits().into(),
            self.head.pace.step,
        ]);
        put_stamp(words, self.chunk);
        self.need.write(words);
        self.confirmed.write(words);
        words.push(pair(self.pulls.len() as u32, self.pushes.len() as u32));
        for pull in &self.pulls {
            let tables = flagged(pull.rows.len() as u32, pull.is_short);
            words.push(pair(pull.slot, tables));
            let listed = pull
                .listed
                .map_or(0, |table| (table as u32).saturating_add(1));
            words.extend_from_slice(&[pull.term, pair(pull.dense.len() as u32, listed)]);
            for (table, ids) in &pull.rows {
                words.push(pair(*table as u32, ids.len() as u32));
                words.extend_from_slice(ids);
            }
            for known in &pull.dense {
                words.extend_from_slice(&[
                    known.variable as u64,
                    known.primary_epoch,
                    known.version,
                ]);
            }
        }
        for push in &self.pushes {
            words.push(pair(push.slot, push.words.len() as u32));
            words.extend_from_slice(&[push.term, push.seen]);
            words.extend_from_slice(push.words);
        }
    }

    /// Return it in words, as `write` writes it.
    pub fn words(&self) -> Vec<u64> {
        let mut words = Vec::with_capacity(self.room());
        self.write(&mut words);
        words
    }

    /// Return how many words it takes.
    pub fn room(&self) -> usize {
        let pulls = self.pulls.iter().map(|pull| {
            let rows = pull.rows.iter().map(|(_, ids)| sum([1, ids.len()]));
            sum(rows.chain([3, pull.dense.len().saturating_mul(3)]))
        });
        let pushes = self.pushes.iter().map(|push| sum([3, push.words.len()]));
        sum(pulls.chain(pushes).chain([13, self.confirmed.room()]))
    }

    /// Read what `write` wrote; pulls are checked against the catalog, pushes are not.
    pub fn read(words: &'a [u64], catalog: &Catalog) -> Result<Ask<'a>, Malformed> {
        let mut reader = Reader::new(words);
        let pushed = stamp(&mut reader)?;
        let (low, roll_back) = (reader.word()?, reader.word()?);
        let rate =
            u32::try_from(reader.word()?).map_err(|_| Malformed("a learning rate is no number"))?;
        let pace = Pace {
            rate: f32::from_bits(rate),
            step: reader.word()?,
        };
        if !pace.rate.is_finite() {
            return Err(Malformed("a learning rate is not finite"));
        }
        let head = Head {
            stamp: pushed,
            low,
            roll_back,
            pace,
            seen: UNSEEN,
        };
        let chunk = stamp(&mut reader)?;
        let need = Need::read(&mut reader)?;
        let confirmed = Confirmed::read(&mut reader)?;
        let (pulls, pushes) = reader.pair()?;
        let pulls: Vec<Pull<'a>> = (0..pulls)
            .map(|_| Pull::read(&mut reader, catalog))
            .collect::<Result<_, _>>()?;
        let pushes = (0..pushes)
            .map(|_| {
                let (slot, length) = reader.pair()?;
                let (term, seen) = (reader.word()?, reader.word()?);
                let words = reader.words(length as usize)?;
                Ok(Push {
                    slot,
                    term,
                    seen,
                    words,
                })
            })
            .collect::<Result<_, Malformed>>()?;
        reader.end()?;
        let most = sum(pulls.iter().map(|pull| pull.answer(catalog)));
        if most > MESSAGE / 8 {
            return Err(Malformed("it asks for more than one message can hold"));
        }
        Ok(Ask {
            head,
            chunk,
            need,
            confirmed,
            pulls,
            pushes,
        })
    }
}

impl<'a> Pull<'a> {
    /// Return how many numbers its rows have.
    pub fn numbers(&self, catalog: &Catalog) -> usize {
        let rows = self.rows.iter();
        sum(rows.map(|(table, ids)| catalog.numbers(*table, ids)))
    }

    /// Return the words that its answer takes at most, without the ids of a list, which only the server can count.
    pub fn answer(&self, catalog: &Catalog) -> usize {
        let of_variable = |known: &Known| sum([2, catalog.length(known.variable).div_ceil(2)]);
        let rows = words_of(self.numbers(catalog), self.is_short);
        let listed = usize::from(self.listed.is_some());
        sum(self.dense.iter().map(of_variable).chain([4, rows, listed]))
    }

    fn read(reader: &mut Reader<'a>, catalog: &Catalog) -> Result<Pull<'a>, Malformed> {
        let (slot, tables) = reader.pair()?;
        let (tables, is_short) = unflagged(tables);
        let term = reader.word()?;
        let (variables, listed) = reader.pair()?;
        let listed = (listed as usize).checked_sub(1);
        if listed.is_some_and(|table| table >= catalog.tables().len()) {
            return Err(Malformed("a list is of a table that is not there"));
        }
        let mut pull = Pull {
            slot,
            term,
            is_short,
            listed,
            ..Pull::default()
        };
        for _ in 0..tables {
            let (table, count) = reader.pair()?;
            if table as usize >= catalog.tables().len() {
                return Err(Malformed("a pull names a table that is not there"));
            }
            pull.rows
                .push((table as usize, reader.words(count as usize)?));
        }
        for _ in 0..variables {
            let [variable, primary_epoch, version] = *reader.array()?;
            let variable = usize::try_from(variable).unwrap_or(usize::MAX);
            if variable >= catalog.variables().len() {
                return Err(Malformed("a pull names a variable that is not there"));
            }
            pull.dense.push(Known {
                variable,
                primary_epoch,
                version,
            });
        }
        Ok(pull)
    }
}

/// The content of a slot that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct PulledRows<'a> {
    /// The slot, and all servers that must, hold the chunk that the pull is for.
    pub has_chunk: bool,
    pub primary_epoch: u64,
    /// Of the slot.
    pub version: u64,
    /// The weights of all rows, table by table as they were asked for.
    pub rows: Numbers<'a>,
    pub dense: Vec<Dense<'a>>,
    /// The ids of the table that was to be listed.
    pub listed: &'a [u64],
}

/// What an answer says of one slot's pull.
#[derive(Debug, Clone, PartialEq)]
pub enum Pulled<'a> {
    Rows(PulledRows<'a>),
    /// It has to be asked for again: the slot is elsewhere, its content not there yet, or there was no room beside others.
    Elsewhere,
    /// It can't be answered, however often it is asked for; says why.
    Refused(String),
}

/// A dense variable in an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Dense<'a> {
    /// Nobody has given it its first value.
    Missing,
    Unchanged,
    Changed {
        version: u64,
        weights: &'a [f32],
    },
}

const ELSEWHERE: u32 = 0;
const ROWS: u32 = 1;
const ROWS_AND_CHUNK: u32 = 2;
const IMPOSSIBLE: u32 = 3;
const MISSING: u32 = 0;
const UNCHANGED: u32 = 1;
const CHANGED: u32 = 2;

/// Append that a slot is elsewhere.
pub fn put_elsewhere(words: &mut impl Sink, slot: u32) {
    words.push(pair(slot, ELSEWHERE));
}

/// Append that a slot's pull can't be answered, and why; at most `PULL_REFUSED` words.
pub fn put_impossible(words: &mut impl Sink, slot: u32, why: &str) {
    words.push(pair(slot, IMPOSSIBLE));
    words.extend_from_slice(&text(why));
}

/// Append the head of a slot's rows, (slot, kind), primary epoch, version and number of numbers; returns where the numbers belong, which are of the
/// kind that the pull wants.
pub fn put_rows<N: bytemuck::Pod>(
    words: &mut impl Sink,
    slot: u32,
    has_chunk: bool,
    (primary_epoch, version): (u64, u64),
    count: usize,
) -> &mut [N] {
    words.push(pair(slot, if has_chunk { ROWS_AND_CHUNK } else { ROWS }));
    words.extend_from_slice(&[primary_epoch, version, count as u64]);
    make_room(words, count)
}

/// Append what is said of a variable, behind a slot's rows: (variable, kind), if it has changed version and numbers.
pub fn put_dense(words: &mut impl Sink, variable: usize, dense: Dense<'_>) {
    let kind = match dense {
        Dense::Missing => MISSING,
        Dense::Unchanged => UNCHANGED,
        Dense::Changed { .. } => CHANGED,
    };
    words.push(pair(variable as u32, kind));
    if let Dense::Changed { version, weights } = dense {
        words.push(version);
        put_numbers(words, weights);
    }
}

/// Append the ids of a list, behind a slot's variables: how many, and themselves.
pub fn put_listed(words: &mut impl Sink, ids: &[u64]) {
    words.push(ids.len() as u64);
    words.extend_from_slice(ids);
}

/// Read what is said of the next pull, given what was asked.
pub fn pulled<'a>(
    reader: &mut Reader<'a>,
    catalog: &Catalog,
    asked: &Pull<'_>,
) -> Result<Pulled<'a>, Malformed> {
    let (slot, kind) = reader.pair()?;
    if slot != asked.slot {
        return Err(Malformed("rows are of another slot than was asked for"));
    }
    let has_chunk = match kind {
        ELSEWHERE => return Ok(Pulled::Elsewhere),
        IMPOSSIBLE => {
            let mut ahead = *reader;
            let length = usize::try_from(ahead.word()?).unwrap_or(usize::MAX);
            let words = reader.words(length.div_ceil(8).saturating_add(1))?;
            return Ok(Pulled::Refused(read_text(words)));
        }
        ROWS => false,
        ROWS_AND_CHUNK => true,
        _ => return Err(Malformed("an answer to a pull is of no known kind")),
    };
    let (primary_epoch, version) = (reader.word()?, reader.word()?);
    let expected = asked.numbers(catalog);
    if reader.word()? != expected as u64 {
        return Err(Malformed("not as many rows as were asked for"));
    }
    let rows = reader.numbers_as(expected, asked.is_short)?;
    let mut dense = Vec::with_capacity(asked.dense.len());
    for known in &asked.dense {
        let (variable, kind) = reader.pair()?;
        if variable as usize != known.variable {
            return Err(Malformed("another variable than was asked for"));
        }
        dense.push(match kind {
            MISSING => Dense::Missing,
            UNCHANGED => Dense::Unchanged,
            CHANGED => Dense::Changed {
                version: reader.word()?,
                weights: reader.numbers(catalog.length(known.variable))?,
            },
            _ => return Err(Malformed("an answer for a variable is of no known kind")),
        });
    }
    let listed = match asked.listed {
        None => &[],
        Some(_) => {
            let count =
                usize::try_from(reader.word()?).map_err(|_| Malformed("a list is endless"))?;
            reader.words(count)?
        }
    };
    Ok(Pulled::Rows(PulledRows {
        has_chunk,
        primary_epoch,
        version,
        rows,
        dense,
        listed,
    }))
}

/// What became of a part: the client's words for `slot::Answer`; the text of a refusal comes in a message of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Applied now or before: the part is settled.
    Settled,
    /// Its task has been done for long; settled too.
    Closed,
    /// Not the primary; with the newest entry that the server knows.
    Moved(Option<Entry>),
    Busy,
    /// Not applied: too much has been since its rows came.
    Stale,
    Refused,
}

const SETTLED: u32 = 1;
const CLOSED: u32 = 2;
const MOVED: u32 = 3;
const BUSY: u32 = 4;
const REFUSED: u32 = 5;
const NOBODY: u32 = 6;
const STALE: u32 = 7;

/// Append what became of the push of a slot: (slot, kind), with the entry if it is elsewhere.
pub fn put_outcome(words: &mut impl Sink, slot: u32, answer: &Answer, entry: Option<Entry>) {
    let kind = match (answer, entry) {
        (Answer::Applied | Answer::Held, _) => SETTLED,
        (Answer::Closed, _) => CLOSED,
        (Answer::Moved, Some(_)) => MOVED,
        (Answer::Moved, None) => NOBODY,
        (Answer::Busy, _) => BUSY,
        (Answer::Stale, _) => STALE,
        (Answer::Refused(_), _) => REFUSED,
    };
    words.push(pair(kind, slot));
    if let (MOVED, Some(entry)) = (kind, entry) {
        entry.write(words);
    }
}

/// Read what became of a push; returns its slot.
pub fn outcome(reader: &mut Reader<'_>) -> Result<(u32, Outcome), Malformed> {
    let (kind, slot) = reader.pair()?;
    let outcome = match kind {
        SETTLED => Outcome::Settled,
        CLOSED => Outcome::Closed,
        MOVED => Outcome::Moved(Some(Entry::read(reader)?)),
        NOBODY => Outcome::Moved(None),
        BUSY => Outcome::Busy,
        STALE => Outcome::Stale,
        REFUSED => Outcome::Refused,
        _ => return Err(Malformed("what became of a push is of no known kind")),
    };
    Ok((slot, outcome))
}

/// Return a text in words: its length in bytes, then UTF-8 filled up with zeros.
pub fn text(text: &str) -> Vec<u64> {
    let end = (0..=text.len().min(TEXT)).rfind(|end| text.is_char_boundary(*end));
    let (bytes, _) = text.as_bytes().split_at(end.unwrap_or(0));
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut words = vec![bytes.len() as u64];
    words.extend(whole.iter().map(|word| u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        let last = rest.iter().rev();
        words.push(last.fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }
    words
}

/// Read what `text` wrote, as far as it is one.
pub fn read_text(words: &[u64]) -> String {
    let Some((length, words)) = words.split_first() else {
        return String::new();
    };
    let bytes: &[u8] = bytemuck::cast_slice(words);
    let length = usize::try_from(*length).map_or(bytes.len(), |length| length.min(bytes.len()));
    String::from_utf8_lossy(bytes.split_at(length).0).into_owned()
}

/// Append a message of a stream: its length in words, and itself.
pub fn put_message(words: &mut impl Sink, message: &Message) {
    let at = words.len();
    words.push(0);
    message.write(words);
    let length = words.len().saturating_sub(at).saturating_sub(1);
    words.replace(at, length as u64);
}

/// Read the next message of a stream, which lies in a packet.
pub fn message(reader: &mut Reader<'_>, packet: &Arc<Vec<u64>>) -> Result<Message, Malformed> {
    let length = reader.word()?;
    let length = usize::try_from(length).map_err(|_| Malformed("a message is endless"))?;
    Message::read(reader.words(length)?, packet)
}
