//! A live engine under a script: see `ucp/tests/script`, which says what must hold and is run by `cargo test` as well.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../ucp/tests/counting/mod.rs"]
mod counting;
#[path = "../../ucp/tests/script/mod.rs"]
mod script;

fuzz_target!(|input: &[u8]| script::run(input, counting::bytes));
