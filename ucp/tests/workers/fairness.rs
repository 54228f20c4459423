//! Fairness between the lanes of a worker: each is polled, however busy another is.

use crate::common::{context, spin};
use ucp::{EpParams, TAG_MASK_FULL, Worker};

/// Tags of the busy peer and of the rare one.
const OFTEN: u64 = 1;
const ONCE: u64 = 2;

/// Most polls of one lane in a row before another is polled (docs/ucp.md: 16), and that poll.
const LOOKS: u32 = 17;

#[test]
fn busy_lane_does_not_starve_others() {
    for (often, once) in [("posix", "efa"), ("efa", "posix"), ("posix", "self"), ("self", "posix")] {
        let a = context(&format!("{often},{once}")).worker().unwrap();
        let peer = |tls: &str| if tls == "self" { a.clone() } else { context(tls).worker().unwrap() };
        let (busy, other) = (peer(often), peer(once));
        let ep = |from: &Worker| from.connect(&a.address(), EpParams::default()).unwrap();
        let (often, once) = (ep(&busy), ep(&other));
        let until = |mut done: &dyn Fn() -> bool| spin(&[&a, &busy, &other], &mut done);
        // All handshakes are complete.
        for (ep, tag) in [(&often, OFTEN), (&once, ONCE)].into_iter().cycle().take(6) {
            let recv = a.tag_recv(tag, TAG_MASK_FULL, vec![0; 8]);
            ep.tag_send(tag, vec![7; 8]).detach();
            until(&|| recv.is_done());
        }
        (0..1000).for_each(|_| [&a, &busy, &other].into_iter().for_each(|worker| _ = worker.progress()));
        for round in 0..600 {
            let rare = a.tag_recv(ONCE, TAG_MASK_FULL, vec![0; 8]);
            once.tag_send(ONCE, vec![8; 8]).detach();
            // Processes the completions of earlier sends.
            other.progress();
            for look in 0.. {
                assert!(look < LOOKS, "{round}: a message from {other:?} was not looked at");
                let frequent = a.tag_recv(OFTEN, TAG_MASK_FULL, vec![0; 8]);
                often.tag_send(OFTEN, vec![9; 8]).detach();
                assert!(a.progress() > 0, "both lanes have something");
                if rare.is_done() {
                    until(&|| frequent.is_done());
                    break;
                }
            }
        }
    }
}
