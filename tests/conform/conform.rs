//! The conformance suite for each transport, also through the run-time choice, and for shared interfaces.

use suites::conform::Pair;
use suites::conform::peer_failure::{self, FailingPeer};
use suites::conform::threads::{self, SharedPair};
use suites::{conform_suite, leave_suite, peer_failure_suite, threads_suite};
use ucs::config::Source;
use uct::wrap::{Locked, Paired, ThreadMode};
use uct::{any, cma, loopback, posix};

fn to_itself() -> Pair<loopback::Iface> {
    let iface = loopback::Iface::open(&Default::default()).unwrap();
    Pair::new(iface.clone(), iface)
}

conform_suite!(loopback_itself, to_itself);
conform_suite!(loopback_two, || {
    let open = || loopback::Iface::open(&Default::default()).unwrap();
    Pair::new(open(), open())
});
conform_suite!(posix_two, || {
    let open = || posix::Iface::open(&Default::default()).unwrap();
    Pair::new(open(), open())
});
conform_suite!(posix_small, || {
    let config =
        posix::Config { fifo_size: 2, seg_size: 192, spare_bufs: 0, max_writers: 1, ..Default::default() };
    let open = || posix::Iface::open(&config).unwrap();
    Pair::new(open(), open())
});
conform_suite!(posix_paired, || {
    let open = || Paired::new(posix::Iface::open(&Default::default()).unwrap());
    Pair::by_ep(open(), open())
});
conform_suite!(posix_locked, || {
    let open = || Locked::new(posix::Iface::open(&Default::default()).unwrap(), ThreadMode::Multi);
    Pair::new(open(), open())
});
conform_suite!(any_efa_locked, || {
    let bare = Source::empty().with("UCX_EFA_USER_RX_QUEUE_LEN", "16");
    let iface = || any::open("efa", "softefa0", &bare).unwrap();
    let open = || Locked::new(iface(), ThreadMode::Serialized);
    Pair::new(open(), open())
});
conform_suite!(any_efa_paired, || {
    let open = || Paired::new(any::open("efa", "softefa0", &Source::empty()).unwrap());
    Pair::by_ep(open(), open())
});
conform_suite!(loopback_paired, || {
    let open = || Paired::new(loopback::Iface::open(&Default::default()).unwrap());
    Pair::by_ep(open(), open())
});
conform_suite!(cma_two, || {
    let open = || cma::Iface::open(&Default::default()).unwrap();
    Pair::new(open(), open())
});
conform_suite!(cma_by_call, || {
    let config = cma::Config { map: false, ..Default::default() };
    let open = || cma::Iface::open(&config).unwrap();
    Pair::new(open(), open())
});
conform_suite!(any_cma, || {
    let open = || any::open("cma", "memory", &Source::empty()).unwrap();
    Pair::new(open(), open())
});
conform_suite!(any_posix, || {
    let open = || any::open("posix", "memory", &Source::empty()).unwrap();
    Pair::new(open(), open())
});
conform_suite!(efa_shm, || {
    let open = || any::open("efa", "softefa0", &Source::empty()).unwrap();
    Pair::new(open(), open())
});
conform_suite!(efa_reordered, || {
    let source = Source::empty().with("SOFTEFA_REORDER", "0.3");
    let open = || any::open("efa", "softefa0", &source).unwrap();
    Pair::new(open(), open())
});
conform_suite!(posix_itself, || {
    let iface = posix::Iface::open(&Default::default()).unwrap();
    Pair::new(iface.clone(), iface)
});
conform_suite!(cma_itself, || {
    let iface = cma::Iface::open(&Default::default()).unwrap();
    Pair::new(iface.clone(), iface)
});
conform_suite!(efa_itself, || {
    use uct::efa::dev::soft;
    let dev = soft::open_shm(&Source::empty(), "softefa0").unwrap();
    let iface = uct::efa::Iface::open(dev, &Default::default()).unwrap();
    Pair::new(iface.clone(), iface)
});
conform_suite!(cma_paired, || {
    let open = || Paired::new(cma::Iface::open(&Default::default()).unwrap());
    Pair::by_ep(open(), open())
});

fn open_any(tl: &str, dev: &str) -> any::Iface {
    any::open(tl, dev, &Source::empty()).unwrap()
}

leave_suite!(loopback_leave, || open_any("self", "memory"));
leave_suite!(posix_leave, || open_any("posix", "memory"), PEER, "posix", "memory");
leave_suite!(cma_leave, || open_any("cma", "memory"), PEER, "cma", "memory");
leave_suite!(efa_leave, || open_any("efa", "softefa0"), PEER, "efa", "softefa0");

/// Two interfaces on one memory domain, as the workers of a context have them.
fn of_one_domain(tl: &str, dev: &str, open: Open) -> Pair<any::Iface> {
    let source = Source::empty();
    let md = any::open_md(tl, dev, &source).unwrap();
    Pair::new(open(&md, &source).unwrap(), open(&md, &source).unwrap())
}

type Open = fn(&any::Md, &Source) -> Result<any::Iface, uct::api::OpenError>;

conform_suite!(posix_one_domain, || of_one_domain("posix", "memory", any::open_iface));
conform_suite!(efa_one_domain, || of_one_domain("efa", "softefa0", any::open_iface));
conform_suite!(posix_for_threads, || of_one_domain("posix", "memory", any::open_iface_for_threads));
conform_suite!(loopback_one_domain, || of_one_domain("self", "memory", any::open_iface));
conform_suite!(cma_one_domain, || of_one_domain("cma", "memory", any::open_iface));
conform_suite!(cma_for_threads, || of_one_domain("cma", "memory", any::open_iface_for_threads));
conform_suite!(efa_for_threads, || of_one_domain("efa", "softefa0", any::open_iface_for_threads));
conform_suite!(loopback_for_threads, || {
    let iface = loopback::Iface::open_private_on(&loopback::Md::open(), &Default::default()).unwrap();
    Pair::new(iface.clone(), iface)
});
conform_suite!(efa_inproc_rough, || {
    use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};
    use uct::efa::{Config, Iface, Params};
    let fabric = Fabric::new(11, FaultPlan::ROUGH);
    let config = Config { user_rx_queue_len: 16, ..Config::default() };
    let params = Params { config, ..Params::default() };
    let open = |iid| Iface::open(fabric.open(iid, Profile::default()).unwrap(), &params).unwrap();
    let (a, b) = (open(1), open(2));
    Pair::ticking(a, b, move || fabric.advance(1000))
});

threads_suite!(loopback_threads, || SharedPair::with_itself(threads::open("self", "memory")));
threads_suite!(posix_threads, || SharedPair::new(
    threads::open("posix", "memory"),
    threads::open("posix", "memory")
));
threads_suite!(posix_threads_itself, || SharedPair::with_itself(threads::open("posix", "memory")));
threads_suite!(posix_threads_traced, || {
    let open = || {
        let iface = threads::open("posix", "memory");
        let look = |event: uct::mt::TraceEvent<'_>| assert!(event.len >= event.head.len());
        iface.set_tracer(Some(Box::new(look))).unwrap();
        iface
    };
    SharedPair::new(open(), open())
});
threads_suite!(cma_threads, || SharedPair::new(
    threads::open("cma", "memory"),
    threads::open("cma", "memory")
));
threads_suite!(efa_threads, || SharedPair::new(
    threads::open("efa", "softefa0"),
    threads::open("efa", "softefa0")
));
threads_suite!(loopback_threads_paired, || {
    let iface = threads::open_paired("self", "memory");
    SharedPair::by_ep(iface.clone(), iface)
});
threads_suite!(posix_threads_paired, || SharedPair::by_ep(
    threads::open_paired("posix", "memory"),
    threads::open_paired("posix", "memory")
));
threads_suite!(cma_threads_paired, || SharedPair::by_ep(
    threads::open_paired("cma", "memory"),
    threads::open_paired("cma", "memory")
));
threads_suite!(efa_threads_paired, || SharedPair::by_ep(
    threads::open_paired("efa", "softefa0"),
    threads::open_paired("efa", "softefa0")
));

/// Interfaces of several threads on one memory domain of each transport.
mod shared_domain {
    use suites::conform::shared_domain::{atomics_of_transports_meet, threads_share_a_domain};

    #[test]
    fn atomics_of_efa_and_posix_meet() {
        atomics_of_transports_meet();
    }

    #[test]
    fn loopback_threads_share_a_domain() {
        threads_share_a_domain("self", "memory");
    }

    #[test]
    fn posix_threads_share_a_domain() {
        threads_share_a_domain("posix", "memory");
    }

    #[test]
    fn cma_threads_share_a_domain() {
        threads_share_a_domain("cma", "memory");
    }

    #[test]
    fn efa_threads_share_a_domain() {
        threads_share_a_domain("efa", "softefa0");
    }
}

const PEER: &str = env!("CARGO_BIN_EXE_peer");

// `self` is one process: no peer can fail.
peer_failure_suite!(posix_peer_failure, || FailingPeer::in_process(PEER, "posix", "memory"));
peer_failure_suite!(posix_gated_peer_failure, || FailingPeer::wrapped(PEER, "posix", "memory", |iface| {
    Locked::new(iface, ThreadMode::Multi)
}));
peer_failure_suite!(cma_peer_failure, || FailingPeer::in_process(PEER, "cma", "memory"));
peer_failure_suite!(efa_peer_failure, || FailingPeer::in_process(PEER, "efa", "softefa0"));
peer_failure_suite!(efa_inproc_peer_failure, || {
    use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};
    use uct::efa::{Iface, Params};
    let fabric = Fabric::new(11, FaultPlan { delay: 2000, ..FaultPlan::NONE });
    let open = |iid| Iface::open(fabric.open(iid, Profile::default()).unwrap(), &Params::default()).unwrap();
    let (a, b, peer) = (open(1), open(2), open(3));
    let mem = peer_failure::memory(&peer);
    let (theirs, back) = (peer_failure::describe(&peer, &mem), peer.connect_raw(&a.raw_addr()).unwrap());
    let time = fabric.clone();
    let pair = Pair::ticking(a, b, move || time.advance(1000));
    FailingPeer::new(pair, &theirs, move || {
        fabric.kill(peer.raw_addr().gid);
        drop((back, mem, peer));
    })
});

/// The suite on a device of libibverbs, alone and against a software device of this process. Fails where
/// there is none; `tests/run verbs` runs it under `softefa run`.
#[cfg(feature = "verbs")]
mod through_verbs {
    use super::PEER;
    use suites::conform::Pair;
    use suites::conform::peer_failure::FailingPeer;
    use suites::verbs;
    use suites::{conform_suite, peer_failure_suite};
    use ucs::config::Source;
    use uct::any;

    fn pair(a: &str, b: &str) -> Pair<any::Iface> {
        let open = |dev: &str| any::open("efa", dev, &Source::empty()).unwrap();
        Pair::new(open(a), open(b))
    }

    conform_suite!(efa_verbs, || pair(&verbs::device(), &verbs::device()));
    conform_suite!(efa_verbs_to_soft, || pair(&verbs::device(), "softefa0"));
    conform_suite!(efa_soft_to_verbs, || pair("softefa0", &verbs::device()));
    peer_failure_suite!(efa_verbs_peer_failure, || FailingPeer::in_process(PEER, "efa", &verbs::device()));
}
