//! Memory of operations that run when their worker is dropped.

use ucp::{Access, Iov, OpStatus, Rkey, RmaParams, RmaPiece, put_list_raw};

use crate::common::Pair;

const PIECES: usize = 40;
const SPAN: usize = 20_000;

/// Drops a worker while `lists` puts of lists run, which a peer without progress keeps from ending.
fn drop_with_running(lists: usize) {
    let pair = Pair::on("posix");
    let mem = pair.b.mem_alloc(PIECES * SPAN, Access::all()).unwrap();
    let rkey = Rkey::from_key(mem.key());
    let data = vec![7; PIECES * SPAN];
    for _ in 0..lists {
        let pieces = data.chunks(SPAN).enumerate().map(|(n, part)| RmaPiece {
            local: Iov { addr: part.as_ptr().cast_mut(), len: SPAN },
            remote: mem.addr() + (n * SPAN) as u64,
            rkey: &rkey,
            mem: None,
        });
        // SAFETY: the data outlives the worker.
        let put = unsafe { put_list_raw(&pair.ab, pieces, &RmaParams::default()) };
        assert!(matches!(put, Ok(OpStatus::InProgress(_))), "{put:?}");
    }
    drop(pair);
}

/// Bytes that stay when a worker has been dropped so.
fn growth(lists: usize) -> usize {
    // What the process keeps for later workers.
    drop_with_running(lists);
    let before = crate::counting::bytes();
    drop_with_running(lists);
    crate::counting::bytes() - before
}

#[test]
fn a_dropped_worker_frees_lists_that_run() {
    // A worker without lists leaves some bytes as well.
    assert_eq!(growth(2), growth(0));
}
