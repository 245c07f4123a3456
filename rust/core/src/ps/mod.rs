//! A parameter server: the rows and variables of a model, in slots that live on two servers each.
//!
//! From below: `hash`, `initial`, `words` (bytes and numbers), `arena`, `prefetch`, `index`, `rows`, `table` (memory), `optimizer` and
//! `catalog` (what the model is), `part`, `stamps`, `data` (a slot's content), `steps` (what is settled of steps of several pushes),
//! `placement`, `stream` and `slot` (the protocol, rules R1 to R18), `node` (all slots of a server), `snapshot` (slots in files); on the
//! network `wire` (what is said), `answering`, `server`, and on the other end `batch`, `push`, `tracker` (the client's part of the protocol,
//! rule R9), `client`, and `local` (a worker's own copy of variables).
pub mod client;
pub mod memory;
pub mod protocol;
pub mod server;
