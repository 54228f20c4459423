//! The thread of the fd server: answers requests at the socket and notifies of deaths. Started and stopped by
//! `mod.rs`. No client can make it wait: each is served when it is ready.

use super::client_table::ClientTable;
use super::guess_limit::GuessLimit;
use super::namespace::{ProcKey, SocketNamespace};
use super::wire::{BUF_LEN, KeepOpen, MAX_FDS, MAX_NAMES, PerName, Reply, Request, Status};
use super::{Capability, ExportEntry, ExportKind, Shared, lock};
use crate::api::Error;
use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use std::cell::RefCell;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use ucs::sys::fd::close_elsewhere;
use ucs::sys::proc::refuse_descriptors;
use ucs::sys::{EventFd, PeerCred};
use zerocopy::IntoBytes;

/// Tokens of the epoll set, above those of processes (40 bits): listener, stop event, clients.
const LISTENER: u64 = 1 << 60;
const STOP: u64 = LISTENER + 1;
const FIRST_CLIENT: u64 = 1 << 61;

/// Pause in accepting when the process or the system is out of descriptors.
const BACKOFF: Duration = Duration::from_millis(20);

pub struct ServerThread {
    listener: OwnedFd,
    /// Whether connections carry no descriptors, so that closing them takes no time.
    closes_at_once: bool,
    namespace: SocketNamespace,
    shared: Arc<Shared>,
    clients: ClientTable,
    guesses: RefCell<GuessLimit>,
    next_token: u64,
    /// Kept for a client that connects when none is left; while it is in use, clients wait in the backlog.
    spare: Option<EventFd>,
}

#[expect(clippy::large_enum_variant, reason = "it is used where it is made, one at a time")]
enum Received {
    /// A request, its names looked up.
    Request(PerName<Lookup>, KeepOpen),
    Nothing,
    HungUp,
}

impl ServerThread {
    pub fn new(
        listener: OwnedFd,
        namespace: SocketNamespace,
        shared: Arc<Shared>,
    ) -> Result<ServerThread, ucs::Errno> {
        shared.watches.epoll().add(&listener, LISTENER)?;
        shared.watches.epoll().add(&shared.stop, STOP)?;
        let spare = Some(EventFd::new()?);
        let (clients, guesses) = (ClientTable::new(), RefCell::new(GuessLimit::new()));
        let closes_at_once = refuse_descriptors(&listener);
        Ok(ServerThread {
            listener,
            closes_at_once,
            namespace,
            shared,
            clients,
            guesses,
            next_token: FIRST_CLIENT,
            spare,
        })
    }

    pub fn run(mut self) {
        let mut tokens = Vec::new();
        loop {
            tokens.clear();
            if let Err(errno) = self.shared.watches.epoll().wait(&mut tokens, self.timeout()) {
                tracing::warn!(%errno, "the fd server cannot wait");
                std::thread::sleep(BACKOFF);
            }
            for &token in &tokens {
                match token {
                    STOP => return,
                    LISTENER => self.accept(),
                    token if token >= FIRST_CLIENT => self.serve(token),
                    token => {
                        self.shared.watches.on_exit(ProcKey(token));
                        // Its socket file, if it left one in a directory.
                        self.namespace.unlink(ProcKey(token));
                    }
                }
            }
            self.resume_accept();
            while let Some(token) = self.clients.overdue() {
                self.remove(token);
            }
        }
    }

    /// Nobody notifies of descriptors that are free again, or of a client that stays silent.
    fn timeout(&self) -> Option<Duration> {
        if self.spare.is_none() { Some(BACKOFF) } else { self.clients.next_overdue() }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut accepted = rustix::net::accept_with(&self.listener, flags);
        if matches!(accepted, Err(Errno::MFILE | Errno::NFILE)) && self.spare.take().is_some() {
            let _ = self.shared.watches.epoll().remove(&self.listener);
            accepted = rustix::net::accept_with(&self.listener, flags);
        }
        match accepted {
            Ok(client) if PeerCred::of(&client).is_ok_and(PeerCred::is_same_user) => self.seat(client),
            // Another user's gets one answer, and no seat.
            Ok(stranger) => {
                let _ = reply(&stranger, &[const { Err(Status::Denied) }; MAX_NAMES]);
                self.close(stranger);
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::MFILE | Errno::NFILE) => {
                tracing::warn!("the fd server cannot accept a client: {}", Error::NoDescriptor);
                std::thread::sleep(BACKOFF);
            }
            Err(errno) => {
                tracing::warn!(%errno, "the fd server cannot accept a client");
                std::thread::sleep(BACKOFF);
            }
        }
    }

    /// Closes a connection, in which its client may have put descriptors that it takes long to close.
    fn close(&self, client: OwnedFd) {
        if !self.closes_at_once {
            close_elsewhere(vec![client]);
        }
    }

    fn seat(&mut self, client: OwnedFd) {
        // The request mostly arrives with the connection.
        match self.receive(&client) {
            Received::Request(lookups, KeepOpen::No) => {
                let _ = reply(&client, &lookups);
                self.close(client);
            }
            // Before the reply: the end of a kept connection is the notification of a death.
            Received::Request(lookups, KeepOpen::Yes) => match self.register(&client) {
                Some(token) => {
                    self.clients.add_answered(token, client);
                    self.reply_to(token, &lookups);
                }
                None => {
                    let _ = reply(&client, &retry_later(&lookups));
                    self.close(client);
                }
            },
            Received::Nothing => match self.register(&client) {
                Some(token) => self.clients.add_silent(token, client),
                // It sees the hang-up and connects again.
                None => self.close(client),
            },
            Received::HungUp => self.close(client),
        }
    }

    /// Watches a client for further input, if it may stay.
    fn register(&mut self, client: &OwnedFd) -> Option<u64> {
        while let Some(silent) = self.clients.client_to_evict() {
            self.remove(silent);
        }
        let token = self.next_token;
        self.next_token += 1;
        if !self.clients.has_room() {
            tracing::warn!("the fd server rejects a client: its connections take half of the descriptors");
            return None;
        }
        match self.shared.watches.epoll().add(client, token) {
            Ok(()) => Some(token),
            Err(errno) => {
                tracing::warn!(%errno, "the fd server rejects a client");
                None
            }
        }
    }

    fn resume_accept(&mut self) {
        if self.spare.is_none()
            && let Ok(spare) = EventFd::new()
            && self.shared.watches.epoll().add(&self.listener, LISTENER).is_ok()
        {
            self.spare = Some(spare);
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(client) = self.clients.get(token) else { return };
        match self.receive(client) {
            Received::Request(lookups, keep_open) => {
                self.clients.note_request(token);
                self.reply_to(token, &lookups);
                if keep_open == KeepOpen::No {
                    self.remove(token);
                }
            }
            Received::Nothing => {}
            Received::HungUp => self.remove(token),
        }
    }

    fn reply_to(&mut self, token: u64, lookups: &[Lookup]) {
        let Some(client) = self.clients.get(token) else { return };
        match reply(client, lookups) {
            // A client that does not read gets no reply.
            Ok(_) | Err(Errno::AGAIN) => {}
            // The client sees the hang-up and queries again.
            Err(errno) => {
                tracing::debug!(%errno, "the fd server cannot answer");
                self.remove(token);
            }
        }
    }

    fn remove(&mut self, token: u64) {
        if let Some(client) = self.clients.remove(token) {
            // Closing would do, unless a forked child holds a copy.
            let _ = self.shared.watches.epoll().remove(&client);
            self.close(client);
        }
    }

    /// Receives a request, if there is one, and looks its names up.
    fn receive(&self, client: &OwnedFd) -> Received {
        let mut bytes = [0; BUF_LEN];
        let len = match rustix::net::recv(client, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, len)) if len > 0 => len,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            _ => return Received::HungUp,
        };
        match Request::read(&bytes[..len.min(BUF_LEN)]) {
            Some((wanted, keep_open)) => {
                Received::Request(wanted.iter().map(|it| self.find(it)).collect(), keep_open)
            }
            // Malformed, or of another version: the reply tells ours.
            None => Received::Request(PerName::new(), KeepOpen::Yes),
        }
    }
}

impl ServerThread {
    /// The export, if the request proves that a key of it was given away.
    fn find(&self, wanted: &Capability) -> Lookup {
        let mut guesses = self.guesses.borrow_mut();
        let is_alias = wanted.name.is_alias();
        if is_alias && !guesses.may_look_up() {
            return Err(Status::RetryLater);
        }
        let found = lock(&self.shared.exports).get(&wanted.name.0).cloned();
        if is_alias && found.is_none() {
            guesses.note_wrong();
        }
        found.filter(|entry| is_alias || entry.nonce ^ wanted.nonce == 0).ok_or(Status::NotFound)
    }
}

type Lookup = Result<ExportEntry, Status>;

fn retry_later(lookups: &[Lookup]) -> PerName<Lookup> {
    lookups.iter().map(|lookups| Err(lookups.as_ref().err().copied().unwrap_or(Status::RetryLater))).collect()
}

fn reply(to: &OwnedFd, lookups: &[Lookup]) -> Result<usize, Errno> {
    let mut fd_count = lookups.len();
    loop {
        match reply_with(to, lookups, fd_count) {
            // The system limits the descriptors in flight. The client waits for the first one.
            Err(Errno::TOOMANYREFS) if fd_count > 0 => fd_count = usize::from(fd_count > 1),
            sent => return sent,
        }
    }
}

fn reply_with(to: &OwnedFd, lookups: &[Lookup], fd_count: usize) -> Result<usize, Errno> {
    let reply = Reply::new(lookups.iter().enumerate().map(|(n, lookups)| match lookups {
        Err(status) => *status,
        Ok(_) if n >= fd_count => Status::RetryLater,
        Ok(ExportEntry { kind: ExportKind::Memory(range), .. }) => Status::Memory(*range),
        Ok(ExportEntry { kind: ExportKind::Iface(_), .. }) => Status::Iface,
    }));
    let mut fds = ArrayVec::<BorrowedFd<'_>, MAX_FDS>::new();
    for ExportEntry { mem, kind, .. } in lookups[..fd_count].iter().flatten() {
        fds.push(mem.as_fd());
        if let ExportKind::Iface(wake) = kind {
            fds.push(wake.far_end());
        }
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[IoSlice::new(reply.as_bytes())], &mut ancillary, flags)
}
