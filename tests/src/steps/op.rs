//! Operations of two workers by protocol: the settings that select it, and both parts. Called by `side`.
//! Never makes progress.

use super::Role;
use super::side::{End, RemoteMem, Side, end_of_recv, end_of_send};
use std::cell::RefCell;
use std::rc::Rc;
use ucp::select::DeliveryComplete;
use ucp::{AmProto, AtomicOp, Match, Rkey, RmaParams, SendRequest, TAG_MASK_FULL};
use ucs::config::Source;

/// Bytes of a long operation: about five packets.
pub const LEN: usize = 20_000;
/// Bytes of a short operation.
pub const SHORT: usize = 100;
const MTU: &str = "4096";
const TAG: u64 = 7;
const AM: u16 = 3;

/// Declares the operations and the list of all.
macro_rules! operations {
    ($($(#[$about:meta])* $way:ident)*) => {
        /// An operation, by its protocol.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
        pub enum Op {
            $($(#[$about])* $way),*
        }

        impl Op {
            /// All operations.
            pub const ALL: &[Op] = &[$(Op::$way),*];
        }
    };
}

operations! {
    /// The first message between two workers, sync: with the handshake.
    FirstContact
    /// A message of one packet.
    Eager
    /// A message of one packet, sync.
    EagerSync
    /// A message of several packets.
    Medium
    /// A message of several packets, sync.
    MediumSync
    /// A message that is announced and sent in windows.
    LongCts
    /// A message that is announced and sent in windows, sync.
    LongCtsSync
    /// A message that its receiver reads.
    LongRead
    /// A message that its receiver reads, with the first bytes in packets.
    RuntRead
    /// An active message of one packet.
    Am
    /// An active message that is announced.
    AmRendezvous
    /// A send to a stream.
    Stream
    /// A put of one packet.
    PutEager
    /// A put of one packet, sync.
    PutEagerSync
    /// A put in windows.
    PutLongCts
    /// A put in windows, sync.
    PutLongCtsSync
    /// A put that the target reads.
    PutLongRead
    /// A put by the device, or in mapped memory.
    PutDirect
    /// A get with an answer of one packet.
    GetShort
    /// A get in windows.
    GetLongCts
    /// A get by the device, or from mapped memory.
    GetDirect
    /// An atomic without result, and a flush.
    AtomicPost
    /// A fetching atomic.
    AtomicFetch
    /// A compare-and-swap.
    AtomicCompare
}

use Op::*;

impl Op {
    /// Settings of both workers on the transport `wire`: short queues, one event at a time, no timers.
    pub fn settings(self, wire: &str) -> Source {
        let source = Source::empty()
            .with("UCX_TLS", wire)
            .with("UCX_KEEPALIVE_INTERVAL", "0")
            .with("UCX_PROGRESS_BATCH", "1")
            .with("UCX_POSIX_FIFO_SIZE", "2")
            .with("UCX_POSIX_SEG_SIZE", MTU)
            .with("UCX_EFA_TX_QUEUE_LEN", "1")
            .with("UCX_READ_SEGMENT", "8000")
            .with("SOFTEFA_MTU", MTU);
        match self {
            LongCts | LongCtsSync => source.with("UCX_RNDV_THRESH", "0").with("UCX_MIN_READ", "inf"),
            Medium | MediumSync | Stream => source.with("UCX_MIN_READ", "inf").with("UCX_MAX_MEDIUM", "64k"),
            LongRead => source.with("UCX_MIN_READ", "0"),
            RuntRead => source.with("UCX_MIN_READ", "0").with("UCX_RUNT_SIZE", "9000"),
            PutLongCts | PutLongCtsSync => source.with("UCX_MIN_READ_WRITE", "inf"),
            PutLongRead => source.with("UCX_MIN_READ_WRITE", "0"),
            PutDirect | GetDirect => source.with("UCX_MIN_RDMA_PUT", "0").with("UCX_MIN_RDMA_GET", "0"),
            _ => source,
        }
    }

    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            FirstContact => "first message of two that have not met, sync",
            Eager => "eager",
            EagerSync => "eager, sync",
            Medium => "medium",
            MediumSync => "medium, sync",
            LongCts => "long-CTS",
            LongCtsSync => "long-CTS, sync",
            LongRead => "long read (`posix`: medium)",
            RuntRead => "runting read (`posix`: medium)",
            Am => "active message",
            AmRendezvous => "active message, rendezvous",
            Stream => "stream",
            PutEager => "put, eager",
            PutEagerSync => "put, eager, sync",
            PutLongCts => "put, long-CTS",
            PutLongCtsSync => "put, long-CTS, sync",
            PutLongRead => "put that is read, sync (`posix`: long-CTS)",
            PutDirect => "put by the device, sync (`posix`: in mapped memory)",
            GetShort => "get, short",
            GetLongCts => "get, long-CTS",
            GetDirect => "get by the device (`posix`: from mapped memory)",
            AtomicPost => "atomic without result, and a flush",
            AtomicFetch => "atomic with result",
            AtomicCompare => "compare and swap",
        }
    }

    /// Whether this role has an operation that ends.
    pub fn has_part(self, role: Role) -> bool {
        role == Role::Initiator || (self as usize) < PutEager as usize
    }

    fn bytes(self) -> Vec<u8> {
        match self {
            FirstContact | Eager | EagerSync | Am | PutEager | PutEagerSync => vec![5; SHORT],
            _ => vec![5; LEN],
        }
    }

    /// Starts one side's part; answers its ends.
    pub fn start(self, side: &Side, role: Role) -> Vec<End> {
        match role {
            Role::Target => self.serve(side),
            Role::Initiator => self.begin(side),
        }
    }

    fn serve(self, side: &Side) -> Vec<End> {
        let ep = side.ep();
        match self {
            FirstContact | Eager | EagerSync | Medium | MediumSync | LongCts | LongCtsSync | LongRead
            | RuntRead => {
                // Names the peer: a receive from any sender would wait for others.
                let from = Match::tagged(TAG, TAG_MASK_FULL).from(ep);
                vec![end_of_recv(side.worker().recv(from, Vec::with_capacity(LEN)))]
            }
            Am | AmRendezvous => {
                let got: Rc<RefCell<Option<End>>> = Rc::default();
                let slot = got.clone();
                side.worker().set_am_handler(AM, move |message| {
                    *slot.borrow_mut() = Some(end_of_recv(message.recv(Vec::with_capacity(LEN))));
                });
                vec![Box::new(move || got.borrow_mut().as_mut()?())]
            }
            Stream => vec![end_of_recv(ep.stream_recv_full(Vec::with_capacity(LEN)))],
            _ => Vec::new(),
        }
    }

    fn begin(self, side: &Side) -> Vec<End> {
        let (ep, bytes) = (side.ep(), self.bytes());
        let RemoteMem { at, packets, device } = side.remote();
        let sync = RmaParams { sync: DeliveryComplete::Yes, ..RmaParams::default() };
        let put = |rkey: &Rkey| -> SendRequest<Vec<u8>> { ep.put_with(self.bytes(), *at, rkey, &sync) };
        let get = |len: usize, rkey: &Rkey| end_of_recv(ep.get(Vec::with_capacity(len), *at, rkey));
        let value = |request: ucp::FetchRequest<u64>| -> End {
            let mut request = Some(request);
            Box::new(move || match request.as_mut()?.is_done() {
                true => request.take().map(|request| request.wait().map(drop)),
                false => None,
            })
        };
        let end = match self {
            Eager | Medium | LongCts | LongRead | RuntRead => end_of_send(ep.tag_send(TAG, bytes)),
            FirstContact | EagerSync | MediumSync | LongCtsSync => end_of_send(ep.tag_send_sync(TAG, bytes)),
            Am | AmRendezvous => {
                let proto = if self == Am { AmProto::Eager } else { AmProto::Rendezvous };
                let mut send = Some(ep.am_send_with(proto, AM, b"head", bytes));
                Box::new(move || match send.as_mut()?.is_done() {
                    true => send.take().map(|send| send.wait().0),
                    false => None,
                })
            }
            Stream => end_of_send(ep.stream_send(bytes)),
            PutEager | PutLongCts => end_of_send(ep.put(bytes, *at, packets)),
            PutEagerSync | PutLongCtsSync | PutLongRead => end_of_send(put(packets)),
            PutDirect => end_of_send(put(device)),
            GetShort => get(SHORT, packets),
            GetLongCts => get(LEN, packets),
            GetDirect => get(LEN, device),
            AtomicPost => {
                let posted = ep.atomic_post(AtomicOp::Sum, 1u64, *at, packets);
                let mut flush = Some(ep.flush());
                Box::new(move || match (posted, flush.as_mut()?.is_done()) {
                    (Err(e), _) => Some(Err(e)),
                    (_, true) => flush.take().map(|flush| flush.wait()),
                    _ => None,
                })
            }
            AtomicFetch => value(ep.atomic_fetch(AtomicOp::Sum, 1u64, *at, packets)),
            AtomicCompare => value(ep.atomic_compare(AtomicOp::CompareSwap, 0u64, 1, *at, packets)),
        };
        vec![end]
    }
}
