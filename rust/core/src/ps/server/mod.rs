//! A parameter server: slots, their content, streams to other servers, snapshots, connections.
pub(crate) mod answering;
pub mod data;
pub mod node;
pub mod process;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod slot;
pub mod snapshot;
