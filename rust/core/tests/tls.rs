//! TLS on the data plane: who gets in, and that rings, transfers and heartbeats are what they are without it.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use certificates::{Authority, Pem, WORKER};
use elasticdl_core::net::acceptor::{Refusals, Told};
use elasticdl_core::net::endpoint::Endpoint;
use elasticdl_core::net::error::{Error, How};
use elasticdl_core::net::heart::{Heart, HeartMonitor};
use elasticdl_core::net::ring::Ring;
use elasticdl_core::net::tls::Identity;
use elasticdl_core::net::transfer::{StateServer, StateTransfer};
use elasticdl_core::net::wake::ignore_signals;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

mod certificates;

const DIGEST: u64 = 99;
const TOKEN: &[u8] = b"token";
const MASTER: &str = "master.elasticdl";
const STATE: (u64, u64) = (7, 1);
const PATIENCE: Duration = Duration::from_secs(30);

fn endpoint(member: &str, identity: Option<Identity>) -> Arc<Endpoint> {
    let endpoint = Endpoint::open("tcp:127.0.0.1:0", member, TOKEN, identity).unwrap();
    endpoint.enter(1, DIGEST).unwrap();
    Arc::new(endpoint)
}

fn serve(endpoint: &Endpoint, image: Vec<u8>) -> StateServer {
    StateServer::start(endpoint, 1, STATE, Arc::new(image)).unwrap()
}

fn fetch(by: &Arc<Endpoint>, from: (&str, &str), patience: Duration) -> Result<Vec<u8>, String> {
    let transfer = StateTransfer::new(by.clone(), 1, DIGEST, STATE, from, patience).unwrap();
    let length = transfer
        .open(&ignore_signals)
        .map_err(|error| error.to_string())?;
    let mut image = vec![0; length];
    transfer
        .fill(&mut image, &ignore_signals)
        .map_err(|error| error.to_string())?;
    transfer.acknowledge().map_err(|error| error.to_string())?;
    Ok(image)
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address.strip_prefix("tcp:").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Whether the other end has closed; what it says before (an alert) is of no interest.
fn is_closed(mut stream: &TcpStream) -> bool {
    let mut waste = [0; 4096];
    loop {
        match stream.read(&mut waste) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Wait for the one refusal, and return why.
fn refusal(refusals: &Refusals) -> String {
    let deadline = Instant::now() + PATIENCE;
    while refusals.total() == 0 {
        assert!(Instant::now() < deadline, "nobody was refused");
        thread::sleep(Duration::from_millis(2));
    }
    let Told { first, others } = refusals.take();
    assert_eq!((first.len(), others, refusals.total()), (1, 0, 1));
    assert!(first[0].0.starts_with("127.0.0.1:"), "{first:?}");
    first[0].1.clone()
}

#[test]
fn a_state_comes_whole() {
    let identity = Authority::new().identity(WORKER);
    let (donor, healee) = (
        endpoint("donor", Some(identity.clone())),
        endpoint("healee", Some(identity)),
    );
    let image: Vec<u8> = (0..3_000_001u32)
        .map(|at| (at.wrapping_mul(at) >> 7) as u8)
        .collect();
    let server = serve(&donor, image.clone());
    let got = fetch(&healee, ("donor", &donor.address()), PATIENCE).unwrap();
    assert!(got == image);
    assert_eq!(
        server.wait(PATIENCE, &ignore_signals).unwrap(),
        [("healee".to_owned(), true)]
    );
    assert_eq!(donor.refusals().total(), 0);
}

#[test]
fn strangers_with_other_certificates_are_refused() {
    let (job, other) = (Authority::new(), Authority::new());
    let shows = |certificate: Pem| {
        Pem {
            authority: job.pem(WORKER).authority,
            ..certificate
        }
        .identity()
    };
    let alone = certificates::self_signed(WORKER);
    let cases = [
        ("not of this job's authority", shows(other.pem(WORKER))),
        ("not of this job's authority", shows(alone)),
        ("for another role", shows(job.pem(MASTER))),
        // This one goes by itself: it does not believe the job.
        ("does not accept this end", other.identity(WORKER)),
    ];
    for (why, identity) in cases {
        let member = endpoint("member", Some(job.identity(WORKER)));
        let server = serve(&member, vec![1; 100]);
        let stranger = endpoint("stranger", Some(identity));
        let outcome = fetch(&stranger, ("member", &member.address()), PATIENCE);
        // At once, not after all patience: a certificate gets no better.
        assert!(outcome.unwrap_err().contains("it"), "{why}");
        let told = refusal(member.refusals());
        assert!(told.contains(why), "{told}");
        assert!(
            server
                .wait(Duration::ZERO, &ignore_signals)
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn a_stranger_without_a_certificate_is_refused() {
    let job = Authority::new();
    let member = endpoint("member", Some(job.identity(WORKER)));
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(job.pem(WORKER).authority.as_bytes()).unwrap())
        .unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_root_certificates(roots)
    .with_no_client_auth();
    let session =
        rustls::ClientConnection::new(Arc::new(config), WORKER.try_into().unwrap()).unwrap();
    let mut stream = rustls::StreamOwned::new(session, connect(&member.address()));
    let mut byte = [0];
    let outcome = stream.read(&mut byte);
    assert!(
        outcome
            .unwrap_err()
            .to_string()
            .contains("CertificateRequired")
    );
    assert!(refusal(member.refusals()).contains("no certificate"));
}

#[test]
fn what_is_not_tls_is_refused() {
    let oversized = [&[0x16, 0x03, 0x01, 0xff, 0xff][..], &[0; 70_000]].concat();
    for words in [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
        vec![0; 100],
        oversized,
    ] {
        let member = endpoint("member", Some(Authority::new().identity(WORKER)));
        let mut stranger = connect(&member.address());
        let _ = stranger.write_all(&words);
        assert!(is_closed(&stranger));
        assert!(refusal(member.refusals()).contains("TLS"));
    }
}

#[test]
fn a_member_without_tls_gets_in_nowhere() {
    let member = endpoint("member", Some(Authority::new().identity(WORKER)));
    let plain = endpoint("plain", None);
    let patience = Duration::from_millis(300);
    fetch(&plain, ("member", &member.address()), patience).unwrap_err();
    assert!(member.refusals().take().first[0].1.contains("TLS"));
    fetch(&member, ("plain", &plain.address()), patience).unwrap_err();
    assert!(
        plain.refusals().take().first[0]
            .1
            .contains("not a frame of the data plane")
    );
}

#[test]
fn garbage_after_the_handshake_ends_that_connection_only() {
    let job = Authority::new();
    let (donor, healee) = (
        endpoint("donor", Some(job.identity(WORKER))),
        endpoint("healee", Some(job.identity(WORKER))),
    );
    let server = serve(&donor, vec![5; 5_000_000]);
    let through = proxy(&donor.address(), |count, bytes| {
        if count > 100_000 {
            bytes[0] ^= 1;
        }
        bytes.len()
    });
    let error = fetch(&healee, ("donor", &through), PATIENCE).unwrap_err();
    assert!(error.contains("TLS: cannot decrypt"), "{error}");
    assert_eq!(
        server.wait(PATIENCE, &ignore_signals).unwrap(),
        [("healee".to_owned(), false)]
    );
    assert_eq!(
        fetch(&healee, ("donor", &donor.address()), PATIENCE)
            .unwrap()
            .len(),
        5_000_000
    );
}

#[test]
fn a_stalled_handshake_holds_nobody_up_and_ends() {
    let job = Authority::new();
    let (donor, healee) = (
        endpoint("donor", Some(job.identity(WORKER))),
        endpoint("healee", Some(job.identity(WORKER))),
    );
    let server = serve(&donor, vec![1; 1000]);
    let silent = connect(&donor.address());
    let mut halfway = connect(&donor.address());
    halfway
        .write_all(&[0x16, 0x03, 0x01, 0x01, 0x00, 1])
        .unwrap();
    let start = Instant::now();
    fetch(&healee, ("donor", &donor.address()), PATIENCE).unwrap();
    assert!(start.elapsed() < Duration::from_secs(4), "it waited");
    assert!(is_closed(&silent) && is_closed(&halfway));
    let told = donor.refusals().take();
    assert_eq!(told.first.len(), 2);
    assert!(told.first[0].1.contains("did not say who it is"));
    drop(server);
}

/// More than one source has places for, as when the master of all members of one host is back: they must not drive each other out.
#[test]
fn a_crowd_of_members_gets_in_at_once() {
    let job = Authority::new();
    let master = HeartMonitor::open("tcp:127.0.0.1:0", TOKEN, Some(job.identity(MASTER))).unwrap();
    let hearts: Vec<Heart> = (0..300)
        .map(|number| {
            let (address, interval) = (master.address(), Duration::from_secs(1));
            let identity = Some(job.identity(WORKER));
            Heart::start(&address, &number.to_string(), TOKEN, interval, identity).unwrap()
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    while master.poll().iter().filter(|sign| sign.connected).count() < hearts.len() {
        assert!(Instant::now() < deadline, "some are kept out");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(master);
}

#[test]
fn who_is_dialed_has_to_be_a_worker() {
    let job = Authority::new();
    let member = endpoint("member", Some(job.identity(WORKER)));
    let impostor = endpoint("impostor", Some(Authority::new().identity(WORKER)));
    let error = fetch(&member, ("impostor", &impostor.address()), PATIENCE).unwrap_err();
    assert!(error.contains("not of this job's authority"), "{error}");
    let master = HeartMonitor::open("tcp:127.0.0.1:0", TOKEN, Some(job.identity(MASTER))).unwrap();
    let error = fetch(&member, ("master", &master.address()), PATIENCE).unwrap_err();
    assert!(error.contains("for another role"), "{error}");
    assert!(refusal(master.refusals()).contains("does not accept this end"));
}

fn beats(monitor: &HeartMonitor, member: &str) -> bool {
    monitor
        .poll()
        .iter()
        .any(|sign| sign.member == member && sign.step == 3)
}

#[test]
fn hearts_beat_for_the_master_alone() {
    let job = Authority::new();
    let open =
        |name| HeartMonitor::open("tcp:127.0.0.1:0", TOKEN, Some(job.identity(name))).unwrap();
    let (master, worker) = (open(MASTER), open(WORKER));
    let start = |address: String, member: &str, identity: Identity| {
        let interval = Duration::from_millis(20);
        let heart = Heart::start(&address, member, TOKEN, interval, Some(identity)).unwrap();
        heart.set(1, 3, 5);
        heart
    };
    let _lost = start(worker.address(), "lost", job.identity(WORKER));
    let _false = start(master.address(), "false", job.identity(MASTER));
    let right = start(master.address(), "right", job.identity(WORKER));
    let deadline = Instant::now() + PATIENCE;
    while !beats(&master, "right")
        || master.refusals().total() == 0
        || worker.refusals().total() == 0
    {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
    assert!(
        master.refusals().take().first[0]
            .1
            .contains("for another role")
    );
    assert!(worker.poll().is_empty() && master.poll().len() == 1);
    right.close();
    while master.poll()[0].connected {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
}

fn rings(endpoints: &[Arc<Endpoint>], addresses: &[String], silence: Duration) -> Vec<Ring> {
    let peers: Vec<_> = endpoints
        .iter()
        .zip(addresses)
        .map(|(endpoint, address)| (endpoint.member().to_owned(), address.clone()))
        .collect();
    (0..endpoints.len())
        .map(|rank| Ring::new(endpoints[rank].clone(), 1, DIGEST, rank, &peers, silence).unwrap())
        .collect()
}

fn ring_members(count: usize) -> Vec<Arc<Endpoint>> {
    let identity = Authority::new().identity(WORKER);
    (0..count)
        .map(|rank| endpoint(&format!("m{rank}"), Some(identity.clone())))
        .collect()
}

/// However the network cuts the bytes, and however little of them it takes at a time.
#[test]
fn a_network_that_passes_little_at_a_time_changes_nothing() {
    let members = ring_members(3);
    let mut addresses: Vec<_> = members.iter().map(|member| member.address()).collect();
    let mut seed = 7usize;
    addresses[2] = proxy(&addresses[2], move |_, bytes| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        1 + (seed >> 33) % bytes.len()
    });
    let rings = &rings(&members, &addresses, PATIENCE);
    let results: Vec<Vec<f32>> = thread::scope(|scope| {
        let calls: Vec<_> = (0..3)
            .map(|rank| {
                scope.spawn(move || {
                    let own: Vec<f32> = (0..700_001).map(|at| (at % 997 + rank) as f32).collect();
                    let mut result = vec![0.0; own.len()];
                    for step in 1..4 {
                        let sums = rings[rank]
                            .reduce(step, &own, &mut result, &[1.0], &ignore_signals)
                            .unwrap();
                        assert_eq!(sums, [3.0]);
                    }
                    rings[rank].close(true);
                    result
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for (at, value) in results[0].iter().enumerate() {
        assert_eq!(*value, (3 * (at % 997) + 3) as f32);
    }
    assert!(results[0] == results[1] && results[0] == results[2]);
}

#[test]
fn cancelling_in_the_middle_ends_the_ring_for_all() {
    let members = ring_members(3);
    let addresses: Vec<_> = members.iter().map(|member| member.address()).collect();
    let rings = &rings(&members, &addresses, PATIENCE);
    let contribution = &vec![1f32; 20_000_000];
    let begun = &Barrier::new(4);
    let outcomes: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..3)
            .map(|rank| {
                scope.spawn(move || {
                    let mut result = vec![0.0; contribution.len()];
                    (1..1000)
                        .find_map(|step| {
                            let error = rings[rank]
                                .reduce(step, contribution, &mut result, &[], &ignore_signals)
                                .err();
                            if step == 1 {
                                begun.wait();
                            }
                            error
                        })
                        .unwrap()
                })
            })
            .collect();
        begun.wait();
        rings[1].cancel();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(matches!(outcomes[1], Error::Cancelled));
    for other in [&outcomes[0], &outcomes[2]] {
        // It has left, or its connection ended; or who noticed first has said so.
        assert!(
            matches!(other, Error::RingBroken { how: How::Eof, .. }),
            "{other}"
        );
    }
}

#[test]
fn a_peer_that_falls_silent_in_the_middle_is_found() {
    let members = ring_members(2);
    let mut addresses: Vec<_> = members.iter().map(|member| member.address()).collect();
    addresses[1] = proxy(&addresses[1], |count, bytes| {
        if count > 400_000 {
            thread::sleep(PATIENCE);
        }
        bytes.len()
    });
    let rings = &rings(&members, &addresses, Duration::from_secs(1));
    let contribution = &vec![1f32; 1_000_000];
    thread::scope(|scope| {
        for ring in rings {
            scope.spawn(move || {
                let mut result = vec![0.0; contribution.len()];
                let outcome = ring.reduce(1, contribution, &mut result, &[], &ignore_signals);
                assert!(
                    matches!(
                        &outcome,
                        Err(Error::RingBroken {
                            rank: Some(_),
                            how: How::Deadline | How::Eof,
                            ..
                        })
                    ),
                    "{outcome:?}"
                );
            });
        }
    });
}

#[test]
fn without_certificates_nothing_leaves_the_host() {
    for outcome in [
        Endpoint::open("tcp:0.0.0.0:0", "m", TOKEN, None).err(),
        HeartMonitor::open("tcp:0.0.0.0:0", TOKEN, None).err(),
    ] {
        let error = outcome.unwrap();
        assert!(matches!(error, Error::BadSetting(_)));
        assert!(
            error
                .to_string()
                .contains("only with the job's certificates")
        );
    }
}

#[test]
fn what_makes_no_identity_is_a_bad_setting() {
    let job = Authority::new();
    let (one, other) = (job.pem(WORKER), job.pem(WORKER));
    for (authority, certificate, key) in [
        (&one.authority, &one.certificate, &other.key),
        (&one.authority, &one.certificate, &String::new()),
        (&one.authority, &one.key, &one.key),
        (&String::new(), &one.certificate, &one.key),
    ] {
        let outcome = Identity::new(authority.as_bytes(), certificate.as_bytes(), key.as_bytes());
        let error = outcome.unwrap_err();
        assert!(
            matches!(&error, Error::BadSetting(text) if text.contains("certificate can't be used")),
            "{error}"
        );
    }
}

/// Pass connections on to `to`; `pass` gets how many bytes went through and the next ones, and returns how many of them may go.
fn proxy(to: &str, pass: impl FnMut(usize, &mut [u8]) -> usize + Send + Clone + 'static) -> String {
    let to = to.strip_prefix("tcp:").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(&to).unwrap();
            let (client_too, server_too) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (forth, back) = (pass.clone(), pass.clone());
            thread::spawn(move || forward(client, server, forth));
            thread::spawn(move || forward(server_too, client_too, back));
        }
    });
    address
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    mut pass: impl FnMut(usize, &mut [u8]) -> usize,
) {
    let (mut bytes, mut count) = ([0; 4096], 0);
    loop {
        let got = from.read(&mut bytes).unwrap_or(0);
        let mut sent = 0;
        while sent < got {
            let next = pass(count, &mut bytes[sent..got]);
            if to.write_all(&bytes[sent..sent + next]).is_err() {
                let _ = from.shutdown(std::net::Shutdown::Both);
                return;
            }
            sent += next;
            count += next;
        }
        if got == 0 {
            let _ = to.shutdown(std::net::Shutdown::Write);
            return;
        }
    }
}
