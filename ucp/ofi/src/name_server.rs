//! Names of endpoints by node and service. An endpoint whose `fi_getinfo` had a service and `FI_SOURCE` tells
//! its name to whoever connects to that TCP port; `fi_getinfo` with a node and a service asks for it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::info::NameForm;
use crate::sockaddr;

/// A whole request, and the beginning of an answer.
const MAGIC: [u8; 8] = *b"efa4nam1";
/// Beginning of a source address that stands for a service.
const RECORD: [u8; 4] = *b"@svc";
/// Longest name, bytes.
const MAX_NAME: usize = NameForm::Scalable.len();
/// Time that one client has, so that others wait no longer.
const SERVE_WITHIN: Duration = Duration::from_secs(1);
/// Time for each step of a question.
const ASK_WITHIN: Duration = Duration::from_secs(5);

/// A name that an endpoint has told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    /// Address format of libfabric.
    format: u32,
    /// Without the zeros at its end.
    name: Vec<u8>,
}

impl Told {
    /// The name in another domain, or why it is none there.
    pub(crate) fn in_form(&self, form: NameForm) -> Result<Vec<u8>, String> {
        if self.format != form.format() {
            return Err(format!("the endpoint there has a name of format {:#x}", self.format));
        }
        if self.name.len() > form.len() {
            return Err(format!("the endpoint there has a name of {} bytes", self.name.len()));
        }
        let mut name = self.name.clone();
        name.resize(form.len(), 0);
        Ok(name)
    }
}

/// The source address of an endpoint that serves its name at `addr`.
pub(crate) fn record(addr: SocketAddr, form: NameForm) -> Vec<u8> {
    let mut bytes = RECORD.to_vec();
    bytes.extend(sockaddr::write(addr));
    bytes.resize(form.len(), 0);
    bytes
}

/// Where an endpoint with this source address serves its name. `None`: it is no such address.
pub(crate) fn recorded(src_addr: &[u8]) -> Option<SocketAddr> {
    sockaddr::read(src_addr.strip_prefix(&RECORD)?)
}

/// Asks for the name of the endpoint that serves it at one of these addresses.
pub(crate) fn ask(addrs: &[SocketAddr]) -> Result<Told, String> {
    let mut why = "there is no address to ask".to_owned();
    for addr in addrs {
        match ask_at(*addr) {
            Ok(told) => return Ok(told),
            Err(error) => why = format!("no endpoint tells its name at {addr}: {error}"),
        }
    }
    Err(why)
}

fn ask_at(addr: SocketAddr) -> io::Result<Told> {
    let mut stream = TcpStream::connect_timeout(&addr, ASK_WITHIN)?;
    stream.set_read_timeout(Some(ASK_WITHIN))?;
    stream.set_write_timeout(Some(ASK_WITHIN))?;
    stream.write_all(&MAGIC)?;
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let len = word(12) as usize;
    if head[..8] != MAGIC || len > MAX_NAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "that is another service"));
    }
    let mut name = vec![0; len];
    stream.read_exact(&mut name)?;
    Ok(Told { format: word(8), name })
}

/// The service of an endpoint, if it was asked for with one.
#[derive(Default)]
pub(crate) struct Service {
    at: Option<SocketAddr>,
    server: OnceLock<Option<NameServer>>,
}

impl Service {
    /// The service in an endpoint's source address.
    pub(crate) fn of(src_addr: &[u8]) -> Service {
        Service { at: recorded(src_addr).filter(|addr| addr.port() != 0), server: OnceLock::new() }
    }

    /// Serves a name from now on. A port that another endpoint has leaves it without: names may be exchanged
    /// otherwise.
    pub(crate) fn start(&self, name: &[u8], form: NameForm) {
        let Some(at) = self.at else { return };
        self.server.get_or_init(|| match NameServer::start(at, name, form) {
            Ok(server) => Some(server),
            Err(error) => {
                tracing::info!("fi_enable: the endpoint does not tell its name at {at}: {error}");
                None
            }
        });
    }
}

/// A thread that tells a name. Ends when it is dropped.
struct NameServer {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
    /// Process of the thread.
    pid: u32,
}

impl NameServer {
    fn start(at: SocketAddr, name: &[u8], form: NameForm) -> io::Result<NameServer> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let len = name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let mut answer = MAGIC.to_vec();
        answer.extend(form.format().to_le_bytes());
        answer.extend((len as u32).to_le_bytes());
        answer.extend(&name[..len]);
        let builder = std::thread::Builder::new().name("efa4-names".into());
        let thread = builder.spawn(move || serve(&listener, &stopped, &answer))?;
        Ok(NameServer { stop, thread: Some(thread), pid: std::process::id() })
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // A forked child has no such thread.
            std::mem::forget(self.thread.take());
            return;
        }
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that tells an endpoint's name has panicked");
        }
    }
}

/// Answers clients until the other end of `stopped` is shut down.
fn serve(listener: &TcpListener, stopped: &UnixStream, answer: &[u8]) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        let mut fds = [entry(listener.as_raw_fd()), entry(stopped.as_raw_fd())];
        // SAFETY: the kernel writes to these two entries.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        let is_interrupted = ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if ready < 0 && !is_interrupted || fds[1].revents != 0 {
            return;
        }
        if let Ok((client, _)) = listener.accept() {
            // A client that asks for something else, or leaves, gets nothing.
            let _ = tell(client, answer);
        }
    }
}

fn tell(mut client: TcpStream, answer: &[u8]) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(SERVE_WITHIN))?;
    client.set_write_timeout(Some(SERVE_WITHIN))?;
    let mut request = [0; MAGIC.len()];
    client.read_exact(&mut request)?;
    if request == MAGIC { client.write_all(answer) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_addr() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[test]
    fn names_are_told_and_padded() {
        let addr = free_addr();
        assert!(ask(&[addr]).is_err());
        let mut name = vec![7; 30];
        name.resize(64, 0);
        let service = Service::of(&record(addr, NameForm::Efa));
        service.start(&name, NameForm::Packed);
        // Another endpoint of the port has no server, and no error.
        Service::of(&record(addr, NameForm::Packed)).start(&[1; 64], NameForm::Packed);
        // A client that asks for something else gets nothing.
        let mut other = TcpStream::connect(addr).unwrap();
        other.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut text = Vec::new();
        assert!(other.read_to_end(&mut text).is_err() || text.is_empty());
        let told = ask(&[free_addr(), addr]).unwrap();
        assert_eq!(told.in_form(NameForm::Packed).unwrap(), name);
        assert_eq!(told.in_form(NameForm::Wide).unwrap().len(), 512);
        assert!(told.in_form(NameForm::Efa).is_err());
        drop(service);
        assert!(ask(&[addr]).is_err());
    }

    #[test]
    fn a_source_address_stands_for_a_service() {
        for text in ["1.2.3.4:5", "[fe80::1]:9"] {
            let addr: SocketAddr = text.parse().unwrap();
            for form in [NameForm::Efa, NameForm::Packed] {
                let bytes = record(addr, form);
                assert_eq!((bytes.len(), recorded(&bytes)), (form.len(), Some(addr)));
            }
        }
        assert_eq!(recorded(&[0; 64]), None);
    }
}
