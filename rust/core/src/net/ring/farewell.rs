//! How a ring ends before its time: whom a fault is blamed on, and the last word to the others.
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{End, Inner, Ring, Stop};
use crate::net::address::Stream;
use crate::net::error::How;
use crate::net::frame::HEADER;
use crate::net::ring::link::{Fault, Link};
use crate::net::wake::{ignore_signals, readable, wait};

/// How long a leaving member tries to finish a frame, so that it can say goodbye.
const GOODBYE: Duration = Duration::from_millis(20);

/// How long closed connections are drained after a completed ring.
const LINGER: Duration = Duration::from_secs(2);

/// What the peer, or somebody that it names, is guilty of.
pub(super) struct Broken {
    pub(super) message: String,
    pub(super) accused: Option<(usize, How)>,
    pub(super) how: How,
}

impl Ring {
    pub(super) fn silent(&self, rank: usize) -> Stop {
        Stop::Broken(Broken {
            message: format!(
                "{} fell silent in the middle of a transfer",
                self.name(rank)
            ),
            accused: Some((rank, How::Deadline)),
            how: How::Deadline,
        })
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "ranks are this ring's own, of which each has a peer"
    )]
    pub(super) fn name(&self, rank: usize) -> String {
        format!(
            "member {} (rank {rank} of view {}) at {}",
            self.peers[rank].0, self.view, self.peers[rank].1
        )
    }

    pub(super) fn blame(&self, rank: usize, fault: Fault) -> Stop {
        let name = self.name(rank);
        Stop::Broken(match fault {
            Fault::Link(how, what) => {
                if how == How::Malformed {
                    self.endpoint.refusals().count();
                }
                Broken {
                    message: format!("lost {name}: {what}"),
                    accused: Some((rank, how)),
                    how,
                }
            }
            Fault::Left(None) => Broken {
                message: format!("{name} has left the ring"),
                accused: None,
                how: How::Eof,
            },
            Fault::Left(Some((accused, how))) if accused < self.peers.len() => {
                let whom = self.name(accused);
                Broken {
                    message: format!("{name} has left the ring: it lost {whom}"),
                    accused: Some((accused, how)),
                    how,
                }
            }
            Fault::Left(Some(_)) => Broken {
                message: format!("{name} accuses a member that does not exist"),
                accused: Some((rank, How::Malformed)),
                how: How::Malformed,
            },
        })
    }

    /// Leave with `frame` as the last word, as far as the others listen, and close all connections; who can't be told sees the stream's
    /// end. `go_on` finishes a frame that is under way.
    pub(super) fn abort(
        &self,
        inner: &mut Inner,
        frame: &[u8; HEADER],
        mut go_on: impl FnMut(&mut Link),
    ) {
        if inner.over {
            return;
        }
        inner.over = true;
        self.inbox.close();
        let deadline = Instant::now() + GOODBYE;
        let mut ends: Vec<(Box<Link>, bool)> = inner
            .ends
            .iter_mut()
            .filter_map(|end| match std::mem::replace(end, End::Absent) {
                End::Up(link) => Some((link, false)),
                _ => None,
            })
            .collect();
        loop {
            ends.retain_mut(|(link, begun)| {
                if !*begun && !link.is_at_boundary() {
                    go_on(link);
                }
                if !*begun && !link.is_at_boundary() {
                    return link.is_full();
                }
                // What a session could not send whole has to be repeated, and nothing else.
                *begun = true;
                let told = link.stream.send(&[std::io::IoSlice::new(frame)]);
                told.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            });
            let left = deadline.saturating_duration_since(Instant::now());
            let mut polls: Vec<_> = ends
                .iter()
                .map(|(link, _)| PollFd::new(&link.stream, PollFlags::OUT))
                .collect();
            if polls.is_empty()
                || left.is_zero()
                || wait(&mut polls, Some(left), &ignore_signals).is_err()
            {
                break;
            }
        }
    }
}

/// Read and drop what comes until all other ends have closed too, or the time is over.
pub(super) fn drain(mut streams: Vec<Stream>) {
    let deadline = Instant::now() + LINGER;
    let mut waste = vec![0; 64 * 1024];
    loop {
        streams.retain(|stream| {
            loop {
                match stream.receive(&mut [std::io::IoSliceMut::new(&mut waste)]) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
                }
            }
        });
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polls: Vec<_> = streams.iter().map(readable).collect();
        if polls.is_empty()
            || left.is_zero()
            || wait(&mut polls, Some(left), &ignore_signals).is_err()
        {
            return;
        }
    }
}
