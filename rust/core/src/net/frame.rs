//! Frames: a header of 32 bytes, then at most `Kind::limit` bytes.
//!
//! Not a serialisation format: what a payload means is known where it is used. The header carries view and step so that nothing of
//! another view or step can be taken for data of this one, and a checksum of itself, so that a torn stream is noticed at once.
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
use std::io::{self, IoSlice, IoSliceMut};

use crate::net::address::Stream;
use crate::net::tls::Untrusted;

/// Bytes of a header.
pub const HEADER: usize = 32;
/// Largest payload of a frame that carries tensor or state bytes.
pub const SEGMENT: usize = 256 * 1024;
/// Largest message to or from a parameter server.
pub const MESSAGE: usize = 256 << 20;
/// Largest trailer of a ring, in f64 values.
pub const TRAILER: usize = 1 << 20;
const MAGIC: [u8; 3] = *b"EDL";
/// Number of the data plane's format: of the handshake, and of what follows.
const FORMAT: u8 = 2;
const SMALL: usize = 512;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Nonce = 1,
    Challenge = 2,
    Hello = 3,
    Verdict = 4,
    /// A member's whole contribution (small messages).
    Whole = 5,
    /// A member's contribution to a part that the receiver sums.
    Scatter = 6,
    /// A part as its owner has summed it.
    Gather = 7,
    /// The sender gives the ring up in the middle of an operation; header only, the step field says whom it accuses.
    Abort = 8,
    HealRequest = 9,
    StateBegin = 10,
    StateData = 11,
    StateEnd = 12,
    StateAck = 13,
    StateRefused = 14,
    Beat = 15,
    /// Header only; comes with the descriptors of the sender's shared memory.
    Share = 16,
    /// The sender leaves the ring after a completed operation, or before the first; header only.
    Leave = 17,
    /// What a client asks a parameter server: rows, and pushes to apply.
    Ask = 18,
    /// The rows that were asked for.
    Rows = 19,
    /// What became of parts of a push.
    Answers = 20,
    /// Why a part of a push can't be applied, for people.
    Refusal = 21,
    /// A message of one parameter server's stream to another.
    Stream = 22,
    /// Up to where a stream has been accepted, and what was refused of it.
    Accepted = 23,
    /// The rows that were asked for have to wait for others' pushes; header only.
    Waits = 24,
    /// A message of another kind, which lies in the sender's shared memory.
    Placed = 25,
    /// How a member begins, before the blocks that a host's first member exchanges.
    Opening = 26,
}

const KINDS: [Kind; 26] = [
    Kind::Nonce,
    Kind::Challenge,
    Kind::Hello,
    Kind::Verdict,
    Kind::Whole,
    Kind::Scatter,
    Kind::Gather,
    Kind::Abort,
    Kind::HealRequest,
    Kind::StateBegin,
    Kind::StateData,
    Kind::StateEnd,
    Kind::StateAck,
    Kind::StateRefused,
    Kind::Beat,
    Kind::Share,
    Kind::Leave,
    Kind::Ask,
    Kind::Rows,
    Kind::Answers,
    Kind::Refusal,
    Kind::Stream,
    Kind::Accepted,
    Kind::Waits,
    Kind::Placed,
    Kind::Opening,
];

impl Kind {
    /// Return the kind of a number, if there is one.
    pub(crate) fn of(code: u8) -> Option<Kind> {
        KINDS.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Return the largest payload that a frame of this kind may announce.
    pub fn limit(self) -> usize {
        match self {
            // The first frame of a ring carries the trailer too.
            Kind::Whole | Kind::Scatter => SEGMENT + PREFIX + 8 * TRAILER,
            Kind::Opening => PREFIX + 8 * TRAILER,
            Kind::Gather | Kind::StateData => SEGMENT,
            Kind::Abort | Kind::Share | Kind::Leave | Kind::Waits => 0,
            Kind::Ask | Kind::Rows | Kind::Stream => MESSAGE,
            Kind::Answers | Kind::Accepted => SEGMENT,
            _ => SMALL,
        }
    }
}

/// Bytes before the trailer in the first frame of a ring: element kind, element count, trailer length.
pub const PREFIX: usize = 16;

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("not a frame of the data plane")]
    Magic,
    #[error("the other end's data plane has format {0}, this end's has format {FORMAT}")]
    Format(u8),
    #[error("header checksum differs")]
    Checksum,
    #[error("unknown kind of frame")]
    Kind,
    #[error("frame longer than its kind allows")]
    Length,
    #[error("content of a frame is not what its kind demands")]
    Content,
}

/// The eight parts of four bytes that a header has.
type Parts = [[u8; 4]; HEADER / 4];

/// The part that is the checksum of all of them, with zeros in its own place.
const CHECK: usize = 3;

fn check(parts: Parts) -> [u8; 4] {
    let mut blank = parts;
    blank[CHECK] = [0; 4];
    crc32c::crc32c(bytemuck::bytes_of(&blank)).to_le_bytes()
}

/// Head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub length: u32,
    pub view: u64,
    pub step: u64,
}

impl Header {
    /// Return the header's 32 bytes (little endian).
    pub fn encode(&self) -> [u8; HEADER] {
        let [view, step] = [self.view, self.step].map(|number| {
            let halves: [[u8; 4]; 2] = bytemuck::cast(number.to_le_bytes());
            halves
        });
        let [e, d, l] = MAGIC;
        let mut parts: Parts = [
            [e, d, l, FORMAT],
            [self.kind as u8, 0, 0, 0],
            self.length.to_le_bytes(),
            [0; 4],
            view[0],
            view[1],
            step[0],
            step[1],
        ];
        parts[CHECK] = check(parts);
        bytemuck::cast(parts)
    }

    /// Read a header.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header, Malformed> {
        let parts: Parts = bytemuck::cast(*bytes);
        let [magic, kind, length, said, view @ .., step_low, step_high] = parts;
        let [e, d, l, format] = magic;
        if [e, d, l] != MAGIC {
            return Err(Malformed::Magic);
        }
        if format != FORMAT {
            return Err(Malformed::Format(format));
        }
        if check(parts) != said {
            return Err(Malformed::Checksum);
        }
        let [code, ..] = kind;
        let kind = Kind::of(code).ok_or(Malformed::Kind)?;
        let length = u32::from_le_bytes(length);
        if length as usize > kind.limit() {
            return Err(Malformed::Length);
        }
        Ok(Header {
            kind,
            length,
            view: u64::from_le_bytes(bytemuck::cast(view)),
            step: u64::from_le_bytes(bytemuck::cast([step_low, step_high])),
        })
    }

    /// Return a frame of this header's kind with a small payload, ready to send.
    pub fn frame(kind: Kind, view: u64, step: u64, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            kind,
            length: payload.len() as u32,
            view,
            step,
        };
        let mut bytes = Vec::with_capacity(HEADER.saturating_add(payload.len()));
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(payload);
        bytes
    }
}

/// Return the number at a place, 0 if the bytes end before it.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// As `u32_at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Why a connection gives no further frame.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("connection closed by the other end")]
    Eof,
    #[error("malformed frame: {0}")]
    Malformed(#[from] Malformed),
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
}

impl Lost {
    /// Return why one end does not believe the other, if that is it.
    pub fn untrusted(&self) -> Option<&Untrusted> {
        match self {
            Lost::Io(error) => error.get_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

/// Collects one small frame at a time from a non-blocking stream; never reads past the frame's end.
#[derive(Debug, Default)]
pub struct Inbound {
    bytes: Vec<u8>,
}

impl Inbound {
    /// Return the next frame if it is all there, `None` if more must come.
    pub fn receive(&mut self, stream: &Stream) -> Result<Option<(Header, Vec<u8>)>, Lost> {
        loop {
            let header = match self.bytes.first_chunk() {
                None => None,
                Some(head) => Some(Header::decode(head)?),
            };
            let length = header.map_or(0, |header| header.length as usize);
            if length > SMALL {
                return Err(Malformed::Length.into());
            }
            let want = HEADER.saturating_add(length);
            if let Some(header) = header
                && self.bytes.len() == want
            {
                let payload = self.bytes.split_off(HEADER);
                self.bytes.clear();
                return Ok(Some((header, payload)));
            }
            let have = self.bytes.len();
            self.bytes.resize(want, 0);
            let (_, room) = self.bytes.split_at_mut(have);
            let got = stream.receive(&mut [IoSliceMut::new(room)]);
            let came = *got.as_ref().unwrap_or(&0);
            self.bytes.truncate(have.saturating_add(came));
            match got {
                Ok(0) => return Err(Lost::Eof),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Small frames on their way out of a non-blocking stream.
#[derive(Debug, Default)]
pub struct Outbound {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbound {
    /// Add a frame to what must go out.
    pub fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
    }

    /// Send what fits; true when nothing is left.
    pub fn flush(&mut self, stream: &Stream) -> Result<bool, Lost> {
        while let Some(left) = self.bytes.get(self.sent..).filter(|left| !left.is_empty()) {
            match stream.send(&[IoSlice::new(left)]) {
                Ok(sent) => self.sent = self.sent.saturating_add(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Whether everything has gone out.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
