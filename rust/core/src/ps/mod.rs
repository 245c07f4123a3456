//! A parameter server: the rows and variables of a model, in slots that live on two servers each.
//!
//! From below: `hash`, `initial`, `words` (bytes and numbers), `arena`, `prefetch`, `index`, `rows`, `table` (memory), `optimizer` and
//! `catalog` (what the model is), `part`, `stamps`, `data` (a slot's content), `steps` (what is settled of steps of several pushes),
//! `placement`, `stream` and `slot` (the protocol, rules R1 to R18), `node` (all slots of a server), `snapshot` (slots in files); on the
//! network `wire` (what is said), `answering`, `server`, and on the other end `batch`, `push`, `asking` (the client's part of the protocol,
//! rule R9), `client`, and `local` (a worker's own copy of variables).
mod answering;
mod arena;
pub mod asking;
pub mod batch;
pub mod catalog;
pub mod client;
pub mod data;
pub mod error;
pub mod hash;
mod index;
pub mod initial;
pub mod local;
pub mod node;
pub mod optimizer;
pub mod part;
pub mod placement;
mod prefetch;
pub mod push;
mod rows;
pub mod server;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod slot;
pub mod snapshot;
pub mod stamps;
pub mod steps;
pub mod stream;
mod table;
pub mod wire;
pub mod words;
