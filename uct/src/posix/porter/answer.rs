//! The porter's thread: answers questions at the socket, and passes on deaths. Started and stopped by `mod.rs`.
//! Sleeps in the kernel otherwise. No peer can make it wait: whoever is slow is served when it is ready.

use super::place::{Place, ProcKey};
use super::wire::{Answer, Each, MOST_FDS, Question, ROOM, Stay, Verdict};
use super::{Exported, Name, Shared, What, lock};
use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use ucs::sys::{EventFd, PeerCred};
use zerocopy::IntoBytes;

/// Tokens of the epoll set above those of processes (40 bits): the socket, the end, and from there on callers.
const DOOR: u64 = 1 << 60;
const STOP: u64 = DOOR + 1;
const CALLERS: u64 = 1 << 61;

/// How long to leave the door alone when the process or the system is at its limits.
const REST: Duration = Duration::from_millis(20);

/// The thread's own.
pub struct Body {
    listener: OwnedFd,
    place: Place,
    shared: Arc<Shared>,
    callers: HashMap<u64, Caller>,
    next: u64,
    /// A descriptor, of a file of its own, kept for a caller who comes when the process has none left. While there is none to keep, the door is shut:
    /// whoever knocks waits, and has its answer when there is one again.
    spare: Option<EventFd>,
}

struct Caller {
    fd: OwnedFd,
    welcome: bool,
}

/// What a caller does now.
#[expect(clippy::large_enum_variant, reason = "it is used where it is made, one at a time")]
enum Heard {
    /// It asks, and stays or not.
    Asks(Each<Found>, Stay),
    /// It may ask (again).
    Waits,
    /// It is gone.
    Bye,
}

impl Body {
    /// Ready to run.
    pub fn new(listener: OwnedFd, place: Place, shared: Arc<Shared>) -> Result<Body, ucs::Errno> {
        shared.watches.epoll().add(&listener, DOOR)?;
        shared.watches.epoll().add(&shared.stop, STOP)?;
        let spare = Some(EventFd::new()?);
        Ok(Body { listener, place, shared, callers: HashMap::new(), next: CALLERS, spare })
    }

    /// Until stopped.
    pub fn run(mut self) {
        let mut tokens = Vec::new();
        loop {
            tokens.clear();
            // Nobody tells of descriptors that are free again.
            let most = self.spare.is_none().then_some(REST);
            if let Err(errno) = self.shared.watches.epoll().wait(&mut tokens, most) {
                tracing::warn!(%errno, "the porter cannot wait");
                std::thread::sleep(REST);
            }
            for &token in &tokens {
                match token {
                    STOP => return,
                    DOOR => self.receive(),
                    token if token >= CALLERS => self.serve(token),
                    token => {
                        self.shared.watches.strike(ProcKey(token));
                        // What it left in a directory; nothing else has a file of that name.
                        self.place.unlink(ProcKey(token));
                    }
                }
            }
            self.open_door();
        }
    }

    fn receive(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut came = rustix::net::accept_with(&self.listener, flags);
        if matches!(came, Err(Errno::MFILE | Errno::NFILE)) && self.spare.take().is_some() {
            let _ = self.shared.watches.epoll().remove(&self.listener);
            came = rustix::net::accept_with(&self.listener, flags);
        }
        match came {
            Ok(fd) => {
                let welcome = PeerCred::of(&fd).is_ok_and(PeerCred::is_our_user);
                let caller = Caller { fd, welcome };
                // The question mostly comes with the caller: then that is all, without a second turn.
                match self.hear(&caller) {
                    Heard::Asks(found, Stay::No) => drop(answer(&caller.fd, &found)),
                    // Before it is answered: the end of a connection that stays is the news of a death.
                    Heard::Asks(found, Stay::Yes) => match self.seat(caller) {
                        Ok(token) => self.answer_seated(token, &found),
                        Err(caller) => drop(answer(&caller.fd, &later(&found))),
                    },
                    // Who is sent away unheard comes again.
                    Heard::Waits => drop(self.seat(caller)),
                    Heard::Bye => {}
                }
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // Also if it is the system that has none left, and another process was faster.
            Err(errno) => {
                tracing::warn!(%errno, "the porter cannot receive a caller");
                std::thread::sleep(REST);
            }
        }
    }

    /// Has a caller wait for its next question, or for its leave; or gives it back.
    fn seat(&mut self, caller: Caller) -> Result<u64, Caller> {
        let token = self.next;
        self.next += 1;
        match self.shared.watches.epoll().add(&caller.fd, token) {
            Ok(()) => {
                self.callers.insert(token, caller);
                Ok(token)
            }
            Err(errno) => {
                tracing::warn!(%errno, "the porter sends a caller away");
                Err(caller)
            }
        }
    }

    /// Opens a door that was shut for want of descriptors, if there is one again.
    fn open_door(&mut self) {
        if self.spare.is_none()
            && let Ok(spare) = EventFd::new()
            && self.shared.watches.epoll().add(&self.listener, DOOR).is_ok()
        {
            self.spare = Some(spare);
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(caller) = self.callers.get(&token) else { return };
        match self.hear(caller) {
            Heard::Asks(found, stay) => {
                self.answer_seated(token, &found);
                if stay == Stay::No {
                    self.see_out(token);
                }
            }
            Heard::Waits => {}
            Heard::Bye => self.see_out(token),
        }
    }

    fn answer_seated(&mut self, token: u64, found: &[Found]) {
        let Some(caller) = self.callers.get(&token) else { return };
        match answer(&caller.fd, found) {
            // Who does not listen does not get one.
            Ok(_) | Err(Errno::AGAIN) => {}
            // Hung up on, it comes again.
            Err(errno) => {
                tracing::debug!(%errno, "the porter cannot answer");
                self.see_out(token);
            }
        }
    }

    fn see_out(&mut self, token: u64) {
        if let Some(caller) = self.callers.remove(&token) {
            // Closing takes it off the set, unless a forked child holds a copy.
            let _ = self.shared.watches.epoll().remove(&caller.fd);
        }
    }

    /// Hears a question, if there is one, and looks for what it is about.
    fn hear(&self, caller: &Caller) -> Heard {
        let mut bytes = [0; ROOM];
        let heard = match rustix::net::recv(&caller.fd, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, heard)) if heard > 0 => heard,
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Waits,
            // Hung up.
            _ => return Heard::Bye,
        };
        match Question::read(&bytes[..heard.min(ROOM)]) {
            Some((names, stay)) if caller.welcome => {
                let exports = lock(&self.shared.exports);
                let find = |name: &Name| exports.get(&name.0).cloned().ok_or(Verdict::Nothing);
                Heard::Asks(names.iter().map(find).collect(), stay)
            }
            Some((names, stay)) => Heard::Asks(names.iter().map(|_| Err(Verdict::Denied)).collect(), stay),
            // Nonsense, or another version, which reads ours in the answer.
            None => Heard::Asks(Each::new(), Stay::Yes),
        }
    }
}

/// What there is of a name, or why not.
type Found = Result<Exported, Verdict>;

/// The same of a caller who cannot be let in now.
fn later(found: &[Found]) -> Each<Found> {
    found.iter().map(|found| Err(found.as_ref().err().copied().unwrap_or(Verdict::Later))).collect()
}

fn answer(to: &OwnedFd, found: &[Found]) -> Result<usize, Errno> {
    let mut passed = found.len();
    loop {
        match answer_with(to, found, passed) {
            // The system passes only so many descriptors of a process at a time. The first is what the caller waits for.
            Err(Errno::TOOMANYREFS) if passed > 0 => passed = usize::from(passed > 1),
            sent => return sent,
        }
    }
}

/// The answer, with the descriptors of the first `passed`.
fn answer_with(to: &OwnedFd, found: &[Found], passed: usize) -> Result<usize, Errno> {
    let text = Answer::of(found.iter().enumerate().map(|(n, found)| match found {
        Err(verdict) => *verdict,
        Ok(_) if n >= passed => Verdict::Later,
        Ok(Exported { what: What::Memory(place), .. }) => Verdict::Memory(*place),
        Ok(Exported { what: What::Iface(_), .. }) => Verdict::Iface,
    }));
    let mut fds = ArrayVec::<BorrowedFd<'_>, MOST_FDS>::new();
    for Exported { mem, what } in found[..passed].iter().flatten() {
        fds.push(mem.as_fd());
        if let What::Iface(wake) = what {
            fds.push(wake.as_fd());
        }
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[IoSlice::new(text.as_bytes())], &mut beside, flags)
}
