//! Domains of this host, and the limits of this provider.

use ucp::wire::RawAddr;
use uct::api::DevKind;

use crate::abi::flags;
use crate::errno::Errno;

/// Longest message that an inject call copies, bytes.
pub(crate) const INJECT_SIZE: usize = 1024;
/// Most pieces of memory of one operation.
pub(crate) const IOV_LIMIT: usize = 8;
/// Most pieces of memory of a peer of one operation.
pub(crate) const RMA_IOV_LIMIT: usize = 4;
/// Room that a buffer for many messages has at least, until a program chooses it, bytes.
pub(crate) const MIN_MULTI_RECV: usize = 64;
/// Operations of an endpoint at a time, unless hints ask for more.
pub(crate) const DEFAULT_TX_SIZE: usize = 2048;
pub(crate) const DEFAULT_RX_SIZE: usize = 4096;
/// Most operations that hints may ask for.
pub(super) const MAX_SIZE: usize = 1 << 20;
/// Longest message, bytes.
pub(super) const MAX_MSG: usize = isize::MAX as usize;
/// Name of the fabric, and of the domain with all devices.
pub(crate) const FABRIC: &str = "efa4";
/// Longest data of an error in a completion queue, bytes: a text, or the name of a sender.
pub(crate) const MAX_ERR_DATA: usize = 512;

/// Most contexts of a scalable endpoint: the packed addresses of as many fit its name.
pub(crate) const MAX_CONTEXTS: usize = 16;

/// Whether an endpoint with so many contexts is a scalable one.
pub(crate) const fn is_scalable(tx_ctx_cnt: usize, rx_ctx_cnt: usize) -> bool {
    (tx_ctx_cnt > 1 && tx_ctx_cnt != flags::SHARED_CONTEXT)
        || (rx_ctx_cnt > 1 && rx_ctx_cnt != flags::SHARED_CONTEXT)
}

/// Capabilities that are given if asked for.
pub(super) const PRIMARY: u64 = flags::MSG
    | flags::TAGGED
    | ONE_SIDED
    | flags::DIRECTED_RECV
    | flags::SOURCE
    | flags::FENCE
    | flags::MULTI_RECV;
/// Capabilities to access memory of peers.
pub(crate) const ONE_SIDED: u64 = flags::RMA | flags::ATOMIC;
/// Requirements of keys and addresses of memory for peers.
pub(super) const MR_MODE: i32 = flags::MR_VIRT_ADDR | flags::MR_ALLOCATED | flags::MR_PROV_KEY;
/// Whose keys and addresses of memory peers use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyMode {
    /// Value of libfabric.
    pub mr_mode: i32,
    /// The program chooses keys.
    pub own: bool,
    /// Addresses count from the beginning of a region.
    pub by_offset: bool,
    /// Memory may have no pages when it is registered.
    pub unbacked: bool,
}

impl KeyMode {
    /// The mode of a value of libfabric.
    pub(crate) const fn of(mr_mode: i32) -> KeyMode {
        let is_basic = mr_mode & flags::MR_BASIC != 0;
        let (own, by_offset) = (mr_mode & flags::MR_PROV_KEY == 0, mr_mode & flags::MR_VIRT_ADDR == 0);
        let unbacked = mr_mode & flags::MR_ALLOCATED == 0 && !is_basic;
        KeyMode { mr_mode, own: own && !is_basic, by_offset: by_offset && !is_basic, unbacked }
    }
}

/// Capabilities that cost nothing: given anyway.
pub(super) const SECONDARY_CAPS: u64 = flags::LOCAL_COMM | flags::REMOTE_COMM;
/// Capabilities of every domain.
pub(super) const DOMAIN_CAPS: u64 = SECONDARY_CAPS | flags::SHARED_AV;
/// Directions of messages; without any, both are there.
pub(super) const DIRECTIONS: u64 = flags::SEND | flags::RECV;
/// Directions of access to memory; without any, all are there.
pub(super) const RMA_DIRECTIONS: u64 = flags::READ | flags::WRITE | flags::REMOTE_READ | flags::REMOTE_WRITE;
/// Order in which messages arrive, and atomic operations take effect: both are numbered packets to the
/// engine.
pub(super) const MSG_ORDER: u64 = flags::ORDER_SAS | flags::ORDER_ATOMIC;
/// Flags that may be set for every operation of an endpoint.
pub(super) const TX_OP_FLAGS: u64 = flags::COMPLETION
    | flags::INJECT
    | flags::INJECT_COMPLETE
    | flags::TRANSMIT_COMPLETE
    | flags::DELIVERY_COMPLETE
    | flags::MATCH_COMPLETE;
pub(super) const RX_OP_FLAGS: u64 = flags::COMPLETION | flags::MULTI_RECV;

/// Longest message of an endpoint of type `FI_EP_DGRAM`, bytes: what fits one packet of most devices.
pub(crate) const MAX_DATAGRAM: usize = 8192;
/// Capabilities that endpoints which are connected do not have, as they have one source.
pub(super) const UNCONNECTED_ONLY: u64 = flags::SOURCE | flags::DIRECTED_RECV;

/// Type of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EpKind {
    /// `FI_EP_RDM`.
    Rdm,
    /// `FI_EP_MSG`: an endpoint with one peer, known by its socket address.
    Msg,
    /// `FI_EP_DGRAM`: short messages, by the protocol of the others.
    Dgram,
}

impl EpKind {
    /// All types, best first.
    pub(super) const ALL: [EpKind; 3] = [EpKind::Rdm, EpKind::Msg, EpKind::Dgram];

    /// Number of libfabric.
    pub(crate) const fn number(self) -> u32 {
        match self {
            EpKind::Rdm => flags::EP_RDM,
            EpKind::Msg => flags::EP_MSG,
            EpKind::Dgram => flags::EP_DGRAM,
        }
    }

    /// The type with a number of libfabric. `FI_EP_UNSPEC` is `FI_EP_RDM`.
    pub(crate) fn of(number: u32) -> Option<EpKind> {
        let number = if number == flags::EP_UNSPEC { flags::EP_RDM } else { number };
        EpKind::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Capabilities given if asked for.
    pub(super) const fn primary(self) -> u64 {
        match self {
            EpKind::Rdm => PRIMARY,
            EpKind::Msg => PRIMARY & !UNCONNECTED_ONLY,
            EpKind::Dgram => PRIMARY & !ONE_SIDED,
        }
    }

    /// Capabilities given if asked for by name only, as they have a cost.
    pub(super) const fn extra(self) -> u64 {
        match self {
            EpKind::Rdm => {
                let rx = flags::RMA_EVENT | flags::NAMED_RX_CTX | flags::SOURCE_ERR;
                rx | flags::TRIGGER | flags::SHARED_AV | flags::COLLECTIVE
            }
            EpKind::Msg => flags::RMA_EVENT | flags::TRIGGER,
            EpKind::Dgram => flags::SOURCE_ERR | flags::SHARED_AV,
        }
    }

    /// Most contexts of a scalable endpoint of each direction; 1: there are no scalable endpoints.
    pub(super) const fn max_contexts(self) -> usize {
        match self {
            EpKind::Rdm => MAX_CONTEXTS,
            EpKind::Msg | EpKind::Dgram => 1,
        }
    }

    /// Protocol: that of libfabric's EFA provider for endpoints that it can talk to.
    pub(super) const fn protocol(self) -> u32 {
        match self {
            EpKind::Rdm => flags::PROTO_EFA,
            EpKind::Msg | EpKind::Dgram => flags::PROV_SPECIFIC | 0xefa4,
        }
    }

    /// Longest message, bytes.
    pub(crate) const fn max_msg(self) -> usize {
        match self {
            EpKind::Rdm | EpKind::Msg => MAX_MSG,
            EpKind::Dgram => MAX_DATAGRAM,
        }
    }
}

/// Form of the names of endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NameForm {
    /// A packed address of the engine, padded with zeros: all transports. Not longer than `FI_NAME_MAX`, the
    /// room that programs have for a name.
    Packed,
    /// A packed address in a domain with several NICs, which needs more room.
    Wide,
    /// The packed addresses of all contexts of a scalable endpoint, one behind another.
    Scalable,
    /// 32 bytes, as libfabric's EFA provider has them: the NIC only.
    Efa,
}

impl NameForm {
    /// Length of a name, bytes.
    pub(crate) const fn len(self) -> usize {
        match self {
            NameForm::Packed => 64,
            NameForm::Wide => 512,
            NameForm::Scalable => 1024,
            NameForm::Efa => 32,
        }
    }

    /// The address format of libfabric.
    pub(crate) const fn format(self) -> u32 {
        match self {
            NameForm::Packed | NameForm::Wide | NameForm::Scalable => flags::PROV_SPECIFIC | 0xefa4,
            NameForm::Efa => flags::ADDR_EFA,
        }
    }

    /// The name that a text of `fi_av_straddr` stands for.
    pub(crate) fn name_in(self, words: &str) -> Option<Vec<u8>> {
        if self == NameForm::Efa {
            return Some(words.parse::<RawAddr>().ok()?.to_bytes().into());
        }
        let bytes = words.strip_prefix("fi_addr_efa4://")?.split('/').next()?;
        let byte = |at: usize| u8::from_str_radix(bytes.get(at..at + 2)?, 16).ok();
        let mut name = (0..bytes.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        if name.len() > self.len() {
            return None;
        }
        name.resize(self.len(), 0);
        Some(name)
    }

    /// Form of the names of a domain with so many NICs, for scalable endpoints or without.
    pub(crate) fn of(format: u32, nics: usize, is_scalable: bool) -> NameForm {
        match nics {
            _ if is_scalable => NameForm::Scalable,
            _ if format == flags::ADDR_EFA => NameForm::Efa,
            0 | 1 => NameForm::Packed,
            _ => NameForm::Wide,
        }
    }
}

/// A domain that programs may open.
#[derive(Clone, Debug)]
pub(crate) struct OpenableDomain {
    pub name: String,
    /// NICs of the domain. Without one, endpoints cannot have names of [`NameForm::Efa`].
    pub nics: usize,
}

impl OpenableDomain {
    /// The domains of this host: one with all devices, and one for each of several NICs. One for the only NIC
    /// is there if it is `named`, as it would be a second answer with the same device.
    pub(super) fn all(named: Option<&str>) -> Result<Vec<OpenableDomain>, Errno> {
        let context = ucp::Context::configured(crate::provider::source()?).map_err(|error| {
            crate::provider::warn(&format!("no answer: {error}"));
            Errno::NODATA
        })?;
        let nics = nics(&context);
        let mut domains = vec![OpenableDomain { name: FABRIC.into(), nics: nics.len() }];
        if nics.len() > 1 || nics.first().is_some_and(|nic| named == Some(*nic)) {
            domains.extend(nics.iter().map(|dev| OpenableDomain { name: (*dev).into(), nics: 1 }));
        }
        Ok(domains)
    }
}

/// Names of the NICs of a context.
fn nics(context: &ucp::Context) -> Vec<&str> {
    context.resources().iter().filter(|r| r.kind == DevKind::Net).map(|r| &*r.dev).collect()
}

/// Number of the NICs of a context.
pub(crate) fn count_nics(context: &ucp::Context) -> usize {
    nics(context).len()
}

/// The device to which a domain of this name is restricted; `None`: to none.
pub(crate) fn device_of(domain: &str) -> Option<&str> {
    Some(domain).filter(|name| *name != FABRIC)
}
