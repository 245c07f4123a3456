//! A worker's end: requests to servers, and a copy of the dense variables.
pub mod batch;
pub mod connections;
pub mod local;
pub mod push;
pub mod tracker;
