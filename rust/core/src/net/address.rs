//! Addresses and streams: Unix sockets between members of one host, TCP otherwise, with TLS where the job has certificates. Everything here is
//! non-blocking, but for the search for a host that is given by its name.
use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::net::admission::Source;
use crate::net::error::{Error, Result};
use crate::net::tls::Session;

/// As many as the kernel allows at most unless it is configured otherwise: the queue has to hold what comes while its thread does something else.
const BACKLOG: i32 = 4096;
const TCP_BUFFER: usize = 1 << 20;
const UNIX_BUFFER: usize = 2 << 20;
/// After so long without a byte, and between two questions whether the other machine lives; so many stay without answer.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Where a data plane listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() || path.len() > 107 {
                return Err(Error::BadSetting(format!(
                    "address {text:?}: the path of a Unix socket has 1 to 107 bytes, this one has {}; choose a shorter directory",
                    path.len()
                )));
            }
            return Ok(Address::Unix(path.into()));
        }
        let wrong = || {
            Error::BadSetting(format!(
                "address {text:?}: expected unix:PATH or tcp:HOST:PORT"
            ))
        };
        let (host, port) = text
            .strip_prefix("tcp:")
            .and_then(|rest| rest.rsplit_once(':'))
            .ok_or_else(wrong)?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Address::Tcp {
            host: host.into(),
            port: port.parse().map_err(|_| wrong())?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

/// A stream socket as the kernel has it, non-blocking, closed on exec.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    tcp: bool,
}

impl Socket {
    // Best effort: a kernel that refuses an option still moves the bytes.
    fn tune(&self) {
        let size = if self.tcp { TCP_BUFFER } else { UNIX_BUFFER };
        let _ = sockopt::set_socket_send_buffer_size(&self.descriptor, size);
        if self.tcp {
            let _ = sockopt::set_socket_recv_buffer_size(&self.descriptor, size);
            let _ = sockopt::set_tcp_nodelay(&self.descriptor, true);
            // A machine that is gone closes nothing.
            let _ = sockopt::set_socket_keepalive(&self.descriptor, true);
            let _ = sockopt::set_tcp_keepidle(&self.descriptor, KEEPALIVE);
            let _ = sockopt::set_tcp_keepintvl(&self.descriptor, KEEPALIVE);
            let _ = sockopt::set_tcp_keepcnt(&self.descriptor, KEEPALIVE_PROBES);
        }
    }

    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            // std's `write_vectored` would raise SIGPIPE in a process that does not ignore it.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(
                &self.descriptor,
                parts,
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Err(Errno::INTR) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    pub fn receive(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            match rustix::net::recvmsg(
                &self.descriptor,
                parts,
                &mut RecvAncillaryBuffer::default(),
                RecvFlags::DONTWAIT,
            ) {
                Err(Errno::INTR) => {}
                outcome => return Ok(outcome?.bytes),
            }
        }
    }

    fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(
            &self.descriptor,
            bytes,
            RecvFlags::DONTWAIT | RecvFlags::PEEK,
        )?
        .0)
    }
}

/// A connected (or connecting) stream: a socket, and a TLS session beside it if the connection has one.
///
/// With a session, a poll does not see what has been decrypted already: who waits for bytes has received until `WouldBlock` before. And after a
/// `WouldBlock`, the next call to send begins with the same bytes.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    /// In a cell because a stream is used like a socket, whose state is the kernel's.
    session: Option<RefCell<Box<Session>>>,
}

impl Stream {
    /// Start to connect; the socket becomes writable when it is done or has failed (`Stream::outcome`).
    pub fn connect(address: &Address) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (descriptor, tcp, outcome) = match address {
            Address::Unix(path) => {
                let descriptor =
                    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                let outcome = rustix::net::connect(&descriptor, &SocketAddrUnix::new(path)?);
                (descriptor, false, outcome)
            }
            Address::Tcp { host, port } => {
                let to = resolve(host, *port)?;
                let family = if to.is_ipv4() {
                    AddressFamily::INET
                } else {
                    AddressFamily::INET6
                };
                let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
                if to.ip().is_loopback() {
                    prefer_reno(&descriptor);
                }
                let outcome = rustix::net::connect(&descriptor, &to);
                (descriptor, true, outcome)
            }
        };
        match outcome {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Stream::plain(descriptor, tcp))
    }

    /// Connect to the Unix socket `to` from one that is called `name`, which who accepts it sees.
    pub(crate) fn connect_as(name: &Path, to: &Path) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let descriptor =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&descriptor, &SocketAddrUnix::new(name)?)?;
        let outcome = rustix::net::connect(&descriptor, &SocketAddrUnix::new(to)?);
        // The socket keeps its name without the file.
        std::fs::remove_file(name)?;
        outcome?;
        Ok(Stream::plain(descriptor, false))
    }

    /// Give the connection up when what was sent has not been received for so long: a machine that is gone closes nothing.
    pub(crate) fn limit_silence(&self, limit: Duration) {
        if self.socket.tcp {
            let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            // Best effort, as in `tune`.
            let _ = sockopt::set_tcp_user_timeout(&self.socket.descriptor, limit);
        }
    }

    fn plain(descriptor: OwnedFd, tcp: bool) -> Stream {
        let socket = Socket { descriptor, tcp };
        socket.tune();
        Stream {
            socket,
            session: None,
        }
    }

    /// From now on speak through a session. Only before the first byte.
    pub(crate) fn secure(&mut self, session: Session) {
        self.session = Some(RefCell::new(Box::new(session)));
    }

    /// Whether the connection may leave this host.
    pub(crate) fn is_tcp(&self) -> bool {
        self.socket.tcp
    }

    /// Return how a connection attempt ended, once the socket is writable.
    pub fn outcome(&self) -> io::Result<()> {
        sockopt::socket_error(&self.socket.descriptor)?.map_err(io::Error::from)
    }

    /// Go on with the session's handshake; `WouldBlock` while it is not over.
    pub(crate) fn shake(&self) -> io::Result<()> {
        match &self.session {
            Some(session) => session.borrow_mut().shake(&self.socket),
            None => Ok(()),
        }
    }

    /// Send what fits at once.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.session {
            Some(session) => session.borrow_mut().send(&self.socket, parts),
            None => self.socket.send(parts),
        }
    }

    /// Receive what is there; 0 is the end of the stream.
    pub fn receive(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &self.session {
            Some(session) => session.borrow_mut().receive(&self.socket, parts),
            None => self.socket.receive(parts),
        }
    }

    /// Look at what comes next without taking it; 0 is the end of the stream.
    pub fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match &self.session {
            Some(session) => session.borrow_mut().peek(&self.socket, bytes),
            None => self.socket.peek(bytes),
        }
    }

    /// Whether bytes that were given to `send` are partly out and must be repeated before anything else is sent.
    pub fn owes(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.borrow().owes())
    }

    /// Return what to poll for while bytes are awaited; `sends`: the caller also has some to send.
    pub fn interest(&self, sends: bool) -> PollFlags {
        let out = match &self.session {
            Some(session) => {
                let session = session.borrow();
                // In a handshake there is always room, but the other end has to speak first.
                session.is_full() || (sends && !session.is_shaking())
            }
            None => sends,
        };
        if out {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        }
    }

    /// Send a few bytes with descriptors; only Unix sockets can.
    pub fn send_descriptors(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(
            &self.socket.descriptor,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            flags,
        )?;
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// Receive bytes with the descriptors that came with them.
    pub fn receive_descriptors(&self, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(
            &self.socket.descriptor,
            &mut [IoSliceMut::new(bytes)],
            &mut ancillary,
            flags,
        )?
        .bytes;
        let descriptors = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        Ok((got, descriptors))
    }

    /// Half-close: the other end reads what was sent, then the end of the stream.
    pub fn finish(&self) {
        self.say_goodbye();
        let _ = rustix::net::shutdown(&self.socket.descriptor, Shutdown::Write);
    }

    fn say_goodbye(&self) {
        if let Some(session) = &self.session {
            session.borrow_mut().finish(&self.socket);
        }
    }

    /// Return `unix`, or `tcp/` and the congestion control in force, or that with `tls+` before it.
    pub fn transport(&self) -> String {
        if !self.socket.tcp {
            return "unix".into();
        }
        format!(
            "{}tcp/{}",
            if self.session.is_some() { "tls+" } else { "" },
            sockopt::tcp_congestion(&self.socket.descriptor).unwrap_or_else(|_| "unknown".into())
        )
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.descriptor.as_fd()
    }
}

// Loopback has no congestion; pacing ones such as bbr cost a third of the throughput there.
fn prefer_reno(descriptor: &OwnedFd) {
    let _ = sockopt::set_tcp_congestion(descriptor, "reno");
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Unix,
    Tcp(SocketAddr),
}

impl Origin {
    /// Return what shares one part of the room for handshakes.
    pub fn source(self) -> Source {
        match self {
            Origin::Unix => Source::Host,
            Origin::Tcp(address) => address.into(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Unix => f.write_str("this host"),
            Origin::Tcp(address) => address.fmt(f),
        }
    }
}

/// Whether this process or its machine lacks what a connection takes: no fault of the other end, and it passes.
pub(crate) fn is_own_lack(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .map(Errno::from_raw_os_error)
        .is_some_and(|lack| {
            matches!(
                lack,
                Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS
            )
        })
}

/// A listening socket; a Unix socket's path is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
    address: Address,
    local: bool,
}

impl Listener {
    /// Listen at `address`; the socket file of a dead process is replaced.
    pub fn bind(address: &Address) -> Result<Listener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let failed = |error: io::Error| {
            if error.kind() == io::ErrorKind::AddrInUse {
                Error::BadSetting(format!(
                    "address {address} is in use by another process; choose another one, or stop that process"
                ))
            } else {
                Error::BadSetting(format!("cannot listen at {address}: {error}"))
            }
        };
        let (descriptor, address, local) = match address {
            Address::Unix(path) => {
                let descriptor =
                    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                        .map_err(|e| failed(e.into()))?;
                bind_unix(&descriptor, path).map_err(failed)?;
                (descriptor, address.clone(), true)
            }
            Address::Tcp { host, port } => {
                let at = resolve(host, *port).map_err(failed)?;
                let family = if at.is_ipv4() {
                    AddressFamily::INET
                } else {
                    AddressFamily::INET6
                };
                let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
                    .map_err(|e| failed(e.into()))?;
                sockopt::set_socket_reuseaddr(&descriptor, true).map_err(|e| failed(e.into()))?;
                if at.ip().is_loopback() {
                    // Accepted connections inherit it.
                    prefer_reno(&descriptor);
                }
                rustix::net::bind(&descriptor, &at).map_err(|e| failed(e.into()))?;
                let bound: SocketAddr = rustix::net::getsockname(&descriptor)
                    .map_err(|e| failed(e.into()))?
                    .try_into()
                    .map_err(|e: Errno| failed(e.into()))?;
                (
                    descriptor,
                    Address::Tcp {
                        host: host.clone(),
                        port: bound.port(),
                    },
                    bound.ip().is_loopback(),
                )
            }
        };
        rustix::net::listen(&descriptor, BACKLOG).map_err(|e| failed(e.into()))?;
        Ok(Listener {
            descriptor,
            address,
            local,
        })
    }

    /// Return where it listens in fact.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether only processes of this host can come.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// Return a connection that has come, if any, and where it comes from.
    pub fn accept(&self) -> io::Result<Option<(Stream, Origin)>> {
        let tcp = matches!(self.address, Address::Tcp { .. });
        match rustix::net::acceptfrom_with(
            &self.descriptor,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        ) {
            Ok((descriptor, from)) => {
                let origin = from
                    .filter(|_| tcp)
                    .and_then(|from| SocketAddr::try_from(from).ok())
                    .map_or(Origin::Unix, Origin::Tcp);
                Ok(Some((Stream::plain(descriptor, tcp), origin)))
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_unix(descriptor: &OwnedFd, path: &Path) -> io::Result<()> {
    let address = SocketAddrUnix::new(path)?;
    match rustix::net::bind(descriptor, &address) {
        Err(Errno::ADDRINUSE) if is_abandoned(path) => {
            std::fs::remove_file(path)?;
            rustix::net::bind(descriptor, &address)?;
        }
        outcome => outcome?,
    }
    // Before `listen`, so that nobody else's connection is ever accepted.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    Ok(())
}

fn is_abandoned(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = Stream::connect(&Address::Unix(path.into()))
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    is_socket && refused
}
