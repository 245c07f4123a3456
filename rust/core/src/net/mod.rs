//! The wires between members: frames, endpoint, ring, state transfer, heartbeats.
//!
//! From below: `address` (sockets) and `tls` (sessions beside them), `place` (one address or two), `frame` (bytes), `handshake` (who is there), `dial` and `acceptor` (the two ends of making a
//! connection; `admission` decides who may wait at the latter), `endpoint` (which view it is for); on these stand `ring`, `transfer` and `heart`. `proxy` is the control plane's: gRPC's way out.
pub mod acceptor;
pub mod address;
pub mod admission;
pub(crate) mod channel;
pub(crate) mod dial;
pub mod endpoint;
pub mod error;
pub mod frame;
pub mod handshake;
pub mod heart;
pub mod place;
pub mod ring;
pub(crate) mod shared;
pub mod sink;
pub mod tls;
pub mod tlsproxy;
pub mod transfer;
pub mod wake;
