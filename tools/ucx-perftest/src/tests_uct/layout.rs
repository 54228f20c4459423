//! Selects the data path of a test: the one asked for, or the first that fits the size. The error says what
//! does fit.

use tools_common::units::short_bytes;
use uct::api::{AtomicOps, Caps, IfaceAttr};

use crate::fail::Failure;
use crate::spec::{Layout, Spec, Test};

struct LayoutLimits {
    layout: Layout,
    range: (usize, usize),
    pieces: usize,
}

pub fn select(spec: &Spec, attr: &IfaceAttr) -> Result<Layout, Failure> {
    if spec.test.is_atomic() {
        return atomic(spec, attr);
    }
    let offers = offers(spec, attr);
    let (size, pieces) = (spec.size(), spec.pieces.len());
    let fits = |o: &&LayoutLimits| o.range.0 <= size && size <= o.range.1 && pieces <= o.pieces;
    let found = match spec.layout {
        Some(wanted) => offers.iter().filter(|o| o.layout == wanted).find(fits),
        None => offers.iter().find(fits),
    };
    match found {
        Some(offer) => Ok(offer.layout),
        None => Err(Failure::Unsupported(refusal(spec, attr, &offers))),
    }
}

fn refusal(spec: &Spec, attr: &IfaceAttr, offers: &[LayoutLimits]) -> String {
    let asked = match spec.layout {
        Some(layout) => format!("{layout} of {} bytes", spec.size()),
        None => format!("{} bytes", spec.size()),
    };
    let pieces =
        if spec.pieces.len() > 1 { format!(" in {} pieces", spec.pieces.len()) } else { String::new() };
    let mut can: Vec<String> = Vec::new();
    for o in offers.iter().filter(|o| o.layout != Layout::ShortIov) {
        can.push(format!("{} up to {}", o.layout, short_bytes(o.range.1)));
    }
    let (test, tl, dev) = (spec.test.name(), attr.tl, &attr.dev);
    if can.is_empty() {
        return format!("{test}: {tl}/{dev} has no such operation (see `ucx-info -d`)");
    }
    format!("{test}: {tl}/{dev} cannot do {asked}{pieces} (it can: {})", can.join(", "))
}

fn offers(spec: &Spec, attr: &IfaceAttr) -> Vec<LayoutLimits> {
    let offer = |cap, layout, low, high, pieces| {
        attr.has(cap).then_some(LayoutLimits { layout, range: (low, high), pieces })
    };
    let all = match spec.test {
        Test::Get | Test::GetBw => {
            let l = attr.get;
            vec![
                offer(Caps::GET_SHORT, Layout::Short, 1, l.max_short, 1),
                offer(Caps::GET_BCOPY, Layout::Bcopy, 1, l.max_bcopy, 1),
                offer(Caps::GET_ZCOPY, Layout::Zcopy, l.min_zcopy, l.max_zcopy, l.max_iov),
            ]
        }
        Test::PutLat | Test::PutBw => {
            let l = attr.put;
            vec![
                offer(Caps::PUT_SHORT, Layout::Short, 1, l.max_short, 1),
                offer(Caps::PUT_BCOPY, Layout::Bcopy, 1, l.max_bcopy, 1),
                offer(Caps::PUT_ZCOPY, Layout::Zcopy, l.min_zcopy, l.max_zcopy, l.max_iov),
            ]
        }
        _ => {
            let l = attr.am;
            let zcopy_low = if l.max_hdr < spec.am_header { usize::MAX } else { 0 };
            vec![
                offer(Caps::AM_SHORT, Layout::Short, 0, l.max_short, 1),
                offer(Caps::AM_SHORT, Layout::ShortIov, 0, l.max_short, usize::MAX),
                offer(Caps::AM_BCOPY, Layout::Bcopy, 0, l.max_bcopy, 1),
                offer(Caps::AM_ZCOPY, Layout::Zcopy, zcopy_low, l.max_zcopy, l.max_iov),
            ]
        }
    };
    all.into_iter().flatten().collect()
}

fn atomic(spec: &Spec, attr: &IfaceAttr) -> Result<Layout, Failure> {
    let (post, fetch) = (attr.atomics.post(spec.size()), attr.atomics.fetch(spec.size()));
    let has = match spec.test {
        Test::Fadd => fetch.contains(AtomicOps::ADD),
        Test::Swap => fetch.contains(AtomicOps::SWAP),
        Test::Cswap => fetch.contains(AtomicOps::CSWAP),
        _ => post.contains(AtomicOps::ADD),
    };
    if attr.has(Caps::ATOMIC) && has {
        return Ok(Layout::Short);
    }
    let (test, tl, dev) = (spec.test.name(), attr.tl, &attr.dev);
    Err(Failure::Unsupported(format!(
        "{test}: {tl}/{dev} has no such atomic operation on {} bytes (see `ucx-info -d`)",
        spec.size()
    )))
}
