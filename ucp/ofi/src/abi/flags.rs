//! Flags, and values of enumerations.

/// Capabilities, flags of operations, flags of completions.
pub(crate) const MSG: u64 = 1 << 1;
pub(crate) const RMA: u64 = 1 << 2;
pub(crate) const TAGGED: u64 = 1 << 3;
pub(crate) const ATOMIC: u64 = 1 << 4;
pub(crate) const COLLECTIVE: u64 = 1 << 6;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const SEND: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const MULTI_RECV: u64 = 1 << 16;
/// Of later releases: `FI_DIRECTED_RECV` and `FI_MULTI_RECV` of tagged messages alone.
pub(crate) const TAGGED_DIRECTED_RECV: u64 = 1 << 45;
pub(crate) const TAGGED_MULTI_RECV: u64 = 1 << 46;
pub(crate) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const MORE: u64 = 1 << 18;
pub(crate) const PEEK: u64 = 1 << 19;
pub(crate) const TRIGGER: u64 = 1 << 20;
pub(crate) const FENCE: u64 = 1 << 21;
pub(crate) const COMPLETION: u64 = 1 << 24;
pub(crate) const INJECT: u64 = 1 << 25;
pub(crate) const INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const MATCH_COMPLETE: u64 = 1 << 31;
pub(crate) const NAMED_RX_CTX: u64 = 1 << 58;
pub(crate) const LOCAL_COMM: u64 = 1 << 51;
pub(crate) const REMOTE_COMM: u64 = 1 << 52;
pub(crate) const RMA_EVENT: u64 = 1 << 56;
pub(crate) const SOURCE: u64 = 1 << 57;
pub(crate) const SOURCE_ERR: u64 = 1 << 50;
pub(crate) const SHARED_AV: u64 = 1 << 53;
pub(crate) const DIRECTED_RECV: u64 = 1 << 59;
/// Flags of receives; they share their bits with capabilities.
pub(crate) const DISCARD: u64 = 1 << 58;
pub(crate) const CLAIM: u64 = 1 << 59;
/// Flag of binding a completion queue; shares its bit with [`DIRECTED_RECV`].
pub(crate) const SELECTIVE_COMPLETION: u64 = 1 << 59;
/// Flags of `fi_query_atomic`; they share their bits with others, too.
pub(crate) const FETCH_ATOMIC: u64 = 1 << 58;
pub(crate) const COMPARE_ATOMIC: u64 = 1 << 59;
/// `FI_EVENT`: a flag of address vectors with an event queue.
pub(crate) const EVENT: u64 = COMPLETION;
/// `FI_ORDER_SAS`: messages arrive in the order in which they were sent.
pub(crate) const ORDER_SAS: u64 = 1 << 8;
/// `FI_ORDER_ATOMIC_RAR`, `_RAW`, `_WAR` and `_WAW`: atomic operations take effect in the order of their
/// calls.
pub(crate) const ORDER_ATOMIC: u64 = 0xf << 36;
/// `FI_TAG_GENERIC`.
pub(crate) const TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;

pub(crate) const FORMAT_UNSPEC: u32 = 0;
pub(crate) const SOCKADDR: u32 = 1;
pub(crate) const SOCKADDR_IN: u32 = 2;
pub(crate) const SOCKADDR_IN6: u32 = 3;
pub(crate) const ADDR_EFA: u32 = 12;
pub(crate) const PROV_SPECIFIC: u32 = 1 << 31;

pub(crate) const EP_UNSPEC: u32 = 0;
pub(crate) const EP_MSG: u32 = 1;
pub(crate) const EP_DGRAM: u32 = 2;
pub(crate) const EP_RDM: u32 = 3;
pub(crate) const PROTO_EFA: u32 = 20;

pub(crate) const THREAD_SAFE: u32 = 1;
pub(crate) const THREAD_DOMAIN: u32 = 3;
pub(crate) const THREAD_ENDPOINT: u32 = 5;

pub(crate) const PROGRESS_AUTO: u32 = 1;
pub(crate) const PROGRESS_MANUAL: u32 = 2;
/// `FI_PROGRESS_CONTROL_UNIFIED` of later releases: the program makes both kinds, from one thread.
pub(crate) const PROGRESS_CONTROL_UNIFIED: u32 = 3;

pub(crate) const RM_ENABLED: u32 = 2;

pub(crate) const AV_UNSPEC: u32 = 0;
pub(crate) const AV_MAP: u32 = 1;
pub(crate) const AV_TABLE: u32 = 2;

pub(crate) const MR_UNSPEC: i32 = 0;
pub(crate) const MR_BASIC: i32 = 1;
pub(crate) const MR_SCALABLE: i32 = 2;
pub(crate) const MR_VIRT_ADDR: i32 = 1 << 4;
pub(crate) const MR_ALLOCATED: i32 = 1 << 5;
pub(crate) const MR_PROV_KEY: i32 = 1 << 6;

pub(crate) const WAIT_NONE: u32 = 0;
pub(crate) const WAIT_UNSPEC: u32 = 1;
pub(crate) const WAIT_SET: u32 = 2;
pub(crate) const WAIT_FD: u32 = 3;
pub(crate) const WAIT_YIELD: u32 = 5;

pub(crate) const CQ_COND_THRESHOLD: u32 = 1;

pub(crate) const CQ_FORMAT_UNSPEC: u32 = 0;
pub(crate) const CQ_FORMAT_CONTEXT: u32 = 1;
pub(crate) const CQ_FORMAT_MSG: u32 = 2;
pub(crate) const CQ_FORMAT_DATA: u32 = 3;
pub(crate) const CQ_FORMAT_TAGGED: u32 = 4;

/// Classes of objects.
pub(crate) const CLASS_FABRIC: usize = 1;
pub(crate) const CLASS_DOMAIN: usize = 2;
pub(crate) const CLASS_EP: usize = 3;
pub(crate) const CLASS_SEP: usize = 4;
pub(crate) const CLASS_RX_CTX: usize = 5;
pub(crate) const CLASS_SRX_CTX: usize = 6;
pub(crate) const CLASS_TX_CTX: usize = 7;
pub(crate) const CLASS_STX_CTX: usize = 8;
pub(crate) const CLASS_PEP: usize = 9;
pub(crate) const CLASS_AV: usize = 11;
pub(crate) const CLASS_MR: usize = 12;
pub(crate) const CLASS_EQ: usize = 13;
pub(crate) const CLASS_CQ: usize = 14;
pub(crate) const CLASS_CNTR: usize = 15;
pub(crate) const CLASS_WAIT: usize = 16;
pub(crate) const CLASS_POLL: usize = 17;
pub(crate) const CLASS_CONNREQ: usize = 18;
pub(crate) const CLASS_MC: usize = 19;
pub(crate) const CLASS_AV_SET: usize = 21;

/// Commands of `fi_control`.
pub(crate) const GETOPSFLAG: i32 = 2;
pub(crate) const SETOPSFLAG: i32 = 3;
pub(crate) const ALIAS: i32 = 4;
pub(crate) const GETWAIT: i32 = 5;
pub(crate) const ENABLE: i32 = 6;
pub(crate) const BACKLOG: i32 = 7;
pub(crate) const QUEUE_WORK: i32 = 11;
pub(crate) const CANCEL_WORK: i32 = 12;
pub(crate) const FLUSH_WORK: i32 = 13;
pub(crate) const GETWAITOBJ: i32 = 16;

pub(crate) const OPT_ENDPOINT: i32 = 0;
pub(crate) const OPT_MIN_MULTI_RECV: i32 = 0;
pub(crate) const OPT_CM_DATA_SIZE: i32 = 1;
pub(crate) const OPT_TX_SIZE: i32 = 6;
pub(crate) const OPT_RX_SIZE: i32 = 7;
pub(crate) const OPT_FI_HMEM_P2P: i32 = 8;
/// `FI_HMEM_P2P_REQUIRED`.
pub(crate) const HMEM_P2P_REQUIRED: i32 = 1;
pub(crate) const OPT_EFA_RNR_RETRY: i32 = -(0xefa << 16);
/// Of later releases, from `FI_OPT_CUDA_API_PERMITTED` on.
pub(crate) const OPT_CUDA_API_PERMITTED: i32 = 10;
pub(crate) const OPT_SHARED_MEMORY_PERMITTED: i32 = 11;
pub(crate) const OPT_MAX_MSG_SIZE: i32 = 12;
pub(crate) const OPT_MAX_ATOMIC_SIZE: i32 = 15;
pub(crate) const OPT_INJECT_MSG_SIZE: i32 = 16;
pub(crate) const OPT_INJECT_ATOMIC_SIZE: i32 = 19;
pub(crate) const OPT_EFA_EMULATED_READ: i32 = OPT_EFA_RNR_RETRY + 1;
pub(crate) const OPT_EFA_EMULATED_WRITE: i32 = OPT_EFA_RNR_RETRY + 2;
pub(crate) const OPT_EFA_EMULATED_ATOMICS: i32 = OPT_EFA_RNR_RETRY + 3;
pub(crate) const OPT_EFA_USE_DEVICE_RDMA: i32 = OPT_EFA_RNR_RETRY + 4;
pub(crate) const OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES: i32 = OPT_EFA_RNR_RETRY + 5;
pub(crate) const OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES: i32 = OPT_EFA_RNR_RETRY + 6;
pub(crate) const OPT_EFA_HOMOGENEOUS_PEERS: i32 = OPT_EFA_RNR_RETRY + 7;
pub(crate) const OPT_EFA_USE_UNSOLICITED_WRITE_RECV: i32 = OPT_EFA_RNR_RETRY + 8;

/// Events of connections.
pub(crate) const CONNREQ: u32 = 1;
pub(crate) const CONNECTED: u32 = 2;
pub(crate) const SHUTDOWN: u32 = 3;

/// `FI_TRIGGER_THRESHOLD`: an event of triggered operations.
pub(crate) const TRIGGER_THRESHOLD: i32 = 0;

/// Flags of `fi_getinfo`; [`SOURCE`] is one, too.
/// Not in the headers, but passed to providers: a utility provider asks for one to layer over.
pub(crate) const CORE_PROV_ONLY: u64 = 1 << 59;
pub(crate) const NUMERICHOST: u64 = 1 << 55;
pub(crate) const PROV_ATTR_ONLY: u64 = 1 << 54;

/// `FI_SHARED_CONTEXT`: a number of contexts.
pub(crate) const SHARED_CONTEXT: usize = usize::MAX;
