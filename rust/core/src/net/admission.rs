//! Who may wait in a handshake, and who goes when there is no room: a share for each source, and those who have sent nothing go first.
//!
//! A decision without I/O: what has happened comes in with its time, who has to go comes out with the reason. Connections are always
//! accepted and others are closed for them, because a queue of the kernel that is left to fill up shuts out everybody, from wherever they
//! come. A connection whose handshake is over is not known here, so that no crowd of strangers can cost it anything.
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
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// A stranger that has not passed by then is refused.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Most strangers at a time, where the limit of descriptors allows them.
const ROOM: usize = 1024;
/// The part of a process's descriptors that strangers may have.
const PART_OF_DESCRIPTORS: usize = 4;
/// Fewest strangers at a time.
const LEAST_ROOM: usize = 16;
/// The part of the room that one source may have.
const PART_OF_ROOM: usize = 4;
/// Until the next attempt after one that failed for lack of descriptors.
pub(crate) const EXHAUSTED: Duration = Duration::from_millis(50);
/// Bits of an IPv6 address that name the network, in which a host chooses the others freely (RFC 4291, section 2.5.4).
const NETWORK: u32 = 64;

/// What shares one part of the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Unix sockets: their files have mode 0600, so all that come are processes of one user.
    Host,
    /// An IPv4 address, or the first address of a network of 64 bits.
    Network(IpAddr),
}

impl From<SocketAddr> for Source {
    fn from(address: SocketAddr) -> Source {
        Source::Network(match address.ip().to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let network = u128::MAX << (u128::BITS - NETWORK);
                Ipv6Addr::from_bits(address.to_bits() & network).into()
            }
        })
    }
}

/// Number of a stranger, in the order of arrival.
pub type Ticket = u64;

/// Who has to go, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dismissal {
    pub ticket: Ticket,
    pub why: String,
}

#[derive(Debug)]
struct Waiting {
    source: Source,
    since: Instant,
    /// It has sent something.
    spoke: bool,
}

/// The strangers in the middle of their handshakes.
#[derive(Debug)]
pub struct Admission {
    room: usize,
    share: usize,
    next: Ticket,
    waiting: BTreeMap<Ticket, Waiting>,
    /// How many wait of each source; none is 0.
    counts: HashMap<Source, usize>,
    /// Until then nobody is let in, because this process has no descriptors left.
    pause: Option<Instant>,
}

impl Admission {
    /// `descriptors`: how many this process may have, if there is a limit.
    pub fn new(descriptors: Option<u64>) -> Admission {
        let part = descriptors.map_or(ROOM, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX) / PART_OF_DESCRIPTORS
        });
        let room = part.clamp(LEAST_ROOM, ROOM);
        Admission {
            room,
            share: room / PART_OF_ROOM,
            next: 0,
            waiting: BTreeMap::new(),
            counts: HashMap::new(),
            pause: None,
        }
    }

    /// Whether connections may be accepted now.
    pub fn accepts(&self, now: Instant) -> bool {
        self.pause.is_none_or(|until| until <= now)
    }

    /// Let a stranger in; returns its number, and who has to go for it.
    pub fn arrive(&mut self, now: Instant, source: Source) -> (Ticket, Option<Dismissal>) {
        let of_source = self.counts.get(&source).copied().unwrap_or(0);
        let dismissal = if of_source >= self.share {
            let why = format!(
                "{of_source} connections from there were in their handshakes, and more came"
            );
            self.first_to_go(source).map(|ticket| (ticket, why))
        } else if self.waiting.len() >= self.room {
            let why = format!(
                "{} connections were in their handshakes, and more came",
                self.waiting.len()
            );
            self.most_frequent()
                .and_then(|most| self.first_to_go(most))
                .map(|ticket| (ticket, why))
        } else {
            None
        };
        let dismissal = dismissal.map(|(ticket, why)| {
            self.leave(ticket);
            Dismissal { ticket, why }
        });
        let ticket = self.next;
        self.next = self.next.wrapping_add(1);
        let count = self.counts.entry(source).or_default();
        *count = count.saturating_add(1);
        self.waiting.insert(
            ticket,
            Waiting {
                source,
                since: now,
                spoke: false,
            },
        );
        (ticket, dismissal)
    }

    /// A stranger has sent something.
    pub fn speak(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.spoke = true;
        }
    }

    /// A stranger has passed, or is refused.
    pub fn leave(&mut self, ticket: Ticket) {
        let Some(waiting) = self.waiting.remove(&ticket) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&waiting.source) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&waiting.source);
            }
        }
    }

    /// Take out all whose time is over.
    pub fn expire(&mut self, now: Instant) -> Vec<Dismissal> {
        let over: Vec<Ticket> = self
            .waiting
            .iter()
            .take_while(|(_, waiting)| now >= waiting.since + PATIENCE)
            .map(|(ticket, _)| *ticket)
            .collect();
        over.into_iter()
            .map(|ticket| {
                self.leave(ticket);
                let why = format!("it did not say who it is within {} s", PATIENCE.as_secs());
                Dismissal { ticket, why }
            })
            .collect()
    }

    /// A connection could not be accepted for lack of descriptors: return who has to go for it. If nobody has to, no connection is accepted
    /// for a while; those that come stay in the kernel's queue.
    pub fn lack_descriptors(&mut self, now: Instant) -> Option<Dismissal> {
        let silent = self.waiting.iter().find(|(_, waiting)| !waiting.spoke);
        let Some(ticket) = silent.map(|(ticket, _)| *ticket) else {
            self.pause = Some(now + EXHAUSTED);
            return None;
        };
        self.leave(ticket);
        let why = "this process has no descriptors left, and it had sent nothing".into();
        Some(Dismissal { ticket, why })
    }

    /// Return when something is due without an event.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let oldest = self.waiting.values().next();
        oldest
            .map(|waiting| waiting.since + PATIENCE)
            .into_iter()
            .chain(self.pause.filter(|until| *until > now))
            .min()
    }

    /// The source that most strangers come from; of several, the one whose stranger came first.
    fn most_frequent(&self) -> Option<Source> {
        let most = self.counts.values().max()?;
        self.waiting
            .values()
            .map(|waiting| waiting.source)
            .find(|source| self.counts.get(source) == Some(most))
    }

    /// Of a source, who has sent nothing and came first; if all have sent something, who came first.
    fn first_to_go(&self, source: Source) -> Option<Ticket> {
        let of_source = || {
            self.waiting
                .iter()
                .filter(move |(_, waiting)| waiting.source == source)
        };
        of_source()
            .find(|(_, waiting)| !waiting.spoke)
            .or_else(|| of_source().next())
            .map(|(ticket, _)| *ticket)
    }
}
