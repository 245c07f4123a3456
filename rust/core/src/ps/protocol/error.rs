//! What can be wrong with what a server is sent, given, or asked to read.

/// Bytes that are not what their place demands; says what is wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);
