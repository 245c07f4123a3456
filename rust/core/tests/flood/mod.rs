//! Strangers that open one connection after the other and say nothing.
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most connections that are kept open, more than come before a listener gives a handshake up.
const KEPT: usize = 6000;
/// After so many it ends by itself.
const MOST: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// A thread that opens connections until it is dropped.
pub struct Flood {
    opened: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Open so many connections a second to a TCP address of a data plane, from another address of this machine.
    pub fn begin(to: &str, from: &str, per_second: u32) -> Flood {
        let to: SocketAddr = to.strip_prefix("tcp:").unwrap().parse().unwrap();
        let from: IpAddr = from.parse().unwrap();
        let limit = getrlimit(Resource::Nofile);
        let current = limit.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        let (opened, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (opened, ended) = (opened.clone(), ended.clone());
            std::thread::spawn(move || {
                let start = Instant::now();
                let mut kept = VecDeque::new();
                for number in 0..MOST {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let due = start + Duration::from_secs(1) / per_second * number as u32;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    kept.push_back(open(from, to));
                    if kept.len() > KEPT {
                        kept.pop_front();
                    }
                    opened.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        Flood {
            opened,
            ended,
            thread: Some(thread),
        }
    }

    /// Wait until so many connections were opened.
    pub fn has_opened(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.opened.load(Ordering::Relaxed) < count {
            assert!(Instant::now() < deadline, "no {count} connections in time");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// See that it has not ended yet: what was done until now was done against it.
    pub fn goes_on(&self) {
        let opened = self.opened.load(Ordering::Relaxed);
        assert!(opened < MOST, "the flood was waited for");
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            assert!(outcome.is_ok() || std::thread::panicking());
        }
    }
}

/// Begin to connect without waiting for the other end, as an attacker does whose connections need not come to anything.
fn open(from: IpAddr, to: SocketAddr) -> TcpStream {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(from, 0)).unwrap();
    let _ = rustix::net::connect(&socket, &to);
    socket.into()
}
