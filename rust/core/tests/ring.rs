//! Rings over threads: the sum in all members with equal bits, or an error in all of them.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use certificates::{Authority, WORKER};
use elasticdl_core::net::endpoint::Endpoint;
use elasticdl_core::net::error::{Error, How, Result};
use elasticdl_core::net::ring::Ring;
use elasticdl_core::net::ring::hosts::Hosts;
use elasticdl_core::net::ring::plan::{Cursor, PART, Piece, Plan};
use elasticdl_core::net::ring::sum::Element;
use elasticdl_core::net::wake::ignore_signals;
use proptest::prelude::*;

mod certificates;

const DIGEST: u64 = 99;
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Transport {
    Unix,
    Tcp,
    Tls,
    /// Members of several hosts, without TLS and with it: the host of a rank is this number's digit to base 4, counted from the last.
    Hosts(u64),
    SafeHosts(u64),
}

impl Transport {
    fn is_safe(self) -> bool {
        matches!(self, Transport::Tls | Transport::SafeHosts(_))
    }

    fn address(self, folder: &std::path::Path, rank: usize) -> String {
        let folder = folder.display();
        match self {
            Transport::Unix => format!("unix:{folder}/{rank}"),
            Transport::Tcp | Transport::Tls => "tcp:127.0.0.1:0".into(),
            Transport::Hosts(hosts) | Transport::SafeHosts(hosts) => {
                let host = format!("{folder}/{}", (hosts >> (2 * rank)) % 4);
                std::fs::create_dir_all(&host).unwrap();
                format!("tcp:127.0.0.1:0+unix:{host}/{rank}")
            }
        }
    }
}

fn transports() -> impl Strategy<Value = Transport> {
    prop_oneof![
        Just(Transport::Unix),
        Just(Transport::Tcp),
        Just(Transport::Tls)
    ]
}

fn endpoints(folder: &std::path::Path, count: usize, transport: Transport) -> Vec<Arc<Endpoint>> {
    let identity = transport
        .is_safe()
        .then(|| Authority::new().identity(WORKER));
    (0..count)
        .map(|rank| {
            let address = transport.address(folder, rank);
            let endpoint =
                Endpoint::open(&address, &format!("m{rank}"), b"token", identity.clone()).unwrap();
            endpoint.enter(1, DIGEST).unwrap();
            Arc::new(endpoint)
        })
        .collect()
}

fn peers(endpoints: &[Arc<Endpoint>]) -> Vec<(String, String)> {
    endpoints
        .iter()
        .map(|endpoint| (endpoint.member().into(), endpoint.address()))
        .collect()
}

type Outcome<T> = (Result<Vec<f64>>, Vec<T>);

/// Run several operations in one ring; all outcomes of each member.
///
/// A member that gets no connection ends the ring for those that await its call: outside these tests the master does so.
fn run<T: Element + Send + Sync>(
    endpoints: &[Arc<Endpoint>],
    peers: &[Vec<(String, String)>],
    operations: &[Vec<Vec<T>>],
    silence: Duration,
) -> Vec<Vec<Outcome<T>>> {
    let rings: Vec<Ring> = (0..endpoints.len())
        .map(|rank| {
            let endpoint = endpoints[rank].clone();
            Ring::new(endpoint, 1, DIGEST, rank, &peers[rank], silence).unwrap()
        })
        .collect();
    let rings = &rings;
    thread::scope(|scope| {
        let members: Vec<_> = (0..endpoints.len())
            .map(|rank| {
                scope.spawn(move || {
                    let ring = &rings[rank];
                    let mut outcomes = Vec::new();
                    for (step, contributions) in operations.iter().enumerate() {
                        let mut result = vec![T::zeroed(); contributions[rank].len()];
                        let trailer = [rank as f64, 0.1];
                        let sums = ring.reduce(
                            step as u64 + 1,
                            &contributions[rank],
                            &mut result,
                            &trailer,
                            &ignore_signals,
                        );
                        if matches!(
                            &sums,
                            Err(Error::RingBroken {
                                how: How::Refused,
                                ..
                            })
                        ) {
                            rings[rank + 1..].iter().for_each(Ring::cancel);
                        }
                        outcomes.push((sums, result));
                    }
                    ring.close(true);
                    outcomes
                })
            })
            .collect();
        members
            .into_iter()
            .map(|member| member.join().unwrap())
            .collect()
    })
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![4 => 0usize..100, 2 => 5_000usize..20_000, 2 => 30_000usize..300_000, 1 => 500_000usize..1_000_000];
    proptest::collection::vec(size, 1..4)
}

/// A last block of fewer elements than there are members has empty parts, whose frames end with their heads.
#[test]
fn a_last_block_may_be_smaller_than_the_group() {
    for count in 2..=5 {
        let block = PART / size_of::<f32>() * count;
        let sizes: Vec<usize> = (1..4)
            .flat_map(|blocks| (0..=count).map(move |rest| blocks * block + rest))
            .collect();
        for transport in [Transport::Unix, Transport::Tcp, Transport::Tls] {
            check(count, &sizes, transport, |seed| seed as f32 / 1e6);
        }
    }
}

/// Blocks have one part for each host there, and a last block may have empty ones.
#[test]
fn messages_of_several_hosts_may_end_anywhere_in_a_block() {
    // Digits to base 4, the last one is of rank 0: hosts with one member and several, first members at any rank.
    for (count, hosts, of) in [
        (3, 2, 0b01_00_01),
        (3, 2, 0b01_00_00),
        (4, 2, 0b01_00_01_00),
        (4, 3, 0b10_01_00_00),
        (5, 3, 0b00_10_01_00_10),
        (6, 2, 0b01_01_01_01_01_00),
        (8, 4, 0b11_10_01_00_11_10_01_00),
    ] {
        let block = PART / size_of::<f32>() * hosts;
        let mut sizes: Vec<usize> = (1..=6)
            .flat_map(|blocks| [0, 1, hosts, hosts + 1].map(|rest| blocks * block + rest))
            .collect();
        sizes.extend([10, 30_000, block - 1, 8 * block]);
        for transport in [Transport::Hosts(of), Transport::SafeHosts(of)] {
            check(count, &sizes, transport, |seed| (seed % 1000) as f32);
        }
    }
}

fn check<T: Element + Send + Sync + PartialEq + std::fmt::Debug>(
    count: usize,
    sizes: &[usize],
    transport: Transport,
    value: impl Fn(u64) -> T,
) {
    let folder = tempfile::tempdir().unwrap();
    let endpoints = endpoints(folder.path(), count, transport);
    let mut seed = 1u64;
    let mut next = || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        value(seed >> 33)
    };
    let operations: Vec<Vec<Vec<T>>> = sizes
        .iter()
        .map(|size| {
            (0..count)
                .map(|_| (0..*size).map(|_| next()).collect())
                .collect()
        })
        .collect();
    let outcomes = run(
        &endpoints,
        &vec![peers(&endpoints); count],
        &operations,
        SILENCE,
    );
    for (step, contributions) in operations.iter().enumerate() {
        let mut expected = contributions[0].clone();
        for contribution in &contributions[1..] {
            expected
                .iter_mut()
                .zip(contribution)
                .for_each(|(sum, other)| *sum = *sum + *other);
        }
        for member in &outcomes {
            let (sums, result) = &member[step];
            assert_eq!(sums.as_ref().unwrap()[0], (count * (count - 1) / 2) as f64);
            assert_eq!(
                sums.as_ref().unwrap()[1].to_bits(),
                outcomes[0][step].0.as_ref().unwrap()[1].to_bits()
            );
            assert_eq!(
                bytemuck::cast_slice::<T, u8>(result),
                bytemuck::cast_slice::<T, u8>(&expected)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn f32_sums_are_equal_in_all_bits(count in 1usize..=8, sizes in sizes(), transport in transports()) {
        check(count, &sizes, transport, |seed| seed as f32 / 1e6 - 1000.0);
    }

    /// Whole numbers, which have one sum whatever the order is in.
    #[test]
    fn sums_of_several_hosts_are_equal_in_all_bits(count in 2usize..=8, sizes in sizes(), hosts in any::<u64>(), safe in any::<bool>()) {
        let transport = if safe { Transport::SafeHosts(hosts) } else { Transport::Hosts(hosts) };
        check(count, &sizes, transport, |seed| (seed % 1000) as f32 - 500.0);
    }

    #[test]
    fn f64_sums_are_equal_in_all_bits(count in 1usize..=5, sizes in sizes(), transport in transports()) {
        check(count, &sizes, transport, |seed| seed as f64 / 3e5);
    }

    /// A connection that ends after any number of bytes breaks the ring for both, or comes too late to matter to one of them.
    #[test]
    fn a_connection_may_end_anywhere(
        after in prop_oneof![0usize..5000, 0usize..3_000_000],
        size in prop_oneof![Just(10usize), Just(300_000)],
        transport in prop_oneof![Just(Transport::Tcp), Just(Transport::Tls)],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let endpoints = endpoints(folder.path(), 2, transport);
        let honest = peers(&endpoints);
        let through = proxy(honest[1].1.strip_prefix("tcp:").unwrap().to_owned(), after);
        let mut seen_by_0 = honest.clone();
        seen_by_0[1].1 = through;
        let operations: Vec<_> = (0..3).map(|_| vec![vec![1f32; size]; 2]).collect();
        let outcomes = run(&endpoints, &[seen_by_0, honest], &operations, Duration::from_secs(5));
        for member in &outcomes {
            let mut broken = false;
            for (sums, result) in member {
                match sums {
                    Ok(_) => {
                        prop_assert!(!broken, "a step succeeded after the ring broke");
                        prop_assert!(result.iter().all(|value| *value == 2.0));
                    }
                    Err(Error::RingBroken { how, .. }) => {
                        prop_assert!(matches!(how, How::Eof | How::Stale | How::Refused), "{:?}", how);
                        broken = true;
                    }
                    // The caller got no connection: see `run`.
                    Err(Error::Cancelled) => broken = true,
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
        }
        // Nobody is more than one step ahead of the other.
        let done: Vec<usize> = outcomes.iter().map(|member| member.iter().filter(|(sums, _)| sums.is_ok()).count()).collect();
        prop_assert!(done[0].abs_diff(done[1]) <= 1, "{:?}", done);
    }

    #[test]
    fn pieces_cover_a_message_once(members in 2usize..9, elements in 0usize..3_000_000, item in prop_oneof![Just(4usize), Just(8)]) {
        let mut covered = 0;
        let plan = Plan::new(&Hosts::apart(members), 0, elements, item, true);
        for block in 0..plan.blocks {
            for rank in 0..members {
                let range = plan.range(block, rank);
                prop_assert_eq!(range.start, covered);
                prop_assert!(range.len() <= plan.part);
                covered = range.end;
            }
        }
        prop_assert!(plan.blocks == 0 || covered == elements);
    }

    #[test]
    fn pieces_follow_each_other_in_an_order_that_can_not_lock(members in 2usize..9, elements in 0usize..3_000_000) {
        let plan = Plan::new(&Hosts::apart(members), 0, elements, 4, true);
        let mut cursor = Cursor::default();
        let (mut scattered, mut gathered) = (0, 0);
        while let Some(piece) = cursor.piece(&plan) {
            match piece {
                Piece::Opening => prop_assert!(false, "all of these members are first ones"),
                Piece::Whole => prop_assert_eq!(plan.blocks, 0),
                Piece::Scatter(block) => { prop_assert_eq!(block, scattered); scattered += 1; }
                // A sum is sent after the contribution to the same block.
                Piece::Gather(block) => { prop_assert_eq!(block, gathered); gathered += 1; prop_assert!(scattered >= gathered); }
            }
            cursor.advance(&plan);
        }
        prop_assert_eq!((scattered, gathered), (plan.blocks, plan.blocks));
    }
}

/// Pass connections on to `to`, and end the first of them after so many bytes in both directions together.
fn proxy(to: String, after: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let Ok((client, _)) = listener.accept() else {
            return;
        };
        drop(listener);
        let server = TcpStream::connect(to).unwrap();
        let left = Arc::new(std::sync::Mutex::new(after));
        let (client_too, server_too) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let counted = left.clone();
        let back = thread::spawn(move || pass(server_too, client_too, &counted));
        pass(client, server, &left);
        let _ = back.join();
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, left: &std::sync::Mutex<usize>) {
    let mut bytes = [0; 4096];
    loop {
        let got = from.read(&mut bytes).unwrap_or(0);
        let allowed = {
            let mut left = left.lock().unwrap();
            let allowed = got.min(*left);
            *left -= allowed;
            allowed
        };
        let passed = to.write_all(&bytes[..allowed]).is_ok();
        if got == 0 || allowed < got || !passed {
            // Half-closing alone would leave a torn frame's sender waiting.
            let how = if got == 0 {
                Shutdown::Write
            } else {
                Shutdown::Both
            };
            let _ = to.shutdown(how);
            if got != 0 {
                let _ = from.shutdown(Shutdown::Both);
            }
            return;
        }
    }
}
