//! Puts and gets on lists of pieces, each with a place of its own in memory of the peer, on every lane: with
//! memory that is mapped, and memory that only packets reach.

use std::cell::Cell;

use crate::common::{Pair, bytes};
use ucp::{
    Access, Callback, Error, Iov, Mem, OpStatus, RecvStatus, RequestId, Rkey, RmaParams, RmaPiece,
    get_list_raw, put_list_raw,
};

/// Room of each piece.
const SPAN: usize = 30_000;
const PIECES: usize = 60;
const LENGTHS: [usize; 7] = [1, 8, 0, 100, 4000, 9001, SPAN];

/// Two memories of the peer, and keys for them.
struct Target {
    pair: Pair,
    mems: [Mem; 2],
    rkeys: [Rkey; 2],
    _own: Box<[u8]>,
}

impl Target {
    /// The first memory is allocated, the second the program's; with `by_packets` both have packet keys only.
    fn on(tls: &str, by_packets: bool) -> Target {
        let pair = Pair::on(tls);
        let mut own = vec![0; PIECES * SPAN].into_boxed_slice();
        // SAFETY: the box is kept beside the registration and not used.
        let lent = unsafe { pair.b.mem_map(own.as_mut_ptr(), own.len(), Access::all()) }.unwrap();
        let mems = [pair.b.mem_alloc(PIECES * SPAN, Access::all()).unwrap(), lent];
        let rkeys = std::array::from_fn(|n| match by_packets {
            true => Rkey::from_key(mems[n].key()),
            false => pair.ab.unpack_rkey(&mems[n].pack_rkey()).unwrap(),
        });
        Target { pair, mems, rkeys, _own: own }
    }

    /// Pieces of `local` in reverse order, in memories that take turns.
    fn pieces<'a>(&'a self, local: &mut [u8], count: usize) -> Vec<RmaPiece<'a>> {
        let of = |(n, room): (usize, &mut [u8])| RmaPiece {
            local: Iov { addr: room.as_mut_ptr(), len: LENGTHS[n % 7] },
            remote: self.mems[n % 2].addr() + ((PIECES - 1 - n) * SPAN) as u64,
            rkey: &self.rkeys[n % 2],
            mem: None,
        };
        local.chunks_mut(SPAN).take(count).enumerate().map(of).collect()
    }

    /// Bytes of the place of piece `n`.
    fn place(&self, n: usize) -> Vec<u8> {
        let mut got = vec![0; SPAN];
        self.mems[n % 2].read((PIECES - 1 - n) * SPAN, &mut got);
        got
    }

    fn end<T>(&self, started: Result<OpStatus<T>, Error>) -> Result<Option<RecvStatus>, Error> {
        match started? {
            OpStatus::Done(_) => Ok(None),
            OpStatus::InProgress(id) => {
                let mut ended = None;
                self.pair.until(|| {
                    ended = self.pair.a.test(id);
                    ended.is_some()
                });
                ended.unwrap().map(Some)
            }
        }
    }

    fn flush(&self) {
        let flush = self.pair.ab.flush();
        self.pair.until(|| flush.is_done());
        flush.wait().unwrap();
    }
}

fn targets() -> Vec<Target> {
    let mut all: Vec<_> =
        ["posix", "posix,cma", "efa", "self"].into_iter().map(|tls| Target::on(tls, false)).collect();
    all.extend(["posix", "efa"].map(|tls| Target::on(tls, true)));
    all
}

#[test]
fn each_piece_comes_to_its_place() {
    for target in targets() {
        for count in [0, 1, 2, 5, PIECES] {
            let mut sent = bytes(count as u64, PIECES * SPAN);
            let pieces = target.pieces(&mut sent, count);
            // SAFETY: `sent` is unchanged until the flush is complete.
            let put = unsafe { put_list_raw(&target.pair.ab, pieces.iter().copied(), &RmaParams::default()) };
            target.end(put).unwrap();
            target.flush();
            for n in 0..count {
                let (len, place) = (LENGTHS[n % 7], target.place(n));
                assert!(place[..len] == sent[n * SPAN..][..len], "piece {n} of {count}");
                assert!(place[len..].iter().all(|byte| *byte == 0), "piece {n} of {count}");
            }
            let mut got = vec![0; PIECES * SPAN];
            let pieces = target.pieces(&mut got, count);
            // SAFETY: `got` is not read before the operation is complete.
            let get = unsafe { get_list_raw(&target.pair.ab, pieces.iter().copied(), &RmaParams::default()) };
            let total: usize = pieces.iter().map(|piece| piece.local.len).sum();
            assert!(target.end(get).unwrap().is_none_or(|status| status.len == total));
            for (n, (got, sent)) in got.chunks(SPAN).zip(sent.chunks(SPAN)).take(count).enumerate() {
                let len = LENGTHS[n % 7];
                assert!(got[..len] == sent[..len] && got[len..].iter().all(|byte| *byte == 0), "piece {n}");
            }
        }
    }
}

#[test]
fn one_call_tells_of_all_pieces() {
    unsafe fn count(arg: *mut (), _: RequestId, ended: Result<RecvStatus, Error>) {
        // SAFETY: the test's counter, which lives until all operations have ended.
        let calls = unsafe { &*arg.cast::<Cell<usize>>() };
        ended.unwrap();
        calls.set(calls.get() + 1);
    }
    for target in targets() {
        let calls = Cell::new(0_usize);
        let done = Some(Callback::new(count, (&raw const calls).cast_mut().cast()));
        let params = RmaParams { done, ..RmaParams::default() };
        let mut sent = bytes(3, PIECES * SPAN);
        let pieces = target.pieces(&mut sent, PIECES);
        // SAFETY: `sent` is unchanged until the operation is complete.
        let started = unsafe { put_list_raw(&target.pair.ab, pieces.iter().copied(), &params) }.unwrap();
        let in_progress = matches!(started, OpStatus::InProgress(_));
        target.end(Ok(started)).unwrap();
        target.flush();
        assert_eq!(calls.get(), usize::from(in_progress));
    }
}

/// As of a single put: what the peer refuses is told by the request or by the flush, and by the flush if
/// nobody has the request.
#[test]
fn a_piece_that_the_peer_refuses_is_told() {
    for tls in ["posix", "efa"] {
        let target = Target::on(tls, true);
        let mut sent = bytes(3, PIECES * SPAN);
        let mut pieces = target.pieces(&mut sent, PIECES);
        pieces[5].remote += (2 * PIECES * SPAN) as u64;
        for is_freed in [false, true] {
            // SAFETY: `sent` is unchanged until the flush is complete.
            let put = unsafe { put_list_raw(&target.pair.ab, pieces.iter().copied(), &RmaParams::default()) };
            let OpStatus::InProgress(id) = put.unwrap() else { panic!("packets take time") };
            let mut is_told = false;
            match is_freed {
                true => target.pair.a.free(id),
                false => is_told = target.end(Ok(OpStatus::<()>::InProgress(id))).is_err(),
            }
            let flush = target.pair.ab.flush();
            target.pair.until(|| flush.is_done());
            let told = flush.wait();
            assert!(is_told || matches!(told, Err(Error::RemoteAccess(_))), "{tls}, {is_freed}: {told:?}");
        }
    }
}

#[test]
fn a_scope_takes_lists_of_slices() {
    for target in [Target::on("posix", false), Target::on("efa", false)] {
        let sent = bytes(9, 300);
        let at = |n: usize| target.mems[0].addr() + 1000 * n as u64;
        let mut got = vec![0; 300];
        target.pair.a.scope(|scope| {
            let pieces = sent.chunks(100).enumerate().map(|(n, part)| (part, at(n), &target.rkeys[0]));
            let put = scope.put_list(&target.pair.ab, pieces);
            target.pair.until(|| put.is_done());
            put.wait().unwrap();
        });
        target.flush();
        target.pair.a.scope(|scope| {
            let pieces = got.chunks_mut(100).enumerate().map(|(n, part)| (part, at(n), &target.rkeys[0]));
            let get = scope.get_list(&target.pair.ab, pieces);
            target.pair.until(|| get.is_done());
            assert_eq!(get.wait().unwrap().len, 300);
        });
        assert_eq!(got, sent);
    }
}

/// The last piece is wrong: nothing of the others is written.
#[test]
fn a_wrong_piece_refuses_the_list() {
    // A packet key tells nothing of its memory: the peer refuses the piece.
    for target in ["posix", "posix,cma", "efa", "self"].map(|tls| Target::on(tls, false)) {
        let mut sent = bytes(5, PIECES * SPAN);
        let own = target.pair.a.mem_alloc(8, Access::all()).unwrap();
        let pieces = target.pieces(&mut sent, PIECES);
        type Change<'a> = &'a dyn Fn(&mut RmaPiece<'_>);
        let outside: Change = &|piece| piece.remote += (PIECES * SPAN) as u64;
        for (change, expected) in [(outside, "access"), (&|_| {}, "memory"), (&|_| {}, "data")] {
            let mut pieces = pieces.clone();
            let last = pieces.last_mut().unwrap();
            assert!(last.local.len > 0);
            change(last);
            last.mem = (expected == "memory").then_some(&own);
            let cq_data = (expected == "data").then_some(1);
            let params = RmaParams { cq_data, ..RmaParams::default() };
            // SAFETY: nothing is started.
            let put = unsafe { put_list_raw(&target.pair.ab, pieces.iter().copied(), &params) };
            let error = put.expect_err(expected);
            assert!(match expected {
                "access" => matches!(error, Error::RemoteAccess(_)),
                "memory" => matches!(error, Error::OutsideMem { .. }),
                _ => error == Error::Invalid,
            });
            if expected != "data" {
                // SAFETY: nothing is started.
                let get = unsafe { get_list_raw(&target.pair.ab, pieces.iter().copied(), &params) };
                assert_eq!(get.expect_err(expected), error);
            }
        }
        target.flush();
        assert!((0..PIECES).all(|n| target.place(n).iter().all(|byte| *byte == 0)));
    }
}

/// A peer without progress keeps packets of a list from going out: a cancel ends the pieces that wait, and
/// the request once the others have ended. Of a peer that is not known yet, all pieces wait.
#[test]
fn a_list_that_waits_is_cancelled() {
    for (tls, is_put, has_met) in ["posix", "efa"]
        .into_iter()
        .flat_map(|tls| [(tls, true, false), (tls, false, false), (tls, true, true)])
    {
        let target = Target::on(tls, true);
        if has_met {
            target.pair.meet();
        }
        let worker = &target.pair.a;
        let mut room = bytes(3, PIECES * SPAN);
        let pieces = target.pieces(&mut room, PIECES);
        // More than the way to a peer has room for.
        let list = pieces.iter().copied().cycle().take(100 * PIECES);
        let (ep, params) = (&target.pair.ab, RmaParams::default());
        let started = match is_put {
            // SAFETY: the room is not used while an operation runs.
            true => unsafe { put_list_raw(ep, list, &params) }.map(request),
            // SAFETY: as above.
            false => unsafe { get_list_raw(ep, list, &params) }.map(request),
        };
        let id = started.unwrap().expect("packets take time");
        assert!(worker.cancel(id), "{tls}, put: {is_put}, has met: {has_met}");
        assert!(!worker.cancel(id), "nothing is left to cancel");
        let ended = target.end(Ok(OpStatus::<()>::InProgress(id)));
        assert_eq!(ended, Err(Error::Cancelled), "{tls}, put: {is_put}, has met: {has_met}");
        assert!(!worker.cancel(id) && !worker.knows(id));
        target.flush();
        // Nothing is left in the way of another one.
        // SAFETY: the room is unchanged until the flush is complete.
        let put = unsafe { put_list_raw(&target.pair.ab, pieces.iter().copied(), &RmaParams::default()) };
        target.end(put).unwrap();
        target.flush();
        let sent = |n: usize| &room[n * SPAN..][..LENGTHS[n % 7]];
        assert!((0..PIECES).all(|n| target.place(n)[..LENGTHS[n % 7]] == *sent(n)));
    }
}

fn request<T>(started: OpStatus<T>) -> Option<RequestId> {
    if let OpStatus::InProgress(id) = started { Some(id) } else { None }
}
