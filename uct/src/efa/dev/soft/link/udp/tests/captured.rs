//! Captures of requests whose outcome the far side tells later.

use super::*;
use crate::efa::dev::soft::capture::Direction;
use crate::efa::dev::soft::tests::capture::packets;

#[test]
fn a_capture_shows_when_a_request_was_made_not_when_its_outcome_came() {
    let dir = std::env::temp_dir().join(format!("softefa-captured-udp-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let name = dir.join("udp.%p");
    let (a, b) = pair(&[("SOFTEFA_PCAP", name.to_str().unwrap())]);
    for nth in 0..3 {
        b.qp.recv(nth, b.sge(0, 100)).unwrap();
    }
    // All three are in flight before the receiver looks, the last one from memory that is given back before
    // its outcome is there.
    for (nth, text) in [b"one", b"two"].into_iter().enumerate() {
        a.qp.send_inline(&a.to(&b), nth as u64, text, None).unwrap();
    }
    let brief = a.dev.alloc_mr(&a.pd, 4096, Access::ALL).unwrap();
    // SAFETY: the region is longer, and nobody else uses it yet.
    unsafe { brief.addr().copy_from_nonoverlapping(b"six".as_ptr(), 3) };
    let sge = Sge { addr: brief.addr(), len: 3, lkey: brief.lkey() };
    a.qp.send(&a.to(&b), 2, &[sge], None).unwrap();
    let (mut sent, mut got, start) = (0, 0, Instant::now());
    while got < 3 {
        got += b.poll().len();
        assert!(start.elapsed() < PATIENCE);
    }
    drop(brief);
    while sent < 3 {
        sent += a.poll().len();
        assert!(start.elapsed() < PATIENCE);
    }
    drop((a, b));
    let file = std::fs::read(dir.join(format!("udp.{}", std::process::id()))).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let all = packets(&file);
    for text in [b"one", b"two", b"six"] {
        let time = |side: Direction| {
            let is_it = |hdr_side: u8, bytes: &[u8]| hdr_side == u8::from(side) && bytes == text;
            all.iter().find(|(_, hdr, bytes)| is_it(hdr.direction, bytes)).map(|(time, ..)| *time).unwrap()
        };
        assert!(time(Direction::Out) <= time(Direction::In), "{}", String::from_utf8_lossy(text));
    }
}
