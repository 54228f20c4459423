//! Runs scripts against an engine; `ucp/tests/script` defines them, and `cargo test` runs them too.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../ucp/tests/counting/mod.rs"]
mod counting;
#[path = "../../ucp/tests/script/mod.rs"]
mod script;

fuzz_target!(|input: &[u8]| script::run(input, counting::bytes));
