//! The NIC: the engine, its socket, and what it knows. Whoever holds its lock does its work: a thread of the
//! program that polls or posts, or the NIC's own thread while the program does neither.

use super::super::shm::Shm;
use super::super::{Msg, Rdma, Sender, TryOutcome};
use super::admission::{Admission, Strangers};
use super::head::{OpHead, RESPONSE_IN_HEAD, Response, op};
use super::poll_turns::PollTurns;
use super::requests::{self, Bytes, LocalRange, Request};
use super::socket::{BATCH, Socket};
use super::state::State;
use crate::efa::dev::DevStatus;
use crate::efa::dev::soft::capture::datagrams::DatagramCapture;
use arrayvec::ArrayVec;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use std::collections::VecDeque;
use std::net::SocketAddr;
use ucs::coll::slots::SlotId;
use usnic::auth::{Auth, OVERHEAD, Opened, opened_header};
use usnic::{CHUNK_HEADER, ChannelId, EpId, HEADER, Module, Posted, SendError};
use zerocopy::IntoBytes;

/// Datagrams after which one call takes in no more: the program waits meanwhile.
const RECV_ENOUGH: usize = 128;
/// Datagrams that are taken in after a pause, before timers are looked at: acknowledgements are among them,
/// and what they acknowledge is not to be sent again.
const RECV_AFTER_PAUSE: usize = 8192;
/// Time without a call that is a pause, ns.
const PAUSE_NS: u64 = 1_000_000;

/// Replies to a peer that wait in the engine, at most; about as many, for a batch of responses may be
/// several.
const MOST_REPLIES: u32 = 256;

/// Bytes of requests of which the kernel is told without a poll.
const COALESCED: usize = 64 << 10;

const OK: TryOutcome = TryOutcome::Done(DevStatus::Ok);

/// Where a request goes.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub iid: u64,
    pub qpn: u16,
    pub qkey: u32,
}

/// Datagrams that the sender loses, for tests.
pub(super) struct Losses {
    pub probability: f64,
    pub rng: ChaCha8Rng,
}

impl Losses {
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
    pub losses: Losses,
    /// Sessions with peers, if the job has a secret.
    auth: Option<Box<Auth>>,
    /// Peers without the secret.
    strangers: Strangers,
    /// Capture of the datagrams, if one was asked for.
    capture: Option<Box<DatagramCapture>>,
    /// Datagrams of each channel that the kernel has not taken yet, and the peers that they are for.
    unsent: [VecDeque<(Posted, SocketAddr, u64)>; 2],
    /// Which channels a poll looks at.
    turns: PollTurns,
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
        (admission, strangers, losses): (Admission, Strangers, Losses),
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
            strangers,
            capture,
            unsent,
            turns: PollTurns::default(),
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
        self.end_greedy();
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
                    if let Some(line) = self.strangers.line(now, from, auth.stats().strangers) {
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

    /// Whether the engine is given replies to this peer. While it does not acknowledge those that it has,
    /// they wait here, where they are bounded: reads by their number, responses by [`State::max_responses`].
    fn takes_replies(&self, ep: EpId) -> bool {
        self.module.replies(ep) < MOST_REPLIES
    }

    /// Goes on with replies that waited, of peers that take some now.
    fn resume_replies(&mut self, now: u64) {
        for _ in 0..self.state.held_replies.len() {
            let Some(ep) = self.state.held_replies.pop_front() else { return };
            if !self.takes_replies(ep) {
                self.state.held_replies.push_back(ep);
                continue;
            }
            if let Some(peer) = self.state.peers.get_mut(&ep) {
                peer.is_held = false;
                self.state.mark_dirty(ep);
                self.send_responses(now, ep);
            }
        }
    }

    fn send_all_responses(&mut self, now: u64) {
        while let Some(ep) = self.state.with_responses.pop() {
            match self.takes_replies(ep) {
                true => self.send_responses(now, ep),
                false => self.state.hold_replies(ep),
            }
        }
    }

    /// Ends connections to peers that have asked for more than any device does, and acknowledge nothing.
    fn end_greedy(&mut self) {
        while let Some(ep) = self.state.over_limit.pop() {
            if let Some(peer) = self.state.peers.get(&ep) {
                tracing::warn!(
                    "the connection to {} (fe80::{:x}) is closed: it has made {} requests whose outcomes it does not \
                     acknowledge",
                    peer.addr,
                    peer.iid,
                    peer.responses.len()
                );
            }
            self.module.disconnect(ep, &mut self.state);
        }
    }

    fn send_responses(&mut self, now: u64, ep: EpId) {
        let Some(peer) = self.state.peers.get_mut(&ep) else { return };
        let mut responses = std::mem::take(&mut peer.responses);
        let most = self.module.longest_small(ep).min(self.module.config().tiny as usize) / Response::LEN;
        for some in responses.chunks(most.max(1)) {
            let head = OpHead::new(op::RESPONSES, 0).bytes();
            if let Ok(Some(posted)) = self.module.send_reply(now, ep, &head, [some.as_bytes(), &[]]) {
                self.queue(now, posted);
            }
        }
        responses.clear();
        if let Some(peer) = self.state.peers.get_mut(&ep) {
            peer.responses = responses;
        }
    }

    /// Begins to send the bytes of a read.
    fn serve_read(&mut self, now: u64, id: SlotId) {
        let Some(service) = self.state.services.get(id) else { return };
        let (ep, len, token) = (service.ep, service.head.arg.get(), service.head.token.get());
        let head = OpHead::new(op::READ_DATA, token).bytes();
        if len as usize > self.module.longest_small(ep) {
            if self.module.send_large(now, ep, &head, len, id.raw().into()).is_err() {
                self.state.end_service(id);
            }
            return;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.resize(len as usize, 0);
        if self.state.fetch_for_peer(id, 0, &mut bytes) == OK
            && let Ok(Some(posted)) = self.module.send_reply(now, ep, &head, [&bytes, &[]])
        {
            self.queue(now, posted);
        }
        self.scratch = bytes;
        self.state.end_service(id);
    }

    /// Connection to a device, asked for if there is none.
    fn connect(&mut self, now: u64, iid: u64) -> Result<EpId, TryOutcome> {
        if let Some(&ep) = self.state.by_iid.get(&iid) {
            if self.state.peers.get(&ep).is_none_or(|peer| !peer.was_left) {
                return Ok(ep);
            }
            // The peer has ended this connection.
            self.module.disconnect(ep, &mut self.state);
        }
        let addr = self.state.addr_of(iid).ok_or(TryOutcome::Done(DevStatus::Unreachable))?;
        let ep = self.module.connect(now, iid).ok_or(TryOutcome::Busy)?;
        self.state.add_peer(ep, iid, addr);
        Ok(ep)
    }

    fn head(op: u8, from: Sender, to: &Target) -> OpHead {
        let mut head = OpHead::new(op, 0).with_kind(from.kind);
        head.src_qpn.set(from.qpn);
        head.dst_qpn.set(to.qpn);
        head.qkey.set(to.qkey);
        head
    }

    /// Starts a request: its first bytes go now, if windows allow.
    fn start(
        &mut self,
        now: u64,
        ep: EpId,
        qpn: u16,
        mut head: OpHead,
        len: u32,
        bytes: Bytes,
    ) -> TryOutcome {
        let large = matches!(bytes, Bytes::Staged(_) | Bytes::Source(_));
        let Ok(id) = self.state.requests.insert(Request { ep, qpn, bytes, lost: false }) else {
            return TryOutcome::Busy;
        };
        head.token.set(id.raw());
        if head.op == op::SEND
            && self.module.features(ep) & RESPONSE_IN_HEAD != 0
            && let Some(response) = self.state.take_only_response(ep)
        {
            head = head.with_response(response);
        }
        let sent = if large {
            self.module.send_large(now, ep, &head.bytes(), len, id.raw().into()).map(|()| None)
        } else {
            self.module.send(now, ep, &head.bytes(), [&self.scratch, &[]])
        };
        match sent {
            Ok(posted) => posted.into_iter().for_each(|posted| self.queue(now, posted)),
            Err(SendError::Gone | SendError::TooLong) => {
                self.state.requests.remove(id);
                return TryOutcome::Busy;
            }
        }
        if let Some(peer) = self.state.peers.get_mut(&ep) {
            peer.outstanding += 1;
        }
        self.state.mark_dirty(ep);
        // The first request since the last poll goes at once. Those that follow it go in batches, at the
        // latest with the next poll of a program that polls.
        self.coalesced += len as usize + CHUNK_HEADER;
        let waits = std::mem::replace(&mut self.has_posted, true) && self.is_polled;
        if !waits || self.coalesced >= COALESCED {
            self.coalesced = 0;
            self.send_all_responses(now);
            self.flush(now);
        }
        TryOutcome::Pending(id.raw())
    }

    /// Sends a message.
    pub fn send(&mut self, now: u64, to: &Target, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        self.state.now = now;
        let ep = match self.connect(now, to.iid) {
            Ok(ep) => ep,
            Err(outcome) => return outcome,
        };
        let head = Nic::head(op::SEND, from, to).with_imm(msg.imm);
        let len = msg.len() as usize;
        let bytes = if len <= self.module.longest_small(ep) {
            self.scratch.resize(len, 0);
            if !requests::copy_message(msg, &mut self.scratch) {
                return TryOutcome::Done(DevStatus::InvalidLkey);
            }
            Bytes::Sent
        } else {
            let mut buffer = self.state.buffer(len);
            if !requests::copy_message(msg, &mut buffer) {
                return TryOutcome::Done(DevStatus::InvalidLkey);
            }
            Bytes::Staged(buffer)
        };
        self.start(now, ep, from.qpn, head, msg.len(), bytes)
    }

    /// Writes remote memory.
    pub fn write(
        &mut self,
        now: u64,
        (to, dev): (&Target, &Shm),
        from: Sender,
        rdma: &Rdma,
        imm: Option<u32>,
    ) -> TryOutcome {
        self.state.now = now;
        let ep = match self.connect(now, to.iid) {
            Ok(ep) => ep,
            Err(outcome) => return outcome,
        };
        let mut head = Nic::head(op::WRITE, from, to).with_imm(imm);
        head.rkey.set(rdma.rkey);
        head.raddr.set(rdma.raddr);
        let bytes = if rdma.len as usize <= self.module.longest_small(ep) {
            self.scratch.resize(rdma.len as usize, 0);
            if !requests::copy_checked(rdma, &mut self.scratch) {
                return TryOutcome::Done(DevStatus::InvalidLkey);
            }
            Bytes::Sent
        } else {
            Bytes::Source(LocalRange::new(dev, rdma))
        };
        self.start(now, ep, from.qpn, head, rdma.len, bytes)
    }

    /// Reads remote memory.
    pub fn read(&mut self, now: u64, (to, dev): (&Target, &Shm), from: Sender, rdma: &Rdma) -> TryOutcome {
        self.state.now = now;
        let ep = match self.connect(now, to.iid) {
            Ok(ep) => ep,
            Err(outcome) => return outcome,
        };
        let mut head = Nic::head(op::READ, from, to);
        head.rkey.set(rdma.rkey);
        head.raddr.set(rdma.raddr);
        head.arg.set(rdma.len);
        self.scratch.clear();
        let bytes = Bytes::Target(LocalRange::new(dev, rdma));
        self.start(now, ep, from.qpn, head, 0, bytes)
    }
}
