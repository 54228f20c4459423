//! Parses, prints and lists arbitrary bytes: no panic, and the printer agrees with the parser.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ucp::wire::{Print, items, parse};

fuzz_target!(|bytes: &[u8]| {
    let parsed = parse(bytes);
    let _ = format!("{} {:#}", Print(bytes), Print(bytes));
    let rejected = items(bytes).iter().any(|item| item.name == "rejected");
    assert_eq!(parsed.is_err(), rejected);
    if let Ok(packet) = parsed {
        assert!(packet.payload().len() <= bytes.len());
    }
});
