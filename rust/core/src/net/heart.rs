//! Heartbeats: a thread in each member says that its process lives, whatever Python does; the master's end keeps the last of each.
//!
//! They decide nothing (that is the master's affair) and carry no command. A thread of its own, so that neither a long step nor the
//! interpreter's lock silences a healthy member.
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
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::net::acceptor::{Acceptor, Refusals};
use crate::net::address::{Address, Listener, Stream};
use crate::net::dial::Dialer;
use crate::net::endpoint::{check_member, lock};
use crate::net::error::{Error, Result};
use crate::net::frame::{Header, Inbound, Kind, Outbound, u64_at};
use crate::net::handshake::{Hello, Purpose, Token, Verdict};
use crate::net::tls::{Identity, Role};
use crate::net::wake::{Crowd, Wake, ignore_signals, readable, wait};

/// The name under which a master answers.
const MASTER: &str = "master";
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const ATTEMPT: Duration = Duration::from_secs(2);
/// Beats that nobody receives for so long show that the master's machine is gone; the next one is elsewhere.
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, Default)]
struct Pulse {
    view: u64,
    step: u64,
    progress: u64,
}

#[derive(Debug)]
struct HeartShared {
    pulse: Mutex<Pulse>,
    stop: Wake,
}

/// A member's heart.
#[derive(Debug)]
pub struct Heart {
    shared: Arc<HeartShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Heart {
    /// Start to beat every `interval` towards `address`; a master that is not there is tried again. With an identity it has to show the
    /// master's certificate.
    pub fn start(
        address: &str,
        member: &str,
        token: &[u8],
        interval: Duration,
        identity: Option<Identity>,
    ) -> Result<Heart> {
        check_member(member)?;
        if interval.is_zero() {
            return Err(Error::BadArgument(
                "the interval of heartbeats must be more than zero".into(),
            ));
        }
        let address: Address = address.parse()?;
        let token = Token::new(token)?;
        let member = member.to_owned();
        let shared = Arc::new(HeartShared {
            pulse: Mutex::new(Pulse::default()),
            stop: Wake::new()?,
        });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("edl-heart".into())
                .spawn(move || shared.run(&address, &member, &token, interval, identity))
                .map_err(|error| Error::io("no thread for the heartbeat", error))?
        };
        Ok(Heart {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// What the next beats say.
    pub fn set(&self, view: u64, step: u64, progress: u64) {
        *lock(&self.shared.pulse) = Pulse {
            view,
            step,
            progress,
        };
    }

    /// Stop to beat.
    pub fn close(&self) {
        self.shared.stop.raise();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.close();
    }
}

impl HeartShared {
    fn run(
        &self,
        address: &Address,
        member: &str,
        token: &Token,
        interval: Duration,
        identity: Option<Identity>,
    ) {
        let identity = identity.map(|identity| (identity, Role::Master));
        let mut pause = FIRST_PAUSE;
        while !self.stop.is_raised() {
            let hello = Hello {
                purpose: Purpose::Heart,
                member: member.into(),
                view: 0,
                digest: 0,
            };
            let dialer = Dialer::new(
                address.clone(),
                token.clone(),
                hello,
                MASTER.into(),
                identity.clone(),
                ATTEMPT,
            );
            match dialer.run(&self.stop, &ignore_signals) {
                Ok(Ok(stream)) => {
                    pause = FIRST_PAUSE;
                    stream.limit_silence(SILENCE);
                    self.beat(&stream, interval);
                }
                Ok(Err(_)) | Err(_) => pause = pause.saturating_mul(2).min(LONGEST_PAUSE),
            }
            let _ = wait(&mut [readable(&self.stop)], Some(pause), &ignore_signals);
        }
    }

    /// Beat until the connection ends.
    fn beat(&self, stream: &Stream, interval: Duration) {
        let mut outbound = Outbound::default();
        let mut inbound = Inbound::default();
        let mut next = Instant::now();
        while !self.stop.is_raised() {
            let now = Instant::now();
            if now >= next {
                next = now + interval;
                // A master that does not read is not beaten at: one beat waits, the next says more anyway.
                if outbound.is_empty() {
                    let pulse = *lock(&self.pulse);
                    outbound.push(&Header::frame(
                        Kind::Beat,
                        pulse.view,
                        pulse.step,
                        &pulse.progress.to_le_bytes(),
                    ));
                }
            }
            // The master says nothing on this connection: what can be read is its end.
            if outbound.flush(stream).is_err() || !matches!(inbound.receive(stream), Ok(None)) {
                return;
            }
            let left = next.saturating_duration_since(Instant::now());
            if wait(
                &mut [readable(&self.stop), readable(stream)],
                Some(left),
                &ignore_signals,
            )
            .is_err()
            {
                return;
            }
        }
    }
}

/// What the master knows of a member's heart.
#[derive(Debug, Clone, PartialEq)]
pub struct Sign {
    pub member: String,
    pub view: u64,
    pub step: u64,
    pub progress: u64,
    /// Time since the last beat.
    pub age: Duration,
    pub connected: bool,
}

#[derive(Debug)]
struct Patient {
    pulse: Pulse,
    last: Instant,
    /// Number of its connections; a new one may come before the old one's end is seen.
    connections: usize,
}

#[derive(Debug, Default)]
struct Ward {
    patients: HashMap<String, Patient>,
    forgotten: HashSet<String>,
}

#[derive(Debug)]
struct MonitorShared {
    ward: Mutex<Ward>,
    refusals: Arc<Refusals>,
    stop: Wake,
}

/// The master's end of the heartbeats.
#[derive(Debug)]
pub struct HeartMonitor {
    shared: Arc<MonitorShared>,
    address: Address,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl HeartMonitor {
    /// Listen at `address`; with an identity only workers' certificates are let in over TCP.
    pub fn open(address: &str, token: &[u8], identity: Option<Identity>) -> Result<HeartMonitor> {
        let token = Token::new(token)?;
        let listener = Listener::bind(&address.parse()?)?;
        let address = listener.address().clone();
        let shared = Arc::new(MonitorShared {
            ward: Mutex::new(Ward::default()),
            refusals: Arc::default(),
            stop: Wake::new()?,
        });
        let acceptor = Acceptor::new(
            vec![listener],
            token,
            MASTER.into(),
            identity,
            shared.refusals.clone(),
        )?;
        let thread = {
            let (shared, crowd) = (shared.clone(), Crowd::new()?);
            std::thread::Builder::new()
                .name("edl-monitor".into())
                .spawn(move || shared.run(acceptor, &crowd))
                .map_err(|error| Error::io("no thread for the heartbeats", error))?
        };
        Ok(HeartMonitor {
            shared,
            address,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Return where it listens in fact.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// What was refused so far.
    pub fn refusals(&self) -> &Refusals {
        &self.shared.refusals
    }

    /// Return what is known of every member ever seen and not forgotten, by member id.
    pub fn poll(&self) -> Vec<Sign> {
        let now = Instant::now();
        let ward = lock(&self.shared.ward);
        let mut signs: Vec<Sign> = ward
            .patients
            .iter()
            .map(|(member, patient)| Sign {
                member: member.clone(),
                view: patient.pulse.view,
                step: patient.pulse.step,
                progress: patient.pulse.progress,
                age: now.saturating_duration_since(patient.last),
                connected: patient.connections > 0,
            })
            .collect();
        signs.sort_by(|one, other| one.member.cmp(&other.member));
        signs
    }

    /// Never mention a member again: ids are not reused.
    pub fn forget(&self, member: &str) {
        let mut ward = lock(&self.shared.ward);
        ward.patients.remove(member);
        ward.forgotten.insert(member.into());
    }

    /// Stop to listen and close all connections.
    pub fn close(&self) {
        self.shared.stop.raise();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for HeartMonitor {
    fn drop(&mut self) {
        self.close();
    }
}

struct Beating {
    member: String,
    stream: Stream,
    inbound: Inbound,
}

impl MonitorShared {
    fn run(&self, mut acceptor: Acceptor, crowd: &Crowd) {
        let mut beating: BTreeMap<u64, Beating> = BTreeMap::new();
        let mut next: u64 = 0;
        // Of whom something may have come: strangers at the acceptor may wake this thread much more often than hearts do.
        let mut due: Vec<u64> = Vec::new();
        while !self.stop.is_raised() {
            let Ok(arrived) = acceptor.serve() else {
                break;
            };
            for (hello, stream) in arrived {
                let verdict = if hello.purpose == Purpose::Heart {
                    Verdict::Ok
                } else {
                    self.refusals.count();
                    Verdict::Refused
                };
                let mut outbound = Outbound::default();
                outbound.push(&verdict.frame());
                let welcome = outbound.flush(&stream).unwrap_or(false) && verdict == Verdict::Ok;
                let awaited = Some(PollFlags::IN);
                if welcome && crowd.watch(&stream, next, None, awaited).is_ok() {
                    self.update(&hello.member, 1, None);
                    let heart = Beating {
                        member: hello.member,
                        stream,
                        inbound: Inbound::default(),
                    };
                    beating.insert(next, heart);
                    due.push(next); // the first beat may have come with its hello
                    next = next.saturating_add(1);
                }
            }
            for number in due {
                if let Some(heart) = beating.get_mut(&number)
                    && !self.hear(heart)
                {
                    beating.remove(&number);
                }
            }
            let others = [readable(crowd), readable(&self.stop)];
            if acceptor.wait(others, None).is_err() {
                break;
            }
            let Ok(ready) = crowd.ready() else {
                break;
            };
            due = ready.into_iter().map(|(number, _)| number).collect();
        }
    }

    /// Take what has come from a heart; false when it ends.
    fn hear(&self, heart: &mut Beating) -> bool {
        loop {
            match heart.inbound.receive(&heart.stream) {
                Ok(None) => return true,
                Ok(Some((header, payload))) if header.kind == Kind::Beat && payload.len() == 8 => {
                    let pulse = Pulse {
                        view: header.view,
                        step: header.step,
                        progress: u64_at(&payload, 0),
                    };
                    self.update(&heart.member, 0, Some(pulse));
                }
                Ok(Some(_)) | Err(_) => {
                    self.update(&heart.member, -1, None);
                    return false;
                }
            }
        }
    }

    fn update(&self, member: &str, connections: isize, pulse: Option<Pulse>) {
        let mut ward = lock(&self.ward);
        if ward.forgotten.contains(member) {
            return;
        }
        let now = Instant::now();
        let patient = ward.patients.entry(member.into()).or_insert(Patient {
            pulse: Pulse::default(),
            last: now,
            connections: 0,
        });
        patient.connections = patient.connections.saturating_add_signed(connections);
        if let Some(pulse) = pulse {
            patient.pulse = pulse;
            patient.last = now;
        }
    }
}
