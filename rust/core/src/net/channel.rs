//! A connection for messages of any length, in words of 8 bytes, both ways at once and never blocking. Waiting is its owner's affair.
//!
//! Between processes of one host large messages lie in shared memory (`shared/mailbox.rs`), and the socket says where. Who has dialled offers its
//! memory, the other end answers with its own; where either has none, all goes through the socket.
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
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};

use crate::net::address::Stream;
use crate::net::frame::{HEADER, Header, Kind, Lost, Malformed};
use crate::net::shared::mailbox::{Inbox, Outbox};
use crate::net::sink::Draft;

/// Bytes by which a message's memory grows while it comes in: who announces much and sends little costs little. No more than that is kept
/// for the next message.
const GROWTH: usize = 4 << 20;
/// Bytes from which on a message goes through shared memory: for fewer the kernel's copies cost no more than what is saved.
const LARGE: usize = 16 << 10;

/// A message: what it is, the two numbers of its head, and its words.
#[derive(Debug, Clone, PartialEq)]
pub struct Packet {
    pub kind: Kind,
    pub number: u64,
    pub mark: u64,
    pub words: Vec<u64>,
}

#[derive(Debug)]
struct Leaving {
    head: [u8; HEADER],
    words: Vec<u64>,
    sent: usize,
    /// Goes with the head.
    file: Option<OwnedFd>,
}

/// A stream with what is on its way in and out.
#[derive(Debug)]
pub struct Channel {
    stream: Stream,
    head: [u8; HEADER],
    header: Option<Header>,
    /// Bytes of the head, or of the words, that have come.
    got: usize,
    words: Vec<u64>,
    /// Memory of a message that has been read, for the next one.
    spare: Vec<u64>,
    leaving: VecDeque<Leaving>,
    /// Bytes of their words.
    unsent: usize,
    /// Came with the present head.
    file: Option<OwnedFd>,
    outbox: Option<Outbox>,
    inbox: Option<Inbox>,
}

impl Channel {
    /// Speak through a stream that stands.
    pub fn new(stream: Stream) -> Channel {
        Channel {
            stream,
            head: [0; HEADER],
            header: None,
            got: 0,
            words: Vec::new(),
            spare: Vec::new(),
            leaving: VecDeque::new(),
            unsent: 0,
            file: None,
            outbox: None,
            inbox: None,
        }
    }

    /// Speak through a stream that this end has dialled; to a process of this host with an offer of shared memory.
    pub fn dialled(stream: Stream) -> Channel {
        let mut channel = Channel::new(stream);
        channel.offer();
        channel
    }

    /// Put the own shared memory before what will be sent, if there can be any.
    fn offer(&mut self) {
        if self.stream.is_tcp() {
            return;
        }
        // Without it messages go as they do to another host.
        if let Ok((outbox, file)) = Outbox::create() {
            self.outbox = Some(outbox);
            self.put(Kind::Share, 0, 0, Vec::new(), Some(file));
        }
    }

    fn put(&mut self, kind: Kind, number: u64, mark: u64, words: Vec<u64>, file: Option<OwnedFd>) {
        let bytes = size_of_val(&words[..]);
        let header = Header {
            kind,
            // No kind's limit comes near what the field can say.
            length: bytes as u32,
            view: number,
            step: mark,
        };
        self.unsent = self.unsent.saturating_add(bytes);
        self.leaving.push_back(Leaving {
            head: header.encode(),
            words,
            sent: 0,
            file,
        });
    }

    /// Put a message behind those that wait to go out; one that the other end would not take is malformed.
    pub fn send(&mut self, packet: Packet) -> Result<(), Lost> {
        let bytes = size_of_val(&packet.words[..]);
        if bytes > packet.kind.limit() {
            return Err(Malformed::Length.into());
        }
        let Packet {
            kind,
            number,
            mark,
            words,
        } = packet;
        let place = self.outbox.as_mut().zip(self.inbox.as_ref());
        let place = place.filter(|_| bytes >= LARGE);
        match place.and_then(|(outbox, inbox)| outbox.put(&words, inbox.read())) {
            Some(position) => {
                let placed = vec![kind as u64, words.len() as u64, position];
                self.put(Kind::Placed, number, mark, placed, None);
            }
            None => self.put(kind, number, mark, words, None),
        }
        Ok(())
    }

    /// Let `write` write a message of at most about so many words to where it goes out from, and put it behind those that wait to go out.
    ///
    /// If the estimate was too small, what was written is copied into memory, and sent like any other message.
    pub fn send_by(
        &mut self,
        (kind, number, mark): (Kind, u64, u64),
        room: usize,
        write: impl FnOnce(&mut Draft<'_>),
    ) -> Result<(), Lost> {
        let mailbox = self.outbox.as_mut().zip(self.inbox.as_ref());
        let mailbox = mailbox.filter(|_| room.saturating_mul(8) >= LARGE);
        let place = mailbox.and_then(|(outbox, inbox)| outbox.place(room, inbox.read()));
        let (position, mut draft) = match place {
            Some((position, place)) => (position, Draft::new(place)),
            None => (0, Draft::nowhere(room)),
        };
        write(&mut draft);
        match draft.end() {
            Err(words) => self.send(Packet {
                kind,
                number,
                mark,
                words,
            }),
            Ok(length) if length.saturating_mul(8) > kind.limit() => Err(Malformed::Length.into()),
            Ok(length) => {
                if let Some(outbox) = &mut self.outbox {
                    outbox.keep(position, length);
                }
                let placed = vec![kind as u64, length as u64, position];
                self.put(Kind::Placed, number, mark, placed, None);
                Ok(())
            }
        }
    }

    /// Take back the words of a message that has been read: the next one needs memory that is there already.
    pub fn reuse(&mut self, words: Vec<u64>) {
        if words.len() > self.spare.len() && size_of_val(&words[..]) <= GROWTH {
            self.spare = words;
        }
    }

    /// Return how many messages wait to go out.
    pub fn backlog(&self) -> usize {
        self.leaving.len()
    }

    /// Return how many bytes of messages wait to go out, with what has gone of the first one.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Return what to poll for.
    pub fn interest(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, self.stream.interest(!self.leaving.is_empty()))
    }

    /// Return what to poll for as long as nothing is to be received.
    pub fn interest_to_send(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, PollFlags::OUT)
    }

    /// Send what fits.
    pub fn flush(&mut self) -> Result<(), Lost> {
        while let Some(first) = self.leaving.front_mut() {
            let bytes: &[u8] = bytemuck::cast_slice(&first.words);
            let head = first.head.get(first.sent..).unwrap_or_default();
            let body = bytes.get(first.sent.saturating_sub(HEADER)..);
            let parts = [IoSlice::new(head), IoSlice::new(body.unwrap_or_default())];
            // A descriptor goes with a head of its own, all of it or nothing.
            let sent = match &first.file {
                Some(file) => self
                    .stream
                    .send_descriptors(&first.head, &[file.as_fd()])
                    .map(|()| HEADER),
                None => self.stream.send(&parts),
            };
            match sent {
                Ok(sent) => first.sent = first.sent.saturating_add(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            let length = bytes.len();
            if first.sent >= HEADER.saturating_add(length) {
                self.leaving.pop_front();
                self.unsent = self.unsent.saturating_sub(length);
            }
        }
        Ok(())
    }

    /// Return the next message if it is all there, `None` if more must come.
    pub fn receive(&mut self) -> Result<Option<Packet>, Lost> {
        loop {
            let Some(header) = self.header else {
                if self.fill_head()? {
                    let header = Header::decode(&self.head)?;
                    if !header.length.is_multiple_of(8) {
                        return Err(Malformed::Length.into());
                    }
                    let file = self.file.take();
                    if header.kind == Kind::Share {
                        self.share(file)?;
                        self.got = 0;
                        continue;
                    }
                    self.header = Some(header);
                    self.got = 0;
                    continue;
                }
                return Ok(None);
            };
            let length = header.length as usize;
            if self.got == length {
                self.header = None;
                self.got = 0;
                let mut packet = Packet {
                    kind: header.kind,
                    number: header.view,
                    mark: header.step,
                    words: std::mem::take(&mut self.words),
                };
                if packet.kind == Kind::Placed {
                    self.fetch(&mut packet)?;
                }
                return Ok(Some(packet));
            }
            // Cut for a short message it would have to be cleared again for the next long one.
            if self.words.is_empty() && length / 8 >= self.spare.len() / 2 {
                // What it holds is written over before it is read.
                self.words = std::mem::take(&mut self.spare);
                self.words.truncate(length / 8);
            }
            if self.got == size_of_val(&self.words[..]) {
                let more = length.saturating_sub(self.got).min(GROWTH.max(self.got));
                self.words.reserve_exact(more / 8);
                self.words.resize(self.got.saturating_add(more) / 8, 0);
            }
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
            match read(&self.stream, bytes.get_mut(self.got..).unwrap_or_default())? {
                0 => return Ok(None),
                got => self.got = self.got.saturating_add(got),
            }
        }
    }

    fn fill_head(&mut self) -> Result<bool, Lost> {
        while let Some(room) = self
            .head
            .get_mut(self.got..)
            .filter(|room| !room.is_empty())
        {
            let got = if self.inbox.is_some() || self.stream.is_tcp() {
                read(&self.stream, room)?
            } else {
                let (got, files) = came(self.stream.receive_descriptors(room))?.unwrap_or_default();
                self.file = files.into_iter().last().or(self.file.take());
                got
            };
            match got {
                0 => return Ok(false),
                got => self.got = self.got.saturating_add(got),
            }
        }
        Ok(true)
    }

    /// Take the other end's shared memory, once, and answer with the own one.
    fn share(&mut self, file: Option<OwnedFd>) -> Result<(), Lost> {
        let file = file.ok_or(Malformed::Content)?;
        let inbox = Inbox::open(file).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Malformed::Content.into(),
            _ => Lost::Io(error),
        })?;
        self.inbox = Some(inbox);
        if self.outbox.is_none() {
            self.offer();
        }
        Ok(())
    }

    /// Replace what says where a message lies by that message.
    fn fetch(&mut self, packet: &mut Packet) -> Result<(), Lost> {
        let [kind, length, position] = *packet.words else {
            return Err(Malformed::Content.into());
        };
        let kind = u8::try_from(kind).ok().and_then(Kind::of);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let kind = kind.filter(|kind| length.saturating_mul(8) <= kind.limit());
        let (Some(kind), Some(inbox), Some(outbox)) = (kind, &self.inbox, &self.outbox) else {
            return Err(Malformed::Content.into());
        };
        packet.words = std::mem::take(&mut self.spare);
        let read = inbox.take(position, length, &mut packet.words)?;
        outbox.publish(read);
        packet.kind = kind;
        Ok(())
    }
}

/// Receive what is there; 0 if nothing is there now.
fn read(stream: &Stream, room: &mut [u8]) -> Result<usize, Lost> {
    let got = stream.receive(&mut [IoSliceMut::new(room)]);
    let got = came(got.map(|got| (got, Vec::new())))?;
    Ok(got.map_or(0, |(got, _)| got))
}

/// Return what came, with its descriptors; nothing if nothing is there now.
fn came(got: io::Result<(usize, Vec<OwnedFd>)>) -> Result<Option<(usize, Vec<OwnedFd>)>, Lost> {
    match got {
        Ok((0, _)) => Err(Lost::Eof),
        Ok(got) => Ok(Some(got)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
