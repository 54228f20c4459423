//! Reads arbitrary bytes as the address of a worker: no panic; what is read is packed and read again alike,
//! and the length that an address tells is the length that is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ucp::Address;

fuzz_target!(|bytes: &[u8]| {
    let len = Address::packed_len(bytes);
    let Ok(address) = Address::unpack(bytes) else { return };
    let len = len.expect("the length of an address");
    assert!(len <= bytes.len());
    let packed = address.pack();
    assert_eq!(Address::packed_len(&packed), Ok(packed.len()));
    assert_eq!(Address::unpack(&packed), Ok(address.clone()));
    if len < bytes.len() && bytes.len() != 32 {
        assert_eq!(Address::unpack(&bytes[..len]), Ok(address));
    }
});
