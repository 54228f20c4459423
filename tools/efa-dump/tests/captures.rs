//! Captures of this library's traffic: they decode without violations, planted violations are found, and the
//! file of a killed process can be read.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{Folder, capture, context, run_dump, until};

const CHILD: &str = "EFA_DUMP_TEST_CAPTURE";
const HDR: usize = 64;

#[test]
fn our_traffic_violates_nothing() {
    let folder = Folder::new("clean");
    let path = capture(&folder, "clean", &[]);
    let ran = run_dump(&[&path]);
    assert_eq!((ran.status, &*ran.err), (0, ""), "{}", ran.out);
    assert!(ran.out.trim_end().ends_with("packets, 0 violations"), "{}", ran.out);
    let types = ["HANDSHAKE", "EAGER_TAGRTM", "MEDIUM_TAGRTM", "LONGCTS_TAGRTM", "CTS", "CTSDATA"];
    let receipts = ["DC_EAGER_TAGRTM", "DC_MEDIUM_TAGRTM", "DC_LONGCTS_TAGRTM", "RECEIPT"];
    for name in types.iter().chain(&receipts) {
        assert!(ran.out.contains(&format!("  {name} ")), "no {name} in {}", ran.out);
    }
    assert!(!ran.out.contains("rejected"), "{}", ran.out);
}

/// Messages without headers are recognised by the HANDSHAKE that asks for them, even if they are empty or
/// look like packets.
#[test]
fn headerless_messages_are_no_violation() {
    let folder = Folder::new("headerless");
    let path = |name: &str| folder.path(name);
    let one = ("UCX_NET_DEVICES", "softefa0");
    let a = context(&path("a.%p"), &[one, ("UCX_UNTAGGED_WAIT", "y")]).worker().unwrap();
    let b = context(&path("b.%p"), &[one, ("UCX_ZCOPY_RECV", "y")]).worker().unwrap();
    let ab = a.connect(&b.address(), ucp::EpParams::default()).unwrap();
    let messages: [&[u8]; 4] = [b"", b"words", b"\x40\x04\x04\0\x05\0\0\0A", b"\x09"];
    for bytes in messages {
        let recv = b.msg_recv(vec![0; 100]);
        let send = ab.msg_send(bytes.to_vec());
        until(&[&a, &b], || send.is_done() & recv.is_done());
        assert_eq!((send.wait().0, recv.wait().0.unwrap().len), (Ok(()), bytes.len()));
    }
    drop((ab, a, b));
    let [a, b] = ["a", "b"].map(|name| path(&format!("{name}.{}", std::process::id())));
    let ran = run_dump(&[&a, &b]);
    assert_eq!((ran.status, &*ran.err), (0, ""), "{}", ran.out);
    for bytes in messages {
        assert!(ran.out.contains(&format!("  HEADERLESS, {} bytes", bytes.len())), "{}", ran.out);
    }
    assert!(!ran.out.contains("rejected") && !ran.out.contains("EAGER_MSGRTM"), "{}", ran.out);
    let ran = run_dump(&["--flow".as_ref(), a.as_os_str(), b.as_os_str()]);
    assert_eq!(ran.status, 0, "{}", ran.out);
    let ran = run_dump(&["--json".as_ref(), a.as_os_str(), b.as_os_str()]);
    assert!(ran.out.contains(r#""type":"HEADERLESS""#), "{}", ran.out);
}

#[test]
fn traffic_on_lossy_network_violates_nothing() {
    let folder = Folder::new("rough");
    let rough = [("SOFTEFA_REORDER", "0.3"), ("SOFTEFA_RNR", "0.1"), ("SOFTEFA_SEED", "7")];
    let path = capture(&folder, "rough", &rough);
    let ran = run_dump(&[&path]);
    assert_eq!(ran.status, 0, "{}", ran.out);
}

#[test]
fn packets_of_a_message_form_one_exchange() {
    let folder = Folder::new("flow");
    // Without this the longest messages would be read by the kernel where it allows that.
    let path = capture(&folder, "flow", &[("UCX_MIN_READ", "inf")]);
    let ran = run_dump(&["--flow".as_ref(), path.as_os_str()]);
    assert_eq!(ran.status, 0, "{}", ran.out);
    // Ten lengths, three messages each, and two HANDSHAKEs.
    assert!(ran.out.contains("# 32 exchanges"), "{}", ran.out);
    let long = ran.out.lines().skip_while(|line| !line.contains("DC_LONGCTS_TAGRTM, 300000 bytes"));
    let packets: Vec<&str> = long.skip(1).take_while(|line| line.starts_with("  ")).collect();
    let count = |name: &str| packets.iter().filter(|p| p.contains(&format!("  {name} "))).count();
    assert_eq!((count("DC_LONGCTS_TAGRTM"), count("RECEIPT")), (1, 1), "{packets:#?}");
    assert!(count("CTS") >= 1 && count("CTSDATA") > 30, "{packets:#?}");
}

#[test]
fn json_has_one_object_per_line() {
    let folder = Folder::new("json");
    let path = capture(&folder, "json", &[]);
    let ran = run_dump(&["--json".as_ref(), path.as_os_str()]);
    let lines: Vec<serde_json::Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, packets) = lines.split_last().unwrap();
    assert_eq!(
        (last["packets"].as_u64(), last["violations"].as_u64()),
        (Some(packets.len() as u64), Some(0))
    );
    let medium = packets.iter().find(|p| p["type"] == "MEDIUM_TAGRTM").unwrap();
    assert!(medium["fields"]["msg_length"].is_u64(), "{medium}");
    assert_eq!(medium["status"], 0);
}

#[test]
fn two_runs_compare_equal_and_different_ones_do_not() {
    let folder = Folder::new("compare");
    let one = capture(&folder, "one", &[]);
    let two = capture(&folder, "two", &[]);
    let small = capture(&folder, "small", &[("SOFTEFA_MTU", "4096")]);
    let same = run_dump(&["--compare".as_ref(), one.as_os_str(), two.as_os_str()]);
    assert_eq!(same.status, 0, "{}", same.out);
    assert!(same.out.starts_with("# no difference in"), "{}", same.out);
    let other = run_dump(&["--compare".as_ref(), one.as_os_str(), small.as_os_str()]);
    assert_eq!(other.status, 1, "{}", other.out);
    assert!(other.out.lines().any(|l| l.starts_with("- ")) && other.out.lines().any(|l| l.starts_with("+ ")));
}

/// Start and length of each packet in a capture.
fn packets(file: &[u8]) -> Vec<(usize, usize)> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut all) = (0, Vec::new());
    while at < file.len() {
        if word(at) == 6 {
            all.push((at + 28 + HDR, word(at + 20) - HDR));
        }
        at += word(at + 4);
    }
    all
}

/// Alters the first packet of a type in the sender's view (the second of a MEDIUM message), and expects a
/// finding.
fn planted(file: &[u8], folder: &Folder, ty: u8, alter: impl Fn(&mut [u8]), finding: &str) {
    let mut file = file.to_vec();
    let second = |packet: &[u8]| packet[0] != 67 || packet[16..24] != [0; 8];
    let of_type = |(at, len): &(usize, usize)| {
        *len > 0 && file[*at] == ty && file[*at - HDR + 2] == 0 && second(&file[*at..*at + *len])
    };
    let (at, len) =
        packets(&file).into_iter().find(of_type).unwrap_or_else(|| panic!("no packet of type {ty}"));
    alter(&mut file[at..at + len]);
    let path = folder.path("planted");
    std::fs::write(&path, &file).unwrap();
    let ran = run_dump(&["--bad".as_ref(), path.as_os_str()]);
    assert_eq!(ran.status, 1, "{finding}: {}", ran.out);
    assert!(ran.out.contains(finding), "{finding}: {}", ran.out);
}

#[test]
fn planted_violations_are_found() {
    let folder = Folder::new("planted");
    let file = std::fs::read(capture(&folder, "source", &[])).unwrap();
    let planted = |ty, alter: &dyn Fn(&mut [u8]), finding| planted(&file, &folder, ty, alter, finding);
    planted(65, &|p| p[1] = 3, "protocol version 3, not 4");
    planted(65, &|p| p[0] = 200, "unknown packet type 200");
    planted(65, &|p| p[2] &= !0x08, "TAGGED is missing");
    planted(65, &|p| p[2] &= !0x04, "MSG is missing");
    planted(65, &|p| p[4] = 250, "never came, though later ones did");
    planted(67, &|p| p[4] = 0, "msg_id 0 was there before");
    planted(67, &|p| p[16] = p[16].wrapping_sub(1), "came before");
    planted(67, &|p| p[8] = p[8].wrapping_add(1), "disagree about its length");
    planted(3, &|p| p[8] = p[8].wrapping_add(1), "send_id");
    planted(3, &|p| p[16] = p[16].wrapping_sub(1), "1 bytes more than the window allows");
    planted(3, &|p| p[20] = 1, "are missing");
    planted(4, &|p| p[4] = p[4].wrapping_add(1), "no operation of this id waits for CTSDATA");
    planted(4, &|p| p[20] = 9, "of a message of");
    planted(4, &|p| p[10] = 1, "bytes claimed");
    planted(10, &|p| p[4] = p[4].wrapping_add(1), "no operation of this id waits for RECEIPT");
    planted(9, &|p| p[8] &= !2, "the peer has not announced DELIVERY_COMPLETE");
}

#[test]
fn sender_process() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let context = common::context(path.as_ref(), &[]);
    loop {
        common::exchange_messages(&context);
        println!("round");
    }
}

#[test]
fn killed_writer_leaves_readable_file() {
    let folder = Folder::new("killed");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sender_process", "--nocapture"])
        .env(CHILD, folder.path("killed.%p"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // In the middle of the third round or later.
    assert_eq!(lines.filter(|line| line.contains("round")).take(2).count(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
    let path = folder.path(&format!("killed.{}", child.id()));
    let ran = run_dump(&[&path]);
    assert_eq!((ran.status, &*ran.err), (0, ""), "{}", ran.out);
    assert!(ran.out.lines().count() > 200, "{}", ran.out);

    // A truncated file gives what is before the cut.
    let whole = std::fs::read(&path).unwrap();
    let cut = folder.path("cut");
    std::fs::write(&cut, &whole[..whole.len() / 2 + 1]).unwrap();
    let ran = run_dump(&[&cut]);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains("not whole"), "{}", ran.err);
    assert!(ran.out.lines().count() > 100, "{}", ran.out);
}
