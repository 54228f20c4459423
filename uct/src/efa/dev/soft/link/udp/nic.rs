//! The NIC: the engine, its socket, and what it knows. Whoever holds its lock does its work: a thread of the
//! program that polls or posts, or the NIC's own thread while the program does neither.
//! * `post`: requests of this process. * `reply`: responses, and bytes that peers read.

mod post;
mod reply;

use super::super::TryOutcome;
use super::admission::{Admission, UnauthenticatedLog};
use super::channel_schedule::ChannelSchedule;
use super::socket::{BATCH, Socket};
use super::state::State;
use crate::efa::dev::DevStatus;
use crate::efa::dev::soft::capture::datagrams::DatagramCapture;
use arrayvec::ArrayVec;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use std::collections::VecDeque;
use std::net::SocketAddr;
use usnic::auth::{Auth, OVERHEAD, Opened, opened_header};
use usnic::{ChannelId, HEADER, Module, Posted};

/// Datagrams after which one call takes in no more: the program waits meanwhile.
const RECV_ENOUGH: usize = 128;
/// Datagrams that are taken in after a pause, before timers are looked at: acknowledgements are among them,
/// and what they acknowledge is not to be sent again.
const RECV_AFTER_PAUSE: usize = 8192;
/// Time without a call that is a pause, ns.
const PAUSE_NS: u64 = 1_000_000;

const OK: TryOutcome = TryOutcome::Done(DevStatus::Ok);

/// Where a request goes.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub iid: u64,
    pub qpn: u16,
    pub qkey: u32,
}

/// Datagrams that the sender loses, for tests.
pub(super) struct LossModel {
    pub probability: f64,
    pub rng: ChaCha8Rng,
}

impl LossModel {
    fn next(&mut self) -> bool {
        self.probability > 0.0
            && ((self.rng.next_u64() >> 11) as f64) < self.probability * (1u64 << 53) as f64
    }
}

/// Sends a datagram that is none of the engine's.
fn send_alone((socket, capture): (&Socket, &Option<Box<DatagramCapture>>), to: SocketAddr, datagram: &[u8]) {
    socket.send(ChannelId::Data, 0, &[(to, datagram)]);
    if let Some(capture) = capture {
        capture.sent(0, to, None, datagram);
    }
}

/// Peers that are told goodbye.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goodbye {
    /// Those that were sent all that waits for them. One that is left out learns by the response on its next
    /// request that the queue pair is gone.
    Served,
    /// Each.
    All,
    /// Those that have not been told.
    New,
}

/// The NIC of one device.
pub(super) struct Nic {
    pub module: Module,
    pub socket: Socket,
    pub state: State,
    pub admission: Admission,
    pub losses: LossModel,
    /// Sessions with peers, if the job has a secret.
    auth: Option<Box<Auth>>,
    /// Peers without the secret.
    unauthenticated: UnauthenticatedLog,
    /// Capture of the datagrams, if one was asked for.
    capture: Option<Box<DatagramCapture>>,
    /// Datagrams of each channel that the kernel has not taken yet, and the peers that they are for.
    unsent: [VecDeque<(Posted, SocketAddr, u64)>; 2],
    /// Which channels a poll looks at.
    turns: ChannelSchedule,
    /// A batch of sealed datagrams.
    sealed: Vec<u8>,
    /// Copy of a short message or write.
    scratch: Vec<u8>,
    /// Whether the program polls, so that requests may wait for the next poll.
    pub is_polled: bool,
    /// Whether the program has made a request since the last poll.
    has_posted: bool,
    /// Bytes of requests that were not given to the kernel since.
    coalesced: usize,
    /// Time of the last call that took in what had arrived.
    last_progress: u64,
}

impl Nic {
    pub fn new(
        (module, capture): (Module, Option<Box<DatagramCapture>>),
        socket: Socket,
        mut state: State,
        (admission, unauthenticated, losses): (Admission, UnauthenticatedLog, LossModel),
        auth: Option<Box<Auth>>,
    ) -> Nic {
        let longest = module.config().data.mtu as usize + OVERHEAD;
        let sealed = vec![0; if auth.is_some() { BATCH * longest } else { 0 }];
        let (unsent, scratch) = ([VecDeque::new(), VecDeque::new()], Vec::new());
        state.is_sealed = auth.is_some();
        Nic {
            module,
            socket,
            state,
            admission,
            losses,
            auth,
            unauthenticated,
            capture,
            unsent,
            turns: ChannelSchedule::default(),
            sealed,
            scratch,
            is_polled: false,
            has_posted: false,
            coalesced: 0,
            last_progress: 0,
        }
    }

    /// Sessions, and handshakes on their way.
    #[cfg(test)]
    pub fn sessions(&self) -> usize {
        self.auth.as_ref().map_or(0, |auth| auth.sessions())
    }

    /// Counters of the sessions, if the job has a secret.
    pub fn auth_stats(&self) -> Option<&usnic::auth::AuthStats> {
        self.auth.as_ref().map(|auth| auth.stats())
    }

    /// Takes in what has arrived, and sends what is to be sent. `now` was read after the lock was taken.
    /// Responses to requests that arrive in this call are sent with the program's next request or in the next
    /// call, so that they do not delay the program's reply. The bookkeeping of a message that has come alone
    /// is done in the next call, too.
    pub fn progress(&mut self, now: u64) {
        self.state.now = now;
        (self.has_posted, self.coalesced) = (false, 0);
        self.send_all_responses(now);
        let paused = now.saturating_sub(std::mem::replace(&mut self.last_progress, now)) > PAUSE_NS;
        let looks = self.turns.next();
        let had_deferred = self.module.has_deferred();
        match paused {
            true => self.recv(now, RECV_AFTER_PAUSE, [true; 2]),
            false => self.recv(now, RECV_ENOUGH, looks),
        }
        self.state.push_held_outcomes();
        self.close_over_limit_peers();
        if self.module.has_deferred() && !had_deferred {
            return self.write_capture();
        }
        self.module.on_time(now, &mut self.state);
        self.forget_sessions(now);
        self.flush(now);
    }

    /// Forgets sessions with nodes that are gone and have not come back: others may take their places.
    fn forget_sessions(&mut self, now: u64) {
        let Some(auth) = &mut self.auth else { return };
        while let Some(&(_, node)) = self.state.gone.front().filter(|(due, _)| *due <= now) {
            self.state.gone.pop_front();
            if !self.state.by_iid.contains_key(&node) {
                auth.forget(node);
            }
        }
    }

    /// Time at which there is something to do at the latest.
    pub fn next_due(&self) -> Option<u64> {
        if self.unsent.iter().any(|unsent| !unsent.is_empty()) || !self.state.with_responses.is_empty() {
            return Some(0);
        }
        let auth = self.auth.as_ref().and_then(|auth| auth.next_due());
        [self.module.next_due(), self.state.next_due(), auth].into_iter().flatten().min()
    }

    /// Takes in what has come to these channels, the priority channel first, about `most` datagrams. *"the
    /// first completion of a poll that is a receive on the priority channel"* is delivered before its
    /// bookkeeping (Fast receive optimization).
    fn recv(&mut self, now: u64, most: usize, looks: [bool; 2]) {
        let (mut more, mut brought) = (looks, [false; 2]);
        let (mut may_be_fast, mut taken) = (true, 0);
        while taken < most && more != [false; 2] {
            for (at, channel) in [ChannelId::Priority, ChannelId::Data].into_iter().enumerate() {
                if !more[at] {
                    continue;
                }
                let (n, has_more) = self.socket.recv(channel);
                for nth in 0..n {
                    self.on_datagram(now, nth, &mut may_be_fast);
                }
                taken += n;
                (more[at], brought[at]) = (has_more, brought[at] || n != 0);
            }
        }
        self.turns.on_polled(brought);
    }

    /// Takes in a datagram of the last batch.
    fn on_datagram(&mut self, now: u64, at: usize, may_be_fast: &mut bool) {
        let (from, datagram) = self.socket.datagram(at);
        let sealed = match &self.capture {
            None => None,
            Some(capture) => capture.arrived(self.auth.is_some(), from, datagram),
        };
        let (node, datagram): (Option<u64>, &[u8]) = match &mut self.auth {
            None => (None, datagram),
            Some(auth) => match auth.open(now, from, datagram) {
                Opened::Datagram { node, bytes, .. } => {
                    if let Some(capture) = &self.capture {
                        capture.received(from, sealed, bytes);
                    }
                    (Some(node), bytes)
                }
                Opened::Answer(answer) => {
                    send_alone((&self.socket, &self.capture), from, &answer);
                    return;
                }
                Opened::Notice(notice) => {
                    send_alone((&self.socket, &self.capture), from, &notice);
                    return;
                }
                Opened::Up(node) => {
                    self.state.follow(node, from);
                    self.module.ask_again(now, node);
                    return;
                }
                Opened::Dropped => {
                    if let Some(line) = self.unauthenticated.line(now, from, auth.stats().strangers) {
                        tracing::warn!("{line}");
                    }
                    return;
                }
            },
        };
        let admitted = match node {
            Some(node) => {
                // Flows behind the first come from ports that nothing is sent to.
                self.admission.admits_node(&self.state, node, datagram)
                    && (usnic::flow_of(datagram) != 0 || self.state.follow(node, from))
            }
            None => self.admission.admits((&self.state, &self.module), from, datagram),
        };
        if !admitted {
            return;
        }
        self.state.from = from;
        let fast = std::mem::take(may_be_fast);
        if fast && self.module.recv_fast(now, datagram, &mut self.state) {
            return;
        }
        let Some(reset) = self.module.on_datagram(now, datagram, &mut self.state) else { return };
        self.send_header(now, node, from, &reset);
    }

    /// Sends a datagram without a number, once. With sessions it is sealed for that node.
    fn send_header(&mut self, now: u64, node: Option<u64>, to: SocketAddr, bytes: &[u8; HEADER]) {
        let Some((node, auth)) = node.zip(self.auth.as_mut()) else {
            return send_alone((&self.socket, &self.capture), to, bytes);
        };
        let mut sealed = [0; HEADER + OVERHEAD];
        if let Ok(len) = auth.seal(now, node, bytes, &mut sealed) {
            self.socket.send(ChannelId::Data, 0, &[(to, &sealed[..len])]);
            if let Some(capture) = &self.capture {
                capture.sent(0, to, opened_header(&sealed), bytes);
            }
        }
    }

    /// Leaves all peers: no queue pair is left. Segments on their way are still sent again, by the thread.
    pub fn leave(&mut self, now: u64) {
        self.say_goodbye(now, Goodbye::Served);
        let left: Vec<_> =
            self.state.peers.iter().filter(|(_, peer)| peer.was_left).map(|(ep, _)| *ep).collect();
        for ep in left {
            if self.module.is_idle(ep) {
                self.module.disconnect(ep, &mut self.state);
            }
        }
    }

    /// Whether all that waits for peers has been sent.
    pub fn has_sent_all(&self) -> bool {
        self.state.with_responses.is_empty()
            && self.unsent.iter().all(|queue| queue.is_empty())
            && self.state.peers.keys().all(|ep| self.module.has_sent_all(*ep))
    }

    /// Whether peers have acknowledged all that they were to be sent.
    pub fn is_acknowledged(&self) -> bool {
        self.has_sent_all() && self.state.peers.keys().all(|ep| self.module.is_idle(*ep))
    }

    /// Sends the oldest segment again that a peer has not acknowledged, of each peer.
    pub fn resend(&mut self, now: u64) {
        self.state.now = now;
        for ep in self.state.peers.keys() {
            self.module.resend_oldest(now, *ep);
        }
        self.flush(now);
    }

    /// Says goodbye to peers, behind the responses that they wait for. A peer ends what is not answered when
    /// it hears it.
    pub fn say_goodbye(&mut self, now: u64, whom: Goodbye) {
        self.state.now = now;
        self.send_all_responses(now);
        self.flush(now);
        let peers = self.state.peers.iter().map(|(ep, peer)| (*ep, peer.iid, peer.addr, peer.was_left));
        for (ep, iid, addr, was_left) in peers.collect::<Vec<_>>() {
            let is_meant = match whom {
                Goodbye::Served => self.module.has_sent_all(ep),
                Goodbye::All => true,
                Goodbye::New => !was_left,
            };
            if !is_meant {
                continue;
            }
            let Some(goodbye) = self.module.goodbye(ep) else { continue };
            if !self.losses.next() {
                self.send_header(now, Some(iid), addr, &goodbye);
            }
            if let Some(peer) = self.state.peers.get_mut(&ep) {
                peer.was_left = true;
            }
        }
        self.write_capture();
    }

    /// Sends what is to be sent, as far as windows and the kernel allow: first what the priority channel has.
    pub fn flush(&mut self, now: u64) {
        self.send_handshakes(now);
        let mut takes = [true; 2];
        loop {
            self.settle(now);
            loop {
                // A channel whose socket takes nothing does not keep the other one waiting.
                let open = [0, 1].map(|channel: usize| self.unsent[channel].len() < BATCH);
                if open == [false; 2] {
                    break;
                }
                let Some(posted) = self.module.poll_send_on(now, open, &mut self.state) else { break };
                self.queue(now, posted);
            }
            let (mut is_empty, mut has_sent) = (true, false);
            for channel in [ChannelId::Priority, ChannelId::Data] {
                let takes = &mut takes[channel as usize];
                if *takes && !self.unsent[channel as usize].is_empty() {
                    is_empty = false;
                    *takes = self.send_batch(now, channel);
                    has_sent |= *takes;
                }
            }
            // The last bytes of a read that failed leave a response.
            if is_empty && self.state.dirty.is_empty() || !is_empty && !has_sent {
                return self.write_capture();
            }
        }
    }

    #[inline]
    fn write_capture(&self) {
        if let Some(capture) = &self.capture {
            capture.flush();
        }
    }

    fn send_handshakes(&mut self, now: u64) {
        let Some(auth) = &mut self.auth else { return };
        while let Some((node, message)) = auth.poll_send(now) {
            if let Some(addr) = self.state.addr_of(node) {
                send_alone((&self.socket, &self.capture), addr, &message);
            }
        }
    }

    /// Queues a datagram. One whose peer is dead is not sent. One without a session is lost: the engine sends
    /// it again when there is one.
    fn queue(&mut self, now: u64, posted: Posted) {
        let peer = posted.ep.and_then(|ep| self.state.peers.get(&ep)).map(|peer| (peer.addr, peer.iid));
        let Some((addr, iid)) = peer.filter(|_| !self.losses.next()) else {
            return self.module.completed(&posted);
        };
        if let Some(auth) = &mut self.auth
            && !auth.is_up(iid)
        {
            auth.connect(now, iid);
            self.send_handshakes(now);
            return self.module.completed(&posted);
        }
        self.unsent[posted.channel as usize].push_back((posted, addr, iid));
    }

    /// Gives a batch of one channel and flow to the kernel. Returns `false` if it has no room.
    fn send_batch(&mut self, now: u64, channel: ChannelId) -> bool {
        let mut batch: ArrayVec<(SocketAddr, &[u8]), BATCH> = ArrayVec::new();
        let unsent = &mut self.unsent[channel as usize];
        let Some((flow, is_ping)) = unsent.front().map(|(posted, ..)| (posted.flow, posted.is_ping)) else {
            return true;
        };
        let is_alike =
            |(posted, ..): &&(Posted, SocketAddr, u64)| (posted.flow, posted.is_ping) == (flow, is_ping);
        let all = unsent.iter().take(BATCH).take_while(is_alike);
        if let Some(auth) = &mut self.auth {
            let longest = self.sealed.len() / BATCH;
            for ((posted, addr, iid), out) in all.zip(self.sealed.chunks_exact_mut(longest)) {
                // Without a session nothing of it goes: an empty datagram is dropped anywhere.
                let len = auth.seal(now, *iid, self.module.bytes(posted), out).unwrap_or(0);
                batch.push((*addr, &out[..len]));
            }
        } else {
            batch.extend(all.map(|(posted, addr, _)| (*addr, self.module.bytes(posted))));
        }
        let sent = match is_ping {
            true => self.socket.ping(flow, &batch),
            false => self.socket.send(channel, flow, &batch),
        };
        if let Some(capture) = &self.capture {
            let is_sealed = self.auth.is_some();
            for ((posted, addr, _), (_, bytes)) in unsent.iter().zip(&batch).take(sent) {
                let sealed = is_sealed.then(|| opened_header(bytes)).flatten();
                if !bytes.is_empty() {
                    capture.sent(flow, *addr, sealed, self.module.bytes(posted));
                }
            }
        }
        drop(batch);
        for (posted, ..) in unsent.drain(..sent) {
            self.module.completed(&posted);
        }
        sent != 0
    }

    /// Passes to the engine what has become due to peers: bytes that they read, and whether anything is
    /// awaited from them. Bytes for a peer that takes no replies now wait.
    fn settle(&mut self, now: u64) {
        self.resume_replies(now);
        while let Some(ep) = self.state.next_dirty() {
            while let Some(peer) = self.state.peers.get_mut(&ep)
                && !peer.to_serve.is_empty()
            {
                if !self.takes_replies(ep) {
                    self.state.hold_replies(ep);
                    break;
                }
                let next = self.state.peers.get_mut(&ep).and_then(|peer| peer.to_serve.pop_front());
                next.into_iter().for_each(|id| self.serve_read(now, id));
            }
            if let Some(peer) = self.state.peers.get_mut(&ep)
                && peer.expecting != (peer.outstanding != 0)
            {
                peer.expecting = !peer.expecting;
                self.module.set_expecting(now, ep, peer.expecting);
            }
        }
    }
}
