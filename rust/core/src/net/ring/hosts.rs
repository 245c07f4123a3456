//! Which members of a view are on one host. A pure function of the view, so that all its members decide the same.
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
use crate::net::place::Place;

/// The hosts of a ring's members, in the order of their first members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// By rank: the number of the host.
    of: Vec<usize>,
    /// By host: the rank of its first member, which speaks for it to other hosts.
    first: Vec<usize>,
}

impl Hosts {
    /// Find the hosts of members that are reached there, by rank.
    pub fn new<'a>(places: impl IntoIterator<Item = &'a Place>) -> Hosts {
        let places: Vec<&Place> = places.into_iter().collect();
        let mut hosts = Hosts {
            of: Vec::with_capacity(places.len()),
            first: Vec::new(),
        };
        for (rank, place) in places.iter().enumerate() {
            let known = hosts.first.iter().position(|first| {
                let first = places.get(*first);
                first.is_some_and(|first| first.is_beside(place))
            });
            hosts.of.push(known.unwrap_or(hosts.first.len()));
            if known.is_none() {
                hosts.first.push(rank);
            }
        }
        hosts
    }

    /// As many members, each on a host of its own.
    pub fn apart(members: usize) -> Hosts {
        Hosts {
            of: (0..members).collect(),
            first: (0..members).collect(),
        }
    }

    /// Return how many members there are.
    pub fn members(&self) -> usize {
        self.of.len()
    }

    /// Return how many hosts there are.
    pub fn count(&self) -> usize {
        self.first.len()
    }

    /// Whether a host has several members.
    pub fn are_shared(&self) -> bool {
        self.count() < self.members()
    }

    /// Whether two members are on one host.
    pub fn are_together(&self, one: usize, other: usize) -> bool {
        self.of.get(one) == self.of.get(other)
    }

    /// Return the number of a member's host.
    pub fn of(&self, rank: usize) -> usize {
        self.of.get(rank).copied().unwrap_or_default()
    }

    /// Whether a member is the first of its host.
    pub fn is_first(&self, rank: usize) -> bool {
        self.first.get(self.of(rank)) == Some(&rank)
    }

    /// Whether a member is the only one of its host.
    pub fn is_alone(&self, rank: usize) -> bool {
        self.of
            .iter()
            .filter(|host| **host == self.of(rank))
            .count()
            == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_by_their_first_members() {
        let places: Vec<Place> = ["a/1", "b/1", "a/2", "c/1", "b/2"]
            .iter()
            .map(|path| format!("tcp:h:1+unix:/{path}").parse().unwrap())
            .collect();
        let hosts = Hosts::new(&places);
        assert_eq!((hosts.members(), hosts.count()), (5, 3));
        let of: Vec<usize> = (0..5).map(|rank| hosts.of(rank)).collect();
        assert_eq!(of, [0, 1, 0, 2, 1]);
        let first: Vec<usize> = (0..5).filter(|rank| hosts.is_first(*rank)).collect();
        assert_eq!(first, [0, 1, 3]);
        assert!(hosts.is_alone(3) && !hosts.is_alone(4));
        assert!(hosts.are_together(0, 2) && !hosts.are_together(0, 1));
    }

    #[test]
    fn who_has_one_address_is_alone_unless_nobody_has_tcp() {
        let of = |texts: &[&str]| {
            let places: Vec<Place> = texts.iter().map(|text| text.parse().unwrap()).collect();
            Hosts::new(&places).count()
        };
        assert_eq!(of(&["tcp:h:1", "tcp:h:2", "tcp:h:3"]), 3);
        assert_eq!(of(&["unix:/a/1", "unix:/b/2", "unix:/c/3"]), 1);
        assert_eq!(
            of(&["tcp:h:1", "tcp:h:2+unix:/a/1", "tcp:h:3+unix:/a/2"]),
            2
        );
        assert_eq!(Hosts::apart(3).count(), 3);
    }
}
