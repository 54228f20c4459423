//! Hints, and whether a domain satisfies them.

use std::cell::{OnceCell, RefCell};
use std::net::SocketAddr;

use super::answer::{Answer, Named, Sockets, bytes, text};
use super::domains::{EpKind, FABRIC, KeyMode, MR_MODE, NameForm, ONE_SIDED, OpenableDomain};
use super::names;
use crate::abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::abi::{Fid, flags};
use crate::name_server::{self, Told};
use crate::open_objects::{DOMAINS, FABRICS, OpenObjects};
use crate::sockaddr;

/// Hints of a caller. All of them are optional.
#[derive(Default)]
pub(super) struct Hints {
    pub(super) version: u32,
    /// Attributes are the provider's, whatever the hints say.
    pub(super) all_attributes: bool,
    pub(super) caps: u64,
    /// Capabilities of later releases that are parts of older ones.
    pub(super) caps_of_tagged: u64,
    pub(super) addr_format: u32,
    pub(super) src_addr: Vec<u8>,
    pub(super) dest_addr: Vec<u8>,
    pub(super) tx: Option<TxAttr>,
    pub(super) rx: Option<RxAttr>,
    pub(super) ep: Option<EpAttr>,
    pub(super) domain: Option<DomainAttr>,
    pub(super) domain_name: Option<String>,
    pub(super) fabric: Option<FabricAttr>,
    pub(super) fabric_name: Option<String>,
    /// The name that the node's endpoint tells, asked for once.
    pub(super) told: OnceCell<Result<Told, String>>,
    /// Why the domain that is looked at does not satisfy them.
    pub(super) refusals: RefCell<Vec<String>>,
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
    pub(super) fn refuse(&self, why: String) {
        let mut refusals = self.refusals.borrow_mut();
        if !refusals.contains(&why) {
            refusals.push(why);
        }
    }

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
                caps: in_primary(info.caps),
                caps_of_tagged: info.caps & (flags::TAGGED_DIRECTED_RECV | flags::TAGGED_MULTI_RECV),
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
                told: OnceCell::new(),
                refusals: RefCell::default(),
            }
        }
    }

    pub(super) fn domain_name(&self) -> Option<&str> {
        self.domain_name.as_deref()
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
            let named = self.named(node.as_deref(), service.as_deref(), call_flags)?;
            return Ok(vec![Sockets { named, ..Sockets::default() }]);
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
        Ok(sources.into_iter().map(|source| Sockets { source: Some(source), dest, named: None }).collect())
    }

    /// The endpoint that is not connected which a node and a service name.
    fn named(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        call_flags: u64,
    ) -> Result<Option<Named>, String> {
        let is_source = call_flags & flags::SOURCE != 0;
        if let Some(words) = node.filter(|node| node.contains("://")) {
            require!(!is_source, "the name of an endpoint cannot be chosen");
            return Ok(Some(Named::Words(words.to_owned())));
        }
        if is_source && (node.is_some() || service.is_some()) {
            let at = names::resolve(node, service, call_flags, flags::FORMAT_UNSPEC)?;
            return Ok(Some(Named::Service(at)));
        }
        match (node, service) {
            // Without a node a service is nobody's, and restricts nothing.
            (None, _) => Ok(None),
            // Nor does a node without a service name an endpoint, but it has to be one.
            (Some(_), None) => {
                names::resolve(node, None, call_flags, flags::FORMAT_UNSPEC)?;
                Ok(None)
            }
            (Some(_), Some(_)) => {
                let ask = || names::ask(node, service, call_flags);
                self.told.get_or_init(ask).clone().map(|told| Some(Named::Told(told)))
            }
        }
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
            check!(self, *name == domain.name, "the hints name domain {name}");
        }
        if let Some(name) = &self.fabric_name {
            check!(self, name == FABRIC, "the hints name fabric {name}");
        }
        let (addr_format, src_addr, dest_addr) = self.addresses(domain, kind, sockets);
        let caps = self.caps(kind);
        check!(
            self,
            !(keys.own || keys.by_offset) || caps & ONE_SIDED == 0 || addr_format != flags::ADDR_EFA,
            "libfabric's EFA provider knows no keys and offsets of the program (mr_mode FI_MR_BASIC, or {MR_MODE:#x})"
        );
        let tx = self.tx(caps);
        let rx = self.rx(caps);
        let ep = self.ep(kind);
        let answer = Answer {
            caps,
            addr_format,
            src_addr,
            dest_addr,
            handle: std::ptr::null_mut(),
            tx,
            rx,
            ep,
            domain: DomainAttr {
                domain: self.opened(&DOMAINS, self.domain.map(|attr| attr.domain), &domain.name),
                ..self.domain(kind, caps, keys)
            },
            domain_name: domain.name.clone(),
            fabric: FabricAttr {
                fabric: self.opened(&FABRICS, self.fabric.map(|attr| attr.fabric), FABRIC),
                name: std::ptr::null_mut(),
                prov_name: std::ptr::null_mut(),
                prov_version: 0,
                api_version: self.version,
            },
        };
        let refusals = self.refusals.take();
        if refusals.is_empty() { Ok(answer) } else { Err(refusals.join("; ")) }
    }

    /// The object that the hints require, which has to be open under this name, or the first one of the name.
    fn opened(&self, all: &OpenObjects, hint: Option<*mut Fid>, name: &str) -> *mut Fid {
        match hint {
            Some(fid) if !fid.is_null() => {
                let opened = all.name_of(fid);
                check!(
                    self,
                    opened.as_deref() == Some(name),
                    "the hints have an open object {opened:?}, not {name}"
                );
                fid
            }
            _ => all.first(name),
        }
    }

    /// Address format, source and destination of an answer.
    fn addresses(&self, domain: &OpenableDomain, kind: EpKind, sockets: &Sockets) -> (u32, Vec<u8>, Vec<u8>) {
        if let Some(source) = sockets.source {
            let format = match self.addr_format {
                flags::SOCKADDR => flags::SOCKADDR,
                _ => sockaddr::format(source),
            };
            let dest = sockets.dest.map(sockaddr::write).unwrap_or_default();
            return (format, sockaddr::write(source), dest);
        }
        let form = self.name_form(domain);
        // Datagrams of libfabric's EFA provider have no header, so that nobody shall take one for the other.
        check!(
            self,
            kind != EpKind::Dgram || form != NameForm::Efa,
            "datagrams are not those of libfabric's EFA provider, so FI_ADDR_EFA does not name endpoints for them"
        );
        let (mut source, mut dest) = (self.src_addr.clone(), self.dest_addr.clone());
        match &sockets.named {
            Some(Named::Service(at)) => source = name_server::record(*at, form),
            Some(Named::Told(told)) => {
                dest = told.in_form(form).map_err(|why| self.refuse(why)).unwrap_or_default();
            }
            Some(Named::Words(words)) => {
                dest = form.name_in(words).unwrap_or_default();
                check!(self, !dest.is_empty(), "{words} is no address of this domain");
            }
            None => {}
        }
        check!(
            self,
            source.is_empty() || source.len() == form.len() && name_server::recorded(&source).is_some(),
            "a source address cannot be chosen, but for that of a service, which fi_getinfo makes"
        );
        let len = dest.len();
        check!(
            self,
            [0, form.len()].contains(&len),
            "a destination address of {len} bytes is none of this provider"
        );
        (form.format(), source, dest)
    }

    fn name_form(&self, domain: &OpenableDomain) -> NameForm {
        let format = self.addr_format;
        let is_known = [flags::FORMAT_UNSPEC, flags::ADDR_EFA, NameForm::Packed.format()].contains(&format);
        check!(self, is_known, "address format {format:#x} is not supported");
        let form = NameForm::of(format, domain.nics, self.is_scalable());
        check!(
            self,
            form != NameForm::Scalable || format != flags::ADDR_EFA,
            "scalable endpoints are not those of libfabric's EFA provider, so FI_ADDR_EFA does not name them"
        );
        check!(self, form != NameForm::Efa || domain.nics > 0, "FI_ADDR_EFA names a NIC, and there is none");
        form
    }
}

/// Capabilities with those of release 1.17 in place of their parts for tagged messages.
fn in_primary(caps: u64) -> u64 {
    let mut all = caps & !(flags::TAGGED_DIRECTED_RECV | flags::TAGGED_MULTI_RECV);
    if caps & flags::TAGGED_DIRECTED_RECV != 0 {
        all |= flags::DIRECTED_RECV;
    }
    if caps & flags::TAGGED_MULTI_RECV != 0 {
        all |= flags::MULTI_RECV;
    }
    all
}
