//! Capabilities and attributes of answers: what the hints choose, and why a domain does not have it.

use super::domains::{
    DEFAULT_RX_SIZE, DEFAULT_TX_SIZE, DIRECTIONS, DOMAIN_CAPS, EpKind, INJECT_SIZE, IOV_LIMIT, KeyMode,
    MAX_ERR_DATA, MAX_SIZE, MR_MODE, MSG_ORDER, ONE_SIDED, RMA_DIRECTIONS, RMA_IOV_LIMIT, RX_OP_FLAGS,
    SECONDARY_CAPS, TX_OP_FLAGS, is_scalable,
};
use super::hints::Hints;
use crate::abi::info::{DomainAttr, EpAttr, RxAttr, TxAttr};
use crate::abi::{flags, version};

impl Hints {
    /// Whether the caller asks for scalable endpoints.
    pub(super) fn is_scalable(&self) -> bool {
        self.caps & flags::NAMED_RX_CTX != 0
            || self.ep.is_some_and(|hint| is_scalable(hint.tx_ctx_cnt, hint.rx_ctx_cnt))
            || self.domain.is_some_and(|hint| is_scalable(hint.max_ep_tx_ctx, hint.max_ep_rx_ctx))
    }

    /// Capabilities: those asked for, and those that cost nothing.
    pub(super) fn caps(&self, kind: EpKind) -> u64 {
        let primary = kind.primary();
        let directions = |all: u64| if self.caps & all == 0 { all } else { self.caps & all };
        let extra = kind.extra();
        let absent = self.caps & !(primary | extra | SECONDARY_CAPS | DIRECTIONS | RMA_DIRECTIONS);
        check!(self, absent == 0, "capabilities {absent:#x} are not supported");
        // A receive from a peer would be one from each of its contexts.
        let is_directed = self.caps & flags::DIRECTED_RECV != 0;
        check!(
            self,
            !self.is_scalable() || !is_directed,
            "FI_DIRECTED_RECV is not there with scalable endpoints"
        );
        let has_source_errors = self.caps & flags::SOURCE_ERR != 0;
        check!(
            self,
            !has_source_errors || self.caps & flags::SOURCE != 0,
            "FI_SOURCE_ERR is not there without FI_SOURCE"
        );
        // A message names the context that has sent it, and not the others of its endpoint.
        check!(
            self,
            !self.is_scalable() || !has_source_errors,
            "FI_SOURCE_ERR is not there with scalable endpoints"
        );
        // Groups are of endpoints with one context, and libfabric's EFA provider has none.
        check!(
            self,
            self.caps & flags::COLLECTIVE == 0 || !self.is_scalable() && self.addr_format != flags::ADDR_EFA,
            "FI_COLLECTIVE is not there with scalable endpoints and FI_ADDR_EFA"
        );
        let primary = if self.is_scalable() { primary & !flags::DIRECTED_RECV } else { primary };
        let chosen = match self.caps & primary {
            0 if self.permits_every_key() => primary,
            0 => primary & !ONE_SIDED,
            chosen => chosen,
        };
        let mut caps = chosen | SECONDARY_CAPS | self.caps & extra | self.caps_of_tagged;
        if chosen & (flags::MSG | flags::TAGGED) != 0 {
            caps |= directions(DIRECTIONS);
        }
        if chosen & ONE_SIDED != 0 {
            caps |= directions(RMA_DIRECTIONS);
        }
        caps
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

    pub(super) fn tx(&self, caps: u64) -> TxAttr {
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
        let Some(hint) = self.tx.filter(|_| !self.all_attributes) else { return attr };
        check!(
            self,
            hint.caps & !caps == 0,
            "transmit capabilities {:#x} are not those of the endpoint",
            hint.caps
        );
        check!(
            self,
            hint.op_flags & !TX_OP_FLAGS == 0,
            "transmit flags {:#x} are not supported",
            hint.op_flags
        );
        self.check_order(hint.msg_order, hint.comp_order);
        check!(
            self,
            hint.inject_size <= INJECT_SIZE,
            "inject size {} exceeds {INJECT_SIZE}",
            hint.inject_size
        );
        check!(self, hint.size <= MAX_SIZE, "transmit queue size {} exceeds {MAX_SIZE}", hint.size);
        check!(self, hint.iov_limit <= IOV_LIMIT, "{} pieces of memory exceed {IOV_LIMIT}", hint.iov_limit);
        let limit = attr.rma_iov_limit;
        check!(
            self,
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
        attr
    }

    pub(super) fn rx(&self, caps: u64) -> RxAttr {
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
            | flags::NAMED_RX_CTX
            | flags::TAGGED_DIRECTED_RECV
            | flags::TAGGED_MULTI_RECV;
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
        let Some(hint) = self.rx.filter(|_| !self.all_attributes) else { return attr };
        check!(
            self,
            hint.caps & !caps == 0,
            "receive capabilities {:#x} are not those of the endpoint",
            hint.caps
        );
        check!(
            self,
            hint.op_flags & !RX_OP_FLAGS == 0,
            "receive flags {:#x} are not supported",
            hint.op_flags
        );
        self.check_order(hint.msg_order, hint.comp_order);
        check!(self, hint.size <= MAX_SIZE, "receive queue size {} exceeds {MAX_SIZE}", hint.size);
        check!(self, hint.iov_limit <= IOV_LIMIT, "{} pieces of memory exceed {IOV_LIMIT}", hint.iov_limit);
        if hint.caps != 0 {
            attr.caps = hint.caps;
        }
        attr.op_flags = hint.op_flags;
        attr.total_buffered_recv = hint.total_buffered_recv;
        if hint.size != 0 {
            attr.size = hint.size;
        }
        attr
    }

    pub(super) fn ep(&self, kind: EpKind) -> EpAttr {
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
        let Some(hint) = self.ep else { return attr };
        if self.all_attributes {
            return attr;
        }
        check!(
            self,
            [0, protocol].contains(&hint.protocol),
            "protocol {:#x} is not {protocol:#x}",
            hint.protocol
        );
        check!(self, hint.protocol_version <= 4, "protocol version {} is not 4", hint.protocol_version);
        check!(
            self,
            hint.max_msg_size <= max_msg,
            "messages of {} bytes exceed {max_msg}",
            hint.max_msg_size
        );
        let has_order_size =
            hint.max_order_raw_size != 0 || hint.max_order_war_size != 0 || hint.max_order_waw_size != 0;
        check!(self, !has_order_size, "RMA operations have no order");
        let contexts = (hint.tx_ctx_cnt, hint.rx_ctx_cnt);
        let is_shared = |count: usize| count == flags::SHARED_CONTEXT;
        let most = kind.max_contexts();
        check!(
            self,
            (contexts.0 <= most || is_shared(contexts.0)) && (contexts.1 <= most || is_shared(contexts.1)),
            "{contexts:?} contexts of an endpoint exceed {most} each"
        );
        check!(
            self,
            !is_scalable(contexts.0, contexts.1) || !(is_shared(contexts.0) || is_shared(contexts.1)),
            "contexts of a scalable endpoint cannot be shared"
        );
        let count = |asked: usize| if asked == 0 { 1 } else { asked };
        let attr = EpAttr { tx_ctx_cnt: count(contexts.0), rx_ctx_cnt: count(contexts.1), ..attr };
        check!(self, hint.auth_key_size == 0, "authorization keys are not supported");
        attr
    }

    pub(super) fn domain(&self, kind: EpKind, caps: u64, keys: KeyMode) -> DomainAttr {
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
        let Some(hint) = self.domain else { return attr };
        if self.all_attributes {
            return attr;
        }
        let choices = [
            ("threading", hint.threading, flags::THREAD_ENDPOINT),
            ("control_progress", hint.control_progress, flags::PROGRESS_CONTROL_UNIFIED),
            ("data_progress", hint.data_progress, flags::PROGRESS_MANUAL),
            ("resource_mgmt", hint.resource_mgmt, flags::RM_ENABLED),
            ("av_type", hint.av_type, flags::AV_TABLE),
        ];
        for (name, value, last) in choices {
            check!(self, value <= last, "{name} {value} is not known");
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
        check!(self, hint.mr_key_size <= most, "keys of {} bytes exceed {most}", hint.mr_key_size);
        check!(self, hint.cq_data_size <= 8, "completion data of {} bytes exceeds 8", hint.cq_data_size);
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
            check!(self, value <= most, "{name} {value} exceeds {most}");
        }
        check!(self, hint.caps & !DOMAIN_CAPS == 0, "domain capabilities {:#x} are not supported", hint.caps);
        check!(self, hint.auth_key_size == 0, "authorization keys are not supported");
        attr
    }

    fn check_order(&self, msg_order: u64, comp_order: u64) {
        let absent = msg_order & !MSG_ORDER;
        check!(self, absent == 0, "message order {absent:#x} is not kept");
        check!(self, comp_order == 0, "completions are in no order ({comp_order:#x} asked for)");
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
