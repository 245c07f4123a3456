//! Who is at the other end: both prove that they hold the job's key before anything else is believed.
//!
//! Challenge and response with HMAC-SHA256 (RFC 2104) over fresh nonces; no key ever crosses the wire. The two ends' proofs
//! start with different words, so that neither can be reflected. A parameter server's stream to another is proven with a key that only
//! servers hold. Not encryption: TLS is a matter of the transport between hosts.
//!
//! ```text
//! dialer                                   responder
//! Nonce(a)                             →
//!                                      ←   Challenge(b, proof of the responder, its member id)
//! Hello(purpose, ids, digest, proof)   →   (header: view)
//!                                      ←   Verdict(parked)*, Verdict(ok | stale | refused)
//! ```
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
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::net::error::{Error, Result};
use crate::net::frame::{Header, Kind, Malformed};

const NONCE: usize = 32;
const PROOF: usize = 32;
/// Longest member id.
pub const MEMBER: usize = 128;

/// What a process can prove.
#[derive(Clone)]
pub struct Token {
    /// All members of the job hold it.
    shared: Vec<u8>,
    /// Only parameter servers hold it.
    servers: Option<Vec<u8>>,
}

impl Token {
    /// Take the key that all members share; an empty one is refused.
    pub fn new(bytes: &[u8]) -> Result<Token> {
        if bytes.is_empty() {
            return Err(Error::BadArgument("the job's token is empty".into()));
        }
        Ok(Token {
            shared: bytes.into(),
            servers: None,
        })
    }

    /// Take the key of the parameter servers, from which the one that all share follows.
    pub fn of_server(bytes: &[u8]) -> Result<Token> {
        let shared = shared_key(bytes);
        Ok(Token {
            servers: Some(Token::new(bytes)?.shared),
            shared,
        })
    }

    /// Return the key that proves a dialer's right to the purpose of a hello; nothing of it has been checked. Without the key at this
    /// end nobody can prove it here.
    fn of_dialer(&self, content: &[u8]) -> std::result::Result<&[u8], Denied> {
        if content.first() == Some(&(Purpose::Stream as u8)) {
            self.servers.as_deref().ok_or(Denied::Token)
        } else {
            Ok(&self.shared)
        }
    }

    fn mac(key: &[u8], role: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = keyed(key);
        mac.update(role.as_bytes());
        for part in parts {
            // Lengths keep the parts apart.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

#[allow(
    clippy::expect_used,
    reason = "HMAC takes keys of any length, and this one is no peer's"
)]
fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// The same derivation as `elasticdl.control.transport.keys.data_key`.
fn shared_key(servers: &[u8]) -> Vec<u8> {
    let mut mac = keyed(servers);
    mac.update(b"elasticdl key data\x01");
    mac.finalize().into_bytes().to_vec()
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    Ring = 1,
    Heal = 2,
    Heart = 3,
    /// A worker and a parameter server.
    Parameters = 4,
    /// A parameter server's stream to another; view and digest are the numbers of sender and receiver.
    Stream = 5,
}

impl Purpose {
    fn from_code(code: u8) -> Option<Purpose> {
        [
            Purpose::Ring,
            Purpose::Heal,
            Purpose::Heart,
            Purpose::Parameters,
            Purpose::Stream,
        ]
        .into_iter()
        .find(|purpose| *purpose as u8 == code)
    }
}

/// What a dialer says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub purpose: Purpose,
    pub member: String,
    pub view: u64,
    pub digest: u64,
}

/// The responder's answer to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    Ok = 1,
    /// The dialer's view is ahead of the responder's; an answer follows.
    Parked = 2,
    /// The responder has left that view behind.
    Stale = 3,
    /// Same view, other content; or not the purpose or the member that this end serves.
    Refused = 4,
}

impl Verdict {
    fn from_code(code: u8) -> Option<Verdict> {
        [
            Verdict::Ok,
            Verdict::Parked,
            Verdict::Stale,
            Verdict::Refused,
        ]
        .into_iter()
        .find(|verdict| *verdict as u8 == code)
    }

    /// Return the frame that carries this verdict.
    pub fn frame(self) -> Vec<u8> {
        Header::frame(Kind::Verdict, 0, 0, &[self as u8])
    }
}

/// Why a handshake ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("the other end does not hold this job's token")]
    Token,
    #[error("another member answers at that address")]
    Member,
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

fn nonce() -> Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::io("no random bytes", std::io::Error::other(error.to_string())))?;
    Ok(bytes)
}

/// The accepting side; frames in, frames out, no I/O.
#[derive(Debug)]
pub struct Responder {
    token: Token,
    member: String,
    nonce: [u8; NONCE],
    theirs: Option<[u8; NONCE]>,
}

/// What the responder does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Reply(Vec<u8>),
    /// Authenticated; what becomes of it is the endpoint's decision.
    Hello(Hello),
}

impl Responder {
    pub fn new(token: Token, member: String) -> Result<Responder> {
        Ok(Responder {
            token,
            member,
            nonce: nonce()?,
            theirs: None,
        })
    }

    /// Take the dialer's next frame.
    pub fn hear(&mut self, header: &Header, payload: &[u8]) -> std::result::Result<Heard, Denied> {
        match (self.theirs, header.kind) {
            (None, Kind::Nonce) => {
                let theirs: [u8; NONCE] = payload.try_into().map_err(|_| Malformed::Content)?;
                self.theirs = Some(theirs);
                let parts: [&[u8]; 3] = [&theirs, &self.nonce, self.member.as_bytes()];
                let proof = Token::mac(&self.token.shared, "accept", &parts)
                    .finalize()
                    .into_bytes();
                let mut reply = self.nonce.to_vec();
                reply.extend_from_slice(&proof);
                reply.extend_from_slice(self.member.as_bytes());
                Ok(Heard::Reply(Header::frame(Kind::Challenge, 0, 0, &reply)))
            }
            (Some(theirs), Kind::Hello) => {
                let content = payload.len().checked_sub(PROOF).ok_or(Malformed::Content)?;
                let (content, proof) = payload.split_at(content);
                let parts: [&[u8]; 5] = [
                    &theirs,
                    &self.nonce,
                    self.member.as_bytes(),
                    &header.view.to_le_bytes(),
                    content,
                ];
                Token::mac(self.token.of_dialer(content)?, "dial", &parts)
                    .verify_slice(proof)
                    .map_err(|_| Denied::Token)?;
                let (head, member) = content
                    .split_first_chunk::<9>()
                    .filter(|(_, member)| member.len() <= MEMBER)
                    .ok_or(Malformed::Content)?;
                let [purpose, digest @ ..] = head;
                let purpose = Purpose::from_code(*purpose).ok_or(Malformed::Content)?;
                let member = std::str::from_utf8(member)
                    .map_err(|_| Malformed::Content)?
                    .to_owned();
                Ok(Heard::Hello(Hello {
                    purpose,
                    member,
                    view: header.view,
                    digest: u64::from_le_bytes(*digest),
                }))
            }
            _ => Err(Malformed::Kind.into()),
        }
    }
}

/// The dialing side; frames in, frames out, no I/O.
#[derive(Debug)]
pub struct Caller {
    token: Token,
    hello: Hello,
    to: String,
    nonce: [u8; NONCE],
    challenged: bool,
}

/// What the dialer does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    Reply(Vec<u8>),
    Verdict(Verdict),
}

impl Caller {
    /// `to`: the member that must answer.
    pub fn new(token: Token, hello: Hello, to: String) -> Result<Caller> {
        Ok(Caller {
            token,
            hello,
            to,
            nonce: nonce()?,
            challenged: false,
        })
    }

    /// Return the first frame.
    pub fn open(&self) -> Vec<u8> {
        Header::frame(Kind::Nonce, 0, 0, &self.nonce)
    }

    /// Take the responder's next frame.
    pub fn hear(&mut self, header: &Header, payload: &[u8]) -> std::result::Result<Said, Denied> {
        match (self.challenged, header.kind) {
            (false, Kind::Challenge) => {
                if payload.len() < NONCE + PROOF {
                    return Err(Malformed::Content.into());
                }
                let (theirs, rest) = payload.split_at(NONCE);
                let (proof, member) = rest.split_at(PROOF);
                Token::mac(&self.token.shared, "accept", &[&self.nonce, theirs, member])
                    .verify_slice(proof)
                    .map_err(|_| Denied::Token)?;
                if member != self.to.as_bytes() {
                    return Err(Denied::Member);
                }
                self.challenged = true;
                let mut content = vec![self.hello.purpose as u8];
                content.extend_from_slice(&self.hello.digest.to_le_bytes());
                content.extend_from_slice(self.hello.member.as_bytes());
                let parts: [&[u8]; 5] = [
                    &self.nonce,
                    theirs,
                    member,
                    &self.hello.view.to_le_bytes(),
                    &content,
                ];
                let proof = Token::mac(self.token.of_dialer(&content)?, "dial", &parts)
                    .finalize()
                    .into_bytes();
                content.extend_from_slice(&proof);
                Ok(Said::Reply(Header::frame(
                    Kind::Hello,
                    self.hello.view,
                    0,
                    &content,
                )))
            }
            (true, Kind::Verdict) => {
                let verdict = payload
                    .first()
                    .copied()
                    .and_then(Verdict::from_code)
                    .ok_or(Malformed::Content)?;
                Ok(Said::Verdict(verdict))
            }
            _ => Err(Malformed::Kind.into()),
        }
    }
}
