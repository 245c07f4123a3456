//! What servers and clients agree on: messages, numbers, stamps, streams, placement, the catalog, steps.
mod bitmap;
pub mod catalog;
pub mod error;
pub mod excerpt;
pub mod numbers;
pub mod part;
pub mod placement;
pub mod stamps;
pub mod steps;
pub mod stream;
pub mod wire;
pub mod words;
