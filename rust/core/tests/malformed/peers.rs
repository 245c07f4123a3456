//! A server, a worker that counts, and the stranger who sends the server what it should not.
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use elasticdl_core::net::address::{Address, Listener};
use elasticdl_core::net::frame::{HEADER, Header, Kind};
use elasticdl_core::net::handshake::{Caller, Hello, Purpose, Said, Token, Verdict};
use elasticdl_core::ps::client::batch::Batch;
use elasticdl_core::ps::client::connections::Client;
use elasticdl_core::ps::client::push::Pushed;
use elasticdl_core::ps::client::tracker::End;
use elasticdl_core::ps::client::wanted::Wanted;
use elasticdl_core::ps::protocol::catalog::Catalog;
use elasticdl_core::ps::protocol::stamps::Stamp;
use elasticdl_core::ps::protocol::stream::Message;
use elasticdl_core::ps::protocol::wire;
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::node::{Bounds, Limits};
use elasticdl_core::ps::server::process::{Server, name_of};
use elasticdl_core::ps::server::slot::{Head, UNSEEN};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::readers::{SLOTS, catalog};
use crate::{ENTRY, TASKS, TOKEN};

/// What a master says that lets a step be complete, and all tasks before `low` be done.
fn limits(low: u64) -> Limits {
    Limits {
        roll_back: 0,
        low,
        above: vec![],
        steps: 1,
        end: TASKS,
    }
}

/// A server with all slots, and its address.
pub fn server() -> (Server, Address) {
    server_of(catalog())
}

pub fn server_of(catalog: Catalog) -> (Server, Address) {
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    let server = Server::open(listener, 0, TOKEN, None, catalog).unwrap();
    let address: Address = server.address().parse().unwrap();
    let entries = (0..SLOTS).map(|slot| (slot, ENTRY));
    let bounds = Bounds {
        tasks: TASKS,
        ..Bounds::default()
    };
    server
        .learn([(0, address.clone())], entries, bounds)
        .unwrap();
    server.limit(&limits(0));
    server.know(["stranger", "worker"].map(String::from).into());
    (server, address)
}

/// The key that follows from the servers': HMAC-SHA256, as in `elasticdl.control.transport.keys`.
fn worker_key() -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(TOKEN).unwrap();
    mac.update(b"elasticdl key data\x01");
    mac.finalize().into_bytes().to_vec()
}

/// Read a whole frame.
pub fn frame(stream: &mut TcpStream) -> (Header, Vec<u8>) {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).unwrap();
    let header = Header::decode(&head).unwrap();
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).unwrap();
    (header, payload)
}

/// The number of the server that a stranger says that it is.
pub const STRANGER: u64 = 7;

/// A message of a stream as it travels.
pub fn streamed(number: u64, message: &Message) -> Vec<u8> {
    let mut words = Vec::new();
    wire::put_message(&mut words, message);
    Header::frame(Kind::Stream, number, 0, bytemuck::cast_slice(&words))
}

/// Read up to where a server has accepted a stream.
pub fn accepted(stream: &mut TcpStream) -> u64 {
    let (header, _) = frame(stream);
    assert_eq!(header.kind, Kind::Accepted);
    header.view
}

/// Be let in as a worker, or as another server's stream.
pub fn stranger(server: &Server, purpose: Purpose) -> TcpStream {
    let place = server.address().strip_prefix("tcp:").unwrap();
    let mut stream = TcpStream::connect(place).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let hello = Hello {
        purpose,
        member: "stranger".into(),
        view: STRANGER,
        digest: 0,
    };
    let mut caller = Caller::new(Token::of_server(TOKEN).unwrap(), hello, name_of(0)).unwrap();
    stream.write_all(&caller.open()).unwrap();
    loop {
        let (header, payload) = frame(&mut stream);
        match caller.hear(&header, &payload).unwrap() {
            Said::Reply(reply) => stream.write_all(&reply).unwrap(),
            Said::Verdict(verdict) => {
                assert_eq!(verdict, Verdict::Ok);
                return stream;
            }
        }
    }
}

/// Wait until the other end has closed the connection.
pub fn wait_for_end(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the server keeps the connection: {error}"),
        }
    }
}

/// A worker that counts: SGD would do, and Adagrad's accumulators are as good.
pub struct Worker {
    client: Client,
    batch: Arc<Batch>,
    pub task: u64,
    pub last: Vec<f32>,
}

impl Worker {
    pub fn new(address: &Address) -> Worker {
        let client = Client::open("worker", &worker_key(), None, catalog()).unwrap();
        client.learn(
            [(0, address.clone())],
            (0..SLOTS).map(|slot| (slot, ENTRY)),
            0,
        );
        let ids: Vec<u64> = (0..40).collect();
        let batch = Arc::new(Batch::new(&catalog(), 0, &ids));
        let last = vec![0.0; 120];
        Worker {
            client,
            batch,
            task: 0,
            last,
        }
    }

    /// Push once, and see that exactly that has happened: each weight falls, by less each time.
    pub fn push(&mut self) {
        let head = Head {
            seen: UNSEEN,
            stamp: Some(Stamp {
                task: self.task,
                chunk: 0,
            }),
            low: 0,
            roll_back: 0,
            pace: Pace { rate: 1.0, step: 0 },
        };
        let rows = [(self.batch.clone(), vec![1.0; 120].into())];
        let pushed = Pushed::new(self.client.catalog(), false, head, &rows, &[], false);
        let limit = Duration::from_secs(60);
        let ticket = self.client.ask(None, Some(pushed));
        assert_eq!(self.client.take_end(ticket, limit), Some(End::Settled));
        self.task += 1;
        let wanted = Wanted {
            chunk: None,
            batches: vec![self.batch.clone()],
            ..Wanted::default()
        };
        let ticket = self.client.ask(Some(wanted), None);
        let found = self
            .client
            .take_found(ticket, limit)
            .unwrap()
            .expect("rows");
        let expected = 1.0 / (self.task as f32 + 0.1).sqrt();
        for (before, after) in self.last.iter().zip(&found.rows[0]) {
            assert!(
                (before - after - expected).abs() < 1e-4,
                "{before} {after} {expected}"
            );
        }
        self.last.clone_from(&found.rows[0]);
    }
}
