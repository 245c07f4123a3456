//! Heartbeats while a crowd of strangers waits at the master's acceptor.
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use elasticdl_core::net::heart::{Heart, HeartMonitor};
use flood::Flood;

mod flood;

const TOKEN: &[u8] = b"the job's token";
const INTERVAL: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

fn start(monitor: &HeartMonitor, member: &str) -> Heart {
    Heart::start(&monitor.address(), member, TOKEN, INTERVAL, None).unwrap()
}

fn beats(monitor: &HeartMonitor, member: &str, progress: u64) -> bool {
    let signs = monitor.poll();
    let sign = signs.iter().find(|sign| sign.member == member);
    sign.is_some_and(|sign| sign.connected && sign.progress == progress)
}

fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come to that");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_flood_of_strangers_keeps_no_member_out() {
    let monitor = HeartMonitor::open("tcp:127.0.0.1:0", TOKEN, None).unwrap();
    let early = start(&monitor, "early");
    until(|| beats(&monitor, "early", 0));
    let flood = Flood::begin(&monitor.address(), "127.0.0.2", 1000);
    flood.has_opened(1000);
    for number in 1..=20 {
        let name = format!("late-{number}");
        let late = start(&monitor, &name);
        until(|| beats(&monitor, &name, 0));
        late.close();
        // Who came before it never notices.
        early.set(0, 0, number);
        until(|| beats(&monitor, "early", number));
    }
    flood.goes_on();
    assert!(monitor.refusals().total() > 0, "they were all let in");
}

/// Members and strangers come from one address where a job runs on one machine.
#[test]
fn a_flood_from_a_members_own_address_keeps_it_in() {
    let monitor = HeartMonitor::open("tcp:127.0.0.1:0", TOKEN, None).unwrap();
    let flood = Flood::begin(&monitor.address(), "127.0.0.1", 1000);
    flood.has_opened(1000);
    let _late = start(&monitor, "late");
    until(|| beats(&monitor, "late", 0));
    flood.goes_on();
}

/// A member that is not answered in time, as on a machine under load, leaves and tries again: that is no stranger who was refused.
#[test]
fn who_leaves_before_it_is_let_in_is_not_refused() {
    let monitor = HeartMonitor::open("tcp:127.0.0.1:0", TOKEN, None).unwrap();
    let address = monitor.address();
    let address = address.strip_prefix("tcp:").unwrap();
    for _ in 0..20 {
        drop(TcpStream::connect(address).unwrap());
    }
    let _member = start(&monitor, "member");
    until(|| beats(&monitor, "member", 0));
    assert_eq!(monitor.refusals().total(), 0);
    // One that says something wrong is refused, even if it leaves at once.
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&[0xff; 64]).unwrap();
    drop(stranger);
    until(|| monitor.refusals().total() == 1);
}
