//! Whom an operation over streams accuses of silence, and when.
use std::time::{Duration, Instant};

use crate::net::ring::link::Link;
use crate::net::shared::within::Watched;

/// A peer that is awaited: from `at` on it is overdue.
struct Suspect {
    at: Instant,
    /// It may be waiting for a third member itself.
    indirect: bool,
    /// Pieces that have come from it.
    received: usize,
    rank: usize,
}

/// One link that is awaited, for how long, and since when.
pub(super) struct Awaited {
    pub(super) rank: usize,
    pub(super) since: Instant,
    pub(super) patience: Duration,
    /// Pieces that have come over it.
    pub(super) received: usize,
}

/// All peers that may be accused.
pub(super) struct Suspects {
    silence: Duration,
    all: Vec<Suspect>,
}

impl Suspects {
    /// `silence`: the patience with who owes this member directly.
    pub(super) fn new(awaited: Vec<Awaited>, silence: Duration) -> Suspects {
        // While somebody owes directly, and however slowly pays, others may be waiting for it too: their time begins after its last payment.
        let paid = awaited
            .iter()
            .filter(|link| link.patience == silence)
            .map(|link| link.since)
            .max();
        let all = awaited
            .into_iter()
            .map(|link| {
                let indirect = link.patience != silence;
                let since = paid
                    .filter(|_| indirect)
                    .map_or(link.since, |paid| link.since.max(paid));
                Suspect {
                    at: since + link.patience,
                    indirect,
                    received: link.received,
                    rank: link.rank,
                }
            })
            .collect();
        Suspects { silence, all }
    }

    /// When the first of them is overdue.
    pub(super) fn first(&self) -> Option<Instant> {
        self.all.iter().map(|suspect| suspect.at).min()
    }

    /// Who is accused if nothing came until `now`; `None` if nobody is overdue.
    pub(super) fn accused(&self, now: Instant) -> Option<usize> {
        if self.all.iter().all(|suspect| suspect.at > now) {
            return None;
        }
        // When a member stops between two pieces, all that wait for it fall silent in the same moment: who is behind is accused.
        let soon = now + quarter(self.silence);
        self.all
            .iter()
            .filter(|suspect| suspect.at <= soon)
            .min_by_key(|suspect| (suspect.indirect, suspect.received, suspect.at))
            .map(|suspect| suspect.rank)
    }
}

/// Return how long a link may be silent now; `None`: for ever, because a contribution is awaited.
pub(super) fn patience(
    link: &Link,
    reduced: usize,
    all_begun: bool,
    silence: Duration,
) -> Option<Duration> {
    if !link.has_begun() {
        return None;
    }
    // Who waits for a third member falls silent too: the guilty one is accused first, by all.
    if link.has_place(reduced) && link.owes_directly() {
        Some(silence)
    } else if (link.has_place(reduced) || link.is_full()) && all_begun {
        Some(silence.saturating_add(grace(silence)))
    } else {
        None
    }
}

/// Return how long a member of this host may make no progress in its memory; `None`: for ever, because a contribution is awaited.
pub(super) fn patience_within(
    watched: &Watched,
    link: &Link,
    all_begun: bool,
    silence: Duration,
) -> Option<Duration> {
    match watched {
        Watched::Contributes { owes } => {
            let owes = if link.has_opened() {
                *owes
            } else {
                link.has_begun()
            };
            owes.then_some(silence)
        }
        Watched::Leads { owes: true } => all_begun.then_some(silence),
        // It waits for other hosts, whose members know better who is guilty, and say so.
        Watched::Leads { owes: false } => {
            let twice = grace(silence).saturating_add(grace(silence));
            all_begun.then_some(silence.saturating_add(twice))
        }
    }
}

/// How much later a member is accused that may be waiting for another one.
fn grace(silence: Duration) -> Duration {
    quarter(silence).max(Duration::from_millis(100))
}

fn quarter(of: Duration) -> Duration {
    of.checked_div(4).unwrap_or_default()
}
