//! Memory of operations that run when their worker is dropped.

use ucp::{
    Access, AmProto, Counter, GroupMaker, Iov, OpStatus, Rkey, RmaParams, RmaPiece, get_list_raw,
    put_list_raw,
};

use crate::common::Pair;

const PIECES: usize = 40;
const SPAN: usize = 20_000;

/// Memory of a peer, and ours.
struct Memory {
    data: Vec<u8>,
    at: u64,
    rkey: Rkey,
}

impl Memory {
    fn pieces(&self) -> impl Iterator<Item = RmaPiece<'_>> + Clone {
        self.data.chunks(SPAN).enumerate().map(|(n, part)| RmaPiece {
            local: Iov { addr: part.as_ptr().cast_mut(), len: SPAN },
            remote: self.at + (n * SPAN) as u64,
            rkey: &self.rkey,
            mem: None,
        })
    }
}

/// Drops a worker while operations run that `start` has begun `times` times. A peer without progress keeps
/// them from ending.
fn drop_with_running(start: impl Fn(&Pair, &Memory), times: usize) {
    let pair = Pair::on("posix");
    let mem = pair.b.mem_alloc(PIECES * SPAN, Access::all()).unwrap();
    let data = vec![7; PIECES * SPAN];
    let memory = Memory { data, at: mem.addr(), rkey: Rkey::from_key(mem.key()) };
    for _ in 0..times {
        start(&pair, &memory);
    }
    drop(pair);
}

/// Bytes that stay as a rule when a worker has been dropped so. Now and then another thread frees some, or
/// leaves them to this one.
fn growth(start: impl Fn(&Pair, &Memory), times: usize) -> isize {
    // What the process keeps for later workers.
    drop_with_running(&start, times);
    let once = || {
        let before = crate::counting::bytes();
        drop_with_running(&start, times);
        crate::counting::bytes().wrapping_sub(before) as isize
    };
    let mut grown: Vec<isize> = (0..9).map(|_| once()).collect();
    grown.sort();
    grown[4]
}

/// A worker without operations leaves some bytes as well, more or less by what other threads free.
fn is_freed(what: &str, start: impl Fn(&Pair, &Memory)) {
    const TIMES: isize = 16;
    let each = (growth(&start, TIMES as usize) - growth(&start, 0)) / TIMES;
    assert!(each < 32, "{what}: an operation leaves {each} bytes");
}

fn runs<T>(started: Result<OpStatus<T>, ucp::Error>) {
    assert!(matches!(started, Ok(OpStatus::InProgress(_))));
}

/// One test, since workers of the process share memory for requests.
#[test]
fn a_dropped_worker_frees_what_runs() {
    // SAFETY: the memory outlives the worker.
    let put =
        |pair: &Pair, of: &Memory| unsafe { put_list_raw(&pair.ab, of.pieces(), &RmaParams::default()) };
    // SAFETY: as above; nobody reads it.
    let get =
        |pair: &Pair, of: &Memory| unsafe { get_list_raw(&pair.ab, of.pieces(), &RmaParams::default()) };
    is_freed("put of a list", |pair, of| runs(put(pair, of)));
    is_freed("get of a list", |pair, of| runs(get(pair, of)));
    let buf = || vec![3; PIECES * SPAN];
    is_freed("send", |pair, _| pair.ab.tag_send(1, buf()).detach());
    is_freed("send with a callback", |pair, _| pair.ab.tag_send(1, buf()).then(|_, _| ()));
    is_freed("receive", |pair, _| pair.a.tag_recv(1, 0, buf()).detach());
    is_freed("receive of a stream", |pair, _| pair.ab.stream_recv(buf()).detach());
    for proto in [AmProto::Eager, AmProto::Rendezvous] {
        is_freed("active message", |pair, _| pair.ab.am_send_with(proto, 1, b"header", buf()).detach());
    }
    is_freed("operations of a counter", |pair, of| {
        let counter = Counter::new(&pair.a);
        (0..3).for_each(|_| counter.track(put(pair, of)).unwrap());
        assert_eq!(counter.running(), 3);
    });
    is_freed("operation of a group", |pair, _| {
        let maker = GroupMaker::new(&pair.a, 1);
        let group = maker.group(&[pair.a.address(), pair.b.address()]).unwrap();
        group.all_gather(vec![0; SPAN]).detach();
    });
}
