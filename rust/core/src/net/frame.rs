//! Frames: a header of 32 bytes, then at most `Kind::limit` bytes.
//!
//! Not a serialisation format: what a payload means is known where it is used. The header carries view and step so that nothing of
//! another view or step can be taken for data of this one, and a checksum of itself, so that a torn stream is noticed at once.
use std::io::{self, IoSlice, IoSliceMut};

use super::address::Stream;
use super::tls::Untrusted;

/// Bytes of a header.
pub const HEADER: usize = 32;
/// Largest payload of a frame that carries tensor or state bytes.
pub const SEGMENT: usize = 256 * 1024;
/// Largest message to or from a parameter server.
pub const MESSAGE: usize = 256 << 20;
/// Largest trailer of a ring, in f64 values.
pub const TRAILER: usize = 1 << 20;
const MAGIC: [u8; 4] = *b"EDL\x01";
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
}

const KINDS: [Kind; 24] = [
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
];

impl Kind {
    /// Return the largest payload that a frame of this kind may announce.
    pub fn limit(self) -> usize {
        match self {
            // The first frame of a ring carries the trailer too.
            Kind::Whole | Kind::Scatter => SEGMENT + PREFIX + 8 * TRAILER,
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
    #[error("not a frame of this protocol version")]
    Magic,
    #[error("header checksum differs")]
    Checksum,
    #[error("unknown kind of frame")]
    Kind,
    #[error("frame longer than its kind allows")]
    Length,
    #[error("content of a frame is not what its kind demands")]
    Content,
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
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.view.to_le_bytes());
        bytes[24..].copy_from_slice(&self.step.to_le_bytes());
        let check = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Read a header.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header, Malformed> {
        if bytes[..4] != MAGIC {
            return Err(Malformed::Magic);
        }
        let mut blank = *bytes;
        blank[12..16].fill(0);
        if crc32c::crc32c(&blank) != u32_at(bytes, 12) {
            return Err(Malformed::Checksum);
        }
        let kind = KINDS
            .into_iter()
            .find(|kind| *kind as u8 == bytes[4])
            .ok_or(Malformed::Kind)?;
        let length = u32_at(bytes, 8);
        if length as usize > kind.limit() {
            return Err(Malformed::Length);
        }
        Ok(Header {
            kind,
            length,
            view: u64_at(bytes, 16),
            step: u64_at(bytes, 24),
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
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(payload);
        bytes
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
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
            let (want, header) = if self.bytes.len() < HEADER {
                (HEADER, None)
            } else {
                let header = Header::decode(self.bytes[..HEADER].try_into().expect("a header"))?;
                if header.length as usize > SMALL {
                    return Err(Malformed::Length.into());
                }
                (HEADER + header.length as usize, Some(header))
            };
            if let Some(header) = header
                && self.bytes.len() == want
            {
                let payload = self.bytes.split_off(HEADER);
                self.bytes.clear();
                return Ok(Some((header, payload)));
            }
            let have = self.bytes.len();
            self.bytes.resize(want, 0);
            let got = stream.receive(&mut [IoSliceMut::new(&mut self.bytes[have..])]);
            self.bytes.truncate(have + *got.as_ref().unwrap_or(&0));
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
        while self.sent < self.bytes.len() {
            match stream.send(&[IoSlice::new(&self.bytes[self.sent..])]) {
                Ok(sent) => self.sent += sent,
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
