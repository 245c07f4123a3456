//! Memory that members of one host share.
pub(crate) mod area;
pub(crate) mod mailbox;
pub(crate) mod progress;
pub mod within;
