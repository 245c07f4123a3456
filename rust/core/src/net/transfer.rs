//! State transfer: one donor's image to several members that heal from it, all or nothing.
//!
//! ```text
//! healee → donor   HealRequest(view, state)
//! donor → healee   StateBegin(length)  StateData*  StateEnd(crc32c)      or  StateRefused(reason)
//! healee → donor   StateAck            when the state is in place
//! ```
//!
//! Not a protocol for parts of a state: what does not verify whole is dropped.
// What is read here comes from others.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::net::address::Stream;
use crate::net::endpoint::{Endpoint, Inbox, lock};
use crate::net::error::{Error, Result};
use crate::net::frame::{HEADER, Header, Inbound, Kind, Outbound, SEGMENT, u32_at, u64_at};
use crate::net::handshake::Purpose;
use crate::net::place::Place;
use crate::net::wake::{Interrupt, Wake, ignore_signals, readable, wait};

/// Name of a state: step, and the view that committed it.
pub type StateId = (u64, u64);
/// The bytes that a donor lends.
pub type Image = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Longest image that a healee believes in.
const LONGEST: u64 = 1 << 42;
const PAUSE: Duration = Duration::from_millis(50);

fn name(state: StateId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&state.0.to_le_bytes());
    bytes[8..].copy_from_slice(&state.1.to_le_bytes());
    bytes
}

/// Serves one image from a thread of its own.
#[derive(Debug)]
pub struct StateServer {
    inbox: Arc<Inbox>,
    stop: Arc<Wake>,
    ended: Arc<(Mutex<Ended>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Ended {
    transfers: Vec<(String, bool)>,
    closed: bool,
}

impl StateServer {
    /// Serve `image`, which is `state`, to members of `view`.
    pub fn start(
        endpoint: &Endpoint,
        view: u64,
        state: StateId,
        image: Image,
    ) -> Result<StateServer> {
        let inbox = endpoint.inbox(Purpose::Heal, view)?;
        let stop = Arc::new(Wake::new()?);
        let ended = Arc::new((Mutex::new(Ended::default()), Condvar::new()));
        let thread = {
            let (inbox, stop, ended) = (inbox.clone(), stop.clone(), ended.clone());
            std::thread::Builder::new()
                .name("edl-donor".into())
                .spawn(move || serve(&inbox, &stop, &ended, view, state, &image))
                .map_err(|error| Error::io("no thread for the state transfer", error))?
        };
        Ok(StateServer {
            inbox,
            stop,
            ended,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Wait until a transfer has ended, the server is closed or `limit` is over; return those ended since the last call.
    ///
    /// `interrupt` is asked several times a second.
    pub fn wait(&self, limit: Duration, interrupt: Interrupt<'_>) -> Result<Vec<(String, bool)>> {
        let deadline = Instant::now() + limit;
        let (ended, news) = &*self.ended;
        let mut ended = lock(ended);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if !ended.transfers.is_empty() || ended.closed || left.is_zero() {
                return Ok(std::mem::take(&mut ended.transfers));
            }
            ended = news
                .wait_timeout(ended, left.min(PAUSE))
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
            drop(ended);
            interrupt()?;
            ended = lock(&self.ended.0);
        }
    }

    /// Break off what is under way and give the image back.
    pub fn close(&self) {
        self.inbox.close();
        self.stop.raise();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for StateServer {
    fn drop(&mut self) {
        self.close();
    }
}

struct Healee {
    member: String,
    stream: Stream,
    inbound: Inbound,
    outbound: Outbound,
    phase: Phase,
}

enum Phase {
    Asked,
    Sending(Sending),
    AwaitingAck,
    Refusing,
}

#[derive(Default)]
struct Sending {
    /// Start of the segment under way.
    offset: usize,
    /// Its header, once made.
    head: Option<[u8; HEADER]>,
    /// Bytes of header and segment that are out.
    sent: usize,
    /// Checksum up to the end of the segment under way.
    crc: u32,
}

/// How a healee's transfer ended; `None`: it never asked for this state.
type End = Option<bool>;

fn serve(
    inbox: &Inbox,
    stop: &Wake,
    ended: &(Mutex<Ended>, Condvar),
    view: u64,
    state: StateId,
    image: &Image,
) {
    let bytes: &[u8] = (**image).as_ref();
    let mut healees: Vec<Healee> = Vec::new();
    while !stop.is_raised() {
        for (member, stream) in inbox.take() {
            healees.push(Healee {
                member,
                stream,
                inbound: Inbound::default(),
                outbound: Outbound::default(),
                phase: Phase::Asked,
            });
        }
        healees.retain_mut(|healee| match healee.advance(view, state, bytes) {
            Ok(()) => true,
            Err(None) => false,
            Err(Some(acknowledged)) => {
                lock(&ended.0)
                    .transfers
                    .push((healee.member.clone(), acknowledged));
                ended.1.notify_all();
                false
            }
        });
        let mut polls = vec![readable(stop), readable(&inbox.wake)];
        polls.extend(healees.iter().map(|healee| {
            let sending = matches!(healee.phase, Phase::Sending(_)) || !healee.outbound.is_empty();
            PollFd::new(
                &healee.stream,
                if sending {
                    PollFlags::IN | PollFlags::OUT
                } else {
                    PollFlags::IN
                },
            )
        }));
        if wait(&mut polls, None, &ignore_signals).is_err() {
            break;
        }
    }
    let mut last = lock(&ended.0);
    last.transfers.extend(
        healees
            .into_iter()
            .filter(|healee| !matches!(healee.phase, Phase::Asked | Phase::Refusing))
            .map(|healee| (healee.member, false)),
    );
    last.closed = true;
    ended.1.notify_all();
}

impl Healee {
    fn advance(&mut self, view: u64, state: StateId, image: &[u8]) -> std::result::Result<(), End> {
        let lost = self.lost();
        if let Some((header, payload)) = self.inbound.receive(&self.stream).map_err(|_| lost)? {
            match (&self.phase, header.kind) {
                (Phase::Asked, Kind::HealRequest)
                    if header.view == view && payload == name(state) =>
                {
                    self.outbound.push(&Header::frame(
                        Kind::StateBegin,
                        view,
                        state.0,
                        &(image.len() as u64).to_le_bytes(),
                    ));
                    self.phase = Phase::Sending(Sending::default());
                }
                (Phase::Asked, Kind::HealRequest) => {
                    let reason = format!(
                        "the donor serves state ({}, {}) of view {view}",
                        state.0, state.1
                    );
                    self.outbound.push(&Header::frame(
                        Kind::StateRefused,
                        view,
                        state.0,
                        reason.as_bytes(),
                    ));
                    self.phase = Phase::Refusing;
                }
                (Phase::AwaitingAck, Kind::StateAck) => return Err(Some(true)),
                _ => return Err(lost),
            }
        }
        // It may have asked just now.
        let lost = self.lost();
        if !self.outbound.flush(&self.stream).map_err(|_| lost)? {
            return Ok(());
        }
        if let Phase::Sending(sending) = &mut self.phase
            && let Some(crc) = sending
                .advance(&self.stream, view, state, image)
                .map_err(|_| lost)?
        {
            self.outbound.push(&Header::frame(
                Kind::StateEnd,
                view,
                state.0,
                &crc.to_le_bytes(),
            ));
            self.outbound.flush(&self.stream).map_err(|_| lost)?;
            self.phase = Phase::AwaitingAck;
        }
        Ok(())
    }

    /// Return what it means if the connection breaks now: a healee that is gone before it asked is no transfer.
    fn lost(&self) -> End {
        match self.phase {
            Phase::Asked | Phase::Refusing => None,
            Phase::Sending(_) | Phase::AwaitingAck => Some(false),
        }
    }
}

impl Sending {
    /// Send what fits, a few segments at a time, so that several healees are served side by side; the checksum when all is out.
    fn advance(
        &mut self,
        stream: &Stream,
        view: u64,
        state: StateId,
        image: &[u8],
    ) -> io::Result<Option<u32>> {
        for _ in 0..8 {
            let left = image.get(self.offset..).unwrap_or_default();
            let part = left.get(..SEGMENT).unwrap_or(left);
            if part.is_empty() {
                return Ok(Some(self.crc));
            }
            if self.head.is_none() {
                self.crc = crc32c::crc32c_append(self.crc, part);
                self.sent = 0;
            }
            let head = self.head.get_or_insert_with(|| {
                Header {
                    kind: Kind::StateData,
                    length: part.len() as u32,
                    view,
                    step: state.0,
                }
                .encode()
            });
            let parts = [
                IoSlice::new(head.get(self.sent..).unwrap_or_default()),
                IoSlice::new(
                    part.get(self.sent.saturating_sub(HEADER)..)
                        .unwrap_or_default(),
                ),
            ];
            match stream.send(&parts) {
                Ok(count) => self.sent = self.sent.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if self.sent >= HEADER.saturating_add(part.len()) {
                self.offset = self.offset.saturating_add(part.len());
                self.head = None;
            }
        }
        Ok(None)
    }
}

/// Fetches an image from a donor.
#[derive(Debug)]
pub struct StateTransfer {
    endpoint: Arc<Endpoint>,
    view: u64,
    digest: u64,
    state: StateId,
    donor: (String, Place),
    silence: Duration,
    wake: Wake,
    stream: Mutex<Option<Stream>>,
}

impl StateTransfer {
    /// `donor`: member id and address; `silence`: how long it may say nothing in the middle of the transfer.
    pub fn new(
        endpoint: Arc<Endpoint>,
        view: u64,
        digest: u64,
        state: StateId,
        donor: (&str, &str),
        silence: Duration,
    ) -> Result<StateTransfer> {
        let donor = (donor.0.to_owned(), donor.1.parse()?);
        Ok(StateTransfer {
            endpoint,
            view,
            digest,
            state,
            donor,
            silence,
            wake: Wake::new()?,
            stream: Mutex::new(None),
        })
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::TransferFailed(format!(
            "state ({}, {}) from donor {} at {} for view {}: {why}",
            self.state.0, self.state.1, self.donor.0, self.donor.1, self.view
        ))
    }

    /// Connect and ask; return the image's length in bytes.
    pub fn open(&self, interrupt: Interrupt<'_>) -> Result<usize> {
        let dialer = self.endpoint.dialer(
            Purpose::Heal,
            self.view,
            self.digest,
            &self.donor,
            self.silence,
        );
        let stream = dialer
            .run(&self.wake, interrupt)?
            .map_err(|failure| self.failed(failure))?;
        let mut outbound = Outbound::default();
        outbound.push(&Header::frame(
            Kind::HealRequest,
            self.view,
            self.state.0,
            &name(self.state),
        ));
        outbound.flush(&stream).map_err(|lost| self.failed(lost))?;
        // The donor may still be making the image, which takes as long as it takes; one that is gone is found by others.
        let (header, payload) = self.small(&stream, None, interrupt)?;
        match header.kind {
            Kind::StateBegin if payload.len() == 8 && u64_at(&payload, 0) <= LONGEST => {
                *lock(&self.stream) = Some(stream);
                Ok(u64_at(&payload, 0) as usize)
            }
            Kind::StateRefused => Err(self.failed(String::from_utf8_lossy(&payload))),
            _ => Err(self.failed("malformed answer")),
        }
    }

    /// Receive the image into `image`, which has the length that `open` returned.
    pub fn fill(&self, image: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let stream = lock(&self.stream)
            .take()
            .ok_or_else(|| Error::BadArgument("the transfer is not open".into()))?;
        let mut crc = 0;
        for part in image.chunks_mut(SEGMENT) {
            let mut head = [0; HEADER];
            self.exactly(&stream, [&mut head, part], interrupt)?;
            let header = Header::decode(&head).map_err(|malformed| self.failed(malformed))?;
            self.check(&header)?;
            if header.kind != Kind::StateData || header.length as usize != part.len() {
                return Err(self.failed("malformed segment"));
            }
            crc = crc32c::crc32c_append(crc, part);
        }
        let (header, payload) = self.small(&stream, Some(self.silence), interrupt)?;
        if header.kind != Kind::StateEnd || payload.len() != 4 {
            return Err(self.failed("malformed end"));
        }
        if u32_at(&payload, 0) != crc {
            return Err(self.failed("the checksum differs"));
        }
        *lock(&self.stream) = Some(stream);
        Ok(())
    }

    /// Tell the donor that the state is in place.
    pub fn acknowledge(&self) -> Result<()> {
        let stream = lock(&self.stream).take().ok_or_else(|| {
            Error::BadArgument("there is no complete transfer to acknowledge".into())
        })?;
        let mut outbound = Outbound::default();
        outbound.push(&Header::frame(Kind::StateAck, self.view, self.state.0, &[]));
        outbound.flush(&stream).map_err(|lost| self.failed(lost))?;
        Ok(())
    }

    /// Make a blocked call return, now and later.
    pub fn cancel(&self) {
        self.wake.raise();
    }

    fn check(&self, header: &Header) -> Result<()> {
        if header.view != self.view
            || (header.step != self.state.0 && header.kind != Kind::StateRefused)
        {
            return Err(self.failed("the donor sent another view or state"));
        }
        Ok(())
    }

    fn small(
        &self,
        stream: &Stream,
        patience: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<(Header, Vec<u8>)> {
        let mut inbound = Inbound::default();
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            match inbound.receive(stream) {
                Ok(Some((header, payload))) => {
                    self.check(&header)?;
                    return Ok((header, payload));
                }
                Ok(None) => self.wait(stream, deadline, interrupt)?,
                Err(lost) => return Err(self.failed(lost)),
            }
        }
    }

    fn exactly(
        &self,
        stream: &Stream,
        parts: [&mut [u8]; 2],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let [head, body] = parts;
        let total = head.len().saturating_add(body.len());
        let mut done = 0_usize;
        let mut deadline = Instant::now() + self.silence;
        while done < total {
            let in_body = done.saturating_sub(head.len());
            let mut parts = [
                IoSliceMut::new(head.get_mut(done..).unwrap_or_default()),
                IoSliceMut::new(body.get_mut(in_body..).unwrap_or_default()),
            ];
            match stream.receive(&mut parts) {
                Ok(0) => return Err(self.failed("the donor closed the connection")),
                Ok(count) => {
                    done = done.saturating_add(count);
                    deadline = Instant::now() + self.silence;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(stream, Some(deadline), interrupt)?
                }
                Err(error) => return Err(self.failed(error)),
            }
            if self.wake.is_raised() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    fn wait(
        &self,
        stream: &Stream,
        deadline: Option<Instant>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = wait(
            &mut [readable(&self.wake), readable(stream)],
            left,
            interrupt,
        )?;
        if self.wake.is_raised() {
            return Err(Error::Cancelled);
        }
        if ready == 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(self.failed("the donor fell silent"));
        }
        Ok(())
    }
}
