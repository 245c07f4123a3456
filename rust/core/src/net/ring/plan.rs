//! Who sums what, and in which order frames follow each other on a connection. Pure; equal in all members by construction.
//!
//! All members are connected with each other. Small messages: everybody sends its whole contribution to everybody, and each sums all of
//! them in rank order. Large ones are cut in blocks and each block in one part per member; a part's owner gets the others' contributions
//! to it (scatter), sums them in rank order, and sends the sum to all (gather). Each member sends and receives 2 (n-1)/n of the message,
//! as in a ring, but in two dependent hops instead of 2 (n-1), and one member alone decides the bits of each part.
//!
//! Where hosts have several members, large messages are cut in one part per host instead, and the first member of each host does the same with the
//! others' first members, for the sum of its host's members: they meet in memory. Each host sends and receives 2 (h-1)/h of the message
//! for h hosts. How each member begins still goes over all connections.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "all numbers are of this member's own operation"
)]
use std::ops::Range;

use crate::net::frame::Kind;
use crate::net::ring::hosts::Hosts;

/// Most bytes that a member sends to exchange a message whole.
const WHOLE: usize = 64 * 1024;
/// Bytes of one part.
pub const PART: usize = 128 * 1024;
/// Blocks whose scatter frames go out before the first block's sum is needed.
const AHEAD: usize = 3;
/// Blocks for which received contributions can lie in memory at a time.
pub const SLOTS: usize = AHEAD + 2;

/// Where the bytes of a message go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Over the connections of all members.
    Direct,
    /// Through memory that all members share, and not over connections.
    Memory,
    /// Through the memory of each host, and over the connections of the hosts' first members.
    Hosts,
    /// How members begin goes over this connection, and nothing else.
    Opening,
}

/// The cut of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Who exchanges parts: the members, or the hosts (`Way::Hosts`).
    pub parties: usize,
    /// This member, or its host.
    pub me: usize,
    pub elements: usize,
    /// Elements of a full part; a full block has `parties` of them.
    pub part: usize,
    /// Number of blocks; 0: the message is exchanged whole.
    pub blocks: usize,
    pub way: Way,
}

/// One frame on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    Opening,
    Whole,
    Scatter(usize),
    Gather(usize),
}

impl Piece {
    pub fn kind(self) -> Kind {
        match self {
            Piece::Opening => Kind::Opening,
            Piece::Whole => Kind::Whole,
            Piece::Scatter(_) => Kind::Scatter,
            Piece::Gather(_) => Kind::Gather,
        }
    }
}

impl Plan {
    /// Plan a message of `elements` of `item` bytes for a member; `fits`: its beginning can go through memory.
    pub fn new(hosts: &Hosts, rank: usize, elements: usize, item: usize, fits: bool) -> Plan {
        let members = hosts.members();
        let part = PART / item;
        let whole = elements * item * (members - 1) <= WHOLE;
        let (way, parties, me) = if whole || !hosts.are_shared() {
            (Way::Direct, members, rank)
        } else if hosts.count() > 1 {
            (Way::Hosts, hosts.count(), hosts.of(rank))
        } else if fits {
            (Way::Memory, members, rank)
        } else {
            (Way::Direct, members, rank)
        };
        let blocks = if whole {
            0
        } else {
            elements.div_ceil(part * parties)
        };
        Plan {
            parties,
            me,
            elements,
            part,
            blocks,
            way,
        }
    }

    /// Return the elements of a party's part of a block.
    pub fn range(&self, block: usize, party: usize) -> Range<usize> {
        let start = block * self.part * self.parties;
        let length = (self.elements - start).min(self.part * self.parties);
        let cut = |party: usize| start + length * party / self.parties;
        cut(party)..cut(party + 1)
    }

    /// Return the elements that a piece holds, if it was sent by `from` to `to`.
    pub fn piece(&self, piece: Piece, from: usize, to: usize) -> Range<usize> {
        match piece {
            Piece::Opening => 0..0,
            Piece::Whole => 0..self.elements,
            Piece::Scatter(block) => self.range(block, to),
            Piece::Gather(block) => self.range(block, from),
        }
    }
}

/// The order of the pieces on a connection, the same in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    scattered: usize,
    gathered: usize,
    done: bool,
}

impl Cursor {
    /// Return the piece that is next or under way.
    pub fn piece(&self, plan: &Plan) -> Option<Piece> {
        match plan.way {
            Way::Memory => None,
            Way::Opening | Way::Hosts if !self.done => Some(Piece::Opening),
            Way::Opening => None,
            Way::Direct | Way::Hosts => self.part(plan),
        }
    }

    fn part(&self, plan: &Plan) -> Option<Piece> {
        if plan.blocks == 0 {
            (!self.done).then_some(Piece::Whole)
        } else if self.scattered < plan.blocks && self.scattered < self.gathered + AHEAD {
            Some(Piece::Scatter(self.scattered))
        } else if self.gathered < plan.blocks {
            Some(Piece::Gather(self.gathered))
        } else {
            None
        }
    }

    /// Go on to the next piece.
    pub fn advance(&mut self, plan: &Plan) {
        match self.piece(plan) {
            Some(Piece::Opening | Piece::Whole) | None => self.done = true,
            Some(Piece::Scatter(_)) => self.scattered += 1,
            Some(Piece::Gather(_)) => self.gathered += 1,
        }
    }

    /// Return how many blocks' scatter pieces are through.
    pub fn scattered(&self) -> usize {
        self.scattered
    }

    /// Return how many blocks' sums are through.
    pub fn gathered(&self) -> usize {
        self.gathered
    }

    /// Return how many pieces are through: who is behind has fewer.
    pub fn through(&self) -> usize {
        self.scattered + self.gathered
    }

    /// Whether nothing has come or gone yet.
    pub fn is_first(&self) -> bool {
        *self == Cursor::default()
    }
}
