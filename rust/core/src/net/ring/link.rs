//! One connection of a ring during one operation: what has gone out, what has come in. Waiting is the ring's affair.
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
use std::time::{Duration, Instant};

use crate::net::address::Stream;
use crate::net::error::How;
use crate::net::frame::{HEADER, Header, Kind, Malformed, PREFIX, u32_at, u64_at};
use crate::net::ring::plan::{Cursor, Piece, Plan, SLOTS, Way};
use crate::net::ring::sum::Element;
use crate::net::shared::area::Area;

mod words;

use words::accused;
pub use words::{give_up, leave};

/// What makes a link unusable.
#[derive(Debug)]
pub enum Fault {
    /// The link itself: the peer is accused.
    Link(How, String),
    /// The peer has left and says whom it accuses, if anybody.
    Left(Option<(usize, How)>),
}

impl Fault {
    fn malformed(what: impl ToString) -> Fault {
        Fault::Link(How::Malformed, what.to_string())
    }

    fn io(error: &io::Error) -> Fault {
        Fault::Link(How::Eof, format!("the connection failed: {error}"))
    }
}

/// What goes over a link in an operation.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    pub plan: Plan,
    /// The party at the other end.
    pub peer: usize,
    /// What comes depends on nobody but the peer, but for sums.
    pub alone: bool,
}

/// What all links of an operation share.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub view: u64,
    pub step: u64,
}

/// Up to which blocks this member can send.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// Blocks of its contribution that are there.
    pub taken: usize,
    /// Blocks whose part it has summed.
    pub reduced: usize,
}

/// One direction's place in the sequence of pieces.
#[derive(Debug, Default)]
struct Place {
    cursor: Cursor,
    head: [u8; HEADER],
    /// Bytes of the current frame that are through.
    done: usize,
    /// The head has been made (outgoing) or verified (incoming).
    ready: bool,
}

/// A connection to one peer and its progress.
#[derive(Debug)]
pub struct Link {
    pub stream: Stream,
    /// The peer's shared memory, once it has come.
    pub area: Option<Area>,
    course: Course,
    tx: Place,
    rx: Place,
    /// Element kind, element count, trailer length and trailer, before the first piece.
    prefix: Vec<u8>,
    /// Contributions that have come and are not summed yet: `SLOTS` parts, or the whole; words, so that they lie aligned.
    staged: Vec<u64>,
    /// Bytes moved in this operation, for the detection of silence.
    pub moved: u64,
    pub seen: Seen,
    tx_full: bool,
    /// The peer has closed its end after it had completed its operation.
    pub gone: bool,
}

/// What the ring saw of a link when it last went to sleep.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub moved: u64,
    /// How long the peer may be silent; `None`: for ever.
    pub patience: Option<Duration>,
    /// Since when both have been so.
    pub since: Instant,
}

/// How the last call to receive ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Nothing more is there now.
    Drained,
    /// A piece is complete.
    Piece(Piece),
    /// There is no place for the next piece before an own sum is done.
    NoPlace,
    /// All pieces have come.
    Finished,
}

impl Link {
    /// Take a connection for an operation that begins with so many bytes.
    pub fn new<T: Element>(stream: Stream, course: Course, prefix: usize) -> Link {
        let mut link = Link {
            stream,
            area: None,
            course,
            tx: Place::default(),
            rx: Place::default(),
            prefix: Vec::new(),
            staged: Vec::new(),
            moved: 0,
            seen: Seen {
                moved: 0,
                patience: None,
                since: Instant::now(),
            },
            tx_full: false,
            gone: false,
        };
        link.begin::<T>(course, prefix);
        link
    }

    /// Begin an operation.
    pub fn begin<T: Element>(&mut self, course: Course, prefix: usize) {
        self.course = course;
        self.tx = Place::default();
        self.rx = Place::default();
        self.prefix.resize(prefix, 0);
        let plan = &self.course.plan;
        let elements = match plan.blocks {
            _ if matches!(plan.way, Way::Memory | Way::Opening) => 0,
            0 => plan.elements,
            blocks => plan.part.saturating_mul(SLOTS.min(blocks)),
        };
        let staged = bytes_of::<T>(elements).div_ceil(8);
        if self.staged.len() < staged {
            self.staged.resize(staged, 0);
        }
        self.moved = 0;
        self.seen = Seen {
            moved: 0,
            patience: None,
            since: Instant::now(),
        };
        self.tx_full = false;
        self.gone = false;
    }

    /// Whether blocks go over it.
    pub fn carries(&self) -> bool {
        matches!(self.course.plan.way, Way::Direct | Way::Hosts)
    }

    /// Return what the peer contributed to a block's part, or to the whole.
    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, for which `begin` made room"
    )]
    pub fn staged<T: Element>(&self, block: usize) -> &[u8] {
        let plan = &self.course.plan;
        let (start, length) = if plan.blocks == 0 {
            (0, plan.elements)
        } else {
            (place_of(plan, block), plan.range(block, plan.me).len())
        };
        &bytemuck::cast_slice(&self.staged)[bytes_of::<T>(start)..][..bytes_of::<T>(length)]
    }

    /// Take the peer's prefix as it came another way.
    pub fn set_prefix(&mut self, prefix: &[u8]) {
        self.prefix.copy_from_slice(prefix);
    }

    /// Return the peer's trailer.
    pub fn trailer(&self) -> impl Iterator<Item = f64> + '_ {
        let numbers = self.prefix.get(PREFIX..).unwrap_or_default();
        let (numbers, _) = numbers.as_chunks();
        numbers.iter().map(|bytes| f64::from_le_bytes(*bytes))
    }

    /// Whether the peer has begun its part of the operation.
    pub fn has_begun(&self) -> bool {
        !self.rx.cursor.is_first() || self.rx.done > 0
    }

    /// Whether the peer has said how it begins, and it is as this member does.
    pub fn has_opened(&self) -> bool {
        !self.rx.cursor.is_first()
    }

    pub fn is_received(&self) -> bool {
        self.rx.cursor.piece(&self.course.plan).is_none()
    }

    pub fn is_sent(&self) -> bool {
        self.tx.cursor.piece(&self.course.plan).is_none()
    }

    /// Whether the peer's contribution to a block has come.
    pub fn has_scattered(&self, block: usize) -> bool {
        self.rx.cursor.scattered() > block
    }

    /// Return how many blocks' sums have come.
    pub fn gathered(&self) -> usize {
        self.rx.cursor.gathered()
    }

    /// Whether the peer's next piece is being received or depends on nobody else.
    pub fn owes_directly(&self) -> bool {
        self.rx.done > 0
            || match self.rx.cursor.piece(&self.course.plan) {
                Some(Piece::Opening | Piece::Whole) => true,
                Some(Piece::Scatter(_)) => self.course.alone,
                _ => false,
            }
    }

    /// Return how many pieces have come in this operation.
    pub fn received(&self) -> usize {
        self.rx.cursor.through()
    }

    /// Whether the kernel had no room for the rest of what is ready to go out.
    pub fn is_full(&self) -> bool {
        self.tx_full
    }

    /// Whether there is a place for what comes next.
    pub fn has_place(&self, reduced: usize) -> bool {
        match self.rx.cursor.piece(&self.course.plan) {
            Some(Piece::Scatter(block)) => block < reduced.saturating_add(SLOTS),
            Some(_) => true,
            None => false,
        }
    }

    /// Send what is ready and fits.
    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, which is of this many elements"
    )]
    pub fn send<T: Element>(
        &mut self,
        operation: &Operation,
        prefix: &[u8],
        contribution: &[T],
        result: &[T],
        ready: Ready,
    ) -> Result<(), Fault> {
        let Course { plan, peer, .. } = &self.course;
        self.tx_full = false;
        while let Some(piece) = self.tx.cursor.piece(plan) {
            let is_ready = match piece {
                Piece::Scatter(block) => block < ready.taken,
                Piece::Gather(block) => block < ready.reduced,
                Piece::Opening | Piece::Whole => true,
            };
            if !is_ready {
                break;
            }
            let range = plan.piece(piece, plan.me, *peer);
            let body: &[u8] = match piece {
                Piece::Gather(_) => bytemuck::cast_slice(&result[range]),
                // A host's sum stands where the total will: what comes for this place comes after what goes out of it.
                Piece::Scatter(_) if plan.way == Way::Hosts => bytemuck::cast_slice(&result[range]),
                _ => bytemuck::cast_slice(&contribution[range]),
            };
            let prefix = if self.tx.cursor.is_first() {
                prefix
            } else {
                &[]
            };
            if !self.tx.ready {
                let length = prefix.len().saturating_add(body.len()) as u32;
                self.tx.head = Header {
                    kind: piece.kind(),
                    length,
                    view: operation.view,
                    step: operation.step,
                }
                .encode();
                self.tx.ready = true;
            }
            let parts = [&self.tx.head, prefix, body];
            let total: usize = parts.iter().map(|part| part.len()).sum();
            let mut skip = self.tx.done;
            let parts = parts.map(|part| {
                let (sent, left) = part.split_at(skip.min(part.len()));
                skip = skip.saturating_sub(sent.len());
                IoSlice::new(left)
            });
            match self.stream.send(&parts) {
                Ok(sent) => {
                    self.tx.done = self.tx.done.saturating_add(sent);
                    self.moved = self.moved.saturating_add(sent as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tx_full = true;
                    break;
                }
                Err(error) => return Err(Fault::io(&error)),
            }
            if self.tx.done == total {
                self.tx.cursor.advance(plan);
                self.tx.done = 0;
                self.tx.ready = false;
            }
        }
        Ok(())
    }

    /// Receive until a piece is complete or nothing more is there.
    #[allow(
        clippy::indexing_slicing,
        reason = "ranges are of this member's own plan, for which `begin` made room"
    )]
    pub fn receive<T: Element>(
        &mut self,
        operation: &Operation,
        own_prefix: &[u8],
        result: &mut [T],
        reduced: usize,
    ) -> Result<Received, Fault> {
        let Course { plan, peer, .. } = &self.course;
        loop {
            let Some(piece) = self.rx.cursor.piece(plan) else {
                return Ok(Received::Finished);
            };
            if !self.has_place(reduced) {
                return Ok(Received::NoPlace);
            }
            let range = plan.piece(piece, *peer, plan.me);
            let bytes = bytes_of::<T>(range.len());
            let first = self.rx.cursor.is_first();
            let body: &mut [u8] = match piece {
                Piece::Opening => &mut [],
                Piece::Whole => &mut bytemuck::cast_slice_mut(&mut self.staged)[..bytes],
                Piece::Scatter(block) => {
                    let start = bytes_of::<T>(place_of(plan, block));
                    &mut bytemuck::cast_slice_mut(&mut self.staged)[start..][..bytes]
                }
                Piece::Gather(_) => bytemuck::cast_slice_mut(&mut result[range]),
            };
            let prefix: &mut [u8] = if first { &mut self.prefix } else { &mut [] };
            let payload = prefix.len().saturating_add(bytes);
            let total = HEADER.saturating_add(payload);
            let mut next = self.rx.cursor;
            next.advance(plan);
            let mut next_head = [0; HEADER];
            // The next frame's head comes along in the same call; nothing of a next operation is ever read.
            let ahead: &mut [u8] = if next.piece(plan).is_some() {
                &mut next_head
            } else {
                &mut []
            };
            // An empty piece is complete with its head, which may have come along before.
            if self.rx.done < total {
                let mut skip = self.rx.done;
                let mut parts = [&mut self.rx.head[..], prefix, body, ahead].map(|part| {
                    let (got, left) = part.split_at_mut(skip.min(part.len()));
                    skip = skip.saturating_sub(got.len());
                    IoSliceMut::new(left)
                });
                match self.stream.receive(&mut parts) {
                    Ok(0) => return Err(Fault::Link(How::Eof, "the connection ended".into())),
                    Ok(got) => {
                        self.rx.done = self.rx.done.saturating_add(got);
                        self.moved = self.moved.saturating_add(got as u64);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Received::Drained);
                    }
                    Err(error) => return Err(Fault::io(&error)),
                }
            }
            if self.rx.done >= HEADER && !self.rx.ready {
                check(&self.rx.head, operation, piece.kind(), payload)?;
                self.rx.ready = true;
            }
            if self.rx.done >= total {
                if first && self.prefix.get(..PREFIX) != own_prefix.get(..PREFIX) {
                    return Err(Fault::malformed(differs(&self.prefix, own_prefix)));
                }
                self.rx.done = self.rx.done.saturating_sub(total);
                self.rx.head = next_head;
                self.rx.ready = false;
                self.rx.cursor = next;
                if self.rx.done == HEADER
                    && let Some(following) = next.piece(plan)
                {
                    let length = bytes_of::<T>(plan.piece(following, *peer, plan.me).len());
                    check(&self.rx.head, operation, following.kind(), length)?;
                    self.rx.ready = true;
                }
                return Ok(Received::Piece(piece));
            }
        }
    }

    /// Send one's own shared memory.
    pub fn share(&self, view: u64, area: &Area) -> io::Result<()> {
        let head = Header {
            kind: Kind::Share,
            length: 0,
            view,
            step: 0,
        }
        .encode();
        self.stream.send_descriptors(&head, &area.descriptors())
    }

    /// Receive the peer's shared memory; false if it has not come yet.
    pub fn accept_area(&mut self, view: u64, members: usize) -> Result<bool, Fault> {
        let mut head = [0; HEADER];
        // The frame and its descriptors are one message on a Unix socket: it comes whole.
        let (got, descriptors) = match self.stream.receive_descriptors(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            outcome => outcome.map_err(|error| Fault::io(&error))?,
        };
        if got == 0 {
            return Err(Fault::Link(How::Eof, "the connection ended".into()));
        }
        let header = Header::decode(&head).map_err(Fault::malformed)?;
        match header.kind {
            Kind::Abort if header.view == view => return Err(Fault::Left(accused(header.step))),
            Kind::Leave if header.view == view => return Err(Fault::Left(None)),
            _ => {}
        }
        let [file, bell] = <[_; 2]>::try_from(descriptors)
            .map_err(|_| Fault::malformed("no shared memory came"))?;
        if header.kind != Kind::Share || header.view != view {
            return Err(Fault::malformed("expected shared memory"));
        }
        self.area = Some(Area::open(file, bell, members).map_err(Fault::malformed)?);
        Ok(true)
    }

    /// Whether the last frame sent is whole, so that another one may follow.
    pub fn is_at_boundary(&self) -> bool {
        self.tx.done == 0 && !self.stream.owes()
    }
}

fn bytes_of<T>(elements: usize) -> usize {
    elements.saturating_mul(size_of::<T>())
}

/// Return the element at which what was received for a block is staged.
fn place_of(plan: &Plan, block: usize) -> usize {
    (block % SLOTS).saturating_mul(plan.part)
}

fn check(
    head: &[u8; HEADER],
    operation: &Operation,
    kind: Kind,
    length: usize,
) -> Result<(), Fault> {
    let header = Header::decode(head).map_err(Fault::malformed)?;
    if header.view != operation.view {
        return Err(Fault::Link(
            How::Stale,
            format!(
                "a frame of view {} came in view {}",
                header.view, operation.view
            ),
        ));
    }
    match header.kind {
        Kind::Abort => return Err(Fault::Left(accused(header.step))),
        Kind::Leave => return Err(Fault::Left(None)),
        _ => {}
    }
    if header.step != operation.step {
        return Err(Fault::Link(
            How::Stale,
            format!(
                "a frame of step {} came in step {}",
                header.step, operation.step
            ),
        ));
    }
    if header.kind != kind || header.length as usize != length {
        return Err(Fault::malformed(format!(
            "expected {kind:?} of {length} bytes, received {:?} of {}: members disagree on the size of the tensor or of the trailer",
            header.kind, header.length
        )));
    }
    Ok(())
}

pub fn differs(theirs: &[u8], own: &[u8]) -> String {
    if theirs.len() < PREFIX || own.len() < PREFIX {
        return Malformed::Content.to_string();
    }
    format!(
        "members disagree on the tensor: kind {}, {} elements there, kind {}, {} elements here",
        u32_at(theirs, 0),
        u64_at(theirs, 8),
        u32_at(own, 0),
        u64_at(own, 8)
    )
}
