//! The connections of a ring in the making: each member dials those behind it, and is dialled by those before it.
use super::farewell::Broken;
use super::{End, Inner, Job, Ring, Stop};
use crate::net::address::Stream;
use crate::net::dial::Failure;
use crate::net::endpoint::lock;
use crate::net::error::{Error, How, Result};
use crate::net::handshake::{Denied, Purpose};
use crate::net::ring::link::Link;
use crate::net::ring::sum::Element;
use crate::net::shared::area::Area;

impl Ring {
    pub(super) fn start(&self, inner: &mut Inner) -> Result<()> {
        if inner.started {
            return Ok(());
        }
        inner.started = true;
        if self.hosts.are_shared() {
            let area = Area::create(self.peers.len())
                .map_err(|error| Error::io("no shared memory for the ring", error))?;
            inner.area = Some(area);
        }
        // The lower rank dials.
        let ends = inner.ends.iter_mut().zip(&self.peers);
        for (end, peer) in ends.skip(self.rank.saturating_add(1)) {
            let dialer =
                self.endpoint
                    .dialer(Purpose::Ring, self.view, self.digest, peer, self.silence);
            *end = End::Dialing(Box::new(dialer));
        }
        Ok(())
    }

    /// Go on with connections in the making; true when all stand.
    pub(super) fn connect<T: Element>(
        &self,
        inner: &mut Inner,
        job: &Job<'_, T>,
    ) -> std::result::Result<bool, Stop> {
        let Inner { ends, area, .. } = inner;
        let up = |rank: usize, stream: Stream| {
            let mut transport = lock(&self.transport);
            // What goes between hosts counts, if anything does.
            if transport.is_none() || stream.is_tcp() {
                *transport = Some(stream.transport());
            }
            let course = self.course(&job.plan, rank);
            let link = Box::new(Link::new::<T>(stream, course, job.prefix.len()));
            if let Some(area) = area.as_ref().filter(|_| self.is_beside(rank))
                && let Err(error) = link.share(self.view, area)
                && !is_end(&error)
            {
                // Nobody but this member knows, and the peer would wait for ever.
                return Err(Error::io(
                    "the ring's shared memory can't be handed on",
                    error,
                ));
            }
            Ok(End::Up(link))
        };
        for (member, stream) in self.inbox.take() {
            let lower = self.peers.iter().zip(ends.iter_mut()).take(self.rank);
            let found = lower.enumerate().find(|(_, (peer, _))| peer.0 == member);
            match found {
                Some((rank, (_, end)))
                    if matches!(end, End::Absent) && !(self.is_beside(rank) && stream.is_tcp()) =>
                {
                    *end = up(rank, stream)?
                }
                // Not of this ring, not the way that members of one host come, or a second time: a ring is never retried.
                _ => self.endpoint.refusals().count(),
            }
        }
        for (rank, end) in ends.iter_mut().enumerate() {
            if let End::Dialing(dialer) = end {
                match dialer.advance()? {
                    Ok(Some(stream)) => *end = up(rank, stream)?,
                    Ok(None) => {}
                    Err(failure) => {
                        let (how, accused) = match failure {
                            // It has sealed, or knows better: nobody's fault.
                            Failure::Stale => (How::Stale, None),
                            Failure::Unreachable(_)
                            | Failure::Refused
                            | Failure::Untrusted(_)
                            | Failure::Denied(Denied::Token | Denied::Member) => {
                                (How::Refused, Some((rank, How::Refused)))
                            }
                            Failure::Denied(Denied::Malformed(_)) => {
                                (How::Malformed, Some((rank, How::Malformed)))
                            }
                        };
                        let message = format!("no connection to {}: {failure}", self.name(rank));
                        return Err(Stop::Broken(Broken {
                            message,
                            accused,
                            how,
                        }));
                    }
                }
            }
        }
        for (rank, end) in ends.iter_mut().enumerate() {
            let awaited = |link: &&mut Box<Link>| link.area.is_none() && self.is_beside(rank);
            if let End::Up(link) = end
                && awaited(&link)
            {
                link.accept_area(self.view, self.peers.len())
                    .map_err(|fault| self.blame(rank, fault))?;
            }
        }
        Ok(self.is_connected(inner))
    }
}

/// Whether an error of sending means that the other end is gone, which shows when it is awaited.
fn is_end(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset
    )
}
