//! A peer whose process calls `execve`. For the kernel it lives on; nothing of the worker is left.

use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::{bytes, context};
use crate::processes::{Killed, meet, start};
use ucp::{Ep, Error, ErrorMode, TAG_MASK_FULL, Worker};

/// Exchanges messages, then runs another program in the process. For the other side.
pub fn becomes_another(worker: &Worker, ep: &Ep) -> ! {
    let mut room = [0; 100];
    worker.tag_recv_blocking(5, TAG_MASK_FULL, &mut room).unwrap();
    ep.tag_send_blocking(6, &room).unwrap();
    ep.flush().wait().unwrap();
    panic!("{}", Command::new("sleep").arg("60").exec());
}

#[test]
fn a_peer_that_becomes_another_program_is_gone() {
    for tls in ["posix", "posix,cma", "efa"] {
        let worker = context(tls).worker().unwrap();
        let mut child = Killed(start("becomes-another", tls, &worker));
        let told = Rc::new(Cell::new(None));
        let seen = told.clone();
        let ep = meet(&worker, ErrorMode::Peer(Box::new(move |e| seen.set(Some(e)))));
        ep.tag_send_blocking(5, &bytes(5, 100)).unwrap();
        let mut room = [0; 100];
        worker.tag_recv_blocking(6, TAG_MASK_FULL, &mut room).unwrap();
        // Nothing is sent: keepalive notices.
        let begun = Instant::now();
        while told.get().is_none() {
            let gone = begun.elapsed();
            assert!(gone < Duration::from_secs(20), "{tls}: it is not noticed");
            assert!(child.0.try_wait().unwrap().is_none(), "{tls}: the process has ended");
            worker.progress();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(told.get(), Some(Error::PeerGone(ep.peer())), "{tls}");
        assert_eq!(ep.tag_send(6, "more").wait().0, Err(Error::PeerGone(ep.peer())), "{tls}");
    }
}
