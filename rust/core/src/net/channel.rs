//! A connection for messages of any length, in words of 8 bytes, both ways at once and never blocking. Waiting is its owner's affair.
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

use rustix::event::{PollFd, PollFlags};

use crate::net::address::Stream;
use crate::net::frame::{HEADER, Header, Kind, Lost, Malformed};

/// Bytes by which a message's memory grows while it comes in: who announces much and sends little costs little. No more than that is kept
/// for the next message.
const GROWTH: usize = 4 << 20;

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
        }
    }

    /// Put a message behind those that wait to go out; one that the other end would not take is malformed.
    pub fn send(&mut self, packet: Packet) -> Result<(), Lost> {
        let bytes = size_of_val(&packet.words[..]);
        let length = u32::try_from(bytes)
            .ok()
            .filter(|_| bytes <= packet.kind.limit())
            .ok_or(Malformed::Length)?;
        let header = Header {
            kind: packet.kind,
            length,
            view: packet.number,
            step: packet.mark,
        };
        self.unsent = self.unsent.saturating_add(bytes);
        self.leaving.push_back(Leaving {
            head: header.encode(),
            words: packet.words,
            sent: 0,
        });
        Ok(())
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
            match self.stream.send(&parts) {
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
                return Ok(Some(Packet {
                    kind: header.kind,
                    number: header.view,
                    mark: header.step,
                    words: std::mem::take(&mut self.words),
                }));
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
            match read(&self.stream, room)? {
                0 => return Ok(false),
                got => self.got = self.got.saturating_add(got),
            }
        }
        Ok(true)
    }
}

/// Receive what is there; 0 if nothing is there now.
fn read(stream: &Stream, room: &mut [u8]) -> Result<usize, Lost> {
    match stream.receive(&mut [IoSliceMut::new(room)]) {
        Ok(0) => Err(Lost::Eof),
        Ok(got) => Ok(got),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::net::address::Listener;

    #[test]
    fn memory_of_one_message_serves_the_next() {
        let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let mut sender = Channel::new(Stream::connect(listener.address()).unwrap());
        let mut receiver = loop {
            if let Some((stream, _)) = listener.accept().unwrap() {
                break Channel::new(stream);
            }
            assert!(Instant::now() < until);
        };
        for length in [
            50_000, 3, 0, 49_999, 50_001, 20_000, 400_000, 600_000, 50_000,
        ] {
            let words: Vec<u64> = (0..length).map(|word| word * 7 + length).collect();
            let sent = sender.send(Packet {
                kind: Kind::Ask,
                number: length,
                mark: 1,
                words: words.clone(),
            });
            sent.unwrap();
            let packet = loop {
                sender.flush().unwrap();
                if let Some(packet) = receiver.receive().unwrap() {
                    break packet;
                }
                assert!(Instant::now() < until);
            };
            assert_eq!((packet.number, &packet.words), (length, &words));
            receiver.reuse(packet.words);
        }
    }
}
