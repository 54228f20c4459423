//! A forked child that progresses the worker it has inherited is refused by name, and the parent goes on.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use crate::common::{Pair, runs_in_own_process};
use ucp::TAG_MASK_FULL;

/// Progresses the parent's worker in a child. 0: it was refused at the first call, and by name.
fn progress_in_child(pair: &Pair) -> i32 {
    set_hook(Box::new(|_| ()));
    let refused = catch_unwind(AssertUnwindSafe(|| pair.b.progress()));
    let Err(why) = refused else { return 1 };
    let named = why.downcast_ref::<String>().is_some_and(|why| why.contains("forked"));
    i32::from(!named) * 2
}

#[test]
fn a_child_is_refused_and_the_parent_goes_on() {
    if runs_in_own_process("fork::a_child_is_refused_and_the_parent_goes_on") {
        return;
    }
    for tls in ["posix", "efa"] {
        let pair = Pair::on(tls);
        pair.meet();
        let sends: Vec<_> = (0..10).map(|n| pair.ab.tag_send(n, n.to_le_bytes().to_vec())).collect();
        // SAFETY: the child calls what is tested and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = progress_in_child(&pair);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 0, "{tls}: {status:#x}");
        for n in 0..10u64 {
            let recv = pair.b.tag_recv(n, TAG_MASK_FULL, vec![0; 8]);
            pair.until(|| recv.is_done());
            assert_eq!(recv.wait().1, n.to_le_bytes(), "{tls}");
        }
        pair.until(|| sends.iter().all(|send| send.is_done()));
    }
    drop(take_hook());
}
