//! A worker's end: requests to servers, and a copy of the dense variables.
pub mod batch;
pub mod connections;
mod loads;
pub mod local;
pub mod push;
mod seen;
pub mod tracker;
pub mod wanted;
