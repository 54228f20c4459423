use proptest::prelude::*;

use super::*;

fn entry(tl: &str, connid: u32, device: &[u8], iface: &[u8]) -> Entry {
    Entry {
        tl: tl.as_bytes().try_into().unwrap(),
        connid,
        device: device.try_into().unwrap(),
        iface: iface.try_into().unwrap(),
    }
}

const UID: u64 = 0x1122_3344_5566_7788;

fn id() -> WorkerId {
    WorkerId { uid: UID, nonce: nonce_of(UID), process: 0x0403_0201 }
}

fn raw() -> [u8; RAW_LEN] {
    let mut raw = [0; RAW_LEN];
    raw[..8].copy_from_slice(&LINK_LOCAL);
    raw[8..16].copy_from_slice(&[0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38]);
    raw[16..18].copy_from_slice(&[0x41, 0x42]);
    raw[20..24].copy_from_slice(&[0x51, 0x52, 0x53, 0x54]);
    raw
}

/// Entries of `posix`, `self`, `efa` and `cma`, as a worker with all of them has.
fn all() -> Address {
    with_process_key([0, 0xc1, 0xc2, 0xc3, 0xc4], [0xc1, 0xc2, 0xc3, 0xc4, 0])
}

/// Such entries with the last five bytes of a `posix` name, and the first five of the key in a `cma` address.
fn with_process_key(of_posix: [u8; 5], of_cma: [u8; 5]) -> Address {
    let connid = |nth| lane_connid(nonce_of(UID), nth);
    let mut posix_name = [0x05, 0, 0, 0, 0, 0, 0, 0];
    posix_name[3..].copy_from_slice(&of_posix);
    let mut cma_key = [0; 8];
    cma_key[..5].copy_from_slice(&of_cma);
    let cma = [[0x61, 0x62, 0x03, 0, 0, 0, 0, 0], cma_key, [0x71, 0x72, 3, 4, 5, 6, 0, 0]];
    let entries = vec![
        entry("posix", connid(0), &[0xd1, 0xd2, 0xd3, 0xd4, 0xb1, 0xb2, 0xb3, 0xb4], &posix_name),
        entry("self", connid(1), &[], &UID.to_le_bytes()),
        entry("efa", 0x5453_5251, &raw()[..16], &raw()),
        entry("cma", connid(3), &[0xe1, 0xe2, 0xe3, 0xe4, 0xb1, 0xb2, 0xb3, 0xb4], &cma.concat()),
    ];
    Address { id: id(), entries }
}

#[rustfmt::skip]
const ALL_PACKED: &[u8] = &[
    0xa2, 60,
    5, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 1, 2, 3, 4,
    5, 0xd1, 0xd2, 0xd3, 0xd4, 0xb1, 0xb2, 0xb3, 0xb4, 0x05, 0, 0, 0, 0xc1, 0xc2, 0xc3, 0xc4,
    1,
    4, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x41, 0x42, 0x51, 0x52, 0x53, 0x54,
    6, 0xe1, 0xe2, 0xe3, 0xe4, 0x61, 0x62, 0x03, 0x71, 0x72, 3, 4, 5, 6,
];

/// With forms for process keys of 40 bits.
#[rustfmt::skip]
const ALL_WITH_LONG_KEYS: &[u8] = &[
    0xa2, 60,
    5, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 1, 2, 3, 4,
    2, 0xd1, 0xd2, 0xd3, 0xd4, 0xb1, 0xb2, 0xb3, 0xb4, 0x05, 0, 0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5,
    1,
    4, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x41, 0x42, 0x51, 0x52, 0x53, 0x54,
    3, 0xe1, 0xe2, 0xe3, 0xe4, 0x61, 0x62, 0x03, 0x71, 0x72, 3, 4, 5, 6,
];

#[test]
fn earlier_forms_are_unpacked() {
    let key = [0xc1, 0xc2, 0xc3, 0xc4, 0xc5];
    assert_eq!(Address::unpack(ALL_WITH_LONG_KEYS), Ok(with_process_key(key, key)));
}

#[test]
fn version_2_golden_bytes() {
    assert_eq!(all().pack(), ALL_PACKED);
    assert_eq!(Address::unpack(ALL_PACKED), Ok(all()));
    assert!(ALL_PACKED.len() <= 64);
}

/// Another connection id, another nonce, an unknown transport, and an address that is not of the form.
#[test]
fn version_2_golden_bytes_in_full() {
    let id = WorkerId { uid: 0, nonce: 0x0807_0605, process: 0 };
    let entries = vec![
        entry("posix", 0x5453_5251, &[1, 2, 3, 4, 5, 6, 7, 8], &[8, 7, 6, 5, 4, 3, 2, 1]),
        entry("ib", lane_connid(id.nonce, 1), &[9], &[7, 8]),
        entry("self", 0x5453_5252, &[], &[1]),
    ];
    let address = Address { id, entries };
    #[rustfmt::skip]
    let packed = [
        0xa2, 43,
        2, 5, 6, 7, 8,
        0x85, 0x51, 0x52, 0x53, 0x54, 1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1,
        0, 2, b'i', b'b', 1, 9, 2, 7, 8,
        0x80, 0x52, 0x52, 0x53, 0x54, 4, b's', b'e', b'l', b'f', 0, 1, 1,
    ];
    assert_eq!(address.pack(), [&[packed[0], packed.len() as u8 - 2], &packed[2..]].concat());
    assert_eq!(Address::unpack(&address.pack()), Ok(address));
}

#[test]
fn version_1_is_read() {
    let v1 = [
        b"UCPA\x01\x02\0\0".as_slice(),
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[5, 8, 8, 0, 0x78, 0x56, 0x34, 0x12],
        b"posix",
        &[0xaa; 8],
        &[0xbb; 8],
        &[3, 16, 32, 0, 0x51, 0x52, 0x53, 0x54],
        b"efa",
        &raw()[..16],
        &raw(),
    ]
    .concat();
    let want = Address {
        id: WorkerId { process: 0x0403_0201, ..WorkerId::default() },
        entries: vec![
            entry("posix", 0x1234_5678, &[0xaa; 8], &[0xbb; 8]),
            entry("efa", 0x5453_5251, &raw()[..16], &raw()),
        ],
    };
    assert_eq!(Address::unpack(&v1), Ok(want.clone()));
    assert_eq!((want.uid(), Address::packed_len(&v1)), (None, Ok(v1.len())));
    assert_eq!(Address::unpack(&[&v1[..], &[1, 2]].concat()), Ok(want.clone()), "bytes behind it");
    assert_eq!(Address::unpack(&want.pack()), Ok(want), "as version 2");
    for cut in 4..v1.len() {
        assert_eq!(Address::unpack(&v1[..cut]), Err(AddressError::Damaged { len: cut }), "cut at {cut}");
    }
    let text = Address::unpack(b"UCPA\x09").unwrap_err().to_string();
    assert!(text.contains("version 9") && text.contains("1 to 2"), "{text}");
}

#[test]
fn bare_raw_address_is_read() {
    let address = Address::unpack(&raw()).unwrap();
    assert_eq!(address.transports().collect::<Vec<_>>(), ["efa"]);
    assert_eq!((address.efa_raw(), address.uid()), (Some(raw()), None));
    assert_eq!(Address::packed_len(&raw()), Ok(RAW_LEN));
    assert_eq!(Address::unpack(&address.pack()), Ok(address));
}

/// An address tells its length, whatever follows, wherever it lies.
#[test]
fn version_2_delimits_itself() {
    let mut bytes = ALL_PACKED.to_vec();
    bytes.extend([0xff; 70]);
    for shift in 0..8 {
        let moved = [vec![0; shift], bytes.clone()].concat();
        assert_eq!(Address::unpack(&moved[shift..]), Ok(all()));
    }
    assert_eq!(Address::packed_len(&bytes[..4]), Ok(ALL_PACKED.len()));
    for cut in 1..ALL_PACKED.len() {
        let error = AddressError::Damaged { len: cut };
        assert_eq!(Address::unpack(&ALL_PACKED[..cut]), Err(error), "cut at {cut}");
    }
}

#[test]
fn longest_address_is_read() {
    let long = entry("sixteen-letters!", 1, &[1; MAX_PART], &[2; MAX_PART]);
    let address = Address { id: id(), entries: vec![long; MAX_ENTRIES] };
    let packed = address.pack();
    assert_eq!(Address::packed_len(&packed[..4]), Ok(packed.len()));
    assert_eq!(Address::unpack(&packed), Ok(address.clone()));
    let mut more = address;
    more.entries.push(entry("x", 1, &[], &[]));
    assert!(Address::unpack(&more.pack()).is_err());
}

#[test]
fn errors_name_the_cause() {
    assert_eq!(Address::unpack(&[0xa3, 0]), Err(AddressError::Version { theirs: 3, ours: 2 }));
    for bytes in [&b""[..], b"hello", &[0; 32], &[0xa1, 0], &[0xfe; 32]] {
        assert_eq!(Address::unpack(bytes), Err(AddressError::NotAnAddress { len: bytes.len() }));
        assert_eq!(Address::packed_len(bytes), Err(AddressError::NotAnAddress { len: bytes.len() }));
    }
    // An unknown part of the id, an unknown form, a length without end, a name that is too long.
    for bytes in [&[0xa2, 1, 8][..], &[0xa2, 2, 0, 9], &[0xa2, 0x80, 0x80, 0x80, 0], &[0xa2, 3, 0, 0, 17]] {
        assert_eq!(Address::unpack(bytes), Err(AddressError::Damaged { len: bytes.len() }));
    }
}

fn part() -> impl Strategy<Value = Part> {
    proptest::collection::vec(any::<u8>(), 0..=MAX_PART).prop_map(|bytes| bytes.into_iter().collect())
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let tl = proptest::sample::select(vec!["self", "posix", "cma", "efa", "other"]);
    (tl, any::<u32>(), part(), part()).prop_map(|(tl, connid, device, iface)| Entry {
        tl: tl.as_bytes().try_into().unwrap(),
        connid,
        device,
        iface,
    })
}

proptest! {
    #[test]
    fn any_address_round_trips(
        (uid, nonce, process) in any::<(u64, u32, u32)>(),
        mut entries in proptest::collection::vec(any_entry(), 0..6),
        flip in 0..ALL_PACKED.len(),
        behind in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        // Entries of known forms, too, with one byte changed at most.
        let mut bytes = ALL_PACKED.to_vec();
        bytes[flip.max(2)] ^= 0x40;
        entries.extend(Address::unpack(&bytes).into_iter().flat_map(|address| address.entries));
        let address = Address { id: WorkerId { uid, nonce, process }, entries };
        let packed = address.pack();
        prop_assert_eq!(Address::packed_len(&packed), Ok(packed.len()));
        prop_assert_eq!(Address::unpack(&[packed, behind].concat()), Ok(address));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let starts: [&[u8]; 3] = [&[], b"UCPA\x01", &[0xa2]];
        for start in starts {
            for (at, b) in start.iter().enumerate().take(bytes.len()) {
                bytes[at] = *b;
            }
            let len = Address::packed_len(&bytes);
            if let Ok(address) = Address::unpack(&bytes) {
                prop_assert!(len.is_ok_and(|len| len <= bytes.len()));
                prop_assert_eq!(Address::unpack(&address.pack()), Ok(address));
            }
        }
    }
}
