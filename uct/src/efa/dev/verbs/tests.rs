//! Layouts against the installed header, and the backend against the software device. All but the first need
//! a device in libibverbs: run them under `softefa run`, as `tests/run verbs` does.

use super::{Device, efadv, list, open};
use crate::api::Access;
use crate::efa::dev::soft::{self, Shm};
use crate::efa::dev::{
    Channel, Cqe, CqeOp, Dest, Dev, DevCq, DevMr, DevQp, DevStatus, Gid, PostError, QpInit, QpKind, Sge,
};
use std::mem::offset_of;
use std::process::Command;
use std::time::Duration;
use ucs::config::Source;
use ucs::sys::fd::Epoll;

/// Values of C expressions under the installed `infiniband/efadv.h`; `None` if one is unknown.
fn in_c(expressions: &[&str]) -> Option<Vec<usize>> {
    let lines: String = expressions.iter().map(|e| format!("printf(\"%zu\\n\", (size_t)({e}));\n")).collect();
    let code = format!(
        "#include <stddef.h>\n#include <stdbool.h>\n#include <stdio.h>\n#include <infiniband/efadv.h>\n\
         int main(void) {{ {lines} return 0; }}\n"
    );
    let name = expressions[0].replace(|c: char| !c.is_alphanumeric(), "_");
    let dir = std::env::temp_dir().join(format!("efadv-layout-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, code).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output().expect("a C compiler");
    // Not under the preloaded device.
    let ran =
        compiled.status.success().then(|| Command::new(&program).env_remove("LD_PRELOAD").output().unwrap());
    std::fs::remove_dir_all(&dir).unwrap();
    let text = String::from_utf8(ran?.stdout).unwrap();
    Some(text.lines().map(|n| n.parse().unwrap()).collect())
}

macro_rules! places {
    ($($c:literal $ours:ident: $($field:ident)+;)+) => {
        vec![$($((
            concat!("offsetof(struct ", $c, ", ", stringify!($field), ")"),
            offset_of!(efadv::$ours, $field)
        ),)+)+]
    };
}

#[test]
fn layouts_are_those_of_the_header() {
    // In every header with the extended interfaces: rdma-core 44 and later.
    let mut all = places! {
        "efadv_device_attr" DeviceAttr: comp_mask max_sq_wr max_rq_wr max_sq_sge max_rq_sge inline_buf_size device_caps
            max_rdma_size;
        "efadv_qp_init_attr" QpInitAttr: comp_mask driver_qp_type;
        "efadv_cq_init_attr" CqInitAttr: comp_mask wc_flags;
        "efadv_cq" Cq: comp_mask wc_read_sgid;
        "efadv_ah_attr" AhAttr: comp_mask ahn;
    };
    all.push(("sizeof(struct efadv_device_attr)", size_of::<efadv::DeviceAttr>()));
    all.push(("sizeof(struct efadv_ah_attr)", size_of::<efadv::AhAttr>()));
    all.push(("EFADV_DEVICE_ATTR_CAPS_RDMA_READ", efadv::CAP_RDMA_READ as usize));
    all.push(("EFADV_DEVICE_ATTR_CAPS_RNR_RETRY", efadv::CAP_RNR_RETRY as usize));
    all.push(("EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID", efadv::CAP_CQ_WITH_SGID as usize));
    all.push(("EFADV_WC_EX_WITH_SGID", efadv::WC_EX_WITH_SGID as usize));
    all.push(("EFADV_QP_DRIVER_TYPE_SRD", efadv::QP_DRIVER_TYPE_SRD as usize));
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let header = in_c(&names).expect("infiniband/efadv.h of rdma-core 44 or later (Debian: libibverbs-dev)");
    for ((name, ours), theirs) in all.into_iter().zip(header) {
        assert_eq!(ours, theirs, "{name}");
    }
    // Later additions are compared if known.
    let mut later = places! {
        "efadv_device_attr" DeviceAttr: inline_buf_size_ex;
        "efadv_qp_init_attr" QpInitAttr: flags sl wr_flags;
        "efadv_cq" Cq: wc_is_unsolicited;
    };
    later.push(("EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE", efadv::CAP_RDMA_WRITE as usize));
    later.push(("EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV", efadv::CAP_UNSOLICITED_WRITE_RECV as usize));
    later.push(("EFADV_WC_EX_WITH_IS_UNSOLICITED", efadv::WC_EX_WITH_IS_UNSOLICITED as usize));
    later.push(("EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV", efadv::QP_FLAGS_UNSOLICITED_WRITE_RECV as usize));
    for (name, ours) in later {
        if let Some(theirs) = in_c(&[name]) {
            assert_eq!([ours], theirs[..], "{name}");
        }
    }
}

#[test]
fn an_unknown_device_name_lists_the_known_ones() {
    let error = open("mlx5_0:1").err().unwrap().to_string();
    assert!(error.starts_with("transport 'efa' has no device 'mlx5_0:1' (there are: "), "{error}");
}

fn device() -> Device {
    let found = list();
    let first = found.first().expect("no EFA device in libibverbs: run this under `softefa run`");
    assert!(first.name.ends_with(":1") && first.about.contains("0xefa"), "{first:?}");
    open(&first.name).unwrap()
}

fn software() -> soft::Device<Shm> {
    let ours = std::env::vars_os().filter(|(k, _)| k.to_str().is_some_and(|k| k.starts_with("SOFTEFA_")));
    soft::open_shm(&Source::from_vars(ours).unwrap(), "softefa0").unwrap()
}

const QKEY: u32 = 0x1234;
const RECEIVE: usize = 2000;

struct Endpoint<D: Dev> {
    qp: D::Qp,
    cq: D::Cq,
    mr: D::Mr,
    pd: D::Pd,
    dev: D,
}

impl<D: Dev> Endpoint<D> {
    fn new(dev: &D, change: impl FnOnce(&mut QpInit)) -> Self {
        let pd = dev.alloc_pd().unwrap();
        let cq = dev.create_cq(256, Channel::With).unwrap();
        let mut init = QpInit {
            kind: QpKind::Srd,
            send_depth: 64,
            recv_depth: 64,
            qkey: QKEY,
            rnr_retry: 0,
            unsolicited_write_recv: false,
        };
        change(&mut init);
        let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_READ, dev.attr().rdma_read);
        access.set(Access::REMOTE_WRITE, dev.attr().rdma_write);
        let mr = dev.alloc_mr(&pd, 1 << 16, access).unwrap();
        Endpoint { qp, cq, mr, pd, dev: dev.clone() }
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr().wrapping_add(at), len: len as u32, lkey: self.mr.lkey() }
    }

    fn recv(&self, wr_id: u64) {
        self.qp.recv(wr_id, self.sge(0, RECEIVE)).unwrap();
        self.qp.ring_doorbell();
    }

    fn to(&self, other: &Endpoint<D>) -> Dest<D::Ah> {
        let ah = self.dev.create_ah(&self.pd, other.dev.gid()).unwrap();
        Dest { ah, qpn: other.qp.qpn(), qkey: QKEY }
    }
}

fn completions<D: Dev>(ends: &[&Endpoint<D>], count: usize) -> Vec<Cqe> {
    let mut all = Vec::new();
    let (mut more, mut polls) = (100, 0u32);
    while more > 0 {
        let mut out = [Cqe::EMPTY; 3];
        for end in ends {
            let n = end.cq.poll(&mut out);
            all.extend_from_slice(&out[..n]);
        }
        if all.len() >= count {
            more -= 1;
        }
        polls += 1;
        assert!(polls < 5_000_000, "{} of {count} completions: {all:?}", all.len());
    }
    all.sort_by_key(|c| (c.wr_id, c.op as u8));
    all
}

/// Carries out every operation between two contexts, and records the results.
fn script<D: Dev>(dev: impl Fn() -> D) -> Vec<String> {
    let (one, two) = (dev(), dev());
    let (a, b) = (Endpoint::new(&one, |_| {}), Endpoint::new(&two, |_| {}));
    let mut lines = Vec::new();
    let mut record = |what: &str, posted: Result<(), PostError>, count: usize| {
        a.qp.ring_doorbell();
        for c in completions(&[&a, &b], count) {
            let receive = matches!(c.op, CqeOp::Recv | CqeOp::RecvWriteImm) && c.status == DevStatus::Ok;
            let source = (c.src_qpn == a.qp.qpn(), c.src_gid == a.dev.gid());
            let who = if receive {
                format!(" {} bytes, imm {:?}, from {source:?}", c.len, c.imm)
            } else {
                "".into()
            };
            lines.push(format!("{what}: {posted:?}: {} {:?} {:?}{who}", c.wr_id, c.op, c.status));
        }
        lines.push(format!("{what}: {posted:?}"));
    };
    let to = a.to(&b);
    let attr = one.attr().clone();
    b.recv(1);
    record("inline", a.qp.send_inline(&to, 10, b"hello", None), 2);
    b.recv(2);
    record("inline with immediate", a.qp.send_inline(&to, 11, b"", Some(0x0102_0304)), 2);
    b.recv(3);
    record("one SGE", a.qp.send(&to, 12, &[a.sge(0, 500)], None), 2);
    b.recv(4);
    record("two SGEs", a.qp.send(&to, 13, &[a.sge(0, 300), a.sge(900, 400)], Some(7)), 2);
    record("too many SGEs", a.qp.send(&to, 14, &[a.sge(0, 1); 9], None), 0);
    record("inline too long", a.qp.send_inline(&to, 15, &vec![0; attr.max_inline as usize + 1], None), 0);
    record("longer than the MTU", a.qp.send(&to, 16, &[a.sge(0, attr.mtu as usize + 1)], None), 1);
    if attr.rnr_retry {
        record("nobody is ready", a.qp.send_inline(&to, 17, b"x", None), 1);
    }
    b.recv(5);
    let bad_key = Sge { lkey: a.mr.lkey() ^ 0xff, ..a.sge(0, 10) };
    record("bad local key", a.qp.send(&to, 18, &[bad_key], None), 1);
    record("no such queue pair", a.qp.send_inline(&Dest { qpn: to.qpn ^ 1, ..to }, 19, b"x", None), 1);
    record("wrong q-key", a.qp.send_inline(&Dest { qkey: QKEY + 1, ..to }, 20, b"x", None), 1);
    record("longer than the receive", a.qp.send(&to, 21, &[a.sge(0, RECEIVE + 1)], None), 1);
    let far = b.mr.addr() as u64;
    record("read as a stranger", a.qp.read(&to, 30, a.sge(0, 100), far, b.mr.rkey()), 1);
    let _back = b.to(&a);
    record("read", a.qp.read(&to, 31, a.sge(0, 60_000), far, b.mr.rkey()), 1);
    record("read beyond the end", a.qp.read(&to, 32, a.sge(0, 2), far + 65_535, b.mr.rkey()), 1);
    record("write", a.qp.write(&to, 33, a.sge(0, 60_000), far, b.mr.rkey(), None), 1);
    record("write with a bad key", a.qp.write(&to, 34, a.sge(0, 9), far, b.mr.rkey() ^ 0xff, None), 1);
    b.recv(6);
    let two = if attr.rdma_write { 2 } else { 1 };
    record("write with immediate", a.qp.write(&to, 35, a.sge(0, 9), far, b.mr.rkey(), Some(99)), two);
    let endless = Sge { len: attr.max_rdma.saturating_add(1), ..a.sge(0, 0) };
    record("longer than RDMA goes", a.qp.read(&to, 36, endless, far, b.mr.rkey()), 1);
    for _ in 0..2 {
        // Two references: `to` and this one.
        a.dev.destroy_ah(&a.pd, to.ah);
    }
    record("an address handle given back", a.qp.send_inline(&to, 37, b"x", None), 1);
    let again = a.to(&b);
    record("room", Ok(()), 0);
    while b.qp.recv(50, b.sge(0, RECEIVE)).is_ok() {}
    b.qp.ring_doorbell();
    let posts: Vec<_> = (0..65).map(|n| a.qp.send_inline(&again, 100 + n, b"x", None)).collect();
    assert_eq!(posts.iter().position(Result::is_err), Some(64));
    record("the queue is full", posts[64], 128);
    lines
}

#[test]
fn requests_complete_as_on_the_software_device() {
    let soft = script(software);
    let verbs = script(device);
    for (at, (soft, verbs)) in soft.iter().zip(&verbs).enumerate() {
        assert_eq!(soft, verbs, "line {at}");
    }
    assert_eq!(soft.len(), verbs.len());
}

#[test]
fn unsolicited_writes_use_up_no_receive() {
    let dev = device();
    if !dev.attr().unsolicited_write_recv {
        return;
    }
    let (a, b) =
        (Endpoint::new(&dev, |_| {}), Endpoint::new(&dev, |init| init.unsolicited_write_recv = true));
    let (to, _back) = (a.to(&b), b.to(&a));
    let far = b.mr.addr() as u64;
    a.qp.write(&to, 5, a.sge(0, 8), far, b.mr.rkey(), Some(77)).unwrap();
    a.qp.ring_doorbell();
    let got = completions(&[&a, &b], 2);
    assert_eq!((got[0].op, got[0].wr_id, got[0].imm), (CqeOp::RecvWriteImm, 0, Some(77)));
    assert_eq!((got[1].op, got[1].wr_id), (CqeOp::Write, 5));
    b.recv(9);
    a.qp.send_inline(&to, 6, b"message", None).unwrap();
    a.qp.ring_doorbell();
    let got = completions(&[&a, &b], 2);
    assert_eq!((got[1].op, got[1].wr_id, got[1].len), (CqeOp::Recv, 9, 7));
}

#[test]
fn a_poll_rings_the_doorbell() {
    let dev = device();
    let (a, b) = (Endpoint::new(&dev, |_| {}), Endpoint::new(&dev, |_| {}));
    let to = a.to(&b);
    for n in 0..64 {
        b.qp.recv(n, b.sge(0, 16)).unwrap();
    }
    assert_eq!(b.qp.recv(64, b.sge(0, 16)), Err(PostError::Full));
    assert_eq!(completions(&[&b], 0).len(), 0);
    for n in 0..50u64 {
        a.qp.send_inline(&to, 1000 + n, &n.to_le_bytes(), None).unwrap();
    }
    let got = completions(&[&a, &b], 100);
    assert!(got.iter().all(|c| c.status == DevStatus::Ok));
    assert_eq!(got[50..].iter().map(|c| c.wr_id).collect::<Vec<_>>(), (1000..1050).collect::<Vec<_>>());
}

#[test]
fn an_armed_cq_wakes_and_an_existing_entry_prevents_arming() {
    let dev = device();
    let (a, b) = (Endpoint::new(&dev, |_| {}), Endpoint::new(&dev, |_| {}));
    let to = a.to(&b);
    b.recv(1);
    let epoll = Epoll::new().unwrap();
    epoll.add(b.cq.event_fd().unwrap(), 1).unwrap();
    let awake = || {
        let mut tokens = Vec::new();
        epoll.wait(&mut tokens, Some(Duration::ZERO)).unwrap();
        !tokens.is_empty()
    };
    assert!(b.cq.arm() && !awake());
    a.qp.send_inline(&to, 1, b"wake", None).unwrap();
    a.qp.ring_doorbell();
    assert!(awake());
    assert!(!b.cq.arm(), "the message is there");
    assert!(!b.cq.arm(), "and still is");
    let got = completions(&[&b], 1);
    assert_eq!((got.len(), got[0].op, got[0].len), (1, CqeOp::Recv, 4));
    assert!(b.cq.arm() && !awake(), "one event, taken");
}

#[test]
fn destroying_a_queue_pair_drops_its_completions() {
    let dev = device();
    let (a, b) = (Endpoint::new(&dev, |_| {}), Endpoint::new(&dev, |_| {}));
    let to = a.to(&b);
    b.recv(1);
    a.qp.send_inline(&to, 1, b"late", None).unwrap();
    a.qp.ring_doorbell();
    assert!(!b.cq.arm(), "an entry is there, and taken aside");
    let Endpoint { qp, cq, mr, pd, dev } = b;
    drop(qp);
    let mut out = [Cqe::EMPTY; 4];
    assert_eq!(cq.poll(&mut out), 0);
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 4,
        recv_depth: 4,
        qkey: QKEY,
        rnr_retry: 0,
        unsolicited_write_recv: false,
    };
    let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
    let b = Endpoint { qp, cq, mr, pd, dev };
    b.recv(2);
    let to = a.to(&b);
    a.qp.send_inline(&to, 2, b"new", None).unwrap();
    // The open batch of a dropped queue pair is aborted.
    drop(a);
    assert!(completions(&[&b], 0).iter().all(|c| c.wr_id == 2));
}

#[test]
fn objects_keep_their_context_open() {
    let dev = device();
    let pd = dev.alloc_pd().unwrap();
    let mr = dev.alloc_mr(&pd, 4096, Access::LOCAL_WRITE).unwrap();
    let cq = dev.create_cq(16, Channel::With).unwrap();
    let ah = dev.create_ah(&pd, Gid::link_local(77)).unwrap();
    assert_eq!(dev.create_ah(&pd, Gid::link_local(77)), Ok(ah), "one handle a GID");
    assert_ne!(dev.create_ah(&pd, Gid::link_local(78)), Ok(ah));
    drop(dev);
    let other = device();
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 4,
        recv_depth: 4,
        qkey: 0,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    assert!(other.create_qp(&pd, &cq, &cq, &init).is_err(), "objects of two contexts do not mix");
    assert!(cq.poll(&mut [Cqe::EMPTY]) == 0);
    drop((pd, cq, mr));
}
