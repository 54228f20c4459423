//! A stopped process on `posix`: others go on, and with it once it continues; if it stays stopped it becomes
//! unreachable. Also a process without free descriptors. The program starts itself again in other roles.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, socket};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use suites::partner::Partner;
use suites::sched_delay::Clock;
use ucp::{Address, Context, TAG_MASK_FULL, Worker};
use ucs::config::Source;
use uct::any;
use uct::api::{
    AllocReq, Am, Comp, ConnectError, Ep as _, EpTag, Error, Iface as _, Iov, Md as _, Memory as _,
    PendingQueued, Refused, Retry, Sent, Sink,
};
use uct::posix::{Ep, Iface};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Most time of one call about the stopped process. Delays of the machine's scheduler are not counted.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// Most time until operations go on after the process continues.
const RESUME_LIMIT: Duration = Duration::from_secs(5);
/// Time after which a silent process is unreachable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("echo") => return echo(open()),
        Some("other") => return echo(open_custom_slots()),
        Some("worker") => return worker_echo(),
        Some("sync-sender") => return sync_sender(),
        Some("without-descriptors") => return without_descriptors(),
        Some("owner") => return owner(&args[1]),
        _ => {}
    }
    // Nothing here can be run by name.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let tests: [(&str, fn()); 9] = [
        ("interface_keeps_working_with_others", interface_keeps_working_with_others),
        ("peer_with_custom_slots_is_not_waited_for", peer_with_custom_slots_is_not_waited_for),
        ("worker_keeps_working_with_others", worker_keeps_working_with_others),
        ("stopped_sender_is_answered_after_it_continues", stopped_sender_is_answered_after_it_continues),
        ("stopped_peer_becomes_unreachable", stopped_peer_becomes_unreachable),
        ("killed_stopped_peer_is_dead", killed_stopped_peer_is_dead),
        ("stopped_peer_is_waited_for_once", stopped_peer_is_waited_for_once),
        ("cma_reaches_memory_of_a_stopped_process", cma_reaches_memory_of_a_stopped_process),
        ("process_without_descriptors_still_answers", process_without_descriptors_still_answers),
    ];
    for (name, test) in tests {
        let start = Instant::now();
        test();
        println!("test {name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
    }
    println!("{} passed, 0 failed", tests.len());
}

type Contact = (Vec<u8>, Vec<u8>);

fn open() -> Iface {
    Iface::open(&Default::default()).unwrap()
}

/// An interface whose name does not tell its slot length.
fn open_custom_slots() -> Iface {
    Iface::open(&uct::posix::Config { seg_size: 4096, ..Default::default() }).unwrap()
}

fn contact_of(iface: &Iface) -> Contact {
    (iface.device_addr().to_vec(), iface.iface_addr().to_vec())
}

fn connect(iface: &Iface, to: &Contact) -> Ep {
    iface.connect(&to.0, &to.1).unwrap()
}

fn worker() -> Worker {
    let source = Source::empty().with("UCX_TLS", "posix").with("UCX_KEEPALIVE_INTERVAL", "0");
    Context::configured(source).unwrap().worker().unwrap()
}

fn signal(to: &Partner, signal: Signal) {
    let pid = Pid::from_raw(to.pid().unwrap() as i32).unwrap();
    kill_process(pid, signal).unwrap();
}

fn stop(stopped: &Partner) {
    signal(stopped, Signal::STOP);
    let tasks = format!("/proc/{}/task", stopped.pid().unwrap());
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    while !std::fs::read_dir(&tasks).unwrap().all(is_stopped) {
        std::thread::yield_now();
    }
}

#[derive(Default)]
struct Seen(Vec<u64>);

impl Sink for Seen {
    fn on_am(&mut self, am: Am<'_>) {
        self.0.push(u64::from_le_bytes(am.data()[..8].try_into().unwrap()));
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, _error: Error) {}
}

fn echo(iface: Iface) {
    let (mut line, mut seen) = (Partner::parent(), Seen::default());
    line.send(&contact_of(&iface)).unwrap();
    let back = connect(&iface, &line.recv(TIMEOUT).unwrap());
    back.ensure_connected().unwrap();
    while !line.is_gone() {
        iface.poll(8, &mut seen);
        while let Some(n) = seen.0.first() {
            match back.am_short(1, *n, &[]) {
                Ok(_) => drop(seen.0.remove(0)),
                Err(_) => break,
            }
        }
    }
}

/// An interface that echoes, and its process.
fn start_echo(iface: &Iface) -> (Partner, Ep) {
    start(iface, "echo")
}

fn start(iface: &Iface, role: &str) -> (Partner, Ep) {
    let mut partner = Partner::start(&[role.into()]).unwrap();
    let ep = connect(iface, &partner.recv(TIMEOUT).unwrap());
    partner.send(&contact_of(iface)).unwrap();
    (partner, ep)
}

fn interface_keeps_working_with_others() {
    let (iface, clock) = (open(), Clock::start());
    let (_live, to_live) = start_echo(&iface);
    to_live.ensure_connected().unwrap();
    let mut stopped: Vec<_> = (0..3).map(|_| start_echo(&iface)).collect();
    stopped.iter().for_each(|(stopped, _)| stop(stopped));
    let (mut seen, mut trips) = (Seen::default(), 0);
    let start = clock.now();
    while clock.since(start) < Duration::from_millis(500) || trips < 100 {
        let before = clock.now();
        for (_, ep) in &stopped {
            assert_eq!(ep.am_short(1, 0, &[]), Err(Refused::NoResource));
            assert_eq!(ep.am_packet(4000, |_| unreachable!("nowhere")), Err(Refused::NoResource));
            assert_eq!(ep.begin_connecting(), Ok(false));
            assert_eq!((ep.check(Comp::None), ep.flush(Comp::None)), (Ok(Sent::Done), Ok(Sent::Done)));
        }
        assert_eq!(to_live.am_short(1, 7, &[]), Ok(Sent::Done));
        iface.poll(8, &mut seen);
        let took = clock.since(before);
        assert!(took < CALL_LIMIT, "{took:?} for some calls");
        while seen.0.is_empty() {
            iface.poll(8, &mut seen);
            assert!(clock.since(before) < TIMEOUT, "no answer of who is well");
        }
        assert_eq!(seen.0.drain(..).collect::<Vec<_>>(), [7]);
        trips += 1;
    }
    // Pending operations for it go on by themselves.
    let (stopped, ep) = stopped.pop().unwrap();
    let (ep, sent) = (Rc::new(ep), Rc::new(Cell::new(0)));
    let (of, count) = (ep.clone(), sent.clone());
    let op = move || match of.am_short(1, 9, &[]) {
        Ok(_) => {
            count.set(count.get() + 1);
            Retry::Done
        }
        Err(_) => Retry::NoResource,
    };
    assert_eq!(ep.pending_add(Box::new(op)), Ok(PendingQueued::Queued));
    (0..1000).for_each(|_| _ = iface.poll(8, &mut seen));
    assert_eq!(sent.get(), 0);
    let start = clock.now();
    signal(&stopped, Signal::CONT);
    while seen.0.is_empty() {
        iface.poll(8, &mut seen);
        assert!(clock.since(start) < RESUME_LIMIT, "sent {}", sent.get());
    }
    assert_eq!((seen.0, sent.get()), (vec![9], 1));
}

fn peer_with_custom_slots_is_not_waited_for() {
    let (iface, clock) = (open(), Clock::start());
    let (stopped, ep) = start(&iface, "other");
    stop(&stopped);
    for _ in 0..20 {
        let before = clock.now();
        assert_eq!(ep.am_bcopy(1, |_| unreachable!("nowhere")), Err(Refused::NoResource));
        let took = clock.since(before);
        assert!(took < CALL_LIMIT, "{took:?} for a message");
    }
    signal(&stopped, Signal::CONT);
    let (mut seen, start) = (Seen::default(), clock.now());
    let pack = |slot: &mut [u8]| {
        assert_eq!(slot.len(), 4095);
        slot[..8].copy_from_slice(&7u64.to_le_bytes());
        8
    };
    while let Err(why) = ep.am_bcopy(1, pack) {
        assert_eq!(why, Refused::NoResource);
        assert!(clock.since(start) < RESUME_LIMIT);
    }
    while seen.0.is_empty() {
        iface.poll(8, &mut seen);
        assert!(clock.since(start) < 2 * RESUME_LIMIT);
    }
    assert_eq!(seen.0, [7]);
}

fn worker_echo() {
    let (mut line, worker) = (Partner::parent(), worker());
    line.send(&worker.address().pack()).unwrap();
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let ep = worker.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
    let mut come = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(100_000));
    while !line.is_gone() {
        worker.progress();
        if come.is_done() {
            let (ended, data) = come.wait();
            ended.unwrap();
            ep.tag_send(2, data).wait().0.unwrap();
            come = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(100_000));
        }
    }
}

fn start_worker(own: &Worker, role: &str) -> (Partner, Address) {
    let mut partner = Partner::start(&[role.into()]).unwrap();
    let address: Vec<u8> = partner.recv(TIMEOUT).unwrap();
    partner.send(&own.address().pack()).unwrap();
    (partner, Address::unpack(&address).unwrap())
}

fn exchange(worker: &Worker, to_live: &ucp::Ep, clock: &Clock, times: usize) {
    for n in 0..times {
        let back = worker.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(100));
        let send = to_live.tag_send(1, vec![n as u8; 100]);
        let start = clock.now();
        while !(back.is_done() && send.is_done()) {
            let before = clock.now();
            worker.progress();
            let took = clock.since(before);
            assert!(took < CALL_LIMIT, "progress of {took:?}");
            assert!(clock.since(start) < TIMEOUT, "no answer of who is well");
        }
        assert_eq!((send.wait().0, back.wait().1), (Ok(()), vec![n as u8; 100]));
    }
}

fn worker_keeps_working_with_others() {
    let (own, clock) = (worker(), Clock::start());
    let (_live, address) = start_worker(&own, "worker");
    let to_live = own.connect(&address, Default::default()).unwrap();
    exchange(&own, &to_live, &clock, 10);
    let (stopped, address) = start_worker(&own, "worker");
    stop(&stopped);
    let before = clock.now();
    let to_stopped = own.connect(&address, Default::default()).unwrap();
    let sends: Vec<_> = [8, 50_000].map(|len| to_stopped.tag_send(1, vec![3; len])).into();
    let took = clock.since(before);
    assert!(took < CALL_LIMIT, "{took:?} to connect and send");
    let start = clock.now();
    while clock.since(start) < Duration::from_millis(500) {
        exchange(&own, &to_live, &clock, 10);
    }
    assert!(sends.iter().all(|send| !send.is_done()));
    for len in [8, 50_000] {
        let back = own.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(len));
        let start = clock.now();
        signal(&stopped, Signal::CONT);
        // Sleeps, except for pending operations.
        let (ended, data) = own.block_on(back);
        assert!(clock.since(start) < RESUME_LIMIT);
        assert_eq!((ended.map(|status| status.len), data), (Ok(len), vec![3; len]));
    }
    sends.into_iter().for_each(|send| assert_eq!(send.wait().0, Ok(())));
}

fn sync_sender() {
    let (mut line, worker) = (Partner::parent(), worker());
    line.send(&worker.address().pack()).unwrap();
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let ep = worker.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
    let send = ep.tag_send_sync(5, vec![5; 100]);
    (0..1000).for_each(|_| _ = worker.progress());
    line.send(&()).unwrap();
    send.wait().0.unwrap();
    line.send(&()).unwrap();
    while !line.is_gone() {
        worker.progress();
    }
}

fn stopped_sender_is_answered_after_it_continues() {
    let (own, clock) = (worker(), Clock::start());
    let (_live, address) = start_worker(&own, "worker");
    let to_live = own.connect(&address, Default::default()).unwrap();
    let (mut sync_sender, _) = start_worker(&own, "sync-sender");
    sync_sender.recv::<()>(TIMEOUT).unwrap();
    stop(&sync_sender);
    let come = own.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(100));
    let start = clock.now();
    while clock.since(start) < Duration::from_millis(500) {
        exchange(&own, &to_live, &clock, 10);
    }
    let start = clock.now();
    signal(&sync_sender, Signal::CONT);
    let mut received = None;
    while received.is_none() {
        own.progress();
        assert!(clock.since(start) < RESUME_LIMIT);
        received = sync_sender.try_recv::<()>().unwrap();
    }
    assert_eq!(come.wait().1, vec![5; 100]);
}

fn stopped_peer_becomes_unreachable() {
    let (iface, own, clock) = (open(), worker(), Clock::start());
    let (stopped, ep) = start_echo(&iface);
    let (other, address) = start_worker(&own, "worker");
    stop(&stopped);
    stop(&other);
    let start = clock.now();
    let to_other = own.connect(&address, Default::default()).unwrap();
    let send = to_other.tag_send(1, vec![1; 10]);
    let mut refused = None;
    while refused.is_none() || !send.is_done() {
        own.progress();
        refused = refused.or(ep.am_short(1, 1, &[]).err().filter(|why| *why != Refused::NoResource));
        assert!(clock.since(start) < 2 * ANSWER_TIMEOUT, "{refused:?}, {}", send.is_done());
    }
    assert!(clock.since(start) > ANSWER_TIMEOUT / 2);
    assert_eq!(refused, Some(Refused::Failed(Error::Unreachable)));
    assert_eq!(send.wait().0, Err(ucp::Error::Unreachable(to_other.peer())));
    let late = to_other.tag_send(1, vec![1; 10]);
    assert_eq!(late.wait().0, Err(ucp::Error::Unreachable(to_other.peer())));
    // An endpoint of an interface has no error state.
    assert_eq!(ep.am_short(1, 2, &[]), Err(Refused::Failed(Error::Unreachable)));
    assert_eq!(ep.ensure_connected(), Err(ConnectError::NoAnswer));
    assert_eq!(ep.check(Comp::None), Ok(Sent::Done));
    signal(&stopped, Signal::CONT);
    let (mut seen, start) = (Seen::default(), clock.now());
    while ep.am_short(1, 3, &[]).is_err() {
        assert!(clock.since(start) < RESUME_LIMIT);
    }
    while seen.0.is_empty() {
        iface.poll(8, &mut seen);
        assert!(clock.since(start) < 2 * RESUME_LIMIT);
    }
    assert_eq!(seen.0, [3]);
}

fn killed_stopped_peer_is_dead() {
    let (iface, clock) = (open(), Clock::start());
    let (stopped, ep) = start_echo(&iface);
    stop(&stopped);
    assert_eq!(ep.am_short(1, 1, &[]), Err(Refused::NoResource));
    drop(stopped);
    let start = clock.now();
    let refused = loop {
        match ep.am_short(1, 1, &[]) {
            Err(Refused::NoResource) => assert!(clock.since(start) < RESUME_LIMIT, "never notified"),
            sent => break sent,
        }
    };
    assert_eq!(refused, Err(Refused::Failed(Error::PeerDead)));
}

type Owned = (u64, Vec<u8>, u64);

/// Memory of transport `tl`, filled with its number, until the connection ends.
fn owner(tl: &str) {
    let (mut line, iface) = (Partner::parent(), any::open(tl, "memory", &Source::empty()).unwrap());
    let mems: Vec<_> = (0..3).map(|_| iface.md().alloc(&AllocReq::new(4096, "owned")).unwrap()).collect();
    let key = |(n, mem): (u8, &any::Mem)| {
        // SAFETY: freshly allocated, unknown to others.
        unsafe { mem.addr().write_bytes(n, 4096) };
        let packed = iface.md().pack_rkey(mem).unwrap().to_vec();
        (mem.addr().addr() as u64, packed, iface.md().mr_key(mem).unwrap())
    };
    let owned: Vec<Owned> = (0..).zip(&mems).map(key).collect();
    line.send(&((iface.device_addr().to_vec(), iface.iface_addr().to_vec()), owned)).unwrap();
    let _ = line.recv::<()>(TIMEOUT);
}

/// Calls that need an answer wait for the timeout; only the first key of the stopped process does.
fn stopped_peer_is_waited_for_once() {
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
    let config = uct::posix::Config { answer_timeout: ANSWER_TIMEOUT, ..Default::default() };
    let (iface, clock) = (Iface::open(&config).unwrap(), Clock::start());
    let mut stopped = Partner::start(&["owner".into(), "posix".into()]).unwrap();
    let (contact, owned): (Contact, Vec<Owned>) = stopped.recv(TIMEOUT).unwrap();
    let mut other = Partner::start(&["other".into()]).unwrap();
    let to_other = connect(&iface, &other.recv(TIMEOUT).unwrap());
    other.send(&self::contact_of(&iface)).unwrap();
    stop(&stopped);
    stop(&other);
    let took = |call: &mut dyn FnMut()| {
        let before = clock.now();
        call();
        clock.since(before)
    };
    let (md, ep) = (iface.md(), connect(&iface, &contact));
    let waits = |call: &mut dyn FnMut()| {
        let took = took(call);
        assert!(took > ANSWER_TIMEOUT / 2 && took < ANSWER_TIMEOUT + CALL_LIMIT, "{took:?}");
    };
    let does_not = |call: &mut dyn FnMut()| {
        let took = took(call);
        assert!(took < CALL_LIMIT, "{took:?}");
    };
    waits(&mut || assert_eq!(ep.ensure_connected(), Err(ConnectError::NoAnswer)));
    does_not(&mut || assert_eq!(ep.ensure_connected(), Err(ConnectError::NoAnswer)));
    let unpack = |n: usize| md.unpack_rkey(&owned[n].1).map(drop);
    waits(&mut || assert_eq!(unpack(0), Err(Error::Unreachable)));
    does_not(&mut || assert_eq!((unpack(0), unpack(1)), (Err(Error::Unreachable), Err(Error::Unreachable))));
    // An MR key is never waited for.
    let word = || md.rkey_from_mr_key(owned[2].2, owned[2].0, 4096).map(drop);
    does_not(&mut || assert_eq!(word(), Err(Error::NotReady)));
    let start = clock.now();
    while word() == Err(Error::NotReady) {
        assert!(clock.since(start) < ANSWER_TIMEOUT + CALL_LIMIT, "not ready for ever");
    }
    assert_eq!(word(), Err(Error::Unreachable));
    // Only the peer knows its slot length; the answer is our own meanwhile.
    waits(&mut || assert_eq!(to_other.max_bcopy(), iface.attr().am.max_bcopy));
    does_not(&mut || assert_eq!(to_other.max_bcopy(), iface.attr().am.max_bcopy));

    [&stopped, &other].iter().for_each(|stopped| signal(stopped, Signal::CONT));
    let start = clock.now();
    let soon = |what: &mut dyn FnMut() -> bool| {
        while !what() {
            assert!(clock.since(start) < RESUME_LIMIT, "it answers now");
        }
    };
    soon(&mut || (0..2).all(|n| unpack(n) == Ok(())));
    soon(&mut || word() == Ok(()));
    soon(&mut || ep.ensure_connected() == Ok(()));
    soon(&mut || to_other.max_bcopy() == 4095);
    let mut got = [9];
    let rkey = md.unpack_rkey(&owned[1].1).unwrap();
    assert_eq!((ep.get_short(&mut got, owned[1].0, &rkey), got), (Ok(Sent::Done), [1]));
}

fn cma_reaches_memory_of_a_stopped_process() {
    if let Some(why) = uct::cma::unavailable_reason() {
        return ucs::testing::skipped("memory of a stopped process by cma", why);
    }
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
    let config = uct::cma::Config { answer_timeout: ANSWER_TIMEOUT, ..Default::default() };
    let (iface, clock) = (uct::cma::Iface::open(&config).unwrap(), Clock::start());
    let mut stopped = Partner::start(&["owner".into(), "cma".into()]).unwrap();
    let (contact, owned): (Contact, Vec<Owned>) = stopped.recv(TIMEOUT).unwrap();
    stop(&stopped);
    let before = clock.now();
    let ep = iface.connect(&contact.0, &contact.1).unwrap();
    let keys: Vec<_> = owned.iter().map(|(_, packed, _)| iface.md().unpack_rkey(packed).unwrap()).collect();
    let took = clock.since(before);
    assert!(took < ANSWER_TIMEOUT + CALL_LIMIT, "{took:?} for three keys");
    for (n, ((at, _, _), key)) in (0u8..).zip(owned.iter().zip(&keys)) {
        let (mut got, before) = ([9u8; 64], clock.now());
        let iov = [Iov::new(got.as_mut_ptr(), got.len(), None)];
        // SAFETY: `got` outlives the flush, which completes the operation.
        assert_eq!(unsafe { ep.get_zcopy(&iov, *at, key, Comp::None) }, Ok(Sent::InProgress));
        assert_eq!((ep.flush(Comp::None), got), (Ok(Sent::Done), [n; 64]));
        assert!(clock.since(before) < CALL_LIMIT);
    }
    assert_eq!(ep.check(Comp::None), Ok(Sent::Done), "stopped is not dead");
}

/// Uses up its descriptors, then frees some when told to.
fn without_descriptors() {
    let (mut line, iface) = (Partner::parent(), open());
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    line.send(&contact_of(&iface)).unwrap();
    line.recv::<()>(TIMEOUT).unwrap();
    drop(all);
    let _ = line.recv::<()>(TIMEOUT);
}

/// CPU time of a process's fd server, in hundredths of a second.
fn ticks_of_fd_server(of: &Partner) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", of.pid().unwrap())).unwrap();
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap();
    let server = tasks.map(|task| stat(task.unwrap())).find(|stat| stat.contains("(uct-fd-server)")).unwrap();
    let fields: Vec<_> = server.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A connection to a process's fd server without a request, as a peer without pidfds keeps it.
fn silent_connection(iface: &[u8]) -> OwnedFd {
    let key = u64::from_le_bytes(iface.try_into().unwrap()) >> 32;
    let name = SocketAddrUnix::new_abstract_name(format!("uct-posix.{key:08x}").as_bytes()).unwrap();
    let socket_fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket_fd, &name).unwrap();
    socket_fd
}

fn process_without_descriptors_still_answers() {
    let clock = Clock::start();
    let mut stopped = Partner::start(&["without-descriptors".into()]).unwrap();
    let contact: Contact = stopped.recv(TIMEOUT).unwrap();
    // One after the other, by the spare descriptor.
    for n in 0..5 {
        let iface = open();
        let ep = connect(&iface, &contact);
        assert_eq!((ep.ensure_connected(), ep.am_short(1, n, &[])), (Ok(()), Ok(Sent::Done)));
    }
    // The kept connection has the spare descriptor; others wait, and the fd server must not spin.
    let _stays = silent_connection(&contact.1);
    std::thread::sleep(Duration::from_millis(100));
    let iface = open();
    let ep = connect(&iface, &contact);
    let before = ticks_of_fd_server(&stopped);
    let start = clock.now();
    while clock.since(start) < Duration::from_secs(1) {
        assert_eq!(ep.am_short(1, 0, &[]), Err(Refused::NoResource));
    }
    let took = ticks_of_fd_server(&stopped) - before;
    assert!(took < 20, "the fd server does not rest: {took} ticks");
    let start = clock.now();
    stopped.send(&()).unwrap();
    while ep.am_short(1, 0, &[]).is_err() {
        assert!(clock.since(start) < RESUME_LIMIT, "nothing is accepted");
    }
}
