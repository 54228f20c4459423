//! Conformance of transports: each capability that an interface claims works as `uct::api` says, and each
//! other one answers *unsupported*. `tests/conform/conform.rs` instantiates the cases for each transport.

pub mod am;
pub mod amo;
pub mod caps;
pub mod edges;
pub mod eps;
pub mod fairness;
pub mod flushes;
pub mod leave;
pub mod limits;
pub mod lists;
pub mod mem;
pub mod pack;
pub mod peer_failure;
pub mod poll_one;
pub mod resources;
pub mod rma;
pub mod shared_domain;
pub mod threads;
pub mod waiting;

use std::time::{Duration, Instant};
use uct::api::{Am, Comp, Ep, EpTag, Error, Iface, Imm, Outcome, Refused, Sent, Sink, SrcAddr, UserRecv};

/// Two connected interfaces, which may be the same one.
pub struct Pair<I: Iface> {
    /// One side.
    pub a: I,
    /// The other side.
    pub b: I,
    /// From `a` to `b`.
    pub ab: I::Ep,
    /// From `b` to `a`.
    pub ba: I::Ep,
    /// Both sides are one interface: everything arrives at `b`.
    pub same: bool,
    /// Called with every poll: advances the clock of a device with virtual time.
    pub tick: Box<dyn Fn()>,
}

/// Everything that an interface reported.
#[derive(Default)]
pub struct Log {
    /// Packets, id byte first, with their senders.
    pub ams: Vec<(Vec<u8>, SrcAddr)>,
    /// Completions by token.
    pub comps: Vec<(u64, Result<(), Error>)>,
    /// Immediates.
    pub imms: Vec<Imm>,
    /// Completed user receives, by token.
    pub user_recvs: Vec<(u64, UserRecv)>,
    /// Errors of endpoints.
    pub errors: Vec<(EpTag, Error)>,
}

impl Sink for Log {
    fn on_am(&mut self, am: Am<'_>) {
        self.ams.push((am.packet().to_vec(), am.source()));
    }
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        self.comps.push((token, result));
    }
    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.errors.push((ep, error));
    }
    fn on_imm(&mut self, imm: Imm) {
        self.imms.push(imm);
    }
    fn on_user_recv(&mut self, token: u64, bare: UserRecv) {
        self.user_recvs.push((token, bare));
    }
}

/// Polls before a test gives up. A poll of a software device does some of its work.
const MAX_POLLS: usize = 200_000;

/// Time that a test gives threads of the library's beyond those polls, on a loaded machine.
const MAX_TIME: Duration = Duration::from_secs(20);

/// Bounds a loop that polls.
pub struct PollLimit {
    polls: usize,
    start: Instant,
}

impl Default for PollLimit {
    fn default() -> Self {
        PollLimit { polls: 0, start: Instant::now() }
    }
}

impl PollLimit {
    /// Whether to poll once more.
    pub fn is_left(&mut self) -> bool {
        self.polls += 1;
        if self.polls < MAX_POLLS {
            return true;
        }
        std::thread::yield_now();
        self.start.elapsed() < MAX_TIME
    }
}

impl<I: Iface> Pair<I> {
    /// Connects two interfaces.
    pub fn new(a: I, b: I) -> Self {
        let ab = a.connect(&b.device_addr(), &b.iface_addr()).expect("a reaches b");
        let ba = b.connect(&a.device_addr(), &a.iface_addr()).expect("b reaches a");
        Pair::connected(a, b, ab, ba)
    }

    /// Connects an endpoint of each with one of the other ([`uct::api::Caps::CONNECT_TO_EP`]).
    pub fn by_ep(a: I, b: I) -> Self {
        let (ab, ba) = (a.create_ep().expect("an endpoint"), b.create_ep().expect("an endpoint"));
        let (to_b, to_a) = (ba.ep_addr().expect("its address"), ab.ep_addr().expect("its address"));
        ab.connect_to_ep(&b.device_addr(), &b.iface_addr(), &to_b).expect("a reaches b");
        ba.connect_to_ep(&a.device_addr(), &a.iface_addr(), &to_a).expect("b reaches a");
        Pair::connected(a, b, ab, ba)
    }

    fn connected(a: I, b: I, ab: I::Ep, ba: I::Ep) -> Self {
        assert_eq!((ab.ensure_connected(), ba.ensure_connected()), (Ok(()), Ok(())));
        let same = a.iface_addr() == b.iface_addr();
        Pair { a, b, ab, ba, same, tick: Box::new(|| {}) }
    }

    /// [`Pair::new`] over a device with virtual time.
    pub fn ticking(a: I, b: I, tick: impl Fn() + 'static) -> Self {
        Pair { tick: Box::new(tick), ..Pair::new(a, b) }
    }

    /// Polls both sides once; logs what belongs to `a`, on whichever side it is reported.
    pub fn poll_a(&self, at_a: &mut Log) {
        let mut at_b = Log::default();
        self.poll_both(at_a, &mut at_b);
        at_a.comps.append(&mut at_b.comps);
        at_a.errors.append(&mut at_b.errors);
    }

    /// Progresses both sides once.
    pub fn progress(&self) {
        (self.tick)();
        self.a.progress(8);
        self.b.progress(8);
    }

    /// Polls both sides once.
    pub fn poll_both(&self, at_a: &mut Log, at_b: &mut Log) -> usize {
        (self.tick)();
        let at_a = if self.same { 0 } else { self.a.poll(16, at_a) };
        at_a + self.b.poll(16, at_b)
    }

    /// Repeats a call of `a` until it finds resources; logs what arrives meanwhile.
    pub fn retry<T>(
        &self,
        at_a: &mut Log,
        at_b: &mut Log,
        mut call: impl FnMut() -> Outcome<T>,
    ) -> Result<T, Error> {
        let mut polls = PollLimit::default();
        while polls.is_left() {
            match call() {
                Ok(sent) => return Ok(sent),
                Err(Refused::Failed(e)) => return Err(e),
                Err(Refused::NoResource) => self.poll_both(at_a, at_b),
            };
        }
        panic!("no resource for ever");
    }

    /// Polls until `b` has `count` messages, and a little longer: none may follow.
    pub fn arrived(&self, at_b: &mut Log, count: usize) {
        let (mut at_a, mut polls) = (Log::default(), PollLimit::default());
        while polls.is_left() {
            if at_b.ams.len() + at_a.ams.len() >= count {
                break;
            }
            self.poll_both(&mut at_a, at_b);
        }
        for _ in 0..100 {
            self.poll_both(&mut at_a, at_b);
        }
        assert_eq!(at_b.ams.len() + at_a.ams.len(), count, "messages arrived");
        at_b.ams.append(&mut at_a.ams);
        assert!(at_a.errors.is_empty() && at_b.errors.is_empty(), "{:?} {:?}", at_a.errors, at_b.errors);
    }

    /// Runs an operation of `a`. Its completion fires exactly once if it answered *in progress*, else never.
    pub fn finish(&self, mut call: impl FnMut(Comp) -> Outcome) -> Result<(), Error> {
        const TOKEN: u64 = 0x70c3;
        let (mut at_a, mut at_b) = (Log::default(), Log::default());
        let sent = self.retry(&mut at_a, &mut at_b, || call(Comp::Token(TOKEN)));
        let expected = usize::from(sent == Ok(Sent::InProgress));
        let mut polls = PollLimit::default();
        while polls.is_left() {
            if at_a.comps.len() + at_b.comps.len() >= expected {
                break;
            }
            self.poll_both(&mut at_a, &mut at_b);
        }
        for _ in 0..50 {
            self.poll_both(&mut at_a, &mut at_b);
        }
        at_a.comps.append(&mut at_b.comps);
        assert_eq!(at_a.comps.len(), expected, "completions after {sent:?}: {:?}", at_a.comps);
        match (sent, at_a.comps.first()) {
            (Err(e), _) => Err(e),
            (Ok(_), None) => Ok(()),
            (Ok(_), Some(&(token, result))) => {
                assert_eq!(token, TOKEN);
                result
            }
        }
    }
}

/// Sizes worth trying up to a limit.
pub fn sizes(max: usize) -> Vec<usize> {
    let mut all = vec![
        0,
        1,
        7,
        8,
        9,
        31,
        32,
        33,
        47,
        48,
        64,
        100,
        111,
        112,
        1000,
        4096,
        max / 2,
        max.saturating_sub(1),
        max,
    ];
    all.retain(|&n| n <= max);
    all.sort_unstable();
    all.dedup();
    all
}

/// Bytes that identify a message and the offset in it.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    crate::pattern::Pattern::new(1, 2, seed).fill(&mut out);
    out
}

/// Whether a call answered *unsupported*.
pub fn is_unsupported<T: std::fmt::Debug>(outcome: Outcome<T>) -> bool {
    matches!(outcome, Err(Refused::Failed(Error::Unsupported(_))))
}

/// Instantiates all cases for a transport: `conform_suite!(name,
///
/// pair);`. A case whose capability is missing checks that.
#[macro_export]
macro_rules! conform_suite {
    ($tl:ident, $make:expr) => {
        mod $tl {
            #[allow(unused_imports, reason = "what the expression needs")]
            use super::*;
            $crate::conform_suite!(@cases $make;
                caps::attributes_are_consistent caps::missing_caps_answer_unsupported caps::malformed_addresses_are_rejected caps::unreachable_peer_is_an_error
                caps::ep_tags_are_kept caps::ep_to_ep_connect caps::is_connected_names_the_peer
                am::short_of_every_size am::short_iov_of_every_size am::bcopy_of_every_size am::am_packet_carries_its_id
                am::zcopy_of_every_size am::too_long_messages_are_rejected am::every_id am::order_is_kept
                am::is_quiet_misses_nothing
                am::source_names_the_sender am::kept_messages_are_unchanged am::kept_messages_move_between_threads am::handlers_are_called_and_removed
                am::delivery_within_send_is_opt_in
                resources::no_resource_leaves_no_trace resources::poll_is_bounded resources::pending_keeps_order resources::purge_returns_all_pending
                resources::flush_and_fence resources::event_fd_wakes_up
                eps::many_endpoints eps::pending_is_fair_among_endpoints eps::one_completion_for_many_operations
                eps::ep_cancel_returns_pending
                fairness::pending_is_not_overtaken fairness::pending_progresses_under_load
                pack::invalid_pack_length_is_rejected pack::pack_callback_may_send pack::memory_outlives_pack_callback
                poll_one::poll_one_and_poll_share_messages
                limits::oversized_puts_and_gets_are_rejected limits::oversized_headers_and_lists_are_rejected
                limits::get_sgl_is_checked_whole limits::flush_completes_implicit_operations
                mem::allocations_are_zeroed_and_writable mem::every_allocation_method mem::allocation_at_an_address
                mem::memory_is_filled_when_asked
                mem::registration_works mem::damaged_keys_are_rejected
                mem::revoked_memory_yields_no_access mem::dropped_registrations_give_no_access
                mem::keys_have_an_order
                rma::put_of_every_size rma::get_of_every_size rma::out_of_range_access_is_rejected rma::access_is_enforced
                rma::strides_and_scatter_lists rma::put_sgl_is_checked_whole rma::immediates_arrive_with_their_writes
                lists::messages_of_blocks lists::any_number_of_blocks lists::implicit_puts_are_visible_after_flush
                lists::word_keys_give_access lists::fence_orders_puts_to_one_word lists::user_qp_messages_land_in_posted_memory
                lists::counted_completion_reports_failure
                amo::every_operation_on_every_word amo::compare_and_swap amo::invalid_atomics_are_rejected
                amo::atomics_need_their_right amo::targets_need_not_progress amo::concurrent_atomics_happen_once
                edges::local_pieces_outside_registrations_are_rejected edges::registrations_may_overlap
                edges::invalid_registrations_are_rejected edges::inaccessible_memory_stays_so
                flushes::flushes_are_told_after_what_they_cover flushes::dropped_endpoint_completes_once
                waiting::operation_may_queue_elsewhere waiting::operation_may_purge_its_queue
                waiting::operation_may_drop_its_endpoint waiting::event_fd_wakes_up_for_completions
            );
        }
    };
    (@cases $make:expr; $($module:ident::$case:ident)+) => {
        $(#[test] fn $case() { $crate::conform::$module::$case(&($make)()); })+
    };
}

/// Whether an interface keeps order.
pub fn ordered<I: Iface>(iface: &I) -> bool {
    iface.attr().order == uct::api::OrderKind::Ordered
}

/// The tag of an endpoint.
pub fn tag_of<E: Ep>(ep: &E) -> EpTag {
    ep.tag()
}
