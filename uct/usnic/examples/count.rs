//! Passes fragments between two modules without sockets, for an instruction counter, whose counts repeat to
//! the last digit. The difference of two counts, divided by that of the numbers, is instructions per
//! fragment.
//!
//! ```text
//! count answers N        a tiny fragment each way, N times: each takes the acknowledgement of the other
//! count stream N         N tiny fragments one way, 16 at a time, and their acknowledgements
//! count large N          N fragments of 64 KiB one way, in chunks, and their acknowledgements
//! ```

use std::error::Error;
use usnic::{CloseReason, Config, EpId, HEAD, Head, Module, Posted, Sink, Source};

const TINY: [u8; 64] = [7; 64];
const LARGE: u32 = 64 << 10;
/// Time from a datagram's sending to its arrival, ns.
const DELAY: u64 = 5_000;

/// The layer above.
#[derive(Default)]
struct Above {
    received: u64,
    accepted: Option<EpId>,
}

impl Sink for Above {
    fn on_accept(&mut self, ep: EpId, _node: u64) {
        self.accepted = Some(ep);
    }

    fn on_dead(&mut self, _ep: EpId, _node: u64, why: CloseReason) {
        panic!("{why:?}");
    }

    fn on_frag(&mut self, _ep: EpId, _head: &Head, _payload: &[u8]) {
        self.received += 1;
    }

    fn on_first_chunk(&mut self, _ep: EpId, _head: &Head, _total: u32) -> Option<u64> {
        Some(1)
    }

    fn on_chunk(&mut self, _target: u64, _offset: u32, _bytes: &[u8]) {}

    fn on_last_chunk(&mut self, _ep: EpId, _target: u64, _head: &Head, _whole: bool) {
        self.received += 1;
    }
}

impl Source for Above {
    fn fetch(&mut self, _token: u64, _offset: u32, _to: &mut [u8]) -> bool {
        true
    }

    fn on_copied(&mut self, _token: u64) {}
}

struct Pair {
    modules: [Module; 2],
    above: [Above; 2],
    now: u64,
}

impl Pair {
    fn connect() -> (Pair, [EpId; 2]) {
        let module = |node| Module::new(Config { node, ..Config::default() }, 0);
        let mut pair = Pair { modules: [module(1), module(2)], above: Default::default(), now: 0 };
        let Some(ep) = pair.modules[0].connect(0, 2) else { unreachable!("there is room for a peer") };
        while pair.above[1].accepted.is_none() || !pair.modules[0].is_open(ep) {
            pair.step();
        }
        // The path is known, too.
        (0..100_000).for_each(|_| pair.step());
        let other = pair.above[1].accepted.unwrap_or(ep);
        (pair, [ep, other])
    }

    fn deliver(&mut self, from: usize, posted: &Posted) {
        let (one, two) = self.modules.split_at_mut(1);
        let (sender, receiver) =
            if from == 0 { (&mut one[0], &mut two[0]) } else { (&mut two[0], &mut one[0]) };
        let (bytes, above) = (sender.bytes(posted), &mut self.above[1 - from]);
        if !receiver.recv_fast(self.now, bytes, above) {
            assert!(receiver.on_datagram(self.now, bytes, above).is_none());
        }
        sender.completed(posted);
    }

    /// Lets both modules send what they have.
    fn step(&mut self) {
        self.now += DELAY;
        for side in [0, 1] {
            self.modules[side].on_time(self.now, &mut self.above[side]);
            while let Some(posted) = self.modules[side].poll_send(self.now, &mut self.above[side]) {
                self.deliver(side, &posted);
            }
        }
    }

    fn send(&mut self, side: usize, ep: EpId) -> Result<(), Box<dyn Error>> {
        let sent = self.modules[side].send(self.now, ep, &[1; HEAD], [&TINY, &[]]);
        if let Some(posted) = sent.map_err(|why| format!("{why:?}"))? {
            self.deliver(side, &posted);
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [operation, times] = &args[..] else { return Err("count answers|stream|large N".into()) };
    let (times, (mut pair, eps)) = (times.parse::<u64>()?, Pair::connect());
    for nth in 0..times {
        match &**operation {
            "answers" => {
                pair.send(0, eps[0])?;
                pair.send(1, eps[1])?;
                pair.step();
            }
            "stream" => {
                pair.send(0, eps[0])?;
                if nth % 16 == 15 {
                    (0..20).for_each(|_| pair.step());
                }
            }
            "large" => {
                let sent = pair.modules[0].send_large(pair.now, eps[0], &[1; HEAD], LARGE, 1);
                sent.map_err(|why| format!("{why:?}"))?;
                (0..40).for_each(|_| pair.step());
            }
            _ => return Err("count answers|stream|large N".into()),
        }
    }
    (0..1000).for_each(|_| pair.step());
    let received = pair.above[0].received + pair.above[1].received;
    let wanted = if operation == "answers" { 2 * times } else { times };
    assert_eq!(received, wanted, "{:?}", pair.modules[0].stats());
    println!("{received} fragments");
    Ok(())
}
