//! The dissector in tshark decodes names and fields as `efa-dump` does. Skipped without tshark.

mod common;

use std::process::Command;

use common::all_packets::all_packets;
use common::{Folder, capture, run_dump};
use serde_json::Value;

/// Fields that are compared: name here, name there.
const FIELDS: &[(&str, &str)] = &[
    ("msg_id", "efa_rdm.msg_id"),
    ("msg_length", "efa_rdm.msg_length"),
    ("seg_offset", "efa_rdm.seg_offset"),
    ("seg_length", "efa_rdm.seg_length"),
    ("send_id", "efa_rdm.send_id"),
    ("recv_id", "efa_rdm.recv_id"),
    ("recv_length", "efa_rdm.recv_length"),
    ("tag", "efa_rdm.tag"),
    ("device_version", "efa_rdm.device_version"),
    ("payload", "efa_rdm.payload_len"),
];

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[test]
fn tshark_agrees_on_own_traffic() {
    let folder = Folder::new("dissector");
    compare_with_tshark(&folder, &capture(&folder, "capture", &[]));
}

#[test]
fn tshark_agrees_on_every_packet_type() {
    let folder = Folder::new("dissector-all");
    let path = folder.path("everything");
    all_packets().write(&path);
    compare_with_tshark(&folder, &path);
}

fn compare_with_tshark(folder: &Folder, path: &std::path::Path) {
    if Command::new("tshark").arg("--version").output().is_err() {
        return ucs::testing::not_installed("the dissector in tshark", "no tshark (tshark)");
    }
    let script = folder.path("efa_rdm.lua");
    std::fs::write(&script, run_dump(&["--dissector"]).out).unwrap();
    let mut tshark = Command::new("tshark");
    // Settings and plug-ins of the user must not matter.
    tshark.env("HOME", folder.path("home")).env("XDG_CONFIG_HOME", folder.path("home"));
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(path);
    tshark.args(["-T", "fields", "-E", "separator=|", "-e", "_ws.col.Info", "-e", "_ws.malformed"]);
    tshark.args(["-e", "softefa.src_qpn", "-e", "efa_rdm.short"]);
    FIELDS.iter().for_each(|(_, name)| {
        tshark.args(["-e", name]);
    });
    let ran = tshark.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{err}");
    assert!(!err.contains("Lua"), "{err}");

    let ours = run_dump(&["--json".as_ref(), path.as_os_str()]).out;
    let ours: Vec<Value> = ours.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ours = &ours[..ours.len() - 1];
    assert_eq!(out.lines().count(), ours.len(), "{out}");
    for (theirs, ours) in out.lines().zip(ours) {
        let columns: Vec<&str> = theirs.split('|').collect();
        let name = ours["type"].as_str().unwrap();
        assert_eq!(columns[0].split(' ').next(), Some(name), "{theirs}");
        assert_eq!((columns[1], columns[3]), ("", ""), "{theirs}");
        assert_eq!(number(columns[2]), ours["from"]["qpn"].as_u64(), "{theirs}");
        for ((field, _), theirs) in FIELDS.iter().zip(&columns[4..]) {
            let value = match &ours["fields"][field] {
                Value::String(text) => number(text),
                value => value.as_u64(),
            };
            assert_eq!(number(theirs), value, "{name} {field}: {theirs}");
        }
    }
}
