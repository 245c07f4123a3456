//! The control plane's proxy: who gets in, and that what it carries arrives whole, in order and to its end.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use certificates::{Authority, Pem, WORKER};
use elasticdl_core::net::acceptor::Told;
use elasticdl_core::net::error::Error;
use elasticdl_core::net::tlsproxy::TlsProxy;
use flood::Flood;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

mod certificates;
mod flood;

const MASTER: &str = "master.elasticdl";
const PATIENCE: Duration = Duration::from_secs(30);
/// More than all the buffers on the way hold.
const MUCH: usize = 24 * 1024 * 1024;

type Caller = StreamOwned<ClientConnection, TcpStream>;

/// A proxy, what it leads to, and the job that it is of.
struct Place {
    job: Authority,
    proxy: TlsProxy,
    server: UnixListener,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let (job, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        let server = UnixListener::bind(folder.path().join("grpc")).unwrap();
        let proxy = open(&job, "tcp:127.0.0.1:0", &folder.path().join("grpc"));
        Place {
            job,
            proxy,
            server,
            folder,
        }
    }

    fn dial(&self) -> TcpStream {
        let address = self.proxy.address();
        let stream = TcpStream::connect(address.strip_prefix("tcp:").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn call_with(&self, shown: Option<Pem>) -> Caller {
        let session =
            ClientConnection::new(config(&self.job, shown), MASTER.try_into().unwrap()).unwrap();
        StreamOwned::new(session, self.dial())
    }

    /// Call as a worker of the job; return both ends of what is carried.
    fn call(&self) -> (Caller, UnixStream) {
        let mut caller = self.call_with(Some(self.job.pem(WORKER)));
        while caller.conn.is_handshaking() {
            caller.conn.complete_io(&mut caller.sock).unwrap();
        }
        let served = self.server.accept().unwrap().0;
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        (caller, served)
    }

    /// Wait for the refusal of this number, and return why.
    fn refusal(&self, count: u64) -> String {
        self.refused(count);
        let Told { first, others } = self.proxy.refusals().take();
        assert_eq!((first.len(), others), (1, 0));
        assert!(first[0].0.starts_with("127.0.0.1:"), "{first:?}");
        first[0].1.clone()
    }

    fn refused(&self, count: u64) {
        until(|| self.proxy.refusals().total() >= count);
        assert_eq!(self.proxy.refusals().total(), count);
    }

    fn is_lonely(&self) -> bool {
        self.server.set_nonblocking(true).unwrap();
        self.server.accept().is_err()
    }
}

fn open(job: &Authority, address: &str, to: &Path) -> TlsProxy {
    TlsProxy::open(address, to, job.identity(MASTER)).unwrap()
}

fn config(job: &Authority, shown: Option<Pem>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(job.pem(WORKER).authority.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let building = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        Some(pem) => building
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(pem.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => building.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come to that");
        thread::sleep(Duration::from_millis(2));
    }
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

fn much(seed: u32) -> Vec<u8> {
    (0..MUCH as u32)
        .map(|at| (at.wrapping_mul(at ^ seed) >> 7) as u8)
        .collect()
}

fn read(from: &mut impl Read, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_worker_is_served_and_its_address_is_known() {
    let place = Place::new();
    let (mut caller, mut served) = place.call();
    assert_eq!(caller.conn.alpn_protocol(), Some(&b"h2"[..]));
    caller.write_all(b"question").unwrap();
    assert_eq!(read(&mut served, 8), b"question");
    served.write_all(b"answer").unwrap();
    assert_eq!(read(&mut caller, 6), b"answer");
    let name = caller.sock.local_addr().unwrap().to_string();
    let peer = served.peer_addr().unwrap();
    assert_eq!(
        peer.as_pathname(),
        Some(place.folder.path().join(name).as_path())
    );
    let left: Vec<PathBuf> = std::fs::read_dir(place.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, [place.folder.path().join("grpc")]);
    assert_eq!(place.proxy.refusals().total(), 0);
}

#[test]
fn strangers_are_refused_with_a_reason() {
    let (place, other) = (Place::new(), Authority::new());
    for (count, (why, shown)) in (1..).zip([
        ("no certificate", None),
        ("not of this job's authority", Some(other.pem(WORKER))),
        (
            "not of this job's authority",
            Some(certificates::self_signed(WORKER)),
        ),
        ("for another role", Some(place.job.pem(MASTER))),
    ]) {
        let mut stranger = place.call_with(shown);
        let _ = stranger.write_all(b"question");
        stranger.read_exact(&mut [0]).unwrap_err();
        let told = place.refusal(count);
        assert!(told.contains(why), "{told}");
    }
    assert!(place.is_lonely());
}

#[test]
fn who_does_not_believe_the_master_is_refused() {
    let place = Place::new();
    let other = Authority::new();
    let session = ClientConnection::new(
        config(&other, Some(other.pem(WORKER))),
        MASTER.try_into().unwrap(),
    );
    let mut stranger = StreamOwned::new(session.unwrap(), place.dial());
    stranger.read_exact(&mut [0]).unwrap_err();
    let told = place.refusal(1);
    assert!(
        told.contains("does not accept this end: TLS alert"),
        "{told}"
    );
    // As gRPC's clients do: without a word.
    let mut stranger = place.dial();
    stranger.write_all(&[0x16, 0x03, 0x01]).unwrap();
    drop(stranger);
    place.refused(2);
    let told = place.proxy.refusals().take();
    assert!(told.first[0].1.contains("it left"), "{told:?}");
}

#[test]
fn what_is_not_tls_is_refused() {
    for words in [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        vec![0; 100],
        [&[0x16, 0x03, 0x01, 0xff, 0xff][..], &[0; 70_000]].concat(),
    ] {
        let place = Place::new();
        let mut stranger = place.dial();
        let _ = stranger.write_all(&words);
        assert!(is_closed(&stranger));
        assert!(place.refusal(1).contains("TLS"));
        assert!(place.is_lonely());
    }
}

#[test]
fn another_protocol_is_refused() {
    let place = Place::new();
    let mut config = Arc::unwrap_or_clone(config(&place.job, Some(place.job.pem(WORKER))));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let session = ClientConnection::new(Arc::new(config), MASTER.try_into().unwrap()).unwrap();
    let mut stranger = StreamOwned::new(session, place.dial());
    stranger.read_exact(&mut [0]).unwrap_err();
    assert!(place.refusal(1).contains("protocol"));
}

#[test]
fn a_stalled_handshake_holds_nobody_up_and_ends() {
    let place = Place::new();
    let silent = place.dial();
    let mut halfway = place.dial();
    halfway
        .write_all(&[0x16, 0x03, 0x01, 0x01, 0x00, 1])
        .unwrap();
    let start = Instant::now();
    let (mut caller, mut served) = place.call();
    caller.write_all(b"question").unwrap();
    assert_eq!(read(&mut served, 8), b"question");
    assert!(start.elapsed() < Duration::from_secs(4), "it waited");
    assert!(is_closed(&silent) && is_closed(&halfway));
    place.refused(2);
    let told = place.proxy.refusals().take();
    assert!(told.first[0].1.contains("did not say who it is"));
    served.write_all(b"answer").unwrap();
    assert_eq!(read(&mut caller, 6), b"answer");
}

#[test]
fn a_crowd_of_strangers_has_to_make_room() {
    let place = Place::new();
    let crowd: Vec<_> = (0..257).map(|_| place.dial()).collect();
    assert!(is_closed(&crowd[0]));
    let told = place.proxy.refusals().take();
    assert!(told.first[0].1.contains("and more came"), "{told:?}");
}

#[test]
fn a_flood_of_strangers_keeps_no_worker_out() {
    let place = Place::new();
    let (mut early, mut first) = place.call();
    let flood = Flood::begin(&place.proxy.address(), "127.0.0.2", 1000);
    flood.has_opened(1000);
    for _ in 0..20 {
        let (mut caller, mut served) = place.call();
        caller.write_all(b"question").unwrap();
        assert_eq!(read(&mut served, 8), b"question");
        // Who came before it never notices.
        early.write_all(b"more").unwrap();
        assert_eq!(read(&mut first, 4), b"more");
    }
    flood.goes_on();
}

/// Both send much more than is kept on the way, and neither reads before its own is out or long waited for.
#[test]
fn slow_readers_slow_down_who_sends_and_lose_nothing() {
    let place = Place::new();
    let (mut caller, mut served) = place.call();
    let (question, answer) = (much(1), much(2));
    thread::scope(|scope| {
        let (answer, question) = (&answer, &question);
        let mut writing = served.try_clone().unwrap();
        let writer = scope.spawn(move || writing.write_all(answer).unwrap());
        let reader = scope.spawn(move || {
            thread::sleep(Duration::from_millis(500));
            let mut got = Vec::new();
            while got.len() < MUCH {
                thread::sleep(Duration::from_micros(500));
                got.extend(read(&mut served, (MUCH - got.len()).min(50_000)));
            }
            (got, served)
        });
        thread::sleep(Duration::from_millis(300));
        assert!(!writer.is_finished(), "all of it is somewhere on the way");
        caller.write_all(question).unwrap();
        let mut got = Vec::new();
        while got.len() < MUCH {
            thread::sleep(Duration::from_micros(500));
            got.extend(read(&mut caller, (MUCH - got.len()).min(50_000)));
        }
        assert!(got == *answer);
        let (got, _served) = reader.join().unwrap();
        assert!(got == *question);
    });
}

/// Who does not read is not waited for by the others.
#[test]
fn a_blocked_connection_is_its_own_affair() {
    let place = Place::new();
    let (_blocked, mut full) = place.call();
    full.set_nonblocking(true).unwrap();
    let waste = vec![0; 1 << 20];
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(300) {
        match full.write(&waste) {
            Ok(1..) => last = Instant::now(),
            _ => thread::sleep(Duration::from_millis(5)),
        }
    }
    let (mut caller, mut served) = place.call();
    caller.write_all(b"question").unwrap();
    assert_eq!(read(&mut served, 8), b"question");
}

#[test]
fn a_half_close_is_passed_on_both_ways() {
    let place = Place::new();
    let (mut caller, mut served) = place.call();
    caller.write_all(b"question").unwrap();
    caller.conn.send_close_notify();
    caller.flush().unwrap();
    let mut heard = Vec::new();
    served.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"question");
    served.write_all(b"answer").unwrap();
    assert_eq!(read(&mut caller, 6), b"answer");

    let (mut caller, mut served) = place.call();
    served.write_all(b"answer").unwrap();
    served.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    caller.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"answer");
    caller.write_all(b"question").unwrap();
    assert_eq!(read(&mut served, 8), b"question");
}

#[test]
fn a_close_is_passed_on_with_all_that_was_said_before() {
    let place = Place::new();
    let (mut caller, mut served) = place.call();
    let answer = much(3);
    thread::scope(|scope| {
        scope.spawn(|| {
            served.write_all(&answer).unwrap();
            drop(served);
        });
        // What nobody hears any more must not take back what is on its way.
        for _ in 0..100 {
            caller.write_all(b"more").unwrap();
        }
        let mut heard = Vec::new();
        caller.read_to_end(&mut heard).unwrap();
        assert!(heard == answer);
    });
    // A worker that breaks off: gRPC hears what came before, then the end.
    let (mut caller, mut served) = place.call();
    caller.write_all(b"last").unwrap();
    drop(caller);
    let mut heard = Vec::new();
    served.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"last");
    until(|| served.write_all(b"nobody hears").is_err());
}

#[test]
fn who_does_not_close_after_the_end_is_closed() {
    let place = Place::new();
    let (mut caller, served) = place.call();
    drop(served);
    let start = Instant::now();
    assert_eq!(caller.read(&mut [0]).unwrap(), 0);
    assert!(start.elapsed() < Duration::from_secs(4));
    until(|| caller.write_all(&[0]).is_err());
    assert!(start.elapsed() > Duration::from_secs(4));
}

#[test]
fn closing_delivers_what_was_sent() {
    let place = Place::new();
    let (mut caller, mut served) = place.call();
    let answer = much(4);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            thread::sleep(Duration::from_millis(200));
            let mut heard = Vec::new();
            caller.read_to_end(&mut heard).unwrap();
            heard
        });
        served.write_all(&answer).unwrap();
        drop(served);
        place.proxy.close();
        assert!(reader.join().unwrap() == answer);
    });
    assert!(TcpStream::connect(place.proxy.address().strip_prefix("tcp:").unwrap()).is_err());
}

#[test]
fn closing_waits_for_nobody_for_ever() {
    let place = Place::new();
    let (_caller, _served) = place.call();
    let stranger = place.dial();
    let start = Instant::now();
    place.proxy.close();
    let taken = start.elapsed();
    assert!(taken < Duration::from_secs(5), "{taken:?}");
    assert!(is_closed(&stranger));
    assert_eq!(place.proxy.refusals().total(), 0);
}

#[test]
fn the_next_gate_takes_the_place_of_the_last() {
    let place = Place::new();
    let (mut caller, served) = place.call();
    let address = place.proxy.address();
    let to = place.folder.path().join("grpc");
    let error = TlsProxy::open(&address, &to, place.job.identity(MASTER)).unwrap_err();
    assert!(
        matches!(&error, Error::BadSetting(text) if text.contains("in use")),
        "{error}"
    );
    let Place {
        job,
        proxy,
        server,
        folder,
    } = place;
    drop(proxy);
    let _ = caller.read(&mut [0]);
    drop(served);
    let proxy = open(&job, &address, &to);
    let place = Place {
        job,
        proxy,
        server,
        folder,
    };
    let (mut caller, mut served) = place.call();
    caller.write_all(b"question").unwrap();
    assert_eq!(read(&mut served, 8), b"question");
}

/// gRPC accepts one connection after another; a crowd that comes at once waits for its turn.
#[test]
fn a_crowd_of_workers_waits_before_a_full_socket() {
    let (job, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("grpc");
    let descriptor = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&descriptor, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&descriptor, 1).unwrap();
    let proxy = open(&job, "tcp:127.0.0.1:0", &path);
    let server = UnixListener::from(descriptor);
    let place = Place {
        job,
        proxy,
        server,
        folder,
    };
    let callers: Vec<Caller> = (0..6u8)
        .map(|number| {
            let mut caller = place.call_with(Some(place.job.pem(WORKER)));
            caller.write_all(&[number]).unwrap();
            caller
        })
        .collect();
    thread::sleep(Duration::from_millis(100));
    let mut heard: Vec<u8> = callers
        .iter()
        .map(|_| read(&mut place.server.accept().unwrap().0, 1)[0])
        .collect();
    heard.sort();
    assert_eq!(heard, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_thousand_workers_are_carried() {
    const WORKERS: usize = 1100;
    let place = Place::new();
    let config = config(&place.job, Some(place.job.pem(WORKER)));
    let mut ends: Vec<(Caller, UnixStream)> = (0..WORKERS)
        .map(|_| {
            let session =
                ClientConnection::new(config.clone(), MASTER.try_into().unwrap()).unwrap();
            let mut caller = StreamOwned::new(session, place.dial());
            caller.flush().unwrap();
            (caller, place.server.accept().unwrap().0)
        })
        .collect();
    for (number, (caller, _)) in ends.iter_mut().enumerate() {
        caller.write_all(&(number as u64).to_le_bytes()).unwrap();
    }
    for (number, (caller, served)) in ends.iter_mut().enumerate() {
        assert_eq!(read(served, 8), (number as u64).to_le_bytes());
        served.write_all(b"answer").unwrap();
        assert_eq!(read(caller, 6), b"answer");
    }
    assert_eq!(place.proxy.refusals().total(), 0);
}

#[test]
fn a_folder_without_room_for_names_is_a_bad_setting() {
    let job = Authority::new();
    let to = PathBuf::from(format!("/{}/grpc", "x".repeat(60)));
    let error = TlsProxy::open("tcp:127.0.0.1:0", &to, job.identity(MASTER)).unwrap_err();
    assert!(
        matches!(&error, Error::BadSetting(text) if text.contains("at most 42 bytes")),
        "{error}"
    );
}
