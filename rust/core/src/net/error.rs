//! What can go wrong on the wires; each variant is one class of `elasticdl.errors` (or a built-in class of Python).
use std::io;

/// How a ring was lost, in the words of the `lost` message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The connection ended or was reset.
    Eof,
    /// No connection could be made, or the other end did not want it.
    Refused,
    /// Silence in the middle of a transfer.
    Deadline,
    /// The other end is in another view or step.
    Stale,
    /// What came was not the protocol.
    Malformed,
}

impl How {
    /// Return the word that Python and the control plane use.
    pub fn word(self) -> &'static str {
        match self {
            How::Eof => "eof",
            How::Refused => "refused",
            How::Deadline => "deadline",
            How::Stale => "stale",
            How::Malformed => "malformed",
        }
    }

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<How> {
        [
            How::Eof,
            How::Refused,
            How::Deadline,
            How::Stale,
            How::Malformed,
        ]
        .into_iter()
        .find(|how| how.code() == code)
    }
}

/// Errors of the data plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `RingBroken`: the view ends; `rank` is accused, if anybody can be.
    #[error("{message}")]
    RingBroken {
        message: String,
        rank: Option<usize>,
        how: How,
    },
    /// `Cancelled`: another thread asked the call to return.
    #[error("the call was cancelled")]
    Cancelled,
    /// `TransferFailed`: the state did not arrive whole.
    #[error("{0}")]
    TransferFailed(String),
    /// `BadSetting`: an address that can't work or is in use.
    #[error("{0}")]
    BadSetting(String),
    /// `ValueError`: the caller's mistake.
    #[error("{0}")]
    BadArgument(String),
    /// A signal's handler raised; the binding holds what it raised.
    #[error("interrupted by a signal")]
    Interrupted,
    /// `OSError`: the operating system refused something that has no better name.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Result of the data plane.
pub type Result<T> = std::result::Result<T, Error>;
