//! Two porters, questions good and bad, and what is left of a porter in a directory.

use super::wire::{Answer, MOST, Place as At, Question, ROOM, Stay, Verdict};
use super::*;
use std::time::{Duration, Instant};
use ucs::mem::MapOpts;
use zerocopy::IntoBytes;

const PATIENCE: Duration = Duration::from_secs(10);

impl Porter {
    /// Asks for one name, and waits for what is said.
    fn fetch(&self, name: Name) -> Result<Fetched, ConnectError> {
        match self.hear(self.ask([name], PATIENCE)?, PATIENCE)? {
            Heard::All(mut all) => all.pop().expect("one was asked for").1,
            Heard::Nothing(_) => Err(ConnectError::Silent),
        }
    }
}

fn memory(fill: u8) -> Arc<SharedMem> {
    let mem = SharedMem::create("porter-test", 4096, MapOpts::default()).unwrap();
    // SAFETY: the memory is ours and nobody else knows of it.
    unsafe { mem.as_ptr().write_bytes(fill, 4096) };
    Arc::new(mem)
}

/// A directory of this test's own, gone with it.
struct Dir(String);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("porter-{name}.{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path.to_str().unwrap().into())
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_exported_is_handed_out_and_then_no_more() {
    let dir = Dir::new("export");
    for place in [Place::new("").unwrap(), Place::new(&dir.0).unwrap()] {
        let porter = Porter::at(place).unwrap();
        let mem = memory(7);
        let wake = Arc::new(EventFd::new().unwrap());
        let with = porter.export(porter.new_name(), mem.clone(), What::Iface(wake.clone()));
        let at = At::new(0x1000, 4096, 1);
        let without = porter.export(porter.new_name(), mem.clone(), What::Memory(at));
        let got = porter.fetch(with.name()).unwrap();
        let What::Iface(theirs) = got.what else { panic!("an interface") };
        EventFd::from_peer(theirs).unwrap().signal().unwrap();
        assert_eq!(wake.clear(), Ok(1));
        let copy = SharedMem::from_fd(got.mem, 4096).unwrap();
        // SAFETY: a byte of the mapping, which nobody writes any more.
        assert_eq!(unsafe { copy.as_ptr().wrapping_add(4095).read() }, 7);
        assert!(!got.death.look() && porter.is_alive(porter.key()));
        assert!(matches!(porter.fetch(without.name()).unwrap().what, What::Memory(there) if there == at));
        let name = without.name();
        drop(without);
        assert_eq!(porter.fetch(name).err(), Some(ConnectError::Gone));
    }
}

#[test]
fn many_names_are_answered_one_by_one() {
    let porter = Porter::at(Place::new("").unwrap()).unwrap();
    let wake = Arc::new(EventFd::new().unwrap());
    let what = |n: u8| match n % 3 {
        0 => What::Iface(wake.clone()),
        _ => What::Memory(At::new(u64::from(n), 4096, 0)),
    };
    let exports: Vec<_> =
        (0..MOST as u8).map(|n| porter.export(porter.new_name(), memory(n), what(n))).collect();
    let mut names: Vec<_> = exports.iter().map(Export::name).collect();
    // One that is gone, and one of another process, in between.
    names[5] = porter.new_name();
    names[9] = Name::new(ProcKey(porter.key().0 ^ 1), 0);
    let asked = porter.ask(names.iter().copied(), PATIENCE).unwrap();
    let Heard::All(got) = porter.hear(asked, PATIENCE).unwrap() else { panic!("no answer") };
    assert_eq!(got.len(), MOST);
    for (n, (name, got)) in got.into_iter().enumerate() {
        assert_eq!(name, names[n]);
        if n == 5 || n == 9 {
            assert_eq!(got.err(), Some(ConnectError::Gone), "{n}");
            continue;
        }
        let got = got.unwrap();
        match got.what {
            What::Iface(_) => assert_eq!(n % 3, 0, "{n}"),
            What::Memory(at) => assert_eq!((n % 3 != 0, at.addr.get()), (true, n as u64), "{n}"),
        }
        let copy = SharedMem::from_fd(got.mem, 4096).unwrap();
        // SAFETY: a byte of the mapping, which nobody writes any more.
        assert_eq!(usize::from(unsafe { copy.as_ptr().read() }), n);
    }
    assert!(porter.ask([], PATIENCE).is_err());
}

/// The kernel may say of a packet and a hang-up behind it that there is nothing but the hang-up, to a call that does not
/// wait: once in thousands of answers, if the sides do not run at the same time.
#[test]
fn each_of_many_questions_is_answered() {
    let porter = Porter::at(Place::new("").unwrap()).unwrap();
    let export = porter.export(porter.new_name(), memory(1), What::Memory(At::default()));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10_000 {
                    assert_eq!(porter.fetch(export.name()).err(), None);
                }
            });
        }
    });
}

/// A process that does not answer is asked once, whoever wants to know how often; also if it does not even open.
#[test]
fn who_does_not_answer_is_not_waited_for() {
    let porter = Porter::at(Place::new("").unwrap()).unwrap();
    let (key, listener) = porter.place().bind().unwrap();
    let name = Name::new(key, 0);
    let start = Instant::now();
    let mut asked = porter.ask([name], PATIENCE).unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(1)].repeat(20) {
        let Heard::Nothing(again) = porter.hear(asked, wait).unwrap() else { panic!("nobody is there") };
        asked = again;
    }
    assert!(!asked.is_overdue() && start.elapsed() < PATIENCE);
    let callers = || rustix::net::accept_with(&listener, rustix::net::SocketFlags::NONBLOCK).ok();
    let caller = callers().unwrap();
    assert!(callers().is_none(), "asked once");
    // More than may wait there, and the question that is put when one of them is let in.
    let crowd: Vec<_> = std::iter::from_fn(|| ask::connect(porter.place(), key).unwrap()).collect();
    let Heard::Nothing(late) = porter.hear(porter.ask([name], PATIENCE).unwrap(), Duration::ZERO).unwrap()
    else {
        panic!("nobody is there")
    };
    crowd.iter().for_each(|_| drop(callers().unwrap()));
    let Heard::Nothing(late) = porter.hear(late, Duration::from_millis(1)).unwrap() else {
        panic!("nobody answers")
    };
    let last = callers().expect("who could not get in comes again");
    for caller in [caller, last] {
        let mut room = [0; ROOM];
        let (_, heard) = rustix::net::recv(&caller, &mut room, rustix::net::RecvFlags::DONTWAIT).unwrap();
        assert_eq!(Question::read(&room[..heard]).unwrap().0.as_slice(), [name]);
        let answer = Answer::of([Verdict::Nothing]);
        rustix::net::send(&caller, answer.as_bytes(), rustix::net::SendFlags::NOSIGNAL).unwrap();
    }
    for asked in [asked, late] {
        let Heard::All(all) = porter.hear(asked, PATIENCE).unwrap() else { panic!("it has answered") };
        assert!(matches!(&all[..], [(of, Err(ConnectError::Gone))] if *of == name));
    }
}

/// A process that lives and hangs up has nothing to give now, and is not dead.
#[test]
fn who_hangs_up_is_asked_again() {
    let porter = Porter::at(Place::new("").unwrap()).unwrap();
    let (key, listener) = porter.place().bind().unwrap();
    let name = Name::new(key, 0);
    let accept = || loop {
        match rustix::net::accept_with(&listener, rustix::net::SocketFlags::NONBLOCK) {
            Ok(caller) => return caller,
            Err(e) => assert_eq!(e, rustix::io::Errno::AGAIN),
        }
    };
    let mut asked = porter.ask([name], PATIENCE).unwrap();
    let mut room = [0; ROOM];
    for heard in [false, true, false, true] {
        let caller = accept();
        if heard {
            rustix::net::recv(&caller, &mut room, rustix::net::RecvFlags::empty()).unwrap();
        }
        drop(caller);
        let Heard::Nothing(again) = porter.hear(asked, Duration::from_millis(5)).unwrap() else {
            panic!("it has said nothing")
        };
        asked = again;
    }
    let caller = accept();
    rustix::net::recv(&caller, &mut room, rustix::net::RecvFlags::empty()).unwrap();
    let answer = Answer::of([Verdict::Later]);
    rustix::net::send(&caller, answer.as_bytes(), rustix::net::SendFlags::NOSIGNAL).unwrap();
    let Heard::All(all) = porter.hear(asked, PATIENCE).unwrap() else { panic!("it has answered") };
    assert!(matches!(&all[..], [(_, Err(ConnectError::Op(Error::NoDescriptor)))]));
    // Who has closed its door has gone.
    let asked = porter.ask([name], PATIENCE).unwrap();
    drop((accept(), listener));
    assert_eq!(porter.hear(asked, PATIENCE).err(), Some(ConnectError::Gone));
}

#[test]
fn a_porter_that_has_left_leaves_nothing() {
    let dir = Dir::new("left");
    let place = Place::new(&dir.0).unwrap();
    let porter = Porter::at(place.clone()).unwrap();
    assert!(Arc::ptr_eq(&porter, &Porter::at(place.clone()).unwrap()));
    let (key, name) = (porter.key(), porter.new_name());
    assert!(ask::is_alive(&place, key));
    assert_eq!(dir.names().len(), 1);
    drop(porter);
    assert!(!ask::is_alive(&place, key));
    assert_eq!(ask::connect(&place, name.owner()).err(), Some(ConnectError::Gone));
    assert!(dir.names().is_empty());
}

#[test]
fn sockets_of_the_dead_are_swept_out_and_others_are_left() {
    let dir = Dir::new("sweep");
    let place = Place::new(&dir.0).unwrap();
    let (key, socket) = place.bind().unwrap();
    drop(socket);
    assert_eq!(dir.names().len(), 1, "as after kill -9");
    std::fs::write(format!("{}/readme", dir.0), "mine").unwrap();
    std::fs::write(format!("{}/uct-posix.notakey", dir.0), "mine").unwrap();
    let (mine, theirs) =
        (place.file(dir.0.as_ref(), key), format!("{}/uct-posix.12345678.0123456789", dir.0));
    drop(std::os::unix::net::UnixListener::bind(&theirs).unwrap());
    // Young ones may be about to listen.
    drop(place.bind().unwrap());
    assert_eq!(dir.names().len(), 5);
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    for socket in [mine.as_path(), theirs.as_ref()] {
        rustix::fs::utimensat(
            rustix::fs::CWD,
            socket,
            &rustix::fs::Timestamps { last_access: timespec(old), last_modification: timespec(old) },
            rustix::fs::AtFlags::empty(),
        )
        .unwrap();
    }
    let porter = Porter::at(place).unwrap();
    assert!(!mine.exists());
    assert!(
        std::path::Path::new(&theirs).exists(),
        "of another host: whether it lives cannot be told from here"
    );
    assert_eq!(dir.names().len(), 5);
    drop(porter);
}

fn timespec(at: std::time::SystemTime) -> rustix::fs::Timespec {
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap();
    rustix::fs::Timespec { tv_sec: since.as_secs() as i64, tv_nsec: 0 }
}

#[test]
fn bad_questions_harm_nobody() {
    let porter = Porter::at(Place::new("").unwrap()).unwrap();
    let socket = || {
        use rustix::net::{AddressFamily, SocketFlags, SocketType};
        let flags = SocketFlags::CLOEXEC;
        let door = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&door, &porter.place().socket_of(porter.key()).unwrap()).unwrap();
        door
    };
    let send = |door: &OwnedFd, bytes: &[u8]| {
        rustix::net::send(door, bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
        let mut room = [0; ROOM];
        let (_, got) = rustix::net::recv(door, &mut room, rustix::net::RecvFlags::empty()).unwrap();
        Answer::read(&room[..got]).unwrap().unwrap()
    };
    let long = [7; 4000];
    for bytes in [&[1][..], &[0; 16], &long, Question::about(&[Name(3)], Stay::Yes).as_bytes()] {
        let door = socket();
        assert_eq!(send(&door, bytes), [Verdict::Nothing; MOST]);
        // And again on the same connection.
        assert_eq!(send(&door, bytes), [Verdict::Nothing; MOST]);
    }
    // Who does not stay is sent away with the answer.
    let door = socket();
    assert_eq!(send(&door, Question::about(&[Name(3)], Stay::No).as_bytes()), [Verdict::Nothing; MOST]);
    assert_eq!(rustix::net::recv(&door, &mut [0; 8], rustix::net::RecvFlags::empty()).unwrap().1, 0);
    // Callers that say nothing, or do not listen.
    let silent: Vec<_> = (0..20).map(|_| socket()).collect();
    for door in &silent {
        for _ in 0..5 {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            let _ = rustix::net::send(door, Question::about(&[Name(3)], Stay::Yes).as_bytes(), flags);
        }
    }
    let export = porter.export(porter.new_name(), memory(1), What::Memory(At::default()));
    assert!(porter.fetch(export.name()).is_ok());
}

#[test]
fn deaths_are_told_once_and_to_all() {
    let watches = watch::Watches::new().unwrap();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    // The pair is ours, so the process watched is this one; what strikes is the caller's affair.
    let ours = OwnedFd::from(ours);
    let sight = watches.look(ProcKey(9), &ours).unwrap();
    let death = watches.watch(ProcKey(9), sight, ours).unwrap();
    let wakes: Vec<_> = (0..3).map(|_| Arc::new(EventFd::new().unwrap())).collect();
    let alarms: Vec<_> = wakes.iter().map(|wake| Alarm::new(wake.clone())).collect();
    alarms[..2].iter().for_each(|alarm| death.tell(alarm));
    assert!(!watches.is_dead(ProcKey(9)) && !alarms[0].is_raised());
    watches.strike(ProcKey(9));
    watches.strike(ProcKey(10));
    assert!(watches.is_dead(ProcKey(9)) && death.look());
    death.tell(&alarms[2]);
    for (alarm, wake) in alarms.iter().zip(&wakes) {
        assert_eq!((alarm.is_raised(), alarm.take(), alarm.take(), wake.clear()), (true, true, false, Ok(1)));
    }
    drop(death);
    assert!(!watches.is_dead(ProcKey(9)), "forgotten with the last who cares");
}

#[test]
fn a_stranger_place_is_nobody_s() {
    let dir = Dir::new("stranger");
    let (net, there) =
        (Porter::at(Place::new("").unwrap()).unwrap(), Porter::at(Place::new(&dir.0).unwrap()).unwrap());
    let export = there.export(there.new_name(), memory(1), What::Memory(At::default()));
    assert_eq!(net.fetch(export.name()).err(), Some(ConnectError::Gone));
}
