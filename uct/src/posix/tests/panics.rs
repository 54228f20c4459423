//! Handlers that panic: the program catches the panic, and goes on with the interface.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const CELLS: usize = 64;

/// As many messages as there are cells end with a panic, so also those behind which cells are released.
fn goes_on_after_panics(poll: impl Fn(&Iface) -> usize) {
    let iface = open(&Source::empty().with("UCX_POSIX_FIFO_SIZE", "64"));
    let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
    assert_eq!(ep.ensure_connected(), Ok(()));
    let accepts = Rc::new(RefCell::new(false));
    let accepted = accepts.clone();
    let handler = move |_: crate::api::Am<'_>| assert!(*accepted.borrow(), "expected by the test");
    iface.set_am_handler(5, Some(Box::new(handler)));
    let send = || assert_eq!(ep.am_bcopy(5, |slot| fill(slot, 5, 16)), Ok(16));
    for _ in 0..CELLS {
        send();
        assert!(catch_unwind(AssertUnwindSafe(|| poll(&iface))).is_err());
    }
    *accepts.borrow_mut() = true;
    send();
    assert_eq!(iface.progress(1), 1);
    (0..10_000).for_each(|_| assert_eq!(iface.progress(1), 0));
    send();
    assert_eq!(iface.progress(1), 1);
}

#[test]
fn an_interface_goes_on_after_handlers_that_panic() {
    goes_on_after_panics(|iface| iface.progress(1));
}

#[test]
fn an_interface_goes_on_after_callbacks_of_one_poll_that_panic() {
    goes_on_after_panics(|iface| {
        while iface.poll_one(|_: &[u8], _: crate::api::SrcAddr| panic!("expected by the test"))
            == PollOne::NeedsPoll
        {
            assert_eq!(iface.progress(0), 0);
        }
        0
    });
}
