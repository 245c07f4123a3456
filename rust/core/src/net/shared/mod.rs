//! Memory that members of one host share.
pub(crate) mod area;
pub(crate) mod letters;
pub(crate) mod progress;
