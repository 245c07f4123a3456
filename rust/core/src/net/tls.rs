//! A TLS session beside a socket: what goes out is encrypted, what comes in is decrypted, and nothing ever blocks.
//!
//! TLS 1.3 (RFC 8446) by rustls; both ends show a certificate of the job's own authority, and both look at the name in it, which is a role and
//! no address. Not a stream of its own: sockets and waits are the affair of `address` and of those who poll. What a caller has to send is
//! in the kernel, as without TLS, so that no ciphertext can stay behind here while everybody sleeps.
use std::fmt;
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::net::address::Socket;
use crate::net::error::{Error, Result};

/// Most bytes that are encrypted before the kernel has taken them: four of the largest records.
const CHUNK: usize = 64 * 1024;
/// A connection that carries little keeps a small buffer; one that fills it gets a larger one.
const STAGED: Range<usize> = 4 * 1024..128 * 1024;

/// Whose certificate is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Master,
    Worker,
}

impl Role {
    /// Return the name in the role's certificate; `elasticdl.control.transport.tls` has the same.
    fn name(self) -> ServerName<'static> {
        let name = match self {
            Role::Master => "master.elasticdl",
            Role::Worker => "worker.elasticdl",
        };
        ServerName::try_from(name).expect("a DNS name")
    }
}

/// Why the other end is not believed, or does not believe this one. Found in an `io::Error`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Untrusted(String);

impl From<rustls::Error> for Untrusted {
    fn from(error: rustls::Error) -> Untrusted {
        use CertificateError::{
            BadSignature, NotValidForName, NotValidForNameContext, UnknownIssuer,
        };
        Untrusted(match error {
            rustls::Error::NoCertificatesPresented => "it shows no certificate".into(),
            // All jobs' authorities have one name, so that another job's certificate seems to be of this one, wrongly signed.
            rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => {
                "its certificate is not of this job's authority".into()
            }
            rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
                "its certificate is for another role".into()
            }
            rustls::Error::InvalidMessage(_) => format!("what it says is not TLS ({error})"),
            rustls::Error::AlertReceived(alert) => {
                format!("it does not accept this end: TLS alert {alert:?}")
            }
            error => format!("TLS: {error}"),
        })
    }
}

/// This end's certificate and the only authority that it believes.
#[derive(Clone)]
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// As `server`, for HTTP/2: gRPC's clients go away from who does not say that it speaks it.
    web: Arc<ServerConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

impl Identity {
    /// Take a certificate, its key and the authority that has signed it, all in PEM. What does not fit together is a `BadSetting`.
    pub fn new(authority: &[u8], certificate: &[u8], key: &[u8]) -> Result<Identity> {
        fn bad(what: impl fmt::Display) -> Error {
            Error::BadSetting(format!("the job's certificate can't be used: {what}"))
        }
        let certificates = |pem| {
            let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
                .collect::<std::result::Result<_, _>>()
                .map_err(bad)?;
            if found.is_empty() {
                return Err(bad("there is none in the text"));
            }
            Ok(found)
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(bad)?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(bad)?;
        let provider = Arc::new(CryptoProvider {
            // The fastest one where there are instructions for AES; both ends are of one version, so there is nothing to negotiate.
            cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
            ..ring::default_provider()
        });
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(bad)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(bad)?;
        client.resumption = Resumption::disabled();
        let chained = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(bad)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(bad)?
            .with_client_cert_verifier(Arc::new(WorkersOnly(chained)))
            .with_single_cert(chain, key)
            .map_err(bad)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut web = server.clone();
        web.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Identity {
            client: Arc::new(client),
            server: Arc::new(server),
            web: Arc::new(web),
        })
    }

    /// Begin the session of a connection that this end has made.
    pub(crate) fn dial(&self, whom: Role) -> Result<Session> {
        ClientConnection::new(self.client.clone(), whom.name())
            .map(|connection| Session::new(connection.into()))
            .map_err(|error| Error::io("no TLS session", io::Error::other(error)))
    }

    /// Begin the session of a connection that has come.
    pub(crate) fn answer(&self) -> Result<Session> {
        accept(&self.server)
    }

    /// Begin the session of a connection that has come and speaks HTTP/2.
    pub(crate) fn answer_web(&self) -> Result<Session> {
        accept(&self.web)
    }
}

fn accept(config: &Arc<ServerConfig>) -> Result<Session> {
    ServerConnection::new(config.clone())
        .map(|connection| Session::new(connection.into()))
        .map_err(|error| Error::io("no TLS session", io::Error::other(error)))
}

/// Lets in workers of the job and nobody else: masters dial nobody. Only the name is looked at here, the rest is rustls's.
#[derive(Debug)]
struct WorkersOnly(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for WorkersOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(
            &ParsedCertificate::try_from(end_entity)?,
            &Role::Worker.name(),
        )?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// One connection's session. Its calls are those of a socket, and return `WouldBlock` as those do, also while the handshake lasts.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Connection,
    /// The handshake is over: the other end is who it must be.
    up: bool,
    /// What has come from the socket; rustls has not taken `unread` yet.
    staged: Vec<u8>,
    unread: Range<usize>,
    /// Bytes of the caller that are encrypted but not all in the kernel; its next call begins with them again.
    owed: usize,
    /// The other end has said that nothing more comes.
    closed: bool,
    failed: Option<Untrusted>,
}

struct Wire<'a>(&'a Socket);

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    fn new(mut connection: Connection) -> Session {
        // `send` gives it no more than a chunk at a time.
        connection.set_buffer_limit(None);
        Session {
            connection,
            up: false,
            staged: Vec::new(),
            unread: 0..0,
            owed: 0,
            closed: false,
            failed: None,
        }
    }

    /// Go on with the handshake; `WouldBlock` while it is not over.
    pub fn shake(&mut self, socket: &Socket) -> io::Result<()> {
        while !self.up {
            if !self.advance(socket)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Send from `parts`; all that is returned as sent is in the kernel. After `WouldBlock` the next call has to begin with the same bytes.
    pub fn send(&mut self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shake(socket)?;
        self.flush(socket)?;
        if self.owed == 0 {
            let mut left = CHUNK;
            let chunk: Vec<IoSlice<'_>> = parts
                .iter()
                .map(|part| {
                    let taken = part.len().min(left);
                    left -= taken;
                    IoSlice::new(&part[..taken])
                })
                .filter(|part| !part.is_empty())
                .collect();
            self.owed = self.connection.writer().write_vectored(&chunk)?;
            self.flush(socket)?;
        }
        debug_assert!(self.owed <= parts.iter().map(|part| part.len()).sum());
        Ok(std::mem::take(&mut self.owed))
    }

    /// Receive what is there; 0 is the end that the other end has announced.
    pub fn receive(&mut self, socket: &Socket, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let mut got = self.take(parts, 0);
        while got < wanted {
            let advanced = self.advance(socket);
            got += self.take(parts, got);
            match advanced {
                Ok(true) => {}
                Err(error) if got == 0 => return Err(error),
                Ok(false) | Err(_) => break,
            }
        }
        Ok(got)
    }

    /// Look at what comes next without taking it.
    pub fn peek(&mut self, socket: &Socket, bytes: &mut [u8]) -> io::Result<usize> {
        let mut open = true;
        loop {
            if let Ok(next) = self.connection.reader().fill_buf()
                && !next.is_empty()
            {
                let count = next.len().min(bytes.len());
                bytes[..count].copy_from_slice(&next[..count]);
                return Ok(count);
            }
            if !open {
                return Ok(0);
            }
            // The last bytes and the end may come in one step.
            open = self.advance(socket)?;
        }
    }

    /// Say that nothing more comes, if that goes without waiting.
    pub fn finish(&mut self, socket: &Socket) {
        if self.up {
            self.connection.send_close_notify();
            let _ = self.flush(socket);
        }
    }

    /// Whether a caller's bytes are partly out, so that nothing else may follow yet.
    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Whether the handshake is not over: what a caller has to say waits for the other end, or for room (`is_full`).
    pub fn is_shaking(&self) -> bool {
        !self.up
    }

    /// Whether the kernel had no room for ciphertext.
    pub fn is_full(&self) -> bool {
        self.connection.wants_write()
    }

    /// Copy plaintext that is there behind the first `from` bytes of `parts`.
    fn take(&mut self, parts: &mut [IoSliceMut<'_>], from: usize) -> usize {
        let (mut skip, mut taken) = (from, 0);
        let mut reader = self.connection.reader();
        for part in parts {
            let start = skip.min(part.len());
            skip -= start;
            let place = &mut part[start..];
            // An error is the lack of plaintext: `advance` knows why.
            let count = reader.read(place).unwrap_or(0);
            taken += count;
            if count < place.len() {
                break;
            }
        }
        taken
    }

    /// Take one step with what comes from the socket; false at the announced end.
    fn advance(&mut self, socket: &Socket) -> io::Result<bool> {
        if let Some(failed) = &self.failed {
            return Err(io::Error::new(io::ErrorKind::InvalidData, failed.clone()));
        }
        if self.closed {
            return Ok(false);
        }
        // What can't go out now has to wait; that the other end is gone shows in what comes from it, with the reason.
        let _ = self.flush(socket);
        if self.unread.is_empty() {
            self.fill(socket)?;
        }
        let mut rest = &self.staged[self.unread.clone()];
        let fed = self.connection.read_tls(&mut rest)?;
        self.unread.start += fed;
        let state = match self.connection.process_new_packets() {
            Ok(state) => state,
            Err(error) => {
                // The other end learns why.
                let _ = self.flush(socket);
                let failed = self.failed.insert(error.into()).clone();
                return Err(io::Error::new(io::ErrorKind::InvalidData, failed));
            }
        };
        self.up |= !self.connection.is_handshaking();
        self.closed = state.peer_has_closed();
        let _ = self.flush(socket);
        if fed == 0 && !self.closed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(!self.closed)
    }

    fn fill(&mut self, socket: &Socket) -> io::Result<()> {
        if self.unread.end == self.staged.len() {
            let larger = (4 * self.staged.len()).clamp(STAGED.start, STAGED.end);
            self.staged.resize(larger, 0);
        }
        self.unread = 0..0;
        let got = socket.receive(&mut [IoSliceMut::new(&mut self.staged)])?;
        if got == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it ended without a word of goodbye",
            ));
        }
        self.unread = 0..got;
        Ok(())
    }

    fn flush(&mut self, socket: &Socket) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Wire(socket))?;
        }
        Ok(())
    }
}
