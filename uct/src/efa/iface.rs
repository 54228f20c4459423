//! The interface: one SRD queue pair and one completion queue. Posting is in `ep`, polling in `cq`.

#![allow(unsafe_code)]

use super::addr::{DEVICE_ADDR_LEN, RAW_ADDR_LEN, RawAddr, parse_pair};
use super::ah::AddressHandles;
use super::amo;
use super::amo::AmoClient;
use super::buffers::Buffers;
use super::cq::CqeBatch;
use super::dev::{Channel, Dev, DevAttr, DevCq, DevQp, QpInit, QpKind};
use super::ep::Ep;
use super::md::{Md, Mem};
use super::multi_wr::MultiWrOp;
use super::rdma::MAX_IOV;
use super::rx::Rx;
use super::tx::{MAX_INLINE, Tx};
use super::user_recv_qp::{USER_RECV_BIT, UserRecvQp};
use crate::api::{
    self, AM_SHORT_MIN, Access, AddrBuf, AmHandler, AmLimits, AtomicCaps, AtomicOps, Caps, Comp,
    ConnectError, DevKind, DeviceCounters, EpTag, Error, Events, IfaceAttr, ImmHandler, Iov, Latency, Op,
    OpenError, OrderKind, Outcome, PollOne, RecvCallback, RmaLimits, Sent, Sink, UserQp,
};
use crate::base::am::{AmTable, TableSink};
use crate::base::inline_closure::InlineClosure;
use crate::base::pending::Arbiter;
use std::cell::{Cell, OnceCell, RefCell};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use ucs::config::{Source, Table};

ucs::config_table! {
    /// EFA transport: reliable, unordered datagrams and RDMA.
    pub struct Config, prefix "UCX_EFA_" {
        /// Operations in flight at a time; more answer "no resource". A device with a shorter queue lowers
        /// it.
        pub tx_queue_len: u32 = "256", key "TX_QUEUE_LEN", unit "operations", range 1..=65536;
        /// Receives kept posted; a sender that finds none waits or fails, see RNR_RETRY. A device with a
        /// shorter queue lowers it.
        pub rx_queue_len: u32 = "512", key "RX_QUEUE_LEN", unit "buffers", range 1..=65536;
        /// Receive buffers beyond those posted: the number of messages that can be kept without a copy.
        pub rx_spare: u32 = "128", key "RX_SPARE", unit "buffers", range 0..=65536;
        /// Receives into user memory posted at a time, on a queue pair of their own; 0: no such queue pair.
        /// `ucp` asks for 256 where UCX_ZCOPY_RECV is set.
        pub user_rx_queue_len: u32 = "0", key "USER_RX_QUEUE_LEN", unit "receives", range 0..=65536;
        /// Retries by the device when the receiver has no receive posted (RNR), before the operation fails;
        /// 7: for ever. Unless this is set, `ucp` asks for 3 and resends by itself.
        pub rnr_retry: u8 = "7", key "RNR_RETRY", unit "times", range 0..=7;
        /// Atomics on 32 and 64 bits, which a thread of the memory domain carries out at the target: the wire
        /// has none. The thread starts with the first key that grants atomics. `ucp` has its own.
        pub atomics: bool = "y", key "ATOMICS";
    }
}

/// Parameters of an interface.
#[derive(Clone, Debug)]
pub struct Params {
    /// Configuration.
    pub config: Config,
    /// Connection id, which is also the q-key; 31 bits. `None`: random.
    pub connid: Option<u32>,
    /// Whether the interface has an event descriptor.
    pub events: Channel,
}

impl Default for Params {
    fn default() -> Self {
        Params { config: Config::default(), connid: None, events: Channel::With }
    }
}

impl Params {
    /// Loads the configuration from `source`; random connection id, with events.
    pub fn from_source(source: &Source) -> Result<Self, OpenError> {
        let config = Config::load(source).map_err(|e| OpenError::Config(e.to_string()))?;
        Ok(Params { config, ..Params::default() })
    }
}

/// Counters of events that no callback reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Messages without a byte, hence without an id.
    pub empty: u64,
    /// Receives that completed with an error.
    pub rx_errors: u64,
    /// Writes with immediate that arrived.
    pub write_imm: u64,
    /// Messages without a handler.
    pub no_handler: u64,
}

/// An interface on an EFA device. Clones are further handles of it.
pub struct Iface<D: Dev> {
    pub(super) inner: Rc<Inner<D>>,
}

impl<D: Dev> Clone for Iface<D> {
    fn clone(&self) -> Self {
        Iface { inner: self.inner.clone() }
    }
}

/// State shared with endpoints. Field order is drop order: queue pairs stop before their buffers go.
pub(super) struct Inner<D: Dev> {
    pub(super) qp: D::Qp,
    /// Stops before `cq` goes, like `qp`.
    pub(super) user_recv_qp: Option<UserRecvQp<D::Qp>>,
    /// Opened by the first atomic operation. Stops before `cq` goes.
    pub(super) amo: OnceCell<AmoClient<D>>,
    pub(super) cq: D::Cq,
    pub(super) rx: Rx<D::Mr>,
    pub(super) tx: RefCell<Tx>,
    pub(super) bounce: Buffers<D::Mr>,
    /// By slot: the closure that takes the bytes of a bcopy get.
    pub(super) unpacks: RefCell<Box<[Option<Unpack>]>>,
    pub(super) cqe_batch: CqeBatch,
    /// Operations of more requests than there are slots.
    pub(super) multi_wr_ops: RefCell<Vec<MultiWrOp<D>>>,
    pub(super) ahs: RefCell<AddressHandles<D>>,
    pub(super) pending: Arbiter,
    pub(super) handlers: AmTable,
    pub(super) stats: Cell<Stats>,
    pub(super) limits: Limits,
    pub(super) attr: IfaceAttr,
    addr: RawAddr,
    events: Channel,
    pub(super) md: Md<D>,
}

/// Length of a get, and the closure that takes its bytes.
pub(super) type Unpack = (usize, InlineClosure);

/// Device limits in the form that posting needs, bytes.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Longest packet, with the id byte.
    pub(super) packet: usize,
    pub(super) inline: usize,
    /// SGEs of a send beside the header's.
    pub(super) iov: usize,
    pub(super) read: Option<usize>,
    pub(super) write: Option<usize>,
}

impl<D: Dev> Iface<D> {
    /// Opens an interface on `dev` with its own protection domain.
    pub fn open(dev: D, params: &Params) -> Result<Self, OpenError> {
        Self::open_on(&Md::open_with(dev, params.config.atomics)?, params)
    }

    /// Opens an interface on a memory domain that other interfaces may share.
    pub fn open_on(md: &Md<D>, params: &Params) -> Result<Self, OpenError> {
        let (dev, config) = (md.dev(), &params.config);
        let a = dev.attr();
        let send_depth = config.tx_queue_len.min(a.max_send_depth);
        let recv_depth = config.rx_queue_len.min(a.max_recv_depth);
        let user_depth = config.user_rx_queue_len.min(a.max_recv_depth);
        let connid = params.connid.unwrap_or_else(random) & 0x7fff_ffff;
        let depth = send_depth + recv_depth + user_depth;
        // Two slots an operation, and a receive for each response.
        let has_atomics = md.amo().is_some()
            && send_depth >= 2
            && send_depth <= a.max_recv_depth
            && depth + send_depth <= a.max_cqe
            && a.mtu as usize >= amo::MAX_LEN;
        let amo_depth = if has_atomics { send_depth } else { 0 };
        let cq = dev.create_cq(depth + amo_depth, params.events)?;
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth,
            recv_depth,
            qkey: connid,
            rnr_retry: config.rnr_retry,
            // Bounds by the receives posted what a peer can put into the completion queue.
            unsolicited_write_recv: false,
        };
        let qp = dev.create_qp(md.pd(), &cq, &cq, &init)?;
        let user_recv_qp = match user_depth {
            0 => None,
            depth => Some(UserRecvQp::open(dev, md.pd(), &cq, depth, random_qkey())?),
        };
        let limits = Limits::new(a);
        let mut optional = Caps::empty();
        optional.set(Caps::USER_RECV, user_recv_qp.is_some());
        optional.set(Caps::ATOMIC | Caps::ATOMIC_EMULATED, has_atomics);
        let (all, none) = (AtomicOps::all(), AtomicCaps::default());
        let atomics = if has_atomics { none.with(4, all, all).with(8, all, all) } else { none };
        let slots = send_depth.min(qp.send_depth());
        let bounce =
            Buffers::new(dev, md.pd(), limits.packet, slots, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let recv_depth = recv_depth.min(qp.recv_depth());
        let rx = Rx::new(dev, md.pd(), limits.packet, recv_depth, config.rx_spare)?;
        rx.refill(&qp);
        Ok(Iface {
            inner: Rc::new(Inner {
                tx: RefCell::new(Tx::new(slots)),
                unpacks: RefCell::new((0..slots).map(|_| None).collect()),
                bounce,
                rx,
                cqe_batch: CqeBatch::default(),
                multi_wr_ops: RefCell::default(),
                ahs: RefCell::new(AddressHandles::new(dev.clone(), md.pd().clone())),
                pending: Arbiter::default(),
                handlers: AmTable::default(),
                stats: Cell::default(),
                attr: IfaceAttr {
                    atomics,
                    ..attr(a, &limits, slots, caps(&limits, params.events) | optional)
                },
                limits,
                addr: RawAddr { gid: dev.gid(), qpn: qp.qpn(), connid },
                events: params.events,
                md: md.clone(),
                qp,
                user_recv_qp,
                amo: OnceCell::new(),
                cq,
            }),
        })
    }

    /// Raw address of this interface.
    pub fn raw_addr(&self) -> RawAddr {
        self.inner.addr
    }

    /// Creates an endpoint to a raw address.
    pub fn connect_raw(&self, to: &RawAddr) -> Result<Ep<D>, Error> {
        Ep::new(self.inner.clone(), to)
    }

    /// Counters so far.
    pub fn stats(&self) -> Stats {
        Stats { no_handler: self.inner.handlers.dropped(), ..self.inner.stats.get() }
    }
}

/// Returns a q-key of 31 random bits.
pub(super) fn random_qkey() -> u32 {
    random() & 0x7fff_ffff
}

/// Returns 32 random bits: the standard library seeds hash keys from the system.
fn random() -> u32 {
    std::hash::RandomState::new().build_hasher().finish() as u32
}

impl Limits {
    fn new(a: &DevAttr) -> Self {
        let rdma = |has: bool| has.then_some(a.max_rdma as usize);
        Limits {
            packet: a.mtu as usize,
            inline: (a.max_inline as usize).min(MAX_INLINE),
            iov: (a.max_send_sge as usize).clamp(1, super::ep::MAX_SGE) - 1,
            read: rdma(a.rdma_read),
            write: rdma(a.rdma_write),
        }
    }
}

/// Capabilities that follow from the device.
fn caps(limits: &Limits, events: Channel) -> Caps {
    let mut caps = Caps::AM_BCOPY
        | Caps::AM_SHORT
        | Caps::SEND_TO_USER_QP
        | Caps::AM_SOURCE
        | Caps::CONNECT_TO_IFACE
        | Caps::PENDING
        | Caps::PEER_FAILURE
        | Caps::FLUSH_REMOTE;
    caps.set(Caps::AM_ZCOPY, limits.iov > 0);
    caps.set(Caps::MR_KEY, limits.read.is_some() || limits.write.is_some());
    caps.set(Caps::GET_BCOPY | Caps::GET_ZCOPY | Caps::GET_SGL, limits.read.is_some());
    let put = Caps::PUT_SHORT | Caps::PUT_BCOPY | Caps::PUT_ZCOPY | Caps::PUT_SGL | Caps::PUT_IMM;
    caps.set(put, limits.write.is_some());
    caps.set(Caps::EP_CHECK, limits.read.is_some());
    caps.set(Caps::EVENT_RECV | Caps::EVENT_SEND, events == Channel::With);
    caps
}

fn attr(a: &DevAttr, limits: &Limits, slots: u32, caps: Caps) -> IfaceAttr {
    // Through the slot's buffer, which holds a packet.
    let rma = |max: Option<usize>| {
        max.map_or_else(RmaLimits::default, |max_zcopy| RmaLimits {
            max_short: 0,
            max_bcopy: limits.packet.min(max_zcopy),
            min_zcopy: 0,
            max_zcopy,
            max_iov: MAX_IOV,
            max_remote: MAX_IOV,
        })
    };
    let put = rma(limits.write);
    let zcopy = if limits.iov > 0 { limits.packet - 1 } else { 0 };
    IfaceAttr {
        tl: super::TL,
        dev: a.name.clone(),
        kind: DevKind::Net,
        caps,
        am: AmLimits {
            max_short: limits.inline.saturating_sub(1).max(AM_SHORT_MIN),
            max_bcopy: limits.packet - 1,
            max_zcopy: zcopy,
            max_hdr: zcopy,
            max_iov: limits.iov,
        },
        put: RmaLimits { max_short: put.max_bcopy, ..put },
        get: rma(limits.read),
        atomics: AtomicCaps::default(),
        order: OrderKind::Unordered,
        am_id_bits: 8,
        device_addr_len: DEVICE_ADDR_LEN,
        iface_addr_len: RAW_ADDR_LEN,
        ep_addr_len: 0,
        tx_depth: Some(slots as usize),
        latency: Latency { fixed: a.perf.latency, per_ep: 0.0 },
        overhead: a.perf.overhead,
        bandwidth: a.perf.bandwidth,
        reg_cost: (a.perf.register.fixed, a.perf.register.per_byte),
        rma: a.perf.rma,
    }
}

impl<D: Dev> api::Iface for Iface<D> {
    type Md = Md<D>;
    type Ep = Ep<D>;

    fn attr(&self) -> &IfaceAttr {
        &self.inner.attr
    }

    fn md(&self) -> &Md<D> {
        &self.inner.md
    }

    fn device_counters(&self) -> Vec<DeviceCounters> {
        self.inner.md.dev().counters_by_part()
    }

    fn device_addr(&self) -> AddrBuf {
        AddrBuf::try_from(&self.inner.addr.gid.0[..]).expect("16 bytes fit")
    }

    fn iface_addr(&self) -> AddrBuf {
        AddrBuf::try_from(&self.inner.addr.pack()[..]).expect("32 bytes fit")
    }

    /// Checks the form of the address, and whether its GID may be reachable. Sends nothing.
    fn reachable(&self, device: &[u8], iface: &[u8]) -> Result<(), ConnectError> {
        self.inner.md.dev().check_reachable(parse_pair(device, iface)?.gid)
    }

    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Ep<D>, ConnectError> {
        let addr = parse_pair(device, iface)?;
        self.inner.md.dev().check_reachable(addr.gid)?;
        Ok(self.connect_raw(&addr)?)
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.inner.handlers.set(id, handler);
    }

    fn set_imm_handler(&self, handler: Option<ImmHandler>) {
        self.inner.handlers.set_imm(handler);
    }

    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(EpTag, Error)>>) {
        self.inner.handlers.set_error(handler);
    }

    fn user_recv_qp(&self) -> Option<UserQp> {
        self.inner.user_recv_qp.as_ref().map(UserRecvQp::addr)
    }

    unsafe fn post_user_recv(&self, into: Iov<'_, Mem<D>>, token: u64) -> Outcome {
        let Some(qp) = &self.inner.user_recv_qp else {
            return Err(Error::Unsupported(Op::PostUserRecv).into());
        };
        let block = into.contiguous().filter(|_| token & USER_RECV_BIT == 0);
        let Some((addr, len)) = block else {
            return Err(Error::InvalidParam("a token has 63 bits, and a receive one block").into());
        };
        qp.post(token, into.mem.ok_or(Error::BadLocalKey)?.sge(addr, len)?)
    }

    #[inline]
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner.poll(max, sink)
    }

    // HOT
    #[inline]
    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    // HOT
    #[inline]
    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        self.inner.poll_one(callback)
    }

    fn progress(&self, max: usize) -> usize {
        if self.inner.handlers.is_running() {
            return 0;
        }
        self.inner.poll(max, &mut TableSink(&self.inner.handlers))
    }

    fn flush(&self, comp: Comp) -> Outcome {
        self.inner.tx.borrow_mut().flush(None, &comp)
    }

    /// Always *done*: further operations answer *no resource* until all earlier ones have completed.
    fn fence(&self) -> Outcome {
        self.inner.tx.borrow_mut().fence(None);
        Ok(Sent::Done)
    }

    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.inner.cq.event_fd().ok_or(Error::Unsupported(Op::EventFd))
    }

    /// Arrivals and completions share a queue, so either event wakes for both.
    fn arm(&self, _events: Events) -> Result<bool, Error> {
        match self.inner.events {
            // Work that only a poll does would never signal the descriptor.
            Channel::With => Ok(!self.inner.needs_poll() && self.inner.cq.arm()),
            Channel::Without => Err(Error::Unsupported(Op::EventFd)),
        }
    }
}
