//! The last words on a ring's connection: what a member says that leaves or gives an operation up, and what is heard of one that has gone.
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
use std::io::{self, IoSliceMut};

use super::{Fault, Link};
use crate::net::error::How;
use crate::net::frame::{HEADER, Header, Kind};

const DROPPED_AT_ONCE: usize = 64 * 1024;
/// More bytes than a socket holds unread: nobody keeps this member busy with more.
const MOST_DROPPED: usize = 256 << 20;

impl Link {
    /// Return what a peer has done that speaks on its connection, or closes it, where shared memory was its turn.
    pub fn farewell(&self, view: u64) -> Fault {
        let mut head = [0; HEADER];
        match self.stream.receive(&mut [IoSliceMut::new(&mut head)]) {
            Ok(HEADER) => match Header::decode(&head) {
                Ok(header) if header.kind == Kind::Abort && header.view == view => {
                    Fault::Left(accused(header.step))
                }
                Ok(header) if header.kind == Kind::Leave && header.view == view => {
                    Fault::Left(None)
                }
                Ok(header) => Fault::malformed(format!(
                    "{:?} came out of turn: members disagree on the size of the tensor or of the trailer",
                    header.kind
                )),
                Err(malformed) => Fault::malformed(malformed),
            },
            Ok(_) => Fault::Link(How::Eof, "the connection ended".into()),
            Err(error) => Fault::io(&error),
        }
    }

    /// Return what the peer said before it closed its end, behind the pieces that have not been read; `None` if it said nothing.
    ///
    /// What it sent before is dropped: for an operation that can't go on.
    pub fn last_word(&mut self, view: u64) -> Option<Fault> {
        let mut waste = vec![0; DROPPED_AT_ONCE];
        let mut budget = MOST_DROPPED;
        loop {
            while let Some(rest) = self.rx.head.get_mut(self.rx.done..)
                && !rest.is_empty()
            {
                let got = self.stream.receive(&mut [IoSliceMut::new(rest)]).ok()?;
                self.rx.done = self.rx.done.saturating_add(got);
                if got == 0 {
                    return None;
                }
            }
            let header = Header::decode(&self.rx.head).ok()?;
            match header.kind {
                _ if header.view != view => return None,
                Kind::Abort => return Some(Fault::Left(accused(header.step))),
                Kind::Leave => return Some(Fault::Left(None)),
                _ => {}
            }
            let total = HEADER.saturating_add(header.length as usize);
            let mut left = total.saturating_sub(self.rx.done);
            budget = budget.checked_sub(left)?;
            while let Some(part) = waste.get_mut(..left.min(DROPPED_AT_ONCE))
                && !part.is_empty()
            {
                match self.stream.receive(&mut [IoSliceMut::new(part)]).ok()? {
                    0 => return None,
                    got => left = left.saturating_sub(got),
                }
            }
            self.rx.done = 0;
        }
    }

    /// Learn why the peer has closed its end after all its pieces came: it may have completed the operation before, or given it up.
    pub fn look(&mut self, view: u64) -> Result<(), Fault> {
        let mut head = [0; HEADER];
        match self.stream.peek(&mut head) {
            Ok(0) => Err(Fault::Link(How::Eof, "the connection ended".into())),
            Ok(_) => match Header::decode(&head) {
                Ok(header) if header.kind == Kind::Abort && header.view == view => {
                    Err(Fault::Left(accused(header.step)))
                }
                // It left in good order, or began its next operation, which it does after completing this one.
                _ => {
                    self.gone = true;
                    Ok(())
                }
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(Fault::io(&error)),
        }
    }
}

/// Return the frame that says that this member leaves in good order.
pub fn leave(view: u64) -> [u8; HEADER] {
    Header {
        kind: Kind::Leave,
        length: 0,
        view,
        step: 0,
    }
    .encode()
}

/// Return the frame that says that this member gives the operation up; it has no payload, the step field says who is accused and how.
pub fn give_up(view: u64, accused: Option<(usize, How)>) -> [u8; HEADER] {
    let step = accused.map_or(0, |(rank, how)| {
        (rank as u64).saturating_add(1) << 8 | u64::from(how.code())
    });
    Header {
        kind: Kind::Abort,
        length: 0,
        view,
        step,
    }
    .encode()
}

pub(super) fn accused(step: u64) -> Option<(usize, How)> {
    let rank = (step >> 8).checked_sub(1)?;
    Some((usize::try_from(rank).ok()?, How::from_code(step as u8)?))
}
