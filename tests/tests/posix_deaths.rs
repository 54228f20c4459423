//! `posix` and `cma` when processes end: killed at any moment, a hundred times; gone after sending; in containers that share
//! a directory only. The survivor is told, has what was sent, and nothing is left.
//! No test harness: the program starts itself again in other roles (`suites::partner`).

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use suites::dice::Dice;
use suites::litter::Litter;
use suites::partner::Partner;
use ucs::config::Source;
use uct::any::{self, Iface};
use uct::api::{
    AllocReq, Am, Comp, ConnectError, Ep as _, EpTag, Error, Iface as _, Iov, Md as _, Memory as _, Refused,
    Sent, Sink,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// For the survivor to be told. The transport takes milliseconds; the rest is for busy machines.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
const KILLS: u64 = 100;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("traffic") => return traffic(&args[1]),
        Some("leaver") => return leaver(),
        Some("tag-leaver") => return tag_leaver(),
        Some("contained") => return contained(&args[1]),
        _ => {}
    }
    // A test runner asks what there is: nothing that it could run one by one.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let tests: [(&str, fn()); 4] = [
        ("killed_at_any_moment", killed_at_any_moment),
        ("what_was_sent_arrives", what_was_sent_arrives),
        ("tagged_messages_of_one_who_left_arrive", tagged_messages_of_one_who_left_arrive),
        ("containers_that_share_a_directory", containers_that_share_a_directory),
    ];
    for (name, test) in tests {
        let start = Instant::now();
        test();
        println!("test {name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
    }
    println!("4 passed, 0 failed");
}

/// An interface's address, and memory of it: address and key.
type Where = (Vec<u8>, Vec<u8>, u64, Vec<u8>);

fn place(iface: &Iface) -> (Vec<u8>, Vec<u8>) {
    (iface.device_addr().to_vec(), iface.iface_addr().to_vec())
}

fn open(tl: &str, dir: &str) -> Iface {
    any::open(tl, "memory", &Source::empty().with("UCX_POSIX_SOCKET_DIR", dir)).unwrap()
}

/// A directory for sockets, gone with the test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        let path = std::env::temp_dir().join(format!("posix-deaths.{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn files(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Counts messages and deaths.
#[derive(Default)]
struct Seen {
    bytes: Vec<usize>,
    deaths: Vec<EpTag>,
}

impl Sink for Seen {
    fn on_am(&mut self, am: Am<'_>) {
        assert!(am.data().iter().all(|b| *b == am.id()), "whole messages only");
        self.bytes.push(am.data().len());
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        assert_eq!(error, Error::PeerDead);
        self.deaths.push(ep);
    }
}

/// What the socket of the process with this interface is called.
fn socket_of(iface: &[u8]) -> String {
    let name = u64::from_le_bytes(iface.try_into().unwrap());
    format!("uct-posix.{:010x}", name >> 24)
}

/// Sends whatever there is room for; says when the peer is gone.
fn send_some(ep: &any::Ep, n: u64) -> Result<(), Error> {
    let len = [0, 3, 47, 100, 4000][n as usize % 5];
    match ep.am_bcopy(n as u8, |room| {
        room[..len].fill(n as u8);
        len
    }) {
        Ok(_) | Err(Refused::NoResource) => Ok(()),
        Err(Refused::Failed(e)) => Err(e),
    }
}

/// The victim: traffic both ways until it is killed.
fn traffic(dir: &str) {
    let mut line = Partner::parent();
    let posix = open("posix", dir);
    line.say(&place(&posix)).unwrap();
    let (device, iface): (Vec<u8>, Vec<u8>) = line.hear(PATIENCE).unwrap();
    let ep = posix.connect(&device, &iface).unwrap();
    let start = Instant::now();
    let mut seen = Seen::default();
    for n in 0.. {
        if send_some(&ep, n).is_err() || start.elapsed() > PATIENCE {
            return;
        }
        posix.poll(8, &mut seen);
        seen.bytes.clear();
    }
}

/// The other side of the same, killing: at a random moment, from before the victim has connected to the middle of a
/// stream. Every endpoint is told within seconds (milliseconds on a machine that is not busy), sends fail from then
/// on, and the victim's socket is gone.
fn killed_at_any_moment() {
    let (mut victims, dir) = (Vec::new(), Dir::new());
    let mut dice = Dice::new(0x0dea_d000, 0);
    let mut told = Vec::new();
    for round in 0..KILLS {
        // Every other one with sockets that the kernel does not remove by itself.
        let at = if round % 2 == 0 { "" } else { dir.path() };
        let posix = open("posix", at);
        let mut victim = Partner::start(&["traffic".into(), at.into()]).unwrap();
        let (device, iface): (Vec<u8>, Vec<u8>) = victim.hear(PATIENCE).unwrap();
        victims.push(socket_of(&iface));
        let eps: Vec<_> = (0..3).map(|_| posix.connect(&device, &iface).unwrap()).collect();
        // Who has neither sent nor asked is not told.
        eps[0].ensure_connected().unwrap();
        (0..3).for_each(|n| eps[n].set_tag(EpTag(10 + n as u64)));
        victim.say(&place(&posix)).unwrap();
        let mut seen = Seen::default();
        let live = Duration::from_micros(dice.below(6000));
        let start = Instant::now();
        let mut n = 0;
        while start.elapsed() < live {
            let _ = send_some(&eps[n % 3], n as u64);
            posix.poll(8, &mut seen);
            seen.bytes.clear();
            n += 1;
        }
        assert_eq!(seen.deaths, []);
        let bound = Litter::now(|name| name.ends_with(victims.last().unwrap()));
        assert_ne!(bound, Litter::default(), "the name is right");
        // Dropping the partner kills it with SIGKILL.
        let start = Instant::now();
        drop(victim);
        while seen.deaths.len() < 3 {
            posix.poll(8, &mut seen);
            assert!(start.elapsed() < TOLD_WITHIN, "round {round}: not told");
        }
        told.push(start.elapsed());
        seen.deaths.sort_by_key(|tag| tag.0);
        assert_eq!(seen.deaths, [EpTag(10), EpTag(11), EpTag(12)], "each once");
        for ep in &eps {
            assert_eq!(send_some(ep, 1), Err(Error::PeerDead));
            assert_eq!(ep.check(Comp::None), Err(Refused::Failed(Error::PeerDead)));
        }
        let late = posix.connect(&device, &iface).unwrap();
        assert_eq!(late.ensure_connected(), Err(ConnectError::Gone));
        assert_eq!(send_some(&late, 1), Err(Error::PeerDead));
        // The survivor's own socket, once the porter is through.
        while !at.is_empty() && dir.files() > 1 {
            assert!(start.elapsed() < TOLD_WITHIN, "round {round}: a socket is left");
            std::thread::yield_now();
        }
    }
    assert_eq!(dir.files(), 0);
    drop(dir);
    told.sort();
    let ms = |at: usize| told[at].as_secs_f64() * 1e3;
    let (least, median, most) = (ms(0), ms(told.len() / 2), ms(told.len() - 1));
    println!(
        "    from kill -9 to the error at the last endpoint, {KILLS} times: {least:.2} ms min, {median:.2} ms median, {most:.2} ms max"
    );
    let left = Litter::now(|name| victims.iter().any(|victim| name.ends_with(victim)));
    assert_eq!(left, Litter::default());
}

/// Fills the peer's FIFO and leaves without a word.
fn leaver() {
    let mut line = Partner::parent();
    let (device, iface): (Vec<u8>, Vec<u8>) = line.hear(PATIENCE).unwrap();
    let posix = open("posix", "");
    line.say(&place(&posix)).unwrap();
    let ep = posix.connect(&device, &iface).unwrap();
    line.hear::<()>(PATIENCE).unwrap();
    let sent = (0..64u64).filter(|n| {
        ep.am_bcopy(*n as u8, |room| {
            room[..8000].fill(*n as u8);
            8000
        })
        .is_ok()
    });
    assert_eq!(sent.count(), 64);
    assert_eq!(ep.flush(Comp::None), Ok(Sent::Done));
}

fn what_was_sent_arrives() {
    let posix = open("posix", "");
    let mut partner = Partner::start(&["leaver".into()]).unwrap();
    partner.say(&place(&posix)).unwrap();
    let (device, iface): (Vec<u8>, Vec<u8>) = partner.hear(PATIENCE).unwrap();
    let ep = posix.connect(&device, &iface).unwrap();
    ep.ensure_connected().unwrap();
    partner.say(&()).unwrap();
    assert!(partner.ended_well());
    // Long enough for the porter to know. Nobody says so while there is something to read.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ep.check(Comp::None), Ok(Sent::Done));
    let mut seen = Seen::default();
    let start = Instant::now();
    while seen.deaths.is_empty() {
        posix.poll(1, &mut seen);
        assert!(seen.deaths.is_empty() || seen.bytes.len() == 64, "told before all was read");
        assert!(start.elapsed() < TOLD_WITHIN, "never told; {} messages", seen.bytes.len());
    }
    assert_eq!(seen.bytes, [8000; 64]);
}

/// Sends tagged messages of one packet and of several to a peer that has never heard of it, and leaves.
fn tag_leaver() {
    let mut line = Partner::parent();
    let address: Vec<u8> = line.hear(PATIENCE).unwrap();
    let context = ucp::Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
    let worker = context.worker().unwrap();
    let ep = worker.connect(&ucp::Address::unpack(&address).unwrap(), Default::default()).unwrap();
    worker.block_on(async {
        for len in [100, 20_000, 8, 60_000] {
            ep.tag_send(7, vec![len as u8; len]).await.0.unwrap();
        }
        ep.flush().await.unwrap();
    });
}

fn tagged_messages_of_one_who_left_arrive() {
    let context = ucp::Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
    let worker = context.worker().unwrap();
    let mut partner = Partner::start(&["tag-leaver".into()]).unwrap();
    partner.say(&worker.address().pack()).unwrap();
    // Nothing is progressed here until it has ended.
    assert!(partner.ended_well());
    for len in [100, 20_000, 8, 60_000] {
        let (got, buf) = worker.block_on(worker.tag_recv(7, ucp::EXACT, Vec::with_capacity(60_000)));
        got.unwrap();
        assert!(buf == vec![len as u8; len], "{len}: {} of {}", buf.len(), buf[0]);
    }
}

/// In namespaces of its own: messages, allocated memory, and a look at what cannot work.
fn contained(dir: &str) {
    let mut line = Partner::parent();
    let (posix, lost, cma) = (open("posix", dir), open("posix", ""), open("cma", ""));
    let to: Where = line.hear(PATIENCE).unwrap();
    // Over names of a network namespace there is no way, and no process of another pid namespace has a name here.
    assert_eq!(lost.connect(&to.0, &to.1).err(), Some(ConnectError::OtherPlace));
    let other: (Vec<u8>, Vec<u8>) = line.hear(PATIENCE).unwrap();
    assert_eq!(cma.connect(&other.0, &other.1).err(), Some(ConnectError::OtherHost));
    let ep = posix.connect(&to.0, &to.1).unwrap();
    line.say(&place(&posix)).unwrap();
    let rkey = posix.md().unpack_rkey(&to.3).unwrap();
    assert_eq!(ep.put_short(&[42; 100], to.2, &rkey), Ok(Sent::Done));
    let big = vec![43u8; 5000];
    // SAFETY: the call is done with `big` when it returns.
    let put =
        unsafe { ep.put_zcopy(&[Iov::new(big.as_ptr(), big.len(), None)], to.2 + 100, &rkey, Comp::None) };
    assert_eq!(put, Ok(Sent::Done));
    let mut seen = Seen::default();
    let start = Instant::now();
    while seen.bytes.is_empty() {
        posix.poll(8, &mut seen);
        assert!(start.elapsed() < PATIENCE);
    }
    while ep.am_bcopy(5, |room| {
        room[..50].fill(5);
        50
    }) == Err(Refused::NoResource)
    {}
    // Until it is killed.
    while start.elapsed() < PATIENCE {
        posix.poll(8, &mut seen);
    }
}

fn containers_that_share_a_directory() {
    let mut unshare = vec!["unshare", "--net", "--pid", "--ipc", "--fork", "--kill-child"];
    if !rustix::process::geteuid().is_root() {
        unshare.extend(["--user", "--map-current-user"]);
    }
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|s| s.success()) {
        return ucs::testing::skipped("containers that share a directory", "namespaces cannot be made here");
    }
    let dir = Dir::new();
    let (posix, cma) = (open("posix", dir.path()), open("cma", ""));
    let mem = posix.md().alloc(&AllocReq::new(8192, "shared")).unwrap();
    let mut partner = Partner::start_under(&unshare, &["contained".into(), dir.path().into()]).unwrap();
    let (device, iface) = place(&posix);
    let to: Where = (device, iface, mem.addr().addr() as u64, posix.md().pack_rkey(&mem).unwrap().to_vec());
    partner.say(&to).unwrap();
    partner.say(&place(&cma)).unwrap();
    let (device, iface): (Vec<u8>, Vec<u8>) = partner.hear(PATIENCE).unwrap();
    let ep = posix.connect(&device, &iface).unwrap();
    ep.set_tag(EpTag(3));
    ep.am_bcopy(9, |room| {
        room[..10].fill(9);
        10
    })
    .unwrap();
    let mut seen = Seen::default();
    let start = Instant::now();
    while seen.bytes.is_empty() {
        posix.poll(8, &mut seen);
        assert!(start.elapsed() < PATIENCE);
    }
    let byte = |at: usize| {
        let byte = mem.addr().wrapping_add(at);
        // SAFETY: inside the allocation; the peer has written it before the message that has arrived.
        unsafe { byte.read_volatile() }
    };
    assert_eq!((byte(0), byte(99), byte(100), byte(5099), byte(5100)), (42, 42, 43, 43, 0));
    assert_eq!(dir.files(), 2);
    drop(partner);
    let start = Instant::now();
    while seen.deaths.is_empty() {
        posix.poll(8, &mut seen);
        assert!(start.elapsed() < TOLD_WITHIN, "not told");
    }
    assert_eq!(seen.deaths, [EpTag(3)]);
    while dir.files() > 1 {
        assert!(start.elapsed() < TOLD_WITHIN, "a socket is left");
        std::thread::yield_now();
    }
}
