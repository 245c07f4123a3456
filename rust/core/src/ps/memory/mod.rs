//! Rows in memory: what a table is made of, and the arithmetic on it.
pub(crate) mod arena;
pub mod hash;
pub(crate) mod index;
pub mod initial;
pub mod optimizer;
pub(crate) mod prefetch;
pub(crate) mod rows;
pub(crate) mod table;
pub mod torch;
