//! Where a member is reached: at one address, or by TCP from other hosts and through a Unix socket from its own.
//!
//! The folder of the Unix socket stands for the host: members whose sockets are in one folder reach each other there. So folders of different hosts
//! have different names, and nothing but the text of a view decides who is beside whom: all members of it decide the same.
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::net::address::{Address, Listener};
use crate::net::error::{Error, Result};

/// What stands between the two addresses of a member that has two.
const AND: &str = "+unix:";

/// Where a member is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    address: Address,
    /// Where those of its own host reach it, if `address` is another one.
    inside: Option<Address>,
}

/// What names a host.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Host<'a> {
    /// This one: nobody else reaches a member that has only a Unix socket.
    Here,
    Folder(&'a Path),
}

impl Place {
    /// Listen there: from the first of these come those of the same host, if there are two.
    pub fn listen(&self) -> Result<Vec<Listener>> {
        let addresses = self.inside.iter().chain([&self.address]);
        addresses.map(Listener::bind).collect()
    }

    /// Return the place where such listeners listen in fact.
    pub fn of(listeners: &[Listener]) -> Option<Place> {
        let (last, others) = listeners.split_last()?;
        Some(Place {
            address: last.address().clone(),
            inside: others.first().map(|inside| inside.address().clone()),
        })
    }

    fn host(&self) -> Option<Host<'_>> {
        match (&self.inside, &self.address) {
            (Some(Address::Unix(path)), _) => path.parent().map(Host::Folder),
            (_, Address::Unix(_)) => Some(Host::Here),
            (_, Address::Tcp { .. }) => None,
        }
    }

    /// Whether two members are of one host and reach each other without TCP.
    pub fn is_beside(&self, other: &Place) -> bool {
        self.host().is_some() && self.host() == other.host()
    }

    /// Return the address by which a member at this place reaches the other one.
    pub fn way_to<'a>(&self, other: &'a Place) -> &'a Address {
        let inside = other.inside.as_ref().filter(|_| self.is_beside(other));
        inside.unwrap_or(&other.address)
    }

    /// Whether it is reached only from its own host.
    pub fn is_unix(&self) -> bool {
        matches!(self.address, Address::Unix(_))
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Place> {
        let Some(at) = text.find(AND).filter(|_| text.starts_with("tcp:")) else {
            return Ok(Place {
                address: text.parse()?,
                inside: None,
            });
        };
        let (outside, inside) = text.split_at(at);
        Ok(Place {
            address: outside.parse()?,
            inside: Some(inside.trim_start_matches('+').parse()?),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        match &self.inside {
            Some(inside) => write!(f, "+{inside}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        text.parse().unwrap()
    }

    #[test]
    fn places_are_written_as_they_are_read() {
        for text in [
            "unix:/a/b",
            "unix:/a+unix:/b",
            "tcp:10.0.0.1:7",
            "tcp:[::1]:7+unix:/a/b",
            "tcp:host:7+unix:/a+unix:/b",
        ] {
            assert_eq!(place(text).to_string(), text);
        }
        for text in ["tcp:host:7+unix:", "tcp:host+unix:/a", "+unix:/a"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn sockets_in_one_folder_are_of_one_host() {
        let [one, other, elsewhere] = [
            "tcp:10.0.0.1:1+unix:/a/1",
            "tcp:10.0.0.2:1+unix:/a/2",
            "tcp:10.0.0.1:2+unix:/b/1",
        ]
        .map(place);
        assert!(one.is_beside(&other));
        assert!(!one.is_beside(&elsewhere));
        assert_eq!(one.way_to(&other).to_string(), "unix:/a/2");
        assert_eq!(one.way_to(&elsewhere).to_string(), "tcp:10.0.0.1:2");
        assert!(place("unix:/a/1").is_beside(&place("unix:/b/1")));
        assert!(!place("unix:/a/1").is_beside(&one));
        assert!(!place("tcp:10.0.0.1:1").is_beside(&place("tcp:10.0.0.1:2")));
    }
}
