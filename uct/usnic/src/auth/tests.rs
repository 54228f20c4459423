//! Handshakes between nodes in one process, and what must not pass.

use super::session::EPOCH_BITS;
use super::wire::{CLEAR, Clear, Message, TAG};
use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use zerocopy::FromBytes;

const MS: u64 = 1_000_000;
const A: u64 = 0x0a00_0001_0a00_0001;
const B: u64 = 0x0a00_0002_0a00_0002;

fn secret(n: u8) -> Secret {
    Secret::new(&[n; 32]).unwrap()
}

fn node_with(own: u64, secret: &Secret, seed: u8, config: AuthConfig) -> Auth {
    Auth::new(config, secret, own, &[seed; 32])
}

fn node(own: u64, seed: u8) -> Auth {
    node_with(own, &secret(1), seed, AuthConfig::default())
}

fn from(own: u64) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, own as u8], 4000 + own as u16 % 100))
}

/// Network address to which a handshake message goes: its node's.
fn open<'d>(to: &mut Auth, sender: u64, now: u64, datagram: &'d mut [u8]) -> Opened<'d> {
    to.open(now, from(sender), datagram)
}

/// Passes on handshake messages, each of which the network may lose, until none is left.
fn shake(a: &mut Auth, b: &mut Auth, now: u64, mut lose: impl FnMut() -> bool) {
    let ends = [a.own, b.own];
    for from in [0, 1] {
        let [from, mut to] = [from, 1 - from];
        while let Some((node, message)) = [&mut *a, &mut *b][from].poll_send(now) {
            assert_eq!(node, ends[1 - from]);
            let mut message = message;
            let mut sender = from;
            while !lose() {
                let len = message.len();
                match open([&mut *a, &mut *b][to], ends[sender], now, &mut message) {
                    Opened::Answer(answer) => {
                        assert!(answer.len() <= len, "no amplification");
                        message = answer;
                        (sender, to) = (to, sender);
                    }
                    Opened::Up(_) | Opened::Dropped => break,
                    other => panic!("{other:?}"),
                }
            }
            to = 1 - from;
        }
    }
}

fn pair() -> (Auth, Auth) {
    let (mut a, mut b) = (node(A, 1), node(B, 2));
    a.connect(0, B);
    shake(&mut a, &mut b, 0, || false);
    assert!(a.is_up(B) && !b.is_up(A), "B waits for the first sealed datagram");
    (a, b)
}

fn seal(auth: &mut Auth, to: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; bytes.len() + OVERHEAD];
    assert_eq!(auth.seal(0, to, bytes, &mut out), Ok(out.len()));
    out
}

fn opens(auth: &mut Auth, datagram: &[u8], want: &[u8]) -> bool {
    let mut datagram = datagram.to_vec();
    matches!(open(auth, 0, 0, &mut datagram), Opened::Datagram { bytes, .. } if bytes == want)
}

fn is_dropped(auth: &mut Auth, datagram: &[u8]) -> bool {
    let mut datagram = datagram.to_vec();
    matches!(open(auth, 0, 0, &mut datagram), Opened::Dropped)
}

fn dropped(stats: &AuthStats) -> u64 {
    stats.forged + stats.repeated + stats.old + stats.malformed + stats.strangers + stats.stray
}

fn live(auth: &mut Auth, node: u64) -> &mut session::Session {
    let number = auth.peers[&node].current.unwrap();
    match auth.table.get(number) {
        Some(Slot::Live(session)) => session,
        _ => panic!("no session"),
    }
}

#[test]
fn both_directions_after_one_handshake() {
    let (mut a, mut b) = pair();
    let mut out = [0; 100];
    assert_eq!(b.seal(0, A, b"early", &mut out), Err(NoSession), "B has not heard A yet");
    let hello = seal(&mut a, B, b"hello");
    assert!(opens(&mut b, &hello, b"hello") && b.is_up(A));
    let back = seal(&mut b, A, b"");
    assert!(opens(&mut a, &back, b"") && is_dropped(&mut a, &back));
    assert_eq!((a.stats().initiated, b.stats().accepted, a.stats().repeated), (1, 1, 1));
    assert!(is_dropped(&mut b, &back), "not in the other direction");
}

/// The secret is the job's: it tells the job's processes from others, and not from each other.
#[test]
fn everybody_with_the_secret_speaks_as_any_node() {
    let (mut posing, mut b) = (node(A, 9), node(B, 2));
    posing.connect(0, B);
    shake(&mut posing, &mut b, 0, || false);
    let mut datagram = seal(&mut posing, B, b"I am A");
    let opened = open(&mut b, 3, 0, &mut datagram);
    assert!(matches!(opened, Opened::Datagram { node: A, bytes, .. } if bytes == b"I am A"));
}

#[test]
fn sessions_have_no_forward_secrecy() {
    let (mut a, mut b) = (node(A, 1), node(B, 2));
    a.connect(0, B);
    let mut next = a.poll_send(0).expect("a handshake begins").1;
    let mut recorded = vec![next];
    for (to, sender) in [B, A, B].into_iter().zip([A, B, A]) {
        let to = if to == A { &mut a } else { &mut b };
        let Opened::Answer(answer) = open(to, sender, 0, &mut next) else { panic!("no answer") };
        recorded.push(answer);
        next = answer;
    }
    assert!(matches!(open(&mut a, B, 0, &mut next), Opened::Up(B)));
    let sealed = seal(&mut a, B, b"in confidence");
    // All of this is what passed over the network. The secret comes later.
    let [.., request, accept] = &recorded[..] else { panic!("four messages") };
    let salts = [request, accept].map(|message| Message::read_from_bytes(message).unwrap().salt);
    let number = Clear::read_from_prefix(&sealed).unwrap().0.number.get();
    for (learned, reads) in [(secret(1), true), (secret(2), false)] {
        let [from_a, from_b] = learned.session((A, &salts[0]), (B, &salts[1]));
        let mut session = session::Session::new(A, 0, salts, from_b, from_a);
        let mut datagram = sealed.clone();
        let read = session.open(number, &mut datagram);
        assert_eq!(read.is_ok_and(|bytes| bytes == b"in confidence"), reads);
    }
}

/// Computed by another implementation from the layout in the documentation.
const GOLDEN: &str = "400100000102030407080000000000005df15ee627b91bc95ac872e27166c2a1780fced51b";

#[test]
fn golden_bytes() {
    let salts = [[3; 32], [4; 32]];
    let [send, recv] = secret(1).session((A, &salts[0]), (B, &salts[1]));
    let mut session = session::Session::new(B, 0x0403_0201, salts, send, recv);
    let mut out = [0; 5 + OVERHEAD];
    session.skip_to(0x0807);
    session.seal(b"bytes", &mut out);
    let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
}

#[test]
fn the_messages_of_a_handshake_have_one_length_and_only_the_answer_makes_state() {
    let (mut a, mut b) = (node(A, 1), node(B, 2));
    a.connect(0, B);
    let (_, mut hello) = a.poll_send(0).unwrap();
    assert!(a.poll_send(0).is_none() && a.next_due() == Some(50 * MS));
    for _ in 0..3 {
        let Opened::Answer(_) = open(&mut b, A, 0, &mut hello) else { panic!("no cookie") };
    }
    assert_eq!((b.sessions(), b.peers.len()), (0, 0), "a hello leaves nothing");
    let Opened::Answer(mut cookie) = open(&mut b, A, 0, &mut hello) else { panic!("no cookie") };
    let Opened::Answer(mut request) = open(&mut a, B, 0, &mut cookie) else { panic!("no request") };
    assert!(matches!(open(&mut a, B, 0, &mut cookie), Opened::Dropped), "one request for a cookie");
    // From another network address, later, and for another node.
    assert!(matches!(b.open(0, from(B), &mut request), Opened::Dropped));
    assert!(matches!(open(&mut b, A, 200_000 * MS, &mut request), Opened::Dropped));
    assert_eq!((b.stats().cookies_refused, b.sessions()), (2, 0));
    assert!(matches!(node(7, 3).open(0, from(A), &mut request), Opened::Dropped));
    let Opened::Answer(first) = open(&mut b, A, 0, &mut request) else { panic!("no session") };
    let Opened::Answer(mut again) = open(&mut b, A, 0, &mut request) else { panic!("no session") };
    assert!(first == again && b.sessions() == 1, "a repeated request gets the same session");
    assert!(matches!(open(&mut a, B, 0, &mut again), Opened::Up(B)));
    assert!(matches!(open(&mut a, B, 0, &mut again), Opened::Dropped));
    let first = seal(&mut a, B, b"1");
    assert!(opens(&mut b, &first, b"1"));
    assert!(matches!(open(&mut b, A, 0, &mut request), Opened::Dropped), "recorded and sent again");
    assert_eq!((b.sessions(), b.stats().stray), (1, 1));
}

#[test]
fn two_secrets_do_not_meet() {
    let mut a = node(A, 1);
    let mut b = node_with(B, &secret(2), 2, AuthConfig::default());
    a.connect(0, B);
    let mut now = 0;
    while let Some(due) = a.next_due() {
        now = due;
        shake(&mut a, &mut b, now, || false);
    }
    let tries = u64::from(a.config.tries);
    assert_eq!((a.stats().given_up, b.stats().strangers, a.sessions(), b.sessions()), (1, tries, 0, 0));
    assert!(now < 5_000 * MS, "given up after {now} ns");
    // A datagram of one job, to a process of the other.
    let (mut a, _) = pair();
    let sealed = seal(&mut a, B, &[7; 100]);
    let mut other = sealed.clone();
    let Opened::Notice(mut notice) = open(&mut b, A, 0, &mut other) else { panic!("nothing to say") };
    assert!(matches!(open(&mut a, B, 0, &mut notice), Opened::Dropped));
    assert_eq!((a.stats().strangers, a.stats().notices_received), (1, 0));
}

#[test]
fn a_peer_that_has_started_anew_says_so_and_gets_another_session() {
    let (mut a, _) = pair();
    let mut b = node(B, 9);
    let mut sealed = seal(&mut a, B, &[7; 60]);
    let Opened::Notice(mut notice) = open(&mut b, A, 0, &mut sealed) else { panic!("nothing to say") };
    assert!(notice.len() <= sealed.len() && b.sessions() == 0);
    assert!(matches!(open(&mut a, B, 0, &mut notice), Opened::Dropped));
    assert!(a.is_up(B), "the session stays until another one is there");
    shake(&mut a, &mut b, 0, || false);
    let sealed = seal(&mut a, B, b"again");
    assert!(opens(&mut b, &sealed, b"again"));
    // The notice says nothing about the new session; and a short datagram gets none.
    assert!(matches!(open(&mut a, B, 0, &mut notice), Opened::Dropped));
    assert_eq!((a.stats().stray, a.stats().notices_received), (1, 1));
    let mut short = seal(&mut pair().0, B, b"");
    assert!(matches!(open(&mut b, A, 0, &mut short), Opened::Dropped));
    for n in 0..1000 {
        let mut sealed = sealed.clone();
        sealed[4] ^= 0x55;
        sealed.resize(200, n as u8);
        open(&mut b, A, 0, &mut sealed);
    }
    assert_eq!(b.stats().notices_sent, u64::from(b.config.notices), "in one second");
}

#[test]
fn both_sides_ask_at_once() {
    let (mut a, mut b) = (node(A, 1), node(B, 2));
    a.connect(0, B);
    b.connect(0, A);
    shake(&mut a, &mut b, 0, || false);
    for n in 0..20u8 {
        let there = seal(&mut a, B, &[n]);
        assert!(opens(&mut b, &there, &[n]));
        let back = seal(&mut b, A, &[n]);
        assert!(opens(&mut a, &back, &[n]));
    }
    assert!(a.sessions() <= 2 && b.sessions() <= 2);
}

#[test]
fn unused_sessions_and_peers_are_bounded() {
    let config = AuthConfig { max_granted: 4, max_peers: 8, ..AuthConfig::default() };
    let mut b = node_with(B, &secret(1), 2, config);
    for n in 0..20 {
        let mut a = node(100 + n, n as u8);
        a.connect(0, B);
        shake(&mut a, &mut b, 0, || false);
        assert!(b.sessions() <= 4);
    }
    assert_eq!((b.stats().evicted, b.granted.len()), (16, 4));
    for n in 0..20 {
        let mut a = node(200 + n, n as u8);
        a.connect(0, B);
        shake(&mut a, &mut b, 0, || false);
        if a.is_up(B) {
            let sealed = seal(&mut a, B, b"x");
            opens(&mut b, &sealed, b"x");
        }
    }
    assert!(b.peers.len() <= 8 && b.stats().peers_refused > 0, "{:?}", b.stats());
    b.peers.keys().copied().collect::<Vec<_>>().into_iter().for_each(|node| b.forget(node));
    assert_eq!((b.sessions(), b.peers.len()), (0, 0));
    // What this node asks for is bounded too, and given up.
    (0..20).for_each(|n| b.connect(0, 300 + n));
    assert_eq!(b.sessions(), 8);
    while let Some(due) = b.next_due() {
        while b.poll_send(due).is_some() {}
    }
    assert_eq!((b.sessions(), b.peers.len()), (0, 0));
}

#[test]
fn keys_follow_each_other_and_late_datagrams_of_the_last_one_open() {
    let (mut a, mut b) = pair();
    let first = seal(&mut a, B, b"first");
    assert!(opens(&mut b, &first, b"first"));
    let edge = 1 << EPOCH_BITS;
    live(&mut a, B).skip_to(edge - 3);
    let around: Vec<_> = (0..6u8).map(|n| seal(&mut a, B, &[n])).collect();
    for n in [4usize, 1, 0, 5, 2, 3] {
        assert!(opens(&mut b, &around[n], &[n as u8]), "{n}");
    }
    assert!(around.iter().all(|datagram| is_dropped(&mut b, datagram)));
    for epoch in 2..5 {
        live(&mut a, B).skip_to(edge * epoch);
        let sealed = seal(&mut a, B, &[9; 50]);
        let number = Clear::ref_from_prefix(&sealed).unwrap().0.number.get();
        assert_eq!(number, edge * epoch);
        assert!(opens(&mut b, &sealed, &[9; 50]), "epoch {epoch}");
    }
    live(&mut a, B).skip_to(edge * 6);
    let sealed = seal(&mut a, B, b"an epoch was lost as a whole");
    assert!(is_dropped(&mut b, &sealed));
}

proptest! {
    #[test]
    fn no_nonce_repeats(
        // What is sent again, over how many sessions, and where the numbers stand.
        resent in proptest::collection::vec(0usize..4, 1..60),
        restarts in 1usize..4,
        jump in 0u64..3,
    ) {
        let segments: Vec<Vec<u8>> = (0..4).map(|n| vec![n; 40]).collect();
        let (mut nonces, mut bodies) = (HashSet::new(), HashSet::new());
        let mut b = node(B, 2);
        for start in 0..restarts {
            let mut a = node(A, 10 + start as u8);
            a.connect(0, B);
            shake(&mut a, &mut b, 0, || false);
            live(&mut a, B).skip_to((jump << EPOCH_BITS).saturating_sub(20));
            for n in &resent {
                let sealed = seal(&mut a, B, &segments[*n]);
                let clear = Clear::ref_from_prefix(&sealed).unwrap().0;
                let session = live(&mut a, B).responder_salt;
                prop_assert!(nonces.insert((session, clear.number.get())), "a nonce repeats");
                prop_assert!(bodies.insert(sealed[CLEAR..].to_vec()), "the same bytes on the wire");
            }
        }
    }

    #[test]
    fn each_datagram_opens_once_in_any_order(
        order in proptest::collection::vec(0usize..50, 1..200),
    ) {
        let (mut a, mut b) = pair();
        let all: Vec<_> = (0..50u8).map(|n| seal(&mut a, B, &vec![n; usize::from(n)])).collect();
        let mut seen = HashSet::new();
        for n in order {
            let (once, want) = (seen.insert(n), vec![n as u8; n]);
            prop_assert_eq!(opens(&mut b, &all[n], &want), once);
        }
        prop_assert_eq!(b.stats().opened, seen.len() as u64);
    }

    #[test]
    fn a_wrong_bit_is_dropped(len in 0usize..1500, bit in any::<usize>()) {
        let (mut a, mut b) = pair();
        let sealed = seal(&mut a, B, &vec![5; len]);
        let mut wrong = sealed.clone();
        let bit = bit % (8 * wrong.len());
        wrong[bit / 8] ^= 1 << (bit % 8);
        // A bit of the session's number may cause a notice, which is no longer than the datagram.
        let outcome = open(&mut b, A, 0, &mut wrong);
        let is_good = match outcome {
            Opened::Dropped => true,
            Opened::Notice(notice) => (32..64).contains(&bit) && notice.len() <= sealed.len(),
            _ => false,
        };
        prop_assert!(is_good);
        prop_assert_eq!(b.stats().opened, 0);
        prop_assert!(opens(&mut b, &sealed, &vec![5; len]), "the true one still opens");
    }

    #[test]
    fn a_wrong_bit_of_a_handshake_is_dropped(step in 0usize..4, bit in 0usize..8 * MESSAGE) {
        let (mut a, mut b) = (node(A, 1), node(B, 2));
        a.connect(0, B);
        let mut message = a.poll_send(0).unwrap().1;
        for n in 0..4 {
            let (to, sender) = if n % 2 == 0 { (&mut b, A) } else { (&mut a, B) };
            if n == step {
                let mut wrong = message;
                wrong[bit / 8] ^= 1 << (bit % 8);
                let before = to.sessions();
                // A message that looks sealed names no session.
                let quiet = matches!(open(to, sender, 0, &mut wrong), Opened::Dropped | Opened::Notice(_));
                prop_assert!(quiet && to.sessions() == before);
            }
            match open(to, sender, 0, &mut message) {
                Opened::Answer(answer) => message = answer,
                Opened::Up(_) => prop_assert_eq!(n, 3),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert!(a.is_up(B));
    }

    #[test]
    fn a_handshake_survives_losses(losses in proptest::collection::vec(any::<bool>(), 0..14)) {
        let (mut a, mut b) = (node(A, 1), node(B, 2));
        a.connect(0, B);
        let mut losses = losses.into_iter();
        for _ in 0..100 {
            let Some(due) = a.next_due() else { break };
            shake(&mut a, &mut b, due, || losses.next().unwrap_or(false));
            if a.next_due().is_none() && !a.is_up(B) {
                a.connect(due, B);
            }
        }
        prop_assert!(a.is_up(B));
        let sealed = seal(&mut a, B, b"there");
        prop_assert!(opens(&mut b, &sealed, b"there"));
    }

    #[test]
    fn random_datagrams_are_dropped(
        datagrams in proptest::collection::vec(
            (0u8..8, any::<u32>(), proptest::collection::vec(any::<u8>(), 0..200)), 1..40),
    ) {
        let (mut a, mut b) = pair();
        let first = seal(&mut a, B, b"1");
        prop_assert!(opens(&mut b, &first, b"1"));
        let number = b.peers[&A].current.unwrap();
        let sent = datagrams.len() as u64;
        for (n, (kind, session, mut bytes)) in datagrams.into_iter().enumerate() {
            if let Some(head) = bytes.first_chunk_mut::<8>() {
                *head = [0x40 | kind, 1, 0, 0, 0, 0, 0, 0];
                let session = if n % 2 == 0 { number } else { session };
                head[4..].copy_from_slice(&session.to_le_bytes());
            }
            let len = bytes.len();
            match open(&mut b, A, 0, &mut bytes) {
                Opened::Dropped => {}
                Opened::Notice(notice) => prop_assert!(notice.len() <= len),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        let stats = *b.stats();
        prop_assert_eq!(dropped(&stats) + stats.unknown, sent, "{:?}", stats);
        prop_assert_eq!((stats.opened, b.sessions(), b.is_up(A)), (1, 1, true));
    }
}

#[test]
fn lengths_and_secrets() {
    assert_eq!((OVERHEAD, MESSAGE, TAG), (32, 128, 16));
    assert!(Secret::new(&[0; 15]).unwrap_err().contains("15 bytes"));
    assert!(Secret::new(&[0; 4097]).is_err() && Secret::new(&[0; 16]).is_ok());
    assert_eq!(format!("{:?}", secret(1)), "Secret(..)");
}
