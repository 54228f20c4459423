//! Errors of arguments and files: one line, and exit status 2.

mod common;

use common::{Folder, run_dump};

#[test]
fn errors_are_one_line() {
    let folder = Folder::new("bad-input");
    let text = folder.path("text");
    std::fs::write(&text, "no capture at all, but long enough to look at").unwrap();
    let empty = folder.path("empty");
    std::fs::write(&empty, "").unwrap();
    let (text, empty) = (text.to_str().unwrap(), empty.to_str().unwrap());
    let cases: &[(&[&str], &str)] = &[
        (&[], "say what to decode"),
        (&["/nowhere.pcapng"], "No such file"),
        (&[text], "not a pcapng file"),
        (&[empty], "not a pcapng file"),
        (&["--compare", text], "2 values"),
        (&["--hex", "4x"], "no hexadecimal digit"),
        (&["--hex", "404"], "odd number of digits"),
        (&["--hex"], "no packet"),
        (&["--wrong"], "--wrong"),
        (&["--flow", "-v", text], "cannot be used with"),
    ];
    for (args, words) in cases {
        let ran = run_dump(args);
        assert_eq!(ran.status, 2, "{args:?}: {}{}", ran.out, ran.err);
        assert_eq!(ran.out, "", "{args:?}");
        assert_eq!(ran.err.lines().count(), 1, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{args:?}: {}", ran.err);
    }
}

#[test]
fn packet_given_as_digits_is_decoded() {
    let ran = run_dump(&["--hex", "40040400", "05000000", "41"]);
    assert_eq!(ran.status, 0);
    assert!(ran.out.contains("EAGER_MSGRTM, 9 bytes") && ran.out.contains("msg_id"), "{}", ran.out);
    let ran = run_dump(&["--hex", "--json", "40040400", "05000000", "41"]);
    assert_eq!(ran.status, 2, "what follows --hex is the packet: {}", ran.out);
    let ran = run_dump(&["--json", "--hex", "4004040005000000", "41"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((json["type"].as_str(), json["fields"]["msg_id"].as_u64()), (Some("EAGER_MSGRTM"), Some(5)));
    let ran = run_dump(&["--hex", "40030400"]);
    assert_eq!(ran.status, 1);
    assert!(ran.out.contains("version 3"), "{}", ran.out);
}
