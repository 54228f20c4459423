//! Hints, and whether a domain satisfies them.

use std::net::SocketAddr;

use super::answer::{Answer, Sockets, bytes, text};
use super::domains::{
    DEFAULT_RX_SIZE, DEFAULT_TX_SIZE, DIRECTIONS, DOMAIN_CAPS, EpKind, FABRIC, INJECT_SIZE, IOV_LIMIT,
    KeyMode, MAX_ERR_DATA, MAX_SIZE, MR_MODE, MSG_ORDER, NameForm, ONE_SIDED, OpenableDomain, RMA_DIRECTIONS,
    RMA_IOV_LIMIT, RX_OP_FLAGS, SECONDARY_CAPS, TX_OP_FLAGS, is_scalable,
};
use super::names;
use crate::abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::abi::{flags, version};
use crate::sockaddr;

/// Hints of a caller. All of them are optional.
#[derive(Default)]
pub(super) struct Hints {
    version: u32,
    /// Attributes are the provider's, whatever the hints say.
    all_attributes: bool,
    caps: u64,
    addr_format: u32,
    src_addr: Vec<u8>,
    dest_addr: Vec<u8>,
    tx: Option<TxAttr>,
    rx: Option<RxAttr>,
    ep: Option<EpAttr>,
    domain: Option<DomainAttr>,
    domain_name: Option<String>,
    fabric: Option<FabricAttr>,
    fabric_name: Option<String>,
}

/// Refuses a domain, with a reason.
macro_rules! require {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}

impl Hints {
    /// Reads hints; null: there are none.
    /// # Safety
    /// `hints` is null or a whole tree.
    pub(super) unsafe fn read(version: u32, flags: u64, hints: *const Info) -> Hints {
        let all_attributes = flags & flags::PROV_ATTR_ONLY != 0;
        // SAFETY: this function's contract.
        let Some(info) = (unsafe { hints.as_ref() }) else {
            return Hints { version, all_attributes, ..Hints::default() };
        };
        // SAFETY: as above, of each pointer.
        unsafe {
            Hints {
                version,
                all_attributes,
                caps: info.caps,
                addr_format: info.addr_format,
                src_addr: bytes(info.src_addr, info.src_addrlen),
                dest_addr: bytes(info.dest_addr, info.dest_addrlen),
                tx: info.tx_attr.as_ref().copied(),
                rx: info.rx_attr.as_ref().copied(),
                ep: info.ep_attr.as_ref().copied(),
                domain: info.domain_attr.as_ref().copied(),
                domain_name: info.domain_attr.as_ref().and_then(|attr| text(attr.name)),
                fabric: info.fabric_attr.as_ref().copied(),
                fabric_name: info.fabric_attr.as_ref().and_then(|attr| text(attr.name)),
            }
        }
    }

    /// Types of endpoints that the caller may want, best first.
    pub(super) fn kinds(&self) -> Result<Vec<EpKind>, String> {
        match self.ep.map_or(flags::EP_UNSPEC, |attr| attr.ep_type) {
            flags::EP_UNSPEC => Ok(EpKind::ALL.to_vec()),
            number => match EpKind::of(number) {
                Some(kind) => Ok(vec![kind]),
                None => Err(format!("there is no endpoint type {number}")),
            },
        }
    }

    /// Pairs of socket addresses, each of which makes an answer; one without addresses for endpoints that are
    /// not connected, or why there is none.
    pub(super) fn sockets(
        &self,
        kind: EpKind,
        [node, service]: &[Option<String>; 2],
        call_flags: u64,
    ) -> Result<Vec<Sockets>, String> {
        if kind != EpKind::Msg {
            // Names have no part for a service alone: it restricts nothing.
            require!(
                node.is_none(),
                "{node:?}, {service:?} are a socket address, which names no such endpoint"
            );
            return Ok(vec![Sockets::default()]);
        }
        let known = [flags::FORMAT_UNSPEC, flags::SOCKADDR, flags::SOCKADDR_IN, flags::SOCKADDR_IN6];
        require!(
            known.contains(&self.addr_format),
            "address format {:#x} is none of sockets",
            self.addr_format
        );
        let given = |bytes: &[u8]| match bytes {
            [] => Ok(None),
            bytes => {
                sockaddr::read(bytes).map(Some).ok_or("the hints have an address that is no socket address")
            }
        };
        let (mut source, mut dest) = (given(&self.src_addr)?, given(&self.dest_addr)?);
        if node.is_some() || service.is_some() {
            let resolved = names::resolve(node.as_deref(), service.as_deref(), call_flags, self.addr_format)?;
            *(if call_flags & flags::SOURCE != 0 { &mut source } else { &mut dest }) = Some(resolved);
        }
        let sources = match (source, dest) {
            (Some(source), _) => vec![source],
            (None, Some(dest)) => vec![names::source_to(dest)?],
            (None, None) => names::of_this_host(),
        };
        let fits = |addr: &SocketAddr| match self.addr_format {
            flags::SOCKADDR_IN => addr.is_ipv4(),
            flags::SOCKADDR_IN6 => addr.is_ipv6(),
            _ => true,
        };
        let sources: Vec<_> = sources.into_iter().filter(fits).collect();
        require!(!sources.is_empty(), "no network interface has an address of this format");
        require!(dest.iter().all(fits), "the destination address has another format");
        Ok(sources.into_iter().map(|source| Sockets { source: Some(source), dest }).collect())
    }

    /// The answer for an offered domain, or why there is none.
    pub(super) fn answer(
        &self,
        domain: &OpenableDomain,
        kind: EpKind,
        sockets: &Sockets,
        keys: KeyMode,
    ) -> Result<Answer, String> {
        if let Some(name) = &self.domain_name {
            require!(*name == domain.name, "the hints name domain {name}");
        }
        if let Some(name) = &self.fabric_name {
            require!(name == FABRIC, "the hints name fabric {name}");
        }
        let (addr_format, src_addr, dest_addr) = self.addresses(domain, kind, sockets)?;
        let caps = self.caps(kind)?;
        require!(
            !(keys.own || keys.by_offset) || caps & ONE_SIDED == 0 || addr_format != flags::ADDR_EFA,
            "libfabric's EFA provider knows no keys and offsets of the program (mr_mode FI_MR_BASIC, or {MR_MODE:#x})"
        );
        let tx = self.tx(caps)?;
        let rx = self.rx(caps)?;
        let ep = self.ep(kind)?;
        Ok(Answer {
            caps,
            addr_format,
            src_addr,
            dest_addr,
            handle: std::ptr::null_mut(),
            tx,
            rx,
            ep,
            domain: self.domain(kind, caps, keys)?,
            domain_name: domain.name.clone(),
            fabric: FabricAttr {
                fabric: self.fabric.map_or(std::ptr::null_mut(), |attr| attr.fabric),
                name: std::ptr::null_mut(),
                prov_name: std::ptr::null_mut(),
                prov_version: 0,
                api_version: self.version,
            },
        })
    }

    /// Address format, source and destination of an answer.
    fn addresses(
        &self,
        domain: &OpenableDomain,
        kind: EpKind,
        sockets: &Sockets,
    ) -> Result<(u32, Vec<u8>, Vec<u8>), String> {
        if let Some(source) = sockets.source {
            let format = match self.addr_format {
                flags::SOCKADDR => flags::SOCKADDR,
                _ => sockaddr::format(source),
            };
            let dest = sockets.dest.map(sockaddr::write).unwrap_or_default();
            return Ok((format, sockaddr::write(source), dest));
        }
        require!(self.src_addr.is_empty(), "a source address cannot be chosen");
        let form = self.name_form(domain)?;
        // Datagrams of libfabric's EFA provider have no header, so that nobody shall take one for the other.
        require!(
            kind != EpKind::Dgram || form != NameForm::Efa,
            "datagrams are not those of libfabric's EFA provider, so FI_ADDR_EFA does not name endpoints for them"
        );
        if !self.dest_addr.is_empty() {
            let len = self.dest_addr.len();
            require!(len == form.len(), "a destination address of {len} bytes is none of this provider");
        }
        Ok((form.format(), Vec::new(), self.dest_addr.clone()))
    }

    fn name_form(&self, domain: &OpenableDomain) -> Result<NameForm, String> {
        let format = self.addr_format;
        let is_known = [flags::FORMAT_UNSPEC, flags::ADDR_EFA, NameForm::Packed.format()].contains(&format);
        require!(is_known, "address format {format:#x} is not supported");
        let form = NameForm::of(format, domain.nics, self.is_scalable());
        require!(
            form != NameForm::Scalable || format != flags::ADDR_EFA,
            "scalable endpoints are not those of libfabric's EFA provider, so FI_ADDR_EFA does not name them"
        );
        require!(form != NameForm::Efa || domain.nics > 0, "FI_ADDR_EFA names a NIC, and there is none");
        Ok(form)
    }

    /// Whether the caller asks for scalable endpoints.
    fn is_scalable(&self) -> bool {
        self.caps & flags::NAMED_RX_CTX != 0
            || self.ep.is_some_and(|hint| is_scalable(hint.tx_ctx_cnt, hint.rx_ctx_cnt))
            || self.domain.is_some_and(|hint| is_scalable(hint.max_ep_tx_ctx, hint.max_ep_rx_ctx))
    }

    /// Capabilities: those asked for, and those that cost nothing.
    fn caps(&self, kind: EpKind) -> Result<u64, String> {
        let primary = kind.primary();
        let directions = |all: u64| if self.caps & all == 0 { all } else { self.caps & all };
        let extra = kind.extra();
        let absent = self.caps & !(primary | extra | SECONDARY_CAPS | DIRECTIONS | RMA_DIRECTIONS);
        require!(absent == 0, "capabilities {absent:#x} are not supported");
        // A receive from a peer would be one from each of its contexts.
        let is_directed = self.caps & flags::DIRECTED_RECV != 0;
        require!(
            !self.is_scalable() || !is_directed,
            "FI_DIRECTED_RECV is not there with scalable endpoints"
        );
        let has_source_errors = self.caps & flags::SOURCE_ERR != 0;
        require!(
            !has_source_errors || self.caps & flags::SOURCE != 0,
            "FI_SOURCE_ERR is not there without FI_SOURCE"
        );
        // A message names the context that has sent it, and not the others of its endpoint.
        require!(
            !self.is_scalable() || !has_source_errors,
            "FI_SOURCE_ERR is not there with scalable endpoints"
        );
        // Groups are of endpoints with one context, and libfabric's EFA provider has none.
        require!(
            self.caps & flags::COLLECTIVE == 0 || !self.is_scalable() && self.addr_format != flags::ADDR_EFA,
            "FI_COLLECTIVE is not there with scalable endpoints and FI_ADDR_EFA"
        );
        let primary = if self.is_scalable() { primary & !flags::DIRECTED_RECV } else { primary };
        let chosen = match self.caps & primary {
            0 if self.permits_every_key() => primary,
            0 => primary & !ONE_SIDED,
            chosen => chosen,
        };
        let mut caps = chosen | SECONDARY_CAPS | self.caps & extra;
        if chosen & (flags::MSG | flags::TAGGED) != 0 {
            caps |= directions(DIRECTIONS);
        }
        if chosen & ONE_SIDED != 0 {
            caps |= directions(RMA_DIRECTIONS);
        }
        Ok(caps)
    }

    /// Whether the caller can deal with keys and addresses that are the provider's.
    fn permits_every_key(&self) -> bool {
        self.key_modes().first().is_some_and(|mode| !mode.own && !mode.by_offset)
    }

    /// Whose keys and addresses of memory the caller can deal with, best first.
    pub(super) fn key_modes(&self) -> Vec<KeyMode> {
        const BASIC: KeyMode = KeyMode::of(flags::MR_BASIC);
        const SCALABLE: KeyMode = KeyMode::of(flags::MR_SCALABLE);
        let is_before_1_5 = self.version < version(1, 5);
        let hint = self.domain.filter(|_| !self.all_attributes).map(|hint| hint.mr_mode);
        let named = hint.unwrap_or(flags::MR_UNSPEC);
        match named {
            _ if named & flags::MR_BASIC != 0 && named & flags::MR_SCALABLE != 0 => vec![BASIC, SCALABLE],
            _ if named & flags::MR_BASIC != 0 => vec![BASIC],
            _ if named & flags::MR_SCALABLE != 0 => vec![SCALABLE],
            _ if is_before_1_5 => vec![BASIC],
            // Keys of the program go into packets, where addresses need not be virtual ones either.
            _ => {
                let bits = hint.map_or(MR_MODE, |bits| bits & MR_MODE);
                let unneeded = if bits & flags::MR_PROV_KEY == 0 { flags::MR_VIRT_ADDR } else { 0 };
                vec![KeyMode::of(bits & !unneeded)]
            }
        }
    }

    fn tx(&self, caps: u64) -> Result<TxAttr, String> {
        const TX: u64 = flags::MSG
            | flags::TAGGED
            | ONE_SIDED
            | flags::FENCE
            | flags::SEND
            | flags::READ
            | flags::WRITE
            | flags::TRIGGER
            | flags::COLLECTIVE
            | flags::NAMED_RX_CTX;
        let mut attr = TxAttr {
            caps: caps & TX,
            mode: 0,
            op_flags: 0,
            msg_order: MSG_ORDER,
            comp_order: 0,
            inject_size: INJECT_SIZE,
            size: DEFAULT_TX_SIZE,
            iov_limit: IOV_LIMIT,
            rma_iov_limit: if caps & ONE_SIDED == 0 { 0 } else { RMA_IOV_LIMIT },
            tclass: 0,
        };
        let Some(hint) = self.tx.filter(|_| !self.all_attributes) else { return Ok(attr) };
        require!(
            hint.caps & !caps == 0,
            "transmit capabilities {:#x} are not those of the endpoint",
            hint.caps
        );
        require!(hint.op_flags & !TX_OP_FLAGS == 0, "transmit flags {:#x} are not supported", hint.op_flags);
        check_order(hint.msg_order, hint.comp_order)?;
        require!(hint.inject_size <= INJECT_SIZE, "inject size {} exceeds {INJECT_SIZE}", hint.inject_size);
        require!(hint.size <= MAX_SIZE, "transmit queue size {} exceeds {MAX_SIZE}", hint.size);
        require!(hint.iov_limit <= IOV_LIMIT, "{} pieces of memory exceed {IOV_LIMIT}", hint.iov_limit);
        let limit = attr.rma_iov_limit;
        require!(
            hint.rma_iov_limit <= limit,
            "{} pieces of a peer's memory exceed {limit}",
            hint.rma_iov_limit
        );
        if hint.caps != 0 {
            attr.caps = hint.caps;
        }
        attr.op_flags = hint.op_flags;
        if hint.size != 0 {
            attr.size = hint.size;
        }
        Ok(attr)
    }

    fn rx(&self, caps: u64) -> Result<RxAttr, String> {
        const RX: u64 = flags::MSG
            | flags::TAGGED
            | ONE_SIDED
            | flags::RECV
            | flags::REMOTE_READ
            | flags::REMOTE_WRITE
            | flags::MULTI_RECV
            | flags::SOURCE
            | flags::SOURCE_ERR
            | flags::DIRECTED_RECV
            | flags::RMA_EVENT
            | flags::TRIGGER
            | flags::COLLECTIVE
            | flags::NAMED_RX_CTX;
        let mut attr = RxAttr {
            caps: caps & RX,
            mode: 0,
            op_flags: 0,
            msg_order: MSG_ORDER,
            comp_order: 0,
            total_buffered_recv: 0,
            size: DEFAULT_RX_SIZE,
            iov_limit: IOV_LIMIT,
        };
        let Some(hint) = self.rx.filter(|_| !self.all_attributes) else { return Ok(attr) };
        require!(
            hint.caps & !caps == 0,
            "receive capabilities {:#x} are not those of the endpoint",
            hint.caps
        );
        require!(hint.op_flags & !RX_OP_FLAGS == 0, "receive flags {:#x} are not supported", hint.op_flags);
        check_order(hint.msg_order, hint.comp_order)?;
        require!(hint.size <= MAX_SIZE, "receive queue size {} exceeds {MAX_SIZE}", hint.size);
        require!(hint.iov_limit <= IOV_LIMIT, "{} pieces of memory exceed {IOV_LIMIT}", hint.iov_limit);
        if hint.caps != 0 {
            attr.caps = hint.caps;
        }
        attr.op_flags = hint.op_flags;
        attr.total_buffered_recv = hint.total_buffered_recv;
        if hint.size != 0 {
            attr.size = hint.size;
        }
        Ok(attr)
    }

    fn ep(&self, kind: EpKind) -> Result<EpAttr, String> {
        let (protocol, max_msg) = (kind.protocol(), kind.max_msg());
        let attr = EpAttr {
            ep_type: kind.number(),
            protocol,
            protocol_version: 4,
            max_msg_size: max_msg,
            msg_prefix_size: 0,
            max_order_raw_size: 0,
            max_order_war_size: 0,
            max_order_waw_size: 0,
            mem_tag_format: flags::TAG_GENERIC,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            auth_key_size: 0,
            auth_key: std::ptr::null_mut(),
        };
        let Some(hint) = self.ep else { return Ok(attr) };
        if self.all_attributes {
            return Ok(attr);
        }
        require!(
            [0, protocol].contains(&hint.protocol),
            "protocol {:#x} is not {protocol:#x}",
            hint.protocol
        );
        require!(hint.protocol_version <= 4, "protocol version {} is not 4", hint.protocol_version);
        require!(hint.max_msg_size <= max_msg, "messages of {} bytes exceed {max_msg}", hint.max_msg_size);
        let has_order_size =
            hint.max_order_raw_size != 0 || hint.max_order_war_size != 0 || hint.max_order_waw_size != 0;
        require!(!has_order_size, "RMA operations have no order");
        let contexts = (hint.tx_ctx_cnt, hint.rx_ctx_cnt);
        let is_shared = |count: usize| count == flags::SHARED_CONTEXT;
        let most = kind.max_contexts();
        require!(
            (contexts.0 <= most || is_shared(contexts.0)) && (contexts.1 <= most || is_shared(contexts.1)),
            "{contexts:?} contexts of an endpoint exceed {most} each"
        );
        require!(
            !is_scalable(contexts.0, contexts.1) || !(is_shared(contexts.0) || is_shared(contexts.1)),
            "contexts of a scalable endpoint cannot be shared"
        );
        let count = |asked: usize| if asked == 0 { 1 } else { asked };
        let attr = EpAttr { tx_ctx_cnt: count(contexts.0), rx_ctx_cnt: count(contexts.1), ..attr };
        require!(hint.auth_key_size == 0, "authorization keys are not supported");
        Ok(attr)
    }

    fn domain(&self, kind: EpKind, caps: u64, keys: KeyMode) -> Result<DomainAttr, String> {
        let mut attr = domain_attr(self.version);
        // Open MPI opens scalable endpoints wherever there may be some, with one context.
        if self.is_scalable() {
            (attr.max_ep_tx_ctx, attr.max_ep_rx_ctx) = (kind.max_contexts(), kind.max_contexts());
        }
        let is_former_mode = keys.mr_mode & (flags::MR_BASIC | flags::MR_SCALABLE) != 0;
        if caps & ONE_SIDED != 0 || is_former_mode {
            attr.mr_mode = keys.mr_mode;
        }
        if keys.own {
            attr.mr_key_size = 4;
        }
        let Some(hint) = self.domain else { return Ok(attr) };
        attr.domain = hint.domain;
        if self.all_attributes {
            return Ok(attr);
        }
        let choices = [
            ("threading", hint.threading, flags::THREAD_ENDPOINT),
            ("control_progress", hint.control_progress, flags::PROGRESS_MANUAL),
            ("data_progress", hint.data_progress, flags::PROGRESS_MANUAL),
            ("resource_mgmt", hint.resource_mgmt, flags::RM_ENABLED),
            ("av_type", hint.av_type, flags::AV_TABLE),
        ];
        for (name, value, last) in choices {
            require!(value <= last, "{name} {value} is not known");
        }
        let set = |to: &mut u32, hint: u32| {
            if hint != 0 {
                *to = hint;
            }
        };
        set(&mut attr.threading, hint.threading);
        set(&mut attr.control_progress, hint.control_progress);
        set(&mut attr.data_progress, hint.data_progress);
        set(&mut attr.av_type, hint.av_type);
        let most = if caps & ONE_SIDED == 0 { 8 } else { attr.mr_key_size };
        require!(hint.mr_key_size <= most, "keys of {} bytes exceed {most}", hint.mr_key_size);
        require!(hint.cq_data_size <= 8, "completion data of {} bytes exceeds 8", hint.cq_data_size);
        let counts = [
            ("cq_cnt", hint.cq_cnt, attr.cq_cnt),
            ("ep_cnt", hint.ep_cnt, attr.ep_cnt),
            ("tx_ctx_cnt", hint.tx_ctx_cnt, attr.tx_ctx_cnt),
            ("rx_ctx_cnt", hint.rx_ctx_cnt, attr.rx_ctx_cnt),
            ("max_ep_tx_ctx", hint.max_ep_tx_ctx, attr.max_ep_tx_ctx),
            ("max_ep_rx_ctx", hint.max_ep_rx_ctx, attr.max_ep_rx_ctx),
            ("max_ep_stx_ctx", hint.max_ep_stx_ctx, attr.max_ep_stx_ctx),
            ("max_ep_srx_ctx", hint.max_ep_srx_ctx, attr.max_ep_srx_ctx),
            ("cntr_cnt", hint.cntr_cnt, attr.cntr_cnt),
            ("mr_iov_limit", hint.mr_iov_limit, 1),
            ("mr_cnt", hint.mr_cnt, attr.mr_cnt),
        ];
        for (name, value, most) in counts {
            require!(value <= most, "{name} {value} exceeds {most}");
        }
        require!(hint.caps & !DOMAIN_CAPS == 0, "domain capabilities {:#x} are not supported", hint.caps);
        require!(hint.auth_key_size == 0, "authorization keys are not supported");
        Ok(attr)
    }
}

/// Attributes of a domain for a caller that has chosen none.
fn domain_attr(api: u32) -> DomainAttr {
    DomainAttr {
        domain: std::ptr::null_mut(),
        name: std::ptr::null_mut(),
        threading: flags::THREAD_SAFE,
        control_progress: flags::PROGRESS_AUTO,
        data_progress: flags::PROGRESS_MANUAL,
        resource_mgmt: flags::RM_ENABLED,
        av_type: flags::AV_TABLE,
        mr_mode: if api < version(1, 5) { flags::MR_BASIC } else { 0 },
        mr_key_size: 8,
        cq_data_size: 8,
        cq_cnt: 1 << 16,
        ep_cnt: 1 << 16,
        tx_ctx_cnt: 1 << 16,
        rx_ctx_cnt: 1 << 16,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 1 << 16,
        max_ep_srx_ctx: 1 << 16,
        cntr_cnt: 1 << 16,
        mr_iov_limit: 1,
        caps: DOMAIN_CAPS,
        mode: 0,
        auth_key: std::ptr::null_mut(),
        auth_key_size: 0,
        max_err_data: MAX_ERR_DATA,
        mr_cnt: 1 << 16,
        tclass: 0,
    }
}

fn check_order(msg_order: u64, comp_order: u64) -> Result<(), String> {
    let absent = msg_order & !MSG_ORDER;
    require!(absent == 0, "message order {absent:#x} is not kept");
    require!(comp_order == 0, "completions are in no order ({comp_order:#x} asked for)");
    Ok(())
}
