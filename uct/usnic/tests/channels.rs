//! Mechanisms of the module step by step: what the two channels carry, when an acknowledgement is due, what
//! the counters tell.

use usnic::{ChannelConfig, ChannelId, CloseReason, Config, EpId, Head, Module, Posted, Sink, Source};

const MS: u64 = 1_000_000;
const ONLY_PRIORITY: [bool; 2] = [true, false];
const ONLY_DATA: [bool; 2] = [false, true];

#[derive(Default)]
struct Nothing;

impl Sink for Nothing {
    fn on_accept(&mut self, _: EpId, _: u64) {}
    fn on_dead(&mut self, _: EpId, _: u64, why: CloseReason) {
        panic!("{why:?}");
    }
    fn on_frag(&mut self, _: EpId, _: &Head, _: &[u8]) {}
    fn on_first_chunk(&mut self, _: EpId, _: &Head, _: u32) -> Option<u64> {
        None
    }
    fn on_chunk(&mut self, _: u64, _: u32, _: &[u8]) {}
    fn on_last_chunk(&mut self, _: EpId, _: u64, _: &Head, _: bool) {}
}

struct Zeros;

impl Source for Zeros {
    fn fetch(&mut self, _: u64, _: u32, to: &mut [u8]) -> bool {
        to.fill(0);
        true
    }
    fn on_copied(&mut self, _: u64) {}
}

/// Module 0 with connections to all others.
struct Star {
    now: u64,
    all: Vec<Module>,
    eps: Vec<EpId>,
}

impl Star {
    fn new(peers: u64, change: impl Fn(Config) -> Config) -> Star {
        let config = |node| change(Config { node, max_peers: 8, ..Config::default() });
        let mut all: Vec<Module> = (0..=peers).map(|node| Module::new(config(node), 0)).collect();
        let eps = (1..=peers).map(|node| all[0].connect(0, node).unwrap()).collect();
        let mut star = Star { now: 0, all, eps };
        (0..50).for_each(|_| star.turn(MS, &[]));
        assert!(star.eps.iter().all(|ep| star.all[0].is_open(*ep) && star.all[0].is_idle(*ep)));
        star
    }

    /// Lets time pass. Nothing is sent by those who are `mute`.
    fn turn(&mut self, ns: u64, mute: &[usize]) {
        self.now += ns;
        for from in (0..self.all.len()).filter(|from| !mute.contains(from)) {
            self.all[from].on_time(self.now, &mut Nothing);
            while let Some(posted) = self.all[from].poll_send(self.now, &mut Zeros) {
                self.carry(from, &posted);
            }
        }
    }

    /// Carries a datagram to where it goes.
    fn carry(&mut self, from: usize, posted: &Posted) {
        let to = match from {
            0 => self.eps.iter().position(|ep| Some(*ep) == posted.ep).unwrap() + 1,
            _ => 0,
        };
        let bytes = self.all[from].bytes(posted).to_vec();
        self.all[from].completed(posted);
        assert!(self.all[to].on_datagram(self.now, &bytes, &mut Nothing).is_none());
    }

    fn large(&mut self, peer: usize) {
        let ep = self.eps[peer];
        self.all[0].send_large(self.now, ep, &[0; 32], 1 << 20, 7).unwrap();
    }

    /// Lets peer `n` send something, which module 0 is to acknowledge now.
    fn owe_ack(&mut self, n: usize) {
        let ep = self.all[n].find(0).unwrap();
        let sent = self.all[n].send(self.now, ep, &[0; 32], [b"x", &[]]).unwrap().unwrap();
        self.carry(n, &sent);
        self.now += MS;
        self.all[0].on_time(self.now, &mut Nothing);
    }

    fn poll(&mut self, open: [bool; 2]) -> Option<(Posted, u8)> {
        let posted = self.all[0].poll_send_on(self.now, open, &mut Zeros)?;
        self.all[0].check().unwrap();
        let kind = self.all[0].bytes(&posted)[1];
        Some((posted, kind))
    }
}

const FRAG: u8 = 1;
const CHUNK: u8 = 2;
const ACK: u8 = 3;

/// The data channel takes nothing: acknowledgements, control and tiny fragments go, of all peers, also where
/// another peer is first in the queue, and only what the data channel carries waits.
#[test]
fn acks_and_tiny_fragments_do_not_wait_for_the_data_channel() {
    for by_depth in [false, true] {
        let depth = if by_depth { 8 } else { 2048 };
        let data = ChannelConfig { depth, ..Config::default().data };
        let mut star = Star::new(3, |config| Config { data, quantum: 4, ..config });
        star.large(0);
        let mut held = Vec::new();
        let open = match by_depth {
            // Sends of the data channel that do not complete.
            true => {
                held.extend((0..8).map(|_| star.poll([true; 2]).unwrap().0));
                [true; 2]
            }
            false => ONLY_PRIORITY,
        };
        assert!(held.iter().all(|posted| posted.channel == ChannelId::Data));
        star.large(1);
        star.owe_ack(3);
        // Fragments behind another one are queued.
        for peer in [0, 1] {
            let (now, ep) = (star.now, star.eps[peer]);
            assert_eq!(star.all[0].send(now, ep, &[0; 32], [b"tiny", &[]]), Ok(None));
        }
        let sent: Vec<_> = std::iter::from_fn(|| star.poll(open)).collect();
        assert!(sent.iter().all(|(posted, _)| posted.channel == ChannelId::Priority));
        let kinds: Vec<(usize, u8)> = sent
            .iter()
            .map(|(posted, kind)| (star.eps.iter().position(|ep| Some(*ep) == posted.ep).unwrap(), *kind))
            .collect();
        assert_eq!(kinds, [(0, FRAG), (1, FRAG), (2, ACK)], "{by_depth}");
        sent.iter()
            .chain(held.iter().map(|posted| (*posted, 0)).collect::<Vec<_>>().iter())
            .for_each(|(posted, _)| star.carry(0, posted));
        (0..3000).for_each(|_| star.turn(MS, &[]));
        assert!(star.eps.iter().all(|ep| star.all[0].is_idle(*ep)), "{:?}", star.all[0].stats());
        star.all[0].check().unwrap();
    }
}

/// A request to connect of full length, which takes the data channel, keeps no other control waiting.
#[test]
fn control_does_not_wait_for_the_data_channel() {
    let mut star = Star::new(1, |config| config);
    let stranger = star.all[0].connect(star.now, 77).unwrap();
    star.owe_ack(1);
    star.now += 20 * MS;
    star.all[0].on_time(star.now, &mut Nothing);
    let sent: Vec<_> = std::iter::from_fn(|| star.poll(ONLY_PRIORITY)).collect();
    let to: Vec<_> = sent.iter().map(|(posted, _)| (posted.ep, posted.is_ping)).collect();
    assert_eq!(
        to,
        [(Some(stranger), false), (Some(star.eps[0]), false)],
        "a short request, an acknowledgement"
    );
    let (ping, _) = star.poll([true; 2]).unwrap();
    assert!(ping.is_ping && ping.ep == Some(stranger) && ping.channel == ChannelId::Data);
}

/// A priority channel that takes nothing keeps no data waiting. Tiny fragments wait for it, unless all of its
/// entries are in use: then they take the data channel.
#[test]
fn data_does_not_wait_for_the_priority_channel() {
    let priority = ChannelConfig { depth: 4, ..Config::default().priority };
    let mut star = Star::new(2, |config| Config { priority, ..config });
    // So that the next one is queued.
    star.large(0);
    let (now, ep) = (star.now, star.eps[0]);
    assert_eq!(star.all[0].send(now, ep, &[0; 32], [b"tiny", &[]]), Ok(None));
    star.large(1);
    let sent: Vec<_> = (0..40).map(|_| star.poll(ONLY_DATA).unwrap()).collect();
    assert!(sent.iter().all(|(posted, kind)| (posted.channel, *kind) == (ChannelId::Data, CHUNK)));
    let of_second = sent.iter().filter(|(posted, _)| posted.ep == Some(star.eps[1])).count();
    assert!((1..40).contains(&of_second), "{of_second}");
    let (tiny, kind) = star.poll([true; 2]).unwrap();
    assert_eq!((tiny.channel, kind), (ChannelId::Priority, FRAG));
}

/// Replies that wait for a peer are counted, and leave the count when they are sent or the peer is gone.
#[test]
fn replies_that_wait_are_counted() {
    let mut star = Star::new(1, |config| Config { window: 64, ..config });
    let ep = star.eps[0];
    let mut sent = 0;
    for n in 0..200u64 {
        let len = [10, 1000][n as usize % 2];
        let now = star.now;
        let posted = star.all[0].send_reply(now, ep, &[0; 32], [&vec![1; len], &[]]).unwrap();
        sent += u32::from(posted.is_some());
        posted.iter().for_each(|posted| star.all[0].completed(posted));
        star.all[0]
            .send(now, ep, &[0; 32], [b"no reply", &[]])
            .unwrap()
            .iter()
            .for_each(|posted| star.all[0].completed(posted));
    }
    assert_eq!(star.all[0].replies(ep), 200 - sent);
    (0..20_000).for_each(|_| star.turn(MS, &[]));
    assert_eq!((star.all[0].replies(ep), star.all[0].is_idle(ep)), (0, true), "{:?}", star.all[0].stats());
}

/// *"schedule ack of largest in-order sequence received if not already scheduled. dflt time is 50us"*
/// (Reliability). The timer wheel has ticks of 8.2 us.
#[test]
fn an_acknowledgement_is_due_after_50_us_unless_a_send_takes_it_along() {
    let mut star = Star::new(1, |config| config);
    let ep = star.eps[0];
    for goes_along in [false, true] {
        let before = *star.all[0].stats();
        let to_star = star.all[1].find(0).unwrap();
        let sent = star.all[1].send(star.now, to_star, &[0; 32], [b"x", &[]]).unwrap().unwrap();
        star.carry(1, &sent);
        let arrival = star.now;
        star.now = arrival + 49_000;
        star.all[0].on_time(star.now, &mut Nothing);
        assert_eq!(star.poll([true; 2]), None, "too early");
        assert!(
            star.all[0].next_due().is_some_and(|due| (arrival + 50_000..arrival + 60_000).contains(&due))
        );
        if goes_along {
            let posted = star.all[0].send(star.now, ep, &[0; 32], [b"y", &[]]).unwrap().unwrap();
            star.carry(0, &posted);
        }
        star.now = arrival + 60_000;
        star.all[0].on_time(star.now, &mut Nothing);
        let ack = star.poll([true; 2]);
        let wanted = if goes_along { None } else { Some((ChannelId::Priority, ACK)) };
        assert_eq!(ack.map(|(posted, kind)| (posted.channel, kind)), wanted);
        ack.iter().for_each(|(posted, _)| star.carry(0, posted));
        let after = star.all[0].stats();
        assert_eq!(after.acks_delayed - before.acks_delayed, u64::from(!goes_along));
        assert_eq!(after.acks_piggybacked - before.acks_piggybacked, u64::from(goes_along));
        (0..5).for_each(|_| star.turn(MS, &[]));
    }
}

/// *"always using the data channel"* (Sending): also for a tiny fragment, which took the other one before.
#[test]
fn what_is_sent_again_takes_the_data_channel() {
    let mut star = Star::new(1, |config| config);
    let (now, ep) = (star.now, star.eps[0]);
    let lost = star.all[0].send(now, ep, &[0; 32], [b"tiny", &[]]).unwrap().unwrap();
    assert_eq!(lost.channel, ChannelId::Priority);
    star.all[0].completed(&lost);
    let again = (0..1000).find_map(|_| {
        star.now += MS;
        star.all[0].on_time(star.now, &mut Nothing);
        let (posted, kind) = star.poll([true; 2])?;
        star.carry(0, &posted);
        (kind == FRAG).then_some(posted.channel)
    });
    assert_eq!((again, star.all[0].stats().resent_by_timer), (Some(ChannelId::Data), 1));
    (0..50).for_each(|_| star.turn(MS, &[]));
    assert!(star.all[0].is_idle(ep));
}

/// An endpoint leaves the queue once for each time that its window, its credits or the congestion window is
/// full.
#[test]
fn stalls_are_counted_by_their_cause() {
    let stalls = |change: &dyn Fn(Config) -> Config| {
        let mut star = Star::new(1, change);
        star.large(0);
        while let Some((posted, _)) = star.poll([true; 2]) {
            // Without credits a send is not completed.
            if star.all[0].config().credits > 100 {
                star.all[0].completed(&posted);
            }
        }
        let stats = star.all[0].stats();
        [stats.window_stalls, stats.credit_stalls, stats.congestion_stalls]
    };
    let wide = |config| Config { initial_window: 1000, ..config };
    assert_eq!(stalls(&|config| Config { window: 64, ..wide(config) }), [1, 0, 0]);
    assert_eq!(stalls(&|config| Config { credits: 20, ..wide(config) }), [0, 1, 0]);
    assert_eq!(stalls(&|config| Config { initial_window: 4, ..config }), [0, 0, 1]);
}

/// Each round trip counts in the bucket of its power of two.
#[test]
fn round_trips_are_counted_by_their_length() {
    let mut star = Star::new(1, |config| config);
    let ep = star.eps[0];
    let before = star.all[0].stats().rtt;
    for (n, rtt) in [(1u64, 3_000u64), (2, 40_000), (3, 40_001), (4, 2_000_000)] {
        star.now += 1000 * MS * n;
        let posted = star.all[0].send(star.now, ep, &[0; 32], [b"x", &[]]).unwrap().unwrap();
        star.carry(0, &posted);
        // Answered by a send, which takes the acknowledgement along.
        star.now += rtt;
        let back = star.all[1].find(0).unwrap();
        let answer = star.all[1].send(star.now, back, &[0; 32], [b"y", &[]]).unwrap().unwrap();
        star.carry(1, &answer);
        star.turn(MS, &[]);
    }
    let more: Vec<(usize, u64)> = (0..before.len())
        .map(|at| (at, star.all[0].stats().rtt[at] - before[at]))
        .filter(|(_, more)| *more != 0)
        .collect();
    // 2048, 32 768 and 1 048 576 ns.
    assert_eq!(more, [(11, 1), (15, 2), (20, 1)]);
}

#[test]
fn the_oldest_segment_goes_again_at_once_wherever_it_waits() {
    let mut star = Star::new(1, |config| config);
    star.large(0);
    let (ep, now) = (star.eps[0], star.now);
    let module = &mut star.all[0];
    // A network that loses all.
    let send = |module: &mut Module| {
        std::iter::from_fn(|| {
            let posted = module.poll_send(now, &mut Zeros)?;
            let bytes = module.bytes(&posted).to_vec();
            module.completed(&posted);
            Some(bytes)
        })
        .count()
    };
    let resent = |module: &Module| module.stats().resent_by_timer;
    assert!(send(module) > 4, "the window holds some");
    for _ in 0..4 {
        // First it waits for its acknowledgement, then on the list of those to send again.
        (0..3).for_each(|_| {
            module.resend_oldest(now, ep);
            module.check().unwrap();
        });
        let before = resent(module);
        assert!(send(module) > 0 && resent(module) > before, "the congestion window held it back");
        module.check().unwrap();
    }
    (0..10_000).for_each(|_| star.turn(MS, &[]));
    assert!(star.all[0].is_idle(ep), "{}", star.all[0].describe());
    star.all[0].check().unwrap();
}
