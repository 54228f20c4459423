//! `-y`: sizes of frequent types and of packet headers, from which the cost of a peer, endpoint or request
//! follows.

use std::mem::size_of;

use serde::Serialize;
use std::fmt::Write as _;
use ucp::wire::table::{Assignment, PktFamily, TABLE};

#[derive(Serialize)]
pub struct Size {
    group: &'static str,
    name: &'static str,
    bytes: usize,
}

macro_rules! sizes {
    ($($group:literal: $($name:literal $ty:ty),+;)+) => {
        vec![$($(Size { group: $group, name: $name, bytes: size_of::<$ty>() }),+),+]
    };
}

pub fn all() -> Vec<Size> {
    let mut all = sizes! {
        "UCS": "status" ucs::Status, "slot id" ucs::coll::slots::SlotId;
        "UCT": "outcome" uct::api::Outcome, "error" uct::api::Error, "completion" uct::api::Comp,
            "iov" uct::api::Iov<'static, ()>, "am" uct::api::Am<'static>, "kept am" uct::api::RecvDesc,
            "address" uct::api::AddrBuf;
        "UCT endpoint": "self" uct::loopback::Ep, "posix" uct::posix::Ep,
            "efa" uct::efa::Ep<uct::efa::dev::soft::Device<uct::efa::dev::soft::Net>>, "any" uct::any::Ep;
        "UCT remote key": "self" uct::loopback::Rkey, "posix" uct::posix::Rkey, "any" uct::any::Rkey;
        "UCP": "worker" ucp::Worker, "endpoint" ucp::Ep, "request id" ucp::RequestId,
            "send request" ucp::SendRequest<Vec<u8>>, "receive request" ucp::RecvRequest<Vec<u8>>,
            "send parameters" ucp::SendParams, "receive status" ucp::rdm::RecvStatus, "error" ucp::Error;
    };
    let travels = |ty: &u8| TABLE[usize::from(*ty)].assignment == Assignment::InUse;
    all.extend((0..=u8::MAX).filter(travels).map(|ty| {
        let info = &TABLE[usize::from(ty)];
        let group =
            if info.family == PktFamily::Control { "wire control packet" } else { "wire request packet" };
        Size { group, name: info.name, bytes: usize::from(info.hdr_len) }
    }));
    all
}

/// Text in the layout of `ucx_info -y`.
pub fn text(all: &[Size]) -> String {
    let mut out = String::new();
    let mut group = "";
    for size in all {
        // Writing to a string cannot fail.
        if size.group != group {
            group = size.group;
            let _ = writeln!(out, "#\n# {group}");
        }
        let _ = writeln!(out, "# {:>32}: {}", size.name, size.bytes);
    }
    out + "#\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_protocol() {
        let all = all();
        let of = |name: &str| all.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("{name}")).bytes;
        assert_eq!((of("EAGER_TAGRTM"), of("RECEIPT"), of("CTS")), (16, 16, 24));
        let text = text(&all);
        assert!(text.contains("# UCP\n#                           worker: 8\n"), "{text}");
        assert!(text.contains("# wire request packet\n"), "{text}");
    }
}
