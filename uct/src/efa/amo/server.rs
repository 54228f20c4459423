//! The thread of a memory domain that carries out the atomics of peers, on a queue pair of its own. It also
//! asks whether targets live that have not answered operations of this domain.

#![allow(unsafe_code)]

use super::domain::{AmoAddr, Shared};
use super::wire::{MAX_LEN, PROBE_PACKET, Request, Response};
use crate::api::{Access, Error, OpenError};
use crate::efa::buffers::Buffers;
use crate::efa::dev::{Channel, Cqe, CqeOp, Dest, Dev, DevCq, DevQp, DevStatus, Gid, QpInit, QpKind};
use crate::efa::iface::random_qkey;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use ucs::sys::fd::wait_readable;

const DEPTH: u32 = 256;
const BATCH: usize = 16;
/// Empty polls before the thread sleeps.
const SPIN: u32 = 200;
const TICK: Duration = Duration::from_millis(100);
/// Ticks without an operation under way after which the thread sleeps without a limit.
const QUIET_TICKS: u32 = 10;
/// Retries by the device while an initiator has no receive posted; it has one for each operation.
const RNR_RETRIES: u8 = 6;
/// Times that a response is sent, if the device does not know whether it arrived.
const SENDS: u32 = 8;

/// Use of a send slot.
#[derive(Clone, Copy)]
enum Sent {
    Response { to: AmoAddr, response: Response, sends: u32 },
    Probe(AmoAddr),
}

/// Queue pair, buffers and address handles. Field order is drop order: the queue pair stops before its
/// buffers go.
pub(super) struct Server<D: Dev> {
    qp: D::Qp,
    cq: D::Cq,
    rx: Buffers<D::Mr>,
    tx: Buffers<D::Mr>,
    sent: Vec<Option<Sent>>,
    free: Vec<u32>,
    /// Received and waiting for a send slot: receive buffer, length and sender.
    backlog: VecDeque<(u32, usize, Gid, u16)>,
    ahs: FxHashMap<Gid, D::Ah>,
    addr: AmoAddr,
    quiet_ticks: u32,
    shared: Arc<Shared>,
    pd: D::Pd,
    dev: D,
}

impl<D: Dev> Server<D> {
    pub(super) fn open(dev: D, pd: D::Pd, shared: Arc<Shared>) -> Result<Self, OpenError> {
        let a = dev.attr();
        let (send_depth, recv_depth) = (DEPTH.min(a.max_send_depth), DEPTH.min(a.max_recv_depth));
        let cq = dev.create_cq(send_depth + recv_depth, Channel::With)?;
        let qkey = random_qkey();
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth,
            recv_depth,
            qkey,
            rnr_retry: RNR_RETRIES,
            unsolicited_write_recv: false,
        };
        let qp = dev.create_qp(&pd, &cq, &cq, &init)?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let rx = Buffers::new(&dev, &pd, MAX_LEN, recv_depth, access)?;
        let tx = Buffers::new(&dev, &pd, MAX_LEN, send_depth, access)?;
        let addr = AmoAddr { gid: dev.gid(), qpn: qp.qpn(), qkey };
        let server = Server {
            qp,
            cq,
            rx,
            tx,
            sent: vec![None; send_depth as usize],
            free: (0..send_depth).rev().collect(),
            backlog: VecDeque::new(),
            ahs: FxHashMap::default(),
            addr,
            quiet_ticks: 0,
            shared,
            pd,
            dev,
        };
        for slot in 0..recv_depth {
            server.post_recv(slot)?;
        }
        server.qp.ring_doorbell();
        Ok(server)
    }

    pub(super) fn addr(&self) -> AmoAddr {
        self.addr
    }

    fn post_recv(&self, slot: u32) -> Result<(), Error> {
        let posted = self.qp.recv(u64::from(slot), self.rx.sge(slot, MAX_LEN));
        posted.map_err(|_| Error::Exhausted("receive queue entries"))
    }

    /// Polls once; answers the events. Fails when the device has stopped the queue pair.
    fn step(&mut self) -> Result<usize, Error> {
        let mut cqes = [Cqe::EMPTY; BATCH];
        let got = self.cq.poll(&mut cqes);
        for cqe in &cqes[..got] {
            match cqe.op {
                CqeOp::Recv if cqe.status == DevStatus::Ok => {
                    self.backlog.push_back((cqe.wr_id as u32, cqe.len as usize, cqe.src_gid, cqe.src_qpn));
                }
                CqeOp::Recv if cqe.status == DevStatus::Flushed => return Err(Error::Cancelled),
                // A write with immediate uses a receive up, and asks for nothing.
                CqeOp::Recv | CqeOp::RecvWriteImm => self.post_recv(cqe.wr_id as u32)?,
                CqeOp::Send => self.on_sent(cqe.wr_id as u32, cqe.status),
                CqeOp::Read | CqeOp::Write => {}
            }
        }
        while !self.free.is_empty() {
            let Some((slot, len, gid, qpn)) = self.backlog.pop_front() else { break };
            // SAFETY: the receive has completed, and is posted again below.
            let packet = unsafe { self.rx.bytes(slot, len.min(MAX_LEN)) };
            let read = Request::read(packet);
            self.post_recv(slot)?;
            if let Some(request) = read {
                let (response, qkey) = match request {
                    Ok((request, qkey)) => {
                        (Response { id: request.id, result: self.shared.apply(&request) }, qkey)
                    }
                    Err(refused) => refused,
                };
                self.send(Sent::Response { to: AmoAddr { gid, qpn, qkey }, response, sends: 1 });
            }
        }
        if got > 0 {
            self.qp.ring_doorbell();
        }
        Ok(got)
    }

    /// Sends if there is a slot. What is not sent is lost: a probe comes again, and there is a slot for each
    /// response.
    fn send(&mut self, what: Sent) {
        let to = match what {
            Sent::Response { to, .. } | Sent::Probe(to) => to,
        };
        let Some(ah) = self.ah(to.gid) else { return };
        let Some(slot) = self.free.pop() else { return };
        // SAFETY: a slot that was free has its buffer to itself until its completion.
        let buf = unsafe { self.tx.bytes_mut(slot, MAX_LEN) };
        let len = match &what {
            Sent::Response { response, .. } => response.write(buf),
            Sent::Probe(_) => {
                buf[..PROBE_PACKET.len()].copy_from_slice(&PROBE_PACKET);
                PROBE_PACKET.len()
            }
        };
        let dest = Dest { ah, qpn: to.qpn, qkey: to.qkey };
        match self.qp.send(&dest, u64::from(slot), &[self.tx.sge(slot, len)], None) {
            Ok(()) => self.sent[slot as usize] = Some(what),
            Err(_) => self.free.push(slot),
        }
    }

    fn ah(&mut self, gid: Gid) -> Option<D::Ah> {
        if let Some(ah) = self.ahs.get(&gid) {
            return Some(*ah);
        }
        match self.dev.create_ah(&self.pd, gid) {
            Ok(ah) => {
                self.ahs.insert(gid, ah);
                Some(ah)
            }
            Err(error) => {
                tracing::warn!(%gid, %error, "cannot answer an atomic operation: no address handle");
                None
            }
        }
    }

    fn on_sent(&mut self, slot: u32, status: DevStatus) {
        let Some(sent) = self.sent[slot as usize].take() else { return };
        self.free.push(slot);
        match (sent, status) {
            (_, DevStatus::Ok | DevStatus::Flushed) => {}
            (Sent::Probe(target), DevStatus::BadDestQpn) => self.give_up(target, Error::PeerDead),
            (Sent::Probe(target), DevStatus::Unresponsive) => self.give_up(target, Error::Unresponsive),
            (Sent::Probe(target), DevStatus::Unreachable) => self.give_up(target, Error::Unreachable),
            // It lives, and has too much to do.
            (Sent::Probe(_), _) => {}
            // Whoever asked is gone.
            (Sent::Response { .. }, DevStatus::BadDestQpn) => {}
            (Sent::Response { to, response, sends }, _) if sends < SENDS => {
                // Perhaps it arrived: then the second one names no operation.
                self.send(Sent::Response { to, response, sends: sends + 1 });
            }
            (Sent::Response { to, .. }, status) => {
                tracing::warn!(gid = %to.gid, ?status, "cannot answer an atomic operation: the response was not delivered");
            }
        }
    }

    /// Ends the operations of this domain that wait for `target`.
    fn give_up(&mut self, target: AmoAddr, why: Error) {
        for (to, id) in self.shared.waiting_for(target) {
            self.send(Sent::Response { to, response: Response { id, result: Err(why) }, sends: 1 });
        }
    }

    /// Asks the targets that are silent whether they live; rests when there is nothing under way.
    fn tick(&mut self) {
        let silent = self.shared.silent_targets();
        self.quiet_ticks = if silent.is_empty() { self.quiet_ticks + 1 } else { 0 };
        for target in silent {
            let asked = |sent: &Option<Sent>| matches!(sent, Some(Sent::Probe(other)) if *other == target);
            if !self.sent.iter().any(asked) {
                self.send(Sent::Probe(target));
            }
        }
        if self.quiet_ticks > QUIET_TICKS && self.shared.rest() {
            self.quiet_ticks = 0;
        }
        self.qp.ring_doorbell();
    }

    /// Forgets peers, of which none is being answered: a handle keeps what the device has of a dead one.
    fn drop_ahs(&mut self) {
        if self.free.len() == self.sent.len() {
            for (_, ah) in self.ahs.drain() {
                self.dev.destroy_ah(&self.pd, ah);
            }
        }
    }
}

impl<D: Dev> Drop for Server<D> {
    fn drop(&mut self) {
        for (_, ah) in self.ahs.drain() {
            self.dev.destroy_ah(&self.pd, ah);
        }
    }
}

/// Body of the thread: serves until the domain is dropped.
pub(super) fn serve<D: Dev>(mut server: Server<D>) {
    let shared = server.shared.clone();
    let (mut idle, mut next_tick) = (0, Instant::now() + TICK);
    while !shared.stop.load(Ordering::Acquire) {
        let events = match server.step() {
            Ok(events) => events,
            Err(error) => {
                return tracing::warn!(%error, "the atomics thread ends: peers' atomic operations will fail");
            }
        };
        if shared.is_watching() && Instant::now() >= next_tick {
            server.tick();
            next_tick = Instant::now() + TICK;
        }
        if events > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < SPIN {
            std::thread::yield_now();
            continue;
        }
        idle = 0;
        server.drop_ahs();
        if !server.cq.arm() {
            continue;
        }
        let Some(arrived) = server.cq.event_fd() else { return };
        let time = shared.is_watching().then(|| next_tick.saturating_duration_since(Instant::now()));
        if let Err(error) = wait_readable(&[arrived, shared.wake.as_fd()], time) {
            return tracing::warn!(%error, "the atomics thread ends: peers' atomic operations will fail");
        }
        let _ = shared.wake.clear();
    }
}
