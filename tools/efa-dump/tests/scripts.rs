//! Exchanges written by hand for every packet type: correct ones pass, wrong ones are found.

mod common;

use common::all_packets::*;
use common::script::{HERE, Script, THERE};
use common::{Folder, run_dump};
use ucp::wire::ctl::{AtomRsp, ReadNack, ReadRsp, Receipt};
use ucp::wire::rtm::{Eager, LongCts};
use ucp::wire::{Cause, Features, Handshake, Opts};

fn run(name: &str, script: &Script) -> common::Ran {
    let folder = Folder::new(&format!("script-{name}"));
    let path = folder.path("script");
    script.write(&path);
    run_dump(&[&path])
}

#[test]
fn correct_exchanges_of_every_packet_type_pass() {
    let script = all_packets();
    let ran = run("everything", &script);
    assert_eq!(ran.status, 0, "{}", ran.out);
    assert!(ran.out.contains(&format!("# {} packets, 0 violations", script.len())), "{}", ran.out);
    assert!(ran.out.contains("FAILED: Rnr"), "{}", ran.out);
}

#[test]
fn wrong_exchanges_are_found() {
    let window = || after_handshake().send(|b| longcts(20, Cause::Fresh).write(b), 1000);
    let other = Opts::raw_addr(THERE);
    let both = Opts { connid: Some(HERE.connid), ..Opts::raw_addr(HERE) };
    let weak = Handshake::new(Features::DELIVERY_COMPLETE, THERE.connid, 0xefa2);
    let cases: Vec<(&str, Script)> = vec![
        ("a second HANDSHAKE to this peer", after_handshake().recv(|b| handshake(THERE.connid).write(b), 0)),
        ("no raw address", Script::default().send(|b| eager(0).write(b), 1)),
        (
            "the raw address is not the sender's",
            Script::default().send(|b| Eager { opts: other, ..eager(0) }.write(b), 1),
        ),
        (
            "raw address and connid in one packet",
            after_handshake().send(|b| Eager { opts: both, ..eager(1) }.write(b), 1),
        ),
        (
            "the peer has not announced RDMA_READ",
            Script::default()
                .send(|b| Eager { opts: Opts::raw_addr(HERE), ..eager(0) }.write(b), 1)
                .recv(|b| weak.write(b), 0)
                .send(|b| longread(1, 30).write(b), 0),
        ),
        (
            "data within a window, though",
            Script::default()
                .send(|b| LongCts { opts: Opts::raw_addr(HERE), ..longcts(20, Cause::Fresh) }.write(b), 1000)
                .recv(|b| cts(20, 5, 2000).write(b), 0)
                .send(|b| data(5, 1000, 2000).write(b), 2000),
        ),
        ("msg_id 0 was there before", after_handshake().send(|b| eager(0).write(b), 1)),
        ("msg_id 1 to 4 never came", after_handshake().send(|b| eager(5).write(b), 1)),
        (
            "500 bytes more than the window allows",
            window().recv(|b| cts(20, 5, 500).write(b), 0).send(|b| data(5, 1000, 1000).write(b), 1000),
        ),
        (
            "bytes 2900 to 3100 of a message of 3000",
            window().recv(|b| cts(20, 5, 2000).write(b), 0).send(|b| data(5, 2900, 200).write(b), 200),
        ),
        (
            "bytes 500 to 700 came before",
            window().recv(|b| cts(20, 5, 2000).write(b), 0).send(|b| data(5, 500, 200).write(b), 200),
        ),
        (
            "though 500 bytes of the last one are outstanding",
            window().recv(|b| cts(20, 5, 500).write(b), 0).recv(|b| cts(20, 5, 500).write(b), 0),
        ),
        ("a window of 2001 bytes where 2000 are missing", window().recv(|b| cts(20, 5, 2001).write(b), 0)),
        ("a window of 0 bytes", window().recv(|b| cts(20, 5, 0).write(b), 0)),
        ("send_id 21: no operation of this id waits for CTS", window().recv(|b| cts(21, 5, 10).write(b), 0)),
        (
            "waits for EOR",
            after_handshake()
                .send(|b| longread(1, 30).write(b), 0)
                .recv(|b| eor(30).write(b), 0)
                .recv(|b| eor(30).write(b), 0),
        ),
        (
            "waits for RECEIPT",
            after_handshake().recv(|b| Receipt { send_id: 1, msg_id: 0, connid: THEIRS }.write(b), 0),
        ),
        (
            "waits for READ_NACK",
            after_handshake()
                .recv(|b| ReadNack { send_id: 1, recv_id: 0, not_now: false, connid: THEIRS }.write(b), 0),
        ),
        (
            "waits for ATOMRSP",
            after_handshake().recv(|b| AtomRsp { recv_id: 1, seg_length: 8, connid: THEIRS }.write(b), 8),
        ),
        (
            "waits for READRSP",
            after_handshake()
                .recv(|b| ReadRsp { recv_id: 1, send_id: 1, seg_length: 8, connid: THEIRS }.write(b), 8),
        ),
        (
            "waits for LONGCTS after READ_NACK",
            after_handshake().send(|b| longcts(20, Cause::ReadNack).write(b), 0),
        ),
    ];
    for (nth, (finding, script)) in cases.iter().enumerate() {
        let ran = run(&format!("wrong-{nth}"), script);
        assert_eq!(ran.status, 1, "{finding}: {}", ran.out);
        assert!(ran.out.contains(finding), "{finding}: {}", ran.out);
        assert!(ran.out.contains(", 1 violations"), "{finding}: {}", ran.out);
    }
}

#[test]
fn new_connid_resets_state() {
    let again = ucp::wire::RawAddr { connid: 0x333, ..HERE };
    let script = after_handshake()
        .send(|b| Eager { opts: Opts::raw_addr(again), ..eager(0) }.write(b), 8)
        .recv(|b| handshake(THERE.connid).write(b), 0);
    let ran = run("life", &script);
    assert_eq!(ran.status, 0, "{}", ran.out);
}
